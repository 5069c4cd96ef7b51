//! What all layers of one step share: the recorder, the sizes, and where in its text the step stands.
//!
//! In: a config and how many tokens a replay takes. Out: a [`Scope`] that layers take their axes and weights from.
//! The tokens take positions `P` to `P + T`; `P` is known only when the step runs, so one graph serves every position.
//! A step may also go on with several texts, by a token each: text `i` stands at `Pi`, and has states of its own.

use fusebox_compiler::graph::build::{Builder, Dim, Tensor};
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::{Sym, Symbol};

use fusebox_runtime::session::{POSITION, position_of, state_of};

use crate::config::Config;
use crate::naming::tensors::BIAS;

/// The surroundings of a layer.
pub(crate) struct Scope<'a> {
    /// Records the graph.
    pub(crate) g: Builder,
    /// The sizes.
    pub(crate) config: &'a Config,
    /// The tokens of this replay, of all texts.
    pub(crate) t: Dim,
    /// The residual stream.
    pub(crate) d: Dim,
    texts: Vec<Text>,
}

/// A text that a step goes on with.
pub(crate) struct Text {
    /// Its tokens of this replay.
    pub(crate) t: Dim,
    /// The positions seen so far, this replay's included.
    pub(crate) s: Dim,
    /// The position of its first token of this replay.
    pub(crate) at: Sym,
    /// Which of several it is.
    number: Option<usize>,
}

impl<'a> Scope<'a> {
    /// The scope of a replay of so many tokens of one text.
    pub(crate) fn new(config: &'a Config, tokens: &Sym) -> Self {
        let g = Builder::new();
        let texts = vec![Text::new(&g, config, tokens, None)];
        Self { t: g.dim("t", tokens), d: g.dim("d", config.hidden), g, config, texts }
    }

    /// The scope of a replay of one token of each of so many texts.
    pub(crate) fn of_texts(config: &'a Config, n_texts: usize) -> Self {
        let g = Builder::new();
        let texts = (0..n_texts).map(|number| Text::new(&g, config, &Sym::from(1), Some(number))).collect();
        Self { t: g.dim("t", n_texts), d: g.dim("d", config.hidden), g, config, texts }
    }

    /// The position of each token of this replay.
    #[track_caller]
    pub(crate) fn positions(&self) -> Tensor {
        let each: Vec<Tensor> = self.texts.iter().map(|text| text.positions(&self.g)).collect();
        self.together(each) // [t]
    }

    /// What `each` makes of the tokens of every text in `xs`, `[t, …]`: what one text does not see of another.
    #[track_caller]
    pub(crate) fn each_text<const N: usize>(
        &self,
        xs: [&Tensor; N],
        each: impl Fn(&Text, [&Tensor; N]) -> Tensor,
    ) -> Tensor {
        let one = |text: &Text| match text.number {
            None => each(text, xs),
            Some(number) => {
                let own = xs.map(|x| x.slice(&self.t, number, 1));
                each(text, own.each_ref())
            }
        };
        self.together(self.texts.iter().map(one).collect())
    }

    /// The tokens of all texts.
    #[track_caller]
    fn together(&self, mut each: Vec<Tensor>) -> Tensor {
        match each.len() {
            1 => each.remove(0),
            _ => self.g.concat(&self.t, &each.iter().collect::<Vec<_>>()),
        }
    }

    /// `W x`, and `+ b` where the model has a bias of this name.
    #[track_caller]
    pub(crate) fn linear<const N: usize>(
        &self,
        x: &Tensor,
        name: &str,
        rows: &[&Dim],
        over: [&Dim; N],
    ) -> Tensor {
        let y = x.contract(&self.matrix(name, &[rows, &over].concat()), over);
        if self.config.biased.contains(name) { y + self.precise(&format!("{name}{BIAS}"), rows) } else { y }
    }

    /// A stored matrix; its rows run along the last axes.
    #[track_caller]
    pub(crate) fn matrix(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, self.config.formats.of_matrix(&self.g.qualified(name)), dims)
    }

    /// A small tensor that is kept in single precision: a norm's weight, a bias, a router.
    #[track_caller]
    pub(crate) fn precise(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, Format::F32, dims)
    }
}

impl Text {
    fn new(g: &Builder, config: &Config, tokens: &Sym, number: Option<usize>) -> Self {
        let name = number.map_or_else(|| POSITION.to_owned(), position_of);
        let at: Sym = start(&name, config.context as i64, tokens).into();
        Self { t: g.dim("t", tokens), s: g.dim("s", at.clone() + tokens), at, number }
    }

    /// The position of each of its tokens.
    #[track_caller]
    pub(crate) fn positions(&self, g: &Builder) -> Tensor {
        g.iota(&self.t) + g.symbolic(&self.at) // [t]
    }

    /// The name of its state of this name.
    pub(crate) fn state(&self, name: &str) -> String {
        self.number.map_or_else(|| name.to_owned(), |number| state_of(name, number))
    }
}

/// The size of an axis of the model itself.
pub(crate) fn fixed(dim: &Dim) -> usize {
    let size = dim.size.as_const().expect("only tokens and positions vary in number");
    size as usize
}

/// A position, with room for the tokens behind it. Estimates take the caches as a quarter full.
fn start(name: &str, context: i64, tokens: &Sym) -> Symbol {
    let name = Label::new(name).expect("a letter and a number fit");
    Symbol::new(name, 0, context - tokens.most(), context / 4)
}
