//! What a kernel's buffers lie in while it is interpreted.
//!
//! In: element numbers in storage order. Out: numbers, or nothing where a buffer has no such element.
//! [`Memory`] is what an interpreter of plans implements over one arena of bytes; [`Buffers`] keeps every buffer apart.
//! A memory never sees an index: `run` has checked that against the sizes of the buffer.

use crate::foundation::entity::List;
use crate::kernel::ParamId;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of a floating-point type, decoded; already rounded to what the buffer holds when it is stored.
    Float(f32),
    /// Of type `I32`.
    Int(i32),
}

/// Buffers that can be read and written by element.
pub trait Memory {
    /// The element of a buffer; nothing where the buffer does not reach so far.
    fn load(&self, param: ParamId, element: usize) -> Option<Number>;

    /// Stores an element; false where the buffer does not reach so far or is not for writing.
    fn store(&mut self, param: ParamId, element: usize, value: Number) -> bool;
}

/// A buffer of its own.
#[derive(Clone, Debug, PartialEq)]
pub enum Buffer {
    /// Elements of the three floating-point types.
    Float(Vec<f32>),
    /// Elements of type `I32`.
    Int(Vec<i32>),
    /// Decoded elements of a stored tensor, for reading only.
    Stored(Vec<f32>),
}

/// A buffer for each parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Buffers(pub List<ParamId, Buffer>);

impl Buffer {
    /// The elements that whole blocks of bytes stand for; nothing where the bytes are no whole blocks.
    pub fn stored(format: Format, bytes: &[u8]) -> Option<Self> {
        let n_blocks = bytes.len().checked_div(format.block_bytes())?;
        let n_elements = n_blocks * format.block_len();
        let elements = format
            .decode_all(bytes, n_elements)
            .filter(|_| format.bytes_for(n_elements) == Some(bytes.len()))?;
        let is_whole = format.dtype() == DType::I32;
        Some(if is_whole {
            Self::Int(elements.into_iter().map(|x| x as i32).collect())
        } else {
            Self::Stored(elements)
        })
    }

    /// `n` zeros of a type.
    pub fn zeros(dtype: DType, n: usize) -> Self {
        if dtype.is_float() { Self::Float(vec![0.0; n]) } else { Self::Int(vec![0; n]) }
    }
}

impl Memory for Buffers {
    fn load(&self, param: ParamId, element: usize) -> Option<Number> {
        match self.0.get(param)? {
            Buffer::Float(data) | Buffer::Stored(data) => data.get(element).copied().map(Number::Float),
            Buffer::Int(data) => data.get(element).copied().map(Number::Int),
        }
    }

    fn store(&mut self, param: ParamId, element: usize, value: Number) -> bool {
        if self.load(param, element).is_none() {
            return false;
        }
        match (&mut self.0[param], value) {
            (Buffer::Float(data), Number::Float(value)) => data[element] = value,
            (Buffer::Int(data), Number::Int(value)) => data[element] = value,
            (Buffer::Float(_) | Buffer::Int(_) | Buffer::Stored(_), Number::Float(_) | Number::Int(_)) => {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::entity::Id;

    #[test]
    fn stored_buffers_are_decoded_and_read_only() {
        let mut bytes = vec![0x00, 0x3c];
        bytes.extend((0..32).map(|i| i as u8));
        let buffer = Buffer::stored(Format::Q8_0, &bytes).unwrap();
        assert_eq!(Buffer::stored(Format::Q8_0, &bytes[1..]), None);
        let mut buffers = Buffers([buffer].into_iter().collect());
        let w = ParamId::from_index(0);
        assert_eq!(buffers.load(w, 31), Some(Number::Float(31.0)));
        assert_eq!(buffers.load(w, 32), None);
        assert!(!buffers.store(w, 0, Number::Float(1.0)));
        assert_eq!(buffers.load(ParamId::from_index(1), 0), None);
        assert_eq!(Buffer::stored(Format::I32, &7i32.to_le_bytes()), Some(Buffer::Int(vec![7])));
    }
}
