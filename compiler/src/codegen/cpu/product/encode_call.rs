//! Nests that store whole blocks of a quantised format.
//!
//! In: a nest that copies rows of a tile to a buffer of a block format. Out: a call of the level's encoder for each
//! row. `verify` has proven that rows fill whole blocks.

use cranelift_codegen::ir::InstBuilder;

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::product::boundary::storage;
use crate::kernel::Nest;
use crate::kernel::stored::Stored;

impl Emitter<'_, '_> {
    /// Emits a nest as calls of micro-kernels, if it stores blocks.
    pub(crate) fn blocks(&mut self, nest: &Nest) -> bool {
        let Some(format) = nest.blocks(self.kernel) else { return false };
        let (storage, _) = storage(format).expect("micro-kernels know what kernels store");
        let (row, outer) = nest.loops.split_last().expect("a row is a loop");
        let (tile, from) = nest.loaded(nest.value).expect("a row of a tile is copied");
        let [from, to] = [(tile, from), (nest.target, &nest.at[..])]
            .map(|(place, at)| Stored::of(self.kernel, self.part, place, at));
        let function = self.table.encode as *const u8;
        self.each(outer, &mut |emitter| {
            let (first, _, end) = emitter.values(*row);
            emitter.vars.insert(*row, first);
            let fields = [
                emitter.place_of(&from, &[]).0,
                emitter.place_of(&to, &[]).0,
                emitter.builder.ins().isub(end, first),
                emitter.whole(storage.number()),
            ];
            emitter.call_micro(function, &fields);
        });
        true
    }
}
