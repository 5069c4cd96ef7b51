//! Which instructions code may use.
//!
//! In: the processor this runs on, or a name. Out: a [`Level`] of instructions. A level is chosen once; an instruction
//! that the processor lacks is refused then, and never looked for again.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use crate::avx512::has_amx;

/// An instruction set that faster code is written for, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As `Avx512Bf16`, with tiles of bfloat16 numbers and bytes: AMX.
    Amx,
    /// As `Avx512`, with dot products of bfloat16 numbers: AVX-512 BF16.
    Avx512Bf16,
    /// 512 bits with dot products of bytes: AVX-512 F, BW, VL, VNNI.
    Avx512,
    /// 256 bits with fused multiplication and addition: AVX2, FMA, F16C.
    Avx2,
    /// 128 bits of Arm.
    Neon,
    /// What every processor has.
    Portable,
}

impl Level {
    /// Every level, the best first.
    pub const ALL: [Self; 6] =
        [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The best level of this processor.
    pub fn host() -> Self {
        Self::supported().next().unwrap_or(Self::Portable)
    }

    /// The levels of this processor, the best first.
    pub fn supported() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_supported())
    }

    /// The level of this name, if this processor has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::supported().find(|level| level.name() == name)
    }

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Whether this processor can run it.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Amx => Self::Avx512Bf16.is_supported() && has_amx(),
            Self::Avx512Bf16 => has_avx512() && has_bf16(),
            Self::Avx512 => has_avx512(),
            Self::Avx2 => has_avx2(),
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Portable => true,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_amx() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_level_is_found_by_its_name_and_others_are_refused() {
        assert_eq!(Level::named(Level::host().name()), Some(Level::host()));
        assert_eq!(Level::named("portable"), Some(Level::Portable));
        assert_eq!(Level::named("mmx"), None);
    }
}
