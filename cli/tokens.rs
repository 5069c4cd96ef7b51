//! `fusebox tokens`: tokenises text, or decodes token ids.
//!
//! In: a model, and text or token ids. Out: a line per token, or one JSON object. No weight is read.

use clap::Args;
use fusebox::text::table::table;
use fusebox::tokenizer::Tokenizer;
use fusebox::weights::Checkpoint;
use serde_json::json;

use crate::flags::model::ModelName;
use crate::flags::prompt::{Prompt, PromptFlags};
use crate::terminal::output::print;

/// What to tokenise.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelName,
    #[command(flatten)]
    prompt: PromptFlags,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Prints the tokens.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let prompt = arguments.prompt.read()?;
    let prompt = prompt.ok_or("a prompt is needed: -p TEXT, -f FILE or --tokens 1,2,3")?;
    let path = arguments.model.path()?;
    let checkpoint = Checkpoint::open(&path).map_err(|error| error.to_string())?;
    let tokenizer = Tokenizer::open(&checkpoint).map_err(|error| error.to_string())?;
    let tokens = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => tokenizer.encode(&text, true).map_err(|error| error.to_string())?,
    };
    let n_tokens = tokenizer.n_tokens();
    if let Some(unknown) = tokens.iter().find(|token| **token as usize >= n_tokens) {
        return Err(format!("there is no token {unknown}; the vocabulary has {n_tokens} tokens"));
    }
    if arguments.json {
        print(&format!("{:#}\n", json!({ "tokens": tokens, "text": tokenizer.decode(&tokens, false) })));
        return Ok(());
    }
    let row = |token: &u32| [token.to_string(), shown(&tokenizer, *token)];
    let heads = ["token", "text"].map(str::to_owned);
    let rows: Vec<[String; 2]> = [heads].into_iter().chain(tokens.iter().map(row)).collect();
    print(&table("rl", "  ", &rows));
    Ok(())
}

/// A token as text in quotes, or as its bytes where it is a part of a character.
fn shown(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token);
    if str::from_utf8(bytes).is_ok() {
        return format!("{:?}", tokenizer.decode(&[token], false));
    }
    bytes.iter().fold(String::new(), |text, byte| text + &format!("<{byte:02x}>"))
}
