//! The architecture that the head of a GGUF file names.
//!
//! In: the first bytes of a file. Out: the value of `general.architecture`, or that it needs more bytes.
//! Only keys are walked over; what they hold is checked when the whole file is opened.

/// What the first bytes say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// The architecture; none where no key names one.
    Known(Option<String>),
    /// The key may come later.
    NeedsMore,
    /// This is no GGUF file.
    Other,
}

/// Bytes of a value of each type with a fixed size; types count from 0.
const SIZES: [Option<usize>; 13] = [
    Some(1),
    Some(1),
    Some(2),
    Some(2),
    Some(4),
    Some(4),
    Some(4),
    Some(1),
    None,
    None,
    Some(8),
    Some(8),
    Some(8),
];
const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Bytes that are read from the front.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, n: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let n = usize::try_from(self.u64()?).ok()?;
        self.take(n)
    }

    /// Skips a value of a type; nothing where bytes are missing.
    fn skip(&mut self, kind: u32) -> Option<()> {
        match kind {
            TEXT => self.text().map(|_| ()),
            LIST => {
                let (kind, n) = (self.u32()?, self.u64()?);
                match SIZES.get(kind as usize).copied().flatten() {
                    Some(size) => self.take(size.checked_mul(usize::try_from(n).ok()?)?).map(|_| ()),
                    None => (0..n).try_for_each(|_| self.skip(kind)),
                }
            }
            kind => self.take(SIZES.get(kind as usize).copied().flatten()?).map(|_| ()),
        }
    }
}

/// What the first bytes of a file say.
pub(crate) fn head(bytes: &[u8]) -> Head {
    let mut reader = Reader(bytes);
    match reader.take(4) {
        Some(b"GGUF") => {}
        Some(_) => return Head::Other,
        None => return Head::NeedsMore,
    }
    let mut architecture = || {
        let (_version, _n_tensors, n_keys) = (reader.u32()?, reader.u64()?, reader.u64()?);
        for _ in 0..n_keys {
            let (key, kind) = (reader.text()?, reader.u32()?);
            if key == b"general.architecture" && kind == TEXT {
                return Some(Some(String::from_utf8_lossy(reader.text()?).into_owned()));
            }
            reader.skip(kind)?;
        }
        Some(None)
    };
    architecture().map_or(Head::NeedsMore, Head::Known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_story_model_names_its_architecture() {
        let story = include_bytes!("../../assets/story.gguf");
        let Head::Known(Some(name)) = head(story) else { panic!("it has one") };
        assert_eq!(name, "qwen3");
        assert_eq!(head(&story[..20]), Head::NeedsMore);
        assert_eq!(head(b"PK\x03\x04"), Head::Other);
    }

    #[test]
    fn lists_are_walked_over() {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let number = |n: u64| n.to_le_bytes().to_vec();
        let kind = |kind: u32| kind.to_le_bytes().to_vec();
        let list = [text("a"), kind(LIST), kind(TEXT), number(2), text("x"), text("yz")].concat();
        let key = [text("general.architecture"), kind(TEXT), text("qwen3")].concat();
        let start = [b"GGUF".to_vec(), kind(3), number(0), number(2)].concat();
        let whole = [start, list, key].concat();
        assert_eq!(head(&whole), Head::Known(Some("qwen3".to_owned())));
        for n in 4..whole.len() {
            assert_eq!(head(&whole[..n]), Head::NeedsMore, "{n}");
        }
    }
}
