//! A folder as Transformers writes it, as a GGUF file has it.
//!
//! In: the checkpoint of a folder, and the type that was asked for. Out: a [`Draft`] with the names, the order of rows
//! and the pairs of GGUF.
//! Which tensors there are is asked of the model's graph, so that what can be run can be converted, and nothing is
//! forgotten. What changes: experts are brought together, joined projections are parted, heads of Llama are reordered
//! for pairs that are neighbours, and what expands latents is parted into keys, as columns, and values.

use std::path::Path;

use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::store::{Entry, pair};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Stored, TensorInfo};

use crate::blocks::scored_model;
use crate::chat::Chat;
use crate::config::{Config, Family, Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::families::{architectures, read};
use crate::layers::embed::Scored;
use crate::layers::rope::speeds;
use crate::naming::tensors::{BIAS, expert, joined, names};
use crate::quantize::choice::{self, Model};
use crate::quantize::draft::{Draft, own_pairs};
use crate::quantize::metadata;
use crate::quantize::piece::{Order, Piece};
use crate::quantize::types::Type;
use crate::tokenizer::export;

/// The architectures by the names of folders, with those that GGUF has for them.
const ARCHITECTURES: [(&str, &str); 10] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("deepseek_v2", "deepseek2"),
    ("deepseek_v3", "deepseek2"),
    ("glm4_moe_lite", "deepseek2"),
    ("youtu", "deepseek2"),
    ("youtu_llm", "deepseek2"),
];

/// What a folder becomes.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, ty: Type) -> Result<Draft, Error> {
    let own = checkpoint.architecture().unwrap_or("none");
    let facts = Facts::of(checkpoint);
    let gguf = ARCHITECTURES.iter().find(|(name, _)| *name == own).map(|(_, gguf)| *gguf);
    let (Some(gguf), Some(config)) = (gguf, read(own, facts)?) else {
        let what = format!("the architecture is {own}; known are {}", architectures());
        return Err(Error::Unsupported { path: input.to_owned(), place: Place::Whole, what });
    };
    let config = as_stored(config, facts);
    let source = Source { checkpoint, input, config: &config, is_llama: gguf == "llama" };
    let mut pieces = source.pieces()?;
    choose(&mut pieces, ty, &config);
    let name = input.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let pairs = metadata::pairs(facts, &config, gguf, &name)?.into_iter();
    let template =
        Chat::source(checkpoint)?.map(|text| ("tokenizer.chat_template".to_owned(), Value::Text(text)));
    let pairs = pairs.chain(export::pairs(checkpoint, config.vocab)?).chain(template);
    let pairs = pairs.map(|(key, value)| pair(&key, &value)).chain(own_pairs(ty).map(|(_, pair)| pair));
    Ok(Draft { pairs: pairs.collect(), pieces })
}

/// The model with what expands latents in one tensor, where the folder has it so: it is parted on the way to the file.
fn as_stored(mut config: Config, facts: Facts) -> Config {
    if let Family::DeepSeek(sizes) = &mut config.family {
        sizes.is_joint = facts.has("blk.0.attn_kv_b");
    }
    config
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
        let chosen = choice::format(ty, model, name, shape);
        piece.is_unfit = chosen.is_some_and(|format| choice::is_unfit(ty, model, name, format));
        piece.entry.stored = Stored::As(chosen.unwrap_or(Format::F32));
    }
}

/// Where tensors come from.
struct Source<'a> {
    checkpoint: &'a Checkpoint,
    input: &'a Path,
    config: &'a Config,
    is_llama: bool,
}

impl Source<'_> {
    fn pieces(&self) -> Result<Vec<Piece>, Error> {
        let graph = scored_model(self.config, &Sym::from(1), self.config.n_layers, Scored::Last)?;
        let mut pieces: Vec<Piece> = self.factors().into_iter().collect();
        let weights = graph.nodes.values().filter_map(|node| match &node.op {
            Op::Weight { name, shape, .. } => {
                let sizes = shape.iter().map(|(_, size)| size.most() as usize);
                Some((name.to_string(), sizes.product()))
            }
            _ => None,
        });
        let weights: Vec<(String, usize)> = weights.collect();
        for (name, n_elements) in &weights {
            let whole = self.piece(name, *n_elements, &weights)?;
            pieces.extend(self.parted(name, whole)?);
        }
        Ok(pieces)
    }

    /// A weight of the graph as GGUF has it; `weights` are all of them, with their numbers of elements.
    fn piece(&self, name: &str, n_elements: usize, weights: &[(String, usize)]) -> Result<Piece, Error> {
        let missing = || {
            let own = names(self.checkpoint.kind(), name).into_iter().next().unwrap_or_default();
            Error::input(self.input, Place::Tensor(own), "expected a tensor, found none")
        };
        let size = |name: &str| weights.iter().find(|(known, _)| known == name).map_or(0, |(_, n)| *n);
        let (origins, offset, mut shape) = if let Some((own, shape)) = self.stored(name) {
            (vec![own], 0, shape)
        } else if let Some((own, shape, parts)) = joined(name)
            .and_then(|(whole, parts)| self.stored(&whole).map(|(own, shape)| (own, shape, parts)))
        {
            let before = parts.iter().take_while(|part| *part != name);
            (vec![own], before.map(|part| size(part)).sum(), shape)
        } else {
            let one = |idx| expert(self.checkpoint.kind(), name, idx);
            let n = self.config.experts.as_ref().map_or(0, |experts| experts.n);
            let origins: Vec<String> = (0..n).filter_map(one).collect();
            let first =
                origins.first().and_then(|own| self.checkpoint.tensors().get(own)).ok_or_else(missing)?;
            let shape = [&[n], first.shape.as_slice()].concat();
            (origins, 0, shape)
        };
        // A part has some of the rows.
        let inner: usize = shape.iter().skip(1).product();
        shape[0] = n_elements / inner.max(1);
        let ending = if name.ends_with(BIAS) { "" } else { ".weight" };
        let entry = Entry { name: format!("{name}{ending}"), shape, stored: Stored::As(Format::F32) };
        let piece = Piece { entry, origins, offset, order: self.order(name), is_unfit: false };
        // All of it can be read, and each expert is as large as the others.
        let n_there: usize = piece.origins.iter().map(|own| self.n_elements(own)).sum();
        if piece.n_rows() * piece.row_len() != n_elements || offset + n_elements > n_there {
            return Err(missing());
        }
        Ok(piece)
    }

    fn n_elements(&self, own: &str) -> usize {
        self.checkpoint.tensors().get(own).map_or(0, TensorInfo::n_elements)
    }

    /// The tensor of one of the names of a weight, and its shape.
    fn stored(&self, name: &str) -> Option<(String, Vec<usize>)> {
        let mut names = names(self.checkpoint.kind(), name).into_iter();
        names.find_map(|own| Some((own.clone(), self.checkpoint.tensors().get(&own)?.shape.clone())))
    }

    /// Heads of Llama are turned by halves in folders, and by neighbours in GGUF.
    fn order(&self, name: &str) -> Order {
        let part = name.strip_suffix(BIAS).unwrap_or(name);
        match &self.config.family {
            Family::Llama(heads)
                if self.is_llama && part.ends_with(".attn_q") | part.ends_with(".attn_k") =>
            {
                Order::Neighbours { head: heads.head }
            }
            Family::Llama(_) | Family::Qwen3(_) | Family::DeepSeek(_) => Order::Same,
        }
    }

    /// The tensors that GGUF has for one that it never has whole.
    fn parted(&self, name: &str, whole: Piece) -> Result<Vec<Piece>, Error> {
        let part = |own: &str, shape: Vec<usize>, order: Order| {
            let block = name.rsplit_once('.').map_or("", |(block, _)| block);
            let entry = Entry { name: format!("{block}.{own}.weight"), shape, stored: whole.entry.stored };
            Piece { entry, origins: whole.origins.clone(), offset: whole.offset, order, is_unfit: false }
        };
        match &self.config.family {
            Family::DeepSeek(sizes) if name.ends_with(".attn_kv_b") => {
                if self.config.rope.pairing == Pairing::Halves {
                    let what = "its heads are turned by halves, which GGUF has no name for".to_owned();
                    let place = Place::Tensor(name.to_owned());
                    return Err(Error::Unsupported { path: self.input.to_owned(), place, what });
                }
                let head = sizes.nope + sizes.value;
                let keys = vec![sizes.n_heads, sizes.kv_lora, sizes.nope];
                let values = vec![sizes.n_heads, sizes.value, sizes.kv_lora];
                let of_values = Order::Part { head, first: sizes.nope, len: sizes.value };
                Ok(vec![
                    part("attn_k_b", keys, Order::Columns { head, len: sizes.nope }),
                    part("attn_v_b", values, of_values),
                ])
            }
            _ if name.ends_with(".ffn_gate_up_exps") => {
                let [n, both, inner] = *whole.entry.shape.as_slice() else { return Ok(vec![whole]) };
                let half = |own: &str, first: usize| {
                    part(own, vec![n, both / 2, inner], Order::Part { head: both, first, len: both / 2 })
                };
                Ok(vec![half("ffn_gate_exps", 0), half("ffn_up_exps", both / 2)])
            }
            Family::Llama(_) | Family::Qwen3(_) | Family::DeepSeek(_) => Ok(vec![whole]),
        }
    }

    /// How much slower each pair turns, where that is not told by a few numbers.
    fn factors(&self) -> Option<Piece> {
        let rope = &self.config.rope;
        if matches!(rope.scaling, Scaling::None | Scaling::Yarn { .. }) {
            return None;
        }
        let (Family::Llama(heads) | Family::Qwen3(heads)) = &self.config.family else { return None };
        let plain = speeds(&Rope { scaling: Scaling::None, ..rope.clone() }, heads.head);
        let factors: Vec<f32> =
            plain.iter().zip(speeds(rope, heads.head)).map(|(plain, own)| (plain / own) as f32).collect();
        let entry = Entry {
            name: "rope_freqs.weight".to_owned(),
            shape: vec![factors.len()],
            stored: Stored::As(Format::F32),
        };
        Some(Piece {
            entry,
            origins: Vec::new(),
            offset: 0,
            order: Order::Computed(factors),
            is_unfit: false,
        })
    }
}
