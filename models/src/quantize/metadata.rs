//! The GGUF metadata of a model that comes from another kind of file.
//!
//! In: the hyper-parameters of the file and the config read from them. Out: keys and values, named as by llama.cpp's
//! converter.
//! Numbers are written as f32, the type that readers expect.

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::value::{List, Value};

use crate::config::attention::{Grouped, Latent, Window};
use crate::config::network::{Experts, Gate};
use crate::config::recurrent::{Beside, Delta, StateSpace};
use crate::config::rope::Scaling;
use crate::config::{Block, Config, Mixer, Network, Order};
use crate::families::family::Family;
use crate::families::rope::{GGUF_MSCALE_FACTOR, gguf_attention_factor};
use crate::hparams::Hparams;
use crate::naming::hparams::{DENSE_FF, FF, MSCALE_ALL, SECTIONS};

/// Families that say which blocks have experts by a period.
const INTERLEAVED: [&str; 2] = ["llama4", "ernie4_5-moe"];
/// How many parts of a head GGUF has for the kinds of positions of a multimodal model.
const N_SECTIONS: usize = 4;

/// Collects metadata.
struct Pairs {
    architecture: &'static str,
    pairs: Vec<(String, Value)>,
}

impl Pairs {
    fn put(&mut self, key: &str, value: Value) {
        self.pairs.push((format!("{}.{key}", self.architecture), value));
    }

    fn count(&mut self, key: &str, n: usize) {
        self.put(key, Value::Unsigned(n as u64));
    }

    fn counts(&mut self, key: &str, all: impl Iterator<Item = usize>) {
        self.put(key, Value::List(List::Unsigned(all.map(|n| n as u64).collect())));
    }

    /// One number where all blocks have the same.
    fn count_or_counts(&mut self, key: &str, all: Vec<usize>) {
        match all.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => self.count(key, *first),
            _ => self.counts(key, all.into_iter()),
        }
    }

    fn number(&mut self, key: &str, x: f64) {
        self.put(key, Value::Float(f64::from(x as f32)));
    }
}

/// The family whose files say whether the halves of a block read the same.
const STATES_ORDER: &str = "gptneox";

/// All metadata except the tokenizer's.
pub(super) fn pairs(
    hparams: Hparams<'_>,
    config: &Config,
    family: &Family,
    name: &str,
) -> Result<Vec<(String, Value)>, Error> {
    let text = |key: &str, text: &str| (key.to_owned(), Value::Text(text.to_owned()));
    let own = vec![text("general.architecture", family.gguf), text("general.name", name)];
    let mut to = Pairs { architecture: family.gguf, pairs: own };
    to.count("block_count", config.n_layers());
    to.count("context_length", config.context);
    to.count("embedding_length", config.hidden);
    widths(&mut to, hparams, config)?;
    to.count("vocab_size", config.vocab);
    let eps =
        if config.is_centred { "attention.layer_norm_epsilon" } else { "attention.layer_norm_rms_epsilon" };
    to.number(eps, f64::from(config.eps));
    scales(&mut to, config, family);
    if family.gguf == STATES_ORDER {
        let is_parallel = config.blocks.iter().all(|block| block.order == Order::ParallelNorms);
        to.put("use_parallel_residual", Value::Bool(is_parallel));
    }
    for block in &config.blocks {
        match &block.mixer {
            Mixer::Latent(sizes) => latent(&mut to, sizes),
            Mixer::Delta(sizes) => delta(&mut to, sizes, config),
            Mixer::StateSpace(sizes) | Mixer::Beside(Beside { space: sizes, .. }) => {
                state_space(&mut to, sizes);
            }
            Mixer::ShortConv(sizes) => to.count("shortconv.l_cache", sizes.kernel),
            Mixer::Grouped(_) | Mixer::None => continue,
        }
        break;
    }
    let all: Vec<&Grouped> = config.blocks.iter().filter_map(heads_of).collect();
    if let Some(first) = all.first() {
        let full = all.iter().find(|heads| heads.window.is_none()).unwrap_or(first);
        grouped(&mut to, full, config);
        rope(&mut to, hparams, full, &all)?;
    } else if let Some(rope) = config.rope() {
        to.number("rope.freq_base", rope.theta);
        scaling(&mut to, hparams, &rope.scaling, true)?;
    }
    if let Some(sizes) = config.experts() {
        experts(&mut to, sizes);
        let has_experts = |block: &Block| block.network.experts().is_some();
        let n_dense = config.blocks.iter().take_while(|block| !has_experts(block)).count();
        to.count("leading_dense_block_count", n_dense);
        if INTERLEAVED.contains(&family.gguf) {
            let step = config.blocks.iter().position(has_experts).map_or(1, |first| first + 1);
            to.count("interleave_moe_layer_step", step);
        }
    }
    Ok(to.pairs)
}

/// The widths of dense FFNs.
fn widths(to: &mut Pairs, hparams: Hparams<'_>, config: &Config) -> Result<(), Error> {
    let key = "feed_forward_length";
    let width = |block: &Block| block.network.dense().map(|dense| dense.ff);
    let all: Vec<Option<usize>> = config.blocks.iter().map(width).collect();
    let has_halves = config.blocks.iter().any(|block| block.network == Network::None);
    let mut dense = all.iter().flatten();
    match dense.next() {
        Some(first) if dense.all(|other| other == first) && !has_halves => to.count(key, *first),
        Some(_) => to.counts(key, all.iter().map(|ff| ff.unwrap_or(0))),
        None if config.experts().is_some() => {
            to.count(key, hparams.count_if(DENSE_FF)?.or(hparams.count_if(FF)?).or(config.ff()).unwrap_or(1));
        }
        None => {}
    }
    Ok(())
}

/// Factors on activations, and bounds of them.
fn scales(to: &mut Pairs, config: &Config, family: &Family) {
    let own = config.embedding_scale;
    if own != 1.0 && own != (config.hidden as f32).sqrt() {
        to.number("embedding_scale", f64::from(own));
    }
    let residual = config.blocks.first().map_or(1.0, |block| block.residual_scale);
    if residual != 1.0 {
        to.number("residual_scale", f64::from(residual));
    }
    let own = config.logit_scale;
    if own != 1.0 {
        to.number("logit_scale", f64::from(if family.divides_logits { 1.0 / own } else { own }));
    }
    if let Some(cap) = config.logit_cap {
        to.number("final_logit_softcapping", f64::from(cap));
    }
    if let Some(width) = config.per_layer {
        to.count("embedding_length_per_layer_input", width);
    }
}

pub(super) fn heads_of(block: &Block) -> Option<&Grouped> {
    block.mixer.heads()
}

/// Attention; `heads` are those of a block that sees everything, if there is one.
fn grouped(to: &mut Pairs, heads: &Grouped, config: &Config) {
    // Blocks with a delta rule are listed by themselves.
    let is_listed = |block: &Block| heads_of(block).is_some() || !matches!(block.mixer, Mixer::Delta(_));
    let listed = || config.blocks.iter().filter(|block| is_listed(block)).map(heads_of);
    let n_heads = listed().map(|own| own.map_or(heads.n_heads, |own| own.n_heads));
    to.count_or_counts("attention.head_count", n_heads.collect());
    to.count_or_counts(
        "attention.head_count_kv",
        listed().map(|own| own.map_or(0, |own| own.n_kv)).collect(),
    );
    to.count("attention.key_length", heads.head);
    to.count("attention.value_length", heads.head);
    if let Some(scale) = heads.scale {
        to.number("attention.scale", scale);
    }
    for (key, number) in [
        ("attn_logit_softcapping", heads.cap),
        ("attention.clamp_kqv", heads.clamp),
        ("attention.max_alibi_bias", heads.alibi),
    ] {
        if let Some(number) = number {
            to.number(key, f64::from(number));
        }
    }
    if !heads.is_causal {
        to.put("attention.causal", Value::Bool(false));
    }
    let n_sharing = config.blocks.iter().filter_map(heads_of).filter(|own| own.shares.is_some()).count();
    if n_sharing > 0 {
        to.count("attention.shared_kv_layers", n_sharing);
    }
    let windows: Vec<Option<Window>> =
        config.blocks.iter().map(|block| heads_of(block).and_then(|own| own.window)).collect();
    let size = match windows.iter().flatten().next() {
        Some(Window::Sliding(size)) => *size,
        Some(Window::Around(half)) => 2 * half,
        Some(Window::Chunk(size)) => return to.count("attention.chunk_size", *size),
        None => return,
    };
    to.count("attention.sliding_window", size);
    let pattern = windows.iter().map(Option::is_some);
    to.put("attention.sliding_window_pattern", Value::List(List::Bools(pattern.collect())));
}

/// RoPE: of blocks that see everything, and of those with a window, where it is another.
fn rope(to: &mut Pairs, hparams: Hparams<'_>, full: &Grouped, all: &[&Grouped]) -> Result<(), Error> {
    to.count("rope.dimension_count", full.rotary_dim);
    if let Some(local) =
        all.iter().find(|heads| matches!(heads.window, Some(Window::Sliding(_) | Window::Around(_))))
    {
        if local.head != full.head {
            to.count("attention.key_length_swa", local.head);
            to.count("attention.value_length_swa", local.head);
        }
        if local.rotary_dim != full.rotary_dim {
            to.count("rope.dimension_count_swa", local.rotary_dim);
        }
        if let (Some(own), Some(full)) = (&local.rope, &full.rope)
            && own.theta != full.theta
        {
            to.number("rope.freq_base_swa", own.theta);
        }
    }
    if let Some(mut sections) = hparams.sizes_if(SECTIONS)? {
        sections.resize(N_SECTIONS, 0);
        to.counts("rope.dimension_sections", sections.into_iter());
    }
    let Some(rope) = full.rope.as_ref().or_else(|| all.iter().find_map(|heads| heads.rope.as_ref())) else {
        if full.alibi.is_none() {
            to.put("rope.scaling.finetuned", Value::Bool(false));
        }
        return Ok(());
    };
    to.number("rope.freq_base", rope.theta);
    if let Some(temperature) = all.iter().find_map(|heads| heads.temperature).filter(|own| own.offset == 0) {
        to.number("attention.temperature_scale", f64::from(temperature.strength));
    }
    scaling(to, hparams, &rope.scaling, false)
}

fn delta(to: &mut Pairs, sizes: &Delta, config: &Config) {
    to.count("ssm.conv_kernel", sizes.kernel);
    to.count("ssm.state_size", sizes.key);
    to.count("ssm.group_count", sizes.n_key);
    to.count("ssm.time_step_rank", sizes.n_value);
    to.count("ssm.inner_size", sizes.n_value * sizes.value);
    let flags: Vec<bool> = config.blocks.iter().map(|block| matches!(block.mixer, Mixer::Delta(_))).collect();
    if let Some(first) = flags.iter().position(|is_recurrent| !is_recurrent) {
        to.count("full_attention_interval", first + 1);
    }
    to.put("attention.recurrent_layers", Value::List(List::Bools(flags)));
}

fn state_space(to: &mut Pairs, sizes: &StateSpace) {
    to.count("ssm.conv_kernel", sizes.kernel);
    to.count("ssm.state_size", sizes.state);
    to.count("ssm.group_count", sizes.n_groups);
    to.count("ssm.time_step_rank", sizes.n_heads);
    to.count("ssm.inner_size", sizes.n_heads * sizes.head);
}

fn latent(to: &mut Pairs, sizes: &Latent) {
    to.count("attention.head_count", sizes.n_heads);
    to.count("attention.head_count_kv", 1);
    to.count("attention.key_length", sizes.kv_lora + sizes.rope);
    to.count("attention.value_length", sizes.kv_lora);
    to.count("attention.key_length_mla", sizes.nope + sizes.rope);
    to.count("attention.value_length_mla", sizes.value);
    to.count("attention.kv_lora_rank", sizes.kv_lora);
    if let Some(rank) = sizes.q_lora {
        to.count("attention.q_lora_rank", rank);
    }
    to.count("rope.dimension_count", sizes.rope);
}

fn experts(to: &mut Pairs, sizes: &Experts) {
    to.count("expert_count", sizes.n_routed);
    to.count("expert_used_count", sizes.top_k);
    to.count("expert_feed_forward_length", sizes.ff);
    if sizes.shared_ff > 0 {
        // Some readers want the one, some the other.
        if sizes.shared_ff.is_multiple_of(sizes.ff) {
            to.count("expert_shared_count", sizes.shared_ff / sizes.ff);
        }
        to.count("expert_shared_feed_forward_length", sizes.shared_ff);
    }
    let gate = match sizes.gate {
        Gate::Softmax => 1,
        Gate::Sigmoid => 2,
        Gate::SoftmaxAfterTopK => 3,
        Gate::SqrtSoftplus => 4,
    };
    to.count("expert_gating_func", gate);
    to.number("expert_weights_scale", f64::from(sizes.scale));
    to.put("expert_weights_norm", Value::Bool(sizes.renorm));
    if let Some(cap) = sizes.cap {
        to.number("router_logit_softcapping", f64::from(cap));
    }
    let (n_groups, top_k) = sizes.groups.map_or((1, 1), |groups| (groups.n_groups, groups.top_k));
    to.count("expert_group_count", n_groups);
    to.count("expert_group_used_count", top_k);
}

/// RoPE scaling: linear or YaRN. Other types become tensors with a divisor for each pair.
fn scaling(to: &mut Pairs, hparams: Hparams<'_>, scaling: &Scaling, is_latent: bool) -> Result<(), Error> {
    if let Some(factor) = scaling.linear() {
        to.put("rope.scaling.type", Value::Text("linear".to_owned()));
        to.number("rope.scaling.factor", factor);
    }
    if let Scaling::Long { original, attention_factor, .. } = scaling {
        to.count("rope.scaling.original_context_length", *original);
        to.number("rope.scaling.attn_factor", *attention_factor);
    }
    let &Scaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor, .. } = scaling else {
        return Ok(());
    };
    to.put("rope.scaling.type", Value::Text("yarn".to_owned()));
    to.number("rope.scaling.factor", factor);
    to.count("rope.scaling.original_context_length", original as usize);
    to.number("rope.scaling.yarn_beta_fast", beta_fast);
    to.number("rope.scaling.yarn_beta_slow", beta_slow);
    let mscale_all = hparams.number_or_none(MSCALE_ALL)?;
    if let Some(mscale_all) = mscale_all {
        // Of families with MLA a file has a tenth.
        let part = if is_latent { GGUF_MSCALE_FACTOR } else { 1.0 };
        to.number("rope.scaling.yarn_log_multiplier", part * mscale_all);
    }
    let default = gguf_attention_factor(factor, mscale_all);
    if attention_factor != default {
        to.number("rope.scaling.attn_factor", attention_factor / default);
    }
    Ok(())
}
