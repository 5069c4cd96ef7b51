//! The element types that values have while they are computed.
//!
//! Stored weights have a [`Format`](super::quant::Format) instead: a format is how bytes lie in a file, a
//! [`DType`] is what arithmetic sees. Truth values are `I32`, 0 or 1.

use std::fmt;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single precision: the type of nearly all activations.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `F32`.
    BF16,
    /// Indices, positions and truth values.
    I32,
}

impl DType {
    /// Every type, in the order of the declaration.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::BF16, Self::I32];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
        }
    }

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Whether elements are floating-point numbers.
    pub fn is_float(self) -> bool {
        self != Self::I32
    }

    /// Rounds a single-precision number to what this type can hold.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => half::f16::from_f32(value).to_f32(),
            Self::BF16 => half::bf16::from_f32(value).to_f32(),
            Self::I32 => value.trunc(),
        }
    }

    /// Appends the bytes of the nearest number that this type can hold.
    pub fn append(self, value: f32, to: &mut Vec<u8>) {
        match self {
            Self::F32 => to.extend(value.to_le_bytes()),
            Self::F16 => to.extend(half::f16::from_f32(value).to_le_bytes()),
            Self::BF16 => to.extend(half::bf16::from_f32(value).to_le_bytes()),
            Self::I32 => to.extend((value as i32).to_le_bytes()),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
