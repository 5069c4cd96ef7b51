//! A transformer block, and the whole step through all blocks.
//!
//! In: a scope and the residual stream `[t, d]`. Out: the residual stream after one block, or the results of a whole
//! step.
//! A block is a mixer and a network, each read the stream through a norm and adds to it; where the norms are, and which
//! mixer and network it has, is data. No layer asks for a family.

use std::f32::consts::FRAC_1_SQRT_2;

use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;

use crate::config::recurrent::Beside;
use crate::config::{Block, Mixer, Network, Order};
use crate::layers::attention::grouped;
use crate::layers::attention::latent::latent;
use crate::layers::embed::{Entry, Scored, entry, head};
use crate::layers::experts::{experts, experts_beside};
use crate::layers::mlp::{activate, mlp};
use crate::layers::norm::norm;
use crate::layers::recurrent::delta::delta;
use crate::layers::recurrent::short_conv::short_conv;
use crate::layers::recurrent::state_space::state_space;
use crate::layers::scope::Scope;
use crate::naming::tensors::DIRECTION;

/// One block, with its weights and states named `blk.N.*`; `own` is its part of the per-layer embeddings `[t, p]`.
pub fn block(m: &Scope, layer: usize, x: &Tensor, own: Option<&Tensor>) -> Tensor {
    let block = &m.config.blocks[layer];
    m.block(layer, || {
        let x = match block.order {
            Order::Parallel | Order::ParallelNorms => {
                let h = norm(m, "attn_norm", x, &m.d);
                let own = (block.order == Order::ParallelNorms).then(|| norm(m, "ffn_norm", x, &m.d));
                let both =
                    [mix(m, &block.mixer, &h), feed_forward(m, &block.network, own.as_ref().unwrap_or(&h))];
                both.into_iter().flatten().fold(x.clone(), |x, y| x + scaled(block, y))
            }
            Order::Before | Order::BeforeNetwork | Order::After | Order::Around | Order::Post => {
                let x = half(m, block, x, ["attn_norm", "attn_post_norm"], |h| mix(m, &block.mixer, h));
                match &block.network {
                    Network::Both(..) => beside(m, &block.network, &x),
                    network => {
                        half(m, block, &x, ["ffn_norm", "ffn_post_norm"], |h| feed_forward(m, network, h))
                    }
                }
            }
        };
        let x = own.map_or(x.clone(), |own| with_embedding(m, block, &x, own));
        let one = &m.g.dim("one", 1);
        let x =
            if block.has_output_scale { x * m.f32_weight("layer_output_scale", &[one]).sum(one) } else { x };
        if m.config.steered.contains(&layer) { x + m.f32_weight(DIRECTION, &[&m.d]) } else { x }
    })
}

/// One half of a block, with its norms; the stream itself where the block has no such half.
fn half(
    m: &Scope,
    block: &Block,
    x: &Tensor,
    [before, after]: [&str; 2],
    work: impl FnOnce(&Tensor) -> Option<Tensor>,
) -> Tensor {
    let is_empty = match before {
        "attn_norm" => block.mixer == Mixer::None,
        _ => block.network == Network::None,
    };
    if is_empty {
        return x.clone();
    }
    let is_first = before == "attn_norm";
    let y = match block.order {
        Order::Before | Order::Around => work(&norm(m, before, x, &m.d)),
        Order::BeforeNetwork if !is_first => work(&norm(m, before, x, &m.d)),
        Order::BeforeNetwork | Order::After | Order::Parallel | Order::ParallelNorms | Order::Post => work(x),
    };
    let Some(y) = y else { return x.clone() };
    match block.order {
        Order::After | Order::Around => x + scaled(block, norm(m, after, &y, &m.d)),
        Order::Post => norm(m, after, &(x + scaled(block, y)), &m.d),
        Order::Before | Order::BeforeNetwork | Order::Parallel | Order::ParallelNorms => x + scaled(block, y),
    }
}

/// What a half adds to the residual stream.
fn scaled(block: &Block, y: Tensor) -> Tensor {
    if block.residual_scale == 1.0 { y } else { y * block.residual_scale }
}

fn mix(m: &Scope, mixer: &Mixer, h: &Tensor) -> Option<Tensor> {
    match mixer {
        Mixer::Grouped(heads) => Some(grouped(m, heads, h)),
        Mixer::Latent(sizes) => Some(latent(m, sizes, h)),
        Mixer::Delta(sizes) => Some(delta(m, sizes, h)),
        Mixer::StateSpace(sizes) => Some(state_space(m, sizes, h)),
        Mixer::Beside(Beside { heads, space, inputs }) => {
            let [h, other] = inputs.map(|factor| if factor == 1.0 { h.clone() } else { h * factor });
            Some(grouped(m, heads, &h) + state_space(m, space, &other))
        }
        Mixer::ShortConv(sizes) => Some(short_conv(m, sizes, h)),
        Mixer::None => None,
    }
}

fn feed_forward(m: &Scope, network: &Network, h: &Tensor) -> Option<Tensor> {
    match network {
        Network::Dense(sizes) => Some(mlp(m, "", sizes, h)),
        Network::Sparse(sizes) => Some(experts(m, sizes, h)),
        Network::Both(..) | Network::None => None,
    }
}

/// A dense FFN and experts side by side.
fn beside(m: &Scope, network: &Network, x: &Tensor) -> Tensor {
    let Network::Both(dense, sparse) = network else { return x.clone() };
    let dense = norm(m, "post_ffw_norm_1", &mlp(m, "", dense, &norm(m, "ffn_norm", x, &m.d)), &m.d);
    let sparse = norm(m, "post_ffw_norm_2", &experts_beside(m, sparse, x), &m.d);
    x + norm(m, "ffn_post_norm", &(dense + sparse), &m.d)
}

/// The stream, and what a block makes of its part of the per-layer embeddings.
fn with_embedding(m: &Scope, block: &Block, x: &Tensor, own: &Tensor) -> Tensor {
    let (Some(width), Some(dense)) = (m.config.per_layer, block.network.dense()) else { return x.clone() };
    let p = &m.g.dim("p", width);
    let gate = activate(dense.activation, &m.linear(x, "inp_gate", &[p], [&m.d]));
    x + norm(m, "post_norm", &m.linear(&(gate * own), "proj", &[&m.d], [p]), &m.d)
}

/// The per-layer embeddings of this step's tokens, `[t, p]` for each block: a row of a table, and a projection of the
/// embedding.
fn per_layer(m: &Scope, from: Entry, x: &Tensor) -> Vec<Tensor> {
    let (Some(width), Entry::Tokens) = (m.config.per_layer, from) else { return Vec::new() };
    let n_layers = m.config.n_layers();
    let (v, p) = (&m.g.dim("v", m.config.vocab), &m.g.dim("p", width));
    let (layer, all) = (&m.g.dim("layer", n_layers), &m.g.dim("all", n_layers * width));
    let rows = m.matrix("per_layer_token_embd", &[v, all]).gather(v, &m.tokens()).cast(DType::F32);
    let rows = rows.split(all, &[layer, p]) * (width as f32).sqrt();
    let made = m.linear(x, "per_layer_model_proj", &[all], [&m.d]) * (m.config.hidden as f32).sqrt().recip();
    let made = norm(m, "per_layer_proj_norm", &made.split(all, &[layer, p]), p);
    let both = (made + rows) * FRAC_1_SQRT_2;
    (0..n_layers).map(|i| both.slice(layer, i, 1).merge(&[&layer.sized(1), p], p)).collect()
}

/// A whole step, from token ids or embeddings to what `scored` selects.
pub(crate) fn step(m: &Scope, n_layers: usize, from: Entry, scored: Scored) -> Vec<(&'static str, Tensor)> {
    let x = entry(m, from);
    let own = per_layer(m, from, &x);
    let x = (0..n_layers).fold(x, |x, layer| block(m, layer, &x, own.get(layer)));
    head(m, &x, scored)
}
