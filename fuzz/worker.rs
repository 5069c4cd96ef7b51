//! One target, input after input, in a process of its own.
//!
//! In: a target, a seed, and where to begin. Out: lines for the process that watches: a fault with the number of its
//! input, and the end. What ends this process, ends it at the input whose number stands in a file.
//! An input follows from its number, so that the watching process makes it again.

use std::fs::File;
use std::io::{Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{ExitCode, exit};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fusebox_compiler::foundation::random::Random;

use crate::memory;
use crate::targets::target::Target;

/// The most time that an input may take.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(5);
/// The most memory that an input may take beside twice its size.
const MAX_MEMORY: usize = 64 << 20;
/// The exit code of a process whose input took too long.
pub(crate) const HUNG: i32 = 3;
/// Where the number of the current input stands.
pub(crate) const AT: &str = "at";

/// What a worker does.
pub(crate) struct Order<'a> {
    pub(crate) seed: u64,
    pub(crate) first: u64,
    pub(crate) n: u64,
    pub(crate) time: Duration,
    pub(crate) folder: &'a Path,
}

/// The input of a number: first the files of the corpus, then whatever follows from the seed.
pub(crate) fn input(target: &dyn Target, corpus: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    let file = usize::try_from(number).ok().and_then(|number| corpus.get(number));
    file.cloned()
        .unwrap_or_else(|| target.input(&mut Random::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
}

/// Runs one input; whether it was taken, or what is wrong with the program.
pub(crate) fn run(target: &mut dyn Target, input: &[u8]) -> Result<bool, String> {
    static TOLD: Mutex<String> = Mutex::new(String::new());
    std::panic::set_hook(Box::new(|about| {
        let place = about.location().map_or_else(String::new, ToString::to_string);
        let what = about.payload_as_str().unwrap_or_default();
        *TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = format!("{place}: {what}");
    }));
    let before = memory::reset();
    let done = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    let taken = memory::peak().saturating_sub(before);
    let _ = std::panic::take_hook();
    let is_taken = done.unwrap_or_else(|_| {
        let told = TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        Err(format!("a panic at {told}"))
    })?;
    let most = 2 * input.len() + MAX_MEMORY;
    if target.is_bounded() && taken > most {
        return Err(format!("{taken} bytes of memory, at most {most} were expected"));
    }
    Ok(is_taken)
}

/// Works until the end; every fault is a line.
pub(crate) fn work(target: &mut dyn Target, corpus: &[Vec<u8>], order: &Order<'_>) -> ExitCode {
    static BEGAN: AtomicU64 = AtomicU64::new(u64::MAX);
    let start = Instant::now();
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(100));
            let began = BEGAN.load(Relaxed);
            if (start.elapsed().as_millis() as u64).saturating_sub(began) > MAX_TIME.as_millis() as u64 {
                exit(HUNG);
            }
        }
    });
    let Ok(mut at) = File::create(order.folder.join(AT)) else { return ExitCode::FAILURE };
    let (mut n_done, mut n_taken) = (0, 0);
    for number in order.first..order.first + order.n {
        if start.elapsed() > order.time {
            break;
        }
        // The end of the process must leave it there, so it is not buffered.
        if write_number(&mut at, number).is_err() {
            return ExitCode::FAILURE;
        }
        let input = input(target, corpus, order.seed, number);
        BEGAN.store(start.elapsed().as_millis() as u64, Relaxed);
        let done = run(target, &input);
        BEGAN.store(u64::MAX, Relaxed);
        match done {
            Ok(is_taken) => n_taken += u64::from(is_taken),
            Err(what) => tell(&format!("fault {number} {}", what.replace('\n', "; "))),
        }
        n_done += 1;
        if n_done % 256 == 0 {
            tell(&format!("done {n_done} {n_taken}"));
        }
    }
    tell(&format!("done {n_done} {n_taken}"));
    ExitCode::SUCCESS
}

fn write_number(at: &mut File, number: u64) -> std::io::Result<()> {
    std::io::Seek::rewind(at)?;
    at.write_all(&number.to_le_bytes())
}

fn tell(line: &str) {
    let _ = writeln!(stdout(), "{line}");
    let _ = stdout().flush();
}
