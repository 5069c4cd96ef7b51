//! Decoders written outside of this crate: sizes, and a function from embeddings to hidden states.
//!
//! In: a [`Decoder`], or a name and a function that reads one from a file. Out: a model like any other: it is compiled,
//! batched and sampled from by the same road.
//! A body takes axes, weights and places from its scope, and may use the formulas in `layers/`. Embedding and output
//! head are those of its config.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use fusebox_compiler::error::Error;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::build::Tensor;
use fusebox_runtime::weights::Checkpoint;

use crate::blocks::part;
use crate::config::Config;
use crate::families::gguf_architecture;
use crate::layers::block;
use crate::layers::embed::{Entry, Scored, entry, head};
use crate::layers::scope::Scope;
use crate::layers::step::Step;

/// The blocks of a decoder as a function: from embeddings `[t, d]` to the residual stream after the last block.
type Blocks = dyn Fn(&Scope<'_>, Tensor) -> Tensor + Send + Sync;

/// A decoder: its sizes, and its blocks where they are a function and no data.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Its sizes, and what is around the blocks.
    pub config: Config,
    pub(crate) body: Body,
}

/// Blocks that are a function; none where the config has them as data.
#[derive(Clone)]
pub(crate) struct Body(Option<Arc<Blocks>>);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a function" } else { "data" })
    }
}

impl From<Config> for Decoder {
    fn from(config: Config) -> Self {
        Self { config, body: Body(None) }
    }
}

impl Decoder {
    /// Blocks that are a function; those of the config are not used.
    pub fn new(
        config: Config,
        blocks: impl Fn(&Scope<'_>, Tensor) -> Tensor + Send + Sync + 'static,
    ) -> Self {
        Self { config, body: Body(Some(Arc::new(blocks))) }
    }
}

impl Body {
    /// The graph of a step.
    ///
    /// # Errors
    /// All errors of the graph.
    pub(crate) fn graph(
        &self,
        config: &Config,
        tokens: impl Into<Step>,
        from: Entry,
        scored: Scored,
    ) -> Result<Graph, Error> {
        let tokens: Step = tokens.into();
        if let Step::Attention(_) = tokens {
            let m = Scope::new(config, &tokens);
            self.results(&m, from);
            let noted = m.attention();
            return finish(&m, noted.iter());
        }
        let Some(blocks) = &self.0 else { return part(config, tokens, config.n_layers(), from, scored) };
        let m = Scope::new(config, &tokens);
        let results = head(&m, &blocks(&m, entry(&m, from)), scored);
        let results: Vec<(&str, &Tensor)> = results.iter().map(|(name, result)| (*name, result)).collect();
        m.g.finish(&results)
    }
}

impl Body {
    /// The same from the first token of a sequence to hidden states, with what the inputs of projections are.
    ///
    /// # Errors
    /// As [`Body::graph`].
    pub(crate) fn observing(
        &self,
        config: &Config,
        tokens: impl Into<Step>,
        from: Entry,
    ) -> Result<Graph, Error> {
        let m = Scope::observing(config, &tokens.into());
        let results = self.results(&m, from);
        let observed = m.observed();
        finish(&m, results.iter().chain(&observed))
    }

    /// Hidden states, by their name.
    fn results(&self, m: &Scope<'_>, from: Entry) -> Vec<(String, Tensor)> {
        let results = match &self.0 {
            None => block::step(m, m.config.n_layers(), from, Scored::Unnormed),
            Some(blocks) => head(m, &blocks(m, entry(m, from)), Scored::Unnormed),
        };
        results.into_iter().map(|(name, y)| (name.to_owned(), y)).collect()
    }

    /// Whether its blocks are a function, of which nothing is known.
    pub(crate) fn is_function(&self) -> bool {
        self.0.is_some()
    }
}

fn finish<'r>(m: &Scope<'_>, results: impl Iterator<Item = &'r (String, Tensor)>) -> Result<Graph, Error> {
    m.g.finish(&results.map(|(name, y)| (name.as_str(), y)).collect::<Vec<_>>())
}

/// Reads a decoder from a file.
type Read = dyn Fn(&Checkpoint) -> Result<Decoder, String> + Send + Sync;

/// The families that programs have registered, by architecture.
static FAMILIES: RwLock<Vec<(String, Arc<Read>)>> = RwLock::new(Vec::new());

/// Registers a family: files of this architecture (`general.architecture` in GGUF, `model_type` in a folder) are
/// opened with what `read` returns, from now on and by every part of the program.
///
/// # Errors
/// Where an architecture of this name is known already.
pub fn register_family(
    architecture: &str,
    read: impl Fn(&Checkpoint) -> Result<Decoder, String> + Send + Sync + 'static,
) -> Result<(), String> {
    let mut families = FAMILIES.write().unwrap_or_else(PoisonError::into_inner);
    let is_known = families.iter().any(|(own, _)| own == architecture);
    if is_known || gguf_architecture(architecture).is_some() {
        return Err(format!("there is a family `{architecture}` already"));
    }
    families.push((architecture.to_owned(), Arc::new(read)));
    Ok(())
}

/// What reads files of a registered architecture.
pub(crate) fn registered(architecture: &str) -> Option<Arc<Read>> {
    let families = FAMILIES.read().unwrap_or_else(PoisonError::into_inner);
    families.iter().find(|(own, _)| own == architecture).map(|(_, read)| Arc::clone(read))
}
