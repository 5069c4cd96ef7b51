//! States that are carried from token to token and that no position indexes: of recurrent mixers.
//!
//! In: a sequence, the name of a state and its axes. Out: the state as the last step left it, zero at the start of a
//! sequence. Also the short causal convolution that recurrent mixers start with, whose state is the last few tokens.
//! Such a state only goes forward: a session knows it by its name and refuses to go back to an earlier position.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::session::carried;

use crate::layers::scope::{Scope, Sequence};
use crate::naming::tensors::BIAS;

/// A state of a sequence.
pub(crate) struct Carried {
    state: Tensor,
    /// Its value before this step.
    pub(crate) before: Tensor,
}

impl Carried {
    /// The state of this name.
    #[track_caller]
    pub(crate) fn new(m: &Scope, sequence: &Sequence, name: &str, dims: &[&Dim]) -> Self {
        let state = m.g.state(&sequence.state_name(&carried(name)), Format::F32, dims);
        let is_later = m.g.integer(0).lt(&m.g.symbolic(&sequence.start));
        let before = m.g.select(&is_later, &state, &m.g.constant(0.0));
        Self { state, before }
    }

    /// Writes the whole state, whose first axis is `axis`.
    #[track_caller]
    pub(crate) fn write(&self, axis: &Dim, value: &Tensor) {
        let all = &value.builder().dim("all", axis.size.clone());
        let _ = self.state.write(axis, 0, &value.rename(axis, all), all);
    }
}

/// A causal convolution of each channel of `x` `[t, c]` over the last `kernel` tokens, with the weights of this name.
#[track_caller]
pub(crate) fn convolved(
    m: &Scope,
    sequence: &Sequence,
    name: &str,
    kernel: usize,
    c: &Dim,
    x: &Tensor,
) -> Tensor {
    let (t, past) = (&sequence.t, kernel - 1);
    let tap = &m.g.dim("tap", kernel);
    let weight = m.f32_weight(name, &[c, tap]);
    let state = Carried::new(m, sequence, "conv", &[&t.sized(past), c]);
    let all = m.g.concat(t, &[&state.before, x]); // [t + kernel - 1, c]
    let taps = (0..kernel)
        .map(|i| all.slice(t, i, t.size.clone()) * weight.slice(tap, i, 1).merge(&[c, &tap.sized(1)], c));
    let y = taps.reduce(|a, b| a + b).unwrap_or_else(|| x.clone());
    state.write(&t.sized(past), &all.slice(t, t.size.clone(), past));
    if m.config.biased.contains(name) { y + m.f32_weight(&format!("{name}{BIAS}"), &[c]) } else { y }
}

/// How much is left of what was carried, for all tokens of a step at once.
pub(crate) struct Decay {
    /// Of the state before the step, at each token: `[t, …]`.
    pub(crate) at: Tensor,
    /// Of what token `u` wrote, at each token from `u` on; 0 before: `[t, u, …]`.
    pub(crate) between: Tensor,
    /// Of what each token wrote, after the step: `[t, …]`.
    pub(crate) after: Tensor,
    /// Of the state before the step, after it: `[…]`.
    pub(crate) whole: Tensor,
}

impl Decay {
    /// From the logarithm of each token's factor, `[t, …]`; `u` has the size of `t`.
    #[track_caller]
    pub(crate) fn new(m: &Scope, [t, u]: [&Dim; 2], log: &Tensor) -> Self {
        let g = &m.g;
        let is_up_to = &g.iota(u).le(&g.iota(t));
        let seen = g.select(is_up_to, &g.constant(1.0), &g.constant(0.0)); // [u, t]
        let left = log.rename(t, u).contract(&seen, [u]); // [t, …]
        let between = &left - left.rename(t, u);
        let between = g.select(is_up_to, &between, &g.constant(f32::NEG_INFINITY)).exp();
        let all = log.sum(t);
        Self { at: left.exp(), between, after: (&all - &left).exp(), whole: all.exp() }
    }
}
