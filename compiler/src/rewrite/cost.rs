//! The cost model of rewriting: seconds of a node on the target, added up over everything below it.
//!
//! In: an operation, and the [`Bill`] of each argument. Out: the bill of the result: one entry for each piece of work,
//! so that what two arguments share is paid once. Movement is free; elementwise operations will be fused, so only their
//! arithmetic counts. Contractions, reductions, attention and top-k move bytes, and pay for a launch. `README.md`
//! describes the model in words. Estimates choose between forms and mean nothing else.

use crate::graph::op::Op;
use crate::rewrite::facts::Facts;
use crate::target::{Target, Work};
use crate::tensor::shape::Axis;

/// Seconds that make a form with fewer elementwise nodes, or fewer summed axes, the cheaper of two that do the same.
const NODE: f64 = 1e-9;

/// A piece of work: whose it is, and which part of it.
type Key = (usize, Part);

/// The parts of the work of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Reading operands and computing.
    Work,
    /// Starting a kernel and writing the result.
    Finish,
    /// Everything, for the positions from here on only.
    From(i64),
}

/// What a value costs with everything it is computed from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bill {
    /// The sum.
    pub(crate) total: f64,
    /// Sorted by key.
    entries: Vec<(Key, f64)>,
    /// Axes along which a sum is still to be awaited before the value is known.
    pending: Vec<Axis>,
    /// Contractions that reach the value through elementwise operations only.
    open: Vec<usize>,
    /// What the value is put together of, where it is a concatenation or made of one.
    parts: Option<Parts>,
}

/// Parts one after another along an axis: how many positions each has, and what each counts for.
type Parts = (Axis, Vec<(f64, f64)>);

/// An argument of a node: whose value it is, what it computes, and what that costs.
#[derive(Clone, Copy)]
pub(crate) struct Arg<'a> {
    /// The number of the value.
    pub(crate) value: usize,
    /// What is known about it.
    pub(crate) facts: &'a Facts,
    /// The operation that computes it.
    pub(crate) op: &'a Op,
    /// What it costs.
    pub(crate) bill: &'a Bill,
}

/// The bill of value number `value`, computed by `op` from `args`.
pub(crate) fn bill(target: &Target, value: usize, op: &Op, facts: &Facts, args: &[Arg<'_>]) -> Bill {
    let mut bill = merged(args);
    match op {
        Op::Slice { axis, start, .. } => share(&mut bill, *axis, start.as_const(), facts, args[0]),
        Op::Rename { from, to } => bill.rename_pending(&[*from], [*to]),
        Op::Split { axis, into } => bill.rename_pending(&[*axis], into.axes()),
        Op::Merge { axes, into } => bill.rename_pending(axes, [*into]),
        Op::Contract { over } => {
            let wait =
                if bill.pending.iter().any(|axis| over.contains(axis)) { target.rates.launch } else { 0.0 };
            let work = Work { bytes: read(args), flops: 2.0 * joint_len(args) };
            let seconds = target.rates.roofline(work) + NODE * over.len() as f64;
            bill.close(value, seconds, wait + finish(target, facts), true);
            bill.parts = args.iter().find_map(|arg| parts_of(target, arg.bill, over, work.flops));
        }
        Op::Attend { .. } => {
            bill.stream(args[0].bill);
            let work =
                Work { bytes: args[1].facts.read, flops: 2.0 * joint_len(args) + 6.0 * args[0].facts.len };
            bill.close(value, target.rates.roofline(work), finish(target, facts), false);
        }
        Op::Reduce { axis, .. } => {
            let work = Work { bytes: read(args), flops: args[0].facts.len };
            let mut pending = std::mem::take(&mut bill.pending);
            bill.close(value, target.rates.roofline(work), finish(target, facts), false);
            pending.push(*axis);
            bill.pending = pending;
        }
        Op::TopK { .. } => {
            let work = Work { bytes: read(args), flops: args[0].facts.len };
            bill.close(value, target.rates.roofline(work), finish(target, facts), false);
        }
        Op::Write { .. } => bill.add((value, Part::Work), args[1].facts.len * 8.0 / target.rates.bandwidth),
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Barrier => {
            bill.add((value, Part::Work), NODE + facts.len / target.rates.flops);
        }
        Op::Gather { .. } => bill.add((value, Part::Work), NODE),
        Op::Concat { axis } => {
            let part = |arg: &Arg<'_>| (positions(arg.facts, *axis), arg.facts.read);
            bill.parts = Some((*axis, args.iter().map(part).collect()));
        }
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Const(_)
        | Op::Table { .. }
        | Op::Iota { .. }
        | Op::Symbolic(_)
        | Op::Expand { .. } => {}
    }
    bill.total = bill.entries.iter().map(|(_, seconds)| seconds).sum();
    bill
}

/// What a whole graph costs: every value once and in full, whoever reads which part of it.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Vec<(Key, f64)>,
    streamed: Vec<usize>,
}

impl Ledger {
    /// Enters a value. The bills of its arguments are those that entering them returned.
    pub(crate) fn enter(
        &mut self,
        target: &Target,
        value: usize,
        op: &Op,
        facts: &Facts,
        args: &[Arg<'_>],
    ) -> Bill {
        let mut bill = bill(target, value, op, facts, args);
        if let Op::Attend { .. } = op {
            self.streamed.extend(&args[0].bill.open);
        }
        self.entries.append(&mut bill.entries);
        bill
    }

    /// The sum.
    pub(crate) fn total(&self) -> f64 {
        let is_streamed = |(value, part): &Key| *part == Part::Finish && self.streamed.contains(value);
        self.entries.iter().filter(|(key, _)| !is_streamed(key)).map(|(_, seconds)| seconds).sum()
    }
}

impl Bill {
    fn add(&mut self, key: Key, seconds: f64) {
        match self.entries.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(at) => self.entries[at].1 = seconds,
            Err(at) => self.entries.insert(at, (key, seconds)),
        }
    }

    /// Ends a kernel: nothing is pending after it.
    fn close(&mut self, value: usize, work: f64, finish: f64, is_open: bool) {
        self.add((value, Part::Work), work);
        self.add((value, Part::Finish), finish);
        self.pending.clear();
        self.open.clear();
        if is_open {
            self.open.push(value);
        }
    }

    /// Calls axes by the names they have from now on.
    fn rename_pending(&mut self, from: &[Axis], to: impl IntoIterator<Item = Axis>) {
        if self.pending.iter().any(|axis| from.contains(axis)) {
            self.pending.retain(|axis| !from.contains(axis));
            self.pending.extend(to);
        }
    }

    /// Takes out the ends of the contractions that produce `scores`: they are used as they come.
    fn stream(&mut self, scores: &Self) {
        self.entries.retain(|((value, part), _)| *part != Part::Finish || !scores.open.contains(value));
    }
}

/// A slice of a contraction needs that part of its rows only; if all of it is read, the parts add up to the whole.
fn share(bill: &mut Bill, axis: Axis, start: Option<i64>, facts: &Facts, whole: Arg<'_>) {
    let (Op::Contract { .. }, Some(start)) = (whole.op, start) else { return };
    let (len, all) = (positions(facts, axis), positions(whole.facts, axis));
    if len >= all {
        return;
    }
    let mut seconds = 0.0;
    bill.entries.retain(|((value, part), cost)| {
        let is_own = *value == whole.value && matches!(part, Part::Work | Part::Finish);
        seconds += if is_own { *cost } else { 0.0 };
        !is_own
    });
    let fraction = match &whole.bill.parts {
        Some((along, parts)) if *along == axis => weight_of(parts, start as f64, len),
        _ => len / all.max(1.0),
    };
    bill.add((whole.value, Part::From(start)), seconds * fraction);
}

/// What a run of positions counts for, as a fraction of all parts.
fn weight_of(parts: &[(f64, f64)], start: f64, len: f64) -> f64 {
    let (mut before, mut own, mut all) = (0.0, 0.0, 0.0);
    for (positions, weight) in parts {
        let overlap = ((start + len).min(before + positions) - start.max(before)).max(0.0);
        own += weight * overlap / positions.max(1.0);
        all += weight;
        before += positions;
    }
    if all > 0.0 { own / all } else { 1.0 }
}

/// The rows of a contraction with an operand that is a concatenation: each part with the seconds it takes.
fn parts_of(target: &Target, operand: &Bill, over: &[Axis], flops: f64) -> Option<Parts> {
    let (axis, parts) = operand.parts.as_ref().filter(|(axis, _)| !over.contains(axis))?;
    let all: f64 = parts.iter().map(|(positions, _)| positions).sum();
    let seconds = |(positions, bytes): &(f64, f64)| {
        let work = Work { bytes: *bytes, flops: flops * positions / all.max(1.0) };
        (*positions, target.rates.roofline(work))
    };
    Some((*axis, parts.iter().map(seconds).collect()))
}

fn positions(facts: &Facts, axis: Axis) -> f64 {
    facts.ty.shape.size(axis).map_or(1.0, |size| size.near() as f64)
}

fn finish(target: &Target, facts: &Facts) -> f64 {
    target.rates.launch + facts.len * facts.ty.dtype.bytes() as f64 / target.rates.bandwidth
}

fn read(args: &[Arg<'_>]) -> f64 {
    args.iter().map(|arg| arg.facts.read).sum()
}

/// How many elements two tensors have between them when they meet by name.
fn joint_len(args: &[Arg<'_>]) -> f64 {
    let (a, b) = (args[0].facts, args[1].facts);
    let own = b.ty.shape.iter().filter(|(axis, _)| !a.has(*axis));
    a.len * own.map(|(_, size)| size.near() as f64).product::<f64>()
}

fn merged(args: &[Arg<'_>]) -> Bill {
    let Some((first, rest)) = args.split_first() else { return Bill::default() };
    let mut bill = Bill { parts: None, ..first.bill.clone() };
    for arg in rest {
        bill.entries = union(&bill.entries, &arg.bill.entries);
        bill.pending.extend(arg.bill.pending.iter().copied());
        bill.open.extend(arg.bill.open.iter().copied());
    }
    bill.pending.sort_unstable();
    bill.pending.dedup();
    bill.open.sort_unstable();
    bill.open.dedup();
    bill
}

/// Both sorted lists in one; of a key that is in both, the larger entry.
fn union(a: &[(Key, f64)], b: &[(Key, f64)]) -> Vec<(Key, f64)> {
    let mut all = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some((left, most)), Some((right, other))) if left == right => {
                let next = (*left, most.max(*other));
                a.next();
                b.next();
                Some(next)
            }
            (Some((left, _)), Some((right, _))) if right < left => b.next().copied(),
            (Some(_), _) => a.next().copied(),
            (None, _) => b.next().copied(),
        };
        match next {
            Some(entry) => all.push(entry),
            None => return all,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::build::Tensor;
    use crate::rewrite::encode::encode;
    use crate::rewrite::extract::cheapest;
    use crate::rewrite::rules::tests::sizes;
    use crate::rewrite::tests::cpu;
    use crate::rewrite::{Settings, improve};
    use crate::tensor::dtype::DType::F32;
    use crate::tensor::quant::Format;

    /// Seconds of a value as it is written.
    fn seconds(y: &Tensor) -> f64 {
        let graph = y.builder().finish(&[("y", y)]).unwrap();
        improve(&graph, &Settings { fuel: Some(0), ..Settings::new(cpu()) }).1.seconds
    }

    #[test]
    fn shared_work_is_paid_once() {
        let (g, [t, d, h]) = sizes([("t", 1), ("d", 1024), ("h", 1024)]);
        let y = g.input("x", F32, &[&t, &d]).contract(&g.weight("w", Format::Q8_0, &[&h, &d]), [&d]);
        let once = seconds(&y);
        assert!(once > cpu().rates.launch + (1024.0 * 1024.0 / 32.0 * 34.0) / cpu().rates.bandwidth);
        assert!(seconds(&(&y + y.exp())) < 1.001 * once);
    }

    #[test]
    fn waiting_for_a_sum_costs_a_launch() {
        let (g, [t, d, h]) = sizes([("t", 1), ("d", 1024), ("h", 1024)]);
        let (x, w) = (g.input("x", F32, &[&t, &d]), g.weight("w", Format::Q8_0, &[&h, &d]));
        let scale = x.sum(&d).rsqrt();
        let (waits, does_not) = ((&x * &scale).contract(&w, [&d]), x.contract(&w, [&d]) * &scale);
        let saved = seconds(&waits) - seconds(&does_not);
        assert!((saved / cpu().rates.launch - 1.0).abs() < 0.01, "{saved}");
    }

    #[test]
    fn slices_of_a_contraction_pay_for_all_of_it_together() {
        let (g, [t, d, r]) = sizes([("t", 1), ("d", 1024), ("r", 64)]);
        let parts = [g.weight("a", Format::F32, &[&r, &d]), g.weight("b", Format::Q8_0, &[&r, &d])];
        let y = g.input("x", F32, &[&t, &d]).contract(&g.concat(&r, &[&parts[0], &parts[1]]), [&d]);
        let (a, b) = (y.slice(&r, 0, 64), y.slice(&r, 64, 64));
        let graph = g.finish(&[("all", &y), ("first", &a), ("second", &b)]).unwrap();
        let encoded = encode(&graph);
        let choices = cheapest(&encoded.egraph, &cpu());
        let price = |output: usize| choices.of(encoded.classes[graph.outputs[output].1]).unwrap().bill.total;
        let (all, first, second) = (price(0), price(1), price(2));
        assert!(((first + second) / all - 1.0).abs() < 1e-9, "{first} + {second} is not {all}");
        assert!(first > 3.0 * second, "rows of more bytes take more: {first}, {second}");
    }
}
