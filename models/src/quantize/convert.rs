//! Conversion of a checkpoint that is no GGUF file.
//!
//! In: a folder of safetensors, a qwen3.c checkpoint or a Qorus file, and the target type. Out: a [`Draft`] with GGUF's
//! names, row order and metadata.
//! The model's graph says which tensors there are and the binding finds them, so whatever can run can be converted and
//! nothing is forgotten; what GGUF cannot say is found by reading the draft back (`lost.rs`).
//! Heads are reordered where GGUF has interleaved RoPE pairs, or value heads of a delta rule tiled. Fused gate and up
//! projections of experts are split, and so is the fused `kv_b` of MLA where it is block-quantised.

use std::path::Path;

use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::gguf::store::{Entry, WRITTEN, pair};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Stored};

use crate::binding::source::Source;
use crate::binding::{find, sizes};
use crate::blocks::model;
use crate::chat::Chat;
use crate::config::attention::{Grouped, QkNorm};
use crate::config::rope::{Pairing, Rope, Scaling};
use crate::config::{Config, Formats, Mixer};
use crate::families::family::{Family, Pairs};
use crate::families::{self, gguf_family, hparams, read};
use crate::hparams::Hparams;
use crate::layers::attention::rope::inv_freq;
use crate::naming::tensors::{BIAS, EXPERTS, Names, block_of, fused};
use crate::naming::tokenizer::CHAT_TEMPLATE;
use crate::quantize::Job;
use crate::quantize::draft::{Draft, own_pairs};
use crate::quantize::lost::lost;
use crate::quantize::metadata::{self, heads_of};
use crate::quantize::output_tensor::{Order, Origin, OutputTensor};
use crate::quantize::tensor_format::{Choice, Model, is_matrix};
use crate::tokenizer::export;

/// Families whose queries, keys and values are one matrix in GGUF.
const JOINT_QKV: [&str; 1] = ["phi3"];

/// Plans the conversion of a checkpoint.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, job: &Job) -> Result<Draft, Error> {
    let own = Hparams::architecture_of(checkpoint).unwrap_or("none");
    let hparams = hparams(checkpoint);
    let unsupported = |what| Error::Unsupported { path: input.to_owned(), place: Place::Whole, what };
    let (Some(family), Some(config)) = (gguf_family(own), read(own, hparams)?) else {
        return Err(unsupported(format!("the architecture {own} {}", families::unsupported(own))));
    };
    // F32 marks small tensors that stay in it; matrices get another placeholder.
    let config = Config { formats: Formats::Uniform(Format::BF16), ..config };
    let mut tensors = Converter { checkpoint, input, config: &config, family }.tensors()?;
    choose(&mut tensors, job, &config);
    let name = input.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let of_model = metadata::pairs(hparams, &config, family, &name)?;
    if let Some(part) = lost(&config, family, &of_model, &tensors) {
        return Err(unsupported(format!(
            "a folder of the architecture {own} is not converted: GGUF has no key for {part}"
        )));
    }
    let template = Chat::source(checkpoint)?.map(|text| (CHAT_TEMPLATE.to_owned(), Value::Text(text)));
    let pairs = of_model.into_iter().chain(export::pairs(checkpoint, config.vocab)?).chain(template);
    let pairs = pairs
        .map(|(key, value)| pair(&key, &value))
        .chain(own_pairs(job.ty).into_iter().map(|(_, pair)| pair));
    Ok(Draft { pairs: pairs.collect(), tensors })
}

/// Sets the format of each tensor; small tensors are F32.
fn choose(tensors: &mut [OutputTensor], job: &Job, config: &Config) {
    let model = Model { has_importance: job.importance.is_some(), ..Model::of(config) };
    for tensor in tensors {
        let Entry { name, shape, .. } = &tensor.entry;
        let mut chosen = job.overrides.choose(job.ty, model, name, shape);
        if chosen.is_none() && job.ty.is_none() && is_matrix(name, shape) {
            chosen = tensor.origin.kept().map(|format| Choice { format, is_fallback: false });
        }
        tensor.is_fallback = chosen.is_some_and(|choice| choice.is_fallback);
        tensor.entry.stored = Stored::As(chosen.map_or(Format::F32, |choice| choice.format));
    }
}

/// What tensors follow from.
struct Converter<'a> {
    checkpoint: &'a Checkpoint,
    input: &'a Path,
    config: &'a Config,
    family: &'static Family,
}

impl Converter<'_> {
    /// All tensors of the new file.
    fn tensors(&self) -> Result<Vec<OutputTensor>, Error> {
        let graph = model(self.config, &Sym::from(1), self.config.n_layers())?;
        let mut found = find(self.input, self.checkpoint, &graph)?;
        let mut tensors = factors(self.config);
        for node in graph.nodes.values() {
            let Op::Weight { name, shape, .. } = &node.op else { continue };
            let Some((source, format)) = found.remove(&**name) else { continue };
            tensors.extend(self.of_weight(name, &sizes(shape), (source, Stored::As(format)))?);
        }
        Ok(tensors)
    }

    /// The tensors that a weight of the graph becomes.
    fn of_weight(
        &self,
        name: &str,
        sizes: &[usize],
        origin: (Source, Stored),
    ) -> Result<Vec<OutputTensor>, Error> {
        let names = Names { kind: WRITTEN, renamed: self.family.names };
        if let Some(parts) = split_parts(self.config, name, sizes) {
            let part = |(name, shape, order): (String, Vec<usize>, Order)| {
                Some(tensor(names.written(&name)?, shape, origin.clone(), order))
            };
            return Ok(parts.into_iter().filter_map(part).collect());
        }
        let own = names.written(name).filter(|_| !self.is_joint(name));
        let Some(own) = own else { return self.joint(names, name) };
        let (shape, order) = (gguf_shape(self.config, name, sizes), self.order(name, sizes));
        Ok(vec![tensor(own, shape, origin, order)])
    }

    /// Whether GGUF has rows of another tensor instead of this one, and a folder, too.
    fn is_joint(&self, name: &str) -> bool {
        let whole = fused(name).filter(|(whole, _)| whole.contains(".attn_qkv"));
        let is_there = |(whole, _): (String, _)| hparams(self.checkpoint).stored(&whole).is_some();
        JOINT_QKV.contains(&self.family.gguf) && whole.is_some_and(is_there)
    }

    /// The tensor that has the rows of several, once.
    fn joint(&self, names: Names, name: &str) -> Result<Vec<OutputTensor>, Error> {
        let missing = || {
            let what = "GGUF has it as rows of another tensor, which is not in the folder";
            let place = Place::Tensor(name.to_owned());
            Error::Unsupported { path: self.input.to_owned(), place, what: what.to_owned() }
        };
        let (whole, parts) = fused(name).ok_or_else(missing)?;
        if parts.first().is_none_or(|first| first != name) {
            return Ok(Vec::new());
        }
        let (stored, info) = hparams(self.checkpoint).stored(&whole).ok_or_else(missing)?;
        let own = names.written(&whole).ok_or_else(missing)?;
        let source = Source::Run { tensor: stored.clone(), bytes: 0..info.n_bytes() };
        Ok(vec![tensor(own, info.shape.clone(), (source, info.stored), Order::Same)])
    }

    /// The order of rows in GGUF, whatever the checkpoint has.
    fn order(&self, name: &str, sizes: &[usize]) -> Order {
        let part = name.strip_suffix(BIAS).unwrap_or(name);
        let mixer = block_of(name)
            .and_then(|block| Some(&self.config.blocks.get(block.parse::<usize>().ok()?)?.mixer));
        let own = part.rsplit('.').next().unwrap_or(part);
        match mixer {
            // Pairs of RoPE lie side by side.
            Some(Mixer::Grouped(heads)) if matches!(own, "attn_q" | "attn_k") => {
                let is_by_halves = heads.rope.as_ref().is_some_and(|rope| rope.pairing == Pairing::Halves);
                if is_by_halves && self.family.pairs != Pairs::Halves {
                    return Order::Interleaved { head: heads.head, rotary_dim: heads.rotary_dim };
                }
                Order::Same
            }
            // The value heads of a key head are apart by the number of key heads.
            Some(Mixer::Delta(delta)) if !delta.is_tiled && self.family.gguf != UNTILED => {
                let n_rows: usize = sizes.first().copied().unwrap_or(1);
                let (n_key, n_values) = (delta.n_key, delta.n_value * delta.value);
                let tiled = |first, width| Order::Tiled { first, n_key, n_value: delta.n_value, width };
                match own {
                    "ssm_in" | "ssm_conv1d" => tiled(n_rows - n_values, delta.value),
                    "ssm_gate" => tiled(0, delta.value),
                    "ssm_alpha" | "ssm_beta" | "ssm_a" | "ssm_dt" => tiled(0, 1),
                    "ssm_out" => Order::TiledColumns { n_key, n_value: delta.n_value, width: delta.value },
                    _ => Order::Same,
                }
            }
            _ => Order::Same,
        }
    }
}

/// The family with a delta rule whose value heads lie in GGUF as in a folder.
const UNTILED: &str = "qwen3next";

fn tensor(name: String, shape: Vec<usize>, (source, stored): (Source, Stored), order: Order) -> OutputTensor {
    // The format is chosen later.
    let entry = Entry { name, shape, stored: Stored::As(Format::F32) };
    OutputTensor {
        entry,
        origin: Origin::Stored(source, stored),
        order,
        is_fallback: false,
        added: Vec::new(),
        importance: None,
    }
}

/// The shape in GGUF: rows and columns, after the number of matrices.
fn gguf_shape(config: &Config, name: &str, sizes: &[usize]) -> Vec<usize> {
    let (part, is_bias) = name.strip_suffix(BIAS).map_or((name, false), |part| (part, true));
    let own = part.rsplit('.').next().unwrap_or(part);
    let block = block_of(name).and_then(|block| config.blocks.get(block.parse::<usize>().ok()?));
    let all: usize = sizes.iter().product();
    let is_of_all_heads = || {
        let heads = block.and_then(heads_of);
        heads.is_some_and(|heads| heads.qk_norm == Some(QkNorm::Whole))
    };
    match (own, sizes) {
        (_, [n, ..]) if is_bias && own.ends_with(EXPERTS) => vec![*n, all / n.max(&1)],
        _ if is_bias => vec![all],
        ("attn_sinks", _) => vec![all],
        ("ssm_a" | "ssm_d", _) => match block.map(|block| &block.mixer) {
            Some(Mixer::Delta(_)) => vec![all],
            _ => vec![all, 1],
        },
        ("attn_q_norm" | "attn_k_norm", _) if is_of_all_heads() => vec![all],
        ("attn_output" | "ssm_out", [rows, ..]) => vec![*rows, all / rows.max(&1)],
        ("attn_k_b" | "attn_v_b", [n, .., columns]) => vec![*n, all / (n * columns).max(1), *columns],
        (_, [n, .., columns]) if own.ends_with(EXPERTS) && sizes.len() > 1 => {
            vec![*n, all / (n * columns).max(1), *columns]
        }
        (_, [_] | []) => sizes.to_vec(),
        (_, [.., columns]) => vec![all / columns.max(&1), *columns],
    }
}

/// The parts of a fused tensor that GGUF never has whole: their names, shapes and rows.
fn split_parts(config: &Config, name: &str, sizes: &[usize]) -> Option<Vec<(String, Vec<usize>, Order)>> {
    let (block, part) = name.rsplit_once('.')?;
    let full = |own: &str| format!("{block}.{own}");
    match (&config.blocks[0].mixer, part, sizes) {
        (Mixer::Latent(own), "attn_kv_b", &[n, head, width]) => {
            let of_values = Order::Part { head, first: own.nope, len: own.value };
            Some(vec![
                (full("attn_k_b"), vec![n, width, own.nope], Order::Columns { head, len: own.nope }),
                (full("attn_v_b"), vec![n, own.value, width], of_values),
            ])
        }
        (_, "ffn_gate_up_exps", &[n, both, width]) => {
            let half = |own: &str, first: usize| {
                (full(own), vec![n, both / 2, width], Order::Part { head: both, first, len: both / 2 })
            };
            Some(vec![half("ffn_gate_exps", 0), half("ffn_up_exps", both / 2)])
        }
        _ => None,
    }
}

/// The frequency divisors of each pair, for scaling types that GGUF has no keys for: of blocks that see everything.
fn factors(config: &Config) -> Vec<OutputTensor> {
    let heads: Vec<&Grouped> =
        config.blocks.iter().filter_map(heads_of).filter(|heads| heads.rope.is_some()).collect();
    let full = heads.iter().find(|heads| heads.window.is_none()).or(heads.first());
    let of_latents = config.blocks.iter().find_map(|block| match &block.mixer {
        Mixer::Latent(sizes) => Some((&sizes.turn, sizes.rope)),
        _ => None,
    });
    let of_heads = full.and_then(|heads| Some((heads.rope.as_ref()?, heads.rotary_dim)));
    let Some((rope, n_dims)) = of_heads.or(of_latents) else { return Vec::new() };
    let computed = |name: &str, factors: Vec<f32>| OutputTensor {
        entry: Entry { name: name.to_owned(), shape: vec![factors.len()], stored: Stored::As(Format::F32) },
        origin: Origin::Computed(factors),
        order: Order::Same,
        is_fallback: false,
        added: Vec::new(),
        importance: None,
    };
    match &rope.scaling {
        Scaling::None | Scaling::Yarn { .. } => Vec::new(),
        scaling if scaling.linear().is_some() => Vec::new(),
        Scaling::Long { short, long, .. } => vec![
            computed("rope_factors_long.weight", long.clone()),
            computed("rope_factors_short.weight", short.clone()),
        ],
        Scaling::Factors(_) | Scaling::Llama3 { .. } => {
            let plain = inv_freq(&Rope { scaling: Scaling::None, ..rope.clone() }, n_dims);
            let own = inv_freq(rope, n_dims);
            let divisors = plain.iter().zip(own).map(|(plain, own)| (plain / own) as f32);
            vec![computed("rope_freqs.weight", divisors.collect())]
        }
    }
}
