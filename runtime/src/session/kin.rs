//! What sequences have in common that may share pages.
//!
//! In: a salt, and factors on what adapters add. Out: a [`Kin`], by which a prefix cache tells them apart: what a page
//! holds depends on the adapters that it was computed with.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Sequences of the same kin share the pages of equal beginnings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kin {
    salt: u64,
    /// One for each rank; none where all are 0.
    scales: Arc<[f32]>,
}

impl Kin {
    /// Sequences of a salt, with these factors on each rank of the adapters that they choose from.
    pub fn new(salt: u64, scales: &Arc<[f32]>) -> Self {
        let scales =
            if scales.iter().all(|scale| *scale == 0.0) { Arc::default() } else { Arc::clone(scales) };
        Self { salt, scales }
    }

    /// The factors; none where all are 0.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// Sequences of a salt without adapters.
impl From<u64> for Kin {
    fn from(salt: u64) -> Self {
        Self { salt, scales: Arc::default() }
    }
}

impl Hash for Kin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.salt.hash(state);
        self.scales.iter().for_each(|scale| scale.to_bits().hash(state));
    }
}
