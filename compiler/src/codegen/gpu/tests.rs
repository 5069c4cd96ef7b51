//! What codegen for GPUs makes of small kernels; `tests/differential/gpu.rs` runs many.

use super::*;
use crate::codegen::samples::MASKED;
use crate::kernel::parse::parse;
use crate::kernel::samples::{self, PRODUCT};
use crate::options::Options;
use crate::prepare::prepare_kernel;
use crate::target::{CUDA_SM90, Target};

const LANGUAGES: [Language; 3] = [Language::Cuda, Language::Wgsl, Language::Msl];

fn code(text: &str, language: Language) -> Code {
    compile(&parse(text).unwrap(), language).unwrap()
}

#[test]
fn every_sample_has_a_source_in_every_language() {
    for text in samples::ALL {
        for language in LANGUAGES {
            let code = code(text, language);
            assert!(
                code.source.contains(&format!("{ENTRY}(")) || code.source.contains(&format!("{ENTRY} ("))
            );
            let n_params = code.kernel.params.len();
            assert!(code.bindings.len() > n_params, "{language}: {:?}", code.bindings);
        }
    }
}

#[test]
fn the_same_kernel_gives_the_same_source() {
    for language in LANGUAGES {
        let made = || code(samples::ATTENTION, language).source;
        assert_eq!(made(), made());
    }
}

#[test]
fn quantised_rows_are_read_as_vectors() {
    let code = code(samples::MATRIX_VECTOR, Language::Cuda);
    let n_bindings = code.bindings.iter().filter(|binding| **binding == Binding::Param(nth(1))).count();
    assert_eq!(n_bindings, 2);
    assert!(code.source.contains("uint32_4"), "{}", code.source);
}

#[test]
fn subgroups_reduce_by_shuffles_where_their_threads_are_consecutive() {
    let kernel = parse(samples::MATRIX_VECTOR).unwrap();
    let source =
        |subgroup_size| compile(&kernel, Dialect { subgroup_size, ..Language::Wgsl.into() }).unwrap().source;
    assert!(source(8).contains("subgroupShuffleXor"));
    assert!(!source(1).contains("subgroup"));
}

#[test]
fn a_nest_without_iterations_folds_nothing() {
    let text = r#"kernel "none" matrix-vector
  read @0 x : f32[e:3, d:32]
  write @1 y : f32[e:3]
part
  var e0 in 0..0
  var d1 in 0..32
  grid
  for e0
    @1[e0] = sum d1 of @0[e0, d1]
"#;
    let source = code(text, Language::Cuda).source;
    assert!(!source.contains("__shfl_xor_sync"), "{source}");
}

fn nth(number: usize) -> ParamId {
    crate::foundation::entity::Id::from_index(number)
}

#[test]
fn positions_are_read_at_run_time() {
    let code = code(samples::ATTENTION, Language::Wgsl);
    assert_eq!(code.symbols.len(), 1);
    assert!(code.bindings.contains(&Binding::Symbols));
}

#[test]
fn tiles_that_are_too_large_lie_in_scratch_memory() {
    let text = samples::MATRIX_VECTOR.replace("d:32", "d:65536").replace("f32[32]", "f32[65536]");
    let text = text.replace("in 0..32", "in 0..65536");
    let code = code(&text, Language::Wgsl);
    assert_eq!(code.scratch_bytes, 4 * 65536);
    assert!(code.shared_bytes < 32 << 10);
}

#[test]
fn tiles_with_disjoint_live_ranges_overlap_where_shared_memory_is_short() {
    const KERNEL: &str = r#"kernel "one after another" map
  read @0 x : f32[d:9000]
  write @1 y : f32[d:9000]
part
  tile tile0 : f32[3000]
  tile tile1 : f32[3000]
  tile tile2 : f32[3000]
  var d0 in blocks of 3000 step 3000 from 0 to 9000
  var d1 within d0
  grid d0
  for d1
    tile0[-d0+d1] = @0[d1]
  for d1
    tile1[-d0+d1] = exp(tile0[-d0+d1])
  for d1
    tile2[-d0+d1] = @0[d1]
  for d1
    @1[d1] = add(tile1[-d0+d1], tile2[-d0+d1])
"#;
    let short = code(KERNEL, Language::Wgsl);
    let ample = code(KERNEL, Language::Cuda);
    assert!(short.scratch_bytes == 0 && short.shared_bytes < 3 * 12000 && ample.shared_bytes > 3 * 12000);
    // The third must not be written before all threads have read the first.
    let n_meetings = |code: &Code, how: &str| code.source.matches(how).count();
    assert_eq!(n_meetings(&short, "workgroupBarrier()"), n_meetings(&ample, "__syncthreads()") + 1);
}

#[test]
fn what_does_not_fit_32_bits_is_refused() {
    let text = samples::MAP.replace("13", "3000000000");
    let refused = compile(&parse(&text).unwrap(), Language::Cuda).unwrap_err().to_string();
    assert!(refused.contains("at most 2147483647 is possible"), "{refused}");
}

#[test]
fn only_gpus_have_a_language() {
    let of = |name| Language::of(&Target::named(name).unwrap());
    assert_eq!(of("cpu"), None);
    assert_eq!(["cuda-sm90", "vulkan", "metal"].map(of), LANGUAGES.map(Some));
}

/// Eight rows of `k` elements and a column.
fn rows(format: &str, elements: usize) -> String {
    format!(
        r#"kernel "matvec w" matrix-vector
  read @0 x : f32[d:{elements}]
  read @1 w : {format}[r:8, d:{elements}]
  write @2 y : f32[r:8]
part
  var r0 in 0..8
  var d1 in 0..{elements}
  grid
  for r0
    @2[r0] = sum d1 of mul(@0[d1], @1[r0, d1])
"#
    )
}

#[test]
fn several_loads_are_in_flight_before_the_first_is_used() {
    for (format, elements, n) in [("q8_0", 4096, 4), ("q4_k", 4096, 2), ("bf16", 4096, 4), ("q8_0", 1024, 2)]
    {
        let kernel = parse(&rows(format, elements)).unwrap();
        let kernel = prepare_kernel(&kernel, &Options::for_target(CUDA_SM90)).unwrap();
        let source = compile(&kernel, Language::Cuda).unwrap().source;
        let (_, fold) = source.split_once("__syncthreads").unwrap();
        let (asked, _) = fold.split_once("= shared_memory_0[").unwrap();
        assert_eq!(asked.matches("const uint32_4 ").count(), n, "{format} {elements}\n{source}");
    }
}

#[test]
fn tensor_cores_multiply_tiles_where_there_are_any() {
    let source = |dialect: Dialect| compile(&parse(PRODUCT).unwrap(), dialect).unwrap().source;
    let with = Dialect::from(Language::Cuda);
    assert!(source(with).contains("mma.sync"));
    assert!(!source(Dialect { has_tensor_cores: false, ..with }).contains("mma.sync"));
    let unsaid = PRODUCT.replace("      mma.bf16 right row r1 columns t0 along d3\n", "");
    assert!(!code(&unsaid, Language::Cuda).source.contains("mma.sync"));
}

#[test]
fn a_kernel_has_one_source() {
    // CubeCL keeps types in sets, whose order is another each time.
    let first = code(PRODUCT, Language::Cuda).source;
    assert!(first.matches("struct __align__(").count() > 1, "{first}");
    assert!((0..16).all(|_| code(PRODUCT, Language::Cuda).source == first));
}

#[test]
fn tiles_are_filled_with_pieces_of_memory() {
    let text = r#"kernel "double w" map
  read @0 w : q8_0[r:32, d:64]
  write @1 y : f32[r:32, d:64]
part
  tile tile0 : f32[32, 64]
  var r0 in 0..32
  var d1 in 0..64
  grid
  for r0, d1
    tile0[r0, d1] = @0[r0, d1]
  for r0, d1
    @1[r0, d1] = add(tile0[r0, d1], tile0[r0, d1])
"#;
    let source = code(text, Language::Cuda).source;
    assert_eq!(source.matches("const uint32_4 ").count(), 1, "{source}");
    // What is stored out of order is read one by one.
    let turned = text.replace("f32[32, 64]\n", "f32[64, 32]\n").replace("tile0[r0, d1]", "tile0[d1, r0]");
    assert!(!code(&turned, Language::Cuda).source.contains("const uint32_4 "));
}

/// The product with 64 rows: a round of all threads fills either factor.
fn more_rows() -> String {
    let rows = PRODUCT.replace("r:32", "r:64").replace("0..32", "0..64").replace("[32, 64]", "[64, 64]");
    rows.replace("[16, 32]", "[16, 64]")
}

#[test]
fn tiles_are_loaded_together_before_any_of_them_is_stored() {
    let with_tokens = |n: usize| {
        let sizes = more_rows().replace("t:16", &format!("t:{n}")).replace("0..16", &format!("0..{n}"));
        let sizes = sizes.replace("[16, 64]", &format!("[{n}, 64]"));
        let source = code(&sizes, Language::Cuda).source;
        let (before, behind) = source.split_once("shared_memory_0[").unwrap();
        [before, behind].map(|part| part.matches("const uint32_4 ").count())
    };
    // And those of the next round once more.
    assert_eq!(with_tokens(64), [5, 5]);
    // With twice as many tokens a thread loads half at a time, and a tile of several rounds is loaded by itself.
    assert_eq!(with_tokens(128), [4, 1]);
}

/// A source before the loop over what is summed over, in it before its products, and from there on.
fn around_products(source: &str) -> [&str; 3] {
    let (head, behind) = source
        .split_once("\n__mma_m16n8k16___nv_bfloat16___nv_bfloat16_float(reinterpret_cast")
        .unwrap_or_else(|| panic!("{source}"));
    let (before, within) = head.rsplit_once("+= uint32(64)) {").unwrap_or_else(|| panic!("{source}"));
    [before, within, behind]
}

#[test]
fn the_next_k_step_is_loaded_before_the_products_of_this_one() {
    let n_asked = |text: &str| {
        let source = code(text, Language::Cuda).source;
        around_products(&source).map(|part| part.matches("const uint32_4 ").count())
    };
    assert_eq!(n_asked(&more_rows()), [2, 2, 0]);
    // A tile that the threads do not fill in one round is not prefetched.
    assert_eq!(n_asked(PRODUCT), [0, 2, 0]);
}

#[test]
fn a_tile_is_not_overwritten_while_another_loaded_with_it_still_reads() {
    // The left operand is made of a tile that nothing reads afterwards, and the right one takes its place.
    let scale = "  loop d2\n    for t0, d3\n      tile3[t0, -d2+d3] = exp(@0[t0, d3])\n";
    let text = more_rows().replace("  loop d2\n", scale);
    let text = text.replace("= @0[t0, d3]\n", "= mul(@0[t0, d3], tile3[t0, -d2+d3])\n");
    let text = text.replace("  var t0", "  tile tile3 : f32[16, 64]\n  var t0");
    let source = code(&text, Language::Cuda).source;
    let [_, within, _] = around_products(&source);
    let n_asked = within.split("__syncthreads()").map(|part| part.matches("const uint32_4 ").count());
    assert_eq!(n_asked.collect::<Vec<_>>(), [1, 1, 1, 0], "{source}");
}

#[test]
fn a_loop_ends_before_what_a_mask_hides() {
    let n_bounds = |text: &str| code(text, Language::Cuda).source.matches(">= int32(0)").count();
    assert!(n_bounds(MASKED) > 0);
    assert_eq!(n_bounds(&MASKED.replace(" until t0+P+2", "")), 0);
}
