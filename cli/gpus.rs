//! The GPUs of this machine: what is there, and what runs programs on one.
//!
//! In: a GPU by what drives it. Out: its adapters, or a sentence that says what is missing; the device, opened,
//! which tells how far weights were handed over to it.
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

/// Weights of so many bytes are worth a line wherever it goes.
const LARGE: usize = 1 << 30;

/// Whether models can run on a GPU, or what is missing.
pub(crate) fn ready(gpu: Gpu) -> Result<(), String> {
    match gpu {
        // One of NVIDIA is opened only to tell what it is.
        Gpu::Cuda => cuda::missing().map_or(Ok(()), Err),
        Gpu::Vulkan | Gpu::Metal => adapters(gpu).map(drop),
    }
}

/// What a GPU is driven as, hardware first, or what is missing.
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

/// A GPU that is ready for programs. No more than a limit is taken of its memory, and a folder keeps what is compiled.
pub(crate) fn started(
    gpu: Gpu,
    numbers: Numbers,
    folder: Option<PathBuf>,
    limit: Option<usize>,
    is_quiet: bool,
) -> Result<Box<dyn Device>, Error> {
    let tell = handing_over(is_quiet);
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

/// Tells how far weights were handed over.
fn handing_over(is_quiet: bool) -> Tell {
    if is_quiet {
        return silent();
    }
    let is_terminal = stderr().is_terminal();
    let mut is_told = false;
    Box::new(move |done, all| {
        let amount = |n: usize| bytes(n as f64);
        if is_terminal {
            let is_done = done == all;
            let line = format!("handing over weights: {} of {}", amount(done), amount(all));
            overwrite(if is_done { "" } else { &line });
        } else if all >= LARGE && !is_told {
            is_told = true;
            note(&format!("handing over {} of weights", amount(all)));
        }
    })
}
