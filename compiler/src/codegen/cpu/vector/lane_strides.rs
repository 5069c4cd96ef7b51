//! How indices change across the lanes of a vectorised loop.
//!
//! In: an index, and the loop variable whose values become lanes. Out: the stride of the index between neighbouring
//! lanes, for all of them or within groups, and what divides the index at the first lane of a group. Nothing is emitted
//! here; where there is no answer, lanes are computed one by one.

use crate::kernel::index::{Atom, Index, Vars, gcd};
use crate::kernel::{Blocks, Range, Var, VarId};

/// Lanes of a vector.
pub(crate) const LANES: i64 = 4;

/// The variable whose values become lanes.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a> {
    pub(crate) vars: &'a Vars,
    pub(crate) var: VarId,
    /// The values that are done at once.
    pub(crate) rounds: i64,
    /// The number of neighbouring values over which an index must have one stride; else there is no answer.
    pub(crate) group: i64,
}

/// From one lane to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stride {
    pub(crate) step: i64,
    /// Whether all lanes are that far apart, or only those of an aligned group.
    pub(crate) is_even: bool,
}

impl Lane<'_> {
    /// Whether an index is another in another lane.
    pub(crate) fn moves(&self, index: &Index) -> bool {
        index.uses_var(|var| var == self.var)
    }

    /// The stride of an index, if it is the same in every group of lanes.
    pub(crate) fn stride(&self, index: &Index) -> Option<Stride> {
        let mut sum = Stride { step: 0, is_even: true };
        for (atom, factor) in index.terms() {
            let Stride { step, is_even } = self.stride_of(atom)?;
            sum = Stride { step: sum.step + step.checked_mul(*factor)?, is_even: sum.is_even && is_even };
        }
        Some(sum)
    }

    fn stride_of(&self, atom: &Atom) -> Option<Stride> {
        let still = |is_even| Some(Stride { step: 0, is_even });
        match atom {
            Atom::Var(var) => Some(Stride { step: i64::from(*var == self.var), is_even: true }),
            Atom::Symbols(_) => still(true),
            Atom::Div(inner, by) | Atom::Rem(inner, by) => match self.stride(inner)? {
                Stride { step: 0, is_even } => still(is_even),
                Stride { step: 1, .. } if by % self.group == 0 && self.divisor(inner) % self.group == 0 => {
                    Some(Stride { step: i64::from(matches!(atom, Atom::Rem(..))), is_even: false })
                }
                Stride { .. } => None,
            },
            Atom::Min(inner, _) | Atom::Max(inner, _) => self.stride(inner).filter(|stride| stride.step == 0),
            Atom::Lookup { at, .. } => {
                let strides: Option<Vec<Stride>> = at.iter().map(|index| self.stride(index)).collect();
                let strides = strides?;
                let is_still = strides.iter().all(|stride| stride.step == 0);
                is_still.then(|| Stride { step: 0, is_even: strides.iter().all(|stride| stride.is_even) })
            }
        }
    }

    /// A divisor of an index in the first lane of every group, or of all iterations; 0 divides 0.
    pub(crate) fn divisor(&self, index: &Index) -> i64 {
        index.terms().iter().fold(index.offset().abs(), |so_far, (atom, factor)| {
            gcd(so_far, self.divisor_of(atom).saturating_mul(factor.saturating_abs()))
        })
    }

    fn divisor_of(&self, atom: &Atom) -> i64 {
        match atom {
            Atom::Var(var) if *var == self.var => gcd(self.first_divisor(), self.rounds),
            Atom::Var(var) => match &self.vars[*var].range {
                Range::Blocks(Blocks { start, step, .. }) => gcd(self.divisor(start), *step),
                Range::Whole { .. } | Range::Within { .. } => 1,
            },
            Atom::Rem(inner, by) => gcd(self.divisor(inner), *by),
            Atom::Min(inner, bound) | Atom::Max(inner, bound) => gcd(self.divisor(inner), bound.abs()),
            Atom::Symbols(_) | Atom::Div(..) | Atom::Lookup { .. } => 1,
        }
    }

    /// What divides the first value of the variable.
    fn first_divisor(&self) -> i64 {
        match &self.vars[self.var].range {
            Range::Whole { .. } => 0,
            Range::Within { of } => self.divisor_of(&Atom::Var(*of)),
            Range::Blocks(_) => 1,
        }
    }

    /// A divisor of the number of values of the variable.
    pub(crate) fn length_divisor(&self) -> i64 {
        let Var { range, until, .. } = &self.vars[self.var];
        match range {
            _ if !until.is_empty() => 1,
            Range::Whole { len } => self.divisor(&Index::sym(len)),
            Range::Within { of } => self.vars[*of].range.blocks().map_or(1, |blocks| {
                let rest = gcd(self.divisor(&Index::sym(&blocks.end)), self.first_divisor());
                gcd(rest, blocks.block)
            }),
            Range::Blocks(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Var;
    use crate::tensor::label::Label;
    use crate::tensor::sym::Sym;

    #[test]
    fn indices_move_evenly_in_groups_or_not_at_all() {
        let mut vars = Vars::default();
        let mut add = |name: &str, range| vars.push(Var::new(Label::new(name).unwrap(), range));
        let whole = |len: i64| Range::Whole { len: Sym::from(len) };
        let (e, t) = (add("e", whole(128)), add("t", whole(7)));
        let of = add(
            "b",
            Range::Blocks(Blocks { start: Index::default(), step: 32, block: 32, end: Sym::from(96i64) }),
        );
        let within = add("w", Range::Within { of });
        let lane = Lane { vars: &vars, var: e, rounds: 8, group: LANES };
        let x = Index::var(e);
        let stride = |index: &Index| lane.stride(index).map(|stride| (stride.step, stride.is_even));
        assert_eq!(stride(&x.times(3).plus(&Index::var(t))), Some((3, true)));
        assert_eq!(stride(&x.rem(64, &vars)), Some((1, false)));
        assert_eq!(stride(&x.div(64, &vars)), Some((0, false)));
        assert_eq!(stride(&x.plus(&Index::constant(64)).rem(128, &vars)), Some((1, false)));
        assert_eq!(stride(&x.plus(&Index::constant(2)).rem(64, &vars)), None);
        assert_eq!(stride(&x.div(2, &vars)), None);
        assert_eq!(lane.divisor(&x.plus(&Index::var(of))), 8);
        assert_eq!(lane.length_divisor(), 128);
        let lane = Lane { vars: &vars, var: within, rounds: 16, group: LANES };
        assert_eq!(lane.length_divisor(), 32);
        assert_eq!(lane.stride(&Index::var(within).minus(&Index::var(of))).map(|s| s.step), Some(1));
    }
}
