//! `fusebox serve`: answers requests over HTTP.
//!
//! In: models and flags. Out: a line with the address once the socket is open, then nothing until a signal.
//! The server itself is the crate `serve/`; here are its flags, and how it opens models and engines.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use fusebox::Pooling;
use fusebox::Run;
use fusebox::adapters::Choice;
use fusebox::open::n_threads;
use fusebox_serve::{CHATML, Settings, Source, serve};

use crate::embed::PoolingName;
use crate::flags::adapters::AdapterFlags;
use crate::flags::draft::GuessFlags;
use crate::flags::evict::EvictFlags;
use crate::flags::given::Given;
use crate::flags::model::{DeviceFlags, KvPoolFlags, model_path};
use crate::heaps;
use crate::terminal::output;
#[cfg(unix)]
use crate::terminal::signals;

/// The longest file with a template or keys.
const MAX_FILE: usize = 1 << 20;
/// The most sequences of a batch.
const MAX_PARALLEL: usize = 64;

/// What to serve, and to whom.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The models, each as `fusebox run` names one, or NAME=MODEL; all but the first are loaded when a request names
    /// them [default: a small built-in story model].
    #[arg(value_name = "[NAME=]MODEL", conflicts_with = "model")]
    places: Vec<String>,
    /// The same; repeatable.
    #[arg(short, long, value_name = "[NAME=]MODEL")]
    model: Vec<String>,
    /// Another name of the first model; repeatable.
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    #[command(flatten)]
    device: DeviceFlags,
    #[command(flatten)]
    adapters: AdapterFlags,
    /// Folder for the prompts of earlier requests (prefix cache): read at the start, and written at the end.
    #[arg(long, value_name = "DIR")]
    prompt_cache: Option<PathBuf>,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Context length of a sequence [default: 4096, or the model's if shorter].
    #[arg(short, long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Sequences that are computed together.
    #[arg(long, value_name = "N", default_value_t = 4)]
    parallel: usize,
    #[command(flatten)]
    kv_pool: KvPoolFlags,
    #[command(flatten)]
    evict: EvictFlags,
    #[command(flatten)]
    draft: GuessFlags,
    /// The most tokens of a replay: longer prompts are computed in chunks, beside decodes.
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    max_batch_tokens: usize,
    /// The most sequences in the queue; then requests are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_queue: usize,
    /// The most prompt tokens in the queue.
    #[arg(long, value_name = "TOKENS", default_value_t = 1 << 20)]
    max_queue_tokens: usize,
    /// API key that requests must have; repeatable.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with API keys, one a line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Certificate for HTTPS, in PEM, with those that sign it after it.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Origin of web pages that may send requests, or *; repeatable.
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// The largest body of a request, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    max_body: usize,
    /// Seconds that a request may take [default: no limit].
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Seconds in which requests are still taken after SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    drain_delay: f64,
    /// Seconds that streams may then take to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    drain: f64,
    /// Chat template in place of the model's: chatml, or a Jinja file.
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// How the hidden states of a text become its embedding [default: as the model says].
    #[arg(long, value_name = "HOW")]
    pooling: Option<PoolingName>,
    /// Put the times of prefill and decode into every answer.
    #[arg(long)]
    timings: bool,
    /// Send reasoning under the key `reasoning` as well as `reasoning_content`.
    #[arg(long)]
    reasoning_key: bool,
    /// Memory that loaded models may take, in MiB; the one idle for longest makes room for another [default: no limit].
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Seconds after which an idle model is unloaded, where there are several.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    keep_alive: f64,
}

impl Arguments {
    /// The models as they were given.
    fn models(&self) -> &[String] {
        if self.places.is_empty() { &self.model } else { &self.places }
    }
}

/// Serves until a signal.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let settings = settings(arguments)?;
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let sources = sources(arguments, &settings.run.adapters.choices)?;
    let parallel = arguments.parallel;
    if !(1..=MAX_PARALLEL).contains(&parallel) {
        return Err(format!("--parallel is {parallel}, expected 1 to {MAX_PARALLEL}"));
    }
    heaps::share();
    #[cfg(unix)]
    signals::release();
    serve(settings, sources, |address| {
        output::print(&format!("listening on {scheme}://{address}\n"));
    })
}

fn seconds(flag: &str, value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| format!("{flag} is {value}, expected seconds of at least 0"))
}

fn settings(arguments: &Arguments) -> Result<Settings, String> {
    let mut keys = arguments.api_key.clone();
    if let Some(path) = &arguments.api_key_file {
        let text = Given::new("--api-key-file", path).text(MAX_FILE)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        keys.extend(lines.map(str::to_owned));
        if keys.is_empty() {
            return Err(format!("{}: expected API keys, one a line, found none", path.display()));
        }
    }
    if keys.iter().any(String::is_empty) {
        return Err("--api-key is empty, expected a key".to_owned());
    }
    let template = match arguments.chat_template.as_deref() {
        None => None,
        Some("chatml") => Some(CHATML.to_owned()),
        Some(path) => {
            let given = Given::new("--chat-template", Path::new(path));
            given.check_file("chatml or a Jinja file")?;
            Some(given.text(MAX_FILE)?)
        }
    };
    if arguments.max_batch_tokens == 0 {
        return Err("--max-batch-tokens is 0, expected at least 1".to_owned());
    }
    for (flag, path) in [("--tls-cert", &arguments.tls_cert), ("--tls-key", &arguments.tls_key)] {
        if let Some(path) = path {
            Given::new(flag, path).check_file("a file in PEM")?;
        }
    }
    if let Some(folder) = &arguments.prompt_cache {
        Given::new("--prompt-cache", folder).make_folder()?;
    }
    let adapters = arguments.adapters.served()?;
    if !adapters.is_empty() && arguments.models().len() > 1 {
        return Err("adapters are for one model, found several; give one".to_owned());
    }
    let run = Run {
        threads: arguments.threads,
        context: arguments.context,
        kv_pool: arguments.kv_pool.pool(),
        evict: arguments.evict.evict(),
        adapters,
        ..arguments.device.run()
    };
    n_threads(run.threads)?;
    Ok(Settings {
        run,
        parallel: arguments.parallel,
        host: arguments.host,
        port: arguments.port,
        keys,
        origins: arguments.cors_origin.clone(),
        max_body: arguments.max_body.saturating_mul(1 << 20),
        batch_tokens: arguments.max_batch_tokens,
        max_queue: arguments.max_queue,
        max_queue_tokens: arguments.max_queue_tokens,
        timeout: arguments.timeout.map(|time| seconds("--timeout", time)).transpose()?,
        drain_delay: seconds("--drain-delay", arguments.drain_delay)?,
        drain: seconds("--drain", arguments.drain)?,
        template,
        pooling: arguments.pooling.map(Pooling::from),
        shows_timings: arguments.timings,
        shows_reasoning: arguments.reasoning_key,
        memory: arguments.memory.map(|mebibytes| mebibytes.saturating_mul(1 << 20)),
        keep_alive: seconds("--keep-alive", arguments.keep_alive)?,
        tls: arguments.tls_cert.clone().zip(arguments.tls_key.clone()),
        prompt_cache: arguments.prompt_cache.clone(),
        guesses: arguments.draft.most()?,
        note: output::note,
    })
}

/// The models with their names: the part before `=`, or that of a file or folder, or the name that was given.
fn sources(arguments: &Arguments, choices: &[Choice]) -> Result<Vec<Source>, String> {
    let mut sources: Vec<Source> = Vec::new();
    for text in arguments.models() {
        let (name, place) = match text.split_once('=') {
            Some((name, place)) if !name.is_empty() && !name.contains(['/', '\\']) => (Some(name), place),
            _ => (None, text.as_str()),
        };
        let place = Path::new(place);
        let path = model_path(Some(place))?;
        let own_name = if path == place { short_name(place) } else { place.display().to_string() };
        let name = name.map_or(own_name, str::to_owned);
        if sources.iter().any(|source| source.names.contains(&name)) {
            return Err(format!("two models have the name {name}; name them with NAME=MODEL"));
        }
        sources.push(Source { names: vec![name], path });
    }
    if sources.is_empty() {
        let path = model_path(None)?;
        sources.push(Source { names: vec![short_name(&path)], path });
    }
    if let Some(first) = sources.first_mut() {
        first.names.extend(arguments.alias.iter().cloned());
    }
    let is_taken = |choice: &&Choice| sources.iter().any(|source| source.names.contains(&choice.name));
    if let Some(Choice { name, .. }) = choices.iter().find(is_taken) {
        return Err(format!("a model and an adapter have the name {name}"));
    }
    Ok(sources)
}

/// The name of a file without its ending, or of a folder, in whose name a dot begins no ending (`Qwen3-0.6B`).
fn short_name(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_ends_the_name_of_a_file_and_not_of_a_folder() {
        let folder = std::env::temp_dir().join(format!("fusebox-{}-0.6B", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(short_name(&folder).ends_with("-0.6B"));
        assert_eq!(short_name(&folder.join("model.Q8_0.gguf")), "model.Q8_0");
        std::fs::remove_dir(&folder).unwrap();
    }
}
