//! Short names, kept in place.
//!
//! In: up to sixteen bytes of text. Out: a value that is copied and compared like an integer.
//! Axes, symbols and loop variables are named so; weights and states have longer names.

use std::fmt;

/// A short name kept in place: at most sixteen bytes, compared and copied like an integer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label([u8; 16]);

impl Label {
    /// The label of this text; nothing where the text is empty or longer than sixteen bytes.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let fits = !text.is_empty() && text.len() <= bytes.len() && !text.contains('\0');
        fits.then(|| {
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            Self(bytes)
        })
    }

    /// The text of the label.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..len]).unwrap_or("?")
    }

    /// `stem` with the smallest number that makes a name `taken` does not know.
    pub fn fresh(stem: &str, taken: impl Fn(Self) -> bool) -> Self {
        (0..u32::MAX)
            .filter_map(|n| Self::new(&format!("{stem}{n}")))
            .find(|label| !taken(*label))
            .expect("a stem of a few letters leaves room for a number")
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_fresh_ones_are_new() {
        assert!(Label::new("").is_none() && Label::new("seventeen_letters").is_none());
        let row0 = Label::new("row0").unwrap();
        assert_eq!(Label::fresh("row", |l| l == row0).as_str(), "row1");
    }
}
