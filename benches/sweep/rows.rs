//! Rows of comma-separated values: what was measured, when, of which commit and on what.
//!
//! Out: [`row`] and [`HEADS`]. In: such rows again, of one run or of several, for [`read`].
//! A factor is that among the cells of its run; it is found anew for the rows that are read.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::cells::{Cell, Kind, Shape, format};
use crate::judge::Verdict;
use crate::model::Time;

/// The names of the columns.
pub(crate) const HEADS: &str = "date,commit,machine,threads,kind,size,format,depth,prompt,ms,share,factor";

/// Where a measurement comes from.
pub(crate) struct Origin(String);

impl Origin {
    /// This machine, this commit, now; what is not known is left out.
    pub(crate) fn here(n_threads: usize) -> Self {
        let date = said_by("date", &["-u", "+%FT%TZ"]);
        let commit = said_by("git", &["rev-parse", "--short", "HEAD"]);
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split_once(':'));
        let name = names.into_iter().find(|(key, _)| key.trim() == "model name");
        let machine = name.map_or("", |(_, name)| name.trim()).replace(',', " ");
        Self(format!("{date},{commit},{machine},{n_threads}"))
    }
}

/// The first line that a command prints.
fn said_by(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output().map(|output| output.stdout);
    let text = String::from_utf8(output.unwrap_or_default()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The row of a cell.
pub(crate) fn row(Origin(origin): &Origin, cell: &Cell, verdict: &Verdict) -> String {
    let Cell { shape: Shape { kind, size }, format, depth, prompt } = cell;
    let Verdict { time: Time { ms, share }, factor, .. } = verdict;
    format!("{origin},{},{size},{format},{depth},{prompt},{ms:.6},{share:.6},{factor:.3}", kind.name())
}

/// The cells of rows, the last one of each; a bad row is reported with its number.
pub(crate) fn read(text: &str) -> Result<BTreeMap<Cell, Time>, String> {
    let mut times = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| *line != HEADS) {
        let (cell, time) =
            cell(line).ok_or_else(|| format!("line {} is no row of this bench", number + 1))?;
        times.insert(cell, time);
    }
    Ok(times)
}

fn cell(line: &str) -> Option<(Cell, Time)> {
    let fields: Vec<&str> = line.split(',').collect();
    let [_, _, _, _, kind, size, name, depth, prompt, ms, share, _] = fields[..] else { return None };
    let kind = Kind::ALL.into_iter().find(|own| own.name() == kind)?;
    let shape = Shape { kind, size: size.parse().ok()? };
    let cell =
        Cell { shape, format: format(name)?, depth: depth.parse().ok()?, prompt: prompt.parse().ok()? };
    Some((cell, Time { ms: ms.parse().ok()?, share: share.parse().ok()? }))
}
