//! `fusebox imatrix`: collects an importance matrix, for `fusebox quantize --imatrix`.
//!
//! In: a model and a text. Out: a GGUF file that says how large the inputs of every projection are, column by column,
//! as llama.cpp writes it too. Each chunk of the text is read from the start of a sequence.

use std::path::PathBuf;

use clap::Args;
use fusebox::open::n_threads;
use fusebox::text::amount::{bytes, counted};

use crate::flags::given::Given;
use crate::flags::model::NamedModel;
use crate::measure::perplexity::{bos_of, text_of, tokenizer_of};
use crate::terminal::output::print;
use crate::terminal::progress::Progress;

/// What to read.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    /// The text, a file; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The file to write; an existing one is replaced once the new file is complete.
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    output: PathBuf,
    /// Tokens of a chunk.
    #[arg(short, long, value_name = "TOKENS", default_value_t = 512)]
    context: usize,
    /// The most chunks [default: all of the text].
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
}

/// Collects and writes it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let n_threads = n_threads(arguments.threads)?;
    if arguments.chunks == Some(0) {
        return Err("--chunks is 0, expected at least 1".to_owned());
    }
    let text = text_of("--file", &arguments.file)?;
    Given::new("--output", &arguments.output).check_target()?;
    let mut progress = Progress::new(1);
    let mut opened = arguments.model.open(&mut progress, false)?;
    drop(progress);
    let context = opened.context(Some(arguments.context))?.max;
    let tokenizer = tokenizer_of(&opened)?;
    let tokens = tokenizer.encode(&text, true).map_err(|error| error.to_string())?;
    let bos = bos_of(&tokenizer)?;
    let chunks = tokens.chunks_exact(context).take(arguments.chunks.unwrap_or(usize::MAX)).map(|chunk| {
        let mut chunk = chunk.to_vec();
        if let (Some(bos), Some(first)) = (bos, chunk.first_mut()) {
            *first = bos;
        }
        chunk
    });
    let chunks: Vec<Vec<u32>> = chunks.collect();
    if chunks.is_empty() {
        let n = counted(tokens.len(), "token");
        return Err(format!(
            "the text has {n}, expected at least {context} for a chunk; -c makes it shorter"
        ));
    }
    let mut progress = Progress::new(chunks.len());
    let collected = opened.importance(n_threads, &chunks, &mut |done, all| {
        progress.begin(&format!("{done} of {}", counted(all, "chunk")));
    })?;
    drop(progress);
    let name = arguments.file.display().to_string();
    let n_bytes = collected.write(&arguments.output, &name).map_err(|error| error.to_string())?;
    print(&format!(
        "{} over {} of {context} tokens: {}, {}\n",
        counted(collected.n_tensors(), "tensor"),
        counted(chunks.len(), "chunk"),
        arguments.output.display(),
        bytes(n_bytes as f64)
    ));
    Ok(())
}
