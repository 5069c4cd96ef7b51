//! What models are made of, one idea a file.
//!
//! In: a [`Scope`](scope::Scope), the activations, and the sizes of the part. Out: activations.
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

pub mod attention;
pub mod best;
pub mod block;
pub mod cache;
pub mod embed;
pub mod experts;
pub mod latent;
pub mod mlp;
pub mod norm;
pub mod rope;
pub mod scope;
pub mod softmax;
