//! Allocates offsets in one arena from lifetimes: first fit, largest first.
//!
//! In: sizes with the times during which they are needed. Out: an offset for each, and the size of the arena. Each goes
//! to the lowest offset at which it overlaps nothing that is needed at the same time. Nothing here knows what is
//! allocated. The result depends on the order of the input alone; it is never larger than all sizes together, nor
//! smaller than what is needed at one time.

/// Every offset is a multiple of this: a cache line, and more than any element needs.
pub const ALIGNMENT: usize = 64;

/// A number of bytes that is needed from one time to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The size.
    pub bytes: usize,
    /// The first time.
    pub first: usize,
    /// The last time.
    pub last: usize,
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Packing {
    /// The first byte of each interval.
    pub offsets: Vec<usize>,
    /// One past the last byte of all, a multiple of the alignment.
    pub bytes: usize,
}

/// Places intervals: greedy by size, first fit.
pub fn pack(intervals: &[Interval]) -> Packing {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(intervals[*index].bytes), intervals[*index].first, *index));
    let mut packing = Packing { offsets: vec![0; intervals.len()], bytes: 0 };
    // Sorted by offset.
    let mut placed: Vec<Placed> = Vec::with_capacity(intervals.len());
    for index in order {
        let interval = intervals[index];
        let bytes = aligned(interval.bytes);
        let start = first_fit(&placed, interval, bytes);
        let end = start.saturating_add(bytes);
        let at = placed.partition_point(|other| other.start <= start);
        placed.insert(at, Placed { start, end, interval });
        packing.offsets[index] = start;
        packing.bytes = packing.bytes.max(end);
    }
    packing
}

impl Interval {
    /// Whether both are needed at some time.
    pub fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

struct Placed {
    start: usize,
    end: usize,
    interval: Interval,
}

/// The lowest offset from which on `bytes` are free whenever the interval needs them.
fn first_fit(placed: &[Placed], interval: Interval, bytes: usize) -> usize {
    let mut start = 0usize;
    for other in placed.iter().filter(|other| other.interval.meets(&interval)) {
        if other.start >= start.saturating_add(bytes) {
            break;
        }
        start = start.max(other.end);
    }
    start
}

fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(intervals: &[(usize, usize, usize)], offsets: &[usize], bytes: usize) {
        let intervals: Vec<Interval> = intervals
            .iter()
            .map(|(bytes, first, last)| Interval { bytes: *bytes, first: *first, last: *last })
            .collect();
        assert_eq!(pack(&intervals), Packing { offsets: offsets.to_vec(), bytes });
    }

    #[test]
    fn what_meets_lies_apart_and_the_rest_shares() {
        check(&[], &[], 0);
        check(&[(64, 0, 1), (64, 1, 2), (64, 2, 3)], &[0, 64, 0], 128);
        check(&[(64, 0, 0), (64, 1, 1), (64, 2, 2)], &[0, 0, 0], 64);
    }

    #[test]
    fn the_largest_goes_first_and_small_ones_fill_gaps() {
        check(&[(10, 0, 9), (128, 0, 1), (128, 1, 2), (64, 2, 3)], &[256, 0, 128, 0], 320);
    }

    #[test]
    fn offsets_are_aligned_and_nothing_takes_no_room() {
        check(&[(1, 0, 0), (1, 0, 0), (0, 0, 0)], &[0, 64, 0], 128);
    }

    #[test]
    fn sizes_beyond_any_memory_do_not_wrap_around() {
        let interval = Interval { bytes: usize::MAX - 1, first: 0, last: 0 };
        assert_eq!(pack(&[interval; 2]).bytes, usize::MAX);
    }

    fn intervals() -> impl Strategy<Value = Vec<Interval>> {
        let interval = (0usize..4096, 0usize..40, 0usize..12);
        let interval = interval.prop_map(|(bytes, first, len)| Interval { bytes, first, last: first + len });
        proptest::collection::vec(interval, 0..60)
    }

    proptest! {
        #[test]
        fn a_packing_is_sound_and_neither_too_large_nor_too_small(intervals in intervals()) {
            let packing = pack(&intervals);
            let end = |index: usize| packing.offsets[index] + intervals[index].bytes;
            for (a, interval) in intervals.iter().enumerate() {
                prop_assert!(packing.offsets[a].is_multiple_of(ALIGNMENT) && end(a) <= packing.bytes);
                for (b, other) in intervals.iter().enumerate().skip(a + 1) {
                    let apart = end(a) <= packing.offsets[b] || end(b) <= packing.offsets[a];
                    prop_assert!(apart || !interval.meets(other), "{} and {}", a, b);
                }
            }
            let sum: usize = intervals.iter().map(|interval| aligned(interval.bytes)).sum();
            let live = |time: usize| -> usize {
                let now = Interval { bytes: 0, first: time, last: time };
                intervals.iter().filter(|interval| interval.meets(&now)).map(|interval| interval.bytes).sum()
            };
            prop_assert!(packing.bytes <= sum);
            prop_assert!((0..52).all(|time| packing.bytes >= live(time)));
        }
    }
}
