//! Formats that some tensors get instead of what their type says.
//!
//! In: patterns of names with formats, as llama.cpp's `--tensor-type` takes them, and formats of both ends of a model.
//! Out: the format of a tensor. A pattern is a regular expression that is found somewhere in the name; of several that
//! match the first one holds, and the formats of both ends hold before all patterns.

use fancy_regex::Regex;
use fusebox_compiler::tensor::quant::Format;

use crate::quantize::tensor_format::{Choice, Model, choose, fitting, is_matrix};
use crate::quantize::types::Type;

/// Formats that a user wants.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    patterns: Vec<(Regex, Format)>,
    output: Option<Format>,
    embedding: Option<Format>,
}

impl Overrides {
    /// Formats of the output head and of the embedding matrix.
    pub fn of_ends(output: Option<Format>, embedding: Option<Format>) -> Self {
        Self { output, embedding, ..Self::default() }
    }

    /// Adds `NAME=TYPE`.
    ///
    /// # Errors
    /// One sentence.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let shown = text.escape_debug();
        let parts = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let (name, format) = parts.ok_or_else(|| format!("`{shown}`, expected NAME=TYPE"))?;
        let pattern = Regex::new(name).map_err(|_| format!("`{shown}`, expected a pattern of names"))?;
        self.patterns.push((pattern, written(format)?));
        Ok(())
    }

    /// A pattern that none of these names matches.
    pub(super) fn unmatched(&self, names: &[&str]) -> Option<&str> {
        let is_found = |pattern: &Regex| names.iter().any(|name| pattern.is_match(name).unwrap_or(false));
        self.patterns.iter().map(|(pattern, _)| pattern).find(|own| !is_found(own)).map(Regex::as_str)
    }

    /// The format of a tensor; `None` where it stays as it is.
    pub(super) fn choose(
        &self,
        ty: Option<Type>,
        model: Model,
        name: &str,
        shape: &[usize],
    ) -> Option<Choice> {
        match self.format(model, name).filter(|_| is_matrix(name, shape)) {
            Some(format) => Some(fitting(format, shape)),
            None => choose(ty?, model, name, shape),
        }
    }

    fn format(&self, model: Model, name: &str) -> Option<Format> {
        let is_table = name == "token_embd.weight";
        let is_head = name == "output.weight" || is_table && !model.has_head;
        let found = self.patterns.iter().find(|(pattern, _)| pattern.is_match(name).unwrap_or(false));
        let of_table = self.embedding.filter(|_| is_table);
        let of_head = self.output.filter(|_| is_head);
        of_table.or(of_head).or(found.map(|(_, format)| *format))
    }
}

/// A format that can be written, by its name.
///
/// # Errors
/// One sentence with those that there are.
pub fn written(name: &str) -> Result<Format, String> {
    let found = Format::named(&name.to_ascii_lowercase()).filter(|format| format.is_encoded());
    found.ok_or_else(|| {
        let names = Format::FIXED.into_iter().filter(|format| format.is_encoded()).map(Format::name);
        format!("`{}`, expected one of {}", name.escape_debug(), names.collect::<Vec<_>>().join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_holds_and_both_ends_before_all() {
        let mut overrides = Overrides::of_ends(Some(Format::Q8_0), None);
        for text in [r"blk\.[01]\.ffn=Q4_K", "ffn_down=q8_0", "output=q4_0"] {
            overrides.add(text).unwrap();
        }
        let model = Model { has_head: true, ..Model::default() };
        let format = |name: &str, shape: &[usize]| {
            let ty = Type::named("F16");
            overrides.choose(ty, model, name, shape).map(|choice| (choice.format, choice.is_fallback))
        };
        assert_eq!(format("blk.0.ffn_down.weight", &[64, 256]), Some((Format::Q4K, false)));
        assert_eq!(format("blk.0.ffn_down.weight", &[256, 64]), Some((Format::Q5_0, true)));
        assert_eq!(format("blk.2.ffn_down.weight", &[64, 256]), Some((Format::Q8_0, false)));
        assert_eq!(format("blk.2.attn_output.weight", &[64, 64]), Some((Format::Q4_0, false)));
        assert_eq!(format("output.weight", &[64, 64]), Some((Format::Q8_0, false)));
        assert_eq!(format("blk.0.attn_q.weight", &[64, 64]), Some((Format::F16, false)));
        assert_eq!(format("blk.0.ffn_norm.weight", &[64]), None);
        assert_eq!(overrides.choose(None, model, "blk.0.attn_q.weight", &[64, 64]), None);
    }

    #[test]
    fn a_bad_one_says_what_is_taken() {
        let fault = |text: &str| Overrides::default().add(text).unwrap_err();
        assert!(fault("ffn_down").contains("expected NAME=TYPE"));
        assert!(fault("(=q8_0").contains("expected a pattern"));
        assert!(fault("ffn_down=q9").contains("q4_k"));
    }
}
