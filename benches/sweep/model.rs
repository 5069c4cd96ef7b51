//! A model with random weights in memory, and how long it takes for a cell.
//!
//! In: a cell. Out: a session on the processor, as `fusebox run` has one, and the least time of several repeats.
//! Equal blocks have equal weights, each in memory of its own. Formats are those that `fusebox quantize` chooses.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::reference::random::Numbers as Random;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks::part;
use fusebox_models::config::{Config, Formats, KvCache};
use fusebox_models::layers::embed::{Entry, Scored};
use fusebox_models::layers::step::Step;
use fusebox_models::naming::tensors::Names;
use fusebox_models::quantize::tensor_format::{self, choose};
use fusebox_models::quantize::types::Type;
use fusebox_runtime::device::Weights;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::classes::{Class, Programs};
use fusebox_runtime::session::engine::{Engine, Limits};
use fusebox_runtime::weights::Kind;

use crate::cells::Cell;
use crate::work::roofline;

/// How many tokens a replay takes at most, as for a user.
const CHUNK: usize = 512;
/// A cell is repeated at least so often, and at least so long.
const N_REPEATS: usize = 3;
const MOMENT: Duration = Duration::from_millis(100);

/// A model that is ready to be measured.
pub(crate) struct Model {
    session: Session,
}

/// What a cell takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time {
    /// The least time of all repeats, in milliseconds.
    pub(crate) ms: f64,
    /// The time of the roofline, over that.
    pub(crate) share: f64,
}

/// Tensors by the names that graphs use.
struct Tensors(BTreeMap<String, Vec<u8>>);

impl Weights for Tensors {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

impl Model {
    /// The model of a cell, with room for all of its cells.
    pub(crate) fn new(cell: &Cell, n_threads: usize) -> Result<Self, Box<dyn Error>> {
        let depth = cell.shape.kind.depths().iter().max().copied().unwrap_or(0);
        let context = depth + CHUNK;
        let cache = KvCache { format: Format::F16, ..KvCache::of_one(context) };
        let config = Config { context, cache, ..cell.config() };
        let config = quantised(config, cell.format)?;
        let weights: Arc<dyn Weights> = Arc::new(tensors(&graph(&config)?));
        let KvCache { page_rows, n_pages, n_sequences, .. } = config.cache;
        let n_vocab = config.vocab;
        let limits = Limits { context, n_vocab, n_kinds: 0, page_rows, n_pages, n_sequences, windows: None };
        let (cache, options) = (Cache::default(), Options::default());
        let compile = move |class: Class| {
            let graph = part(&config, Step::of(class), config.n_layers(), Entry::Tokens, Scored::Last)?;
            cache.program(&graph, &options)
        };
        let programs = Programs::new(CHUNK, 0, 1, Box::new(compile));
        let cpu = Cpu::host(Numbers::Quantised)?;
        let device = Box::new(CpuDevice::new(cpu, n_threads)?);
        let session = Session::of(Engine::new(device, programs, &weights, limits)?);
        Ok(Self { session })
    }

    /// The least time that a cell of this model takes.
    pub(crate) fn time(&mut self, cell: &Cell) -> Result<Time, Box<dyn Error>> {
        if self.session.position() < cell.depth {
            let missing = tokens(&self.session, cell.depth - self.session.position());
            self.session.feed(&missing)?;
        }
        let prompt = tokens(&self.session, cell.prompt);
        let (begin, mut least) = (Instant::now(), f64::INFINITY);
        for repeat in 0.. {
            self.session.truncate(cell.depth)?;
            let start = Instant::now();
            self.session.feed(&prompt)?;
            // The first one warms up.
            if repeat > 0 {
                least = least.min(start.elapsed().as_secs_f64());
            }
            if repeat >= N_REPEATS && begin.elapsed() >= MOMENT {
                break;
            }
        }
        let mut position = cell.depth;
        let mut bound = 0.0;
        for n_tokens in self.session.pieces(cell.prompt) {
            bound += roofline(self.session.plan_of(n_tokens)?, position, n_tokens);
            position += n_tokens;
        }
        Ok(Time { ms: 1e3 * least, share: bound / least })
    }
}

/// Tokens of no meaning.
fn tokens(session: &Session, n: usize) -> Vec<u32> {
    (0..n).map(|place| (place * 7919 + 13) as u32 % session.n_vocab() as u32).collect()
}

/// The graph of a model for one token.
fn graph(config: &Config) -> Result<Graph, Box<dyn Error>> {
    Ok(part(config, &Sym::from(1), config.n_layers(), Entry::Tokens, Scored::Last)?)
}

/// The model with each matrix in the format that a type has for it.
fn quantised(config: Config, ty: &str) -> Result<Config, Box<dyn Error>> {
    let ty = Type::named(ty).ok_or_else(|| format!("there is no type {ty}"))?;
    // Single precision marks the tensors that are kept in it.
    let config = Config { formats: Formats::Uniform(Format::BF16), ..config };
    let model = tensor_format::Model::of(&config);
    let mut formats = BTreeMap::new();
    for node in graph(&config)?.nodes.values() {
        let Op::Weight { name, shape, format: Format::BF16 } = &node.op else { continue };
        let sizes: Vec<usize> = shape.iter().map(|(_, size)| size.most() as usize).collect();
        // The rows of this one are all heads together.
        let n_rows = if name.ends_with("attn_output") { 1 } else { sizes.len() - 1 };
        let sizes = [&sizes[..n_rows], &[sizes[n_rows..].iter().product()]].concat();
        let in_file = Names::common(Kind::Gguf { version: 3 }).of(name).remove(0);
        let format = choose(ty, model, &in_file, &sizes).map_or(Format::F32, |choice| choice.format);
        formats.insert(name.to_string(), format);
    }
    Ok(Config { formats: Formats::Each(formats), ..config })
}

/// Random weights for all that a graph names.
fn tensors(graph: &Graph) -> Tensors {
    let mut made: BTreeMap<(String, Format), Vec<u8>> = BTreeMap::new();
    let mut tensors = BTreeMap::new();
    for node in graph.nodes.values() {
        let Op::Weight { name, shape, format } = &node.op else { continue };
        // `blk.7.ffn_up` is as `blk.0.ffn_up`.
        let of_block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let own = of_block.map_or(&**name, |(_, own)| own).to_owned();
        let make = || Random::of(5, &own).stored(*format, shape).bytes.to_vec();
        let bytes = made.entry((own.clone(), *format)).or_insert_with(make);
        tensors.insert(name.to_string(), bytes.clone());
    }
    Tensors(tensors)
}
