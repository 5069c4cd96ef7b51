//! What holds for every session, shown on the default model.
//!
//! In: the model of the repository, run token by token, in pieces and at once; on the processor and interpreted; from
//! a fresh cache, a warm one and a broken one. Out: the same logits.

use std::fs;
use std::path::Path;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::load::Model;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::{Cache, Counts};
use support::given::story;
use support::own;
use support::run::{Run, relative_error};

/// Logits in single precision that differ by no more come from the same arithmetic in another order.
const SAME: f64 = 1e-4;
/// The same where activations are rounded to 8 bits: what is near the middle of two numbers may go to either.
const SAME_ROUNDED: f64 = 2e-2;
/// The same where caches are rounded to 4 bits.
const SAME_ROUNDED_TO_4_BITS: f64 = 1e-1;

fn same(numbers: Numbers) -> f64 {
    match numbers {
        Numbers::Exact | Numbers::Single => SAME,
        Numbers::Quantised => SAME_ROUNDED,
    }
}

/// Some tokens of no meaning.
fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 7919 + 13) % 1000).collect()
}

#[test]
fn a_text_at_once_in_pieces_and_token_by_token_gives_the_same_logits() {
    let pairs = [(Numbers::Single, Format::F32), (Numbers::Quantised, Format::F16)];
    // Rounded caches move what is near the middle of two numbers as rounded activations do.
    let rounded = [(Format::Q8_0, SAME_ROUNDED), (Format::Q4_0, SAME_ROUNDED_TO_4_BITS)];
    let rounded = [Numbers::Single, Numbers::Quantised]
        .into_iter()
        .flat_map(|numbers| rounded.map(|(cache, bar)| (numbers, cache, bar)));
    let pairs = pairs.map(|(numbers, cache)| (numbers, cache, same(numbers)));
    for (numbers, cache, bar) in pairs.into_iter().chain(rounded) {
        let mut run = Run::new(numbers);
        run.settings.cache.format = cache;
        let all = tokens(100);
        let mut whole = |chunk: usize, step: usize| {
            run.settings.chunk = chunk;
            let mut session = run.open(&story());
            for piece in all.chunks(step) {
                session.feed(piece).unwrap();
            }
            session.logits().to_vec()
        };
        let at_once = whole(128, 100);
        for (chunk, step) in [(64, 100), (7, 100), (128, 33), (64, 1), (1, 100)] {
            let error = relative_error(&whole(chunk, step), &at_once);
            println!("{numbers} {cache}: {error:.1e}");
            assert!(error <= bar, "{numbers}, {cache}: {error:e} in chunks of {chunk} by {step}");
        }
    }
}

#[test]
fn a_program_is_compiled_when_as_many_tokens_first_come() {
    let mut session = Run::new(Numbers::Single).open(&story());
    let n_emitted = |session: &Session| session.footprint().n_emitted;
    let at_start = n_emitted(&session);
    session.feed(&[1]).unwrap();
    assert_eq!(n_emitted(&session), at_start, "the program for one token is there from the start");
    session.feed(&tokens(2)).unwrap();
    let few = n_emitted(&session);
    assert!(few > at_start);
    session.feed(&tokens(16)).unwrap();
    assert_eq!(n_emitted(&session), few, "2 and 16 tokens are of one class");
    session.prepare(64 + 17).unwrap();
    let many = n_emitted(&session);
    assert!(many > few);
    session.feed(&tokens(64 + 17)).unwrap();
    assert_eq!(n_emitted(&session), many, "a prepared program is not compiled again");
}

#[test]
fn caches_in_blocks_answer_nearly_as_those_in_full() {
    let logits = |cache: Format| {
        let mut run = Run::new(Numbers::Single);
        run.settings.cache.format = cache;
        run.open(&story()).feed(&tokens(60)).unwrap().to_vec()
    };
    let full = logits(Format::F32);
    for (cache, bar) in [(Format::F16, 1e-3), (Format::Q8_0, 2e-2), (Format::Q4_0, 2e-1)] {
        let error = relative_error(&logits(cache), &full);
        println!("{cache}: {error:.1e}");
        assert!(error <= bar, "{cache}: {error:e}");
    }
}

#[test]
fn every_token_is_scored_as_if_it_were_the_last() {
    let mut run = Run::new(Numbers::Single);
    run.settings.scores_every = true;
    run.settings.chunk = 16;
    let all = tokens(40);
    let mut rows: Vec<Vec<f32>> = Vec::new();
    run.open(&story()).score(&all, &mut |row| rows.push(row.to_vec())).unwrap();
    assert_eq!(rows.len(), all.len());
    let mut session = run.open(&story());
    for (token, row) in all.iter().zip(&rows) {
        assert!(relative_error(row, session.feed(&[*token]).unwrap()) <= SAME);
    }
}

#[test]
fn a_second_run_is_the_first_bit_for_bit() {
    for numbers in [Numbers::Single, Numbers::Quantised] {
        let mut session = Run::new(numbers).open(&story());
        let once = |session: &mut Session| -> Vec<Vec<f32>> {
            session.truncate(0).unwrap();
            session.feed(&tokens(20)).unwrap();
            (0..10).map(|token| session.feed(&[token]).unwrap().to_vec()).collect()
        };
        let (first, second) = (once(&mut session), once(&mut session));
        assert!(first == second);
    }
}

#[test]
fn every_level_and_any_number_of_threads_agree() {
    for numbers in [Numbers::Single, Numbers::Quantised] {
        let logits = |level, n_threads| {
            let run = Run { level, n_threads, ..Run::new(numbers) };
            run.open(&story()).feed(&tokens(30)).unwrap().to_vec()
        };
        let expected = logits(Level::Portable, 1);
        for level in Level::supported() {
            for n_threads in [1, 3] {
                let error = relative_error(&logits(level, n_threads), &expected);
                assert!(error <= same(numbers), "{numbers} at {level} with {n_threads} threads: {error:e}");
            }
        }
    }
}

#[test]
fn the_last_position_is_taken_and_none_behind_it() {
    let mut run = Run::new(Numbers::Single);
    run.settings.context = 20;
    run.settings.chunk = 16;
    let mut session = run.open(&story());
    session.feed(&tokens(19)).unwrap();
    let expected = session.feed(&[5]).unwrap().to_vec();
    let error = session.feed(&[6]).unwrap_err().to_string();
    assert_eq!(error, "tokens: no room for 1 after 20: the context holds 20 tokens");
    session.truncate(19).unwrap();
    assert_eq!(session.feed(&[5]).unwrap(), expected);
    assert!(session.feed(&[]).is_err());
    session.truncate(0).unwrap();
    let error = session.feed(&[1 << 30]).unwrap_err().to_string();
    assert!(error.starts_with("tokens: there is no token 1073741824"), "{error}");
    assert_eq!(session.position(), 0);
}

/// The logits of a session whose programs come through a cache in this folder.
fn cached(folder: &Path) -> (Vec<f32>, Counts) {
    let run = Run::new(Numbers::Single);
    let model = Model::open(&story()).unwrap();
    let device = Box::new(CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 1).unwrap());
    let cache = Cache::new(Some(folder.to_owned()));
    let mut session = model.session(device, &run.settings, &Options::default(), &cache).unwrap();
    (session.feed(&tokens(9)).unwrap().to_vec(), cache.counts())
}

#[test]
fn a_warm_start_lowers_nothing_and_a_bad_file_is_replaced() {
    let folder = own::path("programs");
    // It may be left from an earlier time.
    let _ = fs::remove_dir_all(&folder);
    let (expected, cold) = cached(&folder);
    assert!(cold.n_lowered > 0 && cold.n_from_cache == 0);
    let warm = Counts { n_lowered: 0, n_from_cache: cold.n_lowered };
    assert_eq!(cached(&folder), (expected.clone(), warm));
    let files = || fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let whole: Vec<Vec<u8>> = files().map(|path| fs::read(path).unwrap()).collect();
    let break_all = |broken: &dyn Fn(&[u8]) -> Vec<u8>| {
        files().zip(&whole).for_each(|(path, bytes)| fs::write(path, broken(bytes)).unwrap());
        assert_eq!(cached(&folder), (expected.clone(), cold));
        assert!(files().zip(&whole).all(|(path, bytes)| fs::read(path).unwrap() == *bytes));
    };
    break_all(&|_| Vec::new());
    break_all(&|bytes| bytes[..bytes.len() / 2].to_vec());
    break_all(&|bytes| bytes.iter().map(|byte| byte ^ 1).collect());
    break_all(&|bytes| String::from_utf8_lossy(bytes).replacen("mul", "add", 1).into_bytes());
}
