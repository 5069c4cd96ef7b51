//! The layers of transformer models, one idea per file.
//!
//! In: a [`Scope`](scope::Scope), the activations, and the sizes of the layer. Out: activations.
//! The library `fusebox` has them as `nn`, for decoders that are written elsewhere (`own.rs`).
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

pub mod attention;
pub mod block;
pub mod embed;
pub mod experts;
pub mod low_rank;
pub mod mlp;
pub mod norm;
pub mod recurrent;
pub mod scope;
pub mod softmax;
pub mod step;
pub mod top_k;
