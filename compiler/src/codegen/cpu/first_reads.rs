//! Where the tasks of a part start to read, for prefetching.
//!
//! In: a kernel that multiplies weights with few columns, which is bound by memory bandwidth. Out: for each part the
//! weight that its tasks read first. Tasks take rows in order, so a task's first row is proportional to its number.
//! Whoever runs tasks prefetches with this before waiting at a barrier or quantising activations. It is a hint: a wrong
//! one costs time and nothing else.

use crate::kernel::index::Index;
use crate::kernel::walk::nests;
use crate::kernel::{Kernel, Nest, Param, ParamId, Part, Skeleton};
use crate::tensor::quant::Format;

/// A weight with fewer bytes is not worth a prefetch.
const LEAST: usize = 1 << 16;

/// A weight that is read from its start to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) param: ParamId,
    n_bytes: usize,
}

impl Stream {
    /// Where a task begins to read, in bytes from the start.
    pub(super) fn offset(&self, task: i64, n_tasks: i64) -> usize {
        (self.n_bytes as u128 * task.max(0) as u128 / n_tasks.max(1) as u128) as usize
    }
}

/// What the tasks of each part read first.
pub(super) fn streams(kernel: &Kernel) -> Vec<Option<Stream>> {
    let is_fast = kernel.skeleton == Skeleton::MatrixVector;
    let first =
        |part: &Part| is_fast.then(|| nests(&part.body).find_map(|nest| of_nest(kernel, nest))).flatten();
    kernel.parts.iter().map(first).collect()
}

fn of_nest(kernel: &Kernel, nest: &Nest) -> Option<Stream> {
    nest.reads().find_map(|(_, param, at)| {
        let Param { format, shape, .. } = &kernel.params[param];
        // Scales that are stored apart follow all numbers.
        let n_bytes = match format {
            Format::Int8 { .. } => shape.max_len(),
            _ => format.bytes_for(shape.max_len())?,
        };
        (!at.iter().any(Index::has_lookup) && n_bytes >= LEAST).then_some(Stream { param, n_bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::entity::Id;
    use crate::kernel::parse::parse;

    const ROWS: &str = r#"kernel "rows" matrix-vector
  read @0 x : f32[k:256]
  read @1 w : q8_0[d:1024, k:256]
  write @2 y : f32[d:1024]
part
  tile tile0 : f32[64]
  var d0 in blocks of 64 step 64 from 0 to 1024
  var d1 within d0
  var k2 in 0..256
  grid d0
  for d1
    tile0[-d0+d1] = sum k2 of mul(@0[k2], @1[d1, k2])
  for d1
    @2[d1] = tile0[-d0+d1]
"#;

    #[test]
    fn a_task_begins_with_its_first_row() {
        for (format, row_bytes) in [("q8_0", 272), ("q4_0", 144), ("bf16", 512), ("int8.g64", 256)] {
            let kernel = parse(&ROWS.replace("q8_0", format)).unwrap();
            let [Some(stream)] = streams(&kernel)[..] else { panic!("one part has one stream") };
            assert_eq!((stream.param.index(), stream.offset(3, 16)), (1, 3 * 64 * row_bytes), "{format}");
        }
    }

    #[test]
    fn small_weights_and_other_kernels_have_no_stream() {
        for (from, to) in [("1024", "128"), ("matrix-vector", "matrix-matrix")] {
            let kernel = parse(&ROWS.replace(from, to)).unwrap();
            assert!(streams(&kernel)[0].is_none(), "{to}");
        }
    }
}
