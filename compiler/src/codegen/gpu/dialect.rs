//! What sources are written in, and what they may count on.
//!
//! In: a target, or what a device was found to offer. Out: a [`Dialect`].
//! A language alone stands for what all GPUs that take it have; a device that has more says so.

use std::fmt;

use crate::target::Target;

/// A language, and what the GPU has that its code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The language.
    pub language: Language,
    /// Neighbouring threads that read each other's registers, a power of two; one where nobody promises how they lie.
    pub plane: u32,
    /// Whether products of tiles go through matrix units, which round their factors to ten bits behind the point.
    pub has_matrices: bool,
}

impl From<Language> for Dialect {
    fn from(language: Language) -> Self {
        match language {
            Language::Cuda => Self { language, plane: 32, has_matrices: true },
            Language::Msl => Self { language, plane: 32, has_matrices: false },
            Language::Wgsl => Self { language, plane: 1, has_matrices: false },
        }
    }
}

/// A language that kernels are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// CUDA C++, for NVIDIA.
    Cuda,
    /// The language of WebGPU, for Vulkan.
    Wgsl,
    /// Metal, for Apple.
    Msl,
}

impl Language {
    /// The language that a target's kernels are written in; none for processors.
    pub fn of(target: &Target) -> Option<Self> {
        match target.name {
            "cuda-sm90" => Some(Self::Cuda),
            "vulkan" => Some(Self::Wgsl),
            "metal" => Some(Self::Msl),
            _ => None,
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

    /// Whether it has types for half precisions.
    pub(super) fn has_halves(self) -> bool {
        match self {
            Self::Cuda | Self::Msl => true,
            Self::Wgsl => false,
        }
    }

    /// Whether its functions may be far off.
    pub(super) fn is_vague(self) -> bool {
        match self {
            Self::Cuda => false,
            Self::Wgsl | Self::Msl => true,
        }
    }

    /// Shared memory that a workgroup may have, in bytes.
    pub(super) fn shared_bytes(self) -> usize {
        match self {
            // What every chip since 2020 gives; what is over 48 KiB has to be asked for.
            Self::Cuda => 96 << 10,
            Self::Wgsl | Self::Msl => 32 << 10,
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
