//! Fits a scale, and an offset, to a group of numbers: weighted least squares.
//!
//! In: the elements of a group, all finite. Out: the scale, or scale and offset, with the least quantisation error.
//! Both searches try several roundings and take the best slope for each; large elements weigh more. The order of the
//! sums is llama.cpp's, so that equal elements give equal bits.

use crate::tensor::quant::encode::greatest;

/// A group that is smaller than this is all zeros.
const NOTHING: f32 = 1e-15;

/// Elements as `scale * q - offset`, for `q` from 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) offset: f32,
}

/// Which roundings are tried: those that would spread the elements over `most + first + 0.1 * step` quanta.
pub(super) struct Search {
    pub(super) most: u8,
    pub(super) first: f32,
    pub(super) n_steps: u8,
}

/// The slope through zero for quanta from `-half` to `half - 1`; each element counts with its square.
pub(super) fn slope(x: &[f32], half: i8) -> f32 {
    let extreme = greatest(x);
    if extreme.abs() < NOTHING {
        return 0.0;
    }
    let half = f32::from(half);
    let (mut best, mut found) = (0.0, 0.0);
    let tried = (-9..=9_i8).filter(|step| *step != 0).map(|step| half + 0.1 * f32::from(step));
    for (turn, spread) in std::iter::once(half).chain(tried).enumerate() {
        let inverse = -spread / extreme;
        let (mut products, mut squares) = (0.0, 0.0);
        for x in x {
            let q = nearest((inverse * x).clamp(-half, half - 1.0));
            products += x * x * x * q;
            squares += x * x * q * q;
        }
        if turn == 0 || (squares > 0.0 && products * products > best * squares) {
            found = if squares == 0.0 { 0.0 } else { products / squares };
            best = found * products;
        }
    }
    found
}

/// The line for quanta from 0 to `most`, whose offset is never negative.
pub(super) fn line(x: &[f32; 32], search: &Search) -> Line {
    let size = (x.iter().fold(0.0, |sum, x| sum + x * x) / 32.0).sqrt();
    let weights = x.map(|x| size + x.abs());
    let least = x.iter().fold(0.0, |least: f32, x| least.min(*x));
    let most = x.iter().fold(x[0], |most, x| most.max(*x));
    if most == least {
        return Line { scale: 0.0, offset: -least };
    }
    let n_quanta = f32::from(search.most);
    let quanta = |spread: f32, low: f32| {
        let inverse = spread / (most - low);
        x.map(|x| nearest((inverse * (x - low)).clamp(0.0, n_quanta)))
    };
    let mut found = (1.0 / (n_quanta / (most - least)), least);
    let mut least_loss = loss(x, &weights, &quanta(n_quanta, least), found);
    for step in 0..search.n_steps {
        // What was found so far is where the next rounding begins.
        let quanta = quanta(search.first + 0.1 * f32::from(step) + n_quanta, found.1);
        let Some(line) = least_squares(x, &weights, &quanta) else { continue };
        let loss = loss(x, &weights, &quanta, line);
        if loss < least_loss {
            (least_loss, found) = (loss, line);
        }
    }
    Line { scale: found.0, offset: -found.1 }
}

/// The nearest whole number, of two the even one; for numbers of a few digits.
pub(super) fn nearest(x: f32) -> f32 {
    // From here to the next power of two the distance between floats is one, so the sum is rounded to it.
    const UNIT: f32 = 12_582_912.0;
    (x + UNIT) - UNIT
}

/// The weighted squares of what a scale and a lower end lose.
fn loss(x: &[f32; 32], weights: &[f32; 32], quanta: &[f32; 32], (scale, low): (f32, f32)) -> f32 {
    let terms = x.iter().zip(weights).zip(quanta);
    terms.fold(0.0, |sum, ((x, weight), q)| {
        let lost = scale * q + low - x;
        sum + weight * (lost * lost)
    })
}

/// The best scale and lower end for given quanta; none where all quanta are one.
fn least_squares(x: &[f32; 32], weights: &[f32; 32], quanta: &[f32; 32]) -> Option<(f32, f32)> {
    let (mut total, mut sum_x, mut sum_q, mut squares, mut products) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ((x, w), q) in x.iter().zip(weights).zip(quanta) {
        total += w;
        sum_x += w * x;
        sum_q += w * q;
        squares += w * q * q;
        products += w * q * x;
    }
    let determinant: f32 = total * squares - sum_q * sum_q;
    if determinant <= 0.0 {
        return None;
    }
    let low = (squares * sum_x - sum_q * products) / determinant;
    if low > 0.0 {
        return Some((products / squares, 0.0));
    }
    Some(((total * products - sum_x * sum_q) / determinant, low))
}
