//! The devices that can be asked for, and what each of them lacks here.
//!
//! In: a name. Out: the device to run on, or a sentence that says what is missing and what there is instead.

use fusebox_compiler::target::Target;
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

    /// The device of this name, if models can run on it here; `auto` is the processor, as no GPU was
    /// measured yet.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        if name == "auto" {
            return Ok(Self::Cpu);
        }
        let device = Self::ALL.into_iter().find(|device| device.name() == name);
        let there = || {
            let there = Self::ALL.into_iter().filter(|device| device.missing().is_none()).map(Self::name);
            format!("auto, {}", there.collect::<Vec<_>>().join(", "))
        };
        let device = device.ok_or_else(|| format!("--device is `{name}`; {} is possible", there()))?;
        match device.missing() {
            None => Ok(device),
            Some(missing) => Err(format!("--device is `{name}`, but {missing}; {} is possible", there())),
        }
    }

    /// The graphics interface that it is driven by.
    pub(crate) fn interface(self) -> Option<Interface> {
        match self {
            Self::Cpu | Self::Cuda => None,
            Self::Vulkan => Some(Interface::Vulkan),
            Self::Metal => Some(Interface::Metal),
        }
    }

    /// The target that programs for it are compiled for; the processor's is chosen by its instructions.
    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::Cpu => None,
            Self::Cuda => Target::named("cuda-sm90"),
            Self::Vulkan => Target::named("vulkan"),
            Self::Metal => Target::named("metal"),
        }
    }

    /// What is missing to run models on it.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Cuda => cuda::missing(),
            Self::Vulkan | Self::Metal => {
                let interface = self.interface()?;
                found(interface).is_empty().then(|| format!("no adapter for {interface} was found"))
            }
        }
    }

    /// What it is, where it is ready.
    pub(crate) fn describe(self) -> String {
        if self == Self::Cuda {
            let found = cuda::described();
            return found
                .map_or_else(|fault| format!("not ready: {fault}"), |found| format!("ready: {found}"));
        }
        let adapters = self.interface().map(found).unwrap_or_default();
        let name = |it: &Found| {
            if it.is_software { format!("{}, in software", it.name) } else { it.name.clone() }
        };
        let names: Vec<String> = adapters.iter().map(name).collect();
        if names.is_empty() { "ready".to_owned() } else { format!("ready: {}", names.join("; ")) }
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
        assert!(sentence.starts_with("--device is `abacus`; auto, cpu"), "{sentence}");
        for device in Device::ALL {
            match device.missing() {
                None => assert_eq!(Device::named(device.name()), Ok(device)),
                Some(missing) => {
                    let sentence = Device::named(device.name()).unwrap_err();
                    assert!(sentence.contains(&missing) && sentence.contains("; auto, cpu"), "{sentence}");
                }
            }
        }
    }
}
