//! The cost model of kernels: bytes, operations, tasks and tile memory, and the roofline estimate.
//!
//! In: a kernel. Out: a [`Measure`], exact in elements and operations for given symbols. A byte counts once however
//! often tasks read it: that is the DRAM traffic. An operation counts as often as its innermost loop runs. Times are
//! estimated from these counts in one place, [`Measure::seconds`].

use crate::foundation::entity::{Id, List};
use crate::graph::op::{Binary, Unary};
use crate::kernel::index::{Atom, Index};
use crate::kernel::mask::MAX_POSITIONS;
use crate::kernel::{Access, Blocks, Expr, Kernel, Nest, Param, ParamId, Part, Place, Range, Stmt, VarId};
use crate::target::{Target, Work};
use crate::tensor::sym::{Sym, Symbol};

/// How much of the lesser of memory time and compute time does not overlap with the greater.
const HIDDEN_SHARE: f64 = 0.2;

/// What one launch of a kernel does.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The elements of each parameter that are accessed.
    pub elements: List<ParamId, Sym>,
    /// Bytes read from DRAM, each once.
    pub bytes_read: f64,
    /// Bytes written to DRAM, each once.
    pub bytes_written: f64,
    /// Operations on numbers; decoding counts, and a transcendental function counts as eight.
    pub flops: f64,
    /// Independent tasks.
    pub n_tasks: i64,
    /// The largest bytes and operations of a task.
    pub longest: Work,
    /// The most bytes that a task reads and writes, shared or not, without routed rows (those of lookups).
    pub task_bytes: f64,
    /// The same summed over all tasks: L2 traffic.
    pub l2_bytes: f64,
    /// The most bytes of tiles of a task.
    pub tile_bytes: usize,
}

/// Counts a kernel with every symbol near its usual value.
pub fn measure(kernel: &Kernel) -> Measure {
    measure_at(kernel, &|symbol| symbol.near)
}

/// Counts a kernel with every symbol at the value that `at` gives it.
pub fn measure_at(kernel: &Kernel, at: Values<'_>) -> Measure {
    let mut touched = untouched(kernel);
    let mut flops = 0.0;
    let mut longest = Work::default();
    let (mut task_bytes, mut l2_bytes) = (0.0_f64, 0.0);
    for part in &kernel.parts {
        let ranges = Ranges { part, at };
        let mut count = Count { kernel, ranges, touched: untouched(kernel), flops: 0.0, counts_routed: true };
        let n_tasks: f64 = part.grid.iter().map(|var| ranges.n_values(*var)).product();
        count.body(&part.body, n_tasks);
        let bytes = count.bytes();
        let of_task = bytes_of_task(kernel, ranges);
        task_bytes = task_bytes.max(of_task);
        l2_bytes += n_tasks * of_task;
        longest.bytes = longest.bytes.max(bytes / n_tasks.max(1.0));
        longest.flops = longest.flops.max(count.flops / n_tasks.max(1.0));
        flops += count.flops;
        for (id, own) in count.touched.into_entries() {
            let before = std::mem::take(&mut touched[id]);
            touched[id] = joined(before, own, at);
        }
    }
    let elements: List<ParamId, Sym> = touched.values().map(elements_of).collect();
    let bytes = |access: Access| -> f64 {
        let own = kernel.params.iter().filter(|(_, param)| param.access == access);
        own.map(|(id, param)| bytes_of(param, elements[id].evaluate(at))).sum()
    };
    let tile_bytes = kernel.parts.iter().map(tile_bytes).max().unwrap_or(0);
    let n_tasks = kernel.parts.iter().map(|part| part.n_tasks(&|sym| sym.evaluate(at))).sum();
    Measure {
        bytes_read: bytes(Access::Read),
        bytes_written: bytes(Access::Write),
        elements,
        flops,
        n_tasks,
        longest,
        task_bytes,
        l2_bytes,
        tile_bytes,
    }
}

fn untouched(kernel: &Kernel) -> Touched {
    kernel.params.ids().map(|_| None).collect()
}

/// The bytes that the first task of a part reads and writes, without routed rows: tasks routed to the same expert may
/// be grouped.
fn bytes_of_task(kernel: &Kernel, ranges: Ranges<'_>) -> f64 {
    let part = ranges.part;
    let mut own = part.clone();
    for var in part.vars.ids() {
        let is_one = part.grid.contains(&var);
        own.vars[var].range = match &part.vars[var].range {
            Range::Whole { .. } if is_one => Range::Whole { len: Sym::from(1i64) },
            // Blocks of a task that are interleaved with those of others count as if they were adjacent.
            Range::Blocks(Blocks { block, .. }) => {
                let n = if is_one { 1 } else { ranges.n_values(var) as i64 };
                Range::Blocks(Blocks {
                    start: Index::default(),
                    step: *block,
                    block: *block,
                    end: Sym::from(n * block),
                })
            }
            other => other.clone(),
        };
    }
    let ranges = Ranges { part: &own, ..ranges };
    let mut count = Count { kernel, ranges, touched: untouched(kernel), flops: 0.0, counts_routed: false };
    count.body(&own.body, 1.0);
    count.bytes()
}

fn bytes_of(param: &Param, n_elements: i64) -> f64 {
    n_elements as f64 * param.format.bytes_per_element()
}

impl Measure {
    /// Bytes moved and operations done.
    pub fn work(&self) -> Work {
        Work { bytes: self.bytes_read + self.bytes_written, flops: self.flops }
    }

    /// Estimated seconds on a target: launch latency, plus the roofline at the share of compute units that tasks
    /// occupy, but never less than the longest task takes on one unit, or than L2 traffic takes. The lesser of memory
    /// time and compute time overlaps only partly.
    pub fn seconds(&self, target: &Target) -> f64 {
        let rates = &target.rates;
        let units = rates.compute_units as i64;
        let tasks = self.n_tasks.max(1);
        let rounds = (tasks + units - 1) / units;
        let busy = tasks as f64 / (rounds * units) as f64;
        let Work { bytes, flops } = self.work();
        let hidden = (bytes / rates.bandwidth).min(flops / rates.flops);
        let together = (rates.roofline(self.work()) + HIDDEN_SHARE * hidden) / busy;
        let alone = rates.roofline(self.longest) * rates.compute_units as f64;
        let close = (self.l2_bytes / rates.l2_bandwidth).max(self.task_bytes / rates.l2_bandwidth_per_unit);
        rates.launch + together.max(alone).max(close)
    }
}

/// The value of every symbol.
pub type Values<'a> = &'a dyn Fn(Symbol) -> i64;

/// An interval of positions along an axis: its first, and how many.
#[derive(Clone, Debug)]
struct Interval {
    first: i64,
    len: Sym,
}

/// The positions of each parameter that are accessed, along each axis.
type Touched = List<ParamId, Option<Vec<Interval>>>;

struct Count<'a> {
    kernel: &'a Kernel,
    ranges: Ranges<'a>,
    touched: Touched,
    flops: f64,
    /// Whether elements found by a lookup count.
    counts_routed: bool,
}

impl Count<'_> {
    fn bytes(&self) -> f64 {
        let of_param = |(id, own): (ParamId, &Option<Vec<Interval>>)| {
            bytes_of(&self.kernel.params[id], elements_of(own).evaluate(self.ranges.at))
        };
        self.touched.iter().map(of_param).sum()
    }

    fn body(&mut self, body: &[Stmt], times: f64) {
        for stmt in body {
            match stmt {
                Stmt::Nest(nest) => self.nest(nest, times),
                Stmt::Loop { var, body } => self.body(body, times * self.ranges.n_values(*var)),
                // How often it is skipped depends on how tasks are shared out.
                Stmt::Once { body, .. } => self.body(body, times),
                Stmt::Quantise(_) => {}
            }
        }
    }

    fn nest(&mut self, nest: &Nest, times: f64) {
        let loops = [&nest.loops, nest.folds()].concat();
        // An expression runs as often as the loops it depends on.
        let mut depends: Vec<u64> = Vec::with_capacity(nest.exprs.len());
        for expr in nest.exprs.values() {
            let own = Self::dependence(expr, &loops, &depends);
            depends.push(own);
            self.flops += self.operations(expr) * times * self.runs(&loops, own);
            if let Expr::Load { from, at } = expr {
                self.touch(*from, at);
            }
        }
        if nest.fold.is_some() {
            self.flops += times * self.runs(&loops, u64::MAX);
        }
        self.touch(nest.target, &nest.at);
    }

    fn operations(&self, expr: &Expr) -> f64 {
        match expr {
            Expr::Load { from: Place::Param(param), .. } => {
                self.kernel.params[*param].format.decoding_operations() as f64
            }
            _ => operations(expr),
        }
    }

    fn dependence(expr: &Expr, loops: &[VarId], earlier: &[u64]) -> u64 {
        let of_index = |index: &Index| -> u64 {
            let bits = loops.iter().enumerate();
            bits.filter(|(_, var)| index.uses_var(|v| v == **var)).map(|(bit, _)| 1 << bit.min(63)).sum()
        };
        let own = expr.indices().iter().map(of_index);
        own.chain(expr.operands().iter().map(|operand| earlier[operand.index()]))
            .fold(0, |all, own| all | own)
    }

    fn runs(&self, loops: &[VarId], mask: u64) -> f64 {
        let own = loops.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        own.map(|(_, var)| self.ranges.n_values(*var)).product()
    }

    fn touch(&mut self, place: Place, at: &[Index]) {
        for index in at {
            index.any(&mut |atom| {
                if let Atom::Lookup { from, at, .. } = atom {
                    self.touch(*from, at);
                }
                false
            });
        }
        let Place::Param(param) = place else { return };
        if !self.counts_routed && at.iter().any(Index::has_lookup) {
            return;
        }
        let own: Vec<Interval> = at.iter().map(|index| self.ranges.interval(index)).collect();
        let before = self.touched[param].take();
        self.touched[param] = joined(before, Some(own), self.ranges.at);
    }
}

fn joined(a: Option<Vec<Interval>>, b: Option<Vec<Interval>>, at: Values<'_>) -> Option<Vec<Interval>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.into_iter().zip(b).map(|(a, b)| hull(a, b, at)).collect()),
        (a, b) => a.or(b),
    }
}

#[expect(clippy::ref_option, reason = "as it lies in the list")]
fn elements_of(touched: &Option<Vec<Interval>>) -> Sym {
    let Some(intervals) = touched else { return Sym::from(0i64) };
    intervals.iter().fold(Sym::from(1i64), |product, interval| product * &interval.len)
}

/// Whether an atom is how many tokens a sequence has.
fn is_length(atom: &Atom) -> bool {
    matches!(atom, Atom::Lookup { below: MAX_POSITIONS, .. })
}

/// The values that the variables of a part have.
#[derive(Clone, Copy)]
struct Ranges<'a> {
    part: &'a Part,
    at: Values<'a>,
}

impl Ranges<'_> {
    fn of(self, sym: &Sym) -> i64 {
        sym.evaluate(self.at)
    }

    /// The interval of an index, over all tasks.
    fn interval(self, index: &Index) -> Interval {
        let (low, high) = index.bounds(&self.part.vars);
        if index.has_lookup() {
            return Interval { first: 0, len: self.n_looked_up(index, high - low + 1) };
        }
        match index.terms() {
            [] => Interval { first: index.offset(), len: Sym::from(1i64) },
            [(Atom::Var(var), 1)] => match self.start(*var) {
                0 => Interval { first: index.offset(), len: self.extent(*var) },
                first => {
                    let len = (self.of(&self.extent(*var)) - first).max(0);
                    Interval { first: index.offset() + first, len: Sym::from(len) }
                }
            },
            // A position that is a symbol: where a state is written.
            [(Atom::Symbols(_), _)] => Interval { first: low, len: Sym::from(1i64) },
            [(Atom::Symbols(_), _), (Atom::Var(var), 1)] | [(Atom::Var(var), 1), (Atom::Symbols(_), _)] => {
                Interval { first: low, len: self.extent(*var) }
            }
            terms => {
                let mut len = 1;
                for (atom, factor) in terms {
                    let reach = match atom {
                        Atom::Var(var) => self.of(&self.extent(*var)) - 1,
                        Atom::Symbols(_) => 0,
                        _ => Index::atom(atom.clone()).bounds(&self.part.vars).1,
                    };
                    len += factor.abs() * reach.max(0);
                }
                Interval { first: low, len: Sym::from(len.min(high - low + 1)) }
            }
        }
    }

    /// The number of positions that are looked up: one for each value of all loops that decide that, if not fewer.
    fn n_looked_up(self, index: &Index, most: i64) -> Sym {
        let used = self.part.vars.ids().filter(|var| index.uses_var(|v| v == *var));
        let n = used.fold(Sym::from(1i64), |n, var| match &self.part.vars[var].range {
            // Where tasks share the blocks, all of them together have every one.
            Range::Blocks(Blocks { start, step, .. }) if *step > 1 && start.as_const().is_some() => {
                n * Sym::from(self.n_values(var) as i64)
            }
            // Every block of a loop, each with all of its positions.
            Range::Blocks(_) | Range::Within { .. } => match self.start(var) {
                0 => n * &self.extent(var),
                first => n * Sym::from((self.of(&self.extent(var)) - first).max(0)),
            },
            Range::Whole { len } => n * Sym::from(self.of(len)),
        });
        if n.as_const().is_some() || self.of(&n) > most { Sym::from(self.of(&n).clamp(1, most)) } else { n }
    }

    /// The first value of a variable, with all other variables at theirs.
    fn start(self, var: VarId) -> i64 {
        match &self.part.vars[var].range {
            Range::Whole { .. } => 0,
            Range::Blocks(Blocks { start: first, .. }) => self.first(first, self.of(&self.extent(var))),
            Range::Within { of } => self.start(*of),
        }
    }

    /// An index with every variable at its first value, where a sequence has its last token at the end of a loop.
    fn first(self, index: &Index, end: i64) -> i64 {
        let of_atom = |atom: &Atom| match atom {
            Atom::Var(var) => self.start(*var),
            Atom::Symbols(symbols) => symbols.iter().map(|symbol| (self.at)(*symbol)).product(),
            // Of slots over rows of a page, which are pages, the end counts pages.
            Atom::Div(inner, by) if inner.terms().iter().any(|(atom, _)| is_length(atom)) => {
                self.first(inner, end * by).div_euclid(*by)
            }
            Atom::Div(inner, by) => self.first(inner, end).div_euclid(*by),
            Atom::Rem(inner, by) => self.first(inner, end).rem_euclid(*by),
            Atom::Min(inner, most) => self.first(inner, end).min(*most),
            Atom::Max(inner, least) => self.first(inner, end).max(*least),
            Atom::Lookup { .. } if is_length(atom) => end - 1,
            Atom::Lookup { .. } => 0,
        };
        index.terms().iter().fold(index.offset(), |sum, (atom, factor)| sum + factor * of_atom(atom))
    }

    /// One past the largest value of a variable.
    fn extent(self, var: VarId) -> Sym {
        self.part.vars[var].range.end(&self.part.vars).cloned().unwrap_or_default()
    }

    /// How many values a variable takes.
    fn n_values(self, var: VarId) -> f64 {
        if let Some(routed) = self.part.routed.as_ref().filter(|_| self.part.ends_with_list(var)) {
            let rows: f64 = routed.rows.iter().map(|var| self.n_values(*var)).product();
            // On average over experts.
            let own = rows / self.n_values(routed.expert).max(1.0);
            let block = self.part.vars[routed.along].range.blocks().map_or(1, |blocks| blocks.block);
            let n_blocks = (own / block as f64).ceil().max(1.0);
            return if var == routed.along { n_blocks } else { own / n_blocks };
        }
        let len = |var: VarId| (self.of(&self.extent(var)) - self.start(var)).max(0);
        match &self.part.vars[var].range {
            Range::Whole { len } => self.of(len).max(0) as f64,
            Range::Blocks(Blocks { step, .. }) => ((len(var) + step - 1) / step) as f64,
            Range::Within { of } => match self.part.vars[*of].range.blocks() {
                // Blocks that several tasks share are counted once over all of them.
                Some(blocks) if blocks.step == blocks.block => len(*of) as f64 / self.n_values(*of).max(1.0),
                _ => self.part.n_values(var, &|sym| self.of(sym)) as f64,
            },
        }
    }
}

fn hull(a: Interval, b: Interval, at: Values<'_>) -> Interval {
    let end = |i: &Interval| i.first + i.len.evaluate(at);
    if a.first <= b.first && end(&a) >= end(&b) {
        return a;
    }
    if b.first <= a.first && end(&b) >= end(&a) {
        return b;
    }
    let (first, end) = (a.first.min(b.first), end(&a).max(end(&b)));
    Interval { first, len: Sym::from(end - first) }
}

fn operations(expr: &Expr) -> f64 {
    match expr {
        Expr::Const(_) | Expr::Position(_) | Expr::Load { .. } | Expr::Cast(..) => 0.0,
        Expr::Unary(f, _) => match f {
            Unary::Neg => 1.0,
            Unary::Sqrt | Unary::Rsqrt | Unary::Recip => 4.0,
            Unary::Exp | Unary::Ln | Unary::Sin | Unary::Cos => 16.0,
        },
        Expr::Binary(f, ..) => match f {
            Binary::Div => 4.0,
            Binary::Add
            | Binary::Sub
            | Binary::Mul
            | Binary::Max
            | Binary::Min
            | Binary::Lt
            | Binary::Le
            | Binary::Eq => 1.0,
        },
        Expr::Select(..) => 1.0,
    }
}

fn tile_bytes(part: &Part) -> usize {
    part.tiles.values().map(|tile| tile.dims.iter().product::<usize>() * 4).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::target::{CUDA_SM90, Rates};

    #[test]
    fn what_each_task_reads_again_is_counted_again() {
        let text = r#"kernel "matvec w" matrix-vector
  read @0 x : f32[d:128]
  read @1 w : f32[r:64, d:128]
  write @2 y : f32[r:64]
part
  var r0 in blocks of 8 step 8 from 0 to 64
  var r1 within r0
  var d2 in 0..128
  grid r0
  for r1
    @2[r1] = sum d2 of mul(@0[d2], @1[r1, d2])
"#;
        let found = measure(&parse(text).unwrap());
        let (x, rows, y) = (4.0 * 128.0, 4.0 * 8.0 * 128.0, 4.0 * 8.0);
        assert_eq!((found.n_tasks, found.task_bytes), (8, x + rows + y));
        assert_eq!((found.l2_bytes, found.bytes_read), (8.0 * (x + rows + y), x + 8.0 * rows));
        let rates = Rates { l2_bandwidth_per_unit: 1.0, ..CUDA_SM90.rates };
        let slow = Target { rates, ..CUDA_SM90 };
        assert!(found.seconds(&slow) > found.task_bytes);
    }
}
