//! What GGUF cannot say of a model.
//!
//! In: the config of a checkpoint, and the metadata and tensors of the GGUF file that it would become. Out: the part
//! that would be read back otherwise, in words.
//! Nothing here knows what each family may say: the draft is read as any GGUF file is, and compared.

use fusebox_runtime::weights::gguf::store::{self, Entry};
use fusebox_runtime::weights::value::Value;

use crate::config::attention::Grouped;
use crate::config::network::Activation;
use crate::config::rope::{Pairing, Rope, Scaling};
use crate::config::{Block, Config, Mixer, Network};
use crate::families::family::{Family, LocalRope, Pairs};
use crate::families::{hparams, read};
use crate::quantize::output_tensor::{Origin, OutputTensor};

/// The first part that is lost, if any is.
pub(super) fn lost(
    config: &Config,
    family: &Family,
    pairs: &[(String, Value)],
    tensors: &[OutputTensor],
) -> Option<String> {
    // What is computed stands in for keys that GGUF does not have.
    let stored = |tensor: &&OutputTensor| matches!(tensor.origin, Origin::Stored(..));
    let entries: Vec<Entry> = tensors.iter().filter(stored).map(|tensor| tensor.entry.clone()).collect();
    let planned = store::planned(pairs.iter().cloned().collect(), &entries);
    let again = match read(family.gguf, hparams(&planned)) {
        Ok(Some(again)) => again,
        Ok(None) => return Some("its architecture".to_owned()),
        Err(error) => return Some(format!("all of it ({error})")),
    };
    let has_tiled_pairs =
        |block: &Block| block.mixer.rope().is_some_and(|rope| rope.pairing == Pairing::Interleaved);
    let of_whole = [
        (
            "RoPE pairs that lie side by side",
            config.blocks.iter().any(has_tiled_pairs) && family.pairs == Pairs::Halves,
        ),
        ("RoPE pairs by halves with MLA", has_halved_latents(config)),
        ("its number of blocks", config.blocks.len() != again.blocks.len()),
        (
            "its sizes",
            (config.hidden, config.vocab, config.context) != (again.hidden, again.vocab, again.context),
        ),
        (
            "its norms",
            (config.eps, config.is_centred, config.has_norm_weights)
                != (again.eps, again.is_centred, again.has_norm_weights),
        ),
        ("the scale of embeddings", !is_near(config.embedding_scale, again.embedding_scale)),
        ("the scale of logits", !is_near(config.logit_scale, again.logit_scale)),
        ("the bound of logits", config.logit_cap != again.logit_cap),
        ("factors on projections", config.factors != again.factors),
        ("biases", !again.biased.is_subset(&config.biased)),
        (
            "what is around its blocks",
            (config.added, &config.ends, config.per_layer, config.tied)
                != (again.added, &again.ends, again.per_layer, again.tied),
        ),
    ];
    if let Some((part, _)) = of_whole.iter().find(|(_, is_lost)| *is_lost) {
        return Some((*part).to_owned());
    }
    let mut blocks = config.blocks.iter().zip(&again.blocks).enumerate();
    blocks.find_map(|(layer, (own, again))| {
        Some(format!("{} of block {layer}", lost_of_block(own, again, family)?))
    })
}

fn has_halved_latents(config: &Config) -> bool {
    let is_halved =
        |block: &Block| matches!(&block.mixer, Mixer::Latent(own) if own.turn.pairing == Pairing::Halves);
    config.blocks.iter().any(is_halved)
}

/// What a block has otherwise.
fn lost_of_block(own: &Block, again: &Block, family: &Family) -> Option<&'static str> {
    if own.order != again.order {
        return Some("the places of norms");
    }
    let scales = |block: &Block| (block.residual_scale, block.has_output_scale);
    if scales(own) != scales(again) {
        return Some("the scales");
    }
    if same_mixer(&own.mixer, family) != same_mixer(&again.mixer, family) {
        return Some(if matches!(own.mixer, Mixer::Grouped(_)) { "the attention" } else { "the mixer" });
    }
    if same_network(&own.network) == same_network(&again.network) {
        return None;
    }
    let is_activation = activation(&own.network) != activation(&again.network);
    Some(if is_activation { "the activation" } else { "the network" })
}

fn activation(network: &Network) -> Option<Activation> {
    let of_experts = || network.experts().map(|experts| experts.activation);
    network.dense().map(|dense| dense.activation).or_else(of_experts)
}

/// A mixer without what a GGUF file has in another way: the order of rows, and frequencies.
fn same_mixer(mixer: &Mixer, family: &Family) -> Mixer {
    let mut mixer = mixer.clone();
    match &mut mixer {
        Mixer::Grouped(heads) => same_heads(heads, family),
        Mixer::Beside(beside) => {
            same_heads(&mut beside.heads, family);
            beside.space.least_step = 0.0;
        }
        Mixer::Latent(own) => {
            own.is_joint = false;
            same_rope(&mut own.turn);
        }
        Mixer::Delta(own) => own.is_tiled = false,
        // Gap: nemotron-steps.
        Mixer::StateSpace(own) => own.least_step = 0.0,
        Mixer::ShortConv(_) | Mixer::None => {}
    }
    mixer
}

fn same_heads(heads: &mut Grouped, family: &Family) {
    heads.scale = heads.scale.map(rounded);
    let is_local = heads.window.is_some() && family.local_rope != LocalRope::Same;
    if let Some(rope) = &mut heads.rope {
        let own = rope.scaling.clone();
        same_rope(rope);
        if is_local {
            rope.scaling = own;
        }
    }
}

/// Divisors of frequencies are tensors of their own. Gap: yarn-rounding.
fn same_rope(rope: &mut Rope) {
    (rope.theta, rope.pairing) = (rounded(rope.theta), Pairing::Halves);
    let of_yarn = match rope.scaling {
        Scaling::Yarn { factor, beta_fast, beta_slow, original, .. } => {
            Some([factor, beta_fast, beta_slow, original].map(rounded))
        }
        _ => None,
    };
    rope.scaling = of_yarn.map_or(Scaling::None, |[factor, beta_fast, beta_slow, original]| Scaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original,
        is_rounded: true,
        attention_factor: 1.0,
        mscale: 1.0,
    });
}

fn same_network(network: &Network) -> Network {
    let mut network = network.clone();
    if let Network::Sparse(experts) | Network::Both(_, experts) = &mut network {
        experts.is_joint = false;
    }
    network
}

/// As a file has it.
fn rounded(x: f64) -> f64 {
    f64::from(x as f32)
}

fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= a.abs() * f32::EPSILON * 2.0
}
