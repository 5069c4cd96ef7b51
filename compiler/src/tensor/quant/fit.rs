//! Fits a scale, and an offset, to a group of numbers: weighted least squares.
//!
//! In: the elements of a group, all finite. Out: the scale, or scale and offset, with the least quantisation error.
//! Both searches try several roundings and take the best slope for each; large elements weigh more. The order of the
//! sums is llama.cpp's, so that equal elements give equal bits.

/// A group that is smaller than this is all zeros.
pub(super) const NOTHING: f32 = 1e-15;

/// Elements as `scale * q - offset`, for `q` from 0.
pub(super) struct Fit<const N: usize> {
    pub(super) scale: f32,
    pub(super) offset: f32,
    pub(super) quanta: [u8; N],
}

/// Which roundings are tried: those that would spread the elements over `most + first + step * n` quanta.
pub(super) struct Search {
    pub(super) most: u8,
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) n_steps: u8,
    pub(super) loss: Loss,
}

/// How a difference counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Absolute,
    Square,
}

/// The first element of the greatest size.
pub(super) fn greatest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |found: f32, x| if x.abs() > found.abs() { *x } else { found })
}

/// The slope through zero for quanta from `-half` to `half - 1`, with the quanta, counted from 0.
pub(super) fn slope<const N: usize>(x: &[f32; N], weights: &[f32; N], half: i8) -> (f32, [u8; N]) {
    let extreme = greatest(x);
    if extreme.abs() < NOTHING {
        return (0.0, [0; N]);
    }
    let half = f32::from(half);
    let (mut best, mut found, mut quanta) = (0.0, 0.0, [0.0; N]);
    let tried = (-9..=9_i8).filter(|step| *step != 0).map(|step| half + 0.1 * f32::from(step));
    for (turn, spread) in std::iter::once(half).chain(tried).enumerate() {
        let inverse = -spread / extreme;
        let tried = x.map(|x| nearest((inverse * x).clamp(-half, half - 1.0)));
        let (mut products, mut squares) = (0.0, 0.0);
        for ((x, weight), q) in x.iter().zip(weights).zip(tried) {
            products += weight * x * q;
            squares += weight * q * q;
        }
        if turn == 0 || (squares > 0.0 && products * products > best * squares) {
            found = if squares == 0.0 { 0.0 } else { products / squares };
            (best, quanta) = (found * products, tried);
        }
    }
    (found, quanta.map(|q| (q + half) as u8))
}

/// The slope through zero for quanta from 0 to `most`, of elements that are not negative, with the quanta.
pub(super) fn slope_from_zero<const N: usize>(x: &[f32; N], weights: &[f32; N], most: u8) -> (f32, [u8; N]) {
    let largest = x.iter().fold(0.0, |most: f32, x| if *x > most { *x } else { most });
    if largest == 0.0 {
        return (0.0, [0; N]);
    }
    let most = f32::from(most);
    let rounded = |inverse: f32| x.map(|x| nearest(inverse * x).min(most));
    let loss = |inverse: f32| {
        let scale = 1.0 / inverse;
        x.iter().zip(weights).zip(rounded(inverse)).fold(0.0, |sum: f32, ((x, weight), q)| {
            let lost = x - scale * q;
            sum + weight * lost * lost
        })
    };
    let mut inverse = most / largest;
    let mut least = loss(inverse);
    for step in (-4..=4_i8).filter(|step| *step != 0) {
        let other = (0.1 * f32::from(step) + most) / largest;
        let loss = loss(other);
        if loss < least {
            (least, inverse) = (loss, other);
        }
    }
    let mut quanta = rounded(inverse);
    let (mut products, mut squares) = (0.0, 0.0);
    for ((x, weight), q) in x.iter().zip(weights).zip(quanta) {
        products += weight * x * q;
        squares += weight * q * q;
    }
    for _ in 0..5 {
        let before = quanta;
        for ((x, weight), q) in x.iter().zip(weights).zip(&mut quanta) {
            let mut other_products = products - weight * x * *q;
            let mut other_squares = squares - weight * *q * *q;
            if other_products <= 0.0 || other_squares <= 0.0 {
                continue;
            }
            let other = nearest(x * other_squares / other_products).min(most);
            other_products += weight * x * other;
            other_squares += weight * other * other;
            let is_better = other_products * other_products * squares > products * products * other_squares;
            if other != *q && is_better {
                (*q, products, squares) = (other, other_products, other_squares);
            }
        }
        if quanta == before {
            break;
        }
    }
    (if squares > 0.0 { products / squares } else { 0.0 }, quanta.map(|q| q as u8))
}

/// The same by changing one quantum after another while that loses less; with the quanta, counted from 0.
pub(super) fn slope_by_one(x: &[f32; 16], half: i8) -> (f32, [u8; 16]) {
    let extreme = greatest(x);
    if extreme.abs() < NOTHING {
        return (0.0, [0; 16]);
    }
    let half = f32::from(half);
    let inverse = -half / extreme;
    let mut quanta = x.map(|x| nearest((inverse * x).clamp(-half, half - 1.0)));
    let (mut products, mut squares) = (0.0, 0.0);
    for (x, q) in x.iter().zip(quanta) {
        products += x * x * x * q;
        squares += x * x * q * q;
    }
    for _ in 0..5 {
        let before = quanta;
        for (x, q) in x.iter().zip(&mut quanta) {
            let weight = x * x;
            let mut other_products = products - weight * x * *q;
            if other_products <= 0.0 {
                continue;
            }
            let mut other_squares = squares - weight * *q * *q;
            let other = nearest((x * other_squares / other_products).clamp(-half, half - 1.0));
            other_products += weight * x * other;
            other_squares += weight * other * other;
            let is_better = other_products * other_products * squares > products * products * other_squares;
            if other != *q && other_squares > 0.0 && is_better {
                (*q, products, squares) = (other, other_products, other_squares);
            }
        }
        if quanta == before {
            break;
        }
    }
    (if squares > 0.0 { products / squares } else { 0.0 }, quanta.map(|q| (q + half) as u8))
}

/// The line for quanta from 0 to `most`, whose offset is never negative.
pub(super) fn line<const N: usize>(x: &[f32; N], weights: [f32; N], search: &Search) -> Fit<N> {
    let least = x.iter().fold(0.0, |least: f32, x| least.min(*x));
    let most = x.iter().fold(x[0], |most, x| most.max(*x));
    if most == least {
        return Fit { scale: 0.0, offset: -least, quanta: [0; N] };
    }
    let n_quanta = f32::from(search.most);
    let rounded = |spread: f32, low: f32| {
        let inverse = spread / (most - low);
        x.map(|x| nearest((inverse * (x - low)).clamp(0.0, n_quanta)))
    };
    let mut found = (1.0 / (n_quanta / (most - least)), least);
    let mut quanta = rounded(n_quanta, least);
    let mut least_loss = loss(x, &weights, &quanta, found, search.loss);
    for step in 0..search.n_steps {
        // What was found so far is where the next rounding begins.
        let others = rounded(search.first + search.step * f32::from(step) + n_quanta, found.1);
        let Some(line) = least_squares(x, &weights, &others) else { continue };
        let loss = loss(x, &weights, &others, line, search.loss);
        if loss < least_loss {
            (least_loss, found, quanta) = (loss, line, others);
        }
    }
    Fit { scale: found.0, offset: -found.1, quanta: quanta.map(|q| q as u8) }
}

/// The nearest whole number, of two the even one; for numbers of a few digits.
pub(super) fn nearest(x: f32) -> f32 {
    // From here to the next power of two the distance between floats is one, so the sum is rounded to it.
    const UNIT: f32 = 12_582_912.0;
    (x + UNIT) - UNIT
}

/// What a scale and a lower end lose, with weights.
fn loss<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    quanta: &[f32; N],
    (scale, low): (f32, f32),
    loss: Loss,
) -> f32 {
    let terms = x.iter().zip(weights).zip(quanta);
    terms.fold(0.0, |sum, ((x, weight), q)| {
        let lost = scale * q + low - x;
        sum + weight * if loss == Loss::Square { lost * lost } else { lost.abs() }
    })
}

/// The best scale and lower end for given quanta; none where all quanta are one.
fn least_squares<const N: usize>(x: &[f32; N], weights: &[f32; N], quanta: &[f32; N]) -> Option<(f32, f32)> {
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
