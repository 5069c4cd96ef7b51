//! The report of a compilation: what each stage made of the graph, and why.
//!
//! In: what `pipeline.rs` records. Out: one value for people, logs and tests; [`Story`]'s `Display` is the text of its
//! five sections, without times, so that equal compilations read equal. The plan prints itself, after it.
//! It holds text and numbers only and knows no stage.

use std::fmt;

use crate::foundation::amount::{bytes, count, counted};

/// What happened to a graph.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Story {
    /// The device that kernels are for.
    pub target: String,
    /// Each distinct block, in order of first use.
    pub blocks: Vec<BlockStory>,
    /// Launches of the whole, in order: the block, and which of its kernels.
    pub steps: Vec<(usize, usize)>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Milliseconds of each stage, over all blocks.
    pub stage_ms: Vec<(&'static str, f64)>,
}

/// What happened to one distinct block.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct BlockStory {
    /// The name of its first use.
    pub name: String,
    /// How often it is used.
    pub n_uses: usize,
    /// The graph as its author wrote it.
    pub written: String,
    /// The number of its operations.
    pub n_written: usize,
    /// The improved graph.
    pub improved: String,
    /// The number of its operations.
    pub n_improved: usize,
    /// The e-graph it was chosen from.
    pub egraph: EGraphStory,
    /// How often each rule fired.
    pub rules_fired: Vec<(String, usize)>,
    /// Rules whose forms were chosen.
    pub rules_used: Vec<String>,
    /// Choices between forms, each with both prices.
    pub forms: Vec<String>,
    /// Estimated seconds of the author's graph, and of the improved one.
    pub seconds: (f64, f64),
    /// The regions: what shares a launch.
    pub regions: Vec<RegionStory>,
    /// The launches.
    pub kernels: Vec<KernelStory>,
}

/// The size of an e-graph.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EGraphStory {
    /// Equal forms of all values.
    pub nodes: usize,
    /// Distinct values.
    pub classes: usize,
    /// Rounds until it stopped.
    pub rounds: usize,
    /// Why it stopped.
    pub stopped: String,
}

/// One region.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RegionStory {
    /// How many operations it fuses.
    pub n_ops: usize,
    /// Their kinds and counts.
    pub fuses: String,
    /// The values it computes, by their numbers.
    pub computes: String,
    /// The merges that prices decided: values that stay out of memory, launches that were joined.
    pub pays: Vec<String>,
    /// What is stored, each with the reason why.
    pub stores: Vec<(String, String)>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct KernelStory {
    /// What it is called.
    pub name: String,
    /// The pattern it follows.
    pub skeleton: String,
    /// How many operations it fuses.
    pub n_ops: usize,
    /// Their kinds and counts.
    pub fuses: String,
    /// Parts: independent grids.
    pub n_parts: usize,
    /// Independent tasks.
    pub n_tasks: i64,
    /// Bytes read, each once.
    pub bytes_read: f64,
    /// Bytes written, each once.
    pub bytes_written: f64,
    /// Operations on numbers.
    pub flops: f64,
    /// Bytes of tiles of a task.
    pub tile_bytes: usize,
    /// Estimated microseconds.
    pub microseconds: f64,
    /// Elements read and written of each buffer, with symbols.
    pub traffic: Vec<String>,
    /// Why its results are stored.
    pub barriers: Vec<String>,
    /// The passes that changed it for the device, each with the reason.
    pub prepared: Vec<String>,
    /// The kernel as text, as it runs.
    pub text: String,
}

impl Story {
    /// Every launch of the whole.
    pub fn launches(&self) -> impl Iterator<Item = &KernelStory> {
        self.steps.iter().filter_map(|(block, kernel)| self.blocks.get(*block)?.kernels.get(*kernel))
    }

    /// Bytes read, bytes written and operations of the whole.
    pub fn totals(&self) -> (f64, f64, f64) {
        self.launches().fold((0.0, 0.0, 0.0), |(read, written, flops), kernel| {
            (read + kernel.bytes_read, written + kernel.bytes_written, flops + kernel.flops)
        })
    }

    /// Adds to the time of a stage.
    pub fn took(&mut self, stage: &'static str, milliseconds: f64) {
        match self.stage_ms.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, total)) => *total += milliseconds,
            None => self.stage_ms.push((stage, milliseconds)),
        }
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for block in &self.blocks {
            block.write(f, &self.target)?;
        }
        let (read, written, flops) = self.totals();
        writeln!(f, "## 5. plan")?;
        writeln!(
            f,
            "{}, {} read, {} written, {} operations, arena {}",
            counted(self.steps.len(), "kernel"),
            bytes(read),
            bytes(written),
            count(flops),
            bytes(self.arena_bytes as f64)
        )
    }
}

impl BlockStory {
    fn write(&self, f: &mut fmt::Formatter<'_>, target: &str) -> fmt::Result {
        let uses = if self.n_uses == 1 { String::new() } else { format!(", used {} times", self.n_uses) };
        writeln!(f, "# {} for {target}{uses}\n", self.name)?;
        writeln!(f, "## 1. as written\n{}\n{}", counted(self.n_written, "operation"), self.written)?;
        self.write_improved(f)?;
        writeln!(f, "## 3. regions")?;
        for (index, region) in self.regions.iter().enumerate() {
            writeln!(f, "{}. {}: {}", index + 1, counted(region.n_ops, "operation"), region.fuses)?;
            writeln!(f, "   computes {}", region.computes)?;
            for line in &region.pays {
                writeln!(f, "     {line}")?;
            }
            for (value, reason) in &region.stores {
                writeln!(f, "   stores {value}\n     because: {reason}")?;
            }
        }
        writeln!(f, "\n## 4. kernels")?;
        for (index, kernel) in self.kernels.iter().enumerate() {
            kernel.write(f, index + 1)?;
        }
        writeln!(f)
    }

    fn write_improved(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EGraphStory { nodes, classes, rounds, stopped } = &self.egraph;
        let [nodes, classes, rounds] =
            [(nodes, "node"), (classes, "class"), (rounds, "round")].map(|(n, what)| counted(*n, what));
        writeln!(f, "## 2. improved\n{}", counted(self.n_improved, "operation"))?;
        writeln!(f, "e-graph: {nodes} in {classes} after {rounds}, stopped: {stopped}")?;
        writeln!(
            f,
            "estimate: {:.1} us as written, {:.1} us as chosen",
            self.seconds.0 * 1e6,
            self.seconds.1 * 1e6
        )?;
        let fired: Vec<String> = self.rules_fired.iter().map(|(rule, n)| format!("{rule} ×{n}")).collect();
        writeln!(f, "rules fired: {}", listed(&fired))?;
        writeln!(f, "rules used: {}", listed(&self.rules_used))?;
        for form in &self.forms {
            writeln!(f, "choice: {form}")?;
        }
        writeln!(f, "{}", self.improved)
    }
}

impl KernelStory {
    fn write(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        writeln!(f, "{number}. {}", self.name)?;
        writeln!(
            f,
            "   {}: {} fused, {}, {}, {} of tiles",
            self.skeleton,
            counted(self.n_ops, "operation"),
            counted(self.n_parts, "part"),
            counted(self.n_tasks as usize, "task"),
            bytes(self.tile_bytes as f64)
        )?;
        writeln!(
            f,
            "   {} read, {} written, {} operations, about {:.1} us",
            bytes(self.bytes_read),
            bytes(self.bytes_written),
            count(self.flops),
            self.microseconds
        )?;
        for line in &self.traffic {
            writeln!(f, "     {line}")?;
        }
        for line in &self.prepared {
            writeln!(f, "   prepared: {line}")?;
        }
        writeln!(f, "   barrier after it: {}", listed(&self.barriers))
    }
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_over_every_launch() {
        let kernel = KernelStory { bytes_read: 3.0, flops: 2.0, ..KernelStory::default() };
        let block = BlockStory { kernels: vec![kernel], ..BlockStory::default() };
        let story = Story { blocks: vec![block], steps: vec![(0, 0); 4], ..Story::default() };
        assert_eq!(story.totals(), (12.0, 0.0, 8.0));
    }
}
