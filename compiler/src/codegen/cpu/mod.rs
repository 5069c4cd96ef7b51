//! CPU code generation with Cranelift.
//!
//! In: a verified kernel. Out: [`Code`](jit::Code), or why there is none: the kernel does not verify, its indices could
//! overflow, or Cranelift does not know the processor. With [`Numbers::Exact`] each number is rounded where the
//! interpreter rounds it, so results are equal bit for bit, except for the signs of zeros and NaNs; the other modes
//! allow faster code.
//!
//! ```text
//! limits.rs          refuses indices that could overflow
//! emit.rs            one part of a kernel as a function: tasks, loops, nests
//! value/             indices, expressions, loads and stores, block formats, libm
//! product/           calls the micro-kernels of `fusebox_simd` for GEMM and weighted sums
//!   form.rs, reason.rs   which kernel it is, for people, or why there is none
//!   quantise_ahead.rs    where activations lie that are quantised before all tasks
//!   boundary.rs          what generated code and micro-kernels agree on; no panic passes
//! vector/            chooses the loop to vectorise, and emits it with 128 bits; wide/ does so with AVX-512
//! first_reads.rs     what each task reads first, for prefetching
//! jit.rs             links the code and calls it
//! ```

use std::fmt;

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable, Flags};
use fusebox_simd::Level;

use crate::error::Error;
use crate::options::{Numbers, Planted};

mod emit;
mod first_reads;
pub mod jit;
mod limits;
pub mod product;
mod value;
mod vector;
mod wide;

/// The name of this stage in errors.
const STAGE: &str = "codegen::cpu";
/// Tiles start at multiples of this many bytes.
const ALIGNMENT: usize = 64;

/// The processor that code is made for.
pub struct Cpu {
    isa: OwnedTargetIsa,
    level: Level,
    pub(crate) numbers: Numbers,
    planted: Option<Planted>,
}

impl Cpu {
    /// The processor this runs on, with everything it can do.
    pub fn host(numbers: Numbers) -> Result<Self, Error> {
        Self::at(Level::host(), numbers)
    }

    /// The processor this runs on, held to the faster forms of a level that it has.
    pub fn at(level: Level, numbers: Numbers) -> Result<Self, Error> {
        // What is called later trusts this.
        if !level.is_supported() {
            let there: Vec<&str> = Level::supported().map(Level::name).collect();
            let target = format!("this processor (it has {})", there.join(", "));
            return Err(Error::Unsupported { what: format!("the level `{level}`"), target });
        }
        let unsupported = |what: &str| Error::Unsupported { what: what.to_owned(), target: "cpu".to_owned() };
        fusebox_simd::prepare();
        let builder = cranelift_native::builder().map_err(unsupported)?;
        let isa = builder.finish(flags()).map_err(|error| unsupported(&error.to_string()))?;
        if isa.pointer_bytes() == 8 {
            Ok(Self { isa, level, numbers, planted: None })
        } else {
            Err(unsupported("a pointer of 32 bits"))
        }
    }

    /// The same, and a call of a micro-kernel panics: for tests.
    #[must_use]
    pub fn with_planted(self, planted: Option<Planted>) -> Self {
        Self { planted, ..self }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}, {}", self.isa.triple().architecture, self.level, self.numbers)
    }
}

/// Whether a micro-kernel that generated code called has panicked on this thread since this was asked last.
pub fn take_panic() -> bool {
    product::boundary::take_panic()
}

fn flags() -> Flags {
    let mut builder = settings::builder();
    let checks = if cfg!(debug_assertions) { "true" } else { "false" };
    for (name, value) in [("opt_level", "speed"), ("is_pic", "false"), ("enable_verifier", checks)] {
        builder.set(name, value).expect("a setting that Cranelift has");
    }
    Flags::new(builder)
}

/// What Cranelift refuses of a verified kernel is our fault.
fn bug(what: impl fmt::Debug) -> Error {
    Error::bug(STAGE, "cranelift", format!("{what:?}"))
}

#[cfg(test)]
mod tests;
