//! GPTQ and AWQ, and what `AutoRound` writes as one of them.
//!
//! In: sets of `qweight`, `qzeros`, `scales` and, for GPTQ, `g_idx`. Out: for each a matrix `weight`,
//! `[outputs, inputs]`.
//!
//! ```text
//! GPTQ  qweight [inputs * bits / 32, outputs]   a string of bits down each column; 2, 3, 4 or 8 bits
//!       qzeros  [groups, outputs * bits / 32]   one less than the zero, but in version 2
//!       g_idx   [inputs]                        the group of each input: any (desc_act)
//! AWQ   qweight [inputs, outputs / 8]           eight outputs in a word, in an order of its own; 4 bits
//!       qzeros  [groups, outputs / 8]           in the same order
//! both  scales  [groups, outputs]
//! ```

use crate::error::{Error, quoted};
use crate::weights::made::bits::{Bits, Places};
use crate::weights::made::factors::{FLOATS, Factors};
use crate::weights::made::matrix::{Matrix, Meaning, Zeros};
use crate::weights::made::part::{Folder, Part};
use crate::weights::made::unpacked::Unpacked;
use crate::weights::value::Value;

/// Bits that GPTQ has codes of.
const BITS: [usize; 4] = [2, 3, 4, 8];

/// How numbers are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// What a stored zero lacks to the real one is added.
    Gptq {
        lacking: i32,
    },
    Awq,
}

/// Reads all sets.
pub(super) fn read(folder: &Folder, to: &mut Unpacked) -> Result<(), Error> {
    let (layout, bits) = (layout(folder)?, bits(folder)?);
    for base in folder.parts.keys().filter_map(|name| name.strip_suffix(".qweight")) {
        let (shape, matrix) = matrix(folder, base, layout, bits)?;
        let parts = ["qweight", "qzeros", "scales", "g_idx"].map(|part| format!("{base}.{part}"));
        to.add(folder, format!("{base}.weight"), shape, matrix, parts)?;
    }
    Ok(())
}

/// How a folder says that its matrices are packed.
fn layout(folder: &Folder) -> Result<Layout, Error> {
    let says = |key: &str| folder.text(key);
    let v1 = Layout::Gptq { lacking: 1 };
    let (key, expected, found) = match says("quant_method") {
        Some("gptq") => match says("checkpoint_format") {
            Some("gptq_v2") => return Ok(Layout::Gptq { lacking: 0 }),
            Some("gptq") | None => return Ok(v1),
            Some(other) => ("checkpoint_format", "gptq or gptq_v2", other),
        },
        Some("awq") => match says("version") {
            Some("gemm" | "GEMM") | None => return Ok(Layout::Awq),
            Some(other) => ("version", "gemm", other),
        },
        _ => match says("packing_format") {
            Some("auto_round:auto_gptq" | "auto_round:gptq") => return Ok(v1),
            Some("auto_round:auto_awq" | "auto_round:awq") => return Ok(Layout::Awq),
            other => {
                ("packing_format", "auto_round:auto_gptq or auto_round:auto_awq", other.unwrap_or("none"))
            }
        },
    };
    Err(folder.unsupported(key, format!("expected {expected}, found {}", quoted(found))))
}

/// Bits of a code.
fn bits(folder: &Folder) -> Result<usize, Error> {
    let found = folder.says("bits");
    let bits = found.and_then(Value::to_u64).map(|bits| bits as usize);
    let known = if folder.text("quant_method") == Some("awq") { &[4][..] } else { &BITS };
    bits.filter(|bits| known.contains(bits)).ok_or_else(|| {
        let found = found.map_or("none".to_owned(), ToString::to_string);
        let expected = if known.len() == 1 { "4" } else { "2, 3, 4 or 8" };
        folder.unsupported("bits", format!("expected {expected}, found {found}"))
    })
}

fn matrix(folder: &Folder, base: &str, layout: Layout, bits: usize) -> Result<(Vec<usize>, Matrix), Error> {
    let name = |part: &str| format!("{base}.{part}");
    let fault = |part: &str, what: String| folder.fault(&name(part), what);
    let codes = folder.part(&name("qweight"), &["i32"])?;
    let zeros = folder.part(&name("qzeros"), &["i32"])?;
    let scales = folder.part(&name("scales"), &FLOATS)?;
    let &[rows, columns] = &codes.shape[..] else {
        return Err(fault("qweight", format!("expected a matrix, found {:?}", codes.shape)));
    };
    let n_outputs = if layout == Layout::Awq { columns.saturating_mul(8) } else { columns };
    // Modules may have bits of their own; the zeros of all outputs tell.
    let n_words = zeros.shape.last().copied().unwrap_or(0);
    let fits = |bits: &usize| n_outputs.checked_mul(*bits) == n_words.checked_mul(32);
    let bits =
        if fits(&bits) || layout == Layout::Awq { bits } else { BITS.into_iter().find(fits).unwrap_or(bits) };
    let n_inputs = match layout {
        Layout::Awq => Some(rows),
        Layout::Gptq { .. } => rows.checked_mul(32).filter(|n| n.is_multiple_of(bits)).map(|n| n / bits),
    };
    let n_inputs =
        n_inputs.ok_or_else(|| fault("qweight", format!("expected whole codes of {bits} bits")))?;
    let n_groups = scales.shape.first().copied().unwrap_or(0);
    // The last group may be shorter, where the size of the others is known.
    let said = folder.says("group_size").and_then(Value::to_u64).map(|size| size as usize);
    let said = said.filter(|size| *size > 0 && n_inputs.div_ceil(*size) == n_groups);
    let even = n_inputs.checked_div(n_groups).filter(|group| *group > 0 && group * n_groups == n_inputs);
    let group = said.or(even).filter(|_| n_groups > 0);
    let (Some(group), false) = (group, n_outputs == 0) else {
        let found = format!("found {n_groups} of {n_inputs}, and {n_outputs} outputs");
        return Err(fault("scales", format!("expected groups of a number of inputs, {found}")));
    };
    let order = order(folder, &name("g_idx"), n_inputs, n_groups)?;
    let zeros = folder.shaped(&name("qzeros"), &["i32"], &[n_groups, n_outputs * bits / 32])?;
    let scales = folder.shaped(&name("scales"), &FLOATS, &[n_groups, n_outputs])?;
    let zeros = Bits::along(zeros.clone(), bits, 4 * zeros.shape[1]).across();
    let (codes, zeros, lacking) = match layout {
        Layout::Gptq { lacking } => (Bits::down(codes, bits, n_outputs), zeros, lacking),
        Layout::Awq => {
            let codes = Bits::along(codes, bits, 4 * columns).across();
            (Bits { places: Places::Awq, ..codes }, Bits { places: Places::Awq, ..zeros }, 0)
        }
    };
    let matrix = Matrix {
        n_rows: n_outputs,
        n_columns: n_inputs,
        codes,
        meaning: Meaning::Whole(Zeros::Each(zeros, lacking)),
        scales: Factors::new(scales, [1, n_outputs]),
        offsets: None,
        group,
        n_groups,
        order: order.filter(|part| (0..n_inputs).any(|i| part.word(folder.files, i) as usize != i / group)),
    };
    Ok((vec![n_outputs, n_inputs], matrix))
}

/// The group of each input, where there is such a list.
pub(super) fn order(
    folder: &Folder,
    name: &str,
    n_inputs: usize,
    n_groups: usize,
) -> Result<Option<Part>, Error> {
    let Some(part) = folder.optional(name, &["i32"])? else { return Ok(None) };
    if part.shape != [n_inputs] {
        let what = format!("expected {n_inputs} numbers of i32, found i32 {:?}", part.shape);
        return Err(folder.fault(name, what));
    }
    let group = |input: &usize| part.word(folder.files, *input) as usize;
    match (0..n_inputs).find(|input| group(input) >= n_groups) {
        None => Ok(Some(part)),
        Some(input) => {
            let found = part.word(folder.files, input).cast_signed();
            let what = format!("expected groups below {n_groups}, found {found} at input {input}");
            Err(folder.fault(name, what))
        }
    }
}
