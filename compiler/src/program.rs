//! A compiled program as an artifact: its plan, and the key of everything it was made of.
//!
//! In: a graph and options. Out: a [`Program`], compiled or read from bytes that an earlier one was stored as. Stored
//! bytes are not trusted: the key and the checksum must match, and every kernel and the plan must verify as if they had
//! just been made; anything else counts as no program. Where programs are stored is not known here. Machine code is
//! never part of one: it is made from the kernels.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::graph::Graph;
use crate::options::Options;
use crate::pipeline::{Compiled, compile};
use crate::schedule::{Plan, text};
use crate::story::Story;
use crate::{kernel, schedule};

/// The maker of a program: the compiler's version, and a checksum of its sources.
const MAKER: &str = concat!(env!("CARGO_PKG_VERSION"), " ", env!("FUSEBOX_COMPILER"));

/// A plan that may run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What it was made of.
    pub key: Key,
    /// What is launched, in order, and where everything lies.
    pub plan: Plan,
}

/// A hash of everything something was made of: for a program, its graph, the options it was compiled with, and the
/// compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a compiled graph.
    pub fn of(graph: &Graph, options: &Options) -> Self {
        // The story's file, the program cache and the machine code's instruction set do not change the plan.
        let options = Options { story: None, cache: None, level: None, panic: None, ..options.clone() };
        Self::of_bytes(format!("{MAKER}\n{options:?}\n{graph}").as_bytes())
    }

    /// The hash of bytes, for other artifacts.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Program {
    /// Compiles a graph whose key is known, and gives the story.
    ///
    /// # Errors
    /// As [`compile`] has them.
    pub fn compile(key: Key, graph: &Graph, options: &Options) -> Result<(Self, Story), Error> {
        let Compiled { plan, story } = compile(graph, options)?;
        Ok((Self { key, plan }, story))
    }

    /// The bytes to store it as.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = text::write(&self.plan);
        format!("{}{body}", head(self.key, &body)).into_bytes()
    }

    /// The program with this key, if that is what the bytes are.
    pub fn from_bytes(bytes: &[u8], key: Key) -> Option<Self> {
        let whole = str::from_utf8(bytes).ok()?;
        let body = whole.splitn(4, '\n').nth(3)?;
        let plan = whole.strip_suffix(body).filter(|found| *found == head(key, body));
        let plan = plan.and_then(|_| text::read(body).ok())?;
        let mut kernels = plan.kernels.values();
        let is_sound = kernels.all(|kernel| kernel::verify::verify(kernel).is_empty());
        (is_sound && schedule::verify::verify(&plan).is_empty()).then_some(Self { key, plan })
    }
}

/// The header of a plan: its maker, its key, and a checksum of what follows.
fn head(key: Key, body: &str) -> String {
    format!("fusebox program, made by {MAKER}\nkey {key}\nsum {}\n", Key::of_bytes(body.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::Builder;
    use crate::target::{CPU, VULKAN};
    use crate::tensor::dtype::DType;

    fn graph(factor: f32) -> Graph {
        let g = Builder::new();
        let d = g.dim("d", 64);
        let x = g.input("x", DType::F32, &[&d]);
        g.finish(&[("y", &(&x * factor + x.sum(&d)))]).unwrap()
    }

    fn program(factor: f32) -> Program {
        let (graph, options) = (graph(factor), Options::default());
        Program::compile(Key::of(&graph, &options), &graph, &options).unwrap().0
    }

    #[test]
    fn the_key_is_of_all_that_matters_and_nothing_else() {
        let key = |factor, options: &Options| Key::of(&graph(factor), options);
        let options = Options::default();
        assert_eq!(key(2.0, &options), key(2.0, &options));
        assert_ne!(key(2.0, &options), key(3.0, &options));
        let other = Options::for_target(VULKAN);
        assert_ne!(key(2.0, &options), key(2.0, &other));
        // Other rates are another program, even where they would lead to the same kernels.
        for target in [CPU.with_rates(2, 50), CPU.with_rates(8, 40)] {
            assert_ne!(key(2.0, &options), key(2.0, &Options::for_target(target)));
        }
        assert_eq!(key(2.0, &options), key(2.0, &Options::for_target(CPU.with_rates(8, 50))));
        let text = Some("some".to_owned());
        let told = Options { story: text.clone(), cache: text.clone(), level: text, ..options.clone() };
        assert_eq!(key(2.0, &options), key(2.0, &told));
    }

    #[test]
    fn a_program_survives_being_bytes() {
        let program = program(2.0);
        assert_eq!(Program::from_bytes(&program.to_bytes(), program.key), Some(program));
    }

    #[test]
    fn other_bytes_are_no_program() {
        let (program, other) = (program(2.0), program(3.0));
        let bytes = program.to_bytes();
        assert_eq!(Program::from_bytes(&bytes, other.key), None);
        for end in 0..bytes.len() {
            assert_eq!(Program::from_bytes(&bytes[..end], program.key), None);
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(Program::from_bytes(&bytes, program.key), None, "byte {at}");
        }
    }

    #[test]
    fn a_forged_program_that_does_not_verify_is_none() {
        let program = program(2.0);
        let body = text::write(&program.plan);
        let forged = body.replacen("[d0]", "[d0+1]", 1);
        assert_ne!(forged, body);
        let bytes = format!("{}{forged}", head(program.key, &forged)).into_bytes();
        assert_eq!(Program::from_bytes(&bytes, program.key), None);
    }
}
