//! The tensor types of GGML by number, as GGUF files name them.
//!
//! In: a number from a file. Out: the format of such a tensor, and the elements and bytes of a block; and the number of
//! a format, for writing.
//! The numbers of formats that kernels read are in the compiler's table of formats; here are the others, so that a file
//! with them can be inspected.

use fusebox_compiler::tensor::quant::Format;

use crate::weights::Stored;

/// One row of the table of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::weights) struct Type {
    pub(in crate::weights) stored: Stored,
    pub(in crate::weights) block_len: usize,
    pub(in crate::weights) block_bytes: usize,
}

/// All numbers of types are below this one.
const N_NUMBERS: u32 = 64;

/// The type of this number; nothing for a number that is not known.
pub(in crate::weights) fn of_number(number: u32) -> Option<Type> {
    if let Some(format) = Format::FIXED.into_iter().find(|format| format.ggml() == Some(number)) {
        let (block_len, block_bytes) = (format.block_len(), format.block_bytes());
        return Some(Type { stored: Stored::As(format), block_len, block_bytes });
    }
    let other = |name, block_len, block_bytes| Type { stored: Stored::Other(name), block_len, block_bytes };
    let row = match number {
        9 => other("q8_1", 32, 36),
        15 => other("q8_k", 256, 292),
        16 => other("iq2_xxs", 256, 66),
        17 => other("iq2_xs", 256, 74),
        18 => other("iq3_xxs", 256, 98),
        19 => other("iq1_s", 256, 50),
        21 => other("iq3_s", 256, 110),
        22 => other("iq2_s", 256, 82),
        24 => other("i8", 1, 1),
        25 => other("i16", 1, 2),
        27 => other("i64", 1, 8),
        28 => other("f64", 1, 8),
        29 => other("iq1_m", 256, 56),
        34 => other("tq1_0", 256, 54),
        35 => other("tq2_0", 256, 66),
        40 => other("nvfp4", 64, 36),
        _ => return None,
    };
    Some(row)
}

/// The number and the type of tensors that are stored so; nothing for what GGML has no number for.
pub(in crate::weights) fn of_stored(stored: Stored) -> Option<(u32, Type)> {
    (0..N_NUMBERS)
        .filter_map(|number| Some((number, of_number(number)?)))
        .find(|(_, row)| row.stored == stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_own_name() {
        let mut names: Vec<String> =
            (0..N_NUMBERS).filter_map(of_number).map(|row| row.stored.to_string()).collect();
        assert_eq!(names.len(), 33);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 33);
    }

    #[test]
    fn a_type_is_found_again_by_how_it_stores() {
        assert_eq!(of_stored(Stored::As(Format::Q6K)).map(|(number, _)| number), Some(14));
        assert_eq!(of_stored(Stored::As(Format::MXFP4)).map(|(number, _)| number), Some(39));
        assert_eq!(of_stored(Stored::Other("iq2_s")).map(|(number, _)| number), Some(22));
        assert_eq!(of_stored(Stored::As(Format::Int8 { group: 64 })), None);
    }

    #[test]
    fn removed_and_unknown_numbers_are_no_types() {
        for number in [4, 5, 31, 33, 38, 43, u32::MAX] {
            assert_eq!(of_number(number), None);
        }
        assert_eq!(of_number(14).map(|row| (row.block_len, row.block_bytes)), Some((256, 210)));
    }
}
