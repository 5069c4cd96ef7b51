//! The devices that can be asked for, and what each of them lacks here.
//!
//! In: a name. Out: the device to run on, or a sentence that says what is missing and what there is instead.

use fusebox_compiler::target::{CUDA_SM90, METAL, Target, VULKAN};
use fusebox_runtime::device::gpu::cuda;
use fusebox_runtime::device::gpu::driver::{Found, Interface, found};

/// A device by the name it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The processor.
    Cpu,
    /// A GPU of NVIDIA.
    Cuda,
    /// A GPU with a driver for Vulkan.
    Vulkan,
    /// A GPU of Apple.
    Metal,
}

impl Device {
    /// Every device.
    pub(crate) const ALL: [Self; 4] = [Self::Cpu, Self::Cuda, Self::Vulkan, Self::Metal];

    /// The name it is asked for by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
        }
    }

    /// The device of this name, if models can run on it here; `auto` is the processor: a GPU is used where it is asked
    /// for.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        if name.eq_ignore_ascii_case("auto") {
            return Ok(Self::Cpu);
        }
        let names = |devices: &mut dyn Iterator<Item = Self>| {
            ["auto"].into_iter().chain(devices.map(Self::name)).collect::<Vec<_>>().join(", ")
        };
        let mut all = Self::ALL.into_iter();
        let device = all.clone().find(|device| device.name().eq_ignore_ascii_case(name));
        // Nothing is opened for a name that no device has.
        let device =
            device.ok_or_else(|| format!("--device is `{name}`, expected one of {}", names(&mut all)))?;
        device.missing().map_or(Ok(device), |missing| {
            let there = names(&mut all.filter(|device| device.missing().is_none()));
            Err(format!("--device is `{name}`, but {missing}; what is there: {there}"))
        })
    }

    /// The target that programs for it are compiled for; the processor's is chosen by its instructions.
    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::Cpu => None,
            Self::Cuda => Some(CUDA_SM90),
            Self::Vulkan => Some(VULKAN),
            Self::Metal => Some(METAL),
        }
    }

    /// What is missing to run models on it.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            // A GPU is opened only to tell what it is.
            Self::Cuda => cuda::missing(),
            Self::Cpu | Self::Vulkan | Self::Metal => self.adapters().err(),
        }
    }

    /// What it runs on, hardware first, or what is missing; the processor needs nothing.
    pub(crate) fn adapters(self) -> Result<Vec<Found>, String> {
        let graphics = |interface| {
            let found = Some(found(interface)).filter(|found| !found.is_empty());
            found.ok_or_else(|| format!("no adapter for {interface} was found"))
        };
        match self {
            Self::Cpu => Ok(Vec::new()),
            Self::Cuda => {
                cuda::missing().map_or(Ok(()), Err)?;
                let name = cuda::described().map_err(|fault| fault.to_string())?;
                Ok(vec![Found { name, is_software: false }])
            }
            Self::Vulkan => graphics(Interface::Vulkan),
            Self::Metal => graphics(Interface::Metal),
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
