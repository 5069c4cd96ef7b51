//! Fuzzing on stable Rust: every reader of a file, a text or a request, with inputs that are nearly right.
//!
//! In: names of targets, a time or a number of inputs, a seed. Out: a table, each input that found a fault as a file,
//! and exit code 1 if there was one.
//! A fault is a panic, an end of the process, more than 5 seconds, more memory than twice the input and 64 MiB, or what
//! a target itself says. Each target runs in a process of its own, which is started again behind an input that ended
//! it.
//! `worker.rs` is that process, `mutate.rs` makes inputs, `targets/` says what is read.

#![allow(clippy::print_stdout, reason = "its output is a table")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::targets::TARGETS;
use crate::worker::{AT, HUNG, Order};

mod memory;
mod mutate;
mod targets;
mod worker;

const USAGE: &str = "usage: fusebox-fuzz [TARGET...] [--seconds S] [--inputs N] [--seed N] [--replay FILE]
  --seconds  for each target, 10 if nothing is said
  --inputs   at most that many for each target
  --seed     another seed gives other inputs
  --replay   runs one file with one target, and says what comes of it";

/// Where inputs that found something go.
const FOUND: &str = "target/fuzz";
/// Inputs that every run begins with: good ones, and those that found something once.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
/// The faults of a target after which nothing more is learnt.
const MAX_FAULTS: usize = 20;

/// The command line.
struct Arguments {
    targets: Vec<String>,
    seconds: u64,
    inputs: u64,
    seed: u64,
    replay: Option<PathBuf>,
    /// The first input and the folder, of a worker.
    worker: Option<(u64, PathBuf)>,
}

/// What came of a target.
#[derive(Default)]
struct Outcome {
    n: u64,
    n_taken: u64,
    faults: Vec<String>,
    time: Duration,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(sentence) => return refuse(&sentence),
    };
    let unknown = arguments.targets.iter().find(|name| TARGETS.iter().all(|(own, _)| own != name));
    if let Some(name) = unknown {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        return refuse(&format!("{name} is no target, expected one of {}", names.join(", ")));
    }
    if let (Some((first, folder)), [name]) = (&arguments.worker, &arguments.targets[..]) {
        let mut target = targets::make(name, folder);
        let (n, time) = (arguments.inputs, Duration::from_secs(arguments.seconds));
        let order = Order { seed: arguments.seed, first: *first, n, time, folder };
        return worker::work(&mut *target, &corpus(name), &order);
    }
    // Files that live for a moment need no disk.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = folder.join(format!("fusebox-fuzz-{}", std::process::id()));
    let code = match (&arguments.replay, &arguments.targets[..]) {
        (Some(file), [name]) => replay(file, name, &folder),
        (Some(_), _) => refuse("--replay takes one target"),
        (None, _) => all(&arguments, &folder),
    };
    let _ = fs::remove_dir_all(&folder);
    code
}

fn refuse(sentence: &str) -> ExitCode {
    eprintln!("fusebox-fuzz: {sentence}\n{USAGE}");
    ExitCode::from(2)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut own =
        Arguments { targets: Vec::new(), seconds: 10, inputs: u64::MAX, seed: 1, replay: None, worker: None };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}: expected a value"));
        let number =
            |text: String| text.parse().map_err(|_| format!("{word}: expected a number, found {text}"));
        match &*word {
            "--seconds" => own.seconds = number(value()?)?,
            "--inputs" => own.inputs = number(value()?)?,
            "--seed" => own.seed = number(value()?)?,
            "--replay" => own.replay = Some(value()?.into()),
            "--worker" => own.worker = Some((number(value()?)?, value()?.into())),
            name if name.starts_with('-') => return Err(format!("there is no flag {name}")),
            name => own.targets.push(name.to_owned()),
        }
    }
    Ok(own)
}

/// The files that a target begins with, by name.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(Path::new(CORPUS).join(name)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

fn replay(file: &Path, name: &str, folder: &Path) -> ExitCode {
    let input = match fs::read(file) {
        Ok(input) => input,
        Err(error) => return refuse(&format!("{}: {error}", file.display())),
    };
    let start = Instant::now();
    let done = worker::run(&mut *targets::make(name, folder), &input);
    let time = start.elapsed();
    match done {
        Ok(is_taken) if time <= worker::MAX_TIME => {
            println!("{name}: {} in {time:.1?}", if is_taken { "taken" } else { "refused" });
            ExitCode::SUCCESS
        }
        Ok(_) => {
            println!("{name}: it takes {time:.1?}");
            ExitCode::FAILURE
        }
        Err(what) => {
            println!("{name}: {what}");
            ExitCode::FAILURE
        }
    }
}

fn all(arguments: &Arguments, folder: &Path) -> ExitCode {
    println!("{:12} {:>9} {:>7} {:>8} {:>7}", "target", "inputs", "taken", "a second", "faults");
    let mut n_faults = 0;
    let mut n_inputs = 0;
    for (name, _) in TARGETS {
        if !arguments.targets.is_empty() && !arguments.targets.iter().any(|own| own == name) {
            continue;
        }
        let Outcome { n, n_taken, faults, time } = watch(name, arguments, &folder.join(name));
        let share = 100.0 * n_taken as f64 / (n.max(1)) as f64;
        let rate = n as f64 / time.as_secs_f64().max(1e-3);
        println!("{name:12} {n:9} {share:6.1}% {rate:8.0} {:7}", faults.len());
        for fault in &faults {
            println!("  {fault}");
        }
        n_faults += faults.len();
        n_inputs += n;
    }
    println!("{n_inputs} inputs, {n_faults} faults");
    if n_faults > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs workers until the time of a target is over.
fn watch(name: &'static str, arguments: &Arguments, folder: &Path) -> Outcome {
    let (start, time) = (Instant::now(), Duration::from_secs(arguments.seconds));
    let mut outcome = Outcome::default();
    while start.elapsed() < time && outcome.n < arguments.inputs && outcome.faults.len() < MAX_FAULTS {
        if fs::create_dir_all(folder).is_err() {
            outcome.faults.push(format!("{} cannot be made", folder.display()));
            break;
        }
        let left = time.saturating_sub(start.elapsed()).as_secs().max(1);
        let Some(end) = work(name, arguments, folder, left, &mut outcome) else { break };
        if !end {
            break;
        }
    }
    outcome.time = start.elapsed();
    outcome
}

/// One worker; whether another should follow, or nothing where none could be started.
fn work(
    name: &'static str,
    arguments: &Arguments,
    folder: &Path,
    left: u64,
    outcome: &mut Outcome,
) -> Option<bool> {
    let first = outcome.n;
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.arg(name).args(["--seed", &arguments.seed.to_string(), "--seconds", &left.to_string()]);
    command.args(["--inputs", &(arguments.inputs - first).to_string(), "--worker", &first.to_string()]);
    let mut child = command.arg(folder).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let before = (outcome.n, outcome.n_taken);
    for line in BufReader::new(child.stdout.take()?).lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("fault", rest)) => {
                let (number, what) = rest.split_once(' ').unwrap_or((rest, ""));
                let number = number.parse().unwrap_or_default();
                outcome.faults.push(kept(name, arguments, folder, number, what));
                if outcome.faults.len() >= MAX_FAULTS {
                    let _ = child.kill();
                }
            }
            Some(("done", rest)) => {
                let (n, n_taken) = rest.split_once(' ')?;
                outcome.n = before.0 + n.parse::<u64>().ok()?;
                outcome.n_taken = before.1 + n_taken.parse::<u64>().ok()?;
            }
            _ => {}
        }
    }
    let status = child.wait().ok()?;
    if status.success() {
        return Some(false);
    }
    let at = fs::read(folder.join(AT)).ok()?;
    let number = u64::from_le_bytes(at.try_into().ok()?);
    outcome.n = outcome.n.max(number + 1);
    // On a busy machine an input may only have waited: it has another try.
    let has_hung = status.code() == Some(HUNG);
    if outcome.faults.len() < MAX_FAULTS && !(has_hung && is_quick(name, arguments, folder, number)) {
        let what = if has_hung {
            format!("it takes more than {} s", worker::MAX_TIME.as_secs())
        } else {
            format!("it ends the process: {status}")
        };
        outcome.faults.push(kept(name, arguments, folder, number, &what));
    }
    Some(true)
}

/// Whether an input is done in time when it is tried again.
fn is_quick(name: &str, arguments: &Arguments, folder: &Path, number: u64) -> bool {
    let Ok(program) = std::env::current_exe() else { return false };
    let mut command = Command::new(program);
    command.arg(name).args(["--seed", &arguments.seed.to_string(), "--seconds", "60", "--inputs", "1"]);
    command.args(["--worker", &number.to_string()]).arg(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Writes an input that found something to a file; says which.
fn kept(name: &'static str, arguments: &Arguments, folder: &Path, number: u64, what: &str) -> String {
    let input = worker::input(&*targets::make(name, folder), &corpus(name), arguments.seed, number);
    let path = Path::new(FOUND).join(format!("{name}-{}-{number}", arguments.seed));
    let written = fs::create_dir_all(FOUND).and_then(|()| fs::write(&path, input));
    match written {
        Ok(()) => format!("{}: {what}", path.display()),
        Err(error) => format!("input {number} of seed {}: {what} (not written: {error})", arguments.seed),
    }
}
