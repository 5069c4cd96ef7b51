//! Proves that indices stay inside what they index, and that what they read may be read.
//!
//! In: an index or an element of a place. Out: complaints, and whether the index is sound.
//! Bounds are asked only of an index whose variables exist and whose divisors are positive.
//! A lookup inside an index is a read like any other.

use crate::kernel::index::{Atom, Index};
use crate::kernel::print::{access_text, index_text, place_text};
use crate::kernel::verify::Checker;
use crate::kernel::{Access, Place};
use crate::tensor::dtype::DType;

impl Checker<'_> {
    /// Checks a load: that the place may be read, and that the element is inside.
    pub(super) fn load(&mut self, from: Place, at: &[Index], target: Option<Place>) {
        if target == Some(from) {
            self.complain(format!("reads {}, which it writes", access_text(from, at, &self.part.vars)));
        }
        if self.readable(from) {
            self.element(from, at, target);
        }
    }

    /// Checks that there is one index for each axis, and that it lies inside.
    pub(super) fn element(&mut self, place: Place, at: &[Index], target: Option<Place>) {
        let Some(dims) = self.dims(place) else {
            return self.complain(format!("there is no {}", place_text(place)));
        };
        if at.len() != dims.len() {
            let (place, n, rank) = (place_text(place), at.len(), dims.len());
            return self.complain(format!("{place} has rank {rank} and is given an index of rank {n}"));
        }
        for (axis, (index, dim)) in at.iter().zip(dims).enumerate() {
            if !self.index(index, target) {
                continue;
            }
            let (least, most) = index.bounds(&self.part.vars);
            if least < 0 || most >= dim {
                let (text, place) = (index_text(index, &self.part.vars), place_text(place));
                self.complain(format!(
                    "{text} is in {least}..={most}, axis {axis} of {place} takes 0..={}",
                    dim - 1
                ));
            }
        }
    }

    /// Checks the atoms of an index; says whether its bounds mean something.
    pub(super) fn index(&mut self, index: &Index, target: Option<Place>) -> bool {
        let n_complaints = self.complaints.len();
        for (atom, _) in index.terms() {
            self.atom(atom, target);
        }
        self.complaints.len() == n_complaints
    }

    fn atom(&mut self, atom: &Atom, target: Option<Place>) {
        match atom {
            Atom::Var(var) if !self.bound.contains(var) => {
                self.complain(format!("{} has no value here", self.var(*var)));
            }
            Atom::Var(_) | Atom::Symbols(_) => {}
            Atom::Div(_, by) | Atom::Rem(_, by) if *by < 1 => {
                self.complain(format!("a division by {by}, it must be by 1 or more"));
            }
            Atom::Div(inner, _) | Atom::Rem(inner, _) | Atom::Min(inner, _) | Atom::Max(inner, _) => {
                self.index(inner, target);
            }
            Atom::Lookup { below, .. } if *below < 1 => {
                self.complain(format!("a lookup below {below}, it must be below 1 or more"));
            }
            Atom::Lookup { from, at, .. } => {
                if self.dtype(*from).is_some_and(|dtype| dtype != DType::I32) {
                    self.complain(format!("a lookup in {}, which must hold i32", place_text(*from)));
                }
                self.load(*from, at, target);
            }
        }
    }

    fn readable(&mut self, place: Place) -> bool {
        let name = place_text(place);
        match place {
            Place::Param(param) => match self.kernel.params.get(param).map(|param| param.access) {
                None => self.complain(format!("there is no {name}")),
                Some(Access::Write) => self.complain(format!("reads {name}, which is for writing")),
                Some(Access::Read) => return true,
            },
            Place::Tile(tile) if self.part.tiles.get(tile).is_none() => {
                self.complain(format!("there is no {name}"));
            }
            Place::Tile(tile) if !self.written.contains(&tile) => {
                self.complain(format!("reads {name} before it is written"));
            }
            Place::Tile(_) => return true,
        }
        false
    }
}
