//! Memory accesses of a nest that becomes a function of rows: addresses and strides.
//!
//! In: a nest, and which of its loops run over rows and elements. Out: [`Places`], or `None` where an access does not
//! fit such a function. Accesses a constant apart share an address. Nothing is emitted here.

use crate::codegen::cpu::vector::lane_strides::Lane;
use crate::codegen::cpu::wide::evex::ADDRESSES;
use crate::foundation::entity::List;
use crate::kernel::index::Index;
use crate::kernel::stored::Stored;
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::walk::needed;
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, VarId};
use crate::tensor::dtype::DType;

/// The loops inside a function.
#[derive(Clone, Copy)]
pub(super) struct Loops<'a> {
    /// Goes through the elements of a row.
    pub(super) lane: Lane<'a>,
    /// Whether a row is all of its values, not a part of them.
    pub(super) is_whole: bool,
    /// Goes through rows.
    pub(super) row: Option<VarId>,
}

/// A field of a function's arguments, after the sizes: first all addresses.
pub(super) enum Field {
    /// Of the first element.
    Address(Stored),
    /// A number that is the same in all iterations.
    Number(ExprId),
    /// The first position.
    Position(Index),
}

/// How far an index moves with each loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) row: i64,
    pub(super) lane: i64,
}

/// In which rounds an expression is another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    Nowhere,
    Rows,
    Lanes,
}

/// Where the element of a round lies.
#[derive(Clone, Copy)]
pub(super) struct Access {
    /// The number of its address.
    pub(super) address: usize,
    /// What is added to that, in bytes.
    pub(super) offset: i32,
    pub(super) dtype: DType,
    pub(super) extent: Extent,
}

/// All of a nest.
pub(super) struct Places {
    pub(super) is_needed: List<ExprId, bool>,
    pub(super) dtypes: List<ExprId, DType>,
    pub(super) extents: List<ExprId, Extent>,
    pub(super) loads: List<ExprId, Option<Access>>,
    /// How positions move.
    pub(super) positions: List<ExprId, Option<Steps>>,
    pub(super) target: Access,
    /// By how many bytes each address moves from row to row.
    pub(super) row_steps: Vec<i32>,
    pub(super) fields: Vec<Field>,
}

impl Places {
    pub(super) fn new(kernel: &Kernel, part: &Part, nest: &Nest, loops: Loops<'_>) -> Option<Self> {
        let of_place = |place| Stored::of(kernel, part, place, &[]).format.dtype();
        let roots: Vec<ExprId> = [nest.value].into_iter().chain(nest.init()).collect();
        let is_needed = needed(&nest.exprs, &roots, |_| false);
        let (mut addresses, mut positions) = (Addresses::default(), List::default());
        let (mut extents, mut loads) = (List::<ExprId, Extent>::default(), List::default());
        for (id, expr) in nest.exprs.iter() {
            let (mut extent, mut load, mut position) = (Extent::Nowhere, None, None);
            match expr {
                _ if !is_needed[id] => {}
                Expr::Load { from, at } if loops.moves(at) => {
                    let access = addresses.access(&Stored::of(kernel, part, *from, at), loops)?;
                    (extent, load) = (access.extent, Some(access));
                }
                Expr::Const(_) | Expr::Load { .. } => {}
                Expr::Position(index) => {
                    let steps = loops.steps(index)?;
                    (extent, position) = (steps.extent(), Some(steps));
                }
                _ => {
                    let operands = expr.operands().into_iter().map(|operand| extents[operand]);
                    extent = operands.max().unwrap_or(Extent::Nowhere);
                }
            }
            extents.push(extent);
            loads.push(load);
            positions.push(position.filter(|_| extent > Extent::Nowhere));
        }
        let target = addresses.access(&Stored::of(kernel, part, nest.target, &nest.at), loops)?;
        let (stored, row_steps): (Vec<_>, Vec<_>) = addresses.all.into_iter().unzip();
        let mut own = Self {
            dtypes: expr_dtypes(&nest.exprs, of_place).ok()?,
            fields: stored.into_iter().map(Field::Address).collect(),
            is_needed,
            extents,
            loads,
            positions,
            target,
            row_steps,
        };
        own.add_numbers(nest);
        Some(own)
    }

    /// The fields after the addresses: numbers that are the same in all iterations, and first positions.
    fn add_numbers(&mut self, nest: &Nest) {
        for (id, expr) in nest.exprs.iter().filter(|(id, _)| self.is_needed[*id]) {
            let is_number = self.extents[id] == Extent::Nowhere && !matches!(expr, Expr::Const(_));
            match expr {
                Expr::Position(index) if self.positions[id].is_some() => {
                    self.fields.push(Field::Position(index.clone()));
                }
                _ if is_number && self.has_varying_user(nest, id) => self.fields.push(Field::Number(id)),
                _ => {}
            }
        }
    }

    /// Whether a number that is the same in all iterations has a user that is not.
    fn has_varying_user(&self, nest: &Nest, id: ExprId) -> bool {
        let mut users = nest.exprs.iter().filter(|(user, _)| self.is_needed[*user]);
        id == nest.value
            || nest.init() == Some(id)
            || users.any(|(user, expr)| {
                self.extents[user] > Extent::Nowhere && expr.operands().into_iter().any(|of| of == id)
            })
    }
}

impl Loops<'_> {
    fn moves(&self, at: &[Index]) -> bool {
        let is_inner = |var: VarId| var == self.lane.var || Some(var) == self.row;
        at.iter().any(|index| index.uses_var(is_inner))
    }

    fn steps(&self, index: &Index) -> Option<Steps> {
        let lane = if self.is_whole { index.step_of(self.lane.var)? } else { self.lane.stride(index)?.step };
        let row = self.row.map_or(Some(0), |row| index.step_of(row))?;
        Some(Steps { row, lane })
    }
}

impl Steps {
    fn extent(self) -> Extent {
        match self {
            Self { row: 0, lane: 0 } => Extent::Nowhere,
            Self { lane: 0, .. } => Extent::Rows,
            Self { .. } => Extent::Lanes,
        }
    }
}

/// The base addresses of accesses, with their steps from row to row.
#[derive(Default)]
struct Addresses {
    all: Vec<(Stored, i32)>,
}

impl Addresses {
    fn access(&mut self, element: &Stored, loops: Loops<'_>) -> Option<Access> {
        let dtype = element.format.plain()?;
        let in_bytes = |n: i64| i32::try_from(n.checked_mul(dtype.bytes() as i64)?).ok();
        let steps = loops.steps(&element.element)?;
        let extent = match steps.lane {
            0 => Extent::Rows,
            1 => Extent::Lanes,
            _ => return None,
        };
        let step = in_bytes(steps.row)?;
        for (address, (stored, _)) in self.all.iter().enumerate().filter(|(_, all)| all.1 == step) {
            let apart = element.element.minus(&stored.element);
            if let Some(apart) = apart.as_const().filter(|_| stored.place == element.place) {
                return Some(Access { address, offset: in_bytes(apart)?, dtype, extent });
            }
        }
        self.all.push((element.clone(), step));
        let address = self.all.len() - 1;
        (address < ADDRESSES.len()).then_some(Access { address, offset: 0, dtype, extent })
    }
}
