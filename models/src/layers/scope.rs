//! The context of a layer: the graph builder, the config, and the tokens of the step with their places.
//!
//! In: a config and the form of a step. Out: a [`Scope`] that layers take axes and weights from.
//! One graph serves every position: where tokens are is an input. Four things that are often the same number are kept
//! apart:
//!
//! | | of a token | input |
//! |---|---|---|
//! | position | what RoPE sees | `positions` `[t]` |
//! | slot | what the causal mask sees: how many tokens of its sequence are kept before it | `slot` |
//! | place | where its rows lie in the KV cache | `page` and `row`, `[t]`; `window_page` in blocks with a window |
//! | sequence | where its sequence's recurrent states lie | `sequence` |
//!
//! What a sequence adds of adapters that it chooses from is an input as well.
//! The page table holds the pages of each sequence in the order of slots, and so does that of window pages.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use fusebox_compiler::graph::build::{Builder, Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::{Sym, Symbol};
use fusebox_runtime::session::engine::WindowPages;
use fusebox_runtime::session::names::{PAGE, PAGES, ROWS, WINDOW_PAGES, inputs};

use crate::config::Config;
use crate::layers::low_rank::adapted;
use crate::layers::step::Step;
use crate::naming::tensors::BIAS;

/// What the layers of one step share.
pub struct Scope<'a> {
    /// The graph builder.
    pub g: Builder,
    /// The hyper-parameters.
    pub config: &'a Config,
    /// Whether every token is of another sequence.
    pub is_batch: bool,
    /// Whether every token gets logits.
    pub is_scored: bool,
    /// The tokens of this step.
    pub t: Dim,
    /// The residual stream.
    pub d: Dim,
    /// The pages of a sequence.
    pub p: Dim,
    /// The rows of a page.
    pub r: Dim,
    /// The position of each token, `[t]`.
    pub positions: Tensor,
    /// The slot of the first token, `[]`, or of each token of a batch, `[t]`.
    pub slot: Tensor,
    /// The page of the KV cache that each token goes to, `[t]`.
    pub page: Tensor,
    /// The row in that page, `[t]`.
    pub row: Tensor,
    /// The pages of the sequence, `[p]`, or of each token's own sequence, `[t, p]`.
    pub table: Tensor,
    /// The token ids, once a layer has read them.
    tokens: OnceCell<Tensor>,
    /// The window page of each token, `[t]`, and the table of these, once a layer has read them.
    windows: OnceCell<[Tensor; 2]>,
    /// The kinds of tokens, once a layer has read them.
    kinds: OnceCell<Tensor>,
    /// The number of the sequence, once a layer has read it.
    sequence: OnceCell<Tensor>,
    /// The ranks of adapters that a sequence chooses from, and its factors on each, once a layer has read them.
    choices: OnceCell<(Dim, Tensor)>,
    /// The block that is written at the moment.
    layer: Cell<usize>,
    /// The cached keys and values of each block, which later blocks may share.
    kept: RefCell<BTreeMap<usize, [Tensor; 2]>>,
    /// The squares of the inputs of projections, summed over tokens, where they are wanted.
    observed: Option<RefCell<Vec<(String, Tensor)>>>,
    /// How much attention the rows of each block get, where that is wanted of tokens that are cached already.
    attention: Option<RefCell<Vec<(String, Tensor)>>>,
}

/// The pages of a block's KV cache.
pub struct Pages {
    /// Those of all sequences.
    pub page: Dim,
    /// The page that each token goes to, `[t]`.
    pub own: Tensor,
    /// The pages of the sequence, `[p]`, or of each token's own sequence, `[t, p]`.
    pub table: Tensor,
}

/// What follows the name of experts for how many tokens selected each.
pub(crate) const SELECTED: &str = ".selected";

impl<'a> Scope<'a> {
    /// The scope of a step.
    pub(crate) fn new(config: &'a Config, step: &Step) -> Self {
        let g = Builder::new();
        let (Step::Run(tokens) | Step::Scored(tokens) | Step::Batch(tokens) | Step::Attention(tokens)) = step;
        let t = g.dim("t", tokens);
        let p = g.dim("p", pages(config));
        let input = |name: &str, dims: &[&Dim]| g.input(name, DType::I32, dims);
        let (slot, table) = match step {
            Step::Run(_) | Step::Scored(_) | Step::Attention(_) => {
                (input(inputs::SLOT, &[]), input(inputs::TABLE, &[&p]))
            }
            Step::Batch(_) => (input(inputs::SLOT, &[&t]), input(inputs::TABLE, &[&t, &p])),
        };
        Self {
            is_batch: matches!(step, Step::Batch(_)),
            is_scored: !matches!(step, Step::Run(_)),
            attention: matches!(step, Step::Attention(_)).then(RefCell::default),
            positions: input(inputs::POSITIONS, &[&t]),
            page: input(inputs::PAGE, &[&t]),
            row: input(inputs::ROW, &[&t]),
            slot,
            table,
            d: g.dim("d", config.hidden),
            r: g.dim(ROWS, config.cache.page_rows),
            p,
            t,
            tokens: OnceCell::new(),
            windows: OnceCell::new(),
            kinds: OnceCell::new(),
            sequence: OnceCell::new(),
            choices: OnceCell::new(),
            layer: Cell::new(0),
            kept: RefCell::default(),
            observed: None,
            config,
            g,
        }
    }

    /// The same, and it notes what the inputs of projections are.
    pub(crate) fn observing(config: &'a Config, step: &Step) -> Self {
        Self { observed: Some(RefCell::default()), ..Self::new(config, step) }
    }

    /// What was noted: sums of squares over tokens, by the names of weights.
    pub(crate) fn observed(&self) -> Vec<(String, Tensor)> {
        self.observed.as_ref().map_or(Vec::new(), RefCell::take)
    }

    /// Whether the tokens of this step are in the KV cache already, and their attention is wanted.
    pub(crate) fn wants_attention(&self) -> bool {
        self.attention.is_some()
    }

    /// Notes how much attention the rows of this block get, `[p, r, …]`, of each head that has rows of its own.
    #[track_caller]
    pub(crate) fn note_attention(&self, attention: Tensor) {
        if let Some(noted) = &self.attention {
            noted.borrow_mut().push((self.g.qualified("attention"), attention));
        }
    }

    /// What was noted, by the names of blocks.
    pub(crate) fn attention(&self) -> Vec<(String, Tensor)> {
        self.attention.as_ref().map_or(Vec::new(), RefCell::take)
    }

    /// Notes the input of a projection.
    #[track_caller]
    fn observe(&self, name: &str, x: &Tensor) {
        if let Some(observed) = &self.observed {
            observed.borrow_mut().push((self.g.qualified(name), (x * x).sum(&self.t)));
        }
    }

    /// Notes the input of a projection of experts; `selected` `[t, x]` is 1 for those that a token selects.
    #[track_caller]
    pub(crate) fn observe_experts(&self, name: &str, x: &Tensor, selected: &dyn Fn() -> Tensor) {
        if let Some(observed) = &self.observed {
            let selected = selected();
            let mut observed = observed.borrow_mut();
            let name = self.g.qualified(name);
            observed.push((format!("{name}{SELECTED}"), selected.sum(&self.t)));
            observed.push((name, selected.contract(&(x * x), [&self.t])));
        }
    }

    /// The token ids of this step, `[t]`.
    #[track_caller]
    pub fn tokens(&self) -> Tensor {
        self.tokens.get_or_init(|| self.g.input(inputs::TOKENS, DType::I32, &[&self.t])).clone()
    }

    /// The kind of each token of this step, `[t]`.
    #[track_caller]
    pub(crate) fn kinds(&self) -> Tensor {
        self.kinds.get_or_init(|| self.g.input(inputs::KINDS, DType::I32, &[&self.t])).clone()
    }

    /// The pages of the KV cache of this block: its own where it has a window, else those of all blocks.
    #[track_caller]
    pub fn pages(&self) -> Pages {
        let windows = self.config.windows.filter(|_| self.config.has_window_pages(self.layer.get()));
        let Some(WindowPages { n_pages, .. }) = windows else {
            let page = self.g.dim(PAGE, self.config.cache.n_pages);
            return Pages { page, own: self.page.clone(), table: self.table.clone() };
        };
        let inputs = || {
            let table: &[&Dim] = if self.is_batch { &[&self.t, &self.p] } else { &[&self.p] };
            [(inputs::WINDOW_PAGE, &[&self.t][..]), (inputs::WINDOW_TABLE, table)]
                .map(|(name, dims)| self.g.input(name, DType::I32, dims))
        };
        let [own, table] = self.windows.get_or_init(inputs).clone();
        Pages { page: self.g.dim(WINDOW_PAGES, n_pages), own, table }
    }

    /// Which place among the recurrent states the sequence has, `[]`, or that of each token of a batch, `[t]`.
    #[track_caller]
    pub fn sequence(&self) -> Tensor {
        let dims: &[&Dim] = if self.is_batch { &[&self.t] } else { &[] };
        self.sequence.get_or_init(|| self.g.input(inputs::SEQUENCE, DType::I32, dims)).clone()
    }

    /// The ranks of adapters that a sequence chooses from, and its factors on each, `[rank]`, or those of each token of
    /// a batch, `[t, rank]`.
    #[track_caller]
    pub(crate) fn choices(&self) -> (Dim, Tensor) {
        let input = || {
            let rank = self.g.dim("choice", self.config.choices.rank);
            let dims: &[&Dim] = if self.is_batch { &[&self.t, &rank] } else { &[&rank] };
            let scales = self.g.input(inputs::SCALES, DType::F32, dims);
            (rank, scales)
        };
        self.choices.get_or_init(input).clone()
    }

    /// A block of its own, whose weights and states are named `blk.N.*`: blocks that are alike are compiled once.
    #[track_caller]
    pub fn block(&self, layer: usize, body: impl FnOnce() -> Tensor) -> Tensor {
        self.enter(layer);
        self.g.block(&format!("blk.{layer}"), |_| body())
    }

    /// Says that a block begins.
    pub(crate) fn enter(&self, layer: usize) {
        self.layer.set(layer);
    }

    /// Keeps the cached keys and values of this block for later ones.
    pub(crate) fn keep(&self, keys_and_values: &[Tensor; 2]) {
        self.kept.borrow_mut().insert(self.layer.get(), keys_and_values.clone());
    }

    /// The cached keys and values of an earlier block.
    pub(crate) fn kept(&self, layer: usize) -> [Tensor; 2] {
        self.kept.borrow()[&layer].clone()
    }

    /// The slot of each token, `[t]`.
    #[track_caller]
    pub fn slots(&self) -> Tensor {
        if self.is_batch { self.slot.clone() } else { &self.slot + self.g.iota(&self.t) }
    }

    /// The slot of the last token of a run, `[]`, or of each token of a batch, `[t]`.
    #[track_caller]
    pub fn last_slot(&self) -> Tensor {
        if self.is_batch { self.slot.clone() } else { self.slots().max(&self.t) }
    }

    /// `W x`, with what adapters add, and `+ b` where the model has a bias of this name, and all of it by a factor
    /// where it has one.
    #[track_caller]
    pub fn linear<const N: usize>(&self, x: &Tensor, name: &str, rows: &[&Dim], over: [&Dim; N]) -> Tensor {
        self.observe(name, x);
        let y = x.contract(&self.matrix(name, &[rows, &over].concat()), over);
        let y = adapted(self, name, [x, &y], [&[], rows], over);
        let y = if self.config.biased.contains(name) {
            y + self.f32_weight(&format!("{name}{BIAS}"), rows)
        } else {
            y
        };
        self.config.factors.get(name).map_or(y.clone(), |factor| y * *factor)
    }

    /// A weight matrix; its rows run along the last axes.
    #[track_caller]
    pub fn matrix(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, self.config.formats.of_matrix(&self.g.qualified(name)), dims)
    }

    /// A small weight kept in single precision: of a norm, a bias, or a router.
    #[track_caller]
    pub fn f32_weight(&self, name: &str, dims: &[&Dim]) -> Tensor {
        self.g.weight(name, Format::F32, dims)
    }
}

/// The size of an axis that is no number of tokens or positions.
pub(crate) fn static_size(dim: &Dim) -> usize {
    let size = dim.size.as_const().expect("only numbers of tokens and positions are symbolic");
    size as usize
}

/// How many pages the longest sequence of a step has. Cost estimates take the context as a quarter full.
fn pages(config: &Config) -> Sym {
    let most = config.cache.pages_of(config.context) as i64;
    let name = Label::new(PAGES).expect("one letter fits");
    if most == 1 { Sym::from(1) } else { Symbol::new(name, 1, most, (most / 4).max(1)).into() }
}
