//! How fast the micro-kernels run on one thread, each in a kernel that does little else.
//!
//! Run with `cargo bench --bench micro`; a word after `--` selects rows by name.
//! `product_q8_0_t1` is a GEMV of `q8_0`, `_t8` and `_t64` have 8 and 64 columns; rows have 1024 elements, or
//! 576 in `d576`. `picked` has a matrix of 64 for each column, `scores` and `mix` are what attention does with
//! keys and values of 512 positions. `round` quantises activations for products, in each layout that the level has.
//! `exps` takes exponentials, `encode` rounds rows of a cache. `roofline` tells what stands in a row.

use fusebox_compiler::kernel::parse::parse;
use fusebox_compiler::options::Options;
use fusebox_compiler::prepare::prepare_kernel;
use fusebox_compiler::simd::Level;
use fusebox_compiler::target::CPU;

mod roofline;

use roofline::{Machine, Subject};

const FORMATS: [&str; 12] =
    ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "int8.g64", "f16", "bf16", "f32"];

/// Elements of rows: four numbers that are no multiples of 128, and the next multiples of three of them.
const WIDTHS: [i64; 6] = [544, 576, 640, 960, 2880, 2944];

/// Formats of states.
const STATES: [&str; 5] = ["f16", "bf16", "f32", "q8_0", "q4_0"];

fn main() {
    let machine = &Machine::measured();
    for format in FORMATS {
        for tokens in [1, 4, 8, 16, 64, 256] {
            row(machine, &format!("product_{format}_t{tokens}"), &product(format, tokens, 1024), &Level::ALL);
        }
    }
    for format in FORMATS.into_iter().filter(|format| !format.ends_with("_k") && !format.starts_with("int8"))
    {
        for (tokens, width) in [1, 8, 64].into_iter().flat_map(|tokens| WIDTHS.map(|width| (tokens, width))) {
            let name = format!("product_{format}_t{tokens}_d{width}");
            row(machine, &name, &product(format, tokens, width), &Level::ALL);
        }
    }
    for format in ["q8_0", "q4_0", "q4_k"] {
        row(machine, &format!("picked_{format}_t512"), &picked(format), &Level::ALL);
    }
    for (name, weight, sizes, levels) in ROUNDINGS {
        row(machine, name, &round(weight, sizes), levels);
    }
    for format in STATES {
        for tokens in [1, 2, 4, 16, 128] {
            row(machine, &format!("scores_{format}_t{tokens}"), &scores(format, tokens), &Level::ALL);
            row(machine, &format!("mix_{format}_t{tokens}"), &mix(format, tokens), &Level::ALL);
        }
    }
    row(machine, "exps_n512", EXPS, &Level::ALL);
    for format in ["q8_0", "q4_0"] {
        row(machine, &format!("encode_{format}"), &encode(format), &Level::ALL);
    }
}

/// A kernel as text; what is called `w` comes from memory.
fn row(machine: &Machine, name: &str, text: &str, levels: &[Level]) {
    if machine.wants(name) {
        let kernel = parse(text).expect("a kernel that reads");
        let kernel = &prepare_kernel(&kernel, &Options::for_target(CPU)).expect("a kernel that verifies");
        let is_cold = kernel.params.values().map(|param| &*param.name == "w").collect();
        let has_single = name.starts_with("product");
        machine.rows(&Subject { name: name.to_owned(), kernel, is_cold, levels, has_single });
    }
}

/// How the element of a weight is read.
fn element(format: &str, at: &str) -> String {
    if matches!(format, "f16" | "bf16") { format!("cast.f32({at})") } else { at.to_owned() }
}

/// 1024 rows of `width` elements with `tokens` columns.
fn product(format: &str, tokens: i64, width: i64) -> String {
    format!(
        r#"kernel "product" matrix-vector
  read @0 x : f32[t:{tokens}, d:{width}]
  read @1 w : {format}[e:1024, d:{width}]
  write @2 y : f32[t:{tokens}, e:1024]
part
  var t0 in 0..{tokens}
  var e1 in blocks of 32 step 32 from 0 to 1024
  var e2 within e1
  var d3 in 0..{width}
  grid e1
  for t0, e2
    @2[t0, e2] = sum d3 of mul(@0[t0, d3], {})
"#,
        element(format, "@1[e2, d3]")
    )
}

/// 128 rows of each of eight matrices for each of 512 vectors.
fn picked(format: &str) -> String {
    format!(
        r#"kernel "picked" experts
  read @0 x : f32[t:512, d:1024]
  read @1 ids : i32[t:512, k:8]
  read @2 w : {format}[x:64, f:128, d:1024]
  write @3 y : f32[t:512, k:8, f:128]
part
  var t0 in 0..512
  var k1 in 0..8
  var f2 in 0..128
  var d3 in 0..1024
  grid
  for t0, k1, f2
    @3[t0, k1, f2] = sum d3 of mul(@0[t0, d3], @2[lookup(@1[t0, k1], 64), f2, d3])
"#
    )
}

/// Names, formats of weights that ask for the rounding, numbers of vectors and of their elements, and the levels that
/// round so.
const ROUNDINGS: [(&str, &str, [i64; 2], &[Level]); 6] = [
    ("round_bytes_t64", "q8_0", [64, 1024], &[Level::Avx512Bf16, Level::Avx512, Level::Avx2]),
    ("round_sixteens_t1", "q8_0", [1, 16384], &[Level::Amx, Level::Avx512Bf16, Level::Avx512]),
    ("round_lanes_t8", "q8_0", [8, 1024], &[Level::Avx512Bf16, Level::Avx512]),
    ("round_eights_t8", "q8_0", [8, 1024], &[Level::Amx]),
    ("round_words_t64", "f16", [64, 1024], &[Level::Avx512Bf16, Level::Avx512]),
    ("round_halves_t64", "bf16", [64, 1024], &[Level::Amx, Level::Avx512Bf16]),
];

/// Vectors for products of which no round is done. They do not lie side by side, so the task rounds them.
fn round(format: &str, [tokens, d]: [i64; 2]) -> String {
    format!(
        r#"symbol N in 0..1 near 0
kernel "round" matrix-matrix
  read @0 x : f32[t:{tokens}, side:2, d:{d}]
  read @1 w : {format}[e:1, d:{d}]
  write @2 y : f32[t:{tokens}, e:1]
part
  var t0 in 0..{tokens}
  var e1 in 0..1
  var d2 in 0..{d}
  var n3 in 0..N
  grid
  loop n3
    for t0, e1
      @2[t0, e1] = sum d2 of mul(@0[t0, 0, d2], {})
  end
"#,
        element(format, "@1[e1, d2]")
    )
}

/// Keys of 128 elements with `tokens` queries, for eight heads.
fn scores(format: &str, tokens: i64) -> String {
    format!(
        r#"symbol P in 0..511 near 511
kernel "scores" attention
  read @0 q : f32[kv:8, g:{tokens}, e:128]
  read @1 w : {format}[kv:8, s:512, e:128]
  write @2 y : f32[kv:8, g:{tokens}, s:512]
part
  var kv0 in 0..8
  var g1 in 0..{tokens}
  var s2 in 0..P+1
  var e3 in 0..128
  grid kv0
  for g1, s2
    @2[kv0, g1, s2] = sum e3 of mul(@0[kv0, g1, e3], {})
"#,
        element(format, "@1[kv0, s2, e3]")
    )
}

/// Values of 128 elements with `tokens` weights each, for eight heads.
fn mix(format: &str, tokens: i64) -> String {
    format!(
        r#"kernel "mix" attention
  read @0 p : f32[kv:8, g:{tokens}, s:512]
  read @1 w : {format}[kv:8, s:512, e:128]
  write @2 y : f32[kv:8, g:{tokens}, e:128]
part
  var kv0 in 0..8
  var g1 in 0..{tokens}
  var e2 in 0..128
  var s3 in 0..512
  grid kv0
  for g1, e2
    @2[kv0, g1, e2] = sum s3 of mul(@0[kv0, g1, s3], {})
"#,
        element(format, "@1[kv0, s3, e2]")
    )
}

/// Scores of 64 queries with the largest of each.
const EXPS: &str = r#"kernel "exps" map
  read @0 a : f32[g:64, s:512]
  read @1 b : f32[g:64]
  write @2 y : f32[g:64]
part
  tile tile0 : f32[64, 512]
  var g0 in 0..64
  var s1 in 0..512
  grid
  for g0, s1
    tile0[g0, s1] = exp(sub(@0[g0, s1], @1[g0]))
  for g0
    @2[g0] = tile0[g0, 0]
"#;

/// Rows of 1024 elements, which a tile holds before.
fn encode(format: &str) -> String {
    format!(
        r#"kernel "encode" map
  read @0 x : f32[s:64, e:1024]
  write @1 k : {format}[s:64, e:1024]
part
  tile tile0 : f32[1024]
  var s0 in 0..64
  var e1 in 0..1024
  grid s0
  for e1
    tile0[e1] = @0[s0, e1]
  for e1
    @1[s0, e1] = tile0[e1]
"#
    )
}
