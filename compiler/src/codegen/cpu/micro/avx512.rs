//! Products with 512 bits and dot products of bytes: AVX-512 F, BW, VL, VNNI.
//!
//! In: addresses of descriptions. Out: as `mod.rs` says. Only a processor that has them may call these functions; the
//! table is asked for by level, and a level is checked when it is chosen.
//! `vpdpbusd` multiplies numbers without sign by numbers with one. One side is moved up by 128, and the sum starts
//! from what this adds: for one vector, moved weights and sums of the vector; in panels, moved vectors and sums of the
//! weight, which is unpacked once for all of them.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _MM_HINT_T0, _mm_loadu_ps, _mm_loadu_si128, _mm_prefetch, _mm256_and_si256,
    _mm256_loadu_si256, _mm256_mask_blend_epi16, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_srli_epi16, _mm512_add_ps, _mm512_broadcast_f32x4, _mm512_castsi256_si512, _mm512_castsi512_ps,
    _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_inserti64x4, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_permutexvar_ps,
    _mm512_reduce_add_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_set1_ps,
    _mm512_setr_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_i64x2, _mm512_slli_epi32,
    _mm512_storeu_ps, _mm512_sub_epi32, _mm512_xor_si512,
};

use crate::codegen::cpu::micro::forms::single_forms;
use crate::codegen::cpu::micro::rounding::{self, Rounded};
use crate::codegen::cpu::micro::unpack::{Storage, Unpacked, widened};
use crate::codegen::cpu::micro::view::{self, MixView, ProductView, bytes_of};
use crate::codegen::cpu::micro::{GROUP, Mix, PANEL, PANEL_BYTES, Product, Quantise, Table, row_bytes};

pub(super) const TABLE: Table = Table { single, quantised, quantise, mix, has_panels: true };

const N: usize = 16;

type V = __m512;

single_forms! { #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")] tile 4 by 4 }

/// Rows that go together.
const ROWS: usize = 4;

/// Groups of a row that are unpacked at a time for one vector, and for panels.
const FEW: usize = 32;
const MANY: usize = 128;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn zero() -> V {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn splat(x: f32) -> V {
    _mm512_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load(x: &[u8; 4 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_bytes(x: &[u8; 64]) -> __m512i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_half(x: &[u8; 32]) -> __m256i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn wide_f16(x: &[u8; 2 * N]) -> V {
    _mm512_cvtph_ps(load_half(x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn wide_bf16(x: &[u8; 2 * N]) -> V {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_half(x))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn fma(a: V, b: V, c: V) -> V {
    _mm512_fmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add(a: V, b: V) -> V {
    _mm512_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn lanes(a: V) -> [f32; N] {
    let mut out = [0.0; N];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), a) };
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn total(a: V) -> f32 {
    _mm512_reduce_add_ps(a)
}

/// Asks for the memory so many bytes behind the start of a row.
#[inline]
#[target_feature(enable = "sse")]
fn ask_for(row: &[u8], n_bytes: usize) {
    // Asking reads nothing, so any address will do.
    _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(n_bytes).cast());
}

/// 64 elements of a row: `w` without sign, moved up by `MOVED`, and a factor for each four of them.
struct Two {
    w: __m512i,
    a: V,
}

/// How two blocks of 32 elements become vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// As they lie.
    Straight,
    /// The first halves of both, then the second halves.
    Halves,
}

/// The factors of two blocks, a half-precision number each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn factors(order: Order, a: [u8; 2], b: [u8; 2]) -> V {
    let [a, b] = [a, b].map(i16::from_le_bytes);
    let mask = if order == Order::Straight { 0xff00 } else { 0xf0f0 };
    _mm512_cvtph_ps(_mm256_mask_blend_epi16(mask, _mm256_set1_epi16(a), _mm256_set1_epi16(b)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn two_q8_0(row: &[u8], idx: usize) -> Two {
    let blocks: &[u8; 68] = row[idx * 34..].first_chunk().expect("two blocks");
    let first = load_half(blocks[2..34].as_array().expect("32 bytes"));
    let second = load_half(blocks[36..68].as_array().expect("32 bytes"));
    let w = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
    let w = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
    Two { w, a: factors(Order::Straight, [blocks[0], blocks[1]], [blocks[34], blocks[35]]) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn two_q4_0(row: &[u8], idx: usize) -> Two {
    let blocks: &[u8; 36] = row[idx * 18..].first_chunk().expect("two blocks");
    // SAFETY: the block has 16 bytes there.
    let first = unsafe { _mm_loadu_si128(blocks[2..18].as_ptr().cast()) };
    // SAFETY: the block has 16 bytes there.
    let second = unsafe { _mm_loadu_si128(blocks[20..36].as_ptr().cast()) };
    let both = _mm256_set_m128i(second, first);
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_and_si256(both, mask);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
    let w = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    Two { w, a: factors(Order::Halves, [blocks[0], blocks[1]], [blocks[18], blocks[19]]) }
}

/// How far ahead of what is multiplied memory is asked for, in bytes.
const AHEAD: usize = 8192;

/// A row with one vector, two blocks at a time. Rows go one after another: memory comes fastest in one stream.
macro_rules! one_vector {
    ($name:ident, $two:ident, $order:expr, $moved:literal) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn $name(row: &[u8], x: Rounded<'_>, n_blocks: usize) -> f32 {
            let places = match $order {
                Order::Straight => _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                Order::Halves => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1),
            };
            let pair_bytes = row.len() / n_blocks * 2;
            let mut sums = zero();
            for pair in 0..n_blocks / 2 {
                let mut numbers = load_bytes(x.numbers[pair * 64..].first_chunk().expect("two groups"));
                if $order == Order::Halves {
                    numbers = _mm512_shuffle_i64x2::<0b11_01_10_00>(numbers, numbers);
                }
                let moved = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8($moved), numbers);
                let start = _mm512_sub_epi32(_mm512_setzero_si512(), moved);
                let scales = i64::from_le_bytes(*x.scales[pair * 8..].first_chunk().expect("two scales"));
                let scales = _mm512_permutexvar_ps(places, _mm512_castsi512_ps(_mm512_set1_epi64(scales)));
                ask_for(row, pair * pair_bytes + AHEAD);
                let Two { w, a } = $two(row, 2 * pair);
                let dots = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, w, numbers));
                sums = fma(dots, _mm512_mul_ps(a, scales), sums);
            }
            total(sums)
        }
    };
}

one_vector!(with_q8_0, two_q8_0, Order::Straight, -128);
one_vector!(with_q4_0, two_q4_0, Order::Halves, 8);

/// The last block of an odd number of them, and rows that are no `ROWS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn last(job: &ProductView<'_>, x: Rounded<'_>, storage: Storage, r: usize) -> f32 {
    let idx = job.k / GROUP - 1;
    let Unpacked { q, a, .. } = job.w.row(r).unpack(storage, idx);
    let dot: i32 =
        q.iter().zip(x.numbers(idx)).map(|(q, x)| i32::from(*q) * i32::from(x.cast_signed())).sum();
    dot as f32 * a[0] * x.scale(idx)
}

/// Few vectors, each in its row, with `Q8_0` or `Q4_0`.
macro_rules! few {
    ($name:ident, $with:ident, $storage:expr) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn $name(job: &ProductView<'_>) {
            let n_blocks = job.k / GROUP;
            for c in 0..job.n_cols {
                let x = Rounded::new(&job.x[c * row_bytes(job.k)..], job.k);
                for r in 0..job.n_rows {
                    job.out.add(r, c, $with(job.w.row(r).bytes, x, n_blocks));
                }
                if n_blocks % 2 == 1 {
                    for r in 0..job.n_rows {
                        job.out.add(r, c, last(job, x, $storage, r));
                    }
                }
            }
        }
    };
}

few!(few_q8_0, with_q8_0, Storage::Q8_0);
few!(few_q4_0, with_q4_0, Storage::Q4_0);

/// Few vectors, each in its row, with a weight that is unpacked first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn few_unpacked<const S: usize>(job: &ProductView<'_>) {
    // Known here, so that each format has code of its own.
    let storage = const { Storage::ALL[S] };
    let places = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let twos = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let (mut q, mut a, mut b) = ([[0; 64]; FEW / 2], [[0.0; 4]; FEW / 2], [0.0; FEW]);
    let n_blocks = job.k / GROUP;
    for from in (0..n_blocks).step_by(FEW) {
        let n = FEW.min(n_blocks - from);
        for r in 0..job.n_rows {
            let row = job.w.row(r);
            for idx in 0..n {
                let unpacked = row.unpack(storage, from + idx);
                let (pair, side) = (idx / 2, idx % 2);
                let to: &mut [u8; 32] = q[pair][32 * side..].first_chunk_mut().expect("half of a pair");
                for i in 0..32 {
                    to[i] = unpacked.q[i].cast_unsigned() ^ 0x80;
                }
                a[pair][2 * side..][..2].copy_from_slice(&unpacked.a);
                b[idx] = unpacked.b;
            }
            if n % 2 == 1 {
                // What stands beside the last block counts nothing.
                a[n / 2][2..].fill(0.0);
            }
            for c in 0..job.n_cols {
                let x = Rounded::new(&job.x[c * row_bytes(job.k)..], job.k);
                let mut sum = zero();
                for pair in 0..n.div_ceil(2) {
                    let at = from / 2 + pair;
                    let numbers = load_bytes(x.numbers[at * 64..].first_chunk().expect("two groups"));
                    let moved = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), numbers);
                    let start = _mm512_sub_epi32(_mm512_setzero_si512(), moved);
                    let scales = i64::from_le_bytes(*x.scales[at * 8..].first_chunk().expect("two scales"));
                    let scales = _mm512_permutexvar_ps(twos, _mm512_castsi512_ps(_mm512_set1_epi64(scales)));
                    // SAFETY: the array is as long as the vector.
                    let a = _mm512_broadcast_f32x4(unsafe { _mm_loadu_ps(a[pair].as_ptr()) });
                    let a = _mm512_mul_ps(_mm512_permutexvar_ps(places, a), scales);
                    let dots = _mm512_dpbusd_epi32(start, load_bytes(&q[pair]), numbers);
                    sum = fma(_mm512_cvtepi32_ps(dots), a, sum);
                }
                let mut sum = total(sum);
                if storage.has_offsets() {
                    sum += (0..n).map(|idx| b[idx] * x.sum(from + idx)).sum::<f32>();
                }
                job.out.add(r, c, sum);
            }
        }
    }
}

/// `ROWS` rows of a weight, unpacked.
struct Slab {
    /// Four numbers with sign each.
    q: [[[i32; 8]; MANY]; ROWS],
    /// What the sum of a group, or of each half, starts from.
    starts: [[[i32; 2]; MANY]; ROWS],
    a: [[[f32; 2]; MANY]; ROWS],
    b: [[f32; MANY]; ROWS],
}

/// Sums of `ROWS` rows with `C` panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn slab_sums<const C: usize, const HALVES: bool, const OFFSETS: bool>(
    slab: &Slab,
    x: [&[u8]; C],
    n: usize,
) -> [[V; C]; ROWS] {
    let x = x.map(|x| &x.as_chunks::<PANEL_BYTES>().0[..n]);
    let mut sums = [[zero(); C]; ROWS];
    for idx in 0..n {
        for half in 0..if HALVES { 2 } else { 1 } {
            let mut dots = [[_mm512_setzero_si512(); C]; ROWS];
            for r in 0..ROWS {
                dots[r] = [_mm512_set1_epi32(slab.starts[r][idx][half]); C];
            }
            let steps = if HALVES { 4 } else { 8 };
            for step in 0..steps {
                let step = 4 * half + step;
                let mut numbers = [_mm512_setzero_si512(); C];
                for c in 0..C {
                    numbers[c] = load_bytes(x[c][idx][64 * step..].first_chunk().expect("within a panel"));
                }
                for r in 0..ROWS {
                    let w = _mm512_set1_epi32(slab.q[r][idx][step]);
                    for c in 0..C {
                        dots[r][c] = _mm512_dpbusd_epi32(dots[r][c], numbers[c], w);
                    }
                }
            }
            for c in 0..C {
                let scales = load(x[c][idx][GROUP * PANEL..].first_chunk().expect("scales"));
                for r in 0..ROWS {
                    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][c]), scales);
                    sums[r][c] = fma(scaled, splat(slab.a[r][idx][half]), sums[r][c]);
                }
            }
        }
        if OFFSETS {
            for c in 0..C {
                let totals = load(x[c][idx][GROUP * PANEL + 4 * PANEL..].first_chunk().expect("sums"));
                for r in 0..ROWS {
                    sums[r][c] = fma(totals, splat(slab.b[r][idx]), sums[r][c]);
                }
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn slab_out<const C: usize>(job: &ProductView<'_>, (r, c): (usize, usize), sums: [[V; C]; ROWS]) {
    for (i, sums) in sums.iter().enumerate().take(job.n_rows - r) {
        for (j, sum) in sums.iter().enumerate() {
            let first = c + j * PANEL;
            for (lane, x) in lanes(*sum).into_iter().enumerate().take(job.n_cols - first) {
                job.out.add(r + i, first + lane, x);
            }
        }
    }
}

/// Many vectors, in panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn many<const S: usize, const HALVES: bool, const OFFSETS: bool>(job: &ProductView<'_>) {
    let storage = const { Storage::ALL[S] };
    let mut slab = Slab {
        q: [[[0; 8]; MANY]; ROWS],
        starts: [[[0; 2]; MANY]; ROWS],
        a: [[[0.0; 2]; MANY]; ROWS],
        b: [[0.0; MANY]; ROWS],
    };
    let n_blocks = job.k / GROUP;
    let panel = n_blocks * PANEL_BYTES;
    for from in (0..n_blocks).step_by(MANY) {
        let n = MANY.min(n_blocks - from);
        for r in (0..job.n_rows).step_by(ROWS) {
            for i in 0..ROWS.min(job.n_rows - r) {
                let row = job.w.row(r + i);
                for idx in 0..n {
                    let Unpacked { q, a, b } = row.unpack(storage, from + idx);
                    let mut sums = [0; 2];
                    for step in 0..8 {
                        let four = [q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]];
                        let [a, b, c, d] = four;
                        let bytes =
                            [a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()];
                        slab.q[i][idx][step] = i32::from_le_bytes(bytes);
                    }
                    for e in 0..32 {
                        sums[if HALVES { e / 16 } else { 0 }] += i32::from(q[e]);
                    }
                    slab.starts[i][idx] = sums.map(|sum| -128 * sum);
                    (slab.a[i][idx], slab.b[i][idx]) = (a, b);
                }
            }
            let x = |c: usize| &job.x[c / PANEL * panel + from * PANEL_BYTES..];
            let mut c = 0;
            while c + PANEL < job.n_cols {
                let sums = slab_sums::<2, HALVES, OFFSETS>(&slab, [x(c), x(c + PANEL)], n);
                slab_out(job, (r, c), sums);
                c += 2 * PANEL;
            }
            if c < job.n_cols {
                let sums = slab_sums::<1, HALVES, OFFSETS>(&slab, [x(c)], n);
                slab_out(job, (r, c), sums);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe extern "C" fn quantised(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, true) }) else { return };
    let storage = job.w.storage;
    match (job.is_panel, storage) {
        (_, Storage::F32 | Storage::F16 | Storage::BF16) => unreachable!("plain weights take plain vectors"),
        (false, Storage::Q8_0) => few_q8_0(&job),
        (false, Storage::Q4_0) => few_q4_0(&job),
        (false, Storage::Int8) => few_unpacked::<{ Storage::Int8 as usize }>(&job),
        (false, Storage::Q4_1) => few_unpacked::<{ Storage::Q4_1 as usize }>(&job),
        (false, Storage::Q5_0) => few_unpacked::<{ Storage::Q5_0 as usize }>(&job),
        (false, Storage::Q5_1) => few_unpacked::<{ Storage::Q5_1 as usize }>(&job),
        (false, Storage::Q4K) => few_unpacked::<{ Storage::Q4K as usize }>(&job),
        (false, Storage::Q5K) => few_unpacked::<{ Storage::Q5K as usize }>(&job),
        (false, Storage::Q6K) => few_unpacked::<{ Storage::Q6K as usize }>(&job),
        (true, Storage::Q8_0) => many::<{ Storage::Q8_0 as usize }, false, false>(&job),
        (true, Storage::Q4_0) => many::<{ Storage::Q4_0 as usize }, false, false>(&job),
        (true, Storage::Int8) => many::<{ Storage::Int8 as usize }, false, false>(&job),
        (true, Storage::Q4_1) => many::<{ Storage::Q4_1 as usize }, false, true>(&job),
        (true, Storage::Q5_0) => many::<{ Storage::Q5_0 as usize }, false, false>(&job),
        (true, Storage::Q5_1) => many::<{ Storage::Q5_1 as usize }, false, true>(&job),
        (true, Storage::Q4K) => many::<{ Storage::Q4K as usize }, false, true>(&job),
        (true, Storage::Q5K) => many::<{ Storage::Q5K as usize }, false, true>(&job),
        (true, Storage::Q6K) => many::<{ Storage::Q6K as usize }, true, false>(&job),
    }
}
