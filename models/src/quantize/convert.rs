//! Conversion of a checkpoint that is no GGUF file.
//!
//! In: a folder of safetensors, a qwen3.c checkpoint or a Qorus file, and the target type. Out: a [`Draft`] with GGUF's
//! names, row order and metadata.
//! The model's graph says which tensors there are and the binding finds them, so whatever can run can be converted and
//! nothing is forgotten. The heads of Llama are reordered for interleaved RoPE pairs. Fused gate and up projections of
//! experts are split, and so is the fused `kv_b` of MLA where it is block-quantised.

use std::path::Path;

use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::store::{Entry, pair};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Stored};

use crate::binding::source::Source;
use crate::binding::{find, sizes};
use crate::blocks::model;
use crate::chat::Chat;
use crate::config::{Activation, Block, Config, Formats, Mixer, Network, Pairing, Rope, Scaling};
use crate::families::{self, gguf_architecture, hparams, read};
use crate::hparams::Hparams;
use crate::layers::rope::inv_freq;
use crate::naming::tensors::BIAS;
use crate::naming::tokenizer::CHAT_TEMPLATE;
use crate::quantize::Job;
use crate::quantize::draft::{Draft, own_pairs};
use crate::quantize::metadata;
use crate::quantize::output_tensor::{Order, Origin, OutputTensor};
use crate::quantize::tensor_format::{Choice, Model, is_matrix};
use crate::tokenizer::export;

/// The architectures whose folders become GGUF files.
const CONVERTED: [&str; 5] = ["llama", "qwen2", "qwen3", "qwen3moe", "deepseek2"];

/// Plans the conversion of a checkpoint.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, job: &Job) -> Result<Draft, Error> {
    let own = Hparams::architecture_of(checkpoint).unwrap_or("none");
    let hparams = hparams(checkpoint);
    let unsupported = |what| Error::Unsupported { path: input.to_owned(), place: Place::Whole, what };
    let (Some(gguf), Some(config)) = (gguf_architecture(own), read(own, hparams)?) else {
        return Err(unsupported(format!("the architecture {own} {}", families::unsupported(own))));
    };
    if !CONVERTED.contains(&gguf) {
        return Err(unsupported(format!(
            "a folder of the architecture {own} is not converted to GGUF yet, only those of {}",
            CONVERTED.join(", ")
        )));
    }
    let is_latent = config.blocks.iter().any(|block| matches!(block.mixer, Mixer::Latent(_)));
    if is_latent && config.rope().is_some_and(|rope| rope.pairing == Pairing::Halves) {
        return Err(unsupported("its RoPE pairs are not interleaved, which GGUF has no form for".to_owned()));
    }
    let is_silu = |block: &Block| match &block.network {
        Network::Dense(dense) => dense.activation == Activation::Silu,
        Network::Sparse(experts) => experts.activation == Activation::Silu,
        Network::Both(..) | Network::None => true,
    };
    if !config.blocks.iter().all(is_silu) {
        return Err(unsupported("it has another activation than SiLU, which GGUF has no key for".to_owned()));
    }
    // F32 marks small tensors that stay in it; matrices get another placeholder.
    let config = Config { formats: Formats::Uniform(Format::BF16), ..config };
    let mut tensors = tensors(checkpoint, input, &config, gguf)?;
    choose(&mut tensors, job, &config);
    let name = input.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let pairs = metadata::pairs(hparams, &config, gguf, &name)?.into_iter();
    let template = Chat::source(checkpoint)?.map(|text| (CHAT_TEMPLATE.to_owned(), Value::Text(text)));
    let pairs = pairs.chain(export::pairs(checkpoint, config.vocab)?).chain(template);
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

/// All tensors of the new file.
fn tensors(
    checkpoint: &Checkpoint,
    input: &Path,
    config: &Config,
    gguf: &str,
) -> Result<Vec<OutputTensor>, Error> {
    let graph = model(config, &Sym::from(1), config.n_layers())?;
    let mut found = find(input, checkpoint, &graph)?;
    let mut tensors: Vec<OutputTensor> = factors(config).into_iter().collect();
    for node in graph.nodes.values() {
        let Op::Weight { name, shape, .. } = &node.op else { continue };
        let Some((source, format)) = found.remove(&**name) else { continue };
        let sizes = sizes(shape);
        let ending = if name.ends_with(BIAS) { "" } else { ".weight" };
        // The format is chosen later.
        let stored = Stored::As(Format::F32);
        let entry = Entry { name: format!("{name}{ending}"), shape: gguf_shape(name, &sizes), stored };
        let origin = (source, Stored::As(format));
        match split_parts(config, name, &sizes) {
            Some(parts) => tensors.extend(parts.into_iter().map(|(name, shape, order)| {
                let entry = Entry { name: format!("{name}.weight"), shape, stored };
                tensor(entry, origin.clone(), order)
            })),
            None => tensors.push(tensor(entry, origin, order(config, gguf, name))),
        }
    }
    Ok(tensors)
}

fn tensor(entry: Entry, (source, stored): (Source, Stored), order: Order) -> OutputTensor {
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
fn gguf_shape(name: &str, sizes: &[usize]) -> Vec<usize> {
    let are_many = ["_exps", ".attn_k_b", ".attn_v_b"].iter().any(|ending| name.ends_with(ending));
    match sizes {
        _ if name.ends_with(BIAS) => vec![sizes.iter().product()],
        [rows, columns @ ..] if name.ends_with(".attn_output") => vec![*rows, columns.iter().product()],
        [n, rows @ .., columns] if are_many => vec![*n, rows.iter().product(), *columns],
        [_] | [] => sizes.to_vec(),
        [rows @ .., columns] => vec![rows.iter().product(), *columns],
    }
}

/// GGUF stores the heads of Llama for interleaved RoPE pairs, whatever the checkpoint has.
fn order(config: &Config, gguf: &str, name: &str) -> Order {
    let part = name.strip_suffix(BIAS).unwrap_or(name);
    let is_rotated = part.ends_with(".attn_q") || part.ends_with(".attn_k");
    let is_by_halves = config.rope().is_some_and(|rope| rope.pairing == Pairing::Halves);
    match &config.blocks[0].mixer {
        Mixer::Grouped(heads) if gguf == "llama" && is_rotated && is_by_halves => {
            Order::Interleaved { head: heads.head, rotary_dim: heads.rotary_dim }
        }
        _ => Order::Same,
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

/// The frequency divisor of each pair, for scaling types that GGUF has no keys for.
fn factors(config: &Config) -> Option<OutputTensor> {
    let rope = config.rope()?;
    if matches!(rope.scaling, Scaling::None | Scaling::Yarn { .. }) || rope.scaling.linear().is_some() {
        return None;
    }
    let n_dims = match &config.blocks[0].mixer {
        Mixer::Grouped(heads) => heads.rotary_dim,
        Mixer::Latent(sizes) => sizes.rope,
        _ => return None,
    };
    let plain = inv_freq(&Rope { scaling: Scaling::None, ..rope.clone() }, n_dims);
    let factors: Vec<f32> =
        plain.iter().zip(inv_freq(rope, n_dims)).map(|(plain, own)| (plain / own) as f32).collect();
    let (name, shape) = ("rope_freqs.weight".to_owned(), vec![factors.len()]);
    let entry = Entry { name, shape, stored: Stored::As(Format::F32) };
    Some(OutputTensor {
        entry,
        origin: Origin::Computed(factors),
        order: Order::Same,
        is_fallback: false,
        added: Vec::new(),
        importance: None,
    })
}
