//! States that are carried from token to token and that no position indexes: of recurrent mixers.
//!
//! In: the name of a state and its axes. Out: the state as the last step left it, zero at the start of a sequence. Also
//! the short causal convolution that recurrent mixers start with, whose state is the last few tokens.
//! Such a state only goes forward: an engine knows it by its name and refuses to go back to an earlier position.
//!
//! ```text
//!  state   [sequence, …]      one for each sequence that may have tokens at a time
//!  before  […] or [t, …]      that of the sequence of a run, or of each token of a batch
//! ```
//!
//! Mixers are written over an axis of time, `over_time`: all tokens of a run, or of a batch a single token for each
//! sequence.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::session::names::carried;

use crate::layers::scope::Scope;
use crate::naming::tensors::BIAS;

pub mod delta;
pub mod short_conv;
pub mod state_space;

/// Applies `each` to tensors `[t, …]` and the axis of time. In a batch `t` runs over sequences, and time has one token.
#[track_caller]
pub(crate) fn over_time<const N: usize>(
    m: &Scope,
    xs: [&Tensor; N],
    each: impl FnOnce(&Dim, [&Tensor; N]) -> Tensor,
) -> Tensor {
    if !m.is_batch {
        return each(&m.t, xs);
    }
    let now = &m.g.dim("now", 1);
    let xs = xs.map(|x| x.split(&m.t, &[&m.t, now]));
    each(now, xs.each_ref()).merge(&[&m.t, now], &m.t)
}

/// A state of the sequences of a step.
pub(crate) struct Carried<'m> {
    state: Tensor,
    sequence: Dim,
    m: &'m Scope<'m>,
    /// Its value before this step.
    pub(crate) before: Tensor,
}

impl<'m> Carried<'m> {
    /// The state of this name.
    #[track_caller]
    pub(crate) fn new(m: &'m Scope, name: &str, dims: &[&Dim]) -> Self {
        let sequence = m.g.dim("sequence", m.config.cache.n_sequences);
        let state = m.g.state(&carried(name), Format::F32, &[&[&sequence], dims].concat());
        let is_later = m.g.integer(0).lt(&m.slot);
        let before = m.g.select(&is_later, &state.gather(&sequence, &m.sequence()), &m.g.constant(0.0));
        Self { state, sequence, m, before }
    }

    /// Writes the states of the sequences of this step.
    #[track_caller]
    pub(crate) fn write(&self, value: &Tensor) {
        let _ = self.state.write(&[(&self.sequence, &self.m.sequence())], value);
    }
}

/// A causal convolution of each channel of `x` `[t, c]` over the last `kernel` tokens, with the weights of this name;
/// `t` is time.
#[track_caller]
pub(crate) fn convolved(m: &Scope, name: &str, kernel: usize, [t, c]: [&Dim; 2], x: &Tensor) -> Tensor {
    let past = &m.g.dim("past", kernel - 1);
    let tap = &m.g.dim("tap", kernel);
    let weight = m.f32_weight(name, &[c, tap]);
    let state = Carried::new(m, "conv", &[past, c]);
    let all = m.g.concat(t, &[&state.before.rename(past, t), x]); // [t + kernel - 1, c]
    let taps = (0..kernel)
        .map(|i| all.slice(t, i, t.size.clone()) * weight.slice(tap, i, 1).merge(&[c, &tap.sized(1)], c));
    let y = taps.reduce(|a, b| a + b).unwrap_or_else(|| x.clone());
    state.write(&all.slice(t, t.size.clone(), kernel - 1).rename(t, past));
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
