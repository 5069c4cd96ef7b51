//! The most multiplications a second that a level of instructions gives one thread.
//!
//! In: a level. Out: [`Peaks`], by what weights are, or nothing where no loop is written for the level.
//! Each loop multiplies registers, with as many sums as hide how long an instruction takes; memory is never met.
//! A multiplication counts with the addition that belongs to it.

use fusebox_compiler::simd::Level;

/// Multiplications a second with the best instruction that a level has for weights of each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peaks {
    /// In single precision.
    pub(super) single: f64,
    /// In half precision.
    pub(super) f16: f64,
    /// Of bfloat16 numbers.
    pub(super) bf16: f64,
    /// In blocks of whole numbers.
    pub(super) blocks: f64,
}

/// What a level reaches, if this processor has it. AMX, Arm and the portable level have no loop here.
pub(super) fn peaks(level: Level) -> Option<Peaks> {
    #[cfg(target_arch = "x86_64")]
    return if level.is_supported() { x86::peaks(level) } else { None };
    #[cfg(not(target_arch = "x86_64"))]
    return None.filter(|_| level.is_supported());
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_add_epi32, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps,
        _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_fmadd_ps,
        _mm512_set1_epi32, _mm512_set1_ps,
    };
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    use fusebox_compiler::simd::Level;

    use super::Peaks;

    /// Sums that wait for nothing but themselves.
    const N_SUMS: usize = 12;

    /// Rounds of a loop between two looks at the clock.
    const N_ROUNDS: usize = 20_000;

    /// How long a loop is repeated.
    const MOMENT: Duration = Duration::from_millis(50);

    /// A level that this processor has.
    pub(super) fn peaks(level: Level) -> Option<Peaks> {
        match level {
            Level::Avx512Bf16 => {
                // SAFETY: the level is there, and so are its instructions.
                let bf16 = rate(32, || unsafe { halves_of_512() });
                Some(Peaks { bf16, ..peaks(Level::Avx512)? })
            }
            Level::Avx512 => {
                // SAFETY: as above.
                let single = rate(16, || unsafe { singles_of_512() });
                // SAFETY: as above.
                let words = rate(32, || unsafe { words_of_512() });
                // SAFETY: as above.
                let blocks = rate(64, || unsafe { bytes_of_512() });
                Some(Peaks { single, f16: words, bf16: words, blocks })
            }
            Level::Avx2 => {
                // SAFETY: as above.
                let single = rate(8, || unsafe { singles_of_256() });
                // SAFETY: as above.
                let blocks = rate(16, || unsafe { words_of_256() });
                Some(Peaks { single, f16: single, bf16: single, blocks })
            }
            Level::Amx | Level::Neon | Level::Portable => None,
        }
    }

    /// Multiplications a second of a loop that does `n` of them for a sum and an iteration.
    fn rate(n: usize, run: impl Fn()) -> f64 {
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        while begin.elapsed() < MOMENT {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
        }
        (n * N_SUMS * N_ROUNDS) as f64 / best
    }

    /// A function that adds to each sum in every round.
    macro_rules! looped {
        ($name:ident, $features:literal, $x:expr, $zero:expr, |$sum:ident, $own:ident| $next:expr) => {
            #[target_feature(enable = $features)]
            fn $name() {
                let $own = $x;
                let mut sums = [$zero; N_SUMS];
                for _ in 0..N_ROUNDS {
                    for $sum in &mut sums {
                        *$sum = $next;
                    }
                }
                black_box(sums);
            }
        };
    }

    looped! { singles_of_512, "avx512f", _mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(0.0),
    |sum, x| _mm512_fmadd_ps(x, x, *sum) }

    looped! { halves_of_512, "avx512f,avx512bf16",
    _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(0.5)), _mm512_set1_ps(0.0),
    |sum, x| _mm512_dpbf16_ps(*sum, x, x) }

    looped! { words_of_512, "avx512f,avx512vnni", _mm512_set1_epi32(black_box(0x0001_0002)),
    _mm512_set1_epi32(0), |sum, x| _mm512_dpwssd_epi32(*sum, x, x) }

    looped! { bytes_of_512, "avx512f,avx512vnni", _mm512_set1_epi32(black_box(0x0102_0102)),
    _mm512_set1_epi32(0), |sum, x| _mm512_dpbusd_epi32(*sum, x, x) }

    looped! { singles_of_256, "avx2,fma", _mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(0.0),
    |sum, x| _mm256_fmadd_ps(x, x, *sum) }

    // Words, as the level has them: products of bytes could be too large for sums of 16 bits. One factor changes, or
    // the loop would multiply once.
    looped! { words_of_256, "avx2", _mm256_set1_epi32(black_box(0x0001_0002)), _mm256_set1_epi32(1),
    |sum, x| _mm256_add_epi32(*sum, _mm256_madd_epi16(*sum, x)) }
}
