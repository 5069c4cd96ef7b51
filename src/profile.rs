//! Where the time of a replay goes: each launch with its time, its work, its kind and its layer.
//!
//! In: a session and tokens, in any process that has one. Out: a [`Profile`], whose totals by kind of operation and by
//! layer add up to it, and the same as JSON.
//! A launch fuses several operations; its kind is that of the heaviest, so norms and rotations that are computed inside
//! a product count as the product. The session is left at the position that was measured from, unless its states only
//! go forward.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::product::form::MicroKernel;
use fusebox_compiler::forms::{self, Form};
use fusebox_compiler::foundation::entity::Id;
use fusebox_compiler::kernel::measure::{Measure, measure_at};
use fusebox_compiler::kernel::{ParamId, Skeleton};
use fusebox_compiler::schedule::{KernelId, Place, Plan, Step};
use fusebox_compiler::target::Work;
use fusebox_compiler::tensor::sym::Symbol;
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::names::{PAGES, TOKENS};
use serde_json::{Map, Value, json};

/// Measurements of each launch of a decode step, and of a replay of several tokens, which takes longer.
const N_REPEATS: [usize; 2] = [9, 3];
/// What the names of the weights and states of a layer begin with; its number follows.
const LAYER: &str = "blk.";
/// What the names of weights of experts end with.
const EXPERTS: &str = "_exps";
/// Operations that a rotation or a norm has and other maps have not.
const OF_NORMS: [&str; 3] = ["rsqrt", "cos", "sin"];

/// What a launch is mostly for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Attention over a cache.
    Attention,
    /// Norms and rotary embeddings with a launch of their own.
    Norm,
    /// Products with a weight, and all that is computed with them.
    Product,
    /// Products with weights that a router picks.
    Experts,
    /// Lookups, selection of the best logits, and what else there is.
    Rest,
}

impl Kind {
    /// Every kind, in the order of the declaration.
    pub const ALL: [Self; 5] = [Self::Attention, Self::Norm, Self::Product, Self::Experts, Self::Rest];

    /// The name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Norm => "norm and rotation",
            Self::Product => "products",
            Self::Experts => "experts",
            Self::Rest => "rest",
        }
    }

    fn of(plan: &Plan, step: &Step) -> Self {
        let has = |names: &[&str]| step.fused.0.iter().any(|(name, _)| names.contains(&&**name));
        let buffers = || step.args.iter().map(|arg| &plan.buffers[*arg]);
        let has_weight = || buffers().any(|buffer| buffer.place == Place::Weight);
        match plan.kernels[step.kernel].skeleton {
            Skeleton::Attention => Self::Attention,
            Skeleton::Experts => Self::Experts,
            // Experts of a small model may share a launch with what comes before them.
            _ if buffers().any(|buffer| buffer.name.ends_with(EXPERTS)) => Self::Experts,
            Skeleton::MatrixVector | Skeleton::MatrixMatrix => Self::Product,
            // Partial results of attention are added up inside the product that follows, unless there is none.
            Skeleton::Combine if has_weight() => Self::Product,
            Skeleton::Combine => Self::Attention,
            Skeleton::Map | Skeleton::RowReduction if has(&OF_NORMS) => Self::Norm,
            Skeleton::Map | Skeleton::RowReduction | Skeleton::TopK => Self::Rest,
        }
    }
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Launches of the same kernel have the same number.
    pub kernel: usize,
    /// What the kernel does, for people.
    pub name: String,
    /// The pattern that its heaviest loop nest follows.
    pub skeleton: &'static str,
    /// What it is mostly for.
    pub kind: Kind,
    /// The layer it belongs to; none before the first and after the last.
    pub layer: Option<usize>,
    /// Operations of the graph that it does.
    pub n_ops: usize,
    /// Their names.
    pub fuses: String,
    /// Why its results are stored.
    pub barriers: Vec<&'static str>,
    /// Bytes moved, each once, and operations on numbers.
    pub work: Work,
    /// The median of its times.
    pub time: Duration,
    /// What computes its products with weights and caches; none on a GPU.
    pub forms: Vec<Form>,
}

/// Launches summed.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Total {
    /// How many.
    pub n_launches: usize,
    /// Their work.
    pub work: Work,
    /// Their time.
    pub time: Duration,
}

/// The launches of one replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The position of the first token.
    pub position: usize,
    /// How many tokens the replay takes.
    pub n_tokens: usize,
    /// The launches in order.
    pub launches: Vec<Launch>,
    /// Launches of the block that occurs most often.
    pub per_block: usize,
}

impl Total {
    fn add(&mut self, launch: &Launch) {
        self.n_launches += 1;
        self.work = self.work + launch.work;
        self.time += launch.time;
    }

    fn to_json(self) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("launches".to_owned(), self.n_launches.into());
        object.insert("us".to_owned(), microseconds(self.time).into());
        object.insert("bytes".to_owned(), (self.work.bytes.round() as u64).into());
        object.insert("flops".to_owned(), (self.work.flops.round() as u64).into());
        object
    }
}

impl Profile {
    /// Measures the decode step that comes next after `sequence`, the tokens of the session so far.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn of_token(session: &mut Session, sequence: &[u32], cpu: Option<&Cpu>) -> Result<Self, Error> {
        let token = sequence.last().map_or(&[0][..], std::slice::from_ref);
        // A full context has no free position.
        let position = session.position().min(session.context() - 1);
        Self::of(session, token, position, N_REPEATS[0], cpu)
    }

    /// Measures the prefill of a sequence, or of its first chunk; nothing where it has no token.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn of_prompt(
        session: &mut Session,
        sequence: &[u32],
        cpu: Option<&Cpu>,
    ) -> Result<Option<Self>, Error> {
        let Some(n_tokens) = session.pieces(sequence.len()).next() else { return Ok(None) };
        Self::of(session, &sequence[..n_tokens], 0, N_REPEATS[1], cpu).map(Some)
    }

    fn of(
        session: &mut Session,
        tokens: &[u32],
        position: usize,
        n_repeats: usize,
        cpu: Option<&Cpu>,
    ) -> Result<Self, Error> {
        let times = times(session, tokens, position, n_repeats)?;
        let (n_tokens, page_size) = (tokens.len(), session.page_size());
        let plan = session.plan_of(n_tokens)?;
        let layers = layers(plan);
        let mut of_kernel: BTreeMap<KernelId, (Work, Vec<Form>)> = BTreeMap::new();
        let mut launch = |(step, time): (&Step, Duration)| {
            let kernel = &plan.kernels[step.kernel];
            let (work, forms) = of_kernel.entry(step.kernel).or_insert_with(|| {
                let work = measure_launch(plan, step, page_size, position..position + n_tokens).work();
                (work, cpu.map_or_else(Vec::new, |cpu| forms(cpu, plan, step)))
            });
            Launch {
                kernel: step.kernel.index(),
                name: kernel.name.clone(),
                skeleton: kernel.skeleton.name(),
                kind: Kind::of(plan, step),
                layer: layers.iter().find(|(instance, _)| *instance == step.instance).map(|(_, n)| *n),
                n_ops: step.fused.n_ops(),
                fuses: step.fused.to_string(),
                barriers: step.barriers.iter().map(|barrier| barrier.name()).collect(),
                work: *work,
                time,
                forms: forms.clone(),
            }
        };
        let launches = plan.steps.iter().zip(times).map(&mut launch).collect();
        Ok(Self { position, n_tokens, launches, per_block: per_block(plan) })
    }

    /// All launches together.
    pub fn total(&self) -> Total {
        let mut total = Total::default();
        for launch in &self.launches {
            total.add(launch);
        }
        total
    }

    /// The launches of each kind.
    pub fn kinds(&self) -> [(Kind, Total); 5] {
        Kind::ALL.map(|kind| (kind, self.total_of(&|launch| launch.kind == kind)))
    }

    /// The launches of each layer in their order, and of what belongs to none.
    pub fn layers(&self) -> Vec<(Option<usize>, Total)> {
        let mut layers: Vec<Option<usize>> = Vec::new();
        for launch in &self.launches {
            if !layers.contains(&launch.layer) {
                layers.push(launch.layer);
            }
        }
        let total = |layer| (layer, self.total_of(&|launch| launch.layer == layer));
        layers.into_iter().map(total).collect()
    }

    fn total_of(&self, is_wanted: &dyn Fn(&Launch) -> bool) -> Total {
        let mut total = Total::default();
        for launch in self.launches.iter().filter(|launch| is_wanted(launch)) {
            total.add(launch);
        }
        total
    }

    /// All of it as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = self.total().to_json();
        let kinds = self.kinds().map(|(kind, total)| with("kind", kind.name(), total.to_json()));
        let layers = self.layers().into_iter().map(|(layer, total)| with("layer", layer, total.to_json()));
        let head = [
            ("tokens", self.n_tokens.into()),
            ("position", self.position.into()),
            ("per_block", self.per_block.into()),
            ("kinds", json!(kinds)),
            ("layers", layers.collect()),
            ("steps", self.launches.iter().map(Launch::to_json).collect()),
        ];
        object.extend(head.map(|(key, value)| (key.to_owned(), value)));
        Value::Object(object)
    }
}

impl Launch {
    fn to_json(&self) -> Value {
        let code: Vec<String> = self.forms.iter().map(in_words).collect();
        json!({
            "kernel": self.kernel,
            "name": self.name,
            "skeleton": self.skeleton,
            "kind": self.kind.name(),
            "layer": self.layer,
            "us": microseconds(self.time),
            "bytes": self.work.bytes.round() as u64,
            "flops": self.work.flops.round() as u64,
            "code": code,
            "operations": self.n_ops,
            "fuses": self.fuses,
            "barriers": self.barriers,
        })
    }
}

/// An object with one more key.
fn with(key: &str, value: impl Into<Value>, mut object: Map<String, Value>) -> Value {
    object.insert(key.to_owned(), value.into());
    Value::Object(object)
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// What computes a product: `gemv q8_0 int8x16`, or the reason why it is generated code.
fn in_words(form: &Form) -> String {
    match form {
        Form::Micro(MicroKernel { op, format, layout }) => {
            format!("{op} {format} {}", layout.unwrap_or_default()).trim_end().to_owned()
        }
        Form::Generated(reason) => format!("generated: {reason}"),
    }
}

/// The median time of every launch, for tokens from a position on.
fn times(
    session: &mut Session,
    tokens: &[u32],
    position: usize,
    n_repeats: usize,
) -> Result<Vec<Duration>, Error> {
    let mut all: Vec<Vec<Duration>> = Vec::new();
    for _ in 0..=n_repeats {
        go_back(session, position, tokens.len())?;
        all.push(session.profile(tokens)?);
    }
    go_back(session, position, 0)?;
    let median = |step: usize| {
        // The first measurement is the warm-up.
        let mut own: Vec<Duration> = all[1..].iter().map(|times| times[step]).collect();
        own.sort();
        own[own.len() / 2]
    };
    Ok((0..all[0].len()).map(median).collect())
}

/// Goes back to a position; where states cannot, a few tokens further are as good, as long as there is room.
fn go_back(session: &mut Session, position: usize, n_tokens: usize) -> Result<(), Error> {
    let has_room = session.position() + n_tokens <= session.context();
    let is_forward_only = session.is_forward_only() && position < session.position();
    if position > 0 && is_forward_only && has_room {
        return Ok(());
    }
    session.truncate(if is_forward_only { 0 } else { position })
}

/// The layer of each use of a block, by the names of its weights and states.
fn layers(plan: &Plan) -> Vec<(usize, usize)> {
    let mut layers: Vec<(usize, usize)> = Vec::new();
    for step in &plan.steps {
        let is_known = layers.last().is_some_and(|(instance, _)| *instance == step.instance);
        let mut names = step.args.iter().map(|arg| &*plan.buffers[*arg].name);
        let layer = names.find_map(layer_of);
        if let Some(layer) = layer.filter(|_| !is_known) {
            layers.push((step.instance, layer));
        }
    }
    layers
}

fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix(LAYER)?.split('.').next()?.parse().ok()
}

/// What computes the products of a launch with weights and caches.
fn forms(cpu: &Cpu, plan: &Plan, step: &Step) -> Vec<Form> {
    let is_stored = |param: ParamId| {
        let place = &plan.buffers[step.args[param.index()]].place;
        matches!(place, Place::Weight | Place::State)
    };
    forms::forms(cpu, &plan.kernels[step.kernel], &is_stored)
}

/// The work of a launch for tokens at these positions, over pages of this size.
pub fn measure_launch(plan: &Plan, step: &Step, page_size: usize, tokens: Range<usize>) -> Measure {
    let value = |symbol: Symbol| match symbol.name.as_str() {
        TOKENS => tokens.len() as i64,
        PAGES => tokens.end.div_ceil(page_size) as i64,
        _ => symbol.near,
    };
    measure_at(&plan.kernels[step.kernel], &value)
}

/// Launches per block, of the block that occurs most often.
pub fn per_block(plan: &Plan) -> usize {
    let mut blocks: BTreeMap<usize, Vec<KernelId>> = BTreeMap::new();
    for step in &plan.steps {
        blocks.entry(step.instance).or_default().push(step.kernel);
    }
    let mut uses: BTreeMap<Vec<KernelId>, usize> = BTreeMap::new();
    for kernels in blocks.into_values() {
        *uses.entry(kernels).or_default() += 1;
    }
    let most = uses.iter().max_by_key(|(kernels, n_uses)| (**n_uses, kernels.len()));
    most.map_or(0, |(kernels, _)| kernels.len())
}

#[cfg(test)]
mod tests {
    use super::layer_of;

    #[test]
    fn a_layer_is_known_by_the_names_of_its_weights() {
        assert_eq!(layer_of("blk.12.attn_q"), Some(12));
        assert_eq!([layer_of("token_embd"), layer_of("blk.x.y"), layer_of("output_norm")], [None; 3]);
    }
}
