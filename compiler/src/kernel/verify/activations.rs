//! Proves what products multiply as quantised numbers.
//!
//! In: activations that a part declares, the statements that quantise them, and the products that name them. Out:
//! complaints. A product multiplies the columns that it names, and they have been quantised in the same round of every
//! loop around it, of numbers that nobody has stored to since; or they are a whole buffer, which is quantised ahead.

use crate::kernel::print::{access_text, place_text};
use crate::kernel::product::Activations;
use crate::kernel::product::activations::COLUMNS;
use crate::kernel::verify::Checker;
use crate::kernel::walk::tiles_in;
use crate::kernel::{ActivationsId, Nest, Place, TileId};
use crate::tensor::dtype::DType;

impl Checker<'_> {
    /// Whether there is what they name, so that more can be asked of them.
    pub(super) fn activations_fit(&mut self) -> bool {
        for (id, own) in self.part.activations.iter() {
            let dims = self.dims(own.from);
            let are_there = |var| self.part.vars.get(var).is_some();
            let are_known = own.loops().all(are_there)
                && own.at.iter().all(|index| !index.uses_var(|var| !are_there(var)));
            if dims.is_none_or(|dims| dims.len() != own.at.len()) || !are_known {
                self.complain(format!("{id} is of elements that there are not"));
            } else if self.dtype(own.from) != Some(DType::F32) {
                self.complain(format!("{id} is of {}, which must hold f32", place_text(own.from)));
            }
        }
        self.complaints.is_empty()
    }

    /// Checks a statement that quantises activations, and notes that they are.
    pub(super) fn quantise(&mut self, id: ActivationsId) {
        let Some(own) = self.part.activations.get(id) else {
            return self.complain(format!("there are no {id}"));
        };
        if own.is_ahead {
            return self.complain(format!("{id} is quantised ahead of all tasks, and again"));
        }
        let n_bound = self.bound.len();
        self.loops(&own.loops().collect::<Vec<_>>());
        self.load(own.from, &own.at, None);
        self.bound.truncate(n_bound);
        if !self.quantised.contains(&id) {
            self.quantised.push(id);
        }
    }

    /// Notes that a tile has other elements now.
    pub(super) fn forget_quantised(&mut self, tile: TileId) {
        let activations = &self.part.activations;
        self.quantised.retain(|id| !reads(&activations[*id], tile));
    }

    /// Checks that a product multiplies the activations that it names.
    pub(super) fn product_of(&mut self, nest: &Nest, id: ActivationsId) {
        let Some(named) = self.part.activations.get(id) else {
            return self.complain(format!("there are no {id}"));
        };
        let described = |own: &Activations| own.described(self.kernel, self.part);
        let Some(columns) = described(named) else {
            return self.complain(format!("{id} has no fixed length or no bound"));
        };
        if Activations::of(self.kernel, self.part, nest).and_then(|own| described(&own)).as_ref()
            != Some(&columns)
        {
            let from = access_text(named.from, &named.at, &self.part.vars);
            self.complain(format!("multiplies other columns than {id}, those of {from}"));
        } else if named.is_ahead && !named.may_be_ahead(self.kernel, self.part, &columns) {
            self.complain(format!(
                "{id} cannot be quantised ahead: it is no whole buffer, by {COLUMNS} columns"
            ));
        } else if !named.is_ahead && !self.quantised.contains(&id) {
            self.complain(format!("{id} is not quantised here"));
        }
    }
}

/// Whether activations are read from a tile, or where a tile says.
fn reads(own: &Activations, tile: TileId) -> bool {
    let mut found = [].into();
    own.at.iter().for_each(|index| tiles_in(index, &mut found));
    own.from == Place::Tile(tile) || found.contains(&tile)
}
