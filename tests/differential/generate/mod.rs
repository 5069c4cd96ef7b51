//! Random graphs that fit together and whose numbers stay tame.
//!
//! In: a seed. Out: a graph of some twenty nodes of any operations, with symbols `T` and `P`, and the values of both.
//! An operation is drawn, then arguments that suit it; what `infer` refuses is drawn again. Bounds of every value are
//! kept, so that `exp` sees nothing large and `ln` nothing near zero. What compares, ranks or truncates sees only
//! numbers that no order of rounding can change. States of blocks come in graphs of the seeds from [`WITH_BLOCKS`] on,
//! and places that are inputs from [`WITH_PLACES`] on.
//! `draw.rs` finds arguments; the other files make one kind of operation each.

mod draw;
mod element;
mod known;
mod leaf;
mod movement;
mod product;
mod select;
mod state;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::graph::{Graph, Node, NodeId};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::Axis;
use fusebox_compiler::tensor::sym::{Sym, Symbol};

use self::known::Known;

/// The most elements of a value.
const MAX_LEN: usize = 6000;
/// The largest number that any value may reach.
const MAX_FLOAT: f64 = 64.0;
const MAX_WHOLE: f64 = 1e6;
const SIZES: [i64; 12] = [1, 2, 2, 3, 4, 5, 7, 8, 13, 16, 33, 65];
const LARGE: [i64; 3] = [64, 130, 256];
/// Lengths of the rows of weights.
const ROWS: [i64; 6] = [256, 32, 32, 32, 32, 32];
const ROWS_OF_BLOCKS: [i64; 5] = [32, 32, 64, 96, 256];

/// Graphs of the seeds from this on have states whose rows are stored in blocks.
pub(crate) const WITH_BLOCKS: u64 = 1_000_000;
/// Graphs of the seeds from this on write to places that inputs name, every other one to rows stored in blocks.
pub(crate) const WITH_PLACES: u64 = 2_000_000;

/// A random graph and the values of its symbols.
pub(crate) struct Sample {
    pub(crate) graph: Graph,
    pub(crate) symbols: Vec<(Label, i64)>,
}

/// The graph of a seed.
pub(crate) fn generate(seed: u64) -> Sample {
    let mut random = Random::new(seed);
    let (most_t, most_p) = (1 + random.below(5) as i64, random.below(9) as i64);
    let symbol = |name: &str, min, max, near| Symbol::new(label(name), min, max, near);
    let t = symbol("T", 1, most_t, 2);
    let p = symbol("P", 0, most_p, 3);
    let symbols = vec![
        (t.name, 1 + random.below(most_t as usize) as i64),
        (p.name, if random.below(3) == 0 { 0 } else { random.below(most_p as usize + 1) as i64 }),
    ];
    let mut generator = Generator {
        random,
        graph: Graph::default(),
        known: Vec::new(),
        blocks: (seed >= WITH_BLOCKS && (seed < WITH_PLACES || seed.is_multiple_of(2)))
            .then_some(if seed % 4 < 2 { Format::Q8_0 } else { Format::Q4_0 }),
        has_places: seed >= WITH_PLACES,
        dims: Vec::new(),
        t: Sym::from(t),
        p: Sym::from(p),
    };
    generator.choose_dims();
    let graph = generator.grow();
    Sample { graph, symbols }
}

struct Generator {
    random: Random,
    graph: Graph,
    known: Vec<Known>,
    /// The format of states in blocks, where there are such.
    blocks: Option<Format>,
    has_places: bool,
    /// Axes with their usual sizes.
    dims: Vec<(Axis, Sym)>,
    t: Sym,
    p: Sym,
}

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

impl Generator {
    fn choose_dims(&mut self) {
        let mut sizes = vec![self.t.clone(), self.t.clone() + self.p.clone()];
        sizes.push(if self.chance(3) { self.p.clone() } else { Sym::from(4i64) });
        let rows: &[i64] = if self.blocks.is_some() { &ROWS_OF_BLOCKS } else { &ROWS };
        sizes.push(Sym::from(rows[self.random.below(rows.len())]));
        for _ in 0..3 {
            sizes.push(Sym::from(SIZES[self.random.below(SIZES.len())]));
        }
        if self.chance(3) {
            sizes.push(Sym::from(LARGE[self.random.below(LARGE.len())]));
        }
        let names = ["t", "s", "u", "q", "a", "b", "c", "d"];
        self.dims = names.into_iter().map(label).zip(sizes).collect();
    }

    fn grow(mut self) -> Graph {
        let n_nodes = 4 + self.random.below(21);
        for _ in 0..2 + self.random.below(2) {
            self.leaf();
        }
        let mut tries = 0;
        while self.graph.nodes.len() < n_nodes && tries < 400 {
            self.step();
            tries += 1;
        }
        self.choose_outputs();
        self.graph
    }

    fn choose_outputs(&mut self) {
        let ids: Vec<NodeId> = self.graph.nodes.ids().collect();
        let unread: Vec<NodeId> = ids.iter().copied().filter(|id| self.is_unread(*id)).collect();
        for position in 0..=self.random.below(4) {
            let from = if self.chance(6) { &ids } else { &unread };
            let node = from[from.len() - 1 - self.random.below(from.len().min(5))];
            self.graph.outputs.push((format!("y{position}").into(), node));
        }
    }

    /// Adds an operation if it fits and stays tame.
    fn push(&mut self, op: Op, args: &[NodeId], known: Known) -> Option<NodeId> {
        let ty = self.graph.infer(&op, args).ok()?;
        let limit = if ty.dtype == DType::I32 { MAX_WHOLE } else { MAX_FLOAT };
        let is_tame = known.least >= -limit && known.most <= limit;
        let is_small = ty.shape.max_len() <= MAX_LEN && ty.shape.rank() <= 5;
        let is_sized = ty.shape.iter().all(|(_, size)| size.least() >= 0);
        if !is_tame || !is_small || !is_sized {
            return None;
        }
        self.known.push(known);
        Some(self.graph.push(Node { op, args: args.to_vec(), ty, block: None, site: None }))
    }

    fn step(&mut self) -> Option<NodeId> {
        if self.blocks.is_some() && self.chance(6) {
            return self.write_rows();
        }
        if self.has_places && self.chance(6) {
            return self.write_to_places();
        }
        match self.random.below(34) {
            0 | 1 => self.leaf(),
            2..5 => self.unary(),
            5..10 => self.binary(),
            10 => self.comparison(),
            11 => self.select(),
            12 | 13 => self.cast(),
            14 | 15 => self.reduce(),
            16 => self.split(),
            17 => self.merge(),
            18 => self.rename(),
            19 => self.expand(),
            20..23 => self.slice(),
            23 | 24 => self.concat(),
            25 | 26 => self.contract(),
            27 | 28 => self.gather(),
            29 => self.top_k(),
            30 | 31 => self.attend(),
            32 => self.write(),
            _ => {
                let node = self.any(|_, _| true)?;
                let known = self.of(node);
                self.push(Op::Barrier, &[node], known)
            }
        }
    }
}
