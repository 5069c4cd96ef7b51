//! Vulkan and Metal through wgpu: adapters, buffers, pipelines, submissions.
//!
//! In: a graphics API, sources of `codegen::gpu`, bytes. Out: what a device is made of, or a sentence that says what is
//! missing. wgpu reports some errors asynchronously; every call here waits for the verdict, so that an error belongs to
//! the call that caused it.

#![expect(unsafe_code, reason = "sources are compiled without checks that they have proven unnecessary")]

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use fusebox_compiler::codegen::gpu::{Code, ENTRY};
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::target::THREADS;
use wgpu::{
    Adapter, Backends, BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout,
    BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingResource, BindingType, Buffer, BufferBinding,
    BufferBindingType, BufferDescriptor, BufferUsages, CommandEncoder, CommandEncoderDescriptor,
    ComputePipeline, ComputePipelineDescriptor, DeviceDescriptor, DeviceType, ErrorFilter, Features,
    Instance, InstanceDescriptor, Limits, MapMode, MemoryHints, PipelineCompilationOptions,
    PipelineLayoutDescriptor, PollType, ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource,
    ShaderStages,
};

use crate::device::Found;
use crate::device::gpu::machine::refused_by_driver;
#[cfg(not(target_vendor = "apple"))]
use crate::device::gpu::vulkan_properties;
use crate::error::Error;

/// The largest subgroup that code uses.
const MAX_SUBGROUP_SIZE: u32 = 32;
/// Every thread reads the numbers of the threads whose numbers differ from its own in one bit.
const SHUFFLE_PROBE: &str = "
@group(0) @binding(0) var<storage, read_write> found: array<u32>;
@compute @workgroup_size(THREADS)
fn kernel(@builtin(local_invocation_index) unit: u32) {
    var place = unit;
    for (var mask = 1u; mask < PLANEu; mask *= 2u) {
        found[place] = subgroupShuffleXor(unit, mask);
        place += THREADSu;
    }
}
";
/// Bytes of the slices in which weights are uploaded, one after another.
const PIECE: usize = 64 << 20;

/// A graphics API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// GPUs of any vendor, on Linux and Windows.
    Vulkan,
    /// Apple GPUs.
    Metal,
}

impl Interface {
    fn backends(self) -> Backends {
        match self {
            Self::Vulkan => Backends::VULKAN,
            Self::Metal => Backends::METAL,
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vulkan => "Vulkan",
            Self::Metal => "Metal",
        })
    }
}

/// The adapters of an API, hardware first; none where the system has no driver.
pub fn found(interface: Interface) -> Vec<Found> {
    adapters(interface).iter().map(described).collect()
}

/// The same to be opened; a driver takes the first.
pub(super) fn adapters(interface: Interface) -> Vec<Adapter> {
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = interface.backends();
    let instance = Instance::new(descriptor);
    let mut adapters = finished(instance.enumerate_adapters(interface.backends()));
    adapters.sort_by_key(|adapter| described(adapter).is_software);
    adapters
}

pub(super) fn described(adapter: &Adapter) -> Found {
    let info = adapter.get_info();
    Found { name: info.name, is_software: info.device_type == DeviceType::Cpu }
}

/// An opened adapter.
pub struct Driver {
    device: wgpu::Device,
    queue: wgpu::Queue,
    found: Found,
    limits: Limits,
    /// The usable subgroup size; 1 where shuffles are not.
    subgroup_size: u32,
}

/// A compiled kernel.
pub struct Pipeline {
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
}

/// A slice of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A launch in a submission.
pub(super) struct Dispatch<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) bound: &'a BindGroup,
    pub(super) n_workgroups: u32,
}

impl Driver {
    /// Opens the best adapter of an API.
    ///
    /// # Errors
    /// Where there is none, or it refuses.
    pub fn open(interface: Interface) -> Result<Self, Error> {
        let adapter = adapters(interface).into_iter().next();
        let adapter = adapter.ok_or_else(|| unsupported(format!("no adapter for {interface} was found")))?;
        let limits = adapter.limits();
        let required_features = adapter.features() & Features::SUBGROUP;
        let descriptor = DeviceDescriptor {
            required_features,
            required_limits: limits.clone(),
            memory_hints: MemoryHints::MemoryUsage,
            ..DeviceDescriptor::default()
        };
        let opened = finished(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| unsupported(error.to_string()))?;
        let mut driver = Self { device, queue, found: described(&adapter), limits, subgroup_size: 1 };
        let size = adapter.get_info().subgroup_min_size.clamp(1, MAX_SUBGROUP_SIZE);
        let subgroup_size = 1 << size.ilog2();
        if required_features.contains(Features::SUBGROUP)
            && driver.has_consecutive_subgroups(subgroup_size)?
        {
            driver.subgroup_size = subgroup_size;
        }
        Ok(driver)
    }

    /// Whether subgroups are runs of consecutive threads: the specification does not promise it, so it is tried.
    fn has_consecutive_subgroups(&self, subgroup_size: u32) -> Result<bool, Error> {
        let n_masks = subgroup_size.ilog2();
        let bytes = (4 * THREADS * n_masks.max(1)) as usize;
        let (found, staging) = (self.buffer("neighbours", bytes)?, self.staging(bytes)?);
        let source = SHUFFLE_PROBE
            .replace("PLANE", &subgroup_size.to_string())
            .replace("THREADS", &THREADS.to_string());
        let Ok(pipeline) = self.compiled("neighbours", &source, 1) else { return Ok(false) };
        let piece = Piece { buffer: &found, offset: 0, bytes };
        let bound = self.bound(&pipeline, &[piece])?;
        let dispatch = Dispatch { pipeline: &pipeline, bound: &bound, n_workgroups: 1 };
        self.submit([dispatch].into_iter(), Some((piece, &staging)));
        let mut seen = vec![0; bytes];
        self.staged(&staging, &mut seen)?;
        let words = seen.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let expected = (0..n_masks).flat_map(|mask| (0..THREADS).map(move |unit| unit ^ (1 << mask)));
        Ok(words.zip(expected).all(|(seen, expected)| seen == expected))
    }

    /// The usable subgroup size; 1 where shuffles are not.
    pub(super) fn subgroup_size(&self) -> u32 {
        self.subgroup_size
    }

    /// The opened adapter.
    pub fn adapter(&self) -> &Found {
        &self.found
    }

    /// The alignment of slices.
    pub(super) fn piece_alignment(&self) -> usize {
        self.limits.min_storage_buffer_offset_alignment as usize
    }

    /// Total and free bytes of memory, as far as the driver tells; Metal is not asked.
    pub(super) fn size_and_free(&self) -> [Option<usize>; 2] {
        #[cfg(not(target_vendor = "apple"))]
        return vulkan_properties::size_and_free(&self.device);
        #[cfg(target_vendor = "apple")]
        [None, None]
    }

    /// A zeroed storage buffer.
    pub(super) fn buffer(&self, what: &str, bytes: usize) -> Result<Buffer, Error> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        self.made(what, bytes, usage)
    }

    /// A buffer that the host reads.
    pub(super) fn staging(&self, bytes: usize) -> Result<Buffer, Error> {
        self.made("what comes back", bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)
    }

    fn made(&self, what: &str, bytes: usize, usage: BufferUsages) -> Result<Buffer, Error> {
        let size = bytes.next_multiple_of(4).max(4) as u64;
        let limit = self.limits.max_buffer_size;
        if size > limit {
            let what = format!("{what} on {} in bytes", self.found.name);
            return Err(CompilerError::Limit { what, found: size, limit }.into());
        }
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let descriptor = BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        match finished(scope.pop()) {
            None => Ok(buffer),
            Some(_) => Err(Error::Memory {
                what: what.to_owned(),
                device: self.found.name.clone(),
                needed: bytes,
                free: self.size_and_free()[1],
            }),
        }
    }

    /// Writes to the start of a slice, padded with zeros to whole words.
    pub(super) fn fill(&self, to: Piece<'_>, bytes: &[u8]) -> Result<(), Error> {
        let Piece { buffer, offset, .. } = to;
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            let start = (offset + number * PIECE) as u64;
            let (whole, rest) = piece.split_at(piece.len() / 4 * 4);
            if !whole.is_empty() {
                self.queue.write_buffer(buffer, start, whole);
            }
            if !rest.is_empty() {
                let mut word = [0; 4];
                word[..rest.len()].copy_from_slice(rest);
                self.queue.write_buffer(buffer, start + whole.len() as u64, &word);
            }
            if piece.len() == PIECE {
                self.queue.submit([]);
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Compiles a source.
    pub(super) fn pipeline(&self, code: &Code) -> Result<Pipeline, Error> {
        let (n, limit) = (code.bindings.len(), self.limits.max_storage_buffers_per_shader_stage);
        if n > limit as usize {
            let what =
                format!("the number of buffers of kernel {:?} on {}", code.kernel.name, self.found.name);
            return Err(CompilerError::Limit { what, found: n as u64, limit: u64::from(limit) }.into());
        }
        self.compiled(&code.kernel.name, &code.source, n)
    }

    /// The same of a source that was written by hand.
    pub(super) fn compiled(&self, name: &str, source: &str, n_bindings: usize) -> Result<Pipeline, Error> {
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        // wgpu enables subgroups by feature and does not parse this line.
        let source = source.replace("enable subgroups;", "");
        let source = ShaderSource::Wgsl(source.into());
        let descriptor = ShaderModuleDescriptor { label: Some(name), source };
        let checks = ShaderRuntimeChecks::unchecked();
        // SAFETY: the source was made of a kernel that verifies, so every access lies within the largest shape of its
        // buffer, which `piece` holds bindings to, and every loop ends; or it is a probe, of which that is plain.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let entries: Vec<BindGroupLayoutEntry> = (0..n_bindings as u32).map(storage).collect();
        let layout = BindGroupLayoutDescriptor { label: None, entries: &entries };
        let layout = self.device.create_bind_group_layout(&layout);
        let of_pipeline =
            PipelineLayoutDescriptor { label: None, bind_group_layouts: &[Some(&layout)], immediate_size: 0 };
        let of_pipeline = self.device.create_pipeline_layout(&of_pipeline);
        // Every kernel writes shared memory before it reads it.
        let compilation_options = PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..PipelineCompilationOptions::default()
        };
        let pipeline = self.device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&of_pipeline),
            module: &module,
            entry_point: Some(ENTRY),
            compilation_options,
            cache: None,
        });
        match finished(scope.pop()) {
            None => Ok(Pipeline { pipeline, layout }),
            Some(fault) => Err(refused_by_driver(name, &fault)),
        }
    }

    /// A bind group for a pipeline.
    pub(super) fn bound(&self, pipeline: &Pipeline, pieces: &[Piece<'_>]) -> Result<BindGroup, Error> {
        let largest = self.limits.max_storage_buffer_binding_size;
        if let Some(piece) = pieces.iter().find(|piece| piece.bytes as u64 > largest) {
            let what = format!("a buffer on {} in bytes", self.found.name);
            return Err(CompilerError::Limit { what, found: piece.bytes as u64, limit: largest }.into());
        }
        let numbered = pieces.iter().enumerate();
        let entries: Vec<BindGroupEntry<'_>> =
            numbered.map(|(number, piece)| entry(number, *piece)).collect();
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let descriptor = BindGroupDescriptor { label: None, layout: &pipeline.layout, entries: &entries };
        let bound = self.device.create_bind_group(&descriptor);
        match finished(scope.pop()) {
            None => Ok(bound),
            Some(fault) => Err(refused_by_driver("bindings", &fault)),
        }
    }

    /// Runs launches in order, then copies a slice to a staging buffer: one submission.
    pub(super) fn submit<'d>(
        &self,
        dispatches: impl Iterator<Item = Dispatch<'d>>,
        copied: Option<(Piece<'_>, &Buffer)>,
    ) {
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        record(&mut encoder, dispatches);
        if let Some((Piece { buffer, offset, bytes }, staging)) = copied {
            let bytes = bytes.next_multiple_of(4) as u64;
            encoder.copy_buffer_to_buffer(buffer, offset as u64, staging, 0, bytes);
        }
        self.queue.submit([encoder.finish()]);
    }

    /// The first bytes of a staging buffer, once all submitted work is done.
    pub(super) fn staged(&self, staging: &Buffer, to: &mut [u8]) -> Result<(), Error> {
        staging.slice(..).map_async(MapMode::Read, |_| {});
        self.wait()?;
        to.copy_from_slice(&staging.slice(..).get_mapped_range()[..to.len()]);
        staging.unmap();
        Ok(())
    }

    /// Waits until all submitted work is done.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let done = self.device.poll(PollType::wait_indefinitely());
        done.map(|_| ()).map_err(|fault| refused_by_driver("a submission", &fault))
    }

    /// The most bytes that a kernel can be bound to at once.
    pub(super) fn largest_binding(&self) -> u64 {
        self.limits.max_buffer_size.min(self.limits.max_storage_buffer_binding_size)
    }

    /// The most workgroups of a launch.
    pub(super) fn max_workgroups_of_a_dispatch(&self) -> u32 {
        self.limits.max_compute_workgroups_per_dimension
    }
}

fn record<'d>(encoder: &mut CommandEncoder, dispatches: impl Iterator<Item = Dispatch<'d>>) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    for Dispatch { pipeline, bound, n_workgroups } in dispatches.filter(|it| it.n_workgroups > 0) {
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, bound, &[]);
        pass.dispatch_workgroups(n_workgroups, 1, 1);
    }
}

fn entry(number: usize, piece: Piece<'_>) -> BindGroupEntry<'_> {
    let size = (piece.bytes.next_multiple_of(4).max(4) as u64).try_into().ok();
    let resource = BufferBinding { buffer: piece.buffer, offset: piece.offset as u64, size };
    BindGroupEntry { binding: number as u32, resource: BindingResource::Buffer(resource) }
}

fn storage(binding: u32) -> BindGroupLayoutEntry {
    let ty = BindingType::Buffer {
        ty: BufferBindingType::Storage { read_only: false },
        has_dynamic_offset: false,
        min_binding_size: None,
    };
    BindGroupLayoutEntry { binding, visibility: ShaderStages::COMPUTE, ty, count: None }
}

fn unsupported(what: String) -> Error {
    CompilerError::Unsupported { what, target: "gpu".to_owned() }.into()
}

/// Drives a future to completion; those of local drivers become ready by themselves.
fn finished<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        thread::yield_now();
    }
}
