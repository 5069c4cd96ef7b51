//! What all layers of one step share: the recorder, the sizes, and where in the text the step stands.
//!
//! In: a config and how many tokens a replay takes. Out: a [`Scope`] that layers take their axes and weights from.
//! The tokens take positions `P` to `P + T`; `P` is known only when the step runs, so one graph serves every position.

use fusebox_compiler::graph::build::{Builder, Dim, Tensor};
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::{Sym, Symbol};

use crate::config::Config;
use crate::naming::tensors::BIAS;

/// The surroundings of a layer.
pub struct Scope<'a> {
    /// Records the graph.
    pub g: Builder,
    /// The sizes.
    pub config: &'a Config,
    /// The tokens of this replay.
    pub t: Dim,
    /// The positions seen so far, this replay's included.
    pub s: Dim,
    /// The residual stream.
    pub d: Dim,
    /// The position of the first token, `P`.
    pub at: Sym,
}

impl<'a> Scope<'a> {
    /// The scope of a replay of so many tokens.
    pub fn new(config: &'a Config, tokens: &Sym) -> Self {
        let g = Builder::new();
        let at = start(config.context as i64, tokens);
        let t = g.dim("t", tokens);
        let s = g.dim("s", at.clone() + tokens);
        let d = g.dim("d", config.hidden);
        Self { g, config, t, s, d, at }
    }

    /// The position of each token of this replay.
    #[track_caller]
    pub fn positions(&self) -> Tensor {
        self.g.iota(&self.t) + self.g.symbolic(&self.at) // [t]
    }

    /// `W x`, and `+ b` where the model has a bias of this name.
    #[track_caller]
    pub fn linear<const N: usize>(&self, x: &Tensor, name: &str, rows: &[&Dim], over: [&Dim; N]) -> Tensor {
        let y = x.contract(&self.matrix(name, &[rows, &over].concat()), over);
        if self.config.biased.contains(name) { y + self.precise(&format!("{name}{BIAS}"), rows) } else { y }
    }

    /// A stored matrix; its rows run along the last axes.
    #[track_caller]
    pub fn matrix(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, self.config.formats.of_matrix(&self.g.qualified(name)), dims)
    }

    /// A small tensor that is kept in single precision: a norm's weight, a bias, a router.
    #[track_caller]
    pub fn precise(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, Format::F32, dims)
    }
}

/// The size of an axis of the model itself.
pub(crate) fn fixed(dim: &Dim) -> usize {
    let size = dim.size.as_const().expect("only tokens and positions vary in number");
    size as usize
}

/// `P`, with room for the tokens behind it. Estimates take the caches as a quarter full.
fn start(context: i64, tokens: &Sym) -> Sym {
    let name = Label::new("P").expect("one letter fits");
    Symbol::new(name, 0, context - tokens.most(), context / 4).into()
}
