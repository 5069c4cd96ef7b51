//! The tensors that a quantised folder stands for.
//!
//! In: a matrix of codes with factors, and the names of the tensors that it consists of. Out: a tensor in a format that
//! kernels read, whose bytes are made on first use and then stay in memory.

use std::sync::OnceLock;

use fusebox_compiler::tensor::quant::Format;

use crate::error::Error;
use crate::weights::made::matrix::Matrix;
use crate::weights::made::part::{Files, Folder};

/// A tensor that is made of others.
#[derive(Debug)]
pub(in crate::weights) struct Made {
    pub(in crate::weights) name: String,
    pub(in crate::weights) shape: Vec<usize>,
    pub(in crate::weights) format: Format,
    pub(in crate::weights) n_bytes: usize,
    matrix: Matrix,
    bytes: OnceLock<Vec<u8>>,
}

/// What becomes of a folder's tensors.
#[derive(Debug, Default)]
pub(in crate::weights) struct Unpacked {
    pub(in crate::weights) made: Vec<Made>,
    /// Tensors that are not there any more.
    pub(in crate::weights) taken: Vec<String>,
}

impl Made {
    /// The bytes of the tensor.
    pub(in crate::weights) fn bytes(&self, files: &Files) -> &[u8] {
        self.bytes.get_or_init(|| self.matrix.bytes(files, self.format))
    }
}

impl Unpacked {
    /// Adds a tensor of this name and shape, in place of the parts that it is made of.
    pub(super) fn add(
        &mut self,
        folder: &Folder,
        name: String,
        shape: Vec<usize>,
        matrix: Matrix,
        parts: impl IntoIterator<Item = String>,
    ) -> Result<(), Error> {
        // Rows without elements may be more than anyone waits for.
        if matrix.n_rows == 0 || matrix.n_columns == 0 {
            return Err(folder.fault(&name, format!("expected a matrix with elements, found {shape:?}")));
        }
        let format = matrix.format(folder.files);
        let n_bytes = matrix.n_rows.checked_mul(matrix.n_columns).and_then(|n| format.bytes_for(n));
        let n_bytes = n_bytes.ok_or_else(|| folder.fault(&name, "expected a smaller tensor".to_owned()))?;
        self.taken.extend(parts);
        self.made.push(Made { name, shape, format, n_bytes, matrix, bytes: OnceLock::new() });
        Ok(())
    }
}
