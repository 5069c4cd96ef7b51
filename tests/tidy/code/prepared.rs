//! What runs is what `prepare/` made: nobody behind it changes a kernel, a format or a plan.
//!
//! In: the code generators and the runtime. Out: an offence for each place that takes a kernel, a part or a plan to
//! change it, or a copy of one that could be changed.

use tree::{Offence, assert_none, offence};

use crate::source::{Source, find_word, line_at, sources};

/// What comes after the preparation of kernels, and how a kernel or a plan would be changed there.
const AFTER: [(&str, &[&str]); 2] = [
    ("compiler/src/codegen/", &["mut Kernel", "mut Part", "part.clone()"]),
    ("runtime/src/", &["mut Kernel", "mut Part", "mut Plan"]),
];

fn offences(sources: &[Source]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (folder, changes) in AFTER {
        for source in sources.iter().filter(|source| source.path.starts_with(folder)) {
            for change in changes {
                let what =
                    format!("`{change}`: kernels and plans are changed in `compiler/src/prepare/` only");
                let places = find_word(&source.production, change);
                let line = |at: usize| line_at(&source.production, at);
                offences.extend(places.into_iter().map(|at| offence(&source.path, line(at), what.clone())));
            }
        }
    }
    offences
}

#[test]
fn kernels_run_as_they_were_prepared() {
    assert_none(&offences(&sources()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    #[test]
    fn a_code_generator_that_cuts_tiles_is_an_offence() {
        let lines = |path: &str, text: &str| {
            let source = Source::new(File { path: path.to_owned(), text: text.to_owned() });
            offences(&[source]).iter().map(|offence| offence.line).collect::<Vec<usize>>()
        };
        let text = "fn emit(kernel: &Kernel) {}\nfn cut(part: &mut Part) {}\nfn own() { part.clone(); }";
        assert_eq!(lines("compiler/src/codegen/gpu/emit.rs", text), [2, 3]);
        assert_eq!(lines("runtime/src/session/mod.rs", "let mut Plans = 1;\nfn f(plan: &mut Plan) {}"), [2]);
        assert_eq!(lines("compiler/src/prepare/stage_vectors.rs", text), [0; 0]);
    }
}
