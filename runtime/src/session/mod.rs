//! A text in progress: programs for one token and for many, replayed over the same states.
//!
//! In: token numbers. Out: logits. The session knows at which position the text stands; every program reads it from a
//! symbol, so no token ever compiles anything.
//! Two names are agreed on with the makers of graphs: the symbol [`POSITION`] is where the first token of a replay
//! stands, [`TOKENS`] how many there are. A program has one input, the tokens, and one output, logits.
//! A step allocates nothing: `cache.rs` keeps programs between processes, `device/` runs them.

use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::error::{Complaint, Error as CompilerError};
use fusebox_compiler::program::Program;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan};

use crate::device::{Device, Footprint, ProgramId, Weights};
use crate::error::Error;

pub mod cache;

/// The symbol for the position of a replay's first token.
pub const POSITION: &str = "P";
/// The symbol for how many tokens a replay takes, where that may vary.
pub const TOKENS: &str = "T";

/// A text in progress.
pub struct Session {
    device: Box<dyn Device>,
    /// Takes one token.
    decode: Shape,
    /// Takes several.
    prefill: Shape,
    position: usize,
    /// How many tokens the last replay took.
    last: usize,
    context: usize,
    n_vocab: usize,
}

/// A program for a class of token numbers, loaded.
struct Shape {
    program: ProgramId,
    plan: Plan,
    /// A value for each symbol of the plan.
    symbols: Vec<i64>,
    position_idx: Option<usize>,
    tokens_idx: Option<usize>,
    most_tokens: usize,
}

impl Session {
    /// A session at the start of a text of at most `context` tokens.
    ///
    /// # Errors
    /// Where a program is not of this form, or the device refuses it.
    pub fn new(
        mut device: Box<dyn Device>,
        [decode, prefill]: [Program; 2],
        weights: &Arc<dyn Weights>,
        context: usize,
    ) -> Result<Self, Error> {
        let n_vocab = only(&decode.plan, &Place::Output, "output")?.shape.max_len();
        let decode = Shape::load(&mut *device, decode.plan, weights)?;
        let prefill = Shape::load(&mut *device, prefill.plan, weights)?;
        Ok(Self { device, decode, prefill, position: 0, last: 1, context, n_vocab })
    }

    /// How many tokens the text has.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many tokens it may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How many different tokens there are.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The plan that takes one token, and the one that takes several.
    pub fn plans(&self) -> [&Plan; 2] {
        [&self.decode.plan, &self.prefill.plan]
    }

    /// The replays that so many tokens at once become: the plan of each, and how many tokens it takes.
    pub fn pieces(&self, n_tokens: usize) -> impl Iterator<Item = (&Plan, usize)> {
        let most = self.prefill.most_tokens;
        (0..n_tokens).step_by(most).map(move |first| {
            let n = most.min(n_tokens - first);
            (&self.shape(n).plan, n)
        })
    }

    /// What the device holds.
    pub fn footprint(&self) -> Footprint {
        self.device.footprint()
    }

    /// What the device is.
    pub fn device(&self) -> String {
        self.device.describe()
    }

    /// Appends tokens; gives the logits of what may follow.
    ///
    /// # Errors
    /// Where there are no tokens, a token is none of the model's, or the text would outgrow the context; then nothing
    /// was appended.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.score(tokens, &mut |_| {})?;
        Ok(self.logits())
    }

    /// Appends tokens, and hands on every row of logits that its replays give: one for each token where the programs
    /// score all tokens, else one for the last of each replay.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn score(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.check(tokens)?;
        let mut left = tokens;
        while !left.is_empty() {
            let n = left.len().min(self.prefill.most_tokens);
            let (now, later) = left.split_at(n);
            self.enter(now);
            let shape = if now.len() == 1 { &self.decode } else { &self.prefill };
            self.device.replay(shape.program, &shape.symbols)?;
            self.last = now.len();
            self.position += now.len();
            self.rows().chunks_exact(self.n_vocab).for_each(&mut *each);
            left = later;
        }
        Ok(())
    }

    /// As [`Session::feed`] of one token, and how long each step of its plan took.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn profile(&mut self, token: u32) -> Result<Vec<Duration>, Error> {
        self.check(&[token])?;
        self.enter(&[token]);
        let times = self.device.profile(self.decode.program, &self.decode.symbols)?;
        self.last = 1;
        self.position += 1;
        Ok(times)
    }

    /// The logits of what may follow the text; nothing that means anything before the first token.
    pub fn logits(&self) -> &[f32] {
        let rows = self.rows();
        &rows[rows.len() - self.n_vocab..]
    }

    /// Forgets all tokens from a position on; those before it stay as they are.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(refused("tokens", "there are none, at least one is needed".to_owned()));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.n_vocab) {
            let what = format!("there is no token {token}, the model has {}", self.n_vocab);
            return Err(refused("tokens", what));
        }
        let (position, context) = (self.position, self.context);
        if tokens.len() > context - position {
            let what = format!(
                "{} more do not fit: the context holds {context} tokens, and {position} are taken",
                tokens.len()
            );
            return Err(refused("tokens", what));
        }
        Ok(())
    }

    /// Tells a program its tokens and where they stand.
    fn enter(&mut self, tokens: &[u32]) {
        let position = self.position as i64;
        let shape = if tokens.len() == 1 { &mut self.decode } else { &mut self.prefill };
        shape.position_idx.into_iter().for_each(|idx| shape.symbols[idx] = position);
        shape.tokens_idx.into_iter().for_each(|idx| shape.symbols[idx] = tokens.len() as i64);
        let input = self.device.input(shape.program, 0);
        for (to, token) in input.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
            *to = (*token as i32).to_le_bytes();
        }
    }

    fn shape(&self, n_tokens: usize) -> &Shape {
        if n_tokens == 1 { &self.decode } else { &self.prefill }
    }

    /// All logits that the last replay gave.
    fn rows(&self) -> &[f32] {
        let all: &[f32] = bytemuck::cast_slice(self.device.output(self.shape(self.last).program, 0));
        let n_rows = if all.len() > self.n_vocab { self.last } else { 1 };
        &all[..n_rows * self.n_vocab]
    }
}

impl Shape {
    fn load(device: &mut dyn Device, plan: Plan, weights: &Arc<dyn Weights>) -> Result<Self, Error> {
        let tokens = only(&plan, &Place::Input, "input")?;
        only(&plan, &Place::Output, "output")?;
        let most_tokens = tokens.shape.max_len();
        let symbols = plan.symbols();
        let idx = |name: &str| symbols.iter().position(|symbol| symbol.name.as_str() == name);
        let (position_idx, tokens_idx) = (idx(POSITION), idx(TOKENS));
        let symbols = symbols.iter().map(|symbol| symbol.min).collect();
        let program = device.load(&plan, weights)?;
        Ok(Self { program, plan, symbols, position_idx, tokens_idx, most_tokens })
    }
}

/// The one buffer of a plan that lies in a place.
fn only<'p>(plan: &'p Plan, place: &Place, what: &str) -> Result<&'p BufferSlot, Error> {
    let mut found = plan.buffers.values().filter(|slot| slot.place == *place);
    match (found.next(), found.next()) {
        (Some(slot), None) => Ok(slot),
        _ => Err(refused("a program", format!("a session needs plans with one {what}"))),
    }
}

fn refused(place: &str, what: String) -> Error {
    CompilerError::Input { complaints: vec![Complaint::new(place, what)] }.into()
}
