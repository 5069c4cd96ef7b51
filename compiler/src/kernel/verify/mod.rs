//! Proves that a kernel is well formed and that every access it makes stays inside.
//!
//! In: any kernel. Out: one complaint for each thing that does not fit; none means that code may be made of it.
//! Every index of every load, store and lookup lies between 0 and the size of its axis by [`Index::bounds`]; a tile is
//! written before it is read; a nest reads nothing that it writes but the element a fold starts from.
//! Of a kernel whose accesses are inside, no two tasks store to the same element, so tasks may run in any order.
//! What is proven here is never checked again by generated code; `run` checks it all the same.
//! Ranges and statements are walked here, nests in `nest.rs`, indices in `index.rs`, types in `types.rs`;
//! `activations.rs` proves what is quantised, `once.rs` what tasks share, and `disjoint.rs` that tasks never meet.

use crate::error::Complaint;
use crate::kernel::index::Index;
use crate::kernel::print::{all_symbols, place_text, var_text};
use crate::kernel::product::operands::unfit_operands;
use crate::kernel::verify::disjoint::verify_disjoint;
use crate::kernel::walk::nests;
use crate::kernel::{
    Access, ActivationsId, Blocks, Kernel, Nest, Param, ParamId, Part, Place, Range, RoutedRows, Stmt, Tile,
    TileId, VarId,
};
use crate::tensor::dtype::DType;

mod activations;
pub mod disjoint;
mod index;
mod nest;
mod once;
pub mod types;

/// The most elements of a buffer.
const MAX_ELEMENTS: usize = 1 << 40;
/// The most elements of a tile.
const MAX_TILE: usize = 1 << 24;

/// Everything that does not fit, in the order of the text; nothing where the kernel is sound.
pub fn verify(kernel: &Kernel) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    verify_symbols(kernel, &mut complaints);
    for (id, param) in kernel.params.iter() {
        verify_param(id, param, &mut complaints);
    }
    for (number, part) in kernel.parts.iter().enumerate() {
        let mut checker = Checker {
            kernel,
            part,
            place: format!("part {number}"),
            bound: Vec::new(),
            written: Vec::new(),
            quantised: Vec::new(),
            complaints: Vec::new(),
        };
        // Bounds mean nothing where a size or a range is unsound.
        if checker.tiles_fit() && checker.ranges_fit() && checker.activations_fit() && complaints.is_empty() {
            checker.walk();
            checker.operands();
            checker.shared();
        }
        complaints.append(&mut checker.complaints);
    }
    // Bounds decide which terms of an index tell tasks apart.
    if complaints.is_empty() {
        verify_disjoint(kernel, &mut complaints);
    }
    complaints
}

fn verify_symbols(kernel: &Kernel, complaints: &mut Vec<Complaint>) {
    let mut symbols = all_symbols(kernel);
    symbols.sort_by_key(|s| (s.name, s.min, s.max, s.near));
    symbols.dedup_by_key(|s| (s.name, s.min, s.max, s.near));
    for pair in symbols.windows(2).filter(|pair| pair[0].name == pair[1].name) {
        let [a, b] = [pair[0], pair[1]].map(|s| format!("{}..{} near {}", s.min, s.max, s.near));
        complaints.push(Complaint::new(
            "kernel",
            format!("symbol {} is in {a} and in {b}, one range is possible", pair[0].name),
        ));
    }
}

fn verify_param(id: ParamId, param: &Param, complaints: &mut Vec<Complaint>) {
    let place = format!("buffer {id}");
    let n_elements = count(&param_dims(param));
    if n_elements.is_none_or(|n| n > MAX_ELEMENTS) {
        complaints
            .push(Complaint::new(&place, "every size must be from 1 up, and the elements at most 2^40"));
    } else if n_elements.and_then(|n| param.format.bytes_for(n)).is_none() {
        let what = format!("its elements do not fill blocks of {}, whole blocks are needed", param.format);
        complaints.push(Complaint::new(&place, what));
    }
    if param.access == Access::Write && !param.format.is_written() {
        let what = format!("{} cannot be written, an element type, q8_0 or q4_0 can", param.format);
        complaints.push(Complaint::new(&place, what));
    }
}

/// The sizes a buffer is laid out for.
fn param_dims(param: &Param) -> Vec<i64> {
    param.shape.iter().map(|(_, size)| size.most()).collect()
}

/// How many elements there are; nothing where a size is not positive or no machine counts so far.
fn count(dims: &[i64]) -> Option<usize> {
    let positive = |dim: &i64| usize::try_from(*dim).ok().filter(|dim| *dim > 0);
    dims.iter().try_fold(1usize, |n, dim| n.checked_mul(positive(dim)?))
}

/// One part, as far as it has been walked.
struct Checker<'a> {
    kernel: &'a Kernel,
    part: &'a Part,
    /// Where complaints point to.
    place: String,
    /// The variables that have a value here, outermost first.
    bound: Vec<VarId>,
    /// The tiles that surely hold something here.
    written: Vec<TileId>,
    /// The activations that are quantised here, as they are now.
    quantised: Vec<ActivationsId>,
    complaints: Vec<Complaint>,
}

impl Checker<'_> {
    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(Complaint::new(&self.place, what.into()));
    }

    /// Checks that the tiles which products multiply on tensor cores may hold rounded elements.
    fn operands(&mut self) {
        if !self.complaints.is_empty() {
            return;
        }
        for tile in unfit_operands(self.kernel, self.part) {
            let tile = place_text(Place::Tile(tile));
            self.complain(format!(
                "{tile} is an operand of MMAs, and others read, fill or lay it out otherwise"
            ));
        }
    }

    fn tiles_fit(&mut self) -> bool {
        for (id, tile) in self.part.tiles.iter() {
            if count(&tile_dims(tile)).is_none_or(|n| n > MAX_TILE) {
                let name = place_text(Place::Tile(id));
                self.complain(format!("{name}: every size must be from 1 up, and the elements at most 2^24"));
            }
        }
        self.complaints.is_empty()
    }

    fn ranges_fit(&mut self) -> bool {
        for (id, var) in self.part.vars.iter() {
            let misfit = match &var.range {
                Range::Whole { .. } => None,
                Range::Blocks(Blocks { step, block, .. }) if *step < 1 || *block < 1 => {
                    Some("steps and blocks must be from 1 up".to_owned())
                }
                Range::Blocks(Blocks { start, .. }) => start
                    .uses_var(|other| other >= id)
                    .then(|| "the first start may depend on variables declared above only".to_owned()),
                Range::Within { of } => self.within_misfit(id, *of),
            };
            if let Some(misfit) = misfit {
                self.complain(format!("{}: {misfit}", self.var(id)));
            }
        }
        self.complaints.is_empty()
    }

    fn within_misfit(&self, id: VarId, of: VarId) -> Option<String> {
        let base = self.part.vars.get(of).filter(|_| of < id);
        let fits = base.is_some_and(|base| matches!(base.range, Range::Blocks(_)));
        (!fits).then(|| {
            format!("runs within {}, which must be a variable of blocks declared above", self.var(of))
        })
    }

    fn walk(&mut self) {
        for var in &self.part.grid {
            self.bind(*var, "the grid", !self.is_within(*var), "whole axes and blocks");
            if self.part.vars.get(*var).is_some_and(|var| !var.until.is_empty()) {
                self.complain(format!(
                    "{} is a variable of the grid, which takes no `until`",
                    self.var(*var)
                ));
            }
        }
        if let Some(routed) = &self.part.routed {
            self.routed_rows(routed);
        }
        self.body(&self.part.body);
    }

    /// A list has every row of an expert once: all rows are numbered, and blocks run through the whole list.
    fn routed_rows(&mut self, routed: &RoutedRows) {
        let RoutedRows { rows, by, expert, list, along } = routed;
        let n_bound = self.bound.len();
        for var in rows {
            self.bind(*var, "a list", self.is_whole(*var), "whole axes");
        }
        self.index(by, None);
        self.bound.truncate(n_bound);
        if by.uses_var(|var| !rows.contains(&var)) {
            self.complain("the expert of a row may depend on the row only");
        }
        if !self.part.grid.contains(expert) || !self.is_whole(*expert) {
            self.complain(format!("{} must number experts: a whole axis of the grid", self.var(*expert)));
        }
        let name = place_text(Place::Tile(*list));
        let n_rows = self.n_rows(rows);
        let tile = n_rows.map(|n| Tile { dtype: DType::I32, dims: vec![n as usize] });
        if tile.is_none() || self.part.tiles.get(*list) != tile.as_ref() {
            let n = n_rows.map_or_else(|| "a fixed number".to_owned(), |n| n.to_string());
            self.complain(format!("{name} must have room for {n} of i32, one for each row"));
        }
        if nests(&self.part.body).any(|nest| nest.target == Place::Tile(*list)) {
            self.complain(format!("{name} is a list and stored to, which only the list itself may"));
        }
        let blocks = self.part.vars.get(*along).and_then(|var| var.range.blocks());
        let runs_through = |blocks: &Blocks| {
            let ends = (blocks.start.as_const(), blocks.end.as_const());
            ends == (Some(0), n_rows) && blocks.step == blocks.block && !self.bound.contains(along)
        };
        if !blocks.is_some_and(runs_through) {
            self.complain(format!(
                "{} must run through {name} in blocks, one after another",
                self.var(*along)
            ));
        }
        self.written.push(*list);
    }

    /// How many rows some variables number at most; nothing where numbers do not tell them.
    fn n_rows(&self, rows: &[VarId]) -> Option<i64> {
        let len = |var: &VarId| self.part.vars.get(*var)?.range.whole_len();
        let (first, others) = rows.split_first()?;
        let others = others.iter().map(|var| len(var)?.as_const());
        others.chain([Some(len(first)?.most())]).try_fold(1, |n: i64, len| n.checked_mul(len?.max(1)))
    }

    fn is_whole(&self, var: VarId) -> bool {
        let var = self.part.vars.get(var);
        var.is_some_and(|var| var.until.is_empty() && var.range.whole_len().is_some())
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::Nest(nest) => self.nest(nest),
                Stmt::Loop { var, body } => self.repeat(*var, body),
                // Whether it may be skipped is proven by `once.rs`.
                Stmt::Once { body, .. } => self.body(body),
                Stmt::Quantise(id) => self.quantise(*id),
            }
        }
    }

    fn repeat(&mut self, var: VarId, body: &[Stmt]) {
        let (n_bound, n_written) = (self.bound.len(), self.written.len());
        // What a round stores to is not quantised any more when the next begins.
        for tile in nests(body).filter_map(Nest::tile) {
            self.forget_quantised(tile);
        }
        let quantised = self.quantised.clone();
        if self.bind(var, "a loop", !self.is_within(var), "whole axes and blocks") {
            self.body(body);
        }
        // A loop may have no iteration, so what it writes does not count after it.
        self.bound.truncate(n_bound);
        self.written.truncate(n_written);
        self.quantised = quantised;
    }

    /// Gives a variable a value in what follows; says whether that is sound.
    fn bind(&mut self, var: VarId, whose: &str, is_allowed: bool, allowed: &str) -> bool {
        let n_complaints = self.complaints.len();
        let name = self.var(var);
        let until = self.part.vars.get(var).map_or(&[][..], |var| &var.until);
        for bound in until {
            if bound.uses_var(|other| other >= var) {
                self.complain(format!("{name} may end before a bound of variables declared above only"));
            } else {
                self.index(bound, None);
            }
        }
        match self.part.vars.get(var).map(|var| &var.range) {
            None => self.complain(format!("{name} is not a variable of this part")),
            Some(_) if self.bound.contains(&var) => self.complain(format!("{name} has a value already")),
            Some(_) if !is_allowed => {
                self.complain(format!("{name} is a variable of {whose}, which takes {allowed}"));
            }
            Some(Range::Blocks(Blocks { start, .. })) => self.first_start(&name, start),
            Some(Range::Within { of }) if !self.bound.contains(of) => {
                let base = self.var(*of);
                self.complain(format!("{name} runs within {base}, which has no value here"));
            }
            Some(Range::Whole { .. } | Range::Within { .. }) => {}
        }
        self.bound.push(var);
        self.complaints.len() == n_complaints
    }

    fn first_start(&mut self, name: &str, start: &Index) {
        if self.index(start, None) && start.bounds(&self.part.vars).0 < 0 {
            let least = start.bounds(&self.part.vars).0;
            self.complain(format!("{name} may start at {least}, it must start from 0 up"));
        }
    }

    fn is_within(&self, var: VarId) -> bool {
        self.part.vars.get(var).is_some_and(|var| matches!(var.range, Range::Within { .. }))
    }

    fn var(&self, id: VarId) -> String {
        var_text(&self.part.vars, id)
    }

    /// The sizes of a place; nothing where there is no such place.
    fn dims(&self, place: Place) -> Option<Vec<i64>> {
        match place {
            Place::Param(param) => self.kernel.params.get(param).map(param_dims),
            Place::Tile(tile) => self.part.tiles.get(tile).map(tile_dims),
        }
    }

    fn dtype(&self, place: Place) -> Option<DType> {
        match place {
            Place::Param(param) => self.kernel.params.get(param).map(|param| param.format.dtype()),
            Place::Tile(tile) => self.part.tiles.get(tile).map(|tile| tile.dtype),
        }
    }
}

fn tile_dims(tile: &Tile) -> Vec<i64> {
    tile.dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect()
}

#[cfg(test)]
mod tests;
