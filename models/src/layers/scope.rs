//! The context of a layer: the graph builder, the config, and the sequences of the step with their positions.
//!
//! In: a config and the number of tokens per step. Out: a [`Scope`] that layers take axes and weights from.
//! The tokens take positions `P` to `P + T`; `P` is a symbol, known when the step runs, so one graph serves every
//! position. A decode step may also take a batch, one token per sequence: sequence `i` is at position `Pi` and has
//! states of its own.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use fusebox_compiler::graph::build::{Builder, Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::{Sym, Symbol};

use fusebox_runtime::session::{POSITION, SequenceId, position_of, state_of};

use crate::config::Config;
use crate::naming::tensors::BIAS;

/// Cached keys and values by block and sequence.
type Kept = BTreeMap<(usize, Option<SequenceId>), [Tensor; 2]>;

/// What the layers of one step share.
pub(crate) struct Scope<'a> {
    /// The graph builder.
    pub(crate) g: Builder,
    /// The hyper-parameters.
    pub(crate) config: &'a Config,
    /// The tokens of this step, of all sequences.
    pub(crate) t: Dim,
    /// The residual stream.
    pub(crate) d: Dim,
    sequences: Vec<Sequence>,
    /// The block that is written at the moment.
    layer: Cell<usize>,
    /// The token ids, once a layer has read them.
    tokens: OnceCell<Tensor>,
    /// The cached keys and values of each block and sequence, which later blocks may share.
    kept: RefCell<Kept>,
}

/// One sequence of a step.
pub(crate) struct Sequence {
    /// Its tokens in this step.
    pub(crate) t: Dim,
    /// Its positions so far, this step's included.
    pub(crate) s: Dim,
    /// The position of its first token in this step.
    pub(crate) start: Sym,
    /// Its number in the batch; `None` where the step has one sequence.
    id: Option<SequenceId>,
}

impl<'a> Scope<'a> {
    /// The scope of a step of `tokens` tokens of one sequence.
    pub(crate) fn new(config: &'a Config, tokens: &Sym) -> Self {
        let g = Builder::new();
        let sequences = vec![Sequence::new(&g, config, tokens, None)];
        Self::with(config, g.dim("t", tokens), g, sequences)
    }

    /// The scope of a decode step of a batch, one token per sequence.
    pub(crate) fn of_batch(config: &'a Config, batch: usize) -> Self {
        let g = Builder::new();
        let sequences = (0..batch)
            .map(|number| Sequence::new(&g, config, &Sym::from(1), Some(SequenceId(number))))
            .collect();
        Self::with(config, g.dim("t", batch), g, sequences)
    }

    fn with(config: &'a Config, t: Dim, g: Builder, sequences: Vec<Sequence>) -> Self {
        let d = g.dim("d", config.hidden);
        let (layer, tokens, kept) = (Cell::new(0), OnceCell::new(), RefCell::default());
        Self { g, config, t, d, sequences, layer, tokens, kept }
    }

    /// The token ids of this step, `[t]`.
    #[track_caller]
    pub(crate) fn tokens(&self) -> Tensor {
        self.tokens.get_or_init(|| self.g.input("tokens", DType::I32, &[&self.t])).clone()
    }

    /// Says that a block begins.
    pub(crate) fn enter(&self, layer: usize) {
        self.layer.set(layer);
    }

    /// Keeps the cached keys and values of this block for later ones.
    pub(crate) fn keep(&self, sequence: &Sequence, [k, v]: [&Tensor; 2]) {
        self.kept.borrow_mut().insert((self.layer.get(), sequence.id), [k.clone(), v.clone()]);
    }

    /// The cached keys and values of an earlier block.
    pub(crate) fn cached(&self, sequence: &Sequence, layer: usize) -> (Tensor, Tensor) {
        let [k, v] = self.kept.borrow()[&(layer, sequence.id)].clone();
        (k, v)
    }

    /// The position of each token of this step.
    #[track_caller]
    pub(crate) fn positions(&self) -> Tensor {
        let each: Vec<Tensor> = self.sequences.iter().map(|sequence| sequence.positions(&self.g)).collect();
        self.concat(each) // [t]
    }

    /// Applies `each` to the tokens of every sequence in `xs`, `[t, …]`, separately: used where sequences must not see
    /// each other.
    #[track_caller]
    pub(crate) fn per_sequence<const N: usize>(
        &self,
        xs: [&Tensor; N],
        each: impl Fn(&Sequence, [&Tensor; N]) -> Tensor,
    ) -> Tensor {
        let one = |sequence: &Sequence| match sequence.id {
            None => each(sequence, xs),
            Some(id) => {
                let own = xs.map(|x| x.slice(&self.t, id.0, 1));
                each(sequence, own.each_ref())
            }
        };
        self.concat(self.sequences.iter().map(one).collect())
    }

    /// Concatenates the tokens of all sequences.
    #[track_caller]
    fn concat(&self, mut each: Vec<Tensor>) -> Tensor {
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
        if self.config.biased.contains(name) {
            y + self.f32_weight(&format!("{name}{BIAS}"), rows)
        } else {
            y
        }
    }

    /// A weight matrix; its rows run along the last axes.
    #[track_caller]
    pub(crate) fn matrix(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, self.config.formats.of_matrix(&self.g.qualified(name)), dims)
    }

    /// A small weight kept in single precision: of a norm, a bias, or a router.
    #[track_caller]
    pub(crate) fn f32_weight(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, Format::F32, dims)
    }
}

impl Sequence {
    fn new(g: &Builder, config: &Config, tokens: &Sym, id: Option<SequenceId>) -> Self {
        let name = id.map_or_else(|| POSITION.to_owned(), position_of);
        let start: Sym = position_symbol(&name, config.context as i64, tokens).into();
        Self { t: g.dim("t", tokens), s: g.dim("s", start.clone() + tokens), start, id }
    }

    /// The position of each of its tokens.
    #[track_caller]
    pub(crate) fn positions(&self, g: &Builder) -> Tensor {
        g.iota(&self.t) + g.symbolic(&self.start) // [t]
    }

    /// The name of its state, given the name without a batch.
    pub(crate) fn state_name(&self, name: &str) -> String {
        self.id.map_or_else(|| name.to_owned(), |id| state_of(name, id))
    }
}

/// The size of an axis that is no number of tokens or positions.
pub(crate) fn static_size(dim: &Dim) -> usize {
    let size = dim.size.as_const().expect("only numbers of tokens and positions are symbolic");
    size as usize
}

/// A position symbol, with room for `tokens` after it. Cost estimates take the KV cache as a quarter full.
fn position_symbol(name: &str, context: i64, tokens: &Sym) -> Symbol {
    let name = Label::new(name).expect("a letter and a number fit");
    Symbol::new(name, 0, context - tokens.most(), context / 4)
}
