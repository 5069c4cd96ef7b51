//! Every case has its snapshot, and every snapshot has a case or a test that asserts it.
//!
//! In: the names of all files, and the tests' sources. Out: an offence for each case without a snapshot and for each
//! snapshot that nothing refers to any more.
//! A snapshot belongs to a case when the case's name is a whole part of its file name: `all__stories__norm@plan.snap`
//! belongs to `norm.graph`.

use tree::{Offence, assert_none, offence, paths};

use crate::source::{Source, find_word, is_name_char, sources};

fn case_stem(path: &str) -> Option<&str> {
    let stem = path.strip_prefix("tests/cases/")?.strip_suffix(".graph")?;
    Some(stem.rsplit('/').next().unwrap_or(stem))
}

fn snapshot_stem(path: &str) -> Option<&str> {
    let stem = path.strip_suffix(".snap")?;
    Some(stem.rsplit('/').next().unwrap_or(stem))
}

/// Whether a snapshot's name contains a case's as a whole part.
fn belongs(snapshot: &str, case: &str) -> bool {
    snapshot.match_indices(case).any(|(at, _)| {
        let (before, after) = (&snapshot[..at], &snapshot[at + case.len()..]);
        let starts = before.is_empty() || before.ends_with("__") || before.ends_with(['@', '.']);
        starts && (after.is_empty() || after.starts_with("__") || after.starts_with(['@', '.']))
    })
}

/// Whether a test asserts a snapshot of this name: spelt out, or taken from the test's own name.
fn is_asserted(snapshot: &str, sources: &[Source]) -> bool {
    let name = snapshot.split('@').next().unwrap_or(snapshot);
    let name = name.rsplit("__").next().unwrap_or(name);
    let unnumbered = name.rsplit_once('-').filter(|(_, n)| n.chars().all(|c| c.is_ascii_digit()));
    let functions = [Some(name), unnumbered.map(|(name, _)| name)];
    sources.iter().filter(|s| s.code.contains("_snapshot!")).any(|s| {
        let mut functions = functions.iter().flatten().filter(|f| f.chars().all(is_name_char));
        s.text.contains(&format!("\"{name}\""))
            || functions.any(|f| find_word(&s.code, f).iter().any(|at| s.code[..*at].ends_with("fn ")))
    })
}

fn snapshot_offences(paths: &[String], sources: &[Source]) -> Vec<Offence> {
    let cases: Vec<(&String, &str)> = paths.iter().filter_map(|p| Some((p, case_stem(p)?))).collect();
    let snapshots: Vec<(&String, &str)> = paths.iter().filter_map(|p| Some((p, snapshot_stem(p)?))).collect();
    let lone =
        cases.iter().filter(|(_, case)| !snapshots.iter().any(|(_, snapshot)| belongs(snapshot, case)));
    let stale = snapshots.iter().filter(|(_, snapshot)| {
        !cases.iter().any(|(_, case)| belongs(snapshot, case)) && !is_asserted(snapshot, sources)
    });
    let twins =
        cases.iter().enumerate().filter(|(n, (_, case))| cases[..*n].iter().any(|(_, other)| other == case));
    let lone = lone.map(|(path, _)| offence(path, 1, "no snapshot carries this case's name"));
    let stale = stale.map(|(path, _)| offence(path, 1, "no case and no test refers to this snapshot"));
    let twins = twins.map(|(_, (path, _))| offence(path, 1, "another case has this name"));
    lone.chain(stale).chain(twins).collect()
}

#[test]
fn cases_and_snapshots_belong_together() {
    assert_none(&snapshot_offences(&paths(), &sources()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    #[test]
    fn a_case_owns_the_snapshots_with_its_whole_name() {
        assert!(belongs("all__stories__norm", "norm") && belongs("norm@plan", "norm"));
        assert!(belongs("all__stories__a__qwen3-0.6b.graph", "qwen3-0.6b"));
        assert!(!belongs("all__stories__norm_rows", "norm") && !belongs("all__norms", "norm"));
    }

    #[test]
    fn lone_cases_stale_snapshots_and_twins_are_found() {
        let paths = [
            "tests/cases/a/norm.graph",
            "tests/cases/a/lone.graph",
            "tests/cases/b/norm.graph",
            "tests/snapshots/all__norm.snap",
            "tests/snapshots/all__gone.snap",
            "tests/snapshots/all__two_readers-2.snap",
            "tests/snapshots/all__named.snap",
        ];
        let text = "fn two_readers() { assert_snapshot!(x); assert_snapshot!(\"named\", y) }".to_owned();
        let source = Source::new(File { path: "tests/a.rs".to_owned(), text });
        let paths = paths.map(str::to_owned);
        let found = snapshot_offences(&paths, &[source]);
        let found: Vec<&str> = found.iter().map(|o| o.path.as_str()).collect();
        assert_eq!(found, [&paths[1], &paths[4], &paths[2]]);
    }
}
