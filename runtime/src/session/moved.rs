//! Sequences that move: from one engine to another, which may run on another device.
//!
//! In: a sequence of one engine, and an empty one of another with the same model. Out: the second goes on where the
//! first is; the first stays as it was. States of all devices have one layout, so their bytes are copied through host
//! memory, page by page.

use fusebox_compiler::foundation::amount::counted;

use crate::error::Error;
use crate::session::engine::{Engine, SequenceId};
use crate::session::names::refused;
use crate::session::saved::Kept;

impl Engine {
    /// Extends an empty sequence to one of another engine. Its last row of output is there again if both return as many
    /// numbers.
    ///
    /// # Errors
    /// Where there is no such sequence or the first is not empty; where models, adapters, types or page sizes of the KV
    /// cache differ; where the sequence was extended by vectors, some of it was evicted, it is longer than the context,
    /// or there are too few free pages; then the first is empty.
    pub fn continue_from(&mut self, id: SequenceId, other: &mut Self, its: SequenceId) -> Result<(), Error> {
        const PLACE: &str = "a sequence to move";
        let refused = |what: &str| Err(refused(PLACE, what.to_owned()));
        if self.len(id)? > 0 {
            return refused("the sequence that it is to become has tokens already");
        }
        let Kept { identity, tokens, row, best } = other.kept(its, PLACE)?;
        if identity != self.identity_of(id)? {
            return refused(
                "the other engine has another model, other adapters, another type of KV cache or page size",
            );
        }
        let context = self.limits().context;
        if tokens.len() > context {
            let held = counted(context, "token");
            return refused(&format!(
                "it has {} tokens, the context of the other engine holds {held}",
                tokens.len()
            ));
        }
        self.grow(id, tokens.len())?;
        let copied = self.copy_states(id, other, its);
        if copied.is_err() {
            self.truncate(id, 0)?;
            return copied;
        }
        self.restored(id, &tokens, (row, best.unwrap_or_default()))
    }

    fn copy_states(&mut self, id: SequenceId, other: &mut Self, its: SequenceId) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for (from, to) in other.parts_of(its)?.into_iter().zip(self.parts_of(id)?) {
            other.read_part(&from, &mut bytes)?;
            self.device_mut().write_state(&to.state, to.offset, &bytes)?;
        }
        Ok(())
    }
}
