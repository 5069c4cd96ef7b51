//! JSON that comes in pieces: where a value ends, and how a call begins.
//!
//! In: text. Out: lengths. Nothing is parsed twice, and what is no JSON is said to be none.

/// How far into a value a text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    depth: usize,
    is_string: bool,
    is_escaped: bool,
}

impl Scan {
    /// How many bytes of `text` belong to the object or array that began before, and whether it ends there.
    pub(crate) fn push(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            if self.is_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
        }
        (text.len(), false)
    }
}

/// The length of the object or array at the start of a text, once it is complete.
pub(crate) fn end_of_value(text: &str) -> Option<usize> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let (n, is_over) = Scan::default().push(text);
    is_over.then_some(n)
}

/// The text after white space and one of these, or `None` where more text is needed.
fn eat<'a>(text: &'a str, expected: &[&str]) -> Result<Option<&'a str>, ()> {
    let text = text.trim_start();
    if let Some(rest) = expected.iter().find_map(|expected| text.strip_prefix(expected)) {
        return Ok(Some(rest));
    }
    if expected.iter().any(|expected| expected.starts_with(text)) { Ok(None) } else { Err(()) }
}

/// The name in `{"name": "…", "arguments": {`, and where the last brace is; `None` where more text is needed.
///
/// # Errors
/// Where the text begins in another way.
pub(crate) fn json_prefix(text: &str) -> Result<Option<(String, usize)>, ()> {
    let mut rest = text;
    for expected in ["{", "\"name\"", ":", "\""] {
        match eat(rest, &[expected])? {
            Some(after) => rest = after,
            None => return Ok(None),
        }
    }
    let Some(end) = rest.find('"') else { return Ok(None) };
    let name = &rest[..end];
    if name.contains('\\') {
        return Err(());
    }
    rest = &rest[end + 1..];
    for expected in [&[","][..], &["\"arguments\"", "\"parameters\""], &[":"]] {
        match eat(rest, expected)? {
            Some(after) => rest = after,
            None => return Ok(None),
        }
    }
    let value = rest.trim_start();
    match value.chars().next() {
        None => Ok(None),
        Some('{') => Ok(Some((name.to_owned(), text.len() - value.len()))),
        Some(_) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_do_not_count() {
        assert_eq!(end_of_value(r#"{"a": "}\"}", "b": [1]} x"#), Some(23));
        assert_eq!(end_of_value(r#"{"a": "}"#), None);
        assert_eq!(end_of_value("x"), None);
    }

    #[test]
    fn a_call_begins_with_its_name() {
        let text = r#" { "name" : "f", "arguments": {"a": 1}}"#;
        assert_eq!(json_prefix(text), Ok(Some(("f".to_owned(), 30))));
        for n in 0..30 {
            assert_eq!(json_prefix(&text[..n]), Ok(None), "{n}");
        }
        assert_eq!(json_prefix(r#"{"arguments": "#), Err(()));
        assert_eq!(json_prefix(r#"{"name": "f", "arguments": "x"#), Err(()));
    }
}
