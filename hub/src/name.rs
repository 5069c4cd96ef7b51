//! The name of a model: `owner/name`, and after a colon its quantisation.
//!
//! In: a text. Out: its parts, or that it is no such name. Names are checked before they become parts of paths and
//! addresses.

use std::fmt::{Display, Formatter, Result as Written};

/// The longest part of a name.
const MAX_LEN: usize = 96;

/// A repository, and which of its quantisations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Who published it.
    pub owner: String,
    /// The name of the repository.
    pub name: String,
    /// The quantisation, such as `Q4_K_M`.
    pub quant: Option<String>,
}

impl Name {
    /// The parts of `owner/name` or `owner/name:quant`; nothing where the text is no such name.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("hf.co/").unwrap_or(text);
        let (repository, quant) = match text.split_once(':') {
            Some((repository, quant)) => (repository, Some(quant)),
            None => (text, None),
        };
        let (owner, name) = repository.split_once('/')?;
        let is_word = |word: &&str| {
            let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
            (1..=MAX_LEN).contains(&word.len()) && is_plain && !word.starts_with('.') && !word.contains("..")
        };
        let all_are_words = [owner, name].iter().chain(quant.as_ref()).all(is_word);
        all_are_words.then(|| Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            quant: quant.map(str::to_owned),
        })
    }

    /// `owner/name`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The folder of the repository in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }

    /// The name whose folder this is.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
        Self::parse(&format!("{owner}/{name}"))
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}/{}", self.owner, self.name)?;
        self.quant.iter().try_for_each(|quant| write!(f, ":{quant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_nothing_else() {
        let name = Name::parse("Qwen/Qwen3-0.6B-GGUF:Q8_0").unwrap();
        assert_eq!(
            (name.repository().as_str(), name.quant.as_deref()),
            ("Qwen/Qwen3-0.6B-GGUF", Some("Q8_0"))
        );
        assert_eq!(Name::of_folder(&name.folder()).unwrap().repository(), name.repository());
        for text in ["qwen", "a/b/c", "../b", "a/..", "a/b:", "a/b c", "/b", "a/", "a/b:x/y", "a/.b"] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }
}
