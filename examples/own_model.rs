//! A decoder written outside of Fusebox: Llama with QK norm, as formulas on named axes.
//!
//! Run with `cargo run --release --example own_model`: binds the weights of a GGUF file to it, generates, and compares
//! the logits with those of the built-in family. Nothing here says how it is computed: batches, pages and kernels come
//! by themselves. `Scope` has the axes (`m.d` the residual stream, `m.p` and `m.r` the pages and rows of the KV cache).

use std::path::Path;

use fusebox::config::{Config, Pairing, Rope, Scaling};
use fusebox::graph::Tensor;
use fusebox::nn::{
    attention::{kv_cache::append, mask, rope::rotate},
    mlp::silu,
    norm::norm,
    scope::Scope,
    softmax::softmax,
};
use fusebox::{Batch, Decoder, Error, Model, Run};

/// Elements of a head.
const HEAD: usize = 64;

fn attention(m: &Scope<'_>, x: &Tensor) -> Tensor {
    let (kv, group, e) = (&m.g.dim("kv", 2), &m.g.dim("g", 3), &m.g.dim("e", HEAD));
    let rope = Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None };
    let turned = |name: &str, x: &Tensor| rotate(m, &rope, &norm(m, name, x, e), e);
    let q = turned("attn_q_norm", &m.linear(x, "attn_q", &[kv, group, e], [&m.d]));
    let k = turned("attn_k_norm", &m.linear(x, "attn_k", &[kv, e], [&m.d]));
    let v = m.linear(x, "attn_v", &[kv, e], [&m.d]);
    let [k, v] = [("k", k), ("v", v)].map(|(name, new)| append(m, name, &[kv, &m.r, e], &new));
    let scores = q.contract(&k, [e]) * (HEAD as f32).sqrt().recip() + mask(m, true, None);
    let y = softmax(&scores, &[&m.p, &m.r]).contract(&v, [&m.p, &m.r]);
    m.linear(&y, "attn_output", &[&m.d], [kv, group, e])
}

fn blocks(m: &Scope<'_>, x: Tensor) -> Tensor {
    let f = &m.g.dim("f", 512);
    (0..5).fold(x, |x, layer| {
        m.block(layer, || {
            let x = &x + attention(m, &norm(m, "attn_norm", &x, &m.d));
            let h = norm(m, "ffn_norm", &x, &m.d);
            let gate = silu(&m.linear(&h, "ffn_gate", &[f], [&m.d]));
            &x + m.linear(&(gate * m.linear(&h, "ffn_up", &[f], [&m.d])), "ffn_down", &[&m.d], [f])
        })
    })
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf");
    let config = Config { tied: true, ..Config::new(Vec::new(), 256, 1536, 512) };
    let mut own = Model::define(&path, Decoder::new(config, blocks), Run::auto())?.engine(1)?;
    let mut family = Model::open(&path, Run::auto())?.engine(1)?;
    let (a, b, mut error) = (own.open(), family.open(), 0.0_f32);
    let mut next = own.encode("Once upon a time")?;
    for _ in 0..24 {
        for (engine, sequence) in [(&mut own, a), (&mut family, b)] {
            let mut batch = Batch::new();
            batch.add(sequence, next.clone());
            engine.step(&batch)?;
        }
        let (found, expected) = (own.logits(a)?, family.logits(b)?);
        error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(error, f32::max);
        let best = (0..found.len()).max_by(|a, b| found[*a].total_cmp(&found[*b])).unwrap_or(0);
        next = vec![best as u32];
    }
    println!("{}\n\nat most {error:.1e} from the built-in family", own.decode(own.tokens(a)?)?);
    if error < 1e-3 { Ok(()) } else { Err(Error::from("the logits are others")) }
}
