//! What a replay leaves behind for those after it.
//!
//! In: a value for each token of this replay. Out: the values of all positions seen so far, this replay's included.
//! The state holds as many positions as the config says; what lies behind the last token is never read.
//! Read next: `attention.rs` caches keys and values, `latent.rs` what both are made of.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::quant::Format;

use crate::layers::scope::{Scope, Text};

/// Writes `value` to a text's state of this name from position `P`, and reads positions `0..P + T`.
///
/// `axes` are those of the result: the value's, with `s` for `t`.
#[track_caller]
pub(crate) fn remember(m: &Scope, text: &Text, name: &str, axes: &[&Dim], value: &Tensor) -> Tensor {
    let Text { t, s, at, .. } = text;
    let capacity = s.sized(m.config.context);
    let axes: Vec<&Dim> = axes.iter().map(|dim| if *dim == s { &capacity } else { *dim }).collect();
    let state = m.g.state(&text.state(name), m.config.cache, &axes);
    let written = state.write(s, at, &value.cast(m.config.cache.dtype()), t);
    let read = written.slice(s, 0, &s.size);
    if m.config.cache == Format::F32 { read } else { read.widened() }
}
