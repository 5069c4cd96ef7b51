//! Graphs as text: those of the tests, with faults. What parses prints and parses again as the same.

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::graph::verify::verify;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::{kernel, schedule};

use crate::mutate;
use crate::targets::target::Target;

/// Reads graphs, and compiles them if it is to.
pub(crate) struct Text {
    compiles: bool,
    all: Vec<String>,
}

/// The graphs of the tests.
pub(crate) fn graphs() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cases");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "graph")).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

impl Text {
    pub(crate) fn new(compiles: bool) -> Self {
        Self { compiles, all: graphs() }
    }
}

impl Target for Text {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let own = mutate::one(random, &self.all);
        mutate::text(random, own, &self.all).into_bytes()
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        let Ok(text) = std::str::from_utf8(input) else { return Ok(false) };
        let Ok(graph) = parse(text) else { return Ok(false) };
        let printed = graph.to_string();
        let again = parse(&printed).map_err(|error| format!("what it prints does not parse: {error}"))?;
        if again.to_string() != printed {
            return Err("it prints in another way the second time".to_owned());
        }
        if !verify(&graph).is_empty() || !self.compiles {
            return Ok(true);
        }
        let Ok(compiled) = compile(&graph, &Options::default()) else { return Ok(false) };
        let complaints = schedule::verify::verify(&compiled.plan);
        let mut kernels = compiled.plan.kernels.values();
        if !complaints.is_empty() || kernels.any(|kernel| !kernel::verify::verify(kernel).is_empty()) {
            return Err("what it compiles to does not verify".to_owned());
        }
        Ok(true)
    }

    fn is_bounded(&self) -> bool {
        // What a graph compiles to has the size of its e-graph.
        !self.compiles
    }
}
