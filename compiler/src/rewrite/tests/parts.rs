//! The parts of models, written as plain mathematics, at any size.
//!
//! They are what `models/layers` writes, cut down to what rules look for. Nothing here helps the rules.

use crate::graph::Graph;
use crate::graph::build::{Builder, Dim, Tensor};
use crate::tensor::dtype::DType::{F32, I32};
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::sym::{Sym, Symbol};

/// The sizes of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) tokens: i64,
    pub(super) cached: i64,
    pub(super) hidden: i64,
    pub(super) heads: i64,
    pub(super) nope: i64,
    pub(super) rope: i64,
    pub(super) latent: i64,
    pub(super) inner: i64,
    pub(super) experts: i64,
    pub(super) used: i64,
}

/// DeepSeek-V2-Lite with a cache of 4,096 positions.
pub(super) const REAL: Sizes = Sizes {
    tokens: 1,
    cached: 4096,
    hidden: 2048,
    heads: 16,
    nope: 128,
    rope: 64,
    latent: 512,
    inner: 1408,
    experts: 64,
    used: 6,
};

/// The same, small enough to be evaluated slowly.
pub(super) const SMALL: Sizes = Sizes {
    tokens: 2,
    cached: 6,
    hidden: 8,
    heads: 2,
    nope: 4,
    rope: 2,
    latent: 6,
    inner: 3,
    experts: 5,
    used: 2,
};

/// A block under construction.
pub(super) struct Block {
    pub(super) g: Builder,
    pub(super) sizes: Sizes,
    pub(super) t: Dim,
    pub(super) s: Dim,
    pub(super) d: Dim,
    at: Sym,
}

impl Block {
    pub(super) fn new(sizes: Sizes) -> Self {
        let g = Builder::new();
        let last = sizes.cached - sizes.tokens;
        let at = Sym::from(Symbol::new(Label::new("P").unwrap(), 0, last, last));
        let (t, d) = (g.dim("t", sizes.tokens), g.dim("d", sizes.hidden));
        let s = g.dim("s", at.clone() + sizes.tokens);
        Self { g, sizes, t, s, d, at }
    }

    pub(super) fn x(&self) -> Tensor {
        self.g.input("x", F32, &[&self.t, &self.d])
    }

    pub(super) fn w(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, Format::F32, dims)
    }

    pub(super) fn finish(&self, y: &Tensor) -> Graph {
        self.g.finish(&[("y", y)]).unwrap()
    }

    pub(super) fn norm(&self, name: &str, x: &Tensor, over: &Dim) -> Tensor {
        let mean = (x * x).sum(over) / over.size.near() as f32;
        x * (mean + 1e-5).rsqrt() * self.w(name, &[over])
    }

    /// The cache of `value`, this replay's included.
    fn remember(&self, name: &str, axes: &[&Dim], value: &Tensor) -> Tensor {
        let capacity = self.s.sized(self.sizes.cached);
        let axes: Vec<&Dim> = axes.iter().map(|dim| if **dim == self.s { &capacity } else { *dim }).collect();
        let state = self.g.state(name, Format::F32, &axes);
        state.write_run(&self.s, &self.at, value, &self.t).slice(&self.s, 0, &self.s.size)
    }

    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, over: &Dim) -> Tensor {
        let positions = self.g.iota(&self.t) + self.g.symbolic(&self.at);
        let seen = self.g.iota(&self.s).le(&positions);
        let mask = self.g.select(&seen, &self.g.constant(0.0), &self.g.constant(f32::NEG_INFINITY));
        softmax(&(q.contract(k, [over]) * 0.25 + mask), &self.s).contract(v, [&self.s])
    }

    /// Attention with a key and a value for each head.
    pub(super) fn attention(&self, x: &Tensor) -> Tensor {
        let (h, e) = (&self.g.dim("h", self.sizes.heads), &self.g.dim("e", self.sizes.nope));
        let d = &self.d;
        let project = |name| x.contract(&self.w(name, &[h, e, d]), [d]);
        let k = self.remember("k", &[h, &self.s, e], &project("wk"));
        let v = self.remember("v", &[h, &self.s, e], &project("wv"));
        self.attend(&project("wq"), &k, &v, e).contract(&self.w("wo", &[d, h, e]), [h, e])
    }

    /// Attention over cached latents, keys and values expanded for every position.
    pub(super) fn latent(&self, x: &Tensor) -> Tensor {
        let (h, c, e) = (&self.g.dim("h", self.sizes.heads), &self.latent_axis(), &self.head());
        self.latent_with(x, |low| {
            let wk = self.w("wk_b", &[h, c, e]);
            let wv = self.w("wv_b", &[h, e, c]);
            [low.contract(&wk, [c]), low.contract(&wv, [c])]
        })
    }

    /// The same with one weight for keys and values.
    pub(super) fn latent_combined(&self, x: &Tensor) -> Tensor {
        let (h, c, e) = (&self.g.dim("h", self.sizes.heads), &self.latent_axis(), &self.head());
        let nope = self.sizes.nope;
        self.latent_with(x, |low| {
            let both = low.contract(&self.w("wkv_b", &[h, &e.sized(2 * nope), c]), [c]);
            [both.slice(e, 0, nope), both.slice(e, nope, nope)]
        })
    }

    fn latent_axis(&self) -> Dim {
        self.g.dim("c", self.sizes.latent)
    }

    fn head(&self) -> Dim {
        self.g.dim("e", self.sizes.nope)
    }

    fn latent_with(&self, x: &Tensor, expand: impl Fn(&Tensor) -> [Tensor; 2]) -> Tensor {
        let Sizes { heads, nope, rope, latent, .. } = self.sizes;
        let (h, c, value) = (&self.g.dim("h", heads), &self.latent_axis(), &self.head());
        let (d, both, e) = (&self.d, &c.sized(latent + rope), &value.sized(nope + rope));
        let q = x.contract(&self.w("wq", &[h, e, d]), [d]);
        let q = self.g.concat(e, &[&q.slice(e, 0, nope), &q.slice(e, nope, rope).sin()]);
        let entry = x.contract(&self.w("wkv_a", &[both, d]), [d]);
        let u = self.remember("latent", &[&self.s, both], &entry);
        let (low, shared) = (u.slice(c, 0, latent), u.slice(c, latent, rope).rename(c, e));
        let [k, v] = expand(&low);
        let k = self.g.concat(e, &[&k, &shared.expand(h)]);
        self.attend(&q, &k, &v, e).contract(&self.w("wo", &[d, h, value]), [h, value])
    }

    /// A sum over all experts, with weights that are zero for those not selected.
    pub(super) fn experts(&self, x: &Tensor) -> Tensor {
        let (expert, k) = (&self.g.dim("x", self.sizes.experts), &self.g.dim("k", self.sizes.used));
        let (d, f) = (&self.d, &self.g.dim("f", self.sizes.inner));
        let probs = softmax(&x.contract(&self.w("router", &[expert, d]), [d]), expert);
        let selected = probs.top_k(expert, k);
        let weight = probs.gather(expert, &selected);
        let weight = &weight / weight.sum(k) * 1.5;
        let routing = (selected.equals(&self.g.iota(expert)).cast(F32) * weight).sum(k);
        let (gate, up) = (self.w("gate", &[expert, f, d]), self.w("up", &[expert, f, d]));
        let each = x.contract(&gate, [d]).sin() * x.contract(&up, [d]);
        routing.contract(&each.contract(&self.w("down", &[expert, d, f]), [f]), [expert])
    }

    /// A row of each token's own of a table.
    pub(super) fn embedding(&self) -> Tensor {
        let v = &self.g.dim("v", 9);
        let tokens = self.g.input("tokens", I32, &[&self.t]);
        self.g.weight("embedding", Format::F32, &[v, &self.d]).gather(v, &tokens)
    }
}

pub(super) fn softmax(x: &Tensor, over: &Dim) -> Tensor {
    let e = (x - x.max(over)).exp();
    &e / e.sum(over)
}
