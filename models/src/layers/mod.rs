//! The layers of transformer models, one idea per file.
//!
//! In: a `Scope`, the activations, and the sizes of the layer. Out: activations.
//! A layer names its weights as GGUF does and writes down its formula; it never rewrites it to help the compiler.
//! Functions shared by many layers are `track_caller`, so that an error names the layer. Axes have the same names
//! everywhere:
//!
//! | axis | runs over | axis | runs over |
//! |---|---|---|---|
//! | `t` | the tokens of this step | `e` | the head dimension |
//! | `p`, `r` | the pages of a sequence, the rows of a page | `c`, `q` | the latent of keys and values, of queries |
//! | `d` | the residual stream | `f` | the FFN width |
//! | `kv`, `g` | key heads, the query heads of one | `x`, `k` | experts, the selected ones by rank |
//! | `h` | heads, where they share none | `v` | the vocabulary |

pub(crate) mod attention;
pub(crate) mod block;
pub(crate) mod delta;
pub mod embed;
pub(crate) mod experts;
pub(crate) mod kv_cache;
pub(crate) mod latent;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod scope;
pub(crate) mod short_conv;
pub(crate) mod softmax;
pub(crate) mod state_space;
pub mod step;
pub(crate) mod top_k;
