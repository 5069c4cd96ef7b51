//! Polynomial coefficients of f32 math functions, shared by all backends.
//!
//! In: nothing. Out: coefficients, the highest power first, and the parts of `ln 2` for range reduction.
//! Each backend evaluates them with its own instructions, in its `approx.rs`.

/// Adding it to a number of at most 22 bits leaves the nearest integer in the lowest bits.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// `ln 2` in two parts; the first has nine bits, so its product with an exponent is exact.
pub(super) const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];

/// `(e^x - 1 - x) / x²` for `|x|` up to half of `ln 2`, the highest power first.
pub(super) const EXP: [f32; 6] =
    [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

/// `(ln(1 + x) - x + x²/2) / x³` for `1 + x` between `√½` and `√2`.
pub(super) const LN: [f32; 9] = [
    7.037_684e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_8e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// `(sin x - x) / x³` in powers of `x²`, for `|x|` up to an eighth of a turn.
pub(super) const SIN: [f32; 3] = [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1];

/// `(cos x - 1 + x²/2) / x⁴` in powers of `x²`.
pub(super) const COS: [f32; 3] = [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2];
