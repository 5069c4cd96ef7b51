//! A program of a session, loaded on its device.
//!
//! In: a plan with one input. Out: what a session needs to replay it: which symbols are positions and which is the
//! number of tokens, and the bytes of one row of the input.
//! Where a session has several sequences, a program is loaded once for each sequence that uses it: the copies differ in
//! their states (KV caches) only. A batch program has the states of all sequences and is loaded once.

use std::sync::Arc;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, ProgramId, Weights};
use crate::error::Error;
use crate::session::{POSITION, SequenceId, TOKENS, input, position_of, refused, state_of};

/// A plan and the programs that a device made of it.
pub(super) struct Loaded {
    /// For each sequence, the program with its states, once it was needed; of a batch program, one.
    programs: Vec<Option<ProgramId>>,
    pub(super) plan: Plan,
    /// A value for each symbol of the plan.
    pub(super) symbols: Vec<i64>,
    /// Which symbols are positions: one, or one for each sequence of a batch.
    positions: Vec<Option<usize>>,
    tokens_idx: Option<usize>,
    /// The format of the input, and the bytes of it that one token takes.
    format: Format,
    pub(super) row_bytes: usize,
}

impl Loaded {
    /// A plan for `n_sequences` sequences, not loaded yet.
    pub(super) fn new(plan: Plan, n_sequences: usize) -> Result<Self, Error> {
        let tokens = input(&plan)?;
        let most_tokens = tokens.shape.iter().next().map_or(1, |(_, size)| size.most().max(1) as usize);
        let (format, row_bytes) = (tokens.format, tokens.bytes / most_tokens);
        let symbols = plan.symbols();
        let idx = |name: &str| symbols.iter().position(|symbol| symbol.name.as_str() == name);
        let of_batch = (0..most_tokens).map(|number| idx(&position_of(SequenceId(number))));
        let positions = if let Some(one) = idx(POSITION) { vec![Some(one)] } else { of_batch.collect() };
        let tokens_idx = idx(TOKENS);
        let symbols = symbols.iter().map(|symbol| symbol.min).collect();
        let programs = vec![None; n_sequences];
        Ok(Self { programs, plan, symbols, positions, tokens_idx, format, row_bytes })
    }

    /// The program with the states of a sequence, or with the states that the plan names; loaded if it was not before.
    pub(super) fn load(
        &mut self,
        device: &mut dyn Device,
        weights: &Arc<dyn Weights>,
        sequence: Option<SequenceId>,
    ) -> Result<ProgramId, Error> {
        let number = sequence.unwrap_or_default().0;
        if let Some(program) = self.programs[number] {
            return Ok(program);
        }
        let program = match sequence {
            Some(sequence) => device.load(&with_states_of(&self.plan, sequence), weights)?,
            None => device.load(&self.plan, weights)?,
        };
        self.programs[number] = Some(program);
        Ok(program)
    }

    /// Sets the symbols of the next replay: the position of each sequence, and the number of tokens.
    pub(super) fn bind(&mut self, positions: impl IntoIterator<Item = usize>, n_tokens: usize) {
        for (idx, position) in self.positions.iter().zip(positions) {
            if let Some(idx) = idx {
                self.symbols[*idx] = position as i64;
            }
        }
        if let Some(idx) = self.tokens_idx {
            self.symbols[idx] = n_tokens as i64;
        }
    }

    /// Refuses `n` rows that are of another format than the input, or do not fit into the context.
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
            return Err(refused(what, format!("no room for {n} after {position}: the context holds {held}")));
        }
        Ok(())
    }
}

/// A plan with the states of one sequence of several.
fn with_states_of(plan: &Plan, sequence: SequenceId) -> Plan {
    let mut plan = plan.clone();
    for slot in plan.buffers.values_mut().filter(|slot| slot.place == Place::State) {
        slot.name = state_of(&slot.name, sequence).into();
    }
    plan
}
