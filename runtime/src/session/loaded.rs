//! A program of an engine, loaded on its device.
//!
//! In: a plan. Out: what an engine needs to replay it: which input is which, which symbols are the number of tokens and
//! of pages, and which outputs there are.

use std::iter;
use std::sync::Arc;

use fusebox_compiler::schedule::{BufferSlot, Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, ProgramId, Weights};
use crate::error::Error;
use crate::session::names::{PAGES, ROWS, TOKENS, block_of, inputs, is_carried, refused};

/// A plan and the program that a device made of it.
pub(super) struct Loaded {
    pub(super) program: ProgramId,
    pub(super) plan: Plan,
    /// A value for each symbol of the plan.
    pub(super) symbols: Vec<i64>,
    /// What each input is, in the order of the plan's buffers.
    inputs: Vec<Input>,
    tokens_idx: Option<usize>,
    pages_idx: Option<usize>,
    /// The format of tokens or vectors, and the bytes of one.
    format: Format,
    row_bytes: usize,
}

/// What an input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Tokens, or vectors in their place.
    Rows,
    /// The kind of each token.
    Kinds,
    /// The position of each token.
    Positions,
    /// How many tokens of its sequence are before each token, or before the first of a run.
    Slot,
    /// The page that each token's rows go to.
    Page,
    /// The row in that page.
    Row,
    /// The pages of each sequence.
    Table,
    /// The window page that each token's rows go to.
    WindowPage,
    /// The window pages of each sequence.
    WindowTable,
    /// Where the states of each sequence lie that go from token to token.
    Sequence,
    /// Factors of each sequence on what adapters add.
    Scales,
}

/// An output that says how much attention the rows of a block get.
pub(super) struct Attention {
    /// The block.
    pub(super) block: String,
    /// How many heads have rows of their own; one where all share them. Each row has a number of each, side by side.
    pub(super) n_heads: usize,
}

/// Tokens or vectors as they go to a program.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) format: Format,
    pub(super) bytes: &'a [u8],
    /// The kind of each; where there are none, all are of the first.
    pub(super) kinds: &'a [u32],
}

/// Which outputs of a plan are which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outputs {
    /// Logits or hidden vectors.
    pub(super) rows: usize,
    /// The tokens of the best logits.
    pub(super) ids: Option<usize>,
}

impl<'a> Rows<'a> {
    pub(super) fn of_tokens(tokens: &'a [u32], kinds: &'a [u32]) -> Self {
        Self { format: Format::I32, bytes: bytemuck::cast_slice(tokens), kinds }
    }

    /// `n` of them, from the `first` on, each of `row_bytes`.
    pub(super) fn part(self, first: usize, n: usize, row_bytes: usize) -> Self {
        let kinds = self.kinds.get(first..first + n).unwrap_or_default();
        Self { bytes: &self.bytes[first * row_bytes..(first + n) * row_bytes], kinds, ..self }
    }

    /// The kind of each of `n`.
    pub(super) fn kinds(self, n: usize) -> impl Iterator<Item = i32> {
        self.kinds.iter().map(|kind| *kind as i32).chain(iter::repeat(0)).take(n)
    }

    /// What they are, for people.
    pub(super) fn name(self) -> &'static str {
        if self.format == Format::I32 { "tokens" } else { "vectors" }
    }
}

impl Input {
    fn named(name: &str) -> Option<Self> {
        match name {
            inputs::TOKENS | inputs::VECTORS => Some(Self::Rows),
            inputs::KINDS => Some(Self::Kinds),
            inputs::POSITIONS => Some(Self::Positions),
            inputs::SLOT => Some(Self::Slot),
            inputs::PAGE => Some(Self::Page),
            inputs::ROW => Some(Self::Row),
            inputs::TABLE => Some(Self::Table),
            inputs::WINDOW_PAGE => Some(Self::WindowPage),
            inputs::WINDOW_TABLE => Some(Self::WindowTable),
            inputs::SEQUENCE => Some(Self::Sequence),
            inputs::SCALES => Some(Self::Scales),
            _ => None,
        }
    }
}

impl Loaded {
    /// Loads a plan.
    pub(super) fn new(
        device: &mut dyn Device,
        plan: Plan,
        weights: &Arc<dyn Weights>,
    ) -> Result<Self, Error> {
        let slots: Vec<&BufferSlot> = placed(&plan, &Place::Input).collect();
        let input = |slot: &&BufferSlot| {
            Input::named(&slot.name)
                .ok_or_else(|| refused("a program", format!("an engine has no input named {}", slot.name)))
        };
        let inputs: Vec<Input> = slots.iter().map(input).collect::<Result<_, _>>()?;
        let rows = inputs.iter().position(|input| *input == Input::Rows).map(|number| slots[number]);
        let rows =
            rows.ok_or_else(|| refused("a program", "an engine needs plans that take tokens".to_owned()))?;
        let most_tokens = rows.shape.iter().next().map_or(1, |(_, size)| size.most().max(1) as usize);
        let (format, row_bytes) = (rows.format, rows.bytes / most_tokens);
        let symbols = plan.symbols();
        let idx = |name: &str| symbols.iter().position(|symbol| symbol.name.as_str() == name);
        let (tokens_idx, pages_idx) = (idx(TOKENS), idx(PAGES));
        let symbols = symbols.iter().map(|symbol| symbol.min).collect();
        let program = device.load(&plan, weights)?;
        Ok(Self { program, plan, symbols, inputs, tokens_idx, pages_idx, format, row_bytes })
    }

    /// Sets the symbols of the next replay, and has every input written.
    pub(super) fn bind(
        &mut self,
        device: &mut dyn Device,
        n_tokens: usize,
        n_pages: usize,
        write: impl Fn(Input, &mut [u8]),
    ) {
        for (idx, value) in [(self.tokens_idx, n_tokens), (self.pages_idx, n_pages)] {
            if let Some(idx) = idx {
                self.symbols[idx] = value as i64;
            }
        }
        for (number, input) in self.inputs.iter().enumerate() {
            write(*input, device.input(self.program, number));
        }
    }

    /// How many tokens or vectors these are.
    pub(super) fn n_rows(&self, rows: Rows<'_>) -> usize {
        rows.bytes.len() / self.row_bytes
    }

    /// Refuses what is not what the program starts from; says how many tokens or vectors there are.
    pub(super) fn check(&self, rows: Rows<'_>) -> Result<usize, Error> {
        let what = rows.name();
        if self.format != rows.format {
            return Err(refused(what, "this session starts from something else".to_owned()));
        }
        if !rows.bytes.len().is_multiple_of(self.row_bytes) {
            let (width, found) = (self.row_bytes / size_of::<f32>(), rows.bytes.len() / size_of::<f32>());
            return Err(refused(what, format!("expected whole vectors of {width} numbers, found {found}")));
        }
        match self.n_rows(rows) {
            0 => Err(refused(what, "there are none, at least one is needed".to_owned())),
            n => Ok(n),
        }
    }

    /// How many factors on adapters a sequence has, of a program that takes one token.
    pub(super) fn n_scales(&self) -> usize {
        let slots = placed(&self.plan, &Place::Input);
        slots.filter(|slot| *slot.name == *inputs::SCALES).map(|slot| slot.shape.max_len()).sum()
    }

    /// The outputs of a program that returns attention.
    pub(super) fn attention(&self) -> Vec<Attention> {
        let own = |slot: &BufferSlot| {
            let sizes = slot.shape.iter().map(|(_, size)| size.most().max(0) as usize);
            let is_by_row = slot.shape.axes().nth(1).is_some_and(|axis| axis.as_str() == ROWS);
            Attention {
                block: block_of(&slot.name).to_owned(),
                n_heads: if is_by_row { sizes.skip(2).product() } else { 0 },
            }
        };
        placed(&self.plan, &Place::Output).map(own).collect()
    }

    /// The states that go from token to token, and the bytes of a sequence of each.
    pub(super) fn carried(&self, n_sequences: usize) -> impl Iterator<Item = (&str, usize)> {
        let states = placed(&self.plan, &Place::State).filter(|slot| is_carried(&slot.name));
        states.map(move |slot| (&*slot.name, slot.bytes / n_sequences))
    }
}

impl Outputs {
    /// The outputs of a plan.
    pub(super) fn of(plan: &Plan) -> Result<Self, Error> {
        let formats: Vec<Format> = placed(plan, &Place::Output).map(|slot| slot.format).collect();
        match formats[..] {
            [Format::F32] => Ok(Self { rows: 0, ids: None }),
            [Format::F32, Format::I32] => Ok(Self { rows: 0, ids: Some(1) }),
            [Format::I32, Format::F32] => Ok(Self { rows: 1, ids: Some(0) }),
            _ => {
                let what = "a session needs plans with rows, and at most tokens beside them";
                Err(refused("a program", what.to_owned()))
            }
        }
    }

    /// How many numbers a row has, of a plan that takes one token.
    pub(super) fn width(self, plan: &Plan) -> usize {
        placed(plan, &Place::Output).nth(self.rows).map_or(0, |slot| slot.shape.max_len())
    }
}

/// The buffers of a plan that lie in a place, in order.
fn placed<'p>(plan: &'p Plan, wanted: &'p Place) -> impl Iterator<Item = &'p BufferSlot> {
    plan.buffers.values().filter(move |slot| slot.place == *wanted)
}
