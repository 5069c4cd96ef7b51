//! Every rewrite rule has a unique name, its argument and a case that fires it.
//!
//! In: the files below `compiler/src/rewrite/rules`. Out: an offence for each rule that lacks one of the three.
//! A rule is a line with `name: "subject-effect"`.
//! The comment with its argument stands above that line or above the item around it.

use std::collections::BTreeMap;

use tree::{File, Offence, assert_none, files, offence};

use crate::source::{Source, find_word, sources};

/// Where the rules live.
const FOLDER: &str = "compiler/src/rewrite/rules/";

/// The lines of the argument, in order.
const ARGUMENT: [&str; 3] = ["What:", "Why equal:", "Why cheaper:"];

/// How many lines of comment above a rule are read.
const REACH: usize = 6;

/// The names declared in a file, each with its line.
fn names(source: &Source) -> Vec<(usize, &str)> {
    const DECLARES: &str = "name: \"";
    // The insides of strings are blank in the code, so the name itself is read from the text.
    let lines = source.text.lines().zip(source.production.lines());
    let names = (1..).zip(lines).filter(|(_, (_, code))| !find_word(code, DECLARES).is_empty());
    let names = names.filter_map(|(line, (text, _))| Some((line, text.split_once(DECLARES)?.1)));
    names.filter_map(|(line, rest)| Some((line, rest.split('"').next()?))).collect()
}

/// Whether the argument stands above a line, or above the item around it.
fn is_argued(text: &str, line: usize) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |l: &str| l.len() - l.trim_start().len();
    let own = indent(lines[line - 1]);
    let is_head = |l: &&str| {
        let is_item = ["pub", "fn ", "const ", "static "].iter().any(|word| l.trim_start().starts_with(word));
        is_item && indent(l) < own
    };
    let head = lines[..line].iter().rposition(is_head);
    let above_line = has_argument(&lines[..line - 1]);
    above_line || head.is_some_and(|head| has_argument(&lines[..head]))
}

/// Whether the comment that ends these lines is an argument.
fn has_argument(lines: &[&str]) -> bool {
    let above = lines.iter().rev().map(|l| l.trim_start()).skip_while(|l| l.starts_with("#["));
    let mut comment: Vec<&str> = above.take_while(|l| l.starts_with("//")).take(REACH).collect();
    comment.reverse();
    let mut rest = comment.iter().map(|l| l.trim_start_matches('/').trim_start());
    ARGUMENT.iter().all(|part| rest.any(|l| l.strip_prefix(part).is_some_and(|text| !text.trim().is_empty())))
}

fn is_kebab_case(name: &str) -> bool {
    let is_word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.contains('-') && name.split('-').all(is_word)
}

/// Whether a test names the rule: in its file's tests, or in a file below `tests/`.
fn is_tested(name: &str, source: &Source, tests: &[File]) -> bool {
    let quoted = format!("\"{name}\"");
    let own = source.text.lines().zip(source.production.lines()).zip(source.code.lines());
    let mut own = own.filter(|((_, production), code)| production != code).map(|((text, _), _)| text);
    own.any(|l| l.contains(&quoted)) || tests.iter().any(|f| f.text.contains(&quoted))
}

fn rule_offences(rules: &[Source], tests: &[File]) -> Vec<Offence> {
    let (mut offences, mut places) = (Vec::new(), BTreeMap::<&str, String>::new());
    for source in rules {
        for (line, name) in names(source) {
            let here = format!("{}:{line}", source.path);
            let mut add =
                |what: String| offences.push(offence(&source.path, line, format!("`{name}` {what}")));
            if !is_kebab_case(name) {
                add("is not of the form `subject-effect`".to_owned());
            }
            if !is_argued(&source.text, line) {
                add(format!("lacks its argument: {ARGUMENT:?} in the {REACH} lines above"));
            }
            if !is_tested(name, source, tests) {
                add("is quoted by no test: add a case that fires it".to_owned());
            }
            if let Some(first) = places.insert(name, here) {
                add(format!("is the name of the rule at {first} too"));
            }
        }
    }
    let is_blank = !rules.is_empty() && places.is_empty();
    offences.extend(is_blank.then(|| offence(FOLDER, 1, "no line `name: \"…\"` declares a rule")));
    offences
}

#[test]
fn every_rule_is_named_argued_and_tested() {
    let is_rule = |s: &Source| s.path.starts_with(FOLDER) && !s.path.ends_with("/mod.rs");
    let rules: Vec<Source> = sources().into_iter().filter(is_rule).collect();
    let is_test = |f: &File| f.path.starts_with("tests/") && !f.path.starts_with("tests/tidy/");
    let tests: Vec<File> = files(&["rs"]).into_iter().filter(is_test).collect();
    assert_none(&rule_offences(&rules, &tests));
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "/// What: a duck.\n/// Why equal: it quacks,\n/// and swims.\n/// Why cheaper: no feathers.\n\
        pub(super) fn duck() -> Rule {\n    Rule {\n        name: \"duck-quack\",\n    }\n}\n\n\
        #[cfg(test)]\nmod tests {\n    const FIRED: &str = \"duck-quack\";\n}\n";

    fn whats(text: &str) -> Vec<String> {
        let file = File { path: format!("{FOLDER}a.rs"), text: text.to_owned() };
        rule_offences(&[Source::new(file)], &[]).into_iter().map(|o| o.what).collect()
    }

    #[test]
    fn a_complete_rule_passes() {
        assert_eq!(whats(GOOD), Vec::<String>::new());
    }

    #[test]
    fn the_argument_may_stand_in_a_list_of_rules() {
        let lines = "  // What: a.\n  // Why equal: b.\n  // Why cheaper: c.\n  Rule {\n    name: \"a-b\",";
        assert!(!is_argued(&format!("const RULES: [Rule; 1] = [\n{lines}"), 6));
        let lines =
            "  Rule {\n    // What: a.\n    // Why equal: b.\n    // Why cheaper: c.\n    name: \"a-b\",";
        assert!(is_argued(&format!("const RULES: [Rule; 1] = [\n{lines}"), 6));
        let line =
            "/// What: a.\n/// Why equal: b.\n/// Why cheaper: c.\nconst A: Rule = Rule { name: \"a-b\" };";
        assert!(is_argued(line, 4));
        let file = File { path: format!("{FOLDER}a.rs"), text: line.to_owned() };
        assert_eq!(names(&Source::new(file)), [(4, "a-b")]);
    }

    #[test]
    fn each_thing_that_lacks_is_told() {
        assert_eq!(whats(&GOOD.replace("Why equal", "Why")).len(), 1);
        assert_eq!(whats(&GOOD.replace("equal: it quacks,", "equal:")).len(), 1);
        assert_eq!(whats(&GOOD.replace("FIRED: &str = \"duck", "FIRED: &str = \"goose")).len(), 1);
        assert_eq!(whats(&GOOD.replace("duck-quack", "Duck")).len(), 1);
        assert_eq!(whats(&[GOOD, GOOD].concat()).len(), 1);
        assert_eq!(whats("fn f() {}").len(), 1);
    }
}
