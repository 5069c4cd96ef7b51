//! What the scheduler computes with: sequences that are extended in batches.
//!
//! In: pieces of sequences. Out: rows of logits.
//! This is the seam to the library: [`Engine`] here, its form over the engine of the library in `paged.rs`.
//! Memory is counted in pages. A step that does not fit says how many pages it needs, and changes nothing.

use std::fmt;

use fusebox::tokenizer::Pair;
use fusebox::{Error, Kin};

pub(crate) mod encoder;
pub(crate) mod paged;

/// A sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SequenceId(pub(crate) usize);

/// Which rows of logits a piece gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scored {
    /// None: more of the prompt follows.
    None,
    /// That of the last token.
    Last,
    /// One for each token.
    All,
}

/// Tokens that a step appends to a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The sequence; a step has at most one piece of it.
    pub(crate) sequence: SequenceId,
    /// The tokens, at least one.
    pub(crate) tokens: Vec<u32>,
    /// The rows that are wanted.
    pub(crate) scored: Scored,
}

/// What an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Tokens of a page.
    pub(crate) page: usize,
    /// Pages in all.
    pub(crate) pages: usize,
    /// Pages that nobody uses.
    pub(crate) free: usize,
    /// Those of them that hold known tokens.
    pub(crate) idle: usize,
    /// The most sequences that may be open.
    pub(crate) sequences: usize,
    /// The most tokens of a sequence.
    pub(crate) context: usize,
    /// The size of the vocabulary.
    pub(crate) vocab: usize,
    /// Whether sequences share pages; where they do not, a fork computes its beginning again.
    pub(crate) shares: bool,
    /// The most tokens of a sequence, those that it dropped among them.
    pub(crate) longest: usize,
}

impl Capacity {
    /// Whether sequences drop tokens, so that a full context is no end.
    pub(crate) fn slides(&self) -> bool {
        self.longest > self.context
    }
}

/// What is known of the beginning of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Known {
    /// How many of its tokens.
    pub(crate) tokens: usize,
    /// How many of the pages that hold them count as free.
    pub(crate) idle: usize,
}

/// Why a step or a fork was not done. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too few pages.
    Full {
        /// Pages that are needed.
        needed: usize,
        /// Pages that nobody uses.
        free: usize,
    },
    /// The device failed.
    Fault(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error.full() {
            Some((needed, free)) => Self::Full { needed, free },
            None => Self::Fault(error.to_string()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { needed, free } => write!(f, "{needed} pages are needed, {free} are free"),
            Self::Fault(what) => f.write_str(what),
        }
    }
}

/// Extends sequences. One thread owns it.
pub(crate) trait Engine {
    /// What it holds.
    fn capacity(&self) -> Capacity;

    /// How many of some tokens a sequence of this kin would share with earlier ones; none where none are shared.
    fn known(&self, tokens: &[u32], kin: &Kin) -> Known;

    /// Opens a sequence of this kin that shares as many of these tokens as are known; says how many.
    ///
    /// # Errors
    /// [`Refused::Full`] where no more may be open.
    fn open(&mut self, tokens: &[u32], kin: &Kin) -> Result<(SequenceId, usize), Refused>;

    /// Opens a sequence that begins with the first `at` tokens of another.
    ///
    /// # Errors
    /// As [`Engine::open`] and [`Engine::step`].
    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused>;

    /// How many of `n` tokens a step should append to a sequence.
    fn takes(&self, sequence: SequenceId, n: usize) -> usize;

    /// Appends all pieces in one replay, if the device can.
    ///
    /// # Errors
    /// Then no piece was appended.
    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused>;

    /// The rows of a piece of the last step, one after another.
    fn rows(&self, piece: usize) -> &[f32];

    /// Drops the tokens of a sequence from `n` on.
    fn truncate(&mut self, sequence: SequenceId, n: usize);

    /// Closes a sequence; its pages are free, and where it is to be known others find what they hold.
    fn release(&mut self, sequence: SequenceId, is_known: bool);

    /// Writes what is known to disk, where that is wanted.
    fn save(&mut self);

    /// The vector of a text of its own, or what a head makes of two that were joined; of one text no kinds are needed.
    ///
    /// # Errors
    /// [`Refused::Fault`] where the device fails.
    fn embed(&mut self, input: &Pair) -> Result<Vec<f32>, Refused>;
}
