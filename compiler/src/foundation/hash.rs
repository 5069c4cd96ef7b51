//! A hash that is the same in every process, on every machine and in every build.
//!
//! In: anything that implements `std::hash::Hash`. Out: 64 bits.
//! The standard library's hasher is seeded per process; this one must never be. Cache keys and the comparison of
//! blocks rest on it.

use std::hash::{Hash, Hasher};

/// FNV-1a over the bytes that `Hash` feeds it, integers in little-endian order.
#[derive(Clone, Debug)]
pub struct StableHasher(u64);

impl Default for StableHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for StableHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write(&value.to_le_bytes());
    }

    fn write_u64(&mut self, value: u64) {
        self.write(&value.to_le_bytes());
    }

    fn write_i64(&mut self, value: i64) {
        self.write(&value.to_le_bytes());
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
        assert_eq!(stable_hash(&0u32), 0x4d25_767f_9dce_13f5);
    }
}
