//! The shapes that every bench knows by the same names.
//!
//! In: a name of [`NAMES`]. Out: a graph. `decode` has one token, or the number after `x`; `prefill` has the number
//! after `s`; the depth of the cache is in thousands. `0.6b` and `8b` have the sizes of Qwen3.
//! A graph is put together of pieces: nodes have numbers that pieces agree on, and sizes have places.
//! Together the shapes have kernels of every skeleton. No kernel is named here: that is up to the compiler.

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;
use fusebox_models::config::Config;
use fusebox_models::layers::embed::{Entry, Scored};

/// Every name.
pub(crate) const NAMES: [&str; 20] = [
    "decode_qkv_0.6b",
    "decode_mlp_0.6b",
    "decode_mlp_0.6b_x8",
    "decode_likeliest_0.6b",
    "decode_attention_0.6b_16k",
    "decode_attention_0.6b_16k_q8",
    "decode_block_0.6b",
    "moe_64x8",
    "mla_decode_16k",
    "mla_few_at_depth",
    "prefill_norm_8b_s512",
    "prefill_gate_8b_s512",
    "prefill_rotate_0.6b_s512",
    "prefill_qkv_0.6b_s512",
    "prefill_mlp_8b_s512",
    "prefill_attention_0.6b_s512",
    "prefill_router_64_s512",
    "prefill_moe_64x8_s512",
    "prefill_mla_s512",
    "prefill_block_0.6b_s512",
];

/// The graph of a name.
pub(crate) fn named(name: &str) -> Option<Graph> {
    let (pieces, sizes): (&[&str], &[(&str, &str)]) = match name {
        "decode_qkv_0.6b" => (&[NORM, QKV], &[("T", "1"), ("D", "1024")]),
        "decode_mlp_0.6b" => (MLP, &[("T", "1"), ("D", "1024"), ("F", "3072")]),
        "decode_mlp_0.6b_x8" => (MLP, &[("T", "8"), ("D", "1024"), ("F", "3072")]),
        "decode_attention_0.6b_16k" => (&[ATTENTION, SOFTMAX], &[("T", "1"), ("P", "16383"), ("S", "f16")]),
        "decode_attention_0.6b_16k_q8" => {
            (&[ATTENTION, SOFTMAX], &[("T", "1"), ("P", "16383"), ("S", "q8_0")])
        }
        "moe_64x8" => (&[EXPERTS, SWIGLU, CHOSEN], &[("T", "1")]),
        "mla_decode_16k" => (&[LATENT, SOFTMAX], &[("T", "1"), ("P", "16383")]),
        "prefill_norm_8b_s512" => (&[NORM, "output y = %10"], &[("T", "512"), ("D", "4096")]),
        "prefill_gate_8b_s512" => (&[GATE, SWIGLU, "output y = %37"], &[("T", "512"), ("F", "12288")]),
        "prefill_rotate_0.6b_s512" => (&[ROTATE], &[("T", "512")]),
        "prefill_qkv_0.6b_s512" => (&[NORM, QKV], &[("T", "512"), ("D", "1024")]),
        "prefill_mlp_8b_s512" => (MLP, &[("T", "512"), ("D", "4096"), ("F", "12288")]),
        "prefill_attention_0.6b_s512" => {
            (&[ATTENTION, SOFTMAX], &[("T", "512"), ("P", "1024"), ("S", "f16")])
        }
        "prefill_router_64_s512" => (&[ROUTER], &[("T", "512")]),
        "prefill_moe_64x8_s512" => (&[EXPERTS, SWIGLU, CHOSEN], &[("T", "512")]),
        "prefill_mla_s512" => (&[LATENT, SOFTMAX], &[("T", "512"), ("P", "1024")]),
        "decode_likeliest_0.6b" => return likeliest(),
        "decode_block_0.6b" => return block(1),
        "mla_few_at_depth" => return latent_block(8),
        "prefill_block_0.6b_s512" => return block(512),
        _ => return None,
    };
    let put = |text: String, (place, size): &(&str, &str)| text.replace(&format!("<{place}>"), size);
    parse(&sizes.iter().fold(pieces.concat(), put)).ok()
}

/// A block of Qwen3-0.6B.
fn block(tokens: i64) -> Option<Graph> {
    blocks::block(&blocks::named("qwen3-0.6b")?, &Sym::from(tokens)).ok()
}

/// A dense block of DeepSeek-V2-Lite after 4096 cached tokens: what a chat turn or a verification of drafts costs.
fn latent_block(tokens: i64) -> Option<Graph> {
    let config = Config { context: 4 * 4096, ..blocks::named("deepseek-v2-lite")? };
    let dense = config.blocks.first()?.network.clone();
    let config = config.with_network(&dense, |_| true);
    blocks::block(&config, &Sym::from(tokens)).ok()
}

/// The scores of all tokens, and the 40 likeliest.
fn likeliest() -> Option<Graph> {
    let config = blocks::named("qwen3-0.6b")?;
    blocks::part(&config, &Sym::from(1i64), 0, Entry::Vectors, Scored::TopK(40)).ok()
}

const MLP: &[&str] = &[NORM, GATE_AND_UP, SWIGLU, DOWN];

/// A norm, which is %10.
const NORM: &str = "
%0 = input x : f32[t:<T>, d:<D>]
%1 = mul %0 %0
%2 = reduce-sum %1 over d
%3 = const <D>.0
%4 = div %2 %3
%5 = const 1e-6
%6 = add %4 %5
%7 = rsqrt %6
%8 = mul %0 %7
%9 = weight norm : f32[d:<D>]
%10 = mul %8 %9
";

const GATE: &str = "
%30 = input gate : f32[t:<T>, f:<F>]
%31 = input up : f32[t:<T>, f:<F>]
";

/// What %30 lets through of %31, which is %37.
const SWIGLU: &str = "
%32 = neg %30
%33 = exp %32
%34 = const 1.0
%35 = add %33 %34
%36 = div %30 %35
%37 = mul %36 %31
";

/// The angles are given: a table would be as long as half a head.
const ROTATE: &str = "
%0 = input q : f32[t:<T>, h:16, e:128]
%1 = input angle : f32[t:<T>, pair:64]
%2 = cos %1
%3 = sin %1
%4 = split %0 e into [side:2, pair:64]
%5 = slice %4 side at 0 len 1
%6 = slice %4 side at 1 len 1
%7 = mul %5 %2
%8 = mul %6 %3
%9 = sub %7 %8
%10 = mul %6 %2
%11 = mul %5 %3
%12 = add %10 %11
%13 = concat %9 %12 along side
%14 = merge %13 [side, pair] into e
output y = %14
";

const QKV: &str = "
%11 = weight q : q8_0[kv:8, g:2, e:128, d:1024]
%12 = weight k : q8_0[kv:8, e:128, d:1024]
%13 = weight v : q8_0[kv:8, e:128, d:1024]
%14 = contract %10 %11 over [d]
%15 = contract %10 %12 over [d]
%16 = contract %10 %13 over [d]
output q = %14
output k = %15
output v = %16
";

const GATE_AND_UP: &str = "
%11 = weight gate : q8_0[f:<F>, d:<D>]
%12 = weight up : q8_0[f:<F>, d:<D>]
%30 = contract %10 %11 over [d]
%31 = contract %10 %12 over [d]
";

const DOWN: &str = "
%40 = weight down : q8_0[d:<D>, f:<F>]
%41 = contract %37 %40 over [f]
%42 = add %0 %41
output y = %42
";

const ATTENTION: &str = "
symbol P in 0..<P> near <P>
%0 = input q : f32[t:<T>, kv:8, g:2, e:128]
%1 = state keys : <S>[kv:8, s:<P>+<T>, e:128]
%2 = state values : <S>[kv:8, s:<P>+<T>, e:128]
%3 = slice %1 s at 0 len P+<T>
%4 = slice %2 s at 0 len P+<T>
%5 = contract %0 %3 over [e]
%6 = const 0.088388346
";

/// Queries meet the latents themselves: 512 elements and a rotated part of 64.
const LATENT: &str = "
symbol P in 0..<P> near <P>
%0 = input q : f32[t:<T>, h:16, c:576]
%1 = state latent : f16[s:<P>+<T>, c:576]
%2 = slice %1 s at 0 len P+<T>
%4 = slice %2 c at 0 len 512
%5 = contract %0 %2 over [c]
%6 = const 0.07216878
";

/// What the scores of %5, times %6, choose of the values of %4: each token sees those up to its own.
const SOFTMAX: &str = "
%7 = mul %5 %6
%8 = iota s:P+<T>
%9 = iota t:<T>
%10 = symbolic P
%11 = add %9 %10
%12 = le %8 %11
%13 = const -inf
%14 = select %12 %7 %13
%15 = reduce-max %14 over s
%16 = sub %14 %15
%17 = exp %16
%18 = reduce-sum %17 over s
%19 = div %17 %18
%20 = contract %19 %4 over [s]
output y = %20
";

/// A score of every expert, in single precision as files have it.
const ROUTER: &str = "
%0 = input x : f32[t:<T>, d:2048]
%1 = weight router : f32[x:64, d:2048]
%2 = contract %0 %1 over [d]
output scores = %2
";

/// Eight of 64 experts for every token.
const EXPERTS: &str = "
%0 = input x : f32[t:<T>, d:2048]
%1 = input scores : f32[t:<T>, x:64]
%2 = top-k %1 x into k:8
%3 = gather %1 %2 along x
%4 = weight gate : q8_0[x:64, f:1024, d:2048]
%5 = weight up : q8_0[x:64, f:1024, d:2048]
%6 = gather %4 %2 along x
%7 = gather %5 %2 along x
%30 = contract %0 %6 over [d]
%31 = contract %0 %7 over [d]
";

const CHOSEN: &str = "
%40 = weight down : q8_0[x:64, d:2048, f:1024]
%41 = gather %40 %2 along x
%42 = contract %37 %41 over [f]
%43 = contract %3 %42 over [k]
output y = %43
";
