//! What can go wrong, sorted by who must act.
//!
//! `Input` and `Syntax` are for whoever wrote the graph or the text, `Unsupported` for whoever chose the target,
//! `Limit` for whoever chose the sizes, `Bug` is always ours: a verifier refused what an earlier stage made.
//! Stages never fail for legal input; an exhausted budget is a line in the story, not an error.

use std::fmt;

use thiserror::Error;

use crate::foundation::text::SyntaxError;

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Parts of the graph do not fit each other.
    #[error("{}", lines(.complaints))]
    Input {
        /// Everything that does not fit, in the order it was written.
        complaints: Vec<Complaint>,
    },
    /// A text form does not read.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// Legal, but not made for this target.
    #[error("{what} on {target}, which is not supported")]
    Unsupported {
        /// What is not supported.
        what: String,
        /// The target.
        target: String,
    },
    /// Legal, but larger than the compiler can lay out.
    #[error("{what} is {found}, at most {limit} is possible")]
    Limit {
        /// What is too large.
        what: String,
        /// Its size.
        found: u64,
        /// The largest size possible.
        limit: u64,
    },
    /// A verifier refused what a stage made.
    #[error("this is a bug in fusebox: after `{stage}`, {}", lines(.complaints))]
    Bug {
        /// The stage whose result was refused.
        stage: &'static str,
        /// What the verifier found.
        complaints: Vec<Complaint>,
    },
}

impl Error {
    /// One thing that the caller must mend.
    pub fn input(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::Input { complaints: vec![Complaint::new(place, what)] }
    }

    /// One thing that a stage did wrong.
    pub fn bug(stage: &'static str, place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::Bug { stage, complaints: vec![Complaint::new(place, what)] }
    }

    /// Fails where the caller has anything to mend.
    pub fn input_if(complaints: Vec<Complaint>) -> Result<(), Self> {
        if complaints.is_empty() { Ok(()) } else { Err(Self::Input { complaints }) }
    }

    /// Fails where a stage did anything wrong.
    pub fn bug_if(stage: &'static str, complaints: Vec<Complaint>) -> Result<(), Self> {
        if complaints.is_empty() { Ok(()) } else { Err(Self::Bug { stage, complaints }) }
    }
}

/// One thing that does not fit, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The author's file and line, or the node; empty when unknown.
    pub place: String,
    /// What is wrong there and what would be accepted.
    pub what: String,
}

impl Complaint {
    /// A complaint about a place.
    pub fn new(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { place: place.to_string(), what: what.to_string() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            f.write_str(&self.what)
        } else {
            write!(f, "{}: {}", self.place, self.what)
        }
    }
}

fn lines(complaints: &[Complaint]) -> String {
    let lines: Vec<String> = complaints.iter().map(Complaint::to_string).collect();
    lines.join("\n")
}
