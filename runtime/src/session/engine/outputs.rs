//! The rows of output that the last step left for a sequence.
//!
//! In: a sequence. Out: logits, hidden vectors or the best tokens; nothing where the last step did not extend it.

use crate::error::Error;
use crate::session::engine::{Engine, Output, SequenceId};
use crate::session::names::refused;

impl Engine {
    /// The rows of output of a sequence: of its last token, or of every token of its last replay.
    ///
    /// # Errors
    /// Where there is no such sequence, or the last step did not extend it.
    pub fn rows(&self, id: SequenceId) -> Result<&[f32], Error> {
        let Output { program, rows, kept, .. } = self.output(id)?;
        if let Some((rows, _)) = kept {
            return Ok(rows);
        }
        let all: &[f32] = bytemuck::cast_slice(self.device.output(*program, self.outputs.rows));
        Ok(&all[rows.start * self.width..rows.end * self.width])
    }

    /// The last row of output of a sequence: the logits of its next token, or a hidden vector.
    ///
    /// # Errors
    /// As [`Engine::rows`].
    pub fn logits(&self, id: SequenceId) -> Result<&[f32], Error> {
        let rows = self.rows(id)?;
        Ok(&rows[rows.len() - self.width..])
    }

    /// The tokens that the logits belong to, largest first, where the programs select the best.
    ///
    /// # Errors
    /// As [`Engine::rows`].
    pub fn best(&self, id: SequenceId) -> Result<Option<&[u32]>, Error> {
        let Output { program, rows, kept, .. } = self.output(id)?;
        let Some(ids) = self.outputs.ids else { return Ok(None) };
        if let Some((_, best)) = kept {
            return Ok(Some(best));
        }
        let all: &[u32] = bytemuck::cast_slice(self.device.output(*program, ids));
        Ok(Some(&all[rows.start * self.width..rows.end * self.width]))
    }

    fn output(&self, id: SequenceId) -> Result<&Output, Error> {
        let output = self.sequence(id)?.output.as_ref();
        let current = output.filter(|output| output.step == self.n_steps || output.kept.is_some());
        current.ok_or_else(|| refused("logits", format!("the last step did not extend sequence {id}")))
    }

    /// Whether the programs select the best logits.
    pub fn selects_best(&self) -> bool {
        self.outputs.ids.is_some()
    }

    /// How many numbers a row of output has.
    pub fn width(&self) -> usize {
        self.width
    }
}
