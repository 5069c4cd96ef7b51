//! Top-k on the device: the most likely tokens, found where their logits are computed.
//!
//! In: a number for each position of an axis. Out: the positions of the `k` largest, and these numbers.
//! A long axis is searched in two steps: the maximum of each piece, then the `k` pieces with the largest maxima in
//! full. That is exact: an element of any other piece has `k` larger ones before it.
//! Ties go to the lower position. NaN sorts first, so that the reader of the result sees it.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::layers::scope::static_size;

/// The preferred piece length, and its range.
const PIECE: (usize, [usize; 2]) = (128, [32, 1024]);

/// The positions of the `k` largest along an axis, sorted, and the numbers there: both along an axis `k`.
pub fn top_k(x: &Tensor, axis: &Dim, k: usize) -> (Tensor, Tensor) {
    let g = x.builder();
    let safe = g.select(&x.equals(x), x, &g.constant(f32::INFINITY));
    let rank = &g.dim("k", k.min(static_size(axis)));
    let ids = match piece_len(static_size(axis)) {
        Some(len) if static_size(axis) / len > k => top_k_of_pieces(&safe, axis, rank, len),
        Some(_) | None => safe.top_k(axis, rank),
    };
    (ids.clone(), x.gather(axis, &ids))
}

/// The piece length of an axis; `None` where it has no suitable divisor.
fn piece_len(len: usize) -> Option<usize> {
    let (wanted, [min, max]) = PIECE;
    (min..=max).filter(|piece| len.is_multiple_of(*piece)).min_by_key(|piece| piece.abs_diff(wanted))
}

/// The positions of the largest, searched in the pieces with the largest maxima.
fn top_k_of_pieces(x: &Tensor, axis: &Dim, rank: &Dim, len: usize) -> Tensor {
    let g = x.builder();
    let (piece, place) = (&g.dim("piece", static_size(axis) / len), &g.dim("place", len));
    let (r, few) = (&g.dim("r", rank.size.clone()), &g.dim("few", static_size(rank) * len));
    let pieces = x.split(axis, &[piece, place]); // [piece, place]
    let chosen = pieces.max(place).top_k(piece, rank); // [k]
    // Back in the order of positions, so that ties still go to the lower one.
    let order = (-chosen.cast(DType::F32)).top_k(rank, r);
    let chosen = if static_size(rank) == 1 { chosen.rename(rank, r) } else { chosen.gather(rank, &order) }; // [r]
    let numbers = pieces.gather(piece, &chosen).merge(&[r, place], few); // [few]
    let positions = &chosen * g.integer(len as i32) + g.iota(place); // [r, place]
    positions.merge(&[r, place], few).gather(few, &numbers.top_k(few, rank)) // [k]
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::graph::build::Builder;
    use fusebox_compiler::reference::{Bindings, evaluate};
    use fusebox_compiler::tensor::value::{Data, Value};

    use super::*;

    /// The top k of some numbers, as the graph finds them.
    fn found(numbers: &[f32], k: usize) -> (Vec<i32>, Vec<f32>) {
        let g = Builder::new();
        let v = g.dim("v", numbers.len());
        let (ids, scores) = top_k(&g.input("x", DType::F32, &[&v]), &v, k);
        let graph = g.finish(&[("ids", &ids), ("scores", &scores)]).unwrap();
        let mut bindings = Bindings::default();
        let x = Value::float(DType::F32, vec![(v.axis, numbers.len())], numbers.to_vec());
        bindings.inputs.insert("x".into(), x);
        let mut outputs = evaluate(&graph, &bindings).unwrap().outputs;
        match ["ids", "scores"].map(|name| outputs.remove(name).unwrap().data) {
            [Data::Int(ids), Data::Float(scores)] => (ids, scores),
            others => panic!("{others:?}"),
        }
    }

    /// The same by sorting.
    fn expected(numbers: &[f32], k: usize) -> Vec<i32> {
        let mut ids: Vec<i32> = (0..numbers.len() as i32).collect();
        ids.sort_by(|a, b| numbers[*b as usize].total_cmp(&numbers[*a as usize]));
        ids.truncate(k);
        ids
    }

    #[test]
    fn the_largest_are_found_in_order_however_many_are_equal() {
        for len in [1, 7, 128, 1024, 4096, 4099] {
            // From all different to all equal.
            for n_different in [len, 90, 5, 1] {
                let number = |i: usize| (i.wrapping_mul(7919) % n_different) as f32 - 3.0;
                let numbers: Vec<f32> = (0..len).map(number).collect();
                for k in [1, 2, 40] {
                    let (ids, scores) = found(&numbers, k);
                    assert_eq!(ids, expected(&numbers, k), "{len} numbers, {n_different} different, top {k}");
                    assert!(scores.iter().zip(&ids).all(|(score, id)| *score == numbers[*id as usize]));
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_seen() {
        let mut numbers = vec![1.0; 4096];
        (numbers[3000], numbers[3001]) = (f32::NAN, f32::INFINITY);
        let (ids, scores) = found(&numbers, 2);
        assert_eq!(ids, [3000, 3001]);
        assert!(scores[0].is_nan() && scores[1] == f32::INFINITY);
        let (ids, scores) = found(&[f32::NEG_INFINITY; 4096], 3);
        assert_eq!((ids, scores), (vec![0, 1, 2], vec![f32::NEG_INFINITY; 3]));
    }
}
