//! Devices by name, and whether each can run here.
//!
//! In: a name. Out: the device to run on, or a sentence that says what is missing and which devices are available; the
//! target that its programs are compiled for, with the rates of the device that is here.

use std::path::Path;

use fusebox_compiler::target::{CPU, CUDA_SM90, METAL, Target, VULKAN};
use fusebox_runtime::device::Found;

#[cfg_attr(not(feature = "gpu"), path = "no_gpus.rs")]
pub(crate) mod gpus;
mod rates;

/// A value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU.
    Gpu(Gpu),
}

/// GPUs by driver interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// NVIDIA GPUs.
    Cuda,
    /// Any GPU with a Vulkan driver.
    Vulkan,
    /// Apple GPUs.
    Metal,
}

impl Device {
    /// Every device.
    pub const ALL: [Self; 4] =
        [Self::Cpu, Self::Gpu(Gpu::Cuda), Self::Gpu(Gpu::Vulkan), Self::Gpu(Gpu::Metal)];

    /// The name in `--device`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu(Gpu::Cuda) => "cuda",
            Self::Gpu(Gpu::Vulkan) => "vulkan",
            Self::Gpu(Gpu::Metal) => "metal",
        }
    }

    /// The device of this name, if models can run on it here. `auto` is the processor: a GPU has to be named.
    pub fn named(name: &str) -> Result<Self, String> {
        if name.eq_ignore_ascii_case("auto") {
            return Ok(Self::Cpu);
        }
        let names = |devices: &mut dyn Iterator<Item = Self>| {
            ["auto"].into_iter().chain(devices.map(Self::name)).collect::<Vec<_>>().join(", ")
        };
        let mut all = Self::ALL.into_iter();
        let device = all.clone().find(|device| device.name().eq_ignore_ascii_case(name));
        // An unknown name is refused without opening any driver.
        let device =
            device.ok_or_else(|| format!("--device is `{name}`, expected one of {}", names(&mut all)))?;
        device.missing().map_or(Ok(device), |missing| {
            let available = names(&mut all.filter(|device| device.missing().is_none()));
            Err(format!("--device is `{name}`, but {missing}; available: {available}"))
        })
    }

    /// The named target of its kind, whatever is here.
    pub fn named_target(self) -> Target {
        match self {
            Self::Cpu => CPU,
            Self::Gpu(Gpu::Cuda) => CUDA_SM90,
            Self::Gpu(Gpu::Vulkan) => VULKAN,
            Self::Gpu(Gpu::Metal) => METAL,
        }
    }

    /// The target that its programs are compiled for: with the rates of the device that is here, where it tells them
    /// or they were measured. Measurements are kept in the folder of the program cache.
    pub fn target(self, folder: Option<&Path>) -> Target {
        match self {
            Self::Cpu => rates::processor(folder),
            Self::Gpu(gpu) => gpus::target(gpu, folder).unwrap_or_else(|| self.named_target()),
        }
    }

    /// What is missing to run models on it.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Gpu(gpu) => gpus::ready(gpu).err(),
        }
    }

    /// Its adapters, hardware before software, or what is missing; the processor has none.
    pub fn adapters(self) -> Result<Vec<Found>, String> {
        match self {
            Self::Cpu => Ok(Vec::new()),
            Self::Gpu(gpu) => gpus::adapters(gpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_always_there_and_other_names_are_sentences() {
        assert_eq!(Device::named("auto"), Ok(Device::Cpu));
        assert_eq!(Device::named("cpu"), Ok(Device::Cpu));
        let sentence = Device::named("abacus").unwrap_err();
        assert_eq!(sentence, "--device is `abacus`, expected one of auto, cpu, cuda, vulkan, metal");
        for device in Device::ALL {
            match device.missing() {
                None => assert_eq!(Device::named(device.name()), Ok(device)),
                Some(missing) => {
                    let sentence = Device::named(device.name()).unwrap_err();
                    assert!(sentence.contains(&missing) && sentence.contains(": auto, cpu"), "{sentence}");
                }
            }
        }
    }
}
