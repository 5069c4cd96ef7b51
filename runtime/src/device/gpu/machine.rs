//! What one kind of GPU has to do, so that programs run on it.
//!
//! In: bytes, sources and launches. Out: memory with addresses, code, and work that is done in the order it was asked
//! for. Which memory, and how much of it, is `replay.rs`'s to decide.
//! There is one line of work: whatever is asked for sees all that was asked for before.

use std::fmt;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::gpu::Code;
use fusebox_compiler::codegen::gpu::dialect::Dialect;
use fusebox_compiler::error::Error as CompilerError;

use crate::error::Error;

/// A kind of GPU.
pub trait Machine {
    /// A piece of its memory, kept as long as any copy of this.
    type Memory: Clone;
    /// Code that was compiled.
    type Function;
    /// Code with all that it is given, which whoever has this keeps.
    type Launch;
    /// What launches that always follow each other need besides.
    type Sequence;

    /// What it is, for people.
    fn describe(&self) -> String;

    /// What it compiles.
    fn dialect(&self) -> Dialect;

    /// A piece may start at multiples of this.
    fn alignment(&self) -> usize;

    /// The most workgroups of a launch that are of use.
    fn most_groups(&self) -> u32;

    /// The same where tiles lie in scratch memory, of which each workgroup has a piece of its own.
    fn most_groups_with_scratch(&self) -> u32;

    /// Bytes of its memory, where that is known.
    fn size(&self) -> Option<usize>;

    /// Bytes that nobody has taken yet, where that is known.
    fn free(&self) -> Option<usize>;

    /// Memory, all zero.
    ///
    /// # Errors
    /// Where there is not as much.
    fn allocate(&self, what: &str, bytes: usize) -> Result<Self::Memory, Error>;

    /// A piece of a piece.
    fn piece(&self, of: &Self::Memory, offset: usize, bytes: usize) -> Self::Memory;

    /// Fills the start of a piece; the bytes may change as soon as this is done.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn write(&self, to: &Self::Memory, bytes: &[u8]) -> Result<(), Error>;

    /// Compiles sources; the functions are in the same order.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn functions(&self, codes: &[&Code]) -> Result<Vec<Self::Function>, Error>;

    /// Whether a function's machine code was found on disk, so that no compiler was asked.
    fn is_kept(_: &Self::Function) -> bool {
        false
    }

    /// Code with a piece for each of its bindings; it is never launched with more workgroups than `most_groups`.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn launch(
        &self,
        function: &Self::Function,
        pieces: &[Self::Memory],
        most_groups: u32,
    ) -> Result<Self::Launch, Error>;

    /// Makes ready for launches that always follow each other, and leave so many bytes behind.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn sequence(&mut self, launches: &[Self::Launch], exit_bytes: usize) -> Result<Self::Sequence, Error>;

    /// Does all launches of a sequence, each with so many workgroups, waits, and copies what they have left in a piece;
    /// a workgroup too many does nothing.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn run(
        &self,
        sequence: &Self::Sequence,
        launches: &[Self::Launch],
        n_groups: &[u32],
        exit: (&Self::Memory, &mut [u8]),
    ) -> Result<(), Error>;

    /// Does one launch, and waits for it.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn run_one(&self, launch: &Self::Launch, n_groups: u32) -> Result<(), Error>;

    /// Does all launches of a sequence, each with so many workgroups, and says how long each took.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn times(&self, launches: &[Self::Launch], n_groups: &[u32]) -> Result<Vec<Duration>, Error> {
        clocked(self, launches, n_groups)
    }

    /// Copies a piece of no more bytes than the sequence leaves behind.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn read(&self, sequence: &Self::Sequence, from: &Self::Memory, to: &mut [u8]) -> Result<(), Error>;
}

/// How long launches take by the clock of this process, which includes the way there and back.
pub(super) fn clocked<M: Machine + ?Sized>(
    machine: &M,
    launches: &[M::Launch],
    n_groups: &[u32],
) -> Result<Vec<Duration>, Error> {
    let time = |(launch, n): (&M::Launch, &u32)| {
        let start = Instant::now();
        machine.run_one(launch, *n)?;
        Ok(start.elapsed())
    };
    launches.iter().zip(n_groups).map(time).collect()
}

/// What a driver refuses of what was proven right is our fault, or its own.
pub(super) fn refused_by_driver(place: &str, fault: &dyn fmt::Display) -> Error {
    CompilerError::bug("device::gpu", place, fault).into()
}
