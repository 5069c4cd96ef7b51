//! Quantised folders: tensors that are made of several others, in formats that kernels read.
//!
//! In: a folder's configuration and its tensors. Out: the tensors that it stands for, each with its shape and format;
//! their bytes are made on first use and then stay in memory. A set that does not fit together is refused in one
//! sentence, and so is a method that is not known, by its name.
//! Which tensors belong together is known by one file for each method; all of them say it as a matrix of codes with
//! factors (`matrix.rs`), which chooses the format and writes it. Why matrices are not read as they are:
//! `docs/decisions/0010-packed-columns.md`.

use crate::error::{Error, quoted};
use crate::weights::made::part::Folder;
use crate::weights::made::unpacked::Unpacked;

mod bits;
mod bitsandbytes;
mod compressed;
mod factors;
mod gptq;
pub(super) mod matrix;
mod mlx;
pub(super) mod part;
mod tiles;
pub(super) mod unpacked;

/// The methods that are known, for sentences.
const METHODS: &str =
    "gptq, awq, auto-round, compressed-tensors, fp8, fbgemm_fp8, modelopt, mxfp4, bitsandbytes or MLX's";

/// What becomes of the tensors of a folder.
pub(super) fn unpack(folder: &Folder) -> Result<Unpacked, Error> {
    let mut to = Unpacked::default();
    match folder.text("quant_method") {
        Some("gptq" | "awq" | "auto-round") => gptq::read(folder, &mut to)?,
        Some("compressed-tensors") => compressed::read(folder, &mut to)?,
        Some("modelopt") => compressed::read_modelopt(folder, &mut to)?,
        Some("fp8" | "fbgemm_fp8") => tiles::read_fp8(folder, &mut to)?,
        Some("mxfp4") => tiles::read_mxfp4(folder, &mut to)?,
        Some("bitsandbytes") => bitsandbytes::read(folder, &mut to)?,
        Some(other) => {
            let what = format!("expected {METHODS}, found {}", quoted(other));
            return Err(folder.unsupported("quant_method", what));
        }
        None if mlx::is_said(folder) => mlx::read(folder, &mut to)?,
        None => {}
    }
    Ok(to)
}
