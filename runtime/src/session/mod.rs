//! A text in progress: programs for one token and for many, replayed over the same states.
//!
//! In: token numbers. Out: logits, or the best of them. The session knows at which position the text stands; every
//! program reads it from a symbol, so no token ever compiles anything.
//! Two names are agreed on with the makers of graphs: the symbol [`POSITION`] is where the first token of a replay
//! stands, [`TOKENS`] how many there are. A program has one input, tokens or vectors in their place, and one output,
//! logits or vectors; where it chooses the best logits by itself, it has the tokens of these as well, and nothing else
//! comes back from its device.
//! A step allocates nothing: `cache.rs` keeps programs between processes, `device/` runs them.

use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::error::{Complaint, Error as CompilerError};
use fusebox_compiler::program::Program;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan};
use fusebox_compiler::tensor::quant::Format;

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
    /// How many numbers a row of the output has.
    width: usize,
    /// The numbers of the outputs: rows, and the tokens of the best logits.
    outputs: (usize, Option<usize>),
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
    /// What the input is made of, and how much of it belongs to a token.
    format: Format,
    row_bytes: usize,
}

impl Session {
    /// A session at the start of a text of at most `context` tokens, each one of `n_vocab`.
    ///
    /// # Errors
    /// Where a program is not of this form, or the device refuses it.
    pub fn new(
        mut device: Box<dyn Device>,
        [decode, prefill]: [Program; 2],
        weights: &Arc<dyn Weights>,
        context: usize,
        n_vocab: usize,
    ) -> Result<Self, Error> {
        let (rows, ids) = outputs(&decode.plan)?;
        if outputs(&prefill.plan)? != (rows, ids) {
            return Err(refused("a program", "the other one has other outputs".to_owned()));
        }
        let width = outputs_of(&decode.plan)[rows].shape.max_len();
        let outputs = (rows, ids);
        // What needs more memory goes first, so that the other one finds it there.
        let prefill = Shape::load(&mut *device, prefill.plan, weights)?;
        let decode = Shape::load(&mut *device, decode.plan, weights)?;
        Ok(Self { device, decode, prefill, position: 0, last: 1, context, n_vocab, width, outputs })
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
    /// Where there are no tokens, a token is none of the model's, the programs start from vectors, or the text would
    /// outgrow the context; then nothing was appended.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.score(tokens, &mut |_| {})?;
        Ok(self.logits())
    }

    /// Appends tokens, and hands on every row that its replays give: one for each token where the programs score all
    /// tokens or end with vectors, else one for the last of each replay.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn score(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.check_tokens(tokens)?;
        self.append(bytemuck::cast_slice(tokens), each)
    }

    /// Appends vectors in place of those of tokens, one after another; otherwise as [`Session::score`].
    ///
    /// # Errors
    /// As [`Session::feed`], and where the numbers are no whole vectors.
    pub fn score_vectors(&mut self, vectors: &[f32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let width = self.decode.row_bytes / size_of::<f32>();
        if !vectors.len().is_multiple_of(width) {
            let what = format!("expected whole vectors of {width} numbers, found {} numbers", vectors.len());
            return Err(refused("vectors", what));
        }
        let n = vectors.len() / width;
        self.check(Format::F32, "vectors", n)?;
        self.append(bytemuck::cast_slice(vectors), each)
    }

    /// Replays the programs over the rows of an input.
    fn append(&mut self, rows: &[u8], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let (mut left, row_bytes) = (rows, self.decode.row_bytes);
        while !left.is_empty() {
            let n_now = (left.len() / row_bytes).min(self.prefill.most_tokens);
            let (now, later) = left.split_at(n_now * row_bytes);
            self.enter(now, n_now);
            let shape = if n_now == 1 { &self.decode } else { &self.prefill };
            self.device.replay(shape.program, &shape.symbols)?;
            self.last = n_now;
            self.position += n_now;
            self.rows().chunks_exact(self.width).for_each(&mut *each);
            left = later;
        }
        Ok(())
    }

    /// As [`Session::feed`] of one token, and how long each step of its plan took.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn profile(&mut self, token: u32) -> Result<Vec<Duration>, Error> {
        self.check_tokens(&[token])?;
        self.enter(bytemuck::cast_slice(&[token]), 1);
        let times = self.device.profile(self.decode.program, &self.decode.symbols)?;
        self.last = 1;
        self.position += 1;
        Ok(times)
    }

    /// The last row of the last replay: the logits of what may follow the text, or a vector. It means nothing before
    /// the first token.
    pub fn logits(&self) -> &[f32] {
        let rows = self.rows();
        &rows[rows.len() - self.width..]
    }

    /// The tokens that the logits are of, largest first, where the programs choose the best.
    pub fn best(&self) -> Option<&[u32]> {
        let (_, ids) = self.outputs;
        Some(bytemuck::cast_slice(self.device.output(self.shape(self.last).program, ids?)))
    }

    /// Forgets all tokens from a position on; those before it stay as they are.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Forgets all tokens. What the session holds is given back when it is dropped.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.n_vocab) {
            let what = format!("there is no token {token}, the model has {}", self.n_vocab);
            return Err(refused("tokens", what));
        }
        self.check(Format::I32, "tokens", tokens.len())
    }

    fn check(&self, format: Format, what: &str, n: usize) -> Result<(), Error> {
        if n == 0 {
            return Err(refused(what, "there are none, at least one is needed".to_owned()));
        }
        if self.decode.format != format {
            return Err(refused(what, "this session starts from something else".to_owned()));
        }
        let (position, context) = (self.position, self.context);
        if n > context - position {
            let complaint =
                format!("{n} more do not fit: the context holds {context} tokens, and {position} are taken");
            return Err(refused(what, complaint));
        }
        Ok(())
    }

    /// Tells a program what it starts from, and where that stands.
    fn enter(&mut self, rows: &[u8], n: usize) {
        let position = self.position as i64;
        let shape = if n == 1 { &mut self.decode } else { &mut self.prefill };
        shape.position_idx.into_iter().for_each(|idx| shape.symbols[idx] = position);
        shape.tokens_idx.into_iter().for_each(|idx| shape.symbols[idx] = n as i64);
        self.device.input(shape.program, 0)[..rows.len()].copy_from_slice(rows);
    }

    fn shape(&self, n_tokens: usize) -> &Shape {
        if n_tokens == 1 { &self.decode } else { &self.prefill }
    }

    /// All rows that the last replay gave.
    fn rows(&self) -> &[f32] {
        let all: &[f32] =
            bytemuck::cast_slice(self.device.output(self.shape(self.last).program, self.outputs.0));
        let n_rows = if all.len() > self.width { self.last } else { 1 };
        &all[..n_rows * self.width]
    }
}

impl Shape {
    fn load(device: &mut dyn Device, plan: Plan, weights: &Arc<dyn Weights>) -> Result<Self, Error> {
        let tokens = input(&plan)?;
        let most_tokens = tokens.shape.iter().next().map_or(1, |(_, size)| size.most().max(1) as usize);
        let (format, row_bytes) = (tokens.format, tokens.bytes / most_tokens);
        let symbols = plan.symbols();
        let idx = |name: &str| symbols.iter().position(|symbol| symbol.name.as_str() == name);
        let (position_idx, tokens_idx) = (idx(POSITION), idx(TOKENS));
        let symbols = symbols.iter().map(|symbol| symbol.min).collect();
        let program = device.load(&plan, weights)?;
        Ok(Self { program, plan, symbols, position_idx, tokens_idx, most_tokens, format, row_bytes })
    }
}

/// What a plan starts from.
fn input(plan: &Plan) -> Result<&BufferSlot, Error> {
    let mut found = plan.buffers.values().filter(|slot| slot.place == Place::Input);
    match (found.next(), found.next()) {
        (Some(slot), None) => Ok(slot),
        _ => Err(refused("a program", "a session needs plans with one input".to_owned())),
    }
}

fn outputs_of(plan: &Plan) -> Vec<&BufferSlot> {
    plan.buffers.values().filter(|slot| slot.place == Place::Output).collect()
}

/// Which of a plan's outputs are its rows, and which the tokens of the best logits, if it has such.
fn outputs(plan: &Plan) -> Result<(usize, Option<usize>), Error> {
    let formats: Vec<Format> = outputs_of(plan).iter().map(|slot| slot.format).collect();
    match formats[..] {
        [Format::F32] => Ok((0, None)),
        [Format::F32, Format::I32] => Ok((0, Some(1))),
        [Format::I32, Format::F32] => Ok((1, Some(0))),
        _ => Err(refused(
            "a program",
            "a session needs plans with rows, and at most tokens beside them".to_owned(),
        )),
    }
}

fn refused(place: &str, what: String) -> Error {
    CompilerError::Input { complaints: vec![Complaint::new(place, what)] }.into()
}
