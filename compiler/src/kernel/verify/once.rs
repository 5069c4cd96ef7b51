//! Proves that what is done once for several tasks is the same for them.
//!
//! In: a part whose accesses are sound. Out: a complaint where what stands in a `once` depends on more variables of the
//! grid than it says, or reads what another statement writes anew for each task.

use crate::kernel::Stmt;
use crate::kernel::effects::depths;
use crate::kernel::verify::Checker;

impl Checker<'_> {
    /// Checks every `once`.
    pub(super) fn shared(&mut self) {
        if !self.complaints.is_empty() {
            return;
        }
        let part = self.part;
        let mut statements = Vec::new();
        for stmt in &part.body {
            let Stmt::Once { per, body } = stmt else {
                statements.push((stmt, part.grid.len()));
                continue;
            };
            if !part.grid.starts_with(per) || per.len() == part.grid.len() {
                self.complain("a `once` is per some outer variables of the grid, not all");
            }
            statements.extend(body.iter().map(|stmt| (stmt, per.len())));
        }
        if statements.iter().any(|(stmt, _)| has_once(stmt)) {
            self.complain("a `once` stands in the body of a part, not in a loop or in another");
        }
        if !self.complaints.is_empty() {
            return;
        }
        let said = statements.iter().map(|(_, said)| *said);
        let missing = said.zip(depths(part, &statements)).filter(|(said, depth)| depth > said);
        if let Some((said, depth)) = missing.max_by_key(|(_, depth)| *depth) {
            let vars: Vec<String> = part.grid[said..depth].iter().map(|var| self.var(*var)).collect();
            self.complain(format!("what is done once depends on {} too", vars.join(", ")));
        }
    }
}

/// Whether a statement is a `once`, or has one inside.
fn has_once(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Once { .. }) || stmt.inner().iter().any(has_once)
}
