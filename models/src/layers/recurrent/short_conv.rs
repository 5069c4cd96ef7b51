//! A gated short convolution (LFM2): each channel sees the last few tokens, between two gates.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! `W_out (C · conv(B · x))`, where `B`, `C` and `x` are projections of the activations.

use fusebox_compiler::graph::build::Tensor;

use crate::config::recurrent::ShortConv;
use crate::layers::recurrent::{convolved, over_time};
use crate::layers::scope::Scope;

/// The whole mixer.
pub fn short_conv(m: &Scope, sizes: &ShortConv, x: &Tensor) -> Tensor {
    let (d, part, c) = (&m.d, &m.g.dim("part", 3), &m.g.dim("c", m.config.hidden));
    let all = m.linear(x, "shortconv.in_proj", &[part, c], [d]); // [t, part, c]
    let one = |at| all.slice(part, at, 1).merge(&[&part.sized(1), c], c);
    let (before, after, x) = (one(0), one(1), one(2)); // [t, c]
    let y = over_time(m, [&(before * x)], |t, [x]| convolved(m, "shortconv.conv", sizes.kernel, [t, c], x));
    m.linear(&(after * y), "shortconv.out_proj", &[d], [c])
}
