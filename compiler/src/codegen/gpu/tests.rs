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
fn what_does_not_fit_32_bits_is_refused() {
    let text = samples::MAP.replace("13", "3000000000");
    let refused = compile(&parse(&text).unwrap(), Language::Cuda).unwrap_err().to_string();
    assert!(refused.contains("at most 2147483647 is possible"), "{refused}");
}

#[test]
fn only_gpus_have_a_language() {
    let of = |name| Language::of(&Target::named(name).unwrap());
    assert_eq!(of("cpu-avx512"), None);
    assert_eq!(["cuda-sm90", "vulkan", "metal"].map(of), LANGUAGES.map(Some));
}
