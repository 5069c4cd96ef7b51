//! What codegen for GPUs makes of small kernels.

use super::*;
use crate::kernel::parse::parse;
use crate::kernel::samples;

const LANGUAGES: [Language; 3] = [Language::Cuda, Language::Wgsl, Language::Msl];

#[test]
fn every_sample_has_a_source_in_every_language() {
    for text in samples::ALL {
        let kernel = parse(text).unwrap();
        for language in LANGUAGES {
            let code = compile(&kernel, language).unwrap();
            println!("{}", code.source);
            assert!(code.source.contains(ENTRY), "{language}");
        }
    }
}
