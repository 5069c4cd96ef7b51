//! The language of a source, and the GPU features it may use.
//!
//! In: a target, or what a device reports. Out: a [`Dialect`].
//! A language alone stands for the features that all its GPUs have; a device that has more says so.

use std::fmt;

use crate::target::{CUDA_SM90, Code, METAL, Target, VULKAN};

/// A language and the GPU features that code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The language.
    pub language: Language,
    /// Threads of a subgroup (warp), a power of two; 1 where shuffles are not available.
    pub subgroup_size: u32,
    /// Whether products of tiles use tensor cores (MMA), which round single-precision operands to TF32: ten mantissa
    /// bits.
    pub has_tensor_cores: bool,
}

impl From<Language> for Dialect {
    fn from(language: Language) -> Self {
        match language {
            Language::Cuda => Self { language, subgroup_size: 32, has_tensor_cores: true },
            Language::Msl => Self { language, subgroup_size: 32, has_tensor_cores: false },
            Language::Wgsl => Self { language, subgroup_size: 1, has_tensor_cores: false },
        }
    }
}

/// A language of kernel sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// CUDA C++, for NVIDIA.
    Cuda,
    /// The WebGPU shading language, for Vulkan.
    Wgsl,
    /// The Metal shading language, for Apple GPUs.
    Msl,
}

impl Language {
    /// The language that a target's kernels are written in; none for processors.
    pub fn of(target: &Target) -> Option<Self> {
        match target.capabilities.code {
            Code::Cuda => Some(Self::Cuda),
            Code::Wgsl => Some(Self::Wgsl),
            Code::Msl => Some(Self::Msl),
            Code::Machine => None,
        }
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "CUDA C++",
            Self::Wgsl => "WGSL",
            Self::Msl => "Metal",
        }
    }

    /// Whether it has 16-bit floating-point types.
    pub(super) fn has_halves(self) -> bool {
        match self {
            Self::Cuda | Self::Msl => true,
            Self::Wgsl => false,
        }
    }

    /// Whether its math functions promise too little precision.
    pub(super) fn has_imprecise_math(self) -> bool {
        match self {
            Self::Cuda => false,
            Self::Wgsl | Self::Msl => true,
        }
    }

    /// Shared memory of a workgroup, in bytes.
    pub(super) fn shared_bytes(self) -> usize {
        match self {
            Self::Cuda => CUDA_SM90.capabilities.shared_bytes,
            Self::Wgsl => VULKAN.capabilities.shared_bytes,
            Self::Msl => METAL.capabilities.shared_bytes,
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
