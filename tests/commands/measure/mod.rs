//! Commands that measure.

mod bench;
mod logits;
mod perplexity;
mod rates;
