//! Texts in progress: programs for one token, for a few and for many, replayed over the same states.
//!
//! In: token numbers. Out: logits, or the best of them. The session knows at which position each text stands; every
//! program reads it from a symbol, so no token ever compiles anything.
//! Most sessions have one text. Of several, one is at hand, and a program of its own goes on with all of them at once,
//! reading each weight once.
//! Two names are agreed on with the makers of graphs: the symbol [`POSITION`] is where the first token of a replay
//! stands, [`TOKENS`] how many there are; with several texts, [`position_of`] and [`state_of`] say what belongs to
//! which. A program has one input, tokens or vectors in their place, and one output, logits or vectors; where it
//! chooses the best logits by itself, it has the tokens of these as well, and nothing else comes back from its device.
//! The program for one token is loaded from the start, and a step with it allocates nothing. Those for more tokens are
//! compiled and loaded when tokens come that are as many, or when [`Session::prepare`] is told of them.
//! `classes.rs` says which program takes how many tokens, `shape.rs` is a program that is loaded, `cache.rs` keeps
//! programs between processes, `device/` runs them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::error::{Complaint, Error as CompilerError};
use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::program::Program;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, Footprint, ProgramId, Weights};
use crate::error::Error;

pub mod cache;
pub mod classes;
mod shape;

use classes::Programs;
use shape::Shape;

/// The symbol for the position of a replay's first token.
pub const POSITION: &str = "P";
/// The symbol for how many tokens a replay takes, where that may vary.
pub const TOKENS: &str = "T";

/// The position of one of several texts, as a symbol.
pub fn position_of(text: usize) -> String {
    format!("{POSITION}{text}")
}

/// A state of one of several texts.
pub fn state_of(state: &str, text: usize) -> String {
    format!("{state}.{text}")
}

/// Texts in progress.
pub struct Session {
    device: Box<dyn Device>,
    weights: Arc<dyn Weights>,
    programs: Programs,
    /// What takes tokens of the text at hand, for each class of token numbers, once it was wanted; the first takes one.
    shapes: Vec<Option<Shape>>,
    /// Takes one token of each text.
    together: Option<Shape>,
    texts: Vec<Text>,
    /// The text at hand.
    text: usize,
    context: usize,
    n_vocab: usize,
    /// How many numbers a row of the output has.
    width: usize,
    /// The numbers of the outputs: rows, and the tokens of the best logits.
    outputs: (usize, Option<usize>),
}

/// Where a text stands.
#[derive(Clone)]
struct Text {
    /// How many tokens it has.
    position: usize,
    /// The rows that its last replay gave, and where they lie.
    output: ProgramId,
    rows: Range<usize>,
}

impl Session {
    /// A session at the start of a text of at most `context` tokens, each one of `n_vocab`; or of several texts, with
    /// the program that takes one token of each of them, and their number.
    ///
    /// # Errors
    /// Where a program does not compile or is not of this form, or the device refuses it.
    pub fn new(
        device: Box<dyn Device>,
        mut programs: Programs,
        together: Option<(Program, usize)>,
        weights: &Arc<dyn Weights>,
        context: usize,
        n_vocab: usize,
    ) -> Result<Self, Error> {
        let decode = &programs.program(0)?.plan;
        let outputs = outputs(decode)?;
        let width = outputs_of(decode)[outputs.0].shape.max_len();
        let n_texts = together.as_ref().map_or(1, |(_, n_texts)| *n_texts);
        let text = Text { position: 0, output: ProgramId::default(), rows: 0..1 };
        let shapes = programs.classes().iter().map(|_| None).collect();
        let mut session = Self {
            device,
            weights: Arc::clone(weights),
            programs,
            shapes,
            together: None,
            texts: vec![text; n_texts],
            text: 0,
            context,
            n_vocab,
            width,
            outputs,
        };
        // Memory of a device's own is scarce: what needs most of it comes first, and others find room in its arena.
        if session.device.free().is_some() {
            session.load(session.shapes.len() - 1)?;
        }
        if let Some((program, _)) = together {
            session.check_outputs(&program.plan)?;
            let mut shape = Shape::new(program.plan, 1)?;
            shape.load(&mut *session.device, weights, 0, false)?;
            session.together = Some(shape);
        }
        for text in 0..n_texts {
            session.text = text;
            session.texts[text].output = session.load(0)?;
        }
        session.text = 0;
        Ok(session)
    }

    /// The class of so many tokens of one replay.
    fn class_of(&self, n_tokens: usize) -> usize {
        let classes = self.programs.classes();
        classes.iter().position(|class| n_tokens <= class.most).unwrap_or(classes.len() - 1)
    }

    /// The most tokens of a replay.
    fn most_tokens(&self) -> usize {
        self.programs.classes().last().map_or(1, |class| class.most)
    }

    /// The program of a class with the states of the text at hand, compiled and loaded where that was not done before.
    fn load(&mut self, class: usize) -> Result<ProgramId, Error> {
        if self.shapes[class].is_none() {
            let plan = self.programs.take(class)?.plan;
            self.check_outputs(&plan)?;
            self.shapes[class] = Some(Shape::new(plan, self.texts.len())?);
        }
        let Self { device, weights, shapes, texts, text, .. } = self;
        let shape = shapes[class].as_mut().expect("it was just made");
        shape.load(&mut **device, weights, *text, texts.len() > 1)
    }

    /// Whether a plan gives what all others of the session give.
    fn check_outputs(&self, plan: &Plan) -> Result<(), Error> {
        if outputs(plan)? != self.outputs {
            return Err(refused("a program", "another one has other outputs".to_owned()));
        }
        Ok(())
    }

    fn shape(&self, class: usize) -> &Shape {
        loaded(&self.shapes, class)
    }

    /// Makes ready for so many tokens at once: compiles and loads the programs that they need.
    ///
    /// # Errors
    /// Where a program does not compile, or the device refuses it.
    pub fn prepare(&mut self, n_tokens: usize) -> Result<(), Error> {
        let most = self.most_tokens();
        for n_now in [n_tokens.min(most), n_tokens % most] {
            if n_now > 0 {
                self.load(self.class_of(n_now))?;
            }
        }
        Ok(())
    }

    /// How many texts there are.
    pub fn n_texts(&self) -> usize {
        self.texts.len()
    }

    /// Takes another text to hand: all that is said of the text is said of this one from now on.
    ///
    /// # Errors
    /// Where there is no such text.
    pub fn turn_to(&mut self, text: usize) -> Result<(), Error> {
        let n_texts = self.n_texts();
        if text >= n_texts {
            return Err(refused("texts", format!("there is no text {text}, the session has {n_texts}")));
        }
        self.text = text;
        Ok(())
    }

    /// How many tokens the text has.
    pub fn position(&self) -> usize {
        self.texts[self.text].position
    }

    /// How many tokens it may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How many different tokens there are.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The plan that takes one token.
    pub fn plan(&self) -> &Plan {
        &self.shape(0).plan
    }

    /// The plan that takes one token of each text; with one text, the plan that takes one token.
    pub fn plan_of_each(&self) -> &Plan {
        self.together.as_ref().map_or_else(|| self.plan(), |together| &together.plan)
    }

    /// The plan that takes so many tokens in one replay.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn plan_of(&mut self, n_tokens: usize) -> Result<&Plan, Error> {
        let class = self.class_of(n_tokens);
        self.load(class)?;
        Ok(&self.shape(class).plan)
    }

    /// The replays that so many tokens at once become: how many tokens each takes.
    pub fn pieces(&self, n_tokens: usize) -> impl Iterator<Item = usize> + use<> {
        let most = self.most_tokens();
        (0..n_tokens).step_by(most).map(move |first| most.min(n_tokens - first))
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
        let width = self.shape(0).row_bytes / size_of::<f32>();
        if !vectors.len().is_multiple_of(width) {
            let what = format!("expected whole vectors of {width} numbers, found {}", vectors.len());
            return Err(refused("vectors", what));
        }
        let n = vectors.len() / width;
        self.check(Format::F32, "vectors", n)?;
        self.append(bytemuck::cast_slice(vectors), each)
    }

    /// Appends a token to each text, but for those that rest; afterwards [`Session::logits`] has what may follow each.
    /// Every weight is read once for all texts.
    ///
    /// # Errors
    /// Where there is not one token or none for each text, or else as [`Session::feed`]; then nothing was appended.
    pub fn feed_each(&mut self, tokens: &[Option<u32>]) -> Result<(), Error> {
        if tokens.len() != self.n_texts() {
            let texts = counted(self.n_texts(), "text");
            let what = format!("expected one for each of {texts}, found {}", tokens.len());
            return Err(refused("tokens", what));
        }
        let Some(together) = &mut self.together else {
            return tokens[0].map_or(Ok(()), |token| self.feed(&[token]).map(|_| ()));
        };
        for (text, token) in self.texts.iter().zip(tokens).filter_map(|(text, token)| Some((text, (*token)?)))
        {
            check_tokens(&[token], self.n_vocab)?;
            together.check(Format::I32, "tokens", 1, (text.position, self.context))?;
        }
        let program = together.load(&mut *self.device, &self.weights, 0, false)?;
        // A text that rests goes on with any token, and forgets it.
        let input = self.device.input(program, 0).chunks_exact_mut(size_of::<u32>());
        input.zip(tokens).for_each(|(to, token)| to.copy_from_slice(&token.unwrap_or(0).to_le_bytes()));
        together.stand(self.texts.iter().map(|text| text.position), 1);
        self.device.replay(program, &together.symbols)?;
        for (number, (text, token)) in self.texts.iter_mut().zip(tokens).enumerate() {
            if token.is_some() {
                let position = text.position + 1;
                *text = Text { position, output: program, rows: number..number + 1 };
            }
        }
        Ok(())
    }

    /// Replays the programs over the rows of an input.
    fn append(&mut self, rows: &[u8], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let (mut left, row_bytes) = (rows, self.shape(0).row_bytes);
        self.prepare(rows.len() / row_bytes)?;
        while !left.is_empty() {
            let n_now = (left.len() / row_bytes).min(self.most_tokens());
            let (now, later) = left.split_at(n_now * row_bytes);
            let (program, class) = self.enter(now, n_now)?;
            self.device.replay(program, &loaded(&self.shapes, class).symbols)?;
            self.pass(program, n_now);
            self.rows().chunks_exact(self.width).for_each(&mut *each);
            left = later;
        }
        Ok(())
    }

    /// As [`Session::feed`] of tokens that one replay takes, and how long each step of its plan took.
    ///
    /// # Errors
    /// As [`Session::feed`], and where the tokens are too many for a replay.
    pub fn profile(&mut self, tokens: &[u32]) -> Result<Vec<Duration>, Error> {
        self.check_tokens(tokens)?;
        let (n, most) = (tokens.len(), self.most_tokens());
        if n > most {
            return Err(refused("tokens", format!("a replay takes {most} at most, found {n}")));
        }
        let (program, class) = self.enter(bytemuck::cast_slice(tokens), n)?;
        let times = self.device.profile(program, &loaded(&self.shapes, class).symbols)?;
        self.pass(program, n);
        Ok(times)
    }

    /// The last row of the text's last replay: the logits of what may follow the text, or a vector. It means nothing
    /// before the first token.
    pub fn logits(&self) -> &[f32] {
        let rows = self.rows();
        &rows[rows.len() - self.width..]
    }

    /// The tokens that the logits are of, largest first, where the programs choose the best.
    pub fn best(&self) -> Option<&[u32]> {
        let (_, ids) = self.outputs;
        Some(bytemuck::cast_slice(self.device.output(self.texts[self.text].output, ids?)))
    }

    /// Forgets all tokens from a position on; those before it stay as they are. What the session holds is given back
    /// when it is dropped.
    pub fn truncate(&mut self, position: usize) {
        let text = &mut self.texts[self.text];
        text.position = text.position.min(position);
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.n_vocab)?;
        self.check(Format::I32, "tokens", tokens.len())
    }

    fn check(&self, format: Format, what: &str, n: usize) -> Result<(), Error> {
        self.shape(0).check(format, what, n, (self.position(), self.context))
    }

    /// Tells the program of so many tokens what it starts from, and where that stands.
    fn enter(&mut self, rows: &[u8], n: usize) -> Result<(ProgramId, usize), Error> {
        let (position, class) = (self.position(), self.class_of(n));
        let program = self.load(class)?;
        let shape = self.shapes[class].as_mut().expect("it was just loaded");
        shape.stand([position], n);
        self.device.input(program, 0)[..rows.len()].copy_from_slice(rows);
        Ok((program, class))
    }

    /// Takes note that a program has taken so many tokens.
    fn pass(&mut self, program: ProgramId, n: usize) {
        let is_each = self.device.output(program, self.outputs.0).len() > self.width * size_of::<f32>();
        let position = self.position() + n;
        self.texts[self.text] = Text { position, output: program, rows: 0..if is_each { n } else { 1 } };
    }

    /// All rows that the text's last replay gave.
    fn rows(&self) -> &[f32] {
        let Text { output, rows, .. } = &self.texts[self.text];
        let all: &[f32] = bytemuck::cast_slice(self.device.output(*output, self.outputs.0));
        &all[rows.start * self.width..rows.end * self.width]
    }
}

fn loaded(shapes: &[Option<Shape>], class: usize) -> &Shape {
    shapes[class].as_ref().expect("a program is loaded before it is used")
}

fn check_tokens(tokens: &[u32], n_vocab: usize) -> Result<(), Error> {
    let Some(token) = tokens.iter().find(|token| **token as usize >= n_vocab) else { return Ok(()) };
    Err(refused("tokens", format!("there is no token {token}, the model has {n_vocab}")))
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
