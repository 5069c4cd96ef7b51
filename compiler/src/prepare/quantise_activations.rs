//! Writes down where activations are quantised, for processors that multiply quantised numbers.
//!
//! In: a kernel whose products are known. Out: the same kernel. Each product names its activations, and products of
//! equal columns name the same. A whole buffer of columns is quantised ahead of all tasks, by all threads; single
//! columns, and those of a tile, by the task that multiplies them, outside of every loop that they do not depend on.

use std::collections::BTreeSet;
use std::slice::from_ref;

use crate::foundation::entity::List;
use crate::kernel::effects::{Effects, Memory};
use crate::kernel::product::Activations;
use crate::kernel::product::activations::Columns;
use crate::kernel::walk::{each_nest, nests};
use crate::kernel::{ActivationsId, Kernel, Part, Stmt};
use crate::options::Options;

pub(super) fn quantise_activations(kernel: &Kernel, _: &Options) -> Kernel {
    let parts = kernel.parts.iter().map(|part| {
        let is_done = !part.activations.is_empty();
        if is_done { part.clone() } else { with_statements(with_activations(kernel, part)) }
    });
    Kernel { parts: parts.collect(), ..kernel.clone() }
}

/// The part, with names for the activations of its products.
fn with_activations(kernel: &Kernel, part: &Part) -> Part {
    let mut all: Vec<Columns> = Vec::new();
    let mut activations: List<ActivationsId, Activations> = List::default();
    let mut named = part.clone();
    each_nest(&mut named.body, &mut |nest| {
        let own = Activations::of(kernel, part, nest);
        let described = own.and_then(|own| Some((own.described(kernel, part)?, own)));
        let (Some((columns, own)), Some(product)) = (described, &mut nest.product) else { return };
        let known = activations.ids().zip(&all).find(|(_, known)| **known == columns).map(|(id, _)| id);
        product.activations = Some(known.unwrap_or_else(|| {
            let is_ahead = own.may_be_ahead(kernel, part, &columns);
            all.push(columns);
            activations.push(Activations { is_ahead, ..own })
        }));
    });
    Part { activations, ..named }
}

/// The part, with statements that quantise what is not quantised ahead.
fn with_statements(mut part: Part) -> Part {
    let body = std::mem::take(&mut part.body);
    Part { body: statements(&part, body, BTreeSet::new()), ..part }
}

/// The statements of a body where some activations are quantised already, and those that quantise more.
fn statements(part: &Part, body: Vec<Stmt>, mut quantised: BTreeSet<ActivationsId>) -> Vec<Stmt> {
    let mut all = Vec::new();
    for stmt in body {
        let (loops, written) = (stmt.loops(), Effects::of(&stmt, part).writes);
        let named = nests(from_ref(&stmt)).filter_map(|nest| nest.product.as_ref()?.activations);
        for id in named.filter(|id| !part.activations[*id].is_ahead) {
            let effects = Effects::of_quantising(id, part);
            let is_whole = effects.vars.is_disjoint(&loops) && effects.reads.is_disjoint(&written);
            if is_whole && quantised.insert(id) {
                all.push(Stmt::Quantise(id));
            }
        }
        quantised.retain(|id| is_kept(part, *id, &written));
        all.push(match stmt {
            Stmt::Loop { var, body } => Stmt::Loop { var, body: statements(part, body, quantised.clone()) },
            other => other,
        });
    }
    all
}

/// Whether activations are as they were when they were quantised, after other memory was written.
fn is_kept(part: &Part, id: ActivationsId, written: &BTreeSet<Memory>) -> bool {
    Effects::of_quantising(id, part).reads.is_disjoint(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::verify::verify;
    use crate::prepare::select_products::select_products;
    use crate::target::CPU;

    /// Two weights and the same columns, a loop over others, and columns of a buffer.
    const KERNEL: &str = r#"kernel "gate up" matrix-matrix
  read @0 x : f32[t:4, d:64]
  read @1 gate : q8_0[r:8, d:64]
  read @2 up : q4_0[r:8, d:64]
  read @3 z : f32[s:2, d:64]
  write @4 y : f32[t:4, r:8]
part
  tile tile0 : f32[4, 64]
  tile tile1 : f32[4, 8]
  tile tile2 : f32[64]
  var t0 in 0..4
  var d1 in 0..64
  var r2 in 0..8
  var t3 in 0..4
  var d4 in 0..64
  var s5 in 0..2
  grid
  for t0, d1
    tile0[t0, d1] = mul(@0[t0, d1], 0.5)
  for t0, r2
    tile1[t0, r2] = sum d1 of mul(tile0[t0, d1], @1[r2, d1])
  loop s5
    for d1
      tile2[d1] = mul(@3[s5, d1], 2.0)
    for t3, r2
      tile1[t3, r2] = sum d4 of mul(tile0[t3, d4], @2[r2, d4]) from tile1[t3, r2]
    for t0, r2
      tile1[t0, r2] = sum d1 of mul(tile2[d1], @2[r2, d1]) from tile1[t0, r2]
  end
  for t0, r2
    @4[t0, r2] = sum d1 of mul(@3[1, d1], @1[r2, d1]) from tile1[t0, r2]
"#;

    #[test]
    fn equal_columns_are_quantised_once_and_those_of_a_loop_in_each_round() {
        let options = Options::for_target(CPU);
        let kernel = quantise_activations(&select_products(&parse(KERNEL).unwrap(), &options), &options);
        assert_eq!(verify(&kernel), []);
        let text = kernel.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let place =
            |line: &str| lines.iter().position(|own| *own == line).unwrap_or_else(|| panic!("{text}"));
        let (shared, own) = (place("quantise activations0"), place("quantise activations1"));
        assert!(shared < place("loop s5") && place("loop s5") < own && own < place("end"), "{text}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("quantise ")).count(), 3, "{text}");
        assert_eq!(lines.iter().filter(|line| line.ends_with("quantised activations0")).count(), 2, "{text}");
        assert_eq!(quantise_activations(&kernel, &options), kernel);
    }
}
