//! The GPUs of this machine: what is available, and the devices that run programs.
//!
//! In: a GPU by driver interface. Out: its adapters, or a sentence that says what is missing; the opened device, which
//! reports the upload of weights to a watcher.
//! A build without the feature `gpu` has `no_gpus.rs` in its place.

use std::path::PathBuf;
use std::sync::Arc;

use fusebox_compiler::options::Numbers;
use fusebox_compiler::target::Target;
use fusebox_runtime::device::gpu::cuda::{self, Cuda, CudaDevice};
use fusebox_runtime::device::gpu::device_memory::Tell;
use fusebox_runtime::device::gpu::wgpu_driver::{Driver, Interface, found};
use fusebox_runtime::device::gpu::wgpu_machine::WgpuDevice;
use fusebox_runtime::device::{Device, Found};
use fusebox_runtime::error::Error;

use crate::devices::Gpu;
use crate::watch::{Event, Watch};

/// Whether models can run on a GPU, or what is missing.
pub(crate) fn ready(gpu: Gpu) -> Result<(), String> {
    match gpu {
        // Opening a CUDA device is left to those who need its name.
        Gpu::Cuda => cuda::missing().map_or(Ok(()), Err),
        Gpu::Vulkan | Gpu::Metal => adapters(gpu).map(drop),
    }
}

/// The adapters of a GPU, hardware before software, or what is missing.
pub(crate) fn adapters(gpu: Gpu) -> Result<Vec<Found>, String> {
    let graphics = |interface| {
        let found = Some(found(interface)).filter(|found| !found.is_empty());
        found.ok_or_else(|| format!("no adapter for {interface} was found"))
    };
    match gpu {
        Gpu::Cuda => {
            ready(gpu)?;
            let name = cuda::described().map_err(|fault| fault.to_string())?;
            Ok(vec![Found { name, is_software: false }])
        }
        Gpu::Vulkan => graphics(Interface::Vulkan),
        Gpu::Metal => graphics(Interface::Metal),
    }
}

/// A GPU as a target, where its driver tells the rates; graphics drivers do not.
pub(crate) fn target(gpu: Gpu) -> Option<Target> {
    match gpu {
        Gpu::Cuda => cuda::target().ok(),
        Gpu::Vulkan | Gpu::Metal => None,
    }
}

/// Opens a GPU. `limit` is the most device memory to use, `folder` caches compiled kernels.
pub(crate) fn open(
    gpu: Gpu,
    numbers: Numbers,
    folder: Option<PathBuf>,
    limit: Option<usize>,
    watch: &Watch,
) -> Result<Box<dyn Device>, Error> {
    let watch = Arc::clone(watch);
    let tell: Tell = Box::new(move |done, all| watch(Event::Uploading { done, all }));
    let graphics = |interface, tell| -> Result<Box<dyn Device>, Error> {
        Ok(Box::new(WgpuDevice::new(Driver::open(interface)?, limit, tell)))
    };
    match gpu {
        Gpu::Cuda => {
            let cuda = Cuda::open(numbers == Numbers::Single, folder)?;
            Ok(Box::new(CudaDevice::new(cuda, limit, tell)))
        }
        Gpu::Vulkan => graphics(Interface::Vulkan, tell),
        Gpu::Metal => graphics(Interface::Metal, tell),
    }
}
