//! Random graphs that fit together and whose numbers stay tame.
//!
//! In: a seed. Out: a graph of some twenty nodes of any operations, with symbols `T` and `P`, and the values of both.
//! An operation is drawn, then arguments that suit it; what `infer` refuses is drawn again. Bounds of every value are
//! kept, so that `exp` sees nothing large and `ln` nothing near zero. What compares, ranks or truncates sees only
//! numbers that no order of rounding can change.

use std::sync::Arc;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::graph::infer::infer;
use fusebox_compiler::graph::op::{Binary, Fold, Op, Scalar, Unary};
use fusebox_compiler::graph::{Graph, Node, NodeId};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::{Axis, Shape, Type};
use fusebox_compiler::tensor::sym::{Sym, Symbol};

/// The most elements of a value.
const MAX_LEN: usize = 6000;
/// The largest number that any value may reach.
const MAX_FLOAT: f64 = 64.0;
const MAX_WHOLE: f64 = 1e6;
const SIZES: [i64; 12] = [1, 2, 2, 3, 4, 5, 7, 8, 13, 16, 33, 65];
const LARGE: [i64; 3] = [64, 130, 256];
const STORED: [(Format, i64); 14] = [
    (Format::F32, 1),
    (Format::F32, 1),
    (Format::F16, 1),
    (Format::BF16, 1),
    (Format::I32, 1),
    (Format::Q4_0, 32),
    (Format::Q4_1, 32),
    (Format::Q5_0, 32),
    (Format::Q5_1, 32),
    (Format::Q8_0, 32),
    (Format::Q4K, 256),
    (Format::Q5K, 256),
    (Format::Q6K, 256),
    (Format::Int8 { group: 16 }, 16),
];

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
        dims: Vec::new(),
        t: Sym::from(t),
        p: Sym::from(p),
    };
    generator.choose_dims();
    let graph = generator.grow();
    Sample { graph, symbols }
}

/// What is known of the numbers of a value.
#[derive(Clone, Copy)]
struct Known {
    least: f64,
    most: f64,
    /// Whether every order of computing it gives the same bits.
    exact: bool,
}

struct Generator {
    random: Random,
    graph: Graph,
    known: Vec<Known>,
    /// Axes with their usual sizes.
    dims: Vec<(Axis, Sym)>,
    t: Sym,
    p: Sym,
}

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

fn known(least: f64, most: f64, exact: bool) -> Known {
    Known { least, most, exact }
}

impl Generator {
    fn choose_dims(&mut self) {
        let mut sizes = vec![self.t.clone(), self.t.clone() + self.p.clone()];
        sizes.push(if self.chance(3) { self.p.clone() } else { Sym::from(4i64) });
        sizes.push(Sym::from(if self.chance(6) { 256i64 } else { 32 }));
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

    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    fn pick<X: Clone>(&mut self, from: &[X]) -> Option<X> {
        (!from.is_empty()).then(|| from[self.random.below(from.len())].clone())
    }

    /// Adds an operation if it fits and stays tame.
    fn push(&mut self, op: Op, args: &[NodeId], known: Known) -> Option<NodeId> {
        let types: Vec<&Type> = args.iter().map(|arg| &self.graph.nodes[*arg].ty).collect();
        let ty = infer(&op, &types).ok()?;
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

    fn of(&self, node: NodeId) -> Known {
        let position = self.graph.nodes.ids().position(|id| id == node).unwrap();
        self.known[position]
    }

    fn shape(&self, node: NodeId) -> Shape {
        self.graph.nodes[node].ty.shape.clone()
    }

    fn dtype(&self, node: NodeId) -> DType {
        self.graph.nodes[node].ty.dtype
    }

    /// A node that satisfies a test, mostly one that nothing reads yet.
    fn any(&mut self, test: impl Fn(&Self, NodeId) -> bool) -> Option<NodeId> {
        let fitting: Vec<NodeId> = self.graph.nodes.ids().filter(|id| test(self, *id)).collect();
        let unread: Vec<NodeId> = fitting.iter().copied().filter(|id| self.is_unread(*id)).collect();
        if !unread.is_empty() && !self.chance(3) {
            return self.pick(&unread);
        }
        let recent = if self.chance(2) { fitting.len() } else { fitting.len().min(4) };
        let from = fitting.len() - recent;
        self.pick(&fitting[from..])
    }

    fn is_unread(&self, node: NodeId) -> bool {
        !self.graph.nodes.values().any(|other| other.args.contains(&node))
    }

    fn float(&mut self) -> Option<NodeId> {
        let node = self.any(|g, id| g.dtype(id).is_float())?;
        self.single(node)
    }

    /// The same value in single precision.
    fn single(&mut self, node: NodeId) -> Option<NodeId> {
        let known = self.of(node);
        if self.dtype(node) == DType::F32 {
            Some(node)
        } else {
            self.push(Op::Cast(DType::F32), &[node], known)
        }
    }

    fn exact(&mut self) -> Option<NodeId> {
        let node = self.any(|g, id| g.of(id).exact && matches!(g.dtype(id), DType::F32 | DType::I32))?;
        Some(node)
    }

    fn axis_of(&mut self, node: NodeId) -> Option<(Axis, Sym)> {
        let axes: Vec<(Axis, Sym)> = self.shape(node).iter().cloned().collect();
        self.pick(&axes)
    }

    fn some_shape(&mut self, fixed: bool) -> Shape {
        let rank = self.random.below(4);
        let mut axes: Vec<(Axis, Sym)> = Vec::new();
        for _ in 0..rank {
            let dim = self.dims[self.random.below(self.dims.len())].clone();
            let fits = !fixed || dim.1.as_const().is_some();
            if fits && axes.iter().all(|(axis, _)| *axis != dim.0) {
                axes.push(dim);
            }
        }
        Shape::new(axes).unwrap()
    }

    fn name(&self, stem: &str) -> Arc<str> {
        format!("{stem}{}", self.graph.nodes.len()).into()
    }

    fn input(&mut self, dtype: DType, shape: Shape) -> Option<NodeId> {
        let bounds = if dtype == DType::I32 { known(0.0, 7.0, true) } else { known(-1.0, 1.0, true) };
        self.push(Op::Input { name: self.name("x"), ty: Type::new(dtype, shape) }, &[], bounds)
    }

    fn weight(&mut self) -> Option<NodeId> {
        let (format, block) = self.pick(&STORED)?;
        let mut axes: Vec<(Axis, Sym)> = self.some_shape(true).iter().cloned().collect();
        if block > 1 {
            axes.retain(|(axis, _)| *axis != label("q"));
            let len = if block == 256 { 256 } else { self.dims[3].1.as_const()? };
            axes.push((label("q"), Sym::from(len)));
        }
        let row = axes.last().map_or(1, |(_, size)| size.most());
        let most = if format == Format::I32 { 7.0 } else { 2.2 / (row as f64).sqrt() };
        let shape = Shape::new(axes)?;
        self.push(Op::Weight { name: self.name("w"), shape, format }, &[], known(-most, most, true))
    }

    fn leaf(&mut self) -> Option<NodeId> {
        match self.random.below(16) {
            0..6 => {
                let dtype =
                    self.pick(&[DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16, DType::I32])?;
                let shape = self.some_shape(false);
                self.input(dtype, shape)
            }
            6..9 => self.weight(),
            9..11 => {
                let dtype = self.pick(&[DType::F32, DType::F16, DType::BF16, DType::I32])?;
                let (shape, format) = (self.some_shape(true), Format::of(dtype));
                let bounds = if dtype == DType::I32 { known(0.0, 7.0, true) } else { known(-1.0, 1.0, true) };
                self.push(Op::State { name: self.name("k"), shape, format }, &[], bounds)
            }
            11..13 => {
                if self.chance(3) {
                    let value = self.random.below(9) as i32 - 2;
                    let at = f64::from(value);
                    return self.push(Op::Const(Scalar::I32(value)), &[], known(at, at, true));
                }
                let value = self.pick(&[0.0f32, 0.5, 1.0, -1.0, 2.0, 0.125, 1.5])?;
                let at = f64::from(value);
                self.push(Op::Const(Scalar::float(value)), &[], known(at, at, true))
            }
            13 => {
                let (axis, len) = self.pick(&self.dims.clone())?;
                let len = len.as_const()?.min(16);
                let values = (0..len).map(|i| (0.25 + (i as f32 * 0.7).sin()).to_bits()).collect();
                self.push(Op::Table { axis, values }, &[], known(-0.75, 1.25, true))
            }
            14 => {
                let (axis, len) = self.pick(&self.dims.clone())?;
                let most = len.most() as f64;
                self.push(Op::Iota { axis, len }, &[], known(0.0, most, true))
            }
            _ => {
                let value =
                    self.pick(&[self.t.clone(), self.p.clone(), self.t.clone() + self.p.clone() * 2])?;
                let bounds = known(value.least() as f64, value.most() as f64, true);
                self.push(Op::Symbolic(value), &[], bounds)
            }
        }
    }

    fn step(&mut self) -> Option<NodeId> {
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

    fn unary(&mut self) -> Option<NodeId> {
        let f = self.pick(Unary::ALL)?;
        let x = if f == Unary::Neg && self.chance(3) {
            self.any(|g, id| g.dtype(id) == DType::I32)?
        } else {
            self.float()?
        };
        let Known { least, most, exact } = self.of(x);
        let size = most.max(-least);
        let made = match f {
            Unary::Neg => known(-most, -least, exact),
            Unary::Exp if size <= 4.0 => known(least.exp(), most.exp(), false),
            Unary::Sin | Unary::Cos if size <= 8.0 => known(-1.0, 1.0, false),
            Unary::Ln if least >= 1.5 => known(least.ln(), most.ln(), false),
            Unary::Sqrt if least >= 0.1 => known(least.sqrt(), most.sqrt(), false),
            Unary::Rsqrt if least >= 0.1 => known(most.sqrt().recip(), least.sqrt().recip(), false),
            Unary::Recip if least >= 0.1 => known(most.recip(), least.recip(), false),
            _ => return self.shifted(x),
        };
        self.push(Op::Unary(f), &[x], made)
    }

    /// A value made positive, for the functions that need that.
    fn shifted(&mut self, x: NodeId) -> Option<NodeId> {
        let Known { least, most, .. } = self.of(x);
        let by = (2.0 - least).ceil();
        let shift = self.push(Op::Const(Scalar::float(by as f32)), &[], known(by, by, true))?;
        self.push(Op::Binary(Binary::Add), &[x, shift], known(least + by, most + by, false))
    }

    fn binary(&mut self) -> Option<NodeId> {
        let f = self.pick(&[
            Binary::Add,
            Binary::Add,
            Binary::Sub,
            Binary::Mul,
            Binary::Mul,
            Binary::Div,
            Binary::Max,
            Binary::Min,
        ])?;
        let (a, b) = if f != Binary::Div && self.chance(5) {
            let whole = |g: &Self, id| g.dtype(id) == DType::I32;
            (self.any(whole)?, self.any(whole)?)
        } else {
            let a = self.float()?;
            (a, self.meeting(a)?)
        };
        let (x, y) = (self.of(a), self.of(b));
        let whole = self.dtype(a) == DType::I32;
        let exact = x.exact && y.exact && (whole || matches!(f, Binary::Max | Binary::Min));
        let products = [x.least * y.least, x.least * y.most, x.most * y.least, x.most * y.most];
        let made = match f {
            Binary::Add => known(x.least + y.least, x.most + y.most, exact),
            Binary::Sub => known(x.least - y.most, x.most - y.least, exact),
            Binary::Mul => {
                let (least, most) = hull(&products);
                known(least, most, exact)
            }
            Binary::Div if y.least >= 0.1 => {
                let ends = [x.least / y.least, x.least / y.most, x.most / y.least, x.most / y.most];
                let (least, most) = hull(&ends);
                known(least, most, exact)
            }
            Binary::Max => known(x.least.max(y.least), x.most.max(y.most), exact),
            Binary::Min => known(x.least.min(y.least), x.most.min(y.most), exact),
            _ => return None,
        };
        self.push(Op::Binary(f), &[a, b], made)
    }

    /// Another value in single precision whose axes meet those of the first.
    fn meeting(&mut self, a: NodeId) -> Option<NodeId> {
        let shape = self.shape(a);
        let b = self.any(|g, id| g.dtype(id).is_float() && shape.union(&g.shape(id)).is_ok())?;
        self.single(b)
    }

    fn comparison(&mut self) -> Option<NodeId> {
        let f = self.pick(&[Binary::Lt, Binary::Le, Binary::Eq])?;
        let a = self.exact()?;
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        let b = self.any(|g, id| {
            g.of(id).exact && g.dtype(id) == dtype && shape.union(&g.shape(id)).is_ok() && id != a
        })?;
        self.push(Op::Binary(f), &[a, b], known(0.0, 1.0, true))
    }

    fn select(&mut self) -> Option<NodeId> {
        let condition = match self.comparison() {
            Some(made) => made,
            None => self.any(|g, id| g.dtype(id) == DType::I32)?,
        };
        let yes = self.any(|_, _| true)?;
        let dtype = self.dtype(yes);
        let no = self.any(|g, id| g.dtype(id) == dtype)?;
        let (x, y) = (self.of(yes), self.of(no));
        let made = known(x.least.min(y.least), x.most.max(y.most), x.exact && y.exact);
        self.push(Op::Select, &[condition, yes, no], made)
    }

    fn cast(&mut self) -> Option<NodeId> {
        let dtype = self.pick(&DType::ALL)?;
        let x = if dtype == DType::I32 { self.exact()? } else { self.any(|_, _| true)? };
        let Known { least, most, exact } = self.of(x);
        let room = most.max(-least) * 0.01;
        self.push(Op::Cast(dtype), &[x], known(least - room, most + room, exact))
    }

    fn reduce(&mut self) -> Option<NodeId> {
        let x = if self.chance(5) { self.any(|g, id| g.dtype(id) == DType::I32)? } else { self.float()? };
        let (axis, size) = self.axis_of(x)?;
        let Known { least, most, exact } = self.of(x);
        if self.chance(2) {
            let is_never_empty = size.least() > 0;
            let op = Op::Reduce { fold: Fold::Max, axis };
            return is_never_empty.then(|| self.push(op, &[x], known(least, most, exact)))?;
        }
        let n = size.most() as f64;
        let exact = exact && self.dtype(x) == DType::I32;
        let made = known((least * n).min(0.0), (most * n).max(0.0), exact);
        self.push(Op::Reduce { fold: Fold::Sum, axis }, &[x], made)
    }

    fn split(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(x)?;
        let (outer, inner) = (self.free(x)?, self.free(x)?);
        let inner = if inner == outer { axis } else { inner };
        let parts = match size.as_const() {
            Some(n) => {
                let divisors: Vec<i64> = (1..=n).filter(|k| n % k == 0).collect();
                let k = self.pick(&divisors)?;
                [(outer, Sym::from(n / k)), (inner, Sym::from(k))]
            }
            None => [(outer, size), (inner, Sym::from(1i64))],
        };
        let known = self.of(x);
        self.push(Op::Split { axis, into: Shape::new(parts)? }, &[x], known)
    }

    /// An axis that a value lacks.
    fn free(&mut self, node: NodeId) -> Option<Axis> {
        let shape = self.shape(node);
        let names = ["e", "f", "g", "h", "a", "b", "c", "d"].map(label);
        let free: Vec<Axis> = names.into_iter().filter(|axis| !shape.has(*axis)).collect();
        self.pick(&free)
    }

    fn merge(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 1)?;
        let (first, second) = (self.axis_of(x)?.0, self.axis_of(x)?.0);
        let into = if self.chance(2) { first } else { self.free(x)? };
        let known = self.of(x);
        let axes = if self.chance(8) { vec![first] } else { vec![first, second] };
        self.push(Op::Merge { axes, into }, &[x], known)
    }

    fn rename(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (from, size) = self.axis_of(x)?;
        let alike: Vec<Axis> =
            self.dims.iter().filter(|(_, own)| *own == size).map(|(axis, _)| *axis).collect();
        let to = if self.chance(2) { self.pick(&alike)? } else { self.free(x)? };
        let known = self.of(x);
        self.push(Op::Rename { from, to }, &[x], known)
    }

    fn expand(&mut self) -> Option<NodeId> {
        let x = self.any(|_, _| true)?;
        let (axis, len) = self.pick(&self.dims.clone())?;
        let known = self.of(x);
        self.push(Op::Expand { axis, len }, &[x], known)
    }

    fn slice(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(x)?;
        let (start, len) = self.run_of(&size);
        let known = self.of(x);
        self.push(Op::Slice { axis, start, len }, &[x], known)
    }

    /// A run of positions of an axis.
    fn run_of(&mut self, size: &Sym) -> (Sym, Sym) {
        let (t, p, none) = (self.t.clone(), self.p.clone(), Sym::from(0i64));
        let mut runs = vec![
            (p.clone(), t.clone()),
            (none.clone(), p.clone() + t.clone()),
            (none.clone(), p.clone()),
            (none.clone(), t.clone()),
            (size.clone() - 1, Sym::from(1i64)),
            (p.clone() + t.clone() - 1, Sym::from(1i64)),
        ];
        if let Some(n) = size.as_const().filter(|n| *n > 0) {
            for _ in 0..12 {
                let start = self.random.below(n as usize) as i64;
                let len = 1 + self.random.below((n - start) as usize) as i64;
                runs.push((Sym::from(start), Sym::from(len)));
            }
            runs.push((Sym::from(n / 2), none));
        }
        let fits = |(start, len): &(Sym, Sym)| {
            start.least() >= 0 && (size.clone() - start.clone() - len.clone()).least() >= 0
        };
        runs.retain(fits);
        self.pick(&runs).unwrap_or((Sym::from(0i64), size.clone()))
    }

    fn concat(&mut self) -> Option<NodeId> {
        let first = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, _) = self.axis_of(first)?;
        let mut parts = vec![first];
        let (dtype, rest) = (self.dtype(first), self.shape(first).without(axis));
        for _ in 0..=self.random.below(2) {
            let part = self.any(|g, id| {
                let shape = g.shape(id);
                g.dtype(id) == dtype && shape.has(axis) && shape.without(axis).same_axes(&rest)
            })?;
            let size = self.shape(part).size(axis)?.clone();
            let part = if self.chance(2) {
                let (start, len) = self.run_of(&size);
                let known = self.of(part);
                self.push(Op::Slice { axis, start, len }, &[part], known)?
            } else {
                part
            };
            parts.push(part);
        }
        if self.chance(2) {
            parts.swap(0, 1);
        }
        let all: Vec<Known> = parts.iter().map(|part| self.of(*part)).collect();
        let least = all.iter().map(|k| k.least).fold(f64::INFINITY, f64::min);
        let most = all.iter().map(|k| k.most).fold(f64::NEG_INFINITY, f64::max);
        self.push(Op::Concat { axis }, &parts, known(least, most, all.iter().all(|k| k.exact)))
    }

    /// A floating-point value that has the axis, and otherwise fits.
    fn partner(&mut self, of: NodeId, axis: Axis, size: &Sym) -> Option<NodeId> {
        let shape = self.shape(of);
        let found = self.any(|g, id| {
            id != of
                && g.dtype(id).is_float()
                && g.shape(id).size(axis) == Some(size)
                && shape.union(&g.shape(id)).is_ok()
        });
        if found.is_some() && !self.chance(4) {
            return found;
        }
        let mut axes: Vec<(Axis, Sym)> =
            self.some_shape(false).iter().filter(|(a, _)| !shape.has(*a)).cloned().collect();
        axes.extend(shape.iter().filter(|(a, _)| *a != axis && a.as_str() < "c").cloned());
        axes.insert(self.random.below(axes.len() + 1), (axis, size.clone()));
        self.input(DType::F32, Shape::new(axes)?)
    }

    fn contract(&mut self) -> Option<NodeId> {
        let a = self.any(|g, id| g.dtype(id).is_float() && g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(a)?;
        let b = self.partner(a, axis, &size)?;
        let (own, other) = (self.shape(a), self.shape(b));
        let mut over: Vec<Axis> = own.axes().filter(|x| other.has(*x)).collect();
        let keep_all = self.chance(2);
        over.retain(|x| *x == axis || keep_all);
        over.sort();
        let n: f64 = over.iter().map(|x| own.size(*x).map_or(1, Sym::most) as f64).product();
        let (x, y) = (self.of(a), self.of(b));
        let most = x.most.max(-x.least) * y.most.max(-y.least) * n;
        let args = if self.chance(2) { [a, b] } else { [b, a] };
        self.push(Op::Contract { over }, &args, known(-most, most, false))
    }

    fn gather(&mut self) -> Option<NodeId> {
        let table = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, _) = self.axis_of(table)?;
        let shape = self.shape(table);
        let index = self.any(|g, id| {
            let own = g.shape(id);
            g.dtype(id) == DType::I32 && !own.has(axis) && own.union(&shape.without(axis)).is_ok()
        });
        let index = if let Some(index) = index {
            index
        } else {
            let shape = Shape::new([(self.free(table)?, Sym::from(3i64))])?;
            self.input(DType::I32, shape)?
        };
        let Known { least, most, exact } = self.of(table);
        self.push(Op::Gather { axis }, &[table, index], known(least.min(0.0), most.max(0.0), exact))
    }

    fn top_k(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.of(id).exact && g.dtype(id) == DType::F32 && g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(x)?;
        let into = if self.chance(3) { axis } else { self.free(x)? };
        let most = size.least().min(6);
        if most < 1 {
            return None;
        }
        let k = 1 + self.random.below(most as usize);
        self.push(Op::TopK { axis, into, k }, &[x], known(0.0, size.most() as f64, true))
    }

    fn attend(&mut self) -> Option<NodeId> {
        let scores = self.any(|g, id| g.dtype(id) == DType::F32 && g.shape(id).rank() > 0)?;
        let (over, size) = self.axis_of(scores)?;
        let values = self.partner(scores, over, &size)?;
        if !self.shape(values).has(over) || self.of(scores).most - self.of(scores).least > 16.0 {
            return None;
        }
        let Known { least, most, .. } = self.of(values);
        self.push(Op::Attend { over }, &[scores, values], known(least.min(0.0), most.max(0.0), false))
    }

    fn write(&mut self) -> Option<NodeId> {
        let is_last = |g: &Self, id: NodeId| {
            let versions = g.graph.nodes.values().filter(|node| matches!(node.op, Op::Write { .. }));
            g.graph.state_of(id).is_some() && versions.into_iter().all(|node| node.args[0] != id)
        };
        let value = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (from, len) = self.axis_of(value)?;
        let (dtype, own) = (self.dtype(value), self.shape(value));
        let state =
            self.any(|g, id| is_last(g, id) && g.dtype(id) == dtype && g.shape(id).rank() == own.rank());
        let state = match state {
            Some(state) if !self.chance(3) => state,
            _ => {
                let axis = self.pick(&[label("s"), label("k"), from])?;
                let size = Sym::from(len.most() + self.p.most() + self.random.below(3) as i64);
                let shape = own.replaced(from, [(axis, size)])?;
                let is_fixed = shape.iter().all(|(_, size)| size.as_const().is_some());
                let bounds = if dtype == DType::I32 { known(0.0, 7.0, true) } else { known(-1.0, 1.0, true) };
                let op = Op::State { name: self.name("k"), shape, format: Format::of(dtype) };
                if is_fixed { self.push(op, &[], bounds)? } else { return None }
            }
        };
        let (axis, size) = self.axis_of(state)?;
        let starts = [self.p.clone(), Sym::from(0i64), size - len];
        let at = self.pick(&starts)?;
        let (x, y) = (self.of(state), self.of(value));
        let made = known(x.least.min(y.least), x.most.max(y.most), x.exact && y.exact);
        self.push(Op::Write { axis, from, at }, &[state, value], made)
    }
}

fn hull(ends: &[f64]) -> (f64, f64) {
    (
        ends.iter().copied().fold(f64::INFINITY, f64::min),
        ends.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    )
}
