//! What codegen for GPUs makes of small kernels; `tests/differential/gpu.rs` runs many.

use super::*;
use crate::kernel::parse::parse;
use crate::kernel::samples;
use crate::target::Target;

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
fn threads_read_each_others_registers_where_they_are_neighbours() {
    let kernel = parse(samples::MATRIX_VECTOR).unwrap();
    let source = |plane| compile(&kernel, Dialect { plane, ..Language::Wgsl.into() }).unwrap().source;
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
fn tiles_that_are_done_with_make_room_for_others_where_it_is_short() {
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
