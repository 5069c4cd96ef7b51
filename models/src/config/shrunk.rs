//! Blocks of the same structure with small sizes, for the reference evaluator.
//!
//! In: a block. Out: the same kinds and choices over few and narrow heads, experts and states.

use crate::config::attention::{Grouped, Latent, Window};
use crate::config::network::{Dense, Experts, Groups};
use crate::config::recurrent::{Beside, Delta, SpaceNorm, StateSpace};
use crate::config::{Block, Mixer, Network};

impl Block {
    pub(super) fn shrunk(&self) -> Self {
        let network = match self.network.clone() {
            Network::Dense(own) => Network::Dense(Dense { ff: 96, ..own }),
            Network::Sparse(own) => Network::Sparse(own.shrunk()),
            Network::Both(dense, own) => Network::Both(Dense { ff: 96, ..dense }, own.shrunk()),
            Network::None => Network::None,
        };
        Self { mixer: self.mixer.shrunk(), network, ..self.clone() }
    }
}

impl Experts {
    pub(super) fn shrunk(self) -> Self {
        let groups = self.groups.map(|groups| Groups { n_groups: 4, top_k: 2, ..groups });
        let shared_ff = 32 * self.shared_ff / self.ff;
        Self { n_routed: 8, top_k: 2, ff: 32, shared_ff, groups, ..self }
    }
}

impl Grouped {
    pub(super) fn shrunk(&self) -> Self {
        Self {
            n_heads: 4,
            n_kv: 2,
            head: 32,
            rotary_dim: self.rotary_dim * 32 / self.head,
            window: self.window.map(|_| Window::Sliding(5)),
            shares: None,
            ..self.clone()
        }
    }
}

impl StateSpace {
    /// Any step of time, a norm after the gate, no factors.
    pub fn new(n_heads: usize, head: usize, n_groups: usize, state: usize, kernel: usize) -> Self {
        let (norm, factors) = (SpaceNorm::AfterGate, [1.0; 5]);
        Self { n_heads, head, n_groups, state, kernel, least_step: 0.0, norm, factors }
    }

    pub(super) fn shrunk(&self) -> Self {
        Self { n_heads: 4, head: 32, n_groups: 1, state: 16, ..self.clone() }
    }
}

impl Mixer {
    pub(super) fn shrunk(&self) -> Self {
        match self {
            Self::Grouped(own) => Self::Grouped(own.shrunk()),
            Self::Beside(own) => {
                Self::Beside(Beside { heads: own.heads.shrunk(), space: own.space.shrunk(), ..own.clone() })
            }
            Self::Latent(own) => Self::Latent(Latent {
                n_heads: 2,
                q_lora: own.q_lora.map(|_| 96),
                kv_lora: 32,
                nope: 32,
                rope: 8,
                value: 64,
                ..own.clone()
            }),
            Self::Delta(own) => {
                Self::Delta(Delta { n_key: 2, n_value: 4, key: 16, value: 32, ..own.clone() })
            }
            Self::StateSpace(own) => Self::StateSpace(own.shrunk()),
            Self::ShortConv(_) | Self::None => self.clone(),
        }
    }
}
