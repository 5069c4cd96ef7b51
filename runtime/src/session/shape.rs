//! A program of a session, loaded: for one token, for many, or for one of each text.
//!
//! In: a plan with one input. Out: what a session needs to replay it: which symbols say where the
//! tokens stand and how many there are, and how large a row of the input is.
//! Where a session has several texts, a program is loaded for each that wants it: only the states differ.

use std::sync::Arc;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, ProgramId, Weights};
use crate::error::Error;
use crate::session::{POSITION, TOKENS, input, position_of, refused, state_of};

/// A program for a class of token numbers, loaded.
pub(super) struct Shape {
    /// For each text, the program with its states, once that is loaded. One that goes on with all texts stands alone.
    programs: Vec<Option<ProgramId>>,
    pub(super) plan: Plan,
    /// A value for each symbol of the plan.
    pub(super) symbols: Vec<i64>,
    /// Which symbols are positions: of the text at hand, or of every text.
    positions: Vec<Option<usize>>,
    tokens_idx: Option<usize>,
    /// What the input is made of, and how much of it belongs to a token.
    format: Format,
    pub(super) row_bytes: usize,
}

impl Shape {
    /// A plan for each of so many texts, loaded for none of them yet.
    pub(super) fn new(plan: Plan, n_texts: usize) -> Result<Self, Error> {
        let tokens = input(&plan)?;
        let most_tokens = tokens.shape.iter().next().map_or(1, |(_, size)| size.most().max(1) as usize);
        let (format, row_bytes) = (tokens.format, tokens.bytes / most_tokens);
        let symbols = plan.symbols();
        let idx = |name: &str| symbols.iter().position(|symbol| symbol.name.as_str() == name);
        let of_each = (0..most_tokens).map(|text| idx(&position_of(text)));
        let positions = if let Some(one) = idx(POSITION) { vec![Some(one)] } else { of_each.collect() };
        let tokens_idx = idx(TOKENS);
        let symbols = symbols.iter().map(|symbol| symbol.min).collect();
        let programs = vec![None; n_texts];
        Ok(Self { programs, plan, symbols, positions, tokens_idx, format, row_bytes })
    }

    /// Loads the plan with the states of one of several texts, or as it is, unless that was done before.
    pub(super) fn load(
        &mut self,
        device: &mut dyn Device,
        weights: &Arc<dyn Weights>,
        text: usize,
        has_several: bool,
    ) -> Result<ProgramId, Error> {
        if let Some(program) = self.programs[text] {
            return Ok(program);
        }
        let program = if has_several {
            device.load(&of_text(&self.plan, text), weights)?
        } else {
            device.load(&self.plan, weights)?
        };
        self.programs[text] = Some(program);
        Ok(program)
    }

    /// Tells where the tokens stand, and how many there are.
    pub(super) fn stand(&mut self, positions: impl IntoIterator<Item = usize>, n_tokens: usize) {
        for (idx, position) in self.positions.iter().zip(positions) {
            if let Some(idx) = idx {
                self.symbols[*idx] = position as i64;
            }
        }
        if let Some(idx) = self.tokens_idx {
            self.symbols[idx] = n_tokens as i64;
        }
    }

    /// Whether so many rows of a kind can be appended to a text at this position.
    pub(super) fn check(
        &self,
        format: Format,
        what: &str,
        n: usize,
        (position, context): (usize, usize),
    ) -> Result<(), Error> {
        if n == 0 {
            return Err(refused(what, "there are none, at least one is needed".to_owned()));
        }
        if self.format != format {
            return Err(refused(what, "this session starts from something else".to_owned()));
        }
        if n > context - position {
            let held = counted(context, "token");
            return Err(refused(
                what,
                format!("no room for {n} behind {position}: the context holds {held}"),
            ));
        }
        Ok(())
    }
}

/// A plan with the states of one of several texts.
fn of_text(plan: &Plan, text: usize) -> Plan {
    let mut plan = plan.clone();
    for slot in plan.buffers.values_mut().filter(|slot| slot.place == Place::State) {
        slot.name = state_of(&slot.name, text).into();
    }
    plan
}
