//! A program of a session, loaded: for one token, for many, or for one of each text.
//!
//! In: a plan with one input. Out: what a session needs to replay it: which symbols say where the
//! tokens stand and how many there are, and how large a row of the input is.
//! Where a session has several texts, a program is loaded once for each: only the states differ.

use std::sync::Arc;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, ProgramId, Weights};
use crate::error::Error;
use crate::session::{POSITION, TOKENS, input, position_of, refused, state_of};

/// A program for a class of token numbers, loaded.
pub(super) struct Shape {
    /// For each text that it is loaded for.
    programs: Vec<ProgramId>,
    pub(super) plan: Plan,
    /// A value for each symbol of the plan.
    pub(super) symbols: Vec<i64>,
    /// Which symbols are positions: of the text at hand, or of every text.
    positions: Vec<Option<usize>>,
    tokens_idx: Option<usize>,
    pub(super) most_tokens: usize,
    /// What the input is made of, and how much of it belongs to a token.
    format: Format,
    pub(super) row_bytes: usize,
}

impl Shape {
    /// Loads a plan: once, or with the states of each of so many texts.
    pub(super) fn load(
        device: &mut dyn Device,
        plan: Plan,
        weights: &Arc<dyn Weights>,
        n_texts: Option<usize>,
    ) -> Result<Self, Error> {
        let tokens = input(&plan)?;
        let most_tokens = tokens.shape.iter().next().map_or(1, |(_, size)| size.most().max(1) as usize);
        let (format, row_bytes) = (tokens.format, tokens.bytes / most_tokens);
        let symbols = plan.symbols();
        let idx = |name: &str| symbols.iter().position(|symbol| symbol.name.as_str() == name);
        let of_each = (0..most_tokens).map(|text| idx(&position_of(text)));
        let positions = if let Some(one) = idx(POSITION) { vec![Some(one)] } else { of_each.collect() };
        let tokens_idx = idx(TOKENS);
        let symbols = symbols.iter().map(|symbol| symbol.min).collect();
        let programs = match n_texts {
            None => vec![device.load(&plan, weights)?],
            Some(n_texts) => {
                let each = (0..n_texts).map(|text| device.load(&of_text(&plan, text), weights));
                each.collect::<Result<_, _>>()?
            }
        };
        Ok(Self { programs, plan, symbols, positions, tokens_idx, most_tokens, format, row_bytes })
    }

    /// The program that has the states of a text.
    pub(super) fn program(&self, text: usize) -> ProgramId {
        self.programs[text]
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
