//! The GGUF metadata of a model that comes from another kind of file.
//!
//! In: the hyper-parameters of the file and the config read from them. Out: keys and values, named as by llama.cpp's
//! converter.
//! Numbers are written as f32, the type that readers expect.

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::value::{List, Value};

use crate::config::{Config, Experts, Gate, Grouped, Latent, Mixer, Scaling, Window};
use crate::families::rope::{GGUF_MSCALE_FACTOR, gguf_attention_factor};
use crate::hparams::Hparams;
use crate::naming::hparams::{FF, MSCALE_ALL};

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

    fn number(&mut self, key: &str, x: f64) {
        self.put(key, Value::Float(f64::from(x as f32)));
    }
}

/// All metadata except the tokenizer's.
pub(super) fn pairs(
    hparams: Hparams<'_>,
    config: &Config,
    architecture: &'static str,
    name: &str,
) -> Result<Vec<(String, Value)>, Error> {
    let text = |key: &str, text: &str| (key.to_owned(), Value::Text(text.to_owned()));
    let own = vec![text("general.architecture", architecture), text("general.name", name)];
    let mut to = Pairs { architecture, pairs: own };
    to.count("block_count", config.n_layers());
    to.count("context_length", config.context);
    to.count("embedding_length", config.hidden);
    to.count("feed_forward_length", hparams.count_if(FF)?.or(config.ff()).unwrap_or(1));
    to.count("vocab_size", config.vocab);
    to.number("attention.layer_norm_rms_epsilon", f64::from(config.eps));
    if let Some(rope) = config.rope() {
        to.number("rope.freq_base", rope.theta);
    }
    match &config.blocks[0].mixer {
        Mixer::Grouped(heads) => grouped(&mut to, heads, config),
        Mixer::Latent(sizes) => latent(&mut to, sizes),
        Mixer::Delta(_) | Mixer::StateSpace(_) | Mixer::Beside(_) | Mixer::ShortConv(_) | Mixer::None => {}
    }
    if let Some(sizes) = config.experts() {
        experts(&mut to, sizes);
        let n_dense = config.blocks.iter().take_while(|block| block.network.experts().is_none()).count();
        to.count("leading_dense_block_count", n_dense);
    }
    if let Some(rope) = config.rope() {
        scaling(&mut to, hparams, &rope.scaling)?;
    }
    Ok(to.pairs)
}

fn grouped(to: &mut Pairs, heads: &Grouped, config: &Config) {
    to.count("attention.head_count", heads.n_heads);
    to.count("attention.head_count_kv", heads.n_kv);
    to.count("attention.key_length", heads.head);
    to.count("attention.value_length", heads.head);
    to.count("rope.dimension_count", heads.rotary_dim);
    let windows: Vec<Option<usize>> = config.blocks.iter().map(|block| window_of(&block.mixer)).collect();
    if let Some(size) = windows.iter().flatten().next() {
        to.count("attention.sliding_window", *size);
        let pattern = windows.iter().map(Option::is_some);
        to.put("attention.sliding_window_pattern", Value::List(List::Bools(pattern.collect())));
    }
}

fn window_of(mixer: &Mixer) -> Option<usize> {
    match mixer {
        Mixer::Grouped(Grouped { window: Some(Window::Sliding(size)), .. }) => Some(*size),
        _ => None,
    }
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
        to.count("expert_shared_count", sizes.shared_ff / sizes.ff);
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
    let (n_groups, top_k) = sizes.groups.map_or((1, 1), |groups| (groups.n_groups, groups.top_k));
    to.count("expert_group_count", n_groups);
    to.count("expert_group_used_count", top_k);
}

/// RoPE scaling: linear or YaRN. Other types become a tensor with a divisor for each pair.
fn scaling(to: &mut Pairs, hparams: Hparams<'_>, scaling: &Scaling) -> Result<(), Error> {
    if let Some(factor) = scaling.linear() {
        to.put("rope.scaling.type", Value::Text("linear".to_owned()));
        to.number("rope.scaling.factor", factor);
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
        to.number("rope.scaling.yarn_log_multiplier", GGUF_MSCALE_FACTOR * mscale_all);
    }
    let default = gguf_attention_factor(factor, mscale_all);
    if attention_factor != default {
        to.number("rope.scaling.attn_factor", attention_factor / default);
    }
    Ok(())
}
