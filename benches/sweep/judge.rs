//! Which cells stand out from their neighbours.
//!
//! In: the time of each cell. Out: a [`Verdict`] on each. Along each axis the cells that differ in nothing else make a
//! line; a cell's cost, its time over the roofline, is compared with the line through its two neighbours, both on
//! logarithmic scales. A cell at an end has one neighbour, and is compared with that.
//! A prompt of n tokens must not cost more than n tokens one by one.

use std::collections::BTreeMap;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::foundation::table::table as columns;

use crate::cells::{Cell, Kind};
use crate::model::Time;

/// A cell stands out from here on.
const MOST: f64 = 1.5;
/// A prompt may cost so much more than its tokens one by one: clocks are no better.
const NOISE: f64 = 1.1;

/// How a cell compares with what it should take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) time: Time,
    /// How many times it takes that, by the worst of all comparisons; at least 1.
    pub(crate) factor: f64,
    what: String,
    pub(crate) stands_out: bool,
}

impl Verdict {
    fn new(time: Time, factor: f64, most: f64, what: String) -> Self {
        Self { time, factor, what, stands_out: factor > most }
    }

    fn rank(&self) -> (bool, f64) {
        (self.stands_out, self.factor)
    }
}

/// Compares every cell with all that it can be compared with.
pub(crate) fn judged(times: &BTreeMap<Cell, Time>) -> BTreeMap<Cell, Verdict> {
    let mut all = Vec::new();
    for axis in 0..Cell::AXES.len() {
        for line in lines(times, axis).values() {
            all.extend(along(axis, line));
        }
    }
    all.extend(times.iter().filter_map(|(cell, time)| Some((*cell, one_by_one(times, cell, *time)?))));
    let alone = |time: &Time| Verdict::new(*time, 1.0, MOST, "nothing".to_owned());
    let mut worst: BTreeMap<Cell, Verdict> = times.iter().map(|(cell, time)| (*cell, alone(time))).collect();
    for (cell, verdict) in all {
        worst.entry(cell).and_modify(|known| {
            if verdict.rank() > known.rank() {
                *known = verdict;
            }
        });
    }
    worst
}

/// The cells that stand out as a table, the worst first.
pub(crate) fn table(verdicts: &BTreeMap<Cell, Verdict>) -> String {
    let mut out: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.stands_out).collect();
    out.sort_by(|(_, a), (_, b)| b.factor.total_cmp(&a.factor));
    let mut rows = vec![["cell", "ms", "factor", "compared with"].map(str::to_owned)];
    rows.extend(out.iter().map(|(cell, Verdict { time, factor, what, .. })| {
        [cell.to_string(), format!("{:.3}", time.ms), format!("{factor:.2}"), what.clone()]
    }));
    let n = format!("{} of {} stand out\n", out.len(), counted(verdicts.len(), "cell"));
    if out.is_empty() { n } else { columns("lrrl", "  ", &rows) + &n }
}

/// Cells in order along one axis, by their family and their other coordinates.
type Lines = BTreeMap<(Kind, [u64; 4]), Vec<(Cell, Time)>>;

/// The lines along an axis: cells that differ in nothing else, in order.
fn lines(times: &BTreeMap<Cell, Time>, axis: usize) -> Lines {
    let mut lines = Lines::new();
    for (cell, time) in times {
        let mut others = cell.coordinates();
        others[axis] = 0;
        lines.entry((cell.shape.kind, others)).or_default().push((*cell, *time));
    }
    for line in lines.values_mut() {
        line.sort_by_key(|(cell, _)| cell.coordinates()[axis]);
    }
    lines
}

/// Compares each cell of a line with its neighbours.
fn along(axis: usize, line: &[(Cell, Time)]) -> Vec<(Cell, Verdict)> {
    let x = |place: usize| (line[place].0.coordinates()[axis] as f64).ln();
    let cost = |place: usize| -line[place].1.share.ln();
    let verdict = |place: usize| {
        let (before, after) = (place.checked_sub(1), Some(place + 1).filter(|next| *next < line.len()));
        let expected = match (before, after) {
            (Some(a), Some(b)) => cost(a) + (cost(b) - cost(a)) * (x(place) - x(a)) / (x(b) - x(a)),
            (Some(one), None) | (None, Some(one)) => cost(one),
            (None, None) => return None,
        };
        let (cell, time) = line[place];
        let what = format!("the line along {}", Cell::AXES[axis]);
        Some((cell, Verdict::new(time, (cost(place) - expected).exp(), MOST, what)))
    };
    (0..line.len()).filter_map(verdict).collect()
}

/// Compares a prompt with its tokens one by one.
fn one_by_one(times: &BTreeMap<Cell, Time>, cell: &Cell, time: Time) -> Option<Verdict> {
    let alone = times.get(&Cell { prompt: 1, ..*cell }).filter(|_| cell.prompt > 1)?;
    let factor = time.ms / (alone.ms * cell.prompt as f64);
    Some(Verdict::new(time, factor, NOISE, format!("{} tokens one by one", cell.prompt)))
}
