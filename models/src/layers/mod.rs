//! What models are made of, one idea a file.
//!
//! In: a `Scope`, the activations, and the sizes of the part. Out: activations.
//! A layer names its weights as GGUF does and writes down its formula; it never helps the compiler by another form of
//! it. What serves many layers is `track_caller`, so a complaint names the layer. Axes have the same names everywhere:
//!
//! | axis | runs over | axis | runs over |
//! |---|---|---|---|
//! | `t` | the tokens of this replay | `e` | the elements of a head |
//! | `s` | the positions seen so far | `c`, `q` | the latent of keys and values, of queries |
//! | `d` | the residual stream | `f` | the inside of a feed-forward network |
//! | `kv`, `g` | key heads, the query heads of one | `x`, `k` | experts, the ranks of the selected |
//! | `h` | heads, where they share none | `v` | the vocabulary |

pub(crate) mod attention;
pub(crate) mod best;
pub(crate) mod block;
pub(crate) mod cache;
pub mod embed;
pub(crate) mod experts;
pub(crate) mod latent;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod scope;
pub(crate) mod softmax;
