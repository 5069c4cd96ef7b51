//! One model that is served: its text side and the thread of its engine.
//!
//! In: an opened model. Out: prompts as tokens, and a place to submit jobs; of an encoder, vectors only.
//! Messages become text by the model's own template; a template without tools has them written into the system message.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fusebox::embed::relevance::Relevance;
use fusebox::template::Chat;
use fusebox::tokenizer::{Pair, Tokenizer};
use fusebox::watch::{Event, Watch};
use fusebox::weights::Checkpoint;
use fusebox::weights::value::Value as Metadata;
use fusebox::{Model, Pooling, Run};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::engine::encoder::Encoder;
use crate::engine::paged::{Paged, Parts};
use crate::grammar::Grammars;
use crate::http::problem::Problem;
use crate::scheduler::Limits;
use crate::tools::{Format, Tool};
use crate::worker::{MakeEngine, QueueLimits, Worker};

/// The most bytes of a token that count when a text is judged too long.
const MAX_TOKEN_BYTES: usize = 128;

/// What does not depend on the model's file.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) run: Run,
    /// Sequences that are computed together.
    pub(crate) parallel: usize,
    pub(crate) batch_tokens: usize,
    pub(crate) queue: QueueLimits,
    pub(crate) template: Option<String>,
    pub(crate) pooling: Option<Pooling>,
    pub(crate) prompt_cache: Option<PathBuf>,
    /// The most tokens that are guessed for a sequence.
    pub(crate) guesses: usize,
    pub(crate) note: fn(&str),
}

/// A model that is served.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    chat: Option<Chat>,
    pub(crate) worker: Worker,
    grammars: OnceLock<Result<Grammars, String>>,
    /// How calls are written; none where the template knows of no tools.
    pub(crate) format: Option<Format>,
    /// Whether the template knows of reasoning.
    pub(crate) thinks: bool,
    pub(crate) created: u64,
    pub(crate) size: u64,
    pub(crate) n_params: u64,
    pub(crate) architecture: String,
    pub(crate) quantization: String,
    pub(crate) trained_context: usize,
    /// Numbers of the vector of a text.
    pub(crate) width: usize,
    /// Whether it generates text; an encoder or a ranker does not.
    pub(crate) generates: bool,
    /// Metadata of the file that is no list.
    pub(crate) info: Map<String, Value>,
    /// A hash of what the model and the server are.
    pub(crate) digest: String,
    pub(crate) pooling: Option<Pooling>,
    /// How it says whether a document answers a query, or what it lacks for that.
    pub(crate) relevance: Result<Relevance, String>,
    /// The most tokens that are guessed for a sequence.
    pub(crate) guesses: usize,
    /// The adapters that a request chooses from, and the factors on all ranks that stand for each alone.
    pub(crate) adapters: Vec<(String, Arc<[f32]>)>,
}

/// Whether a name is that of a model: Ollama appends `:latest`.
pub(crate) fn is_name(name: &str, known: &str) -> bool {
    name == known || name.strip_suffix(":latest") == Some(known)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The text of a template that a flag names: `chatml`, or the source itself.
pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// How tools are described where the template does not do it.
fn described(tools: &[Tool]) -> String {
    let list: Vec<String> = tools.iter().map(|tool| tool.to_json().to_string()).collect();
    format!(
        "You may call functions to answer. These are their signatures:\n<tools>\n{}\n</tools>\n\
         To call one, write a JSON object with its name and arguments between these tags:\n\
         <tool_call>\n{{\"name\": NAME, \"arguments\": OBJECT}}\n</tool_call>",
        list.join("\n")
    )
}

fn to_json(value: &Metadata) -> Option<Value> {
    Some(match value {
        Metadata::Bool(value) => json!(value),
        Metadata::Unsigned(value) => json!(value),
        Metadata::Signed(value) => json!(value),
        Metadata::Float(value) => json!(value),
        Metadata::Text(value) if value.len() <= 1024 => json!(value),
        Metadata::Text(_) | Metadata::List(_) => return None,
    })
}

impl Served {
    /// Opens a model, and starts its engine.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn start(name: &str, path: &Path, terms: &Terms) -> Result<Self, String> {
        let note = terms.note;
        let watch: Watch = Arc::new(move |event| {
            if let Event::Note(text) = event {
                note(text);
            }
        });
        let model = Model::open_watched(path, terms.run.clone(), watch).map_err(|error| error.to_string())?;
        let checkpoint = model.checkpoint();
        let tokenizer = model.tokenizer().map_err(|error| error.to_string())?;
        let chat = match &terms.template {
            Some(source) => Some(Chat::from_source(source, Map::new())),
            None => Chat::open(checkpoint).transpose(),
        };
        let mut chat = chat.transpose().map_err(|error| error.to_string())?;
        if let Some(chat) = &mut chat {
            chat.set_clock(now() as i64);
        }
        let source = chat.as_ref().and_then(Chat::template).unwrap_or_default();
        let info: Map<String, Value> = checkpoint
            .metadata()
            .iter()
            .filter(|(key, _)| !key.starts_with("tokenizer."))
            .filter_map(|(key, value)| Some((key.clone(), to_json(value)?)))
            .collect();
        let text = |key: &str| info.get(key).and_then(Value::as_str).map(str::to_owned);
        // A projection that is not read is a fault of embedding alone.
        let generates = model.generates();
        let pooling = match model.pooling(terms.pooling) {
            Ok(pooling) => pooling,
            Err(_) if generates => None,
            Err(error) => return Err(error.to_string()),
        };
        let relevance = match model.relevance(&tokenizer) {
            Ok(relevance) if generates || pooling == Some(Pooling::Rank) => Ok(relevance),
            Ok(_) => Err("it cannot rank texts: the server was started with --pooling".to_owned()),
            Err(what) => Err(what),
        };
        let size: u64 = checkpoint.tensors().values().map(|tensor| tensor.n_bytes() as u64).sum();
        let n_params: u64 = checkpoint.tensors().values().map(|tensor| tensor.n_elements() as u64).sum();
        let hash = Sha256::digest(format!("{name} {size} {n_params} {}", env!("CARGO_PKG_VERSION")));
        let digest = hash.iter().fold(String::new(), |all, byte| all + &format!("{byte:02x}"));
        let limits = Limits { batch_tokens: terms.batch_tokens };
        let trained_context = model.config().context;
        let width = model.config().ends.projections.last().copied().unwrap_or(model.config().hidden);
        let (architecture, quantization) = (text("general.architecture"), largest_format(checkpoint));
        let choices = &terms.run.adapters.choices;
        let adapters = choices.iter().enumerate().map(|(number, choice)| {
            let one: Vec<f32> = (0..choices.len()).map(|other| f32::from(other == number)).collect();
            (choice.name.clone(), model.scales(&one))
        });
        let adapters = adapters.collect();
        let worker = Worker::start(engine(model, terms, pooling)?, limits, terms.queue)?;
        Ok(Self {
            name: name.to_owned(),
            worker,
            grammars: OnceLock::new(),
            format: Format::of_template(source),
            thinks: source.contains("<think>") || source.contains("</think>"),
            created: now(),
            size,
            n_params,
            architecture: architecture.unwrap_or_else(|| "unknown".to_owned()),
            quantization,
            trained_context,
            width,
            generates,
            info,
            digest,
            pooling,
            relevance,
            guesses: terms.guesses,
            adapters,
            tokenizer,
            chat,
        })
    }

    /// The factors on adapters of a request that names a model: 1 for the adapter of that name.
    pub(crate) fn named(&self, model: Option<&str>) -> Vec<f32> {
        let is_own = |name: &str| model.is_some_and(|model| is_name(model, name));
        self.adapters.iter().map(|(name, _)| f32::from(is_own(name))).collect()
    }

    /// The factors on all ranks, given those on adapters.
    pub(crate) fn scales(&self, factors: &[f32]) -> Arc<[f32]> {
        let n = self.adapters.first().map_or(0, |(_, one)| one.len());
        let sum = |rank: usize| factors.iter().zip(&self.adapters).map(|(x, (_, one))| x * one[rank]).sum();
        (0..n).map(sum).collect()
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// Where the text is far too long, or the file's own rules fail on it.
    pub(crate) fn tokens(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Problem> {
        self.check_bytes(text.len())?;
        self.tokenizer.encode(text, add_special).map_err(|error| Problem::invalid(error.to_string()))
    }

    /// What the model reads of a query and a document.
    ///
    /// # Errors
    /// As [`Served::tokens`].
    pub(crate) fn pair(&self, relevance: Relevance, texts: [&str; 2]) -> Result<Pair, Problem> {
        self.check_bytes(texts.map(str::len).iter().sum())?;
        relevance.input(&self.tokenizer, texts).map_err(Problem::invalid)
    }

    /// Refuses texts that cannot fit into the context, by their bytes.
    fn check_bytes(&self, n_bytes: usize) -> Result<(), Problem> {
        // Every token has at least a byte, and none has more than a few dozen.
        let (least, context) = (n_bytes / MAX_TOKEN_BYTES, self.worker.capacity.context);
        if least > context { Err(Problem::too_long(context, least)) } else { Ok(()) }
    }

    /// Refuses requests for text of a model that generates none.
    ///
    /// # Errors
    /// Says what it does instead.
    pub(crate) fn check_generates(&self) -> Result<(), Problem> {
        match (self.generates, self.pooling) {
            (true, _) => Ok(()),
            (false, Some(Pooling::Rank)) => {
                Err(Problem::model("this model ranks texts and generates none; use /v1/rerank"))
            }
            (false, _) => {
                Err(Problem::model("this model embeds texts and generates none; use /v1/embeddings"))
            }
        }
    }

    /// The text of messages, by the template.
    ///
    /// # Errors
    /// Where there is no template, or it refuses the messages.
    pub(crate) fn render(
        &self,
        messages: &[Value],
        tools: &[Tool],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, Problem> {
        let Some(chat) = &self.chat else {
            let what = "this model has no chat template; use /v1/completions, or start the server with --chat-template";
            return Err(Problem { param: Some("messages".to_owned()), ..Problem::invalid(what) });
        };
        let mut variables = variables.clone();
        let told;
        let messages = if self.format.is_some() {
            if !tools.is_empty() {
                variables.insert("tools".to_owned(), tools.iter().map(Tool::to_json).collect());
            }
            messages
        } else {
            told = without_tools(messages, tools);
            &told
        };
        chat.render(messages, add_generation_prompt, &variables).map_err(|error| Problem {
            param: Some("messages".to_owned()),
            ..Problem::invalid(error.to_string())
        })
    }

    /// Whether the model has a template at all.
    pub(crate) fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// The source of the template.
    pub(crate) fn template(&self) -> Option<&str> {
        self.chat.as_ref()?.template()
    }

    /// How calls are written, for templates without tools as well.
    pub(crate) fn call_format(&self) -> Format {
        self.format.unwrap_or(Format::Hermes)
    }

    /// What makes constraints; it is made when it is first wanted.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn grammars(&self) -> Result<&Grammars, String> {
        let grammars =
            self.grammars.get_or_init(|| Grammars::new(&self.tokenizer, self.worker.capacity.vocab));
        grammars.as_ref().map_err(Clone::clone)
    }

    /// A text as a grammar wants it: a special token by its id.
    pub(crate) fn literal(&self, text: &str) -> String {
        match self.tokenizer.encode(text, false).as_deref() {
            Ok([id]) if self.tokenizer.is_special(*id) => format!("<[{id}]>"),
            _ => Value::from(text).to_string(),
        }
    }

    /// The name of the build and the file in answers.
    pub(crate) fn fingerprint(&self) -> String {
        format!("fp_{}", &self.digest[..10])
    }
}

/// What makes the engine of a model on the thread of its worker.
fn engine(model: Model, terms: &Terms, pooling: Option<Pooling>) -> Result<MakeEngine, String> {
    let (n, guesses, folder, note) = (terms.parallel, terms.guesses, terms.prompt_cache.clone(), terms.note);
    let generates = model.generates();
    let model = Arc::new(Mutex::new(model));
    let embedder = pooling.map(|pooling| {
        let model = Arc::clone(&model);
        move || lock(&model).embedder(pooling)
    });
    if generates {
        return Ok(Box::new(move || {
            let model = Arc::clone(&model);
            let parts = Parts {
                engine: Box::new(move || lock(&model).guessing_engine(n, guesses)),
                embedder: embedder.clone().map(|make| Box::new(make) as _),
                folder: folder.clone(),
                note,
            };
            Ok(Box::new(Paged::new(parts, n).map_err(|error| error.to_string())?) as _)
        }));
    }
    let embedder = embedder.ok_or("the model does not say how hidden vectors are pooled; --pooling does")?;
    Ok(Box::new(move || {
        let embedder = embedder().map_err(|error| error.to_string())?;
        Ok(Box::new(Encoder::new(embedder)) as _)
    }))
}

/// The model, which a panic of another thread leaves as good as it was.
fn lock(model: &Mutex<Model>) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The format of most bytes of a checkpoint.
fn largest_format(checkpoint: &Checkpoint) -> String {
    let largest = checkpoint.tensors().values().max_by_key(|tensor| tensor.n_elements());
    largest.map_or_else(String::new, |tensor| tensor.stored.to_string().to_uppercase())
}

/// Messages for a template without tools: they are described in the system message, and calls and their results are
/// text.
fn without_tools(messages: &[Value], tools: &[Tool]) -> Vec<Value> {
    let mut told: Vec<Value> = messages.iter().map(plain_message).collect();
    if !tools.is_empty() {
        let text = described(tools);
        match told.first_mut().filter(|first| first["role"] == "system") {
            Some(first) => {
                let before = first["content"].as_str().unwrap_or_default();
                first["content"] = format!("{before}\n\n{text}").into();
            }
            None => told.insert(0, json!({ "role": "system", "content": text })),
        }
    }
    told
}

fn plain_message(message: &Value) -> Value {
    let mut message = message.clone();
    let content = message["content"].as_str().unwrap_or_default().to_owned();
    if message["role"] == "tool" {
        return json!({ "role": "user", "content": format!("<tool_response>\n{content}\n</tool_response>") });
    }
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let calls = calls.iter().map(|call| {
        let function = &call["function"];
        let call = json!({ "name": function["name"], "arguments": function["arguments"] });
        format!("<tool_call>\n{call}\n</tool_call>")
    });
    let parts: Vec<String> = Some(content).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
    if let Some(object) = message.as_object_mut() {
        object.remove("tool_calls");
        object.insert("content".to_owned(), parts.join("\n").into());
    }
    message
}
