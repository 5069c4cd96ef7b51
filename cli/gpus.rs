//! The GPUs of this machine: what is available, and the devices that run programs.
//!
//! In: a GPU by driver interface. Out: its adapters, or a sentence that says what is missing; the opened device, which
//! reports the upload of weights.
//! A build without the feature `gpu` has `no_gpus.rs` in its place.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;

use fusebox_compiler::codegen::cpu::level::Numbers;
use fusebox_compiler::foundation::amount::bytes;
use fusebox_runtime::device::gpu::cuda::{self, Cuda, CudaDevice};
use fusebox_runtime::device::gpu::device_memory::{Tell, silent};
use fusebox_runtime::device::gpu::wgpu_driver::{Driver, Interface, found};
use fusebox_runtime::device::gpu::wgpu_machine::WgpuDevice;
use fusebox_runtime::device::{Device, Found};
use fusebox_runtime::error::Error;

use crate::devices::Gpu;
use crate::output::note;
use crate::progress::overwrite;

/// From this size on, an upload of weights is noted even where standard error is no terminal.
const LARGE_UPLOAD: usize = 1 << 30;

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

/// Opens a GPU. `limit` is the most device memory to use, `folder` caches compiled kernels.
pub(crate) fn open(
    gpu: Gpu,
    numbers: Numbers,
    folder: Option<PathBuf>,
    limit: Option<usize>,
    is_quiet: bool,
) -> Result<Box<dyn Device>, Error> {
    let tell = upload_progress(is_quiet);
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

/// Reports the progress of uploads.
fn upload_progress(is_quiet: bool) -> Tell {
    if is_quiet {
        return silent();
    }
    let is_terminal = stderr().is_terminal();
    let mut is_noted = false;
    Box::new(move |done, all| {
        let amount = |n: usize| bytes(n as f64);
        if is_terminal {
            let is_done = done == all;
            let line = format!("uploading weights: {} of {}", amount(done), amount(all));
            overwrite(if is_done { "" } else { &line });
        } else if all >= LARGE_UPLOAD && !is_noted {
            is_noted = true;
            note(&format!("uploading {} of weights", amount(all)));
        }
    })
}
