//! Writes arrays as `NumPy`'s `.npy` files, version 1.0.
//!
//! In: a shape, and numbers in row-major order. Out: the bytes of a file.

/// The magic bytes and version at the start of the file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// The header of a float32 array, padded to a multiple of 64 bytes.
pub(crate) fn head(shape: &[usize]) -> Vec<u8> {
    let sizes: Vec<String> = shape.iter().map(|size| format!("{size},")).collect();
    let sizes = sizes.join(" ");
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes}), }}");
    // A two-byte length precedes the text, and a newline ends it.
    let n_before = MAGIC.len() + 2;
    let n_all = (n_before + text.len() + 1).next_multiple_of(64);
    text += &" ".repeat(n_all - n_before - text.len() - 1);
    text.push('\n');
    [MAGIC, &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// The bytes of a whole file.
pub(crate) fn array(shape: &[usize], numbers: &[f32]) -> Vec<u8> {
    let mut bytes = head(shape);
    bytes.reserve(numbers.len() * 4);
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_padded_and_names_its_sizes() {
        for shape in [&[7][..], &[2, 3], &[100_000, 151_936]] {
            assert_eq!(head(shape).len() % 64, 0);
        }
        let text = String::from_utf8_lossy(&head(&[7])).into_owned();
        assert!(text.contains("{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }"), "{text}");
        assert_eq!(array(&[2], &[1.0, 2.0]).len(), 128 + 8);
    }
}
