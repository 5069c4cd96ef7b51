//! FP8 and MXFP4: numbers in one tensor, their scales in another.
//!
//! In: pairs of tensors. Out: one for each.
//!
//! ```text
//! fp8    X.weight: E4M3 [rows, columns]          X.weight_scale_inv or X.weight_scale: one, one for each row, or one
//!        becomes X.weight: BF16, rounded         for each tile of a size that is given
//! mxfp4  X_blocks: bytes [.., rows, n, 16]       X_scales: an exponent for each of n blocks of 32
//!        becomes X: MXFP4 [.., rows, 32 n], where byte i has elements i and i + 16 instead of 2 i and 2 i + 1
//! ```

use fusebox_compiler::tensor::quant::Format;

use crate::error::Error;
use crate::weights::made::bits::Bits;
use crate::weights::made::factors::{Factors, e4m3};
use crate::weights::made::matrix::{Matrix, Meaning};
use crate::weights::made::part::{Folder, Part, two_sizes};
use crate::weights::made::unpacked::Unpacked;

/// Elements of a block of MXFP4, and bytes of their numbers.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 16;
/// What a matrix of FP8 is scaled with.
pub(super) const SCALES: [&str; 5] = ["f32", "bf16", "f16", "f8_e8m0", "u8"];

/// Reads the pairs of `fp8`.
pub(super) fn read_fp8(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    let tile = folder.says("weight_block_size").and_then(two_sizes);
    for name in folder.parts.keys() {
        let base = name.strip_suffix(".weight_scale_inv").or_else(|| name.strip_suffix(".weight_scale"));
        if let Some(base) = base {
            add_fp8(folder, to, base, name, tile)?;
        }
    }
    to.taken.extend(unused(folder));
    Ok(())
}

/// Adds a matrix of FP8.
pub(super) fn add_fp8(
    folder: &Folder,
    to: &mut Unpacked,
    base: &str,
    scales: &str,
    tile: Option<[usize; 2]>,
) -> Result<(), Error> {
    let name = format!("{base}.weight");
    let (codes, [n_rows, n_columns]) = folder.matrix(&name, &["f8_e4m3"])?;
    let shape = codes.shape.clone();
    let grid = Grid::read(folder, scales, &SCALES, [n_rows, n_columns], tile)?;
    let matrix = Matrix {
        n_rows,
        n_columns,
        codes: Bits::along(codes, 8, n_columns),
        meaning: Meaning::Table((0..=u8::MAX).map(e4m3).collect(), Format::BF16),
        scales: grid.factors,
        offsets: None,
        group: grid.group,
        n_groups: grid.n_groups,
        order: None,
    };
    to.add(folder, name.clone(), shape, matrix, [name, scales.to_owned()])
}

/// Factors of a matrix by the shape of their tensor.
pub(super) struct Grid {
    pub(super) factors: Factors,
    pub(super) group: usize,
    pub(super) n_groups: usize,
}

impl Grid {
    /// One factor, one for each row, one for each group of a row, or one for each tile of this size.
    pub(super) fn read(
        folder: &Folder,
        name: &str,
        types: &[&str],
        [n_rows, n_columns]: [usize; 2],
        tile: Option<[usize; 2]>,
    ) -> Result<Self, Error> {
        let part = folder.part(name, types)?;
        let whole = n_columns.max(1);
        let one = |part: Part, strides| {
            Ok(Self { factors: Factors::new(part, strides), group: whole, n_groups: 1 })
        };
        if let (Some([rows, columns]), [_, _]) = (tile, &part.shape[..]) {
            let expected = [n_rows.div_ceil(rows), n_columns.div_ceil(columns)];
            if part.shape != expected && part.n_elements() != 1 {
                return Err(
                    folder.fault(name, format!("expected the shape {expected:?}, found {:?}", part.shape))
                );
            }
            if part.shape == expected {
                let factors = Factors { n_rows: rows, ..Factors::new(part, [expected[1], 1]) };
                return Ok(Self { factors, group: columns.min(whole), n_groups: expected[1] });
            }
        }
        if part.n_elements() == 1 {
            return one(part, [0, 0]);
        }
        if part.shape == [n_rows] || part.matrix() == Some([n_rows, 1]) {
            return one(part, [1, 0]);
        }
        match part.matrix() {
            Some([rows, n_groups])
                if rows == n_rows && n_groups > 0 && n_columns.is_multiple_of(n_groups) =>
            {
                let group = (n_columns / n_groups).max(1);
                Ok(Self { factors: Factors::new(part, [n_groups, 1]), group, n_groups })
            }
            _ => {
                let sizes = if tile.is_some() { "" } else { ", or `weight_block_size` in the configuration" };
                let what = format!(
                    "expected one scale, one for each of {n_rows} rows or for groups of {n_columns} columns{sizes}, \
                     found {:?}",
                    part.shape
                );
                Err(folder.fault(name, what))
            }
        }
    }
}

/// Scales of activations and caches, which are computed here.
pub(super) fn unused<'a>(folder: &'a Folder) -> impl Iterator<Item = String> + 'a {
    const ENDINGS: [&str; 10] = [
        ".input_scale",
        ".input_zero_point",
        ".input_global_scale",
        ".input_scale_ub",
        ".activation_scale",
        ".output_scale",
        ".output_zero_point",
        ".k_scale",
        ".v_scale",
        ".q_scale",
    ];
    let is_unused = |name: &&String| ENDINGS.iter().any(|ending| name.ends_with(ending));
    folder.parts.keys().filter(is_unused).cloned()
}

/// Reads the pairs of `mxfp4`.
pub(super) fn read_mxfp4(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    for base in folder.parts.keys().filter_map(|name| name.strip_suffix("_scales")) {
        let [blocks, scales] = ["blocks", "scales"].map(|part| format!("{base}_{part}"));
        let codes = folder.part(&blocks, &["u8"])?;
        let [outer @ .., n, BLOCK_BYTES] = &codes.shape[..] else {
            let what = format!("expected rows of blocks of {BLOCK_BYTES} bytes, found {:?}", codes.shape);
            return Err(folder.fault(&blocks, what));
        };
        if outer.is_empty() {
            let what = format!("expected rows of blocks of {BLOCK_BYTES} bytes, found {:?}", codes.shape);
            return Err(folder.fault(&blocks, what));
        }
        let exponents = folder.shaped(&scales, &["u8", "f8_e8m0"], &[outer, &[*n]].concat())?;
        let (n_rows, n_groups) = (outer.iter().product(), *n);
        // It fits: a tensor of half as many bytes does.
        let shape = [outer, &[n * BLOCK]].concat();
        let matrix = Matrix {
            n_rows,
            n_columns: n * BLOCK,
            codes: Bits::along(codes.clone(), 4, n * BLOCK_BYTES),
            meaning: Meaning::E2m1,
            scales: Factors::new(exponents, [n_groups, 1]),
            offsets: None,
            group: BLOCK,
            n_groups,
            order: None,
        };
        to.add(folder, base.to_owned(), shape, matrix, [blocks, scales])?;
    }
    Ok(())
}
