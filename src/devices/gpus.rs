//! The GPUs of this machine: what is available, and the devices that run programs.
//!
//! In: a GPU by driver interface. Out: its adapters, or a sentence that says what is missing; the target that its
//! programs are compiled for; the opened device, which reports the upload of weights to a watcher.
//! A build without the feature `gpu` has `no_gpus.rs` in its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fusebox_compiler::options::Numbers;
use fusebox_compiler::target::{METAL, Target, VULKAN};
use fusebox_runtime::device::gpu::cuda::{self, Cuda, CudaDevice};
use fusebox_runtime::device::gpu::device_memory::Tell;
use fusebox_runtime::device::gpu::wgpu_driver::{Driver, Interface, found};
use fusebox_runtime::device::gpu::wgpu_machine::WgpuDevice;
use fusebox_runtime::device::gpu::wgpu_rates::{Stated, stated};
use fusebox_runtime::device::{Device, Found};
use fusebox_runtime::error::Error;

use crate::devices::{Gpu, rates};
use crate::host;
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

/// A GPU as a target, if there is one: with the rates that CUDA tells, or those measured of a graphics device, which
/// are kept in the folder.
pub(crate) fn target(gpu: Gpu, folder: Option<&Path>) -> Option<Target> {
    let graphics = |interface, named| {
        let measure = || Driver::open(interface).and_then(|driver| driver.bandwidth()).ok();
        Some(priced(stated(interface)?, named, folder, measure))
    };
    match gpu {
        Gpu::Cuda => cuda::target().ok(),
        Gpu::Vulkan => graphics(Interface::Vulkan, VULKAN),
        Gpu::Metal => graphics(Interface::Metal, METAL),
    }
}

/// A graphics device as a target. What works in software has the processor's hardware threads, and is another device
/// on another processor; what tells no units has those of the name.
fn priced(
    stated: Stated,
    named: Target,
    folder: Option<&Path>,
    measure: impl FnOnce() -> Option<f64>,
) -> Target {
    let Stated { identity, is_software, compute_units } = stated;
    let (device, compute_units) = if is_software {
        (format!("{identity} on {}", rates::machine()), Some(host::n_threads()))
    } else {
        (identity, compute_units)
    };
    let units = compute_units.unwrap_or(named.rates.compute_units);
    rates::measured_once(device, named.with_rates(units, named.gigabytes()), folder, measure)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn stated_as(identity: &str, is_software: bool, compute_units: Option<usize>) -> Stated {
        Stated { identity: identity.to_owned(), is_software, compute_units }
    }

    #[test]
    fn units_are_those_of_the_vendor_the_processor_or_the_name() {
        let folder = std::env::temp_dir().join(format!("fusebox-gpus-units-{}", std::process::id()));
        let target = |stated| priced(stated, METAL, Some(&folder), || Some(1e11)).to_string();
        assert_eq!(target(stated_as("a", false, Some(28))), "metal:28:80");
        assert_eq!(target(stated_as("b", false, None)), "metal:40:80");
        assert_eq!(target(stated_as("c", true, Some(28))), format!("metal:{}:80", host::n_threads()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_graphics_device_is_measured_once() {
        let folder = std::env::temp_dir().join(format!("fusebox-gpus-once-{}", std::process::id()));
        let Some(stated) = stated(Interface::Vulkan) else {
            return println!("skipped: no adapter for Vulkan");
        };
        let first = target(Gpu::Vulkan, Some(&folder)).unwrap();
        assert!(first.gigabytes() >= 5 && first.name == VULKAN.name, "{first}");
        assert_eq!(priced(stated, VULKAN, Some(&folder), || panic!("it was kept")), first);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
