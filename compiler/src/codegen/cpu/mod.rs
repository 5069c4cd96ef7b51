//! Kernels as code for this processor, made with Cranelift.
//!
//! In: any kernel. Out: [`Code`], or why there is none: it does not verify, its numbers could overflow, or Cranelift
//! does not know the processor.
//! With [`level::Numbers::Exact`] every number is rounded where the interpreter rounds it, so results are equal bit for
//! bit, but for the signs of zeros and NaNs; other numbers allow faster forms.
//! `limits.rs` guards the arithmetic of indices; `emit.rs` walks a part, `index.rs`, `scalar.rs` and `memory.rs` its
//! leaves; `product.rs` finds products, which `call.rs` leaves to the functions of `micro/`, and `form.rs` tells people
//! which; `vector.rs` does several rounds at a time, and `wide/` more of them; `hoist.rs` finds what tasks have in
//! common, `ahead.rs` what they all do; `decode.rs` knows the block formats, `math.rs` the functions that code calls;
//! `jit.rs` runs what comes out.

use std::fmt;

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable, Flags};

use crate::error::Error;
use crate::kernel::Kernel;
use crate::kernel::verify::verify;

mod ahead;
mod approx;
mod blocks;
mod call;
mod choice;
mod decode;
mod emit;
pub mod form;
mod halves;
mod hoist;
mod index;
pub mod jit;
mod lanes;
pub mod level;
mod limits;
mod math;
mod memory;
#[expect(unsafe_code, reason = "addresses that generated code computes become slices and vectors")]
#[expect(
    clippy::inline_always,
    reason = "what has no instructions of its own takes those of its caller's level"
)]
#[expect(clippy::needless_range_loop, reason = "loops over arrays of vectors, all of them unrolled")]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some forms are of one kind of processor"))]
mod micro;
mod product;
pub mod reason;
mod scalar;
mod stream;
mod vector;
mod wide;

use jit::Code;
use level::{Level, Numbers};

/// The name of this stage in errors.
const STAGE: &str = "codegen::cpu";

/// The processor that code is made for.
pub struct Cpu {
    isa: OwnedTargetIsa,
    level: Level,
    numbers: Numbers,
}

impl Cpu {
    /// The processor this runs on, with everything it can do.
    pub fn host(numbers: Numbers) -> Result<Self, Error> {
        Self::at(Level::host(), numbers)
    }

    /// The processor this runs on, held to the faster forms of a level that it has.
    pub fn at(level: Level, numbers: Numbers) -> Result<Self, Error> {
        // What is called later trusts this.
        let level = Level::named(level.name())?;
        let unsupported = |what: &str| Error::Unsupported { what: what.to_owned(), target: "cpu".to_owned() };
        micro::prepare();
        let builder = cranelift_native::builder().map_err(unsupported)?;
        let isa = builder.finish(flags()).map_err(|error| unsupported(&error.to_string()))?;
        if isa.pointer_bytes() == 8 {
            Ok(Self { isa, level, numbers })
        } else {
            Err(unsupported("a pointer of 32 bits"))
        }
    }

    /// Code for every part of a kernel.
    pub fn compile(&self, kernel: &Kernel) -> Result<Code, Error> {
        Error::bug_if(STAGE, verify(kernel))?;
        limits::check(kernel)?;
        jit::link(self, kernel)
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}, {}", self.isa.triple().architecture, self.level, self.numbers)
    }
}

/// Reads memory as kernels do, ahead of what is needed, and gives something that depends on it: what memory gives at
/// most is measured by that.
pub fn read(piece: &[u8]) -> u64 {
    micro::read(piece)
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
