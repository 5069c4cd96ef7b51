//! GGUF files, written piece by piece.
//!
//! In: pairs and tensors, each with whatever a hostile writer may claim. Out: the bytes of a file.

/// The number of the type of bytes.
pub const U8: u32 = 0;
/// The number of the type of whole numbers of 32 bits.
pub const U32: u32 = 4;
/// The number of the type of single precision.
pub const F32: u32 = 6;
/// The number of the type of truth values.
pub const BOOL: u32 = 7;
/// The number of the type of strings.
pub const TEXT: u32 = 8;
/// The number of the type of lists.
pub const LIST: u32 = 9;

/// A file in the making; each part is what stands in the file, right or wrong.
#[derive(Clone)]
pub struct Writer {
    /// The first four bytes.
    pub magic: [u8; 4],
    /// The version.
    pub version: u32,
    /// How many tensors it claims to have, if not those it has.
    pub n_tensors: Option<u64>,
    /// The same of pairs.
    pub n_pairs: Option<u64>,
    /// Pairs, as [`pair`] makes them.
    pub pairs: Vec<Vec<u8>>,
    /// Descriptions, as [`tensor`] makes them.
    pub tensors: Vec<Vec<u8>>,
    /// What the data starts at a multiple of.
    pub alignment: usize,
    /// The bytes of all tensors.
    pub data: Vec<u8>,
}

/// A string, after its length.
pub fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// A key with a value of a type, already in bytes.
pub fn pair(key: &str, kind: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    [text(key), kind.to_le_bytes().to_vec(), value.as_ref().to_vec()].concat()
}

/// The bytes of a list's type and length, then of its elements.
pub fn list(kind: u32, n: u64, elements: impl AsRef<[u8]>) -> Vec<u8> {
    [&kind.to_le_bytes(), &n.to_le_bytes()[..], elements.as_ref()].concat()
}

/// A tensor's description; sizes with the innermost first, as the file has them.
pub fn tensor(name: &str, sizes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let sizes_bytes: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
    let n_dims = (sizes.len() as u32).to_le_bytes();
    [&text(name)[..], &n_dims, &sizes_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl Writer {
    /// A good file: three pairs and two tensors.
    pub fn good() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_pairs: None,
            pairs: vec![
                pair("general.architecture", TEXT, text("qwen3")),
                pair("qwen3.block_count", U32, 2u32.to_le_bytes()),
                pair("tokens", LIST, list(TEXT, 9, text("a").repeat(9))),
            ],
            tensors: vec![tensor("norm", &[3], 0, 0), tensor("proj", &[32, 2], 8, 32)],
            alignment: 32,
            data: [[1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat(), vec![0; 20], vec![7; 68]].concat(),
        }
    }

    /// All but the data, which starts at the next multiple of the alignment.
    fn header(&self) -> Vec<u8> {
        let n_tensors = self.n_tensors.unwrap_or(self.tensors.len() as u64);
        let n_pairs = self.n_pairs.unwrap_or(self.pairs.len() as u64);
        let head =
            [&self.magic[..], &self.version.to_le_bytes(), &n_tensors.to_le_bytes(), &n_pairs.to_le_bytes()];
        [head.concat(), self.pairs.concat(), self.tensors.concat()].concat()
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        [bytes, self.data.clone()].concat()
    }
}
