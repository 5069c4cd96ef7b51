//! Any other checkpoint, as a GGUF file has it.
//!
//! In: the checkpoint of a folder, of qwen3.c or of Qorus, and the type that was asked for. Out: a [`Draft`] with the
//! names, the order of rows and the pairs of GGUF.
//! The model's graph says which tensors there are, and the binding finds them, so that what can be run can be converted
//! and nothing is forgotten. Heads of Llama are reordered for pairs that are neighbours. Joint matrices of experts are
//! split, and so is the expansion of latents where it is stored in blocks.

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
use crate::config::{Attention, Config, Formats, Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::families::{architectures, in_gguf, read};
use crate::layers::rope::speeds;
use crate::naming::tensors::BIAS;
use crate::naming::tokenizer::CHAT_TEMPLATE;
use crate::quantize::choice::{self, Model};
use crate::quantize::draft::{Draft, own_pairs};
use crate::quantize::metadata;
use crate::quantize::piece::{Order, Origin, Piece};
use crate::quantize::types::Type;
use crate::tokenizer::export;

/// What a checkpoint becomes.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, ty: Type) -> Result<Draft, Error> {
    let own = checkpoint.architecture().unwrap_or("none");
    let facts = Facts::of(checkpoint);
    let unsupported = |what| Error::Unsupported { path: input.to_owned(), place: Place::Whole, what };
    let (Some(gguf), Some(config)) = (in_gguf(own), read(own, facts)?) else {
        return Err(unsupported(format!("the architecture is {own}; known are {}", architectures())));
    };
    if matches!(config.attention, Attention::Latent(_)) && config.rope.pairing == Pairing::Halves {
        return Err(unsupported("its heads are turned by halves, which GGUF has no name for".to_owned()));
    }
    // Single precision marks the tensors that are kept in it, so matrices are given another format.
    let config = Config { formats: Formats::Uniform(Format::BF16), ..config };
    let mut pieces = pieces(checkpoint, input, &config, gguf)?;
    choose(&mut pieces, ty, &config);
    let name = input.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let pairs = metadata::pairs(facts, &config, gguf, &name)?.into_iter();
    let template = Chat::source(checkpoint)?.map(|text| (CHAT_TEMPLATE.to_owned(), Value::Text(text)));
    let pairs = pairs.chain(export::pairs(checkpoint, config.vocab)?).chain(template);
    let pairs = pairs.map(|(key, value)| pair(&key, &value)).chain(own_pairs(ty).map(|(_, pair)| pair));
    Ok(Draft { pairs: pairs.collect(), pieces })
}

/// Gives each tensor its format: what is small and kept precise has single precision.
fn choose(pieces: &mut [Piece], ty: Type, config: &Config) {
    let model = Model {
        n_layers: config.n_layers,
        n_experts: config.experts.as_ref().map_or(0, |experts| experts.n),
        has_head: !config.tied,
    };
    for piece in pieces {
        let Entry { name, shape, .. } = &piece.entry;
        let chosen = choice::choose(ty, model, name, shape);
        piece.is_unfit = chosen.is_some_and(|choice| choice.is_unfit);
        piece.entry.stored = Stored::As(chosen.map_or(Format::F32, |choice| choice.format));
    }
}

/// All tensors of the new file.
fn pieces(checkpoint: &Checkpoint, input: &Path, config: &Config, gguf: &str) -> Result<Vec<Piece>, Error> {
    let graph = model(config, &Sym::from(1), config.n_layers)?;
    let mut found = find(input, checkpoint, &graph)?;
    let mut pieces: Vec<Piece> = factors(config).into_iter().collect();
    for node in graph.nodes.values() {
        let Op::Weight { name, shape, .. } = &node.op else { continue };
        let Some((source, format)) = found.remove(&**name) else { continue };
        let sizes = sizes(shape);
        let ending = if name.ends_with(BIAS) { "" } else { ".weight" };
        // The format is chosen later.
        let stored = Stored::As(Format::F32);
        let entry = Entry { name: format!("{name}{ending}"), shape: merged(name, &sizes), stored };
        let origin = (source, Stored::As(format));
        match parted(config, name, &sizes) {
            Some(parts) => pieces.extend(parts.into_iter().map(|(name, shape, order)| {
                let entry = Entry { name: format!("{name}.weight"), shape, stored };
                piece(entry, origin.clone(), order)
            })),
            None => pieces.push(piece(entry, origin, order(config, gguf, name))),
        }
    }
    Ok(pieces)
}

fn piece(entry: Entry, (source, stored): (Source, Stored), order: Order) -> Piece {
    Piece { entry, origin: Origin::Stored(source, stored), order, is_unfit: false }
}

/// The sizes as GGUF has them: rows and columns, behind what numbers matrices.
fn merged(name: &str, sizes: &[usize]) -> Vec<usize> {
    let are_many = ["_exps", ".attn_k_b", ".attn_v_b"].iter().any(|ending| name.ends_with(ending));
    match sizes {
        _ if name.ends_with(BIAS) => vec![sizes.iter().product()],
        [rows, columns @ ..] if name.ends_with(".attn_output") => vec![*rows, columns.iter().product()],
        [n, rows @ .., columns] if are_many => vec![*n, rows.iter().product(), *columns],
        [_] | [] => sizes.to_vec(),
        [rows @ .., columns] => vec![rows.iter().product(), *columns],
    }
}

/// Heads of Llama are turned by neighbours in GGUF, whatever they are elsewhere.
fn order(config: &Config, gguf: &str, name: &str) -> Order {
    let part = name.strip_suffix(BIAS).unwrap_or(name);
    let is_turned = part.ends_with(".attn_q") || part.ends_with(".attn_k");
    match &config.attention {
        Attention::Grouped(heads)
            if gguf == "llama" && is_turned && config.rope.pairing == Pairing::Halves =>
        {
            Order::Neighbours { head: heads.head, turned: heads.turned }
        }
        Attention::Grouped(_) | Attention::Latent(_) => Order::Same,
    }
}

/// The parts of a tensor that GGUF never has whole: their names, sizes and rows.
fn parted(config: &Config, name: &str, sizes: &[usize]) -> Option<Vec<(String, Vec<usize>, Order)>> {
    let (block, part) = name.rsplit_once('.')?;
    let full = |own: &str| format!("{block}.{own}");
    match (&config.attention, part, sizes) {
        (Attention::Latent(own), "attn_kv_b", &[n, head, width]) => {
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

/// How much slower each pair turns, where a few numbers cannot say it.
fn factors(config: &Config) -> Option<Piece> {
    let rope = &config.rope;
    if matches!(rope.scaling, Scaling::None | Scaling::Yarn { .. }) || rope.scaling.linear().is_some() {
        return None;
    }
    let n_dims = match &config.attention {
        Attention::Grouped(heads) => heads.turned,
        Attention::Latent(sizes) => sizes.rope,
    };
    let plain = speeds(&Rope { scaling: Scaling::None, ..rope.clone() }, n_dims);
    let factors: Vec<f32> =
        plain.iter().zip(speeds(rope, n_dims)).map(|(plain, own)| (plain / own) as f32).collect();
    let (name, shape) = ("rope_freqs.weight".to_owned(), vec![factors.len()]);
    let entry = Entry { name, shape, stored: Stored::As(Format::F32) };
    Some(Piece { entry, origin: Origin::Computed(factors), order: Order::Same, is_unfit: false })
}
