//! Names of answers and calls, and seeds: unlike any other.
//!
//! In: nothing. Out: random letters and numbers, from the system's random keys for hash maps.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Keeps two names of one moment apart.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A random number.
pub(crate) fn seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// `n` letters and digits.
pub(crate) fn letters(n: usize) -> String {
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(n);
    while text.len() < n {
        let mut bits = seed();
        for _ in 0..10.min(n - text.len()) {
            text.push(char::from(ALPHABET[(bits % 62) as usize]));
            bits /= 62;
        }
    }
    text
}

/// A name with a prefix, such as `chatcmpl-…`.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}{}", letters(24))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_differ() {
        let names: HashSet<String> = (0..1000).map(|_| name("call_")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 29));
    }
}
