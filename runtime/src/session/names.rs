//! The names that an engine and the graphs that it runs agree on.
//!
//! In: nothing. Out: symbols, axes, inputs, and states that no position indexes; and a refusal by one of these names.

use fusebox_compiler::error::{Complaint, Error as CompilerError};

use crate::error::Error;

/// The symbol for the number of tokens of a replay, where it varies.
pub const TOKENS: &str = "T";
/// The symbol for the number of pages that the longest sequence of a replay has.
pub const PAGES: &str = "N";
/// The axis of the rows of a page, in the states of a KV cache.
pub const ROWS: &str = "r";
/// The axis of the pages in the states of a KV cache.
pub const PAGE: &str = "page";
/// The axis of the pages in the states of blocks with a window, where these have pages of their own.
pub const WINDOW_PAGES: &str = "window";

/// What the names of states begin with that no position indexes.
const CARRIED: &str = "carried_";

/// The name of a state that no position indexes: it goes from token to token, and only forward.
pub fn carried(name: &str) -> String {
    format!("{CARRIED}{name}")
}

/// Whether a state has such a name; blocks put theirs before it.
pub(super) fn is_carried(name: &str) -> bool {
    name.split('.').any(|part| part.starts_with(CARRIED))
}

/// The inputs of the graphs of an engine.
pub mod inputs {
    /// Token ids, `[t]`.
    pub const TOKENS: &str = "tokens";
    /// The kind of each token, `[t]`: which of the texts that were joined it is of.
    pub const KINDS: &str = "kinds";
    /// Vectors in place of the embeddings of tokens, `[t, d]`.
    pub const VECTORS: &str = "x";
    /// The position of each token, `[t]`: what RoPE sees.
    pub const POSITIONS: &str = "positions";
    /// How many tokens of its sequence are kept before each token, `[t]`; of a run only those before its first token,
    /// `[]`.
    pub const SLOT: &str = "slot";
    /// The page of the KV cache that each token's rows go to, `[t]`.
    pub const PAGE: &str = "page";
    /// The row in that page, `[t]`.
    pub const ROW: &str = "row";
    /// The pages of a sequence in the order of its tokens, `[p]`; of a batch those of each sequence, `[t, p]`.
    pub const TABLE: &str = "page_table";
    /// The same as [`PAGE`], where the block has a window.
    pub const WINDOW_PAGE: &str = "window_page";
    /// The same as [`TABLE`], where the block has a window.
    pub const WINDOW_TABLE: &str = "window_page_table";
    /// Where the states lie that go from token to token, `[]`; of a batch those of each token's sequence, `[t]`.
    pub const SEQUENCE: &str = "sequence";
    /// Factors on what adapters add that sequences choose from, one for each rank, `[rank]`; of a batch those of each
    /// token's sequence, `[t, rank]`.
    pub const SCALES: &str = "adapter_scales";
}

/// The block that a state or an output belongs to, by its name.
pub(super) fn block_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(block, _)| block)
}

/// A refusal of what has this name.
pub(super) fn refused(place: &str, what: String) -> Error {
    CompilerError::Input { complaints: vec![Complaint::new(place, what)] }.into()
}
