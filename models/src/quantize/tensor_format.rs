//! The format of each tensor: the type's own, or a better one for the tensors that matter most.
//!
//! In: the target type, what is known of the model, a tensor's name in GGUF and its shape. Out: a format, or `None`
//! where the tensor stays as it is.
//! The choices are llama.cpp's, so that files of one type have the same size and quality.

use fusebox_compiler::tensor::quant::Format;

use crate::config::recurrent::Beside;
use crate::config::{Config, Mixer};
use crate::quantize::types::{Mix, Type};

/// The properties of a model that the choices depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Model {
    /// How many blocks.
    pub n_layers: usize,
    /// How many experts per block; 0 in a dense model.
    pub n_experts: usize,
    /// Whether there is an output head besides the embedding matrix.
    pub has_head: bool,
    /// How many query heads share a value head; 0 where the model does not say.
    pub n_queries_per_value: usize,
    /// Whether there is an importance matrix.
    pub has_importance: bool,
}

impl Model {
    /// Those of a model that is read already.
    pub fn of(config: &Config) -> Self {
        Self {
            n_layers: config.n_layers(),
            n_experts: config.experts().map_or(0, |experts| experts.n_routed),
            has_head: !config.tied,
            has_importance: false,
            n_queries_per_value: config.blocks.first().map_or(0, |block| match &block.mixer {
                Mixer::Grouped(heads) | Mixer::Beside(Beside { heads, .. }) => {
                    heads.n_heads / heads.n_kv.max(1)
                }
                Mixer::Latent(sizes) => sizes.n_heads,
                Mixer::Delta(_) | Mixer::StateSpace(_) | Mixer::ShortConv(_) | Mixer::None => 0,
            }),
        }
    }
}

/// Mixtral: with eight experts, these are most of the model, so shared tensors can be larger.
const MIXTRAL_EXPERTS: usize = 8;
/// Query heads that share a value head from which on value projections are small enough for more bits.
const MANY_QUERIES: usize = 4;
/// Llama 70B: eight query heads share a value head, so value projections are small and matter more.
const LLAMA_70B_LAYERS: usize = 80;

/// The chosen format of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How it is stored.
    pub format: Format,
    /// Whether it is a fallback, because rows are no multiple of the block size.
    pub is_fallback: bool,
}

/// Chooses the format of a tensor; `None` where it stays as it is.
pub fn choose(ty: Type, model: Model, name: &str, shape: &[usize]) -> Option<Choice> {
    if !is_matrix(name, shape) {
        return None;
    }
    if ty.format.plain().is_some() {
        return Some(Choice { format: ty.format, is_fallback: false });
    }
    Some(fitting(preferred(ty, model, name, shape), shape))
}

/// A format, or another where rows of this shape are no whole blocks of it.
pub(super) fn fitting(format: Format, shape: &[usize]) -> Choice {
    let fitting = with_fallback(format, shape.last().copied().unwrap_or(1));
    Choice { format: fitting, is_fallback: fitting != format }
}

/// Whether a tensor is a large matrix; norms, routers and vectors are not quantised.
pub(super) fn is_matrix(name: &str, shape: &[usize]) -> bool {
    // Leading sizes of 1 do not count.
    let n_dims = shape.iter().skip_while(|size| **size == 1).count();
    n_dims >= 2
        && name.ends_with("weight")
        && !name.contains("_norm.weight")
        && !name.contains("ffn_gate_inp.weight")
}

/// The format that a tensor should get, if its rows fit.
fn preferred(ty: Type, model: Model, name: &str, shape: &[usize]) -> Format {
    let is_mixtral = model.n_experts == MIXTRAL_EXPERTS;
    let is_upgraded = |n_first: usize| match ty.mix {
        Mix::Head | Mix::Large | Mix::Experts => false,
        Mix::Small => layer(name) < n_first,
        Mix::Medium => is_sensitive(layer(name), model.n_layers),
    };
    let better = || match ty.mix {
        Mix::Small => Format::Q5K,
        Mix::Head | Mix::Medium | Mix::Large | Mix::Experts => Format::Q6K,
    };
    let is_head = name == "output.weight" || (name == "token_embd.weight" && !model.has_head);
    if is_head {
        return match ty.format {
            Format::Q8_0 | Format::MXFP4 => Format::Q8_0,
            _ => Format::Q6K,
        };
    }
    if ty.mix == Mix::Experts {
        // Leading sizes of 1 do not count.
        let is_of_experts = shape.iter().skip_while(|size| **size == 1).count() > 2;
        return if is_of_experts { ty.format } else { Format::Q8_0 };
    }
    if is_mixtral && (name.contains("attn_v.weight") || name.contains("attn_k.weight")) {
        return Format::Q8_0;
    }
    if let Format::Q2K | Format::Q3K | Format::IQ4NL | Format::IQ4XS = ty.format {
        return of_few_bits(ty, model, name);
    }
    if name.contains("attn_v.weight") {
        return match ty.format {
            _ if is_upgraded(4) => better(),
            Format::Q4K if model.n_layers == LLAMA_70B_LAYERS => Format::Q5K,
            format => format,
        };
    }
    if name.contains("ffn_down") && is_upgraded(model.n_layers / 8) {
        return better();
    }
    if name.contains("ffn_down") && model.has_importance && layer(name) < model.n_layers / 8 {
        // A column that counts much must not be rounded as if all were even.
        match ty.format {
            Format::Q4_0 => return Format::Q4_1,
            Format::Q5_0 => return Format::Q5_1,
            _ => {}
        }
    }
    if name.contains("attn_output.weight") && is_mixtral && ty.format == Format::Q4K {
        return Format::Q5K;
    }
    if name.contains("attn_qkv.weight") && ty.mix == Mix::Medium {
        return if ty.format == Format::Q4K { Format::Q5K } else { Format::Q6K };
    }
    ty.format
}

/// The same for the types whose matrices have two to four bits and tables.
fn of_few_bits(ty: Type, model: Model, name: &str) -> Format {
    let (layer, is_mixtral) = (layer(name), model.n_experts == MIXTRAL_EXPERTS);
    let is_shared = model.n_queries_per_value >= MANY_QUERIES;
    let is_value =
        ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"].iter().any(|own| name.contains(own));
    let format = match (ty.format, ty.mix) {
        _ if name == "token_embd.weight" => ty.format,
        (Format::Q2K, _) if is_value => {
            if is_shared {
                Format::Q4K
            } else {
                Format::Q3K
            }
        }
        (Format::Q3K, Mix::Medium) if is_value => {
            if layer < 2 {
                Format::Q5K
            } else {
                Format::Q4K
            }
        }
        (Format::Q3K, Mix::Large) if is_value => Format::Q5K,
        (Format::IQ4NL | Format::IQ4XS, _) if is_value && is_shared => Format::Q5K,
        (Format::Q2K, _) if name.contains("ffn_down") => Format::Q3K,
        (Format::Q3K, Mix::Medium) if name.contains("ffn_down") => {
            if layer < model.n_layers / 16 {
                Format::Q5K
            } else {
                Format::Q4K
            }
        }
        (Format::Q3K, Mix::Large) if name.contains("ffn_down") => Format::Q5K,
        (Format::IQ4NL | Format::IQ4XS, _)
            if name.contains("ffn_down") && layer < model.n_layers / 8 && !model.has_importance =>
        {
            Format::Q5K
        }
        (Format::Q3K, Mix::Large) if name.contains("attn_output.weight") && is_mixtral => ty.format,
        _ if name.contains("attn_output.weight") && is_mixtral => Format::Q5K,
        (Format::Q2K, _) if name.contains("attn_output.weight") => Format::Q3K,
        (Format::Q3K, Mix::Medium) if name.contains("attn_output.weight") => Format::Q4K,
        (Format::Q3K, Mix::Large) if name.contains("attn_output.weight") => Format::Q5K,
        _ => ty.format,
    };
    let is_small = is_value && model.n_layers == LLAMA_70B_LAYERS;
    if is_small && matches!(format, Format::Q3K | Format::Q4K) { Format::Q5K } else { format }
}

/// The blocks at both ends, and every third of the others.
fn is_sensitive(layer: usize, n_layers: usize) -> bool {
    let n_ends = n_layers / 8;
    layer < n_ends || layer >= n_layers - n_layers.div_ceil(8) || (layer - n_ends) % 3 == 2
}

/// The block index in a tensor's name.
fn layer(name: &str) -> usize {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The format itself where rows are whole blocks, else one with shorter blocks and no fewer bits.
fn with_fallback(format: Format, row_len: usize) -> Format {
    let fits = |format: &Format| row_len.is_multiple_of(format.block_len());
    let shorter = match format {
        Format::Q2K | Format::Q3K => Format::Q4_0,
        Format::IQ4XS => Format::IQ4NL,
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K => Format::Q8_0,
        other => other,
    };
    [format, shorter].into_iter().find(fits).unwrap_or(Format::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENSE: Model =
        Model { n_layers: 16, n_experts: 0, has_head: true, n_queries_per_value: 1, has_importance: false };

    fn chosen(ty: &str, model: Model, name: &str) -> Option<Format> {
        let choice = choose(Type::named(ty).unwrap(), model, name, &[512, 512]);
        choice.map(|choice| choice.format)
    }

    #[test]
    fn what_is_small_stays() {
        for name in ["blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.bias"] {
            assert_eq!(chosen("Q4_K_M", DENSE, name), None, "{name}");
        }
        let vector = choose(Type::named("F16").unwrap(), DENSE, "rope_freqs.weight", &[64]);
        assert_eq!(vector, None);
    }

    #[test]
    fn the_head_is_precise_and_may_be_the_table() {
        assert_eq!(chosen("Q4_0", DENSE, "output.weight"), Some(Format::Q6K));
        assert_eq!(chosen("Q4_0", DENSE, "token_embd.weight"), Some(Format::Q4_0));
        let tied = Model { has_head: false, ..DENSE };
        assert_eq!(chosen("Q4_0", tied, "token_embd.weight"), Some(Format::Q6K));
        assert_eq!(chosen("Q8_0", tied, "token_embd.weight"), Some(Format::Q8_0));
        assert_eq!(chosen("F16", tied, "token_embd.weight"), Some(Format::F16));
    }

    #[test]
    fn a_mix_upgrades_the_tensors_that_matter() {
        let upgraded = |ty: &str, part: &str| -> Vec<usize> {
            let is_better = |layer: &usize| {
                let ty = Type::named(ty).unwrap();
                chosen(ty.name, DENSE, &format!("blk.{layer}.{part}.weight")) != Some(ty.format)
            };
            (0..16).filter(is_better).collect()
        };
        assert_eq!(upgraded("Q4_K_M", "ffn_down"), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(upgraded("Q5_K_M", "attn_v"), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(
            (upgraded("Q4_K_S", "ffn_down"), upgraded("Q4_K_S", "attn_v")),
            (vec![0, 1], vec![0, 1, 2, 3])
        );
        assert!(upgraded("Q4_K_M", "ffn_up").is_empty() && upgraded("Q5_K_S", "ffn_down").is_empty());
    }

    #[test]
    fn few_bits_are_for_what_matters_least() {
        let all = |ty: &str, model| {
            let parts = ["attn_q", "attn_v", "attn_output", "ffn_down", "ffn_up"];
            parts.map(|part| chosen(ty, model, &format!("blk.1.{part}.weight")).unwrap())
        };
        let [q2, q3, q4, q5, xs] = [Format::Q2K, Format::Q3K, Format::Q4K, Format::Q5K, Format::IQ4XS];
        let shared = Model { n_queries_per_value: 4, ..DENSE };
        assert_eq!(all("Q2_K", DENSE), [q2, q3, q3, q3, q2]);
        assert_eq!(all("Q2_K", shared), [q2, q4, q3, q3, q2]);
        assert_eq!(all("Q3_K_S", DENSE), [q3, q3, q3, q3, q3]);
        assert_eq!(all("Q3_K_M", DENSE), [q3, q5, q4, q4, q3]);
        assert_eq!(all("Q3_K_L", DENSE), [q3, q5, q5, q5, q3]);
        assert_eq!(all("IQ4_XS", DENSE), [xs, xs, xs, q5, xs]);
        assert_eq!(all("IQ4_XS", shared), [xs, q5, xs, q5, xs]);
        let weighed = Model { has_importance: true, ..DENSE };
        assert_eq!(all("IQ4_XS", weighed), [xs, xs, xs, xs, xs]);
        assert_eq!(all("Q4_0", weighed)[3], Format::Q4_1);
        let large = Model { n_layers: 80, ..DENSE };
        assert_eq!(all("Q3_K_S", large), [q3, q5, q3, q3, q3]);
    }

    #[test]
    fn only_experts_have_powers_of_two_as_scales() {
        let ty = Type::named("MXFP4_MOE").unwrap();
        let format = |name, shape: &[usize]| choose(ty, DENSE, name, shape).map(|choice| choice.format);
        assert_eq!(format("blk.0.ffn_up_exps.weight", &[4, 64, 64]), Some(Format::MXFP4));
        assert_eq!(format("blk.0.attn_q.weight", &[64, 64]), Some(Format::Q8_0));
        assert_eq!(format("output.weight", &[64, 64]), Some(Format::Q8_0));
    }

    #[test]
    fn eight_experts_leave_room_for_attention() {
        let experts = Model { n_experts: 8, ..DENSE };
        assert_eq!(chosen("Q4_0", experts, "blk.3.attn_k.weight"), Some(Format::Q8_0));
        assert_eq!(chosen("Q4_K_S", experts, "blk.3.attn_output.weight"), Some(Format::Q5K));
        assert_eq!(chosen("Q5_K_M", experts, "blk.3.attn_output.weight"), Some(Format::Q5K));
        assert_eq!(chosen("Q4_0", experts, "blk.3.attn_output.weight"), Some(Format::Q4_0));
    }

    #[test]
    fn rows_that_do_not_fit_get_shorter_blocks() {
        assert_eq!(
            [Format::Q4K, Format::Q5K, Format::Q6K, Format::Q8_0].map(|format| with_fallback(format, 96)),
            [Format::Q5_0, Format::Q5_1, Format::Q8_0, Format::Q8_0]
        );
        assert_eq!(
            [with_fallback(Format::Q4K, 48), with_fallback(Format::Q4_0, 48)],
            [Format::F16, Format::F16]
        );
        assert_eq!(with_fallback(Format::Q4K, 512), Format::Q4K);
    }
}
