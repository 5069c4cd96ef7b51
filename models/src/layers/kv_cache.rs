//! The KV cache: a state that lives from one step to the next.
//!
//! In: a value for each token of this step. Out: the values of all positions so far, this step's included.
//! The capacity is the config's context; positions after the last token are never read.
//! Read next: `attention.rs` caches keys and values, `latent.rs` the latents that both are made of.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::quant::Format;

use crate::layers::scope::{Scope, Sequence};

/// Appends `value` to a sequence's state of this name at position `P`, and reads positions `0..P + T`.
///
/// `axes` are those of the result: the value's, with `s` for `t`.
#[track_caller]
pub(crate) fn append(m: &Scope, sequence: &Sequence, name: &str, axes: &[&Dim], value: &Tensor) -> Tensor {
    let Sequence { t, s, start, .. } = sequence;
    let capacity = s.sized(m.config.context);
    let axes: Vec<&Dim> = axes.iter().map(|dim| if *dim == s { &capacity } else { *dim }).collect();
    let state = m.g.state(&sequence.state_name(name), m.config.cache, &axes);
    let written = state.write(s, start, &value.cast(m.config.cache.dtype()), t);
    let read = written.slice(s, 0, &s.size);
    if m.config.cache == Format::F32 { read } else { read.widened() }
}
