//! GPTQ and AWQ: 4-bit matrices, repacked into blocks that kernels read.
//!
//! In: the tensors of a folder whose configuration names one of the two. Out: for each set of `qweight`, `qzeros` and
//! `scales` one tensor `weight` `[outputs, inputs]` in a block format; its bytes are made on first use and then stay in
//! memory. A set that cannot be repacked exactly is refused in one sentence.
//! Both pack columns into words, which no kernel can read along a row. An element is `scale * (q - zero)` with `q`
//! below 16 and `zero` from 0 to 16: with the five bits of `Q5_0` that is `scale * (q' - 16)`, and where every zero is
//! 8, the four of `Q4_0` are enough. Both are exact, as the scales are half precision before and after.
//! Why they are not read as they are: `docs/decisions/0010-packed-columns.md`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fusebox_compiler::tensor::quant::Format;

use crate::error::{Error, Place, quoted};
use crate::weights::mapping::Mapping;
use crate::weights::value::Value;
use crate::weights::{Checkpoint, Contents, Remade, Stored, TensorInfo};

/// Elements of a block, and of a whole number.
const BLOCK: usize = 32;
const PER_WORD: usize = 8;
/// Where AWQ puts each of eight neighbours, from the lowest bits on.
const AWQ_PLACES: [usize; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix that is made of packed ones.
#[derive(Debug)]
pub(super) struct Packed {
    weights: TensorInfo,
    zeros: TensorInfo,
    scales: TensorInfo,
    layout: Layout,
    n_inputs: usize,
    n_outputs: usize,
    /// Inputs that share a scale.
    group: usize,
    format: Format,
    bytes: OnceLock<Vec<u8>>,
}

/// How numbers are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Eight inputs in a word; what a stored zero lacks to the real one is added.
    Gptq { lacking: u32 },
    /// Eight outputs in a word.
    Awq,
}

type Files = [(PathBuf, Mapping)];

/// Repacks the matrices of a folder into blocks, where its configuration says that they are packed.
pub(super) fn unpack(folder: &Path, checkpoint: &mut Checkpoint) -> Result<(), Error> {
    let Some(layout) = layout(folder, &checkpoint.contents)? else { return Ok(()) };
    let names: Vec<String> = checkpoint.tensors().keys().cloned().collect();
    for name in names.iter().filter_map(|name| name.strip_suffix(".qweight")) {
        let packed = Packed::read(checkpoint, layout, name);
        let packed = packed
            .map_err(|(part, what)| Error::input(folder, Place::Tensor(format!("{name}.{part}")), what))?;
        for part in ["qweight", "qzeros", "scales", "g_idx"] {
            checkpoint.contents.tensors.shift_remove(&format!("{name}.{part}"));
        }
        let shape = vec![packed.n_outputs, packed.n_inputs];
        let range = 0..packed.n_bytes();
        let stored = Stored::As(packed.format);
        let info = TensorInfo { shape, stored, file_idx: 0, remade: Some(checkpoint.remade.len()), range };
        checkpoint.contents.tensors.insert(format!("{name}.weight"), info);
        checkpoint.remade.push(Remade::Packed(packed));
    }
    Ok(())
}

/// How a folder says that its matrices are packed, if they are.
fn layout(folder: &Path, contents: &Contents) -> Result<Option<Layout>, Error> {
    let value = |name: &str| contents.metadata.get(&format!("quantization_config.{name}"));
    let Some(method) = value("quant_method").and_then(Value::as_text) else { return Ok(None) };
    let refuse = |name: &str, what: String| {
        let place = Place::Key(format!("quantization_config.{name}"));
        Err(Error::Unsupported { path: folder.to_owned(), place, what })
    };
    let bits = value("bits").and_then(Value::to_u64);
    if bits != Some(4) && ["gptq", "awq"].contains(&method) {
        let found = bits.map_or("none".to_owned(), |bits| bits.to_string());
        return refuse("bits", format!("expected 4, found {found}"));
    }
    match (method, value("checkpoint_format").or(value("version")).and_then(Value::as_text)) {
        ("gptq", Some("gptq_v2")) => Ok(Some(Layout::Gptq { lacking: 0 })),
        ("gptq", Some("gptq") | None) => Ok(Some(Layout::Gptq { lacking: 1 })),
        ("awq", Some("gemm" | "GEMM") | None) => Ok(Some(Layout::Awq)),
        ("gptq", Some(other)) => {
            refuse("checkpoint_format", format!("expected gptq or gptq_v2, found {}", quoted(other)))
        }
        ("awq", Some(other)) => refuse("version", format!("expected gemm, found {}", quoted(other))),
        // Their scales lie in other tensors: `scaled.rs`.
        ("fp8" | "mxfp4", _) => Ok(None),
        (other, _) => {
            let what = format!("expected gptq, awq, fp8 or mxfp4, found {}", quoted(other));
            refuse("quant_method", what)
        }
    }
}

/// What is wrong with which part of a set.
type Fault = (&'static str, String);

impl Packed {
    fn read(checkpoint: &Checkpoint, layout: Layout, name: &str) -> Result<Self, Fault> {
        let part = |part: &'static str, format: Format| {
            let info = checkpoint.tensors().get(&format!("{name}.{part}"));
            let info = info.ok_or_else(|| (part, "expected a tensor, found none".to_owned()))?;
            let is_matrix = info.shape.len() == 2 && info.stored == Stored::As(format);
            let found =
                || (part, format!("expected a matrix of {format}, found {} {:?}", info.stored, info.shape));
            if is_matrix { Ok(info.clone()) } else { Err(found()) }
        };
        let (weights, zeros) = (part("qweight", Format::I32)?, part("qzeros", Format::I32)?);
        let scales = part("scales", Format::F16)?;
        let (rows, columns) = (weights.shape[0], weights.shape[1]);
        let wide =
            |n: usize| n.checked_mul(PER_WORD).ok_or(("qweight", "expected a smaller matrix".to_owned()));
        let (n_inputs, n_outputs) = match layout {
            Layout::Gptq { .. } => (wide(rows)?, columns),
            Layout::Awq => (rows, wide(columns)?),
        };
        let n_groups = scales.shape[0];
        let group = n_inputs.checked_div(n_groups).unwrap_or(0);
        let is_even = group > 0 && group * n_groups == n_inputs && group.is_multiple_of(BLOCK);
        if !is_even || n_outputs == 0 || !n_outputs.is_multiple_of(PER_WORD) {
            let found = format!("found {n_groups} of {n_inputs}, and {n_outputs} outputs");
            let what = format!("expected groups of a multiple of {BLOCK} inputs, {found}");
            return Err(("scales", what));
        }
        for (part, info, width) in [("scales", &scales, n_outputs), ("qzeros", &zeros, n_outputs / PER_WORD)]
        {
            if info.shape != [n_groups, width] {
                return Err((
                    part,
                    format!("expected the shape {:?}, found {:?}", [n_groups, width], info.shape),
                ));
            }
        }
        check_order(checkpoint, name, group, n_inputs)?;
        let bytes = OnceLock::new();
        let mut packed =
            Self { weights, zeros, scales, layout, n_inputs, n_outputs, group, format: Format::Q5_0, bytes };
        if packed.is_even(&checkpoint.files) {
            packed.format = Format::Q4_0;
        }
        Ok(packed)
    }

    /// Whether every zero is in the middle.
    fn is_even(&self, files: &Files) -> bool {
        let groups = 0..self.n_inputs / self.group;
        groups.into_iter().all(|group| (0..self.n_outputs).all(|output| self.zero(files, group, output) == 8))
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.n_inputs / BLOCK * self.n_outputs * self.format.block_bytes()
    }

    /// The blocks, made on first use.
    pub(super) fn bytes(&self, files: &Files) -> &[u8] {
        self.bytes.get_or_init(|| {
            let mut bytes = vec![0; self.n_bytes()];
            let (block_bytes, n_blocks) = (self.format.block_bytes(), self.n_inputs / BLOCK);
            for block in 0..n_blocks {
                for output in 0..self.n_outputs {
                    let at = (output * n_blocks + block) * block_bytes;
                    self.put(files, block, output, &mut bytes[at..at + block_bytes]);
                }
            }
            bytes
        })
    }

    /// Writes a block: its scale, fifth bits where there are any, and nibbles by halves.
    fn put(&self, files: &Files, block: usize, output: usize, to: &mut [u8]) {
        let group = block * BLOCK / self.group;
        to[..2].copy_from_slice(&half(files, &self.scales, group * self.n_outputs + output));
        let zero = self.zero(files, group, output);
        let (middle, n_top) = if self.format == Format::Q4_0 { (8, 0) } else { (16, 4) };
        let (top, nibbles) = to[2..].split_at_mut(n_top);
        for i in 0..BLOCK {
            // From -16 to 15, so it fits both.
            let q = self.quantum(files, block * BLOCK + i, output) + middle - zero;
            nibbles[i % 16] |= ((q & 15) as u8) << (i / 16 * 4);
            if let Some(top) = top.get_mut(i / 8) {
                *top |= ((q >> 4) as u8) << (i % 8);
            }
        }
    }

    fn quantum(&self, files: &Files, input: usize, output: usize) -> u32 {
        match self.layout {
            Layout::Gptq { .. } => {
                let word = word(files, &self.weights, input / PER_WORD * self.n_outputs + output);
                (word >> (input % PER_WORD * 4)) & 15
            }
            Layout::Awq => self.across(files, &self.weights, input, output),
        }
    }

    /// What is taken off the numbers of a group.
    fn zero(&self, files: &Files, group: usize, output: usize) -> u32 {
        match self.layout {
            Layout::Gptq { lacking } => {
                let word = word(files, &self.zeros, (group * self.n_outputs + output) / PER_WORD);
                ((word >> (output % PER_WORD * 4)) & 15) + lacking
            }
            Layout::Awq => self.across(files, &self.zeros, group, output),
        }
    }

    /// A number of AWQ, which packs eight outputs into a word.
    fn across(&self, files: &Files, info: &TensorInfo, row: usize, output: usize) -> u32 {
        let word = word(files, info, (row * self.n_outputs + output) / PER_WORD);
        (word >> (AWQ_PLACES[output % PER_WORD] * 4)) & 15
    }
}

/// The inputs come in the order of their groups.
fn check_order(checkpoint: &Checkpoint, name: &str, group: usize, n_inputs: usize) -> Result<(), Fault> {
    let Some(info) = checkpoint.tensors().get(&format!("{name}.g_idx")) else { return Ok(()) };
    if info.shape != [n_inputs] || info.stored != Stored::As(Format::I32) {
        return Err((
            "g_idx",
            format!("expected {n_inputs} numbers of i32, found {} {:?}", info.stored, info.shape),
        ));
    }
    let is_in_order = |input: usize| word(&checkpoint.files, info, input) as usize == input / group;
    match (0..n_inputs).find(|input| !is_in_order(*input)) {
        None => Ok(()),
        Some(input) => {
            let what = format!(
                "expected inputs in the order of their groups, found another order (desc_act) at input {input}"
            );
            Err(("g_idx", what))
        }
    }
}

/// A 32-bit word of a tensor whose length was checked.
fn word(files: &Files, info: &TensorInfo, idx: usize) -> u32 {
    let bytes = &files[info.file_idx].1.bytes()[info.range.clone()];
    u32::from_le_bytes(std::array::from_fn(|i| bytes[idx * 4 + i]))
}

/// The bytes of a number of half precision.
fn half(files: &Files, info: &TensorInfo, idx: usize) -> [u8; 2] {
    let bytes = &files[info.file_idx].1.bytes()[info.range.clone()];
    [bytes[idx * 2], bytes[idx * 2 + 1]]
}
