//! A hash that is the same in every process, on every machine and in every build.
//!
//! In: anything that implements `std::hash::Hash`. Out: 64 bits.
//! The standard library's hasher is seeded per process; this one must never be. Cache keys and the comparison of
//! blocks rest on it.

use std::hash::{Hash, Hasher};

/// Mixes eight bytes at a time by a rotation, an exclusive or and a product; integers count in little-endian order.
#[derive(Clone, Debug)]
pub struct StableHasher(u64);

const FACTOR: u64 = 0x517c_c1b7_2722_0a95;

impl StableHasher {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
}

impl Default for StableHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for StableHasher {
    fn finish(&self) -> u64 {
        // The product leaves the low bits weak.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(word) ^ (rest.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_i64(&mut self, value: i64) {
        self.mix(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_i64(value as i64);
    }
}

/// The stable hash of one value.
pub fn stable_hash(value: &impl Hash) -> u64 {
    let mut hasher = StableHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_never_changes() {
        assert_eq!(stable_hash(&(7u32, "fuse")), stable_hash(&(7u32, "fuse")));
        assert_ne!(stable_hash(&(7u32, "fuse")), stable_hash(&(8u32, "fuse")));
        // A literal, so that a change of the function is noticed: it invalidates every cached program.
        assert_eq!(stable_hash(&0u32), 0x098f_3af4_3ec0_e359);
    }
}
