//! The interface between programs and one kind of GPU.
//!
//! In: bytes, sources and launches. Out: memory with addresses, compiled kernels, and work in order. Which memory, and
//! how much of it, is decided by `replay.rs`. There is one queue: everything sees the effects of what was queued
//! before.

use std::fmt;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::gpu::Code;
use fusebox_compiler::codegen::gpu::dialect::Dialect;
use fusebox_compiler::error::Error as CompilerError;

use crate::error::Error;

/// A kind of GPU.
pub trait Machine: Send {
    /// Device memory, allocated as long as any copy of this exists.
    type Memory: Clone + Send;
    /// A compiled kernel.
    type Function: Send;
    /// A kernel with its bindings; whoever has this keeps the memory alive.
    type Launch: Send;
    /// What a fixed list of launches needs besides, such as a CUDA graph.
    type LaunchList: Send;

    /// Its name, for people.
    fn describe(&self) -> String;

    /// The dialect of its sources.
    fn dialect(&self) -> Dialect;

    /// The alignment of memory slices.
    fn alignment(&self) -> usize;

    /// The most workgroups of a launch that are of use.
    fn max_workgroups(&self) -> u32;

    /// The same for kernels with global scratch, of which each workgroup has a slice.
    fn max_workgroups_with_scratch(&self) -> u32;

    /// Total bytes of memory, where that is known.
    fn size(&self) -> Option<usize>;

    /// Free bytes, where that is known.
    fn free(&self) -> Option<usize>;

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Where there is not enough.
    fn allocate(&self, what: &str, bytes: usize) -> Result<Self::Memory, Error>;

    /// A slice of memory.
    fn piece(&self, of: &Self::Memory, offset: usize, bytes: usize) -> Self::Memory;

    /// Writes to the start of memory; the bytes may change as soon as this returns.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn write(&self, to: &Self::Memory, bytes: &[u8]) -> Result<(), Error>;

    /// Compiles sources; the kernels are in the same order.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn functions(&self, codes: &[&Code]) -> Result<Vec<Self::Function>, Error>;

    /// Whether a kernel's machine code came from the cache.
    fn is_from_cache(_: &Self::Function) -> bool {
        false
    }

    /// Binds a kernel to memory; it is never launched with more workgroups than `max_workgroups`.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn launch(
        &self,
        function: &Self::Function,
        pieces: &[Self::Memory],
        max_workgroups: u32,
    ) -> Result<Self::Launch, Error>;

    /// Prepares launches that always follow each other, and whose result has `exit_bytes`.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn launch_list(
        &mut self,
        launches: &[Self::Launch],
        exit_bytes: usize,
    ) -> Result<Self::LaunchList, Error>;

    /// Runs a list, each launch with its number of workgroups, waits, and reads the result. Surplus workgroups do
    /// nothing.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn run(
        &self,
        list: &Self::LaunchList,
        launches: &[Self::Launch],
        n_workgroups: &[u32],
        exit: (&Self::Memory, &mut [u8]),
    ) -> Result<(), Error>;

    /// Runs one launch, and waits for it.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn run_one(&self, launch: &Self::Launch, n_workgroups: u32) -> Result<(), Error>;

    /// Runs all launches of a list, and measures each.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn times(&self, launches: &[Self::Launch], n_workgroups: &[u32]) -> Result<Vec<Duration>, Error> {
        clocked(self, launches, n_workgroups)
    }

    /// Reads memory of at most the list's result size.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn read(&self, list: &Self::LaunchList, from: &Self::Memory, to: &mut [u8]) -> Result<(), Error>;
}

/// Wall times of launches, round trips included.
pub(super) fn clocked<M: Machine + ?Sized>(
    machine: &M,
    launches: &[M::Launch],
    n_workgroups: &[u32],
) -> Result<Vec<Duration>, Error> {
    let time = |(launch, n): (&M::Launch, &u32)| {
        let start = Instant::now();
        machine.run_one(launch, *n)?;
        Ok(start.elapsed())
    };
    launches.iter().zip(n_workgroups).map(time).collect()
}

/// A driver error on verified input: our bug, or the driver's.
pub(super) fn refused_by_driver(place: &str, fault: &dyn fmt::Display) -> Error {
    CompilerError::bug("device::gpu", place, fault).into()
}
