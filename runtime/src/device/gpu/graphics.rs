//! A GPU that Vulkan or Metal drives.
//!
//! In: what `replay.rs` asks for. Out: wgpu's buffers, pipelines and bindings, and submissions of one compute pass
//! each. Launches wait for each other where memory says so, which wgpu sees by itself.

use std::sync::Arc;

use fusebox_compiler::codegen::gpu::Code;
use fusebox_compiler::codegen::gpu::dialect::{Dialect, Language};
use wgpu::{BindGroup, Buffer};

use crate::device::gpu::driver::{Dispatch, Driver, Piece, Pipeline};
use crate::device::gpu::machine::Machine;
use crate::device::gpu::replay::Gpu;
use crate::error::Error;

/// Workgroups whose tiles lie in scratch memory, at most: how many run at a time is not told.
const SCRATCH_GROUPS: u32 = 64;

/// A GPU that Vulkan or Metal drives, as a device.
pub type GraphicsDevice = Gpu<Driver>;

/// A piece of memory on the device.
#[derive(Clone)]
pub struct Region {
    buffer: Arc<Buffer>,
    offset: usize,
    bytes: usize,
}

impl Region {
    fn piece(&self) -> Piece<'_> {
        Piece { buffer: &self.buffer, offset: self.offset, bytes: self.bytes }
    }
}

/// A pipeline and what it is given.
pub struct Launch {
    pipeline: Arc<Pipeline>,
    bound: BindGroup,
}

impl Launch {
    fn dispatch(&self, n_groups: u32) -> Dispatch<'_> {
        Dispatch { pipeline: &self.pipeline, bound: &self.bound, n_groups }
    }
}

impl Machine for Driver {
    type Memory = Region;
    type Function = Arc<Pipeline>;
    type Launch = Launch;
    /// What comes back goes through memory that this process reads.
    type Sequence = Buffer;

    fn describe(&self) -> String {
        let found = self.adapter();
        let kind = if found.is_software { ", in software" } else { "" };
        format!("{}{kind}", found.name)
    }

    fn dialect(&self) -> Dialect {
        Dialect { plane: self.plane(), ..Language::Wgsl.into() }
    }

    fn alignment(&self) -> usize {
        self.piece_alignment()
    }

    fn most_groups(&self) -> u32 {
        self.most_groups_of_a_dispatch()
    }

    fn most_groups_with_scratch(&self) -> u32 {
        SCRATCH_GROUPS
    }

    fn size(&self) -> Option<usize> {
        self.size_and_free()[0]
    }

    fn free(&self) -> Option<usize> {
        self.size_and_free()[1]
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<Region, Error> {
        let bytes = bytes.next_multiple_of(4).max(4);
        Ok(Region { buffer: Arc::new(self.buffer(what, bytes)?), offset: 0, bytes })
    }

    fn piece(&self, of: &Region, offset: usize, bytes: usize) -> Region {
        Region { buffer: Arc::clone(&of.buffer), offset: of.offset + offset, bytes }
    }

    fn write(&self, to: &Region, bytes: &[u8]) -> Result<(), Error> {
        self.fill(to.piece(), bytes)
    }

    fn functions(&self, codes: &[&Code]) -> Result<Vec<Arc<Pipeline>>, Error> {
        codes.iter().map(|code| self.pipeline(code).map(Arc::new)).collect()
    }

    fn launch(&self, function: &Arc<Pipeline>, pieces: &[Region], _: u32) -> Result<Launch, Error> {
        let pieces: Vec<Piece<'_>> = pieces.iter().map(Region::piece).collect();
        Ok(Launch { pipeline: Arc::clone(function), bound: self.bound(function, &pieces)? })
    }

    fn sequence(&mut self, _: &[Launch], exit_bytes: usize) -> Result<Buffer, Error> {
        self.staging(exit_bytes)
    }

    fn run(
        &self,
        staging: &Buffer,
        launches: &[Launch],
        n_groups: &[u32],
        (from, to): (&Region, &mut [u8]),
    ) -> Result<(), Error> {
        let dispatches = launches.iter().zip(n_groups).map(|(launch, n)| launch.dispatch(*n));
        self.submit(dispatches, Some((from.piece(), staging)));
        self.staged(staging, to)
    }

    fn run_one(&self, launch: &Launch, n_groups: u32) -> Result<(), Error> {
        self.submit([launch.dispatch(n_groups)].into_iter(), None);
        self.wait()
    }

    fn read(&self, staging: &Buffer, from: &Region, to: &mut [u8]) -> Result<(), Error> {
        self.submit([].into_iter(), Some((from.piece(), staging)));
        self.staged(staging, to)
    }
}
