//! The library `fusebox` is the front: what stands above it takes from it what it has.
//!
//! In: the code of `cli/` and of the examples. Out: an offence for each crate below the library that a file names
//! without a permission; and for a permission without use, so that the list gets shorter.

use tree::{Offence, assert_none, offence};

use crate::source::{Source, find_word, line_at, sources};

/// A crate, and the files that may name it.
type Permission = (&'static str, &'static [&'static str]);

/// What `cli/` and `examples/` may still take from below, where the library has no handle for it: the tools that look
/// into the compiler and into files, and the words that they print.
const BELOW: [Permission; 5] = [
    (
        "fusebox_compiler",
        &[
            "cli/measure/bench.rs",
            "cli/chat/editor.rs",
            "cli/chat/mod.rs",
            "cli/explain/doctor.rs",
            "cli/documents.rs",
            "cli/explain/example.rs",
            "cli/explain/print_kernels.rs",
            "cli/run.rs",
            "cli/explain/story.rs",
            "cli/measure/timed.rs",
            "examples/hello_fusion.rs",
        ],
    ),
    ("fusebox_hub", &["cli/flags/fetch.rs", "cli/hub.rs"]),
    ("fusebox_models", &["cli/flags/fetch.rs", "cli/flags/sampling.rs", "cli/hub.rs"]),
    (
        "fusebox_runtime",
        &["cli/measure/bench.rs", "cli/explain/doctor.rs", "cli/explain/story.rs", "cli/measure/timed.rs"],
    ),
    ("fusebox_serve", &["cli/serve.rs"]),
];

fn offences(sources: &[Source], permissions: &[Permission]) -> Vec<Offence> {
    let above: Vec<&Source> =
        sources.iter().filter(|s| s.path.starts_with("cli/") || s.path.starts_with("examples/")).collect();
    let mut offences = Vec::new();
    for (name, files) in permissions {
        for source in &above {
            let uses = find_word(&source.production, name);
            let is_allowed = files.contains(&source.path.as_str());
            if !is_allowed {
                let what = format!("`{name}` lies below the library: take it from `fusebox`");
                offences.extend(
                    uses.iter()
                        .map(|at| offence(&source.path, line_at(&source.production, *at), what.clone())),
                );
            } else if uses.is_empty() {
                offences.push(offence(
                    &source.path,
                    1,
                    format!("does not name `{name}`: take it off the list"),
                ));
            }
        }
        let gone = files.iter().filter(|path| above.iter().all(|source| source.path != **path));
        offences.extend(gone.map(|path| offence(path, 1, format!("may name `{name}`, but does not exist"))));
    }
    offences
}

#[test]
fn what_the_library_has_is_taken_from_it() {
    assert_none(&offences(&sources(), &BELOW));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    fn source(path: &str, text: &str) -> Source {
        Source::new(File { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn a_crate_below_needs_a_permission_that_is_used() {
        let below =
            [source("cli/a.rs", "//!\nuse fusebox_models::load;"), source("cli/b.rs", "use fusebox::Model;")];
        let lines = |permissions: &[Permission]| {
            offences(&below, permissions).iter().map(|o| (o.path.clone(), o.line)).collect::<Vec<_>>()
        };
        assert_eq!(lines(&[("fusebox_models", &["cli/a.rs"])]), []);
        assert_eq!(lines(&[("fusebox_models", &[])]), [("cli/a.rs".to_owned(), 2)]);
        assert_eq!(lines(&[("fusebox_models", &["cli/a.rs", "cli/b.rs"])]), [("cli/b.rs".to_owned(), 1)]);
    }
}
