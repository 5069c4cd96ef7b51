//! Folders of MLX: groups with a scale and a bias.
//!
//! In: `weight` in words of 32 bits, `scales` and `biases`; the bits and the group of all modules, or of one, are in
//! `quantization` of the configuration. Out: a matrix `weight` for each.
//!
//! ```text
//! affine         element = scale * code + bias   2, 3, 4, 5, 6 or 8 bits, one string of bits along each row
//! mxfp4, nvfp4   element = scale * E2M1          exponents for 32, or E4M3 for 16, as bytes
//! mxfp8          element = scale * E4M3          exponents for 32
//! ```

use fusebox_compiler::tensor::quant::Format;

use crate::error::{Error, Place, quoted};
use crate::weights::made::bits::Bits;
use crate::weights::made::factors::{FLOATS, Factors, e4m3};
use crate::weights::made::matrix::{Matrix, Meaning, Zeros};
use crate::weights::made::part::Folder;
use crate::weights::made::unpacked::Unpacked;
use crate::weights::value::Value;

const BITS: [u64; 6] = [2, 3, 4, 5, 6, 8];

/// How a module is quantised.
struct Scheme {
    mode: String,
    bits: usize,
    group: usize,
}

/// Reads all modules that have scales.
pub(super) fn read(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    for base in folder.parts.keys().filter_map(|name| name.strip_suffix(".scales")) {
        add(folder, to, base)?;
    }
    Ok(())
}

/// Where the configuration says it: newer folders have it twice.
const PLACES: [&str; 2] = ["quantization", "quantization_config"];

/// Whether the configuration says that modules are quantised so.
pub(super) fn is_said(folder: &Folder) -> bool {
    PLACES.iter().any(|place| folder.config.contains_key(&format!("{place}.bits")))
}

/// What the configuration says of a module, or of all, and under which key.
fn says<'a>(folder: &'a Folder, base: &str, name: &str) -> (String, Option<&'a Value>) {
    let keys = [format!("{base}.{name}"), name.to_owned()];
    let mut keys = keys.iter().flat_map(|key| PLACES.map(|place| format!("{place}.{key}")));
    let found = keys.find_map(|key| Some((folder.config.get(&key)?, key)));
    found.map_or_else(|| (format!("quantization.{name}"), None), |(value, key)| (key, Some(value)))
}

fn scheme(folder: &Folder, base: &str) -> Result<Scheme, Error> {
    let refuse = |key: String, expected: &str, found: Option<&Value>| {
        let found = found.map_or("none".to_owned(), ToString::to_string);
        let what = format!("expected {expected}, found {}", quoted(&found));
        Error::Unsupported { path: folder.path.to_owned(), place: Place::Key(key), what }
    };
    let (key, mode) = says(folder, base, "mode");
    let mode = mode.map_or(Some("affine"), Value::as_text).filter(|mode| MODES.contains(mode));
    let mode =
        mode.ok_or_else(|| refuse(key.clone(), &MODES.join(" or "), folder.config.get(&key)))?.to_owned();
    let (key, bits) = says(folder, base, "bits");
    let number = bits.and_then(Value::to_u64).filter(|bits| BITS.contains(bits));
    let number = number.ok_or_else(|| refuse(key, "2, 3, 4, 5, 6 or 8", bits))?;
    let (key, group) = says(folder, base, "group_size");
    let size = group.and_then(Value::to_u64).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let size = size.ok_or_else(|| refuse(key, "a number of columns", group))?;
    Ok(Scheme { mode, bits: number as usize, group: size })
}

const MODES: [&str; 4] = ["affine", "mxfp4", "nvfp4", "mxfp8"];

fn add(folder: &Folder, to: &mut Unpacked, base: &str) -> Result<(), Error> {
    let name = |part: &str| format!("{base}.{part}");
    let Scheme { mode, bits, group } = scheme(folder, base)?;
    let (codes, [n_rows, n_words]) = folder.matrix(&name("weight"), &["u32"])?;
    let fault = |what: String| folder.fault(&name("weight"), what);
    let n_bits = n_words.checked_mul(32).filter(|n| n.is_multiple_of(bits)).map(|n| n / bits);
    let n_columns = n_bits.filter(|n| *n > 0 && n.is_multiple_of(group)).ok_or_else(|| {
        fault(format!("expected rows of whole groups of {group} codes of {bits} bits, found {n_words} words"))
    })?;
    let outer = &codes.shape[..codes.shape.len() - 1];
    let (shape, n_groups) = ([outer, &[n_columns]].concat(), n_columns / group);
    let of_groups = [outer, &[n_groups]].concat();
    let factors = |part: &str, types: &[&str]| {
        Ok::<_, Error>(Factors::new(folder.shaped(&name(part), types, &of_groups)?, [n_groups, 1]))
    };
    let (meaning, scales, offsets) = match (mode.as_str(), bits, group) {
        ("affine", ..) => {
            (Meaning::Whole(Zeros::All(0)), factors("scales", &FLOATS)?, Some(factors("biases", &FLOATS)?))
        }
        ("mxfp4", 4, 32) => (Meaning::E2m1, factors("scales", &["u8"])?, None),
        ("nvfp4", 4, 16) => {
            let mut scales = factors("scales", &["u8"])?;
            (scales.part.ty, scales.times) = ("f8_e4m3".to_owned(), 0.5);
            (Meaning::E2m1, scales, None)
        }
        ("mxfp8", 8, 32) => {
            let table = (0..=u8::MAX).map(e4m3).collect();
            (Meaning::Table(table, Format::BF16), factors("scales", &["u8"])?, None)
        }
        (mode, ..) => {
            return Err(fault(format!(
                "expected the bits and the group of {mode}, found {bits} and {group}"
            )));
        }
    };
    let matrix = Matrix {
        n_rows,
        n_columns,
        codes: Bits::along(codes, bits, 4 * n_words),
        meaning,
        scales,
        offsets,
        group,
        n_groups,
        order: None,
    };
    let parts =
        ["weight", "scales", "biases"].map(name).into_iter().filter(|name| folder.parts.contains_key(name));
    to.add(folder, name("weight"), shape, matrix, parts.collect::<Vec<_>>())
}
