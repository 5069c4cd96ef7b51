//! The KV cache: a state that lives from one step to the next.
//!
//! In: a value for each token of this step. Out: the values of all tokens so far, this step's included.
//!
//! ```text
//!  state   [page, …, row, …]         one pool for all sequences: a page holds a run of rows of one sequence
//!  table   [p] or [t, p]             which pages a sequence has, in order: an input of the step
//!  result  [p, …, row, …]            row r of page p is token p · rows + r of the sequence; behind its last token
//!                                    there is anything, which the mask of attention hides
//! ```
//!
//! Blocks with a window may have a pool and a table of their own: in place of pages before the window stands any other,
//! which the mask hides as well.
//!
//! Read next: `attention.rs` caches keys and values, `latent.rs` the latents that both are made of.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::quant::Format;

use crate::layers::scope::{Pages, Scope};

/// Writes `value` to the rows of this step's tokens, and reads the pages of their sequences.
///
/// `axes` are those of a page, the rows among them; the value has the same without the rows, and `t`.
#[track_caller]
pub fn append(m: &Scope, name: &str, axes: &[&Dim], value: &Tensor) -> Tensor {
    let format = m.config.cache.format;
    let Pages { page, own, table } = &m.pages();
    let pool = m.g.state(name, format, &[&[page], axes].concat());
    let pool = if m.wants_attention() {
        // The tokens of this step are there.
        pool
    } else {
        pool.write(&[(page, own), (&m.r, &m.row)], &value.cast(format.dtype()))
    };
    let read = pool.gather(page, table);
    if format == Format::F32 { read } else { read.widened() }
}
