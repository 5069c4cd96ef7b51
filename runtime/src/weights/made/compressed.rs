//! Folders of `compressed-tensors` and of `ModelOpt`.
//!
//! In: modules whose weight and scales lie in tensors of their own; others, such as those of an `ignore` list, have a
//! plain `weight` and stay. Out: a matrix `weight` for each.
//!
//! ```text
//! weight_packed: i32   pack-quantized     codes of 1 to 8 bits, the middle is zero, along each row
//! weight: i8           int-quantized      numbers with a sign
//! weight: E4M3         float-quantized    as FP8 (`tiles.rs`)
//! weight_packed: u8    nvfp4 or mxfp4     E2M1, two neighbours in a byte; a scale in E4M3 for 16 and one for all,
//!                                         or an exponent for 32
//! weight_scale                            one for all, for a row, for groups of a row, or for tiles
//! weight_zero_point                       numbers with a sign, or packed along columns as the codes
//! weight_g_idx                            the group of each input, where they are in another order
//! ```
//!
//! `ModelOpt` has `weight` for E2M1 too, and multiplies with `weight_scale_2` where the other divides by
//! `weight_global_scale`. Activations are quantised here as ever, so their scales are not needed.

use crate::error::{Error, quoted};
use crate::weights::made::bits::{Bits, Fill};
use crate::weights::made::factors::{FLOATS, Factors, float};
use crate::weights::made::gptq::order;
use crate::weights::made::matrix::{Matrix, Meaning, Zeros};
use crate::weights::made::part::{Folder, Part, two_sizes};
use crate::weights::made::tiles::{Grid, add_fp8, unused};
use crate::weights::made::unpacked::Unpacked;

/// Formats that are read.
const FORMATS: [&str; 9] = [
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
    "dense",
];
const MODELOPT: [&str; 9] = [
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "NVFP4_AWQ",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "MXFP8",
    "MIXED_PRECISION",
];

/// Elements of NVFP4 and MXFP4 that share a scale.
const NVFP4: usize = 16;
const MXFP4: usize = 32;

/// Reads the modules of compressed-tensors.
pub(super) fn read(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    check_formats(folder)?;
    let tile = tile(folder);
    for (name, part) in &folder.parts {
        if let Some(base) = name.strip_suffix(".weight_packed") {
            if part.ty == "u8" {
                add_fp4(folder, to, base, name, false)?;
            } else {
                add_packed(folder, to, base)?;
            }
        } else if let Some(base) = name.strip_suffix(".weight_scale") {
            add_whole(folder, to, base, name, tile)?;
        }
    }
    to.taken.extend(unused(folder));
    Ok(())
}

/// Reads the modules of `ModelOpt`.
pub(super) fn read_modelopt(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    let algorithm = folder.text("quant_algo").or_else(|| folder.text("quantization.quant_algo"));
    if let Some(other) = algorithm.filter(|algorithm| !MODELOPT.contains(algorithm)) {
        let what = format!("expected one of {}, found {}", MODELOPT.join(", "), quoted(other));
        return Err(folder.unsupported("quant_algo", what));
    }
    for name in folder.parts.keys() {
        let Some(base) = name.strip_suffix(".weight_scale") else { continue };
        let weight = format!("{base}.weight");
        if folder.parts.get(&weight).is_some_and(|part| part.ty == "u8") {
            add_fp4(folder, to, base, &weight, true)?;
        } else {
            add_fp8(folder, to, base, name, Some([128, 128]).filter(|_| algorithm == Some("FP8_PB_WO")))?;
        }
    }
    to.taken.extend(unused(folder));
    Ok(())
}

/// Refuses what changes weights in other ways.
fn check_formats(folder: &Folder) -> Result<(), Error> {
    let is_format =
        |key: &str| key == "format" || key.starts_with("config_groups.") && key.ends_with(".format");
    for (key, value) in folder.below("") {
        let text = value.as_text().unwrap_or_default();
        if is_format(key) && !FORMATS.contains(&text) {
            let what = format!("expected one of {}, found {}", FORMATS.join(", "), quoted(text));
            return Err(folder.unsupported(key, what));
        }
        if key == "sparsity_config.format" && text != "dense" {
            return Err(folder.unsupported(key, format!("expected dense, found {}", quoted(text))));
        }
        if key.starts_with("transform_config.config_groups.") {
            let what = "expected no transforms of activations, found some".to_owned();
            return Err(folder.unsupported("transform_config", what));
        }
    }
    Ok(())
}

/// The rows and columns of a tile, where weights have them.
fn tile(folder: &Folder) -> Option<[usize; 2]> {
    let mut tiles =
        folder.below("config_groups.").filter(|(key, _)| key.ends_with(".weights.block_structure"));
    tiles.find_map(|(_, value)| two_sizes(value))
}

/// Adds a matrix of whole numbers or of FP8; a scale without such a weight stays.
fn add_whole(
    folder: &Folder,
    to: &mut Unpacked,
    base: &str,
    scales: &str,
    tile: Option<[usize; 2]>,
) -> Result<(), Error> {
    let name = format!("{base}.weight");
    let Some(codes) = folder.parts.get(&name) else { return Ok(()) };
    if codes.ty == "f8_e4m3" {
        return add_fp8(folder, to, base, scales, tile);
    }
    let (codes, sizes) = folder.matrix(&name, &["i8", "f8_e4m3"])?;
    let shape = codes.shape.clone();
    let codes = Bits { flipped: 0x80, ..Bits::along(codes, 8, sizes[1]) };
    let grid = Grid::read(folder, scales, &FLOATS, sizes, tile)?;
    add(folder, to, base, (shape, sizes, codes), grid)
}

/// Adds a matrix of packed whole numbers.
fn add_packed(folder: &Folder, to: &mut Unpacked, base: &str) -> Result<(), Error> {
    let name = |part: &str| format!("{base}.{part}");
    let (codes, [n_rows, n_words]) = folder.matrix(&name("weight_packed"), &["i32"])?;
    let fault = |what: String| folder.fault(&name("weight_packed"), what);
    let said = said_bits(folder);
    let n_columns = match folder.optional(&name("weight_shape"), &["i64", "i32"])? {
        Some(part) => last_size(&part, folder),
        None => said.first().map(|bits| n_words.saturating_mul(32) / bits),
    };
    let n_columns = n_columns.filter(|n| *n > 0);
    let n_columns = n_columns.ok_or_else(|| {
        folder.fault(&name("weight_shape"), "expected the sizes of a matrix, found others".to_owned())
    })?;
    let fitting = said.iter().find_map(|bits| Some((*bits, Fill::of(n_columns, *bits, n_words)?)));
    let (bits, fill) = fitting.ok_or_else(|| {
        fault(format!("expected rows of {n_columns} codes of {said:?} bits, found {n_words} words"))
    })?;
    let shape = [&codes.shape[..codes.shape.len() - 1], &[n_columns]].concat();
    let codes = Bits { fill, ..Bits::along(codes, bits, 4 * n_words) };
    let sizes = [n_rows, n_columns];
    let grid = Grid::read(folder, &name("weight_scale"), &FLOATS, sizes, None)?;
    add(folder, to, base, (shape, sizes, codes), grid)
}

/// The numbers of bits that the configuration has.
fn said_bits(folder: &Folder) -> Vec<usize> {
    let bits = folder.below("config_groups.").filter(|(key, _)| key.ends_with(".weights.num_bits"));
    let bits = bits.filter_map(|(_, value)| value.to_u64()).filter(|bits| (1..=8).contains(bits));
    bits.map(|bits| bits as usize).collect()
}

/// The last of the sizes that a tensor lists.
fn last_size(part: &Part, folder: &Folder) -> Option<usize> {
    let width = if part.ty == "i64" { 8 } else { 4 };
    let last = part.bytes(folder.files).rchunks_exact(width).next()?;
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(last);
    usize::try_from(i64::from_le_bytes(bytes)).ok()
}

/// Adds a matrix of whole numbers with its zeros and the order of its groups.
fn add(
    folder: &Folder,
    to: &mut Unpacked,
    base: &str,
    (shape, sizes, codes): (Vec<usize>, [usize; 2], Bits),
    grid: Grid,
) -> Result<(), Error> {
    let name = |part: &str| format!("{base}.{part}");
    let [n_rows, n_columns] = sizes;
    let Grid { factors, group, n_groups } = grid;
    let middle = 1 << (codes.width - 1);
    let zeros = zeros(folder, &name("weight_zero_point"), &codes, [n_rows, n_groups])?;
    if !matches!(zeros, Zeros::All(_)) && factors.n_rows != 1 {
        let what = "expected none for tiles of several rows, found some".to_owned();
        return Err(folder.fault(&name("weight_zero_point"), what));
    }
    let order = order(folder, &name("weight_g_idx"), n_columns, n_groups)?;
    let matrix = Matrix {
        n_rows,
        n_columns,
        codes,
        meaning: Meaning::Whole(match zeros {
            Zeros::All(zero) => Zeros::All(zero + middle),
            each @ Zeros::Each(..) => each,
        }),
        scales: factors,
        offsets: None,
        group,
        n_groups,
        order: order.filter(|part| (0..n_columns).any(|i| part.word(folder.files, i) as usize != i / group)),
    };
    let parts =
        ["weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx", "weight"];
    let parts = parts.into_iter().map(name).filter(|name| folder.parts.contains_key(name));
    to.add(folder, format!("{base}.weight"), shape, matrix, parts.collect::<Vec<_>>())
}

/// What is taken off codes: from the middle for one zero, else from the first code.
fn zeros(folder: &Folder, name: &str, codes: &Bits, [n_rows, n_groups]: [usize; 2]) -> Result<Zeros, Error> {
    let Some(part) = folder.optional(name, &["i32", "i8"])? else { return Ok(Zeros::All(0)) };
    if part.ty == "i8" {
        let is_one = part.n_elements() == 1;
        if is_one {
            return Ok(Zeros::All(part.bytes(folder.files)[0].cast_signed().into()));
        }
        if part.n_elements() != n_rows * n_groups || part.shape.first() != Some(&n_rows) {
            let what = format!("expected the shape {:?}, found {:?}", [n_rows, n_groups], part.shape);
            return Err(folder.fault(name, what));
        }
        let bits = Bits { flipped: 0x80, ..Bits::along(part, 8, n_groups) };
        // From -128 on, and codes from the least of theirs.
        return Ok(Zeros::Each(bits, (1 << (codes.width - 1)) - 128));
    }
    let n_words = part.shape.first().copied().unwrap_or(0);
    let packed = Fill::of(n_rows, codes.width, n_words);
    let (Some(fill), true) = (packed, part.shape == [n_words, n_groups]) else {
        let expected = [n_rows.saturating_mul(codes.width).div_ceil(32), n_groups];
        return Err(folder.fault(name, format!("expected the shape {expected:?}, found {:?}", part.shape)));
    };
    Ok(Zeros::Each(Bits { fill, ..Bits::down(part, codes.width, n_groups).across() }, 0))
}

/// Adds a matrix of E2M1.
fn add_fp4(
    folder: &Folder,
    to: &mut Unpacked,
    base: &str,
    weight: &str,
    is_modelopt: bool,
) -> Result<(), Error> {
    let name = |part: &str| format!("{base}.{part}");
    let codes = folder.part(weight, &["u8"])?;
    let fault = |what: String| folder.fault(weight, what);
    let sizes = codes.matrix().and_then(|[rows, bytes]| Some([rows, bytes.checked_mul(2)?]));
    let [n_rows, n_columns] =
        sizes.ok_or_else(|| fault(format!("expected a matrix, found {:?}", codes.shape)))?;
    let outer = &codes.shape[..codes.shape.len() - 1];
    let shape = [outer, &[n_columns]].concat();
    let scales = folder.part(&name("weight_scale"), &["f8_e4m3", "u8", "f8_e8m0"])?;
    let is_nv = scales.ty == "f8_e4m3";
    let group = if is_nv { NVFP4 } else { MXFP4 };
    if n_columns == 0 || !n_columns.is_multiple_of(group) {
        return Err(fault(format!("expected rows of a multiple of {group} numbers, found {n_columns}")));
    }
    let n_groups = n_columns / group;
    let expected = [outer, &[n_groups]].concat();
    let scales = folder.shaped(&name("weight_scale"), &["f8_e4m3", "u8", "f8_e8m0"], &expected)?;
    let second = name(if is_modelopt { "weight_scale_2" } else { "weight_global_scale" });
    let mut factors = Factors::new(scales, [n_groups, 1]);
    if is_nv {
        let one = folder.part(&second, &["f32"])?;
        let value = if one.n_elements() == 1 { float(&one, folder.files, 0) } else { f32::NAN };
        if !value.is_normal() {
            return Err(folder.fault(&second, "expected one number that is finite and not 0".to_owned()));
        }
        // Numbers are doubled.
        (factors.times, factors.per) = if is_modelopt { (0.5 * value, 1.0) } else { (0.5, value) };
    }
    let matrix = Matrix {
        n_rows,
        n_columns,
        codes: Bits::along(codes, 4, n_columns / 2),
        meaning: Meaning::E2m1,
        scales: factors,
        offsets: None,
        group,
        n_groups,
        order: None,
    };
    let parts = [weight.to_owned(), name("weight_scale"), second];
    let parts = parts.into_iter().filter(|name| folder.parts.contains_key(name));
    to.add(folder, name("weight"), shape, matrix, parts.collect::<Vec<_>>())
}
