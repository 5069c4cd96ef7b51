//! Quantised folders: tensors that are made of several others, in formats that kernels read.
//!
//! In: a folder's configuration and its tensors. Out: the tensors that it stands for, each with its shape and format;
//! their bytes are made on first use and then stay in memory. A set that does not fit together is refused in one
//! sentence, and so is a method that is not known, by its name.
//! Which tensors belong together is known by one file for each method; all of them say it as a [`Matrix`] of codes with
//! factors, which chooses the format and writes it. Why matrices are not read as they are:
//! `docs/decisions/0010-packed-columns.md`.

use std::sync::OnceLock;

use fusebox_compiler::tensor::quant::Format;

use crate::error::{Error, quoted};
use crate::weights::made::matrix::Matrix;
use crate::weights::made::part::{Files, Folder};
use crate::weights::value::Value;

mod bits;
mod bitsandbytes;
mod compressed;
mod factors;
mod gptq;
mod matrix;
mod mlx;
pub(super) mod part;
mod tiles;

/// The methods that are known, for sentences.
const METHODS: &str =
    "gptq, awq, auto-round, compressed-tensors, fp8, fbgemm_fp8, modelopt, mxfp4, bitsandbytes or MLX's";

/// A tensor that is made of others.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) format: Format,
    pub(super) n_bytes: usize,
    matrix: Matrix,
    bytes: OnceLock<Vec<u8>>,
}

/// What becomes of a folder's tensors.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) made: Vec<Made>,
    /// Tensors that are not there any more.
    pub(super) taken: Vec<String>,
}

impl Made {
    /// The bytes of the tensor.
    pub(super) fn bytes(&self, files: &Files) -> &[u8] {
        self.bytes.get_or_init(|| self.matrix.bytes(files, self.format))
    }
}

impl Plan {
    /// Adds a tensor of this name and shape, in place of the parts that it is made of.
    fn add(
        &mut self,
        folder: &Folder,
        name: String,
        shape: Vec<usize>,
        matrix: Matrix,
        parts: impl IntoIterator<Item = String>,
    ) -> Result<(), Error> {
        let format = matrix.format(folder.files);
        let n_bytes = matrix.n_rows.checked_mul(matrix.n_columns).and_then(|n| format.bytes_for(n));
        let n_bytes = n_bytes.ok_or_else(|| folder.fault(&name, "expected a smaller tensor".to_owned()))?;
        self.taken.extend(parts);
        self.made.push(Made { name, shape, format, n_bytes, matrix, bytes: OnceLock::new() });
        Ok(())
    }
}

/// What becomes of the tensors of a folder.
pub(super) fn plan(folder: &Folder) -> Result<Plan, Error> {
    let mut plan = Plan::default();
    match folder.text("quant_method") {
        Some("gptq" | "awq" | "auto-round") => gptq::read(folder, &mut plan)?,
        Some("compressed-tensors") => compressed::read(folder, &mut plan)?,
        Some("modelopt") => compressed::read_modelopt(folder, &mut plan)?,
        Some("fp8" | "fbgemm_fp8") => tiles::read_fp8(folder, &mut plan)?,
        Some("mxfp4") => tiles::read_mxfp4(folder, &mut plan)?,
        Some("bitsandbytes") => bitsandbytes::read(folder, &mut plan)?,
        Some(other) => {
            let what = format!("expected {METHODS}, found {}", quoted(other));
            return Err(folder.unsupported("quant_method", what));
        }
        None if folder
            .config
            .get("quantization.bits")
            .is_some_and(|bits| matches!(bits, Value::Unsigned(_))) =>
        {
            mlx::read(folder, &mut plan)?;
        }
        None => {}
    }
    Ok(plan)
}
