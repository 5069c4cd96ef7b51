//! The rules in the charter are the rules in the code.
//!
//! In: all rewrite rules. Out: the table of what they hold for in `compiler/src/rewrite/README.md`.

use std::fmt::Write;

use fusebox_compiler::rewrite::rules::all;
use tree::marked::hold;

#[test]
fn the_charter_documents_what_every_rule_holds_for() {
    let mut table = "| rule | is an equality for |\n|---|---|\n".to_owned();
    for rule in all() {
        writeln!(table, "| `{}` | {} |", rule.name(), rule.holds_for()).unwrap();
    }
    hold("compiler/src/rewrite/README.md", "the rules", &table).unwrap_or_else(|what| panic!("{what}"));
}
