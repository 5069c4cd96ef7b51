//! How vocabularies write the bytes of tokens as characters.
//!
//! In: the text of a token in its file. Out: its bytes; and the characters of bytes.
//! A text that does not follow the encoding stands for itself.

/// The encodings of bytes as characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteEncoding {
    /// GPT-2's byte-level encoding: a printable character for each byte, such as `Ġ` for a space.
    Gpt2,
    /// `SentencePiece`: `▁` is a space, `<0x0A>` a byte, and everything else is itself.
    SentencePiece,
    /// `WordPiece`: a token that starts with `##` continues a word, any other starts one.
    WordPiece,
}

/// What tokens that continue a word start with.
pub(super) const CONTINUES: &str = "##";

/// The space of [`ByteEncoding::SentencePiece`].
pub(super) const SPACE: char = '▁';
/// The first of GPT-2's characters for bytes that do not print.
const FIRST_SUBSTITUTE: u32 = 256;

impl ByteEncoding {
    /// Appends the bytes of a token.
    pub(super) fn add_bytes(self, text: &str, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        match self {
            Self::Gpt2 => {
                for c in text.chars() {
                    let Some(byte) = byte(c) else {
                        bytes.truncate(start);
                        return bytes.extend(text.as_bytes());
                    };
                    bytes.push(byte);
                }
            }
            Self::WordPiece => match text.strip_prefix(CONTINUES) {
                Some(rest) if !rest.is_empty() => bytes.extend(rest.as_bytes()),
                Some(_) | None => bytes.extend([b" ", text.as_bytes()].concat()),
            },
            Self::SentencePiece => match byte_fallback_value(text) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(text.replace(SPACE, " ").as_bytes()),
            },
        }
    }
}

/// The byte of a byte token such as `<0x0A>`.
pub(super) fn byte_fallback_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's character for a byte: itself if it prints, else the next one from U+0100 on.
pub(super) fn gpt2_char(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => code,
        0..=0x20 => FIRST_SUBSTITUTE + code,
        0x7f..=0xa0 => FIRST_SUBSTITUTE + 0x21 + (code - 0x7f),
        0xad => FIRST_SUBSTITUTE + 0x21 + 0x22,
    };
    char::from_u32(code).expect("all characters are below 0x144")
}

/// The byte of one of GPT-2's characters.
fn byte(gpt2_char: char) -> Option<u8> {
    let code = u32::from(gpt2_char);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - FIRST_SUBSTITUTE,
        0x121..=0x142 => code - FIRST_SUBSTITUTE - 0x21 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(encoding: ByteEncoding, text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        encoding.add_bytes(text, &mut bytes);
        bytes
    }

    #[test]
    fn every_byte_has_its_own_character() {
        let letters: std::collections::BTreeSet<char> = (0..=255).map(gpt2_char).collect();
        assert_eq!(letters.len(), 256);
        assert!((0..=255).all(|b| byte(gpt2_char(b)) == Some(b)));
        assert_eq!((gpt2_char(b' '), gpt2_char(b'\n'), gpt2_char(b'a')), ('Ġ', 'Ċ', 'a'));
    }

    #[test]
    fn a_text_outside_of_the_encoding_stands_for_itself() {
        assert_eq!(bytes(ByteEncoding::Gpt2, "Ġhi"), b" hi");
        assert_eq!(bytes(ByteEncoding::Gpt2, "Ġ▁"), "Ġ▁".as_bytes());
        assert_eq!(bytes(ByteEncoding::SentencePiece, "▁hi"), b" hi");
        assert_eq!(bytes(ByteEncoding::SentencePiece, "<0x0A>"), b"\n");
        assert_eq!(bytes(ByteEncoding::SentencePiece, "<0x+A>"), b"<0x+A>");
        assert_eq!(bytes(ByteEncoding::WordPiece, "hi"), b" hi");
        assert_eq!(bytes(ByteEncoding::WordPiece, "##hi"), b"hi");
        assert_eq!(bytes(ByteEncoding::WordPiece, "##"), b" ##");
    }
}
