//! The devices that can be asked for, and what each of them lacks here.
//!
//! In: a name. Out: the device to run on, or a sentence that says what is missing and what there is instead.

use std::path::Path;

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

    /// The device of this name, if models can run on it here; `auto` is the best that can.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let there: Vec<&str> =
            Self::ALL.into_iter().filter(|device| device.missing().is_none()).map(Self::name).collect();
        let there = format!("auto, {}", there.join(", "));
        if name == "auto" {
            return Ok(Self::Cpu);
        }
        let device = Self::ALL.into_iter().find(|device| device.name() == name);
        let device = device.ok_or_else(|| format!("--device is `{name}`; {there} is possible"))?;
        match device.missing() {
            None => Ok(device),
            Some(missing) => Err(format!("--device is `{name}`, but {missing}; {there} is possible")),
        }
    }

    /// What is missing to run models on it.
    pub(crate) fn missing(self) -> Option<String> {
        let driver = match self {
            Self::Cpu => return None,
            Self::Cuda => has_library("libcuda.so.1").then_some("an NVIDIA driver is there"),
            Self::Vulkan => has_library("libvulkan.so.1").then_some("a Vulkan driver is there"),
            Self::Metal => cfg!(target_os = "macos").then_some("Metal is there"),
        };
        let built = "this build has no code for it";
        Some(driver.map_or_else(
            || format!("no driver was found and {built}"),
            |driver| format!("{driver} and {built}"),
        ))
    }
}

/// Whether a library lies where the system keeps them.
fn has_library(name: &str) -> bool {
    const FOLDERS: [&str; 6] = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/local/lib",
        "/usr/lib/wsl/lib",
    ];
    FOLDERS.iter().any(|folder| Path::new(folder).join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_always_there_and_other_names_are_sentences() {
        assert_eq!(Device::named("auto"), Ok(Device::Cpu));
        assert_eq!(Device::named("cpu"), Ok(Device::Cpu));
        let sentence = Device::named("abacus").unwrap_err();
        assert_eq!(sentence, "--device is `abacus`; auto, cpu is possible");
        for name in ["cuda", "vulkan", "metal"] {
            let sentence = Device::named(name).unwrap_err();
            assert!(sentence.contains("this build has no code for it; auto, cpu is possible"), "{sentence}");
        }
    }
}
