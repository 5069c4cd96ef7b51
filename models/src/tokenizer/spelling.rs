//! How vocabularies write bytes as characters.
//!
//! In: the text of a token as its file has it. Out: the bytes it stands for, and the text of bytes.
//! Nothing is lost on the way: a text that is not in a spelling stands for itself.

/// The ways to write bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's: a printable character for each byte, so that `Ġ` is a space.
    Letters,
    /// That of `SentencePiece`: `▁` is a space, `<0x0A>` a byte, and everything else is itself.
    Pieces,
}

/// The space of [`Spelling::Pieces`].
pub(super) const SPACE: char = '▁';
/// Where GPT-2's letters for the bytes that do not print begin.
const FIRST_LETTER: u32 = 256;

impl Spelling {
    /// Adds the bytes that a token stands for.
    pub(super) fn add_bytes(self, text: &str, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        match self {
            Self::Letters => {
                for c in text.chars() {
                    let Some(byte) = byte(c) else {
                        bytes.truncate(start);
                        return bytes.extend(text.as_bytes());
                    };
                    bytes.push(byte);
                }
            }
            Self::Pieces => match hexadecimal(text) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(text.replace(SPACE, " ").as_bytes()),
            },
        }
    }
}

/// The byte of `<0x0A>`.
pub(super) fn hexadecimal(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's letter for a byte: itself if it prints, else the next of those from 256.
pub(super) fn letter(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => code,
        0..=0x20 => FIRST_LETTER + code,
        0x7f..=0xa0 => FIRST_LETTER + 0x21 + (code - 0x7f),
        0xad => FIRST_LETTER + 0x21 + 0x22,
    };
    char::from_u32(code).expect("all letters are below 0x144")
}

/// The byte of one of GPT-2's letters.
fn byte(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - FIRST_LETTER,
        0x121..=0x142 => code - FIRST_LETTER - 0x21 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(spelling: Spelling, text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        spelling.add_bytes(text, &mut bytes);
        bytes
    }

    #[test]
    fn every_byte_has_its_own_letter() {
        let letters: std::collections::BTreeSet<char> = (0..=255).map(letter).collect();
        assert_eq!(letters.len(), 256);
        assert!((0..=255).all(|b| byte(letter(b)) == Some(b)));
        assert_eq!((letter(b' '), letter(b'\n'), letter(b'a')), ('Ġ', 'Ċ', 'a'));
    }

    #[test]
    fn a_text_outside_of_the_spelling_stands_for_itself() {
        assert_eq!(bytes(Spelling::Letters, "Ġhi"), b" hi");
        assert_eq!(bytes(Spelling::Letters, "Ġ▁"), "Ġ▁".as_bytes());
        assert_eq!(bytes(Spelling::Pieces, "▁hi"), b" hi");
        assert_eq!(bytes(Spelling::Pieces, "<0x0A>"), b"\n");
        assert_eq!(bytes(Spelling::Pieces, "<0x+A>"), b"<0x+A>");
    }
}
