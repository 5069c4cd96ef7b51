//! A GPU driven through wgpu: Vulkan or Metal.
//!
//! In: requests of `replay.rs`. Out: wgpu's buffers, pipelines and bind groups, and a submission of one compute pass
//! for each replay. wgpu inserts the barriers between dispatches itself.

use std::sync::Arc;

use fusebox_compiler::codegen::gpu::Code;
use fusebox_compiler::codegen::gpu::dialect::{Dialect, Language};
use wgpu::{BindGroup, Buffer};

use crate::device::gpu::machine::Machine;
use crate::device::gpu::replay::Gpu;
use crate::device::gpu::wgpu_driver::{Dispatch, Driver, Piece, Pipeline};
use crate::error::Error;

/// The most workgroups of kernels with global scratch: the number of resident ones is not reported.
const MAX_SCRATCH_WORKGROUPS: u32 = 64;

/// A GPU driven through wgpu, as a device.
pub type WgpuDevice = Gpu<Driver>;

/// Device memory: a slice of a buffer.
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

/// A pipeline and its bind group.
pub struct Launch {
    pipeline: Arc<Pipeline>,
    bound: BindGroup,
}

impl Launch {
    fn dispatch(&self, n_workgroups: u32) -> Dispatch<'_> {
        Dispatch { pipeline: &self.pipeline, bound: &self.bound, n_workgroups }
    }
}

impl Machine for Driver {
    type Memory = Region;
    type Function = Arc<Pipeline>;
    type Launch = Launch;
    /// The staging buffer that results are read back through.
    type LaunchList = Buffer;

    fn describe(&self) -> String {
        let found = self.adapter();
        let kind = if found.is_software { ", in software" } else { "" };
        format!("{}{kind}", found.name)
    }

    fn dialect(&self) -> Dialect {
        Dialect { subgroup_size: self.subgroup_size(), ..Language::Wgsl.into() }
    }

    fn alignment(&self) -> usize {
        self.piece_alignment()
    }

    fn max_workgroups(&self) -> u32 {
        self.max_workgroups_of_a_dispatch()
    }

    fn max_workgroups_with_scratch(&self) -> u32 {
        MAX_SCRATCH_WORKGROUPS
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

    fn launch_list(&mut self, _: &[Launch], exit_bytes: usize) -> Result<Buffer, Error> {
        self.staging(exit_bytes)
    }

    fn run(
        &self,
        staging: &Buffer,
        launches: &[Launch],
        n_workgroups: &[u32],
        (from, to): (&Region, &mut [u8]),
    ) -> Result<(), Error> {
        let dispatches = launches.iter().zip(n_workgroups).map(|(launch, n)| launch.dispatch(*n));
        self.submit(dispatches, Some((from.piece(), staging)));
        self.staged(staging, to)
    }

    fn run_one(&self, launch: &Launch, n_workgroups: u32) -> Result<(), Error> {
        self.submit([launch.dispatch(n_workgroups)].into_iter(), None);
        self.wait()
    }

    fn read(&self, staging: &Buffer, from: &Region, to: &mut [u8]) -> Result<(), Error> {
        self.submit([].into_iter(), Some((from.piece(), staging)));
        self.staged(staging, to)
    }
}
