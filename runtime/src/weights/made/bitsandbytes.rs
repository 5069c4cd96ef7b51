//! Folders of bitsandbytes: four bits by a table, and eight with a scale for each row.
//!
//! In: weights with what belongs to them. Out: a matrix for each.
//!
//! ```text
//! X.weight: bytes       the first of two neighbours in the high bits
//! X.weight.quant_map    sixteen numbers
//! X.weight.absmax       a factor for each 64 elements (`blocksize`) of the flattened matrix, or, nested, a byte
//! X.weight.nested_quant_map, .nested_absmax    256 numbers, and a factor for each 256 bytes (`nested_blocksize`)
//! X.weight.quant_state.bitsandbytes__nf4       JSON: shape, sizes of blocks, the offset of nested factors, and the
//!                                              type that products are rounded to
//! X.weight: i8, X.SCB   127 times the scale of each row
//! ```

use fusebox_compiler::tensor::quant::Format;
use serde::Deserialize;

use crate::error::Error;
use crate::weights::json;
use crate::weights::made::bits::{Bits, Places};
use crate::weights::made::factors::{Factors, Nested, float};
use crate::weights::made::matrix::{Matrix, Meaning, Zeros};
use crate::weights::made::part::Folder;
use crate::weights::made::unpacked::Unpacked;

const STATE: &str = ".quant_state.bitsandbytes__";
/// What a row of eight bits is multiplied with, as it is written there.
const ONE_127TH: f32 = 0.007_874_016;

/// What a weight says of itself.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct State {
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// Reads all weights.
pub(super) fn read(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    for name in folder.parts.keys() {
        if let Some((weight, _)) = name.split_once(STATE) {
            add_four(folder, to, weight, name)?;
        } else if let Some(base) = name.strip_suffix(".SCB") {
            add_eight(folder, to, base)?;
        }
    }
    Ok(())
}

fn add_four(folder: &Folder, to: &mut Unpacked, weight: &str, state_name: &str) -> Result<(), Error> {
    let name = |part: &str| format!("{weight}.{part}");
    let state = folder.part(state_name, &["u8"])?;
    let State { blocksize, dtype, shape, nested_blocksize, nested_offset } =
        json::parse(state.bytes(folder.files)).map_err(|(_, what)| folder.fault(state_name, what))?;
    let format = match dtype.as_str() {
        "float32" => Format::F32,
        "float16" => Format::F16,
        "bfloat16" => Format::BF16,
        _ => return Err(folder.fault(state_name, "expected a known dtype, found another".to_owned())),
    };
    let n = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size)).filter(|n| *n > 0);
    let (Some(n), true) = (n, blocksize > 0) else {
        return Err(folder.fault(state_name, "expected sizes above 0".to_owned()));
    };
    let codes = folder.part(weight, &["u8"])?;
    if codes.n_elements() != n.div_ceil(2) {
        return Err(
            folder.fault(weight, format!("expected {} bytes, found {:?}", n.div_ceil(2), codes.shape))
        );
    }
    let n_blocks = n.div_ceil(blocksize);
    let absmax = folder.shaped(&name("absmax"), &["f32", "u8"], &[n_blocks])?;
    let table = |part: &str, len: usize| {
        let part = folder.shaped(&name(part), &["f32"], &[len])?;
        Ok::<_, Error>((0..len).map(|i| float(&part, folder.files, i)).collect::<Vec<f32>>())
    };
    let nested = if absmax.ty == "u8" {
        let (len, offset) = nested_blocksize.filter(|len| *len > 0).zip(nested_offset).ok_or_else(|| {
            folder.fault(state_name, "expected a nested_blocksize and a nested_offset, found none".to_owned())
        })?;
        let outer = folder.shaped(&name("nested_absmax"), &["f32"], &[n_blocks.div_ceil(len)])?;
        Some(Nested { table: table("nested_quant_map", 256)?, outer, len, offset })
    } else {
        None
    };
    // The matrix flattened, a block in each row if all are whole.
    let is_whole = n.is_multiple_of(blocksize) && blocksize.is_multiple_of(2);
    let (n_rows, n_columns) = if is_whole { (n_blocks, blocksize) } else { (1, n) };
    let codes = Bits { places: Places::Swapped, ..Bits::along(codes, 4, n_columns / 2) };
    let strides = if is_whole { [1, 0] } else { [0, 1] };
    let matrix = Matrix {
        n_rows,
        n_columns,
        codes,
        meaning: Meaning::Table(table("quant_map", 16)?, format),
        scales: Factors { nested, ..Factors::new(absmax, strides) },
        offsets: None,
        group: blocksize,
        n_groups: n_columns.div_ceil(blocksize),
        order: None,
    };
    let parts = ["absmax", "quant_map", "nested_absmax", "nested_quant_map"].map(name);
    let parts = parts.into_iter().chain([weight.to_owned(), state_name.to_owned()]);
    let parts = parts.filter(|name| folder.parts.contains_key(name));
    to.add(folder, weight.to_owned(), shape, matrix, parts.collect::<Vec<_>>())
}

fn add_eight(folder: &Folder, to: &mut Unpacked, base: &str) -> Result<(), Error> {
    let name = |part: &str| format!("{base}.{part}");
    let codes = folder.part(&name("weight"), &["i8"])?;
    let sizes = codes.matrix().filter(|[_, columns]| *columns > 0);
    let [n_rows, n_columns] = sizes.ok_or_else(|| {
        folder.fault(&name("weight"), format!("expected a matrix, found {:?}", codes.shape))
    })?;
    let shape = codes.shape.clone();
    let scales = folder.shaped(&name("SCB"), &["f32"], &[n_rows])?;
    let matrix = Matrix {
        n_rows,
        n_columns,
        codes: Bits { flipped: 0x80, ..Bits::along(codes, 8, n_columns) },
        meaning: Meaning::Whole(Zeros::All(128)),
        scales: Factors { times: ONE_127TH, ..Factors::new(scales, [1, 0]) },
        offsets: None,
        group: n_columns,
        n_groups: 1,
        order: None,
    };
    let parts = ["weight", "SCB", "weight_format"].map(name);
    let parts = parts.into_iter().filter(|name| folder.parts.contains_key(name));
    to.add(folder, name("weight"), shape, matrix, parts.collect::<Vec<_>>())
}
