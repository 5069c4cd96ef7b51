//! The tokens of a step: a run of one sequence, or a few of each of several sequences.
//!
//! In: the class of a program, or a number of tokens. Out: a [`Step`], from which `scope.rs` makes the inputs of a
//! graph.

use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::session::classes::{Class, Form};

/// The tokens of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A run of tokens of one sequence: a chunk of a prompt, or one token.
    Run(Sym),
    /// The same with logits for every token, not for the last.
    Scored(Sym),
    /// A token of each of several sequences, or a few: a decode step of a batch, with what was guessed.
    Batch(Sym),
    /// The last tokens of one sequence once more, for how much attention they pay to each row of the KV cache.
    Attention(Sym),
}

impl From<&Sym> for Step {
    fn from(tokens: &Sym) -> Self {
        Self::Run(tokens.clone())
    }
}

impl Step {
    /// The step of a program class.
    pub fn of(class: Class) -> Self {
        match class.form {
            Form::Run => Self::Run(class.tokens()),
            Form::Scored => Self::Scored(class.tokens()),
            Form::Batch => Self::Batch(class.tokens()),
            Form::Attention => Self::Attention(class.tokens()),
        }
    }
}
