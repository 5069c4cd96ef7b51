//! Products of plain numbers, weighted sums and encoding in single precision: the forms that all levels share.
//!
//! In: as the table of `mod.rs` says. Out: what `generic.rs` makes of the vectors of this level.
//! Its constants and loads are also those of kernels beside it.

use bytemuck::{cast_ref, cast_slice};

use crate::abi::{EncodeArgs, GemmArgs, WeightedSumArgs};
use crate::avx512::vector::{
    N, V, add, fma, horizontal_sum, lanes, load, padded, splat, sum_each_of_4, wide_bf16, wide_f16, wide_i8,
    zero,
};
use crate::generic::single_forms;
use crate::layout::block_formats::{DequantisedBlock, Storage, for_format, some_numbers, widened};
use crate::layout::encode_blocks::blocks;
use crate::prefetch::{prefetch_one_of_rows, prefetch_row, prefetch_rows, prefetch_stream};
use crate::view::{self, GemmView, WeightedSumView};

single_forms! { #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")] tile 4 by 4, tall 8, wide 8 }
