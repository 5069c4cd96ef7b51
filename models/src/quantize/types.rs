//! The types that a model can be quantised to, by their names in llama.cpp.
//!
//! In: a name. Out: the format of most matrices, which of the others get a better one, and the number of the type in
//! GGUF (`general.file_type`).

use fusebox_compiler::tensor::quant::Format;

/// A quantisation type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: &'static str,
    /// The format of most matrices.
    pub format: Format,
    /// The value of `general.file_type`.
    pub(super) number: u64,
    pub(super) mix: Mix,
}

/// Which tensors get a better format than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// The output head only.
    Head,
    /// Also the value and down projections of the first blocks.
    Small,
    /// Also the value and down projections of half of the blocks.
    Medium,
    /// Also the output projections, and the others of all blocks.
    Large,
    /// Experts have the format, all others `Q8_0`.
    Experts,
}

const fn row(name: &'static str, format: Format, number: u64, mix: Mix) -> Type {
    Type { name, format, number, mix }
}

/// All types; the last three are short names.
pub const TYPES: [Type; 23] = [
    row("F32", Format::F32, 0, Mix::Head),
    row("F16", Format::F16, 1, Mix::Head),
    row("BF16", Format::BF16, 32, Mix::Head),
    row("Q8_0", Format::Q8_0, 7, Mix::Head),
    row("Q4_0", Format::Q4_0, 2, Mix::Head),
    row("Q4_1", Format::Q4_1, 3, Mix::Head),
    row("Q5_0", Format::Q5_0, 8, Mix::Head),
    row("Q5_1", Format::Q5_1, 9, Mix::Head),
    row("Q2_K", Format::Q2K, 10, Mix::Medium),
    row("Q3_K_S", Format::Q3K, 11, Mix::Head),
    row("Q3_K_M", Format::Q3K, 12, Mix::Medium),
    row("Q3_K_L", Format::Q3K, 13, Mix::Large),
    row("IQ4_XS", Format::IQ4XS, 30, Mix::Small),
    row("IQ4_NL", Format::IQ4NL, 25, Mix::Small),
    row("MXFP4_MOE", Format::MXFP4, 38, Mix::Experts),
    row("Q4_K_S", Format::Q4K, 14, Mix::Small),
    row("Q4_K_M", Format::Q4K, 15, Mix::Medium),
    row("Q5_K_S", Format::Q5K, 16, Mix::Head),
    row("Q5_K_M", Format::Q5K, 17, Mix::Medium),
    row("Q6_K", Format::Q6K, 18, Mix::Head),
    row("Q3_K", Format::Q3K, 12, Mix::Medium),
    row("Q4_K", Format::Q4K, 15, Mix::Medium),
    row("Q5_K", Format::Q5K, 17, Mix::Medium),
];

impl Type {
    /// The type of this name, in upper or lower case.
    pub fn named(name: &str) -> Option<Self> {
        TYPES.into_iter().find(|ty| ty.name.eq_ignore_ascii_case(name))
    }

    /// All names, for errors.
    pub fn names() -> String {
        TYPES.map(|ty| ty.name).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(Type::named("q4_k_m").map(|ty| (ty.name, ty.number)), Some(("Q4_K_M", 15)));
        assert_eq!(Type::named("Q5_K").map(|ty| ty.number), Type::named("Q5_K_M").map(|ty| ty.number));
        assert_eq!(Type::named("Q1_K"), None);
        assert!(TYPES.iter().all(|ty| Type::named(ty.name) == Some(*ty)));
    }
}
