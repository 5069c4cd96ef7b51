//! A guard against performance cliffs: the shapes that people run, one size varied at a time.
//!
//! Run with `cargo bench --bench sweep`, which takes about five minutes; `-- --quick` takes one. Words choose the cells
//! whose labels have all of them: `-- width q4_0`.
//! A cell is a model (`cells.rs`), how many tokens it takes at once, and how many the KV cache has before. Models have
//! random weights in memory (`model.rs`). The cost of a cell is its time over the roofline of its work (`work.rs`).
//! `judge.rs` compares the costs of neighbours; the cells that stand out are measured again, and shown.
//! `--csv FILE` appends a row a cell, `--read FILE` judges the rows of such files (`rows.rs`) instead of measuring.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use fusebox_compiler::foundation::amount::counted;

mod cells;
mod judge;
mod model;
mod rows;
mod work;

use cells::{Cell, cells};
use judge::{judged, table};
use model::{Model, Time};
use rows::{HEADS, Origin, read, row};

/// What to measure, and where to put it.
#[derive(Parser)]
struct Arguments {
    /// Measure only the cells whose labels have all of these words.
    words: Vec<String>,
    /// Measure a few shapes only.
    #[arg(long)]
    quick: bool,
    /// List the cells, and measure none.
    #[arg(long)]
    list: bool,
    /// Append the rows to a file of comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Judge the rows of these files instead of measuring.
    #[arg(long, value_name = "FILE")]
    read: Vec<PathBuf>,
    /// Threads to run on [default: the number that the machine runs at once].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// What `cargo bench` says to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("sweep: {what}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    if !arguments.read.is_empty() {
        let mut times = BTreeMap::new();
        for path in &arguments.read {
            let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            times.extend(read(&text).map_err(|what| format!("{}: {what}", path.display()))?);
        }
        return say(&table(&judged(&times)));
    }
    let mut chosen = cells(arguments.quick);
    chosen.retain(|cell| arguments.words.iter().all(|word| cell.has(word)));
    if chosen.is_empty() {
        return Err(format!("no cell is called {}", arguments.words.join(" ")).into());
    }
    if arguments.list {
        return chosen.iter().try_for_each(|cell| say(&format!("{cell}\n")));
    }
    let n_threads = arguments.threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    let file = arguments.csv.as_deref().map(opened).transpose()?;
    let mut times = BTreeMap::new();
    measure(&chosen, n_threads, &mut times)?;
    // What stood out because the machine was busy does so no more.
    let verdicts = judged(&times);
    chosen.retain(|cell| verdicts[cell].stands_out);
    say(&format!("again {}\n", counted(chosen.len(), "cell")))?;
    measure(&chosen, n_threads, &mut times)?;
    let verdicts = judged(&times);
    if let Some(mut file) = file {
        let origin = Origin::here(n_threads);
        for (cell, verdict) in &verdicts {
            writeln!(file, "{}", row(&origin, cell, verdict))?;
        }
    }
    say(&table(&verdicts))
}

/// A file to append rows to; a new one begins with the names of the columns.
fn opened(path: &Path) -> Result<File, Box<dyn Error>> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    if file.metadata()?.len() == 0 {
        writeln!(file, "{HEADS}")?;
    }
    Ok(file)
}

/// Measures cells and keeps the least time of each. Cells of one model follow each other.
fn measure(cells: &[Cell], n_threads: usize, times: &mut BTreeMap<Cell, Time>) -> Result<(), Box<dyn Error>> {
    for own in cells.chunk_by(|a, b| (a.shape, a.format) == (b.shape, b.format)) {
        let mut model = Model::new(&own[0], n_threads)?;
        for cell in own {
            let time = model.time(cell)?;
            say(&format!("{cell:60} {:10.3} ms {:6.1} %\n", time.ms, 100.0 * time.share))?;
            let least = times.entry(*cell).or_insert(time);
            if time.ms < least.ms {
                *least = time;
            }
        }
    }
    Ok(())
}

/// Prints; whoever closes the pipe has read enough.
fn say(text: &str) -> Result<(), Box<dyn Error>> {
    Ok(write!(stdout(), "{text}")?)
}
