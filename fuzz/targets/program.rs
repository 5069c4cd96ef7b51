//! Programs on disk: plans as text, with faults, and with the sum made right. What is believed gets machine code.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::program::{Key, Program};
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::simd::Level;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{Device, Weights};

use crate::mutate;
use crate::targets::graph;
use crate::targets::target::Target;

/// The most bytes of buffers for which code is made.
const MAX_BYTES: usize = 32 << 20;

/// Reads programs.
#[derive(Default)]
pub(crate) struct Programs {
    made: OnceLock<Vec<String>>,
}

/// Weights that are all zero.
struct Zeros(BTreeMap<String, Vec<u8>>);

impl Weights for Zeros {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

/// The key that all programs here have.
fn key() -> Key {
    Key::of_bytes(b"fuzz")
}

/// A program with these plan, whatever it says, with its head and its sum.
fn with_head(head: &str, body: &str) -> Vec<u8> {
    format!("{head}sum {}\n{body}", Key::of_bytes(body.as_bytes())).into_bytes()
}

/// The head of a program without its sum, and its plan.
fn divided(text: &str) -> Option<(&str, &str)> {
    let at = text.match_indices('\n').nth(1)?.0 + 1;
    let (_, body) = text[at..].split_once('\n')?;
    Some((&text[..at], body))
}

impl Programs {
    fn made(&self) -> &[String] {
        self.made.get_or_init(|| {
            let graphs = graph::graphs();
            let compiled = graphs.iter().filter_map(|text| {
                let graph = parse(text).ok()?;
                let (program, _) = Program::compile(key(), &graph, &Options::default()).ok()?;
                String::from_utf8(program.to_bytes()).ok()
            });
            compiled.collect()
        })
    }
}

fn load(plan: &Plan) -> Result<(), String> {
    let n_bytes = plan.buffers.values().map(|slot| slot.bytes).fold(plan.arena_bytes, usize::saturating_add);
    if n_bytes > MAX_BYTES {
        return Ok(());
    }
    let slots = plan.buffers.values().filter(|slot| slot.place == Place::Weight);
    let zeros = slots.map(|slot| (slot.name.to_string(), vec![0; slot.bytes])).collect();
    let weights: Arc<dyn Weights> = Arc::new(Zeros(zeros));
    let cpu = Cpu::at(Level::host(), Numbers::Quantised).map_err(|error| error.to_string())?;
    let mut device = CpuDevice::new(cpu, 1).map_err(|error| error.to_string())?;
    // A program may be refused; it must not be loaded wrongly.
    let _ = device.load(plan, &weights);
    Ok(())
}

impl Target for Programs {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let all = self.made();
        let text = mutate::one(random, all);
        let Some((head, body)) = divided(text) else { return Vec::new() };
        with_head(head, &mutate::text(random, body, all))
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        // A file of the corpus has another maker, of the compiler that it was found with.
        let text = String::from_utf8_lossy(input).into_owned();
        let own = self.made().first().and_then(|text| divided(text)).map(|(head, _)| head.to_owned());
        let Some((head, (_, body))) = own.zip(divided(&text)) else { return Ok(false) };
        let Some(program) = Program::from_bytes(&with_head(&head, body), key()) else { return Ok(false) };
        // Reading numbers expressions anew, so the text is what must be the same.
        let written = program.to_bytes();
        if Program::from_bytes(&written, key()).is_none_or(|again| again.to_bytes() != written) {
            return Err("it is another program when it is written and read".to_owned());
        }
        load(&program.plan)?;
        Ok(true)
    }

    fn is_bounded(&self) -> bool {
        // Machine code and buffers are as large as a plan says, up to the limit above.
        false
    }
}
