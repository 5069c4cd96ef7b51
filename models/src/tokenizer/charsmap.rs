//! The compiled table of a `SentencePiece` normaliser (`precompiled_charsmap`).
//!
//! In: its bytes. Out: the normaliser, and the largest factor by which it lengthens a text; nothing where the table is
//! invalid. The library that runs it follows offsets without looking, so all of them are followed here first.
//!
//! ```text
//!  u32 n   n bytes: a trie as a double array of u32   the rest: texts that end in 0, at the values of the trie
//! ```

use tokenizers::normalizers::precompiled::Precompiled;

/// The bits of a unit of the trie: a label of a byte, which a value has not.
const LABEL: u32 = 1 << 31 | 0xff;
/// Whether a value follows.
const HAS_VALUE: u32 = 1 << 8;
/// Whether an offset is a multiple of 256.
const IS_FAR: u32 = 1 << 9;

/// The normaliser of a table.
pub(super) fn normalizer(bytes: &[u8]) -> Option<(Precompiled, usize)> {
    let growth = growth(bytes)?;
    Some((Precompiled::from(bytes).ok()?, growth))
}

/// Follows all paths of a table.
fn growth(bytes: &[u8]) -> Option<usize> {
    let (n_bytes, rest) = bytes.split_first_chunk::<4>()?;
    let n_units = u32::from_le_bytes(*n_bytes) as usize / 4;
    let units: Vec<u32> =
        rest.get(..n_units * 4)?.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
    let texts = std::str::from_utf8(&rest[n_units * 4..]).ok()?;
    let children = |node: usize, unit: u32| node ^ offset(unit);
    let (mut is_seen, mut growth) = (vec![false; n_units], 1);
    let mut next = vec![(children(0, *units.first()?), 1)];
    while let Some((base, depth)) = next.pop() {
        for byte in 1..=0xff {
            let node = base ^ byte;
            let unit = *units.get(node)?;
            if (unit & LABEL) as usize != byte || is_seen[node] {
                continue;
            }
            is_seen[node] = true;
            let own = children(node, unit);
            if unit & HAS_VALUE != 0 {
                let value = units.get(own)? & !(1 << 31);
                let text = texts.get(value as usize..)?;
                let n_bytes = text.bytes().position(|byte| byte == 0).unwrap_or(text.len());
                growth = growth.max(n_bytes.div_ceil(depth));
            }
            next.push((own, depth + 1));
        }
    }
    Some(growth)
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) as usize) << if unit & IS_FAR == 0 { 0 } else { 8 }
}

/// The bytes of a base64 text.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut n_bits) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(digit(byte)?);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
            bits &= (1 << n_bits) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that makes `a` of `b`: the root's children start at 256, and the value is behind the child.
    fn table(value: u32) -> Vec<u8> {
        let mut units = vec![0_u32; 768];
        units[0] = 256 << 10;
        let node = 256 ^ usize::from(b'b');
        units[node] = u32::from(b'b') | HAS_VALUE | ((node ^ 512) as u32) << 10;
        units[512] = 1 << 31 | value;
        let units = units.into_iter().flat_map(u32::to_le_bytes);
        [3072_u32.to_le_bytes().to_vec(), units.collect(), b"x\0aaa\0".to_vec()].concat()
    }

    #[test]
    fn a_table_replaces_what_it_has() {
        let (normalizer, growth) = normalizer(&table(2)).unwrap();
        assert_eq!((normalizer.normalize_string("abc"), growth), ("aaaac".to_owned(), 3));
    }

    #[test]
    fn a_table_that_points_outside_is_none() {
        let good = table(2);
        assert!(normalizer(&table(7)).is_none() && normalizer(&[]).is_none());
        for len in [3, 4, 100, good.len() - 8] {
            assert!(normalizer(&good[..len]).is_none(), "{len}");
        }
        // Damaged anywhere, it is refused or harmless.
        for at in (0..good.len()).step_by(3) {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            if let Some((found, _)) = normalizer(&bad) {
                for first in 1..=255_u8 {
                    found.normalize_string(&char::from(first).to_string());
                }
                found.normalize_string("abcb");
            }
        }
    }

    #[test]
    fn base64_is_read() {
        assert_eq!(from_base64("aGVsbG8=").unwrap(), b"hello");
        assert_eq!(from_base64("aGVsbG9v").unwrap(), b"helloo");
        assert!(from_base64("a b").is_none());
    }
}
