//! What stands where: `unsafe`, glob imports, re-exports, environment variables.
//!
//! In: the code of every file. Out: an offence for each use outside of the named places.
//! The lists below are the permission; a file that no longer needs its permission is an offence as well.

use tree::{Offence, assert_none, files, offence};

use crate::source::{Source, braced, find_word, line_at, sources};

/// The files that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    // Loops of instructions that not every processor has.
    "benches/roofline/peaks.rs",
    // The number of heaps is the allocator's.
    "cli/heaps.rs",
    // What a signal does is set by the system's own function, and the environment before there are threads.
    "cli/terminal/signals.rs",
    "compiler/src/codegen/cpu/jit.rs",
    // The types of functions that take addresses.
    "compiler/simd/src/abi.rs",
    "compiler/simd/src/avx2/tile_16x4.rs",
    "compiler/simd/src/avx2/vector.rs",
    // Instructions for tiles, for which the compiler has no stable functions.
    "compiler/simd/src/avx512/amx/mod.rs",
    "compiler/simd/src/avx512/gemm_small.rs",
    "compiler/simd/src/avx512/mod.rs",
    "compiler/simd/src/avx512/tile_32x6.rs",
    "compiler/simd/src/avx512/vector.rs",
    // Addresses that generated code passes.
    "compiler/src/codegen/cpu/product/boundary.rs",
    "compiler/simd/src/generic.rs",
    "compiler/simd/src/dispatch.rs",
    "compiler/simd/src/neon.rs",
    "compiler/simd/src/prefetch.rs",
    "compiler/simd/src/routed.rs",
    // Memory that is not cleared, which types alone cannot give.
    "compiler/simd/src/stack_buffer.rs",
    "compiler/simd/src/tests.rs",
    "compiler/simd/src/view.rs",
    "compiler/src/codegen/cpu/tests/far.rs",
    // An allocator that counts.
    "fuzz/memory.rs",
    "hub/src/disk.rs",
    "runtime/src/device/cpu.rs",
    "runtime/src/device/gpu/cuda.rs",
    "runtime/src/device/gpu/wgpu_driver.rs",
    "runtime/src/device/gpu/vulkan_properties.rs",
    "runtime/src/device/gpu/nvrtc.rs",
    "runtime/src/own.rs",
    "runtime/src/threads.rs",
    // What a signal does, and what lies where a file was, is set by the system's own functions.
    "runtime/src/weights/mapping/lost_pages.rs",
    "runtime/src/weights/mapping/mod.rs",
    "tests/allocations.rs",
    // Cells of loom.
    "tests/loom/src/lib.rs",
    // Pages that nobody may touch.
    "tests/support/guarded.rs",
];

/// The document that says what each of them relies on, and when that was last read.
const READ: &str = "docs/unsafe.md";

/// The files that may read environment variables.
const ENVIRONMENT: [&str; 6] = [
    "cli/terminal/signals.rs",
    "compiler/src/options.rs",
    "hub/src/settings.rs",
    "tests/support/oracles.rs",
    "tests/support/slow.rs",
    "tests/tidy/marked.rs",
];

fn unsafe_offences(source: &Source, allowed: &[&str]) -> Vec<Offence> {
    let uses = find_word(&source.code, "unsafe");
    let is_allowed = allowed.contains(&source.path.as_str());
    if is_allowed && uses.is_empty() {
        return vec![offence(&source.path, 1, "has no `unsafe`: take it off the list")];
    }
    let mut offences = Vec::new();
    for at in uses {
        let line = line_at(&source.code, at);
        let next = source.code[at + "unsafe".len()..].trim_start();
        let needs_argument = next.starts_with('{') || next.starts_with("impl");
        if !is_allowed {
            offences.push(offence(&source.path, line, "`unsafe` outside of the named files"));
        } else if needs_argument && !has_safety_argument(&source.text, line) {
            offences.push(offence(&source.path, line, "`unsafe` without `// SAFETY:` above it"));
        }
    }
    offences
}

/// Whether the comment directly above a line argues for its safety.
fn has_safety_argument(text: &str, line: usize) -> bool {
    let above: Vec<&str> = text.lines().take(line - 1).map(str::trim_start).collect();
    above.iter().rev().take_while(|l| l.starts_with("//")).any(|l| l.starts_with("// SAFETY:"))
}

/// The import statements: offset of `use`, whether `pub` stands before it, and the text up to the semicolon.
fn imports(code: &str) -> Vec<(usize, bool, &str)> {
    let statement = |at: usize| {
        let before = code[..at].trim_end();
        let is_public = before.ends_with("pub");
        let starts = before.is_empty() || is_public || before.ends_with([';', '{', '}', ']', ')']);
        let end = code[at..].find(';')?;
        let is_import = starts && !code[at + 3..].trim_start().starts_with('<');
        is_import.then(|| (at, is_public, &code[at..at + end]))
    };
    find_word(code, "use").into_iter().filter_map(statement).collect()
}

fn import_offences(source: &Source) -> Vec<Offence> {
    let code = &source.production;
    let mut offences = Vec::new();
    for (at, is_public, text) in imports(code) {
        let line = line_at(code, at);
        if text.contains('*') {
            offences.push(offence(&source.path, line, "a glob import hides where names come from"));
        }
        if is_public && !source.path.ends_with("/lib.rs") {
            offences.push(offence(&source.path, line, "re-exports stand in `lib.rs` only"));
        }
    }
    offences
        .extend(local_imports(code).map(|line| offence(&source.path, line, "an import inside a function")));
    offences
}

/// The lines of imports inside functions.
fn local_imports(code: &str) -> impl Iterator<Item = usize> {
    let body = |at: usize| {
        let end = code[at..].find(['{', ';']).map(|open| at + open)?;
        Some((end + 1, braced(&code[end..])?))
    };
    let bodies: Vec<(usize, &str)> = find_word(code, "fn").into_iter().filter_map(body).collect();
    let uses =
        bodies.into_iter().flat_map(|(start, b)| imports(b).into_iter().map(move |(at, ..)| start + at));
    uses.map(|at| line_at(code, at))
}

fn environment_offences(source: &Source, allowed: &[&str]) -> Vec<Offence> {
    if allowed.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let uses = find_word(&source.code, "env").into_iter().filter(|at| {
        let rest = &source.code[at + "env".len()..];
        rest.starts_with("::var")
            || rest.strip_prefix("::").and_then(braced).is_some_and(|l| l.contains("var"))
    });
    let what = "environment variables are read in `options.rs` only";
    uses.map(|at| offence(&source.path, line_at(&source.code, at), what)).collect()
}

/// The files of a table whose rows are a file, what it relies on, and a date.
fn read_offences(text: &str, allowed: &[&str]) -> Vec<Offence> {
    let row = |line: &str| -> Option<(String, bool)> {
        let [_, file, why, date, _] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            return None;
        };
        let file = file.strip_prefix('`')?.strip_suffix('`')?;
        let is_date = date.len() == 10 && date.split('-').map(str::len).eq([4, 2, 2]);
        Some((file.to_owned(), is_date && !why.is_empty()))
    };
    let rows: Vec<(usize, (String, bool))> =
        (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, row(text)?))).collect();
    let lacking = allowed.iter().filter(|path| rows.iter().all(|(_, (file, _))| file != *path));
    let lacking = lacking.map(|path| offence(READ, 1, format!("lacks a row for {path}")));
    let odd = rows.iter().filter(|(_, (file, is_whole))| !is_whole || !allowed.contains(&file.as_str()));
    let odd =
        odd.map(|(line, (file, _))| offence(READ, *line, format!("{file}: no such `unsafe`, or no date")));
    lacking.chain(odd).collect()
}

#[test]
fn every_file_with_unsafe_was_read_on_a_day() {
    let text = files(&["md"]).into_iter().find(|file| file.path == READ).map(|file| file.text);
    assert_none(&read_offences(&text.expect("the document is there"), UNSAFE));
}

#[test]
fn unsafe_stays_in_the_named_files() {
    let sources = sources();
    let mut offences: Vec<Offence> = sources.iter().flat_map(|s| unsafe_offences(s, UNSAFE)).collect();
    let gone = UNSAFE.iter().filter(|path| sources.iter().all(|s| s.path != **path));
    offences.extend(gone.map(|path| offence(path, 1, "may contain `unsafe`, but does not exist")));
    assert_none(&offences);
}

#[test]
fn names_are_imported_one_by_one_and_exported_from_the_front_door() {
    assert_none(&sources().iter().flat_map(import_offences).collect::<Vec<_>>());
}

#[test]
fn only_the_options_read_the_environment() {
    assert_none(&sources().iter().flat_map(|s| environment_offences(s, &ENVIRONMENT)).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    fn source(path: &str, text: &str) -> Source {
        Source::new(File { path: path.to_owned(), text: text.to_owned() })
    }

    fn lines(offences: &[Offence]) -> Vec<usize> {
        offences.iter().map(|o| o.line).collect()
    }

    #[test]
    fn unsafe_needs_a_permission_and_an_argument() {
        let text = "fn f() {\n    // SAFETY: because\n    unsafe { g() };\n\n    unsafe { g() };\n}";
        let source = source("a.rs", text);
        assert_eq!(lines(&unsafe_offences(&source, &[])), [3, 5]);
        assert_eq!(lines(&unsafe_offences(&source, &["a.rs"])), [5]);
    }

    #[test]
    fn a_file_with_unsafe_has_a_row_with_a_date() {
        let text = "| file | relies on | read |\n|---|---|---|\n| `a.rs` | b | 2026-01-02 |\n";
        assert_eq!(read_offences(text, &["a.rs"]), []);
        assert_eq!(lines(&read_offences(text, &["a.rs", "b.rs"])), [1]);
        assert_eq!(lines(&read_offences(text, &[])), [3]);
        assert_eq!(lines(&read_offences(&text.replace("-02", ""), &["a.rs"])), [3]);
    }

    #[test]
    fn a_permission_without_use_is_taken_back() {
        let source = source("a.rs", "#![forbid(unsafe_code)] // unsafe");
        assert_eq!(unsafe_offences(&source, &[]), []);
        assert_eq!(lines(&unsafe_offences(&source, &["a.rs"])), [1]);
    }

    #[test]
    fn globs_and_re_exports_are_offences_outside_of_tests() {
        let text = "use a::{b,\n  c::*};\npub use d::e;\nfn f() -> impl G + use<'a> {}\nlet x = y * z;";
        assert_eq!(lines(&import_offences(&source("compiler/src/a.rs", text))), [1, 3]);
        assert_eq!(lines(&import_offences(&source("compiler/src/lib.rs", text))), [1]);
        let tests = "#[cfg(test)]\nmod tests {\n    use super::*;\n}";
        assert_eq!(import_offences(&source("compiler/src/a.rs", tests)), []);
    }

    #[test]
    fn an_import_inside_a_function_is_an_offence() {
        let text = "use a::b;\nfn f() {\n    use c::d;\n}";
        assert_eq!(lines(&import_offences(&source("compiler/src/a.rs", text))), [3]);
    }

    #[test]
    fn the_environment_is_found_however_it_is_named() {
        let text = "let a = std::env::var(b);\nuse std::env::{self, var_os};\nenv!(\"X\"); env::args();";
        assert_eq!(lines(&environment_offences(&source("a.rs", text), &[])), [1, 2]);
        assert_eq!(environment_offences(&source("a.rs", text), &["a.rs"]), []);
    }
}
