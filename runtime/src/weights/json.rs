//! JSON of others: objects that keep their order and may have no duplicate names.
//!
//! In: the bytes of a JSON text. Out: an [`Entries`] of any type of values, or the byte at which it is wrong.
//! Ordinary readers of JSON silently keep the last of two equal names; here that is an error.

use std::fmt;
use std::marker::PhantomData;

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::quoted;
use crate::files;

/// An object in its own order.
pub(super) struct Entries<V>(pub(super) IndexMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<V>, A::Error> {
        let mut entries = IndexMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if entries.contains_key(&name) {
                return Err(A::Error::custom(format!("{} comes twice", quoted(&name))));
            }
            let value = map.next_value()?;
            entries.insert(name, value);
        }
        Ok(Entries(entries))
    }
}

/// Reads a text; where that fails, the byte it fails at and what is wrong there.
pub(super) fn parse<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, (u64, String)> {
    serde_json::from_slice(bytes).map_err(|error| {
        let fault = files::fault_of_json(&error);
        let fault = fault.rsplit_once(" at line ").map_or(fault.as_str(), |(what, _)| what);
        (offset(bytes, error.line(), error.column()) as u64, fault.to_owned())
    })
}

/// The offset of a line and a column, both counted from 1.
fn offset(bytes: &[u8], line: usize, column: usize) -> usize {
    let before = bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1));
    let start: usize = before.map(<[u8]>::len).sum();
    (start + column.saturating_sub(1)).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> (u64, String) {
        parse::<Entries<u32>>(text.as_bytes()).map(|_| ()).unwrap_err()
    }

    #[test]
    fn order_is_kept_and_names_differ() {
        let entries: Entries<u32> = parse(b"{\"b\": 1, \"a\": 2}").ok().unwrap();
        assert_eq!(entries.0.keys().collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(complaint("{\"b\": 1, \"b\": 2}").1, "expected JSON of another form: `b` comes twice");
    }

    #[test]
    fn complaints_have_a_byte_and_fit_on_a_line() {
        assert_eq!(
            complaint("{\n\"b\": x}"),
            (7, "expected JSON, which this is not: expected value".to_owned())
        );
        let (_, long) = complaint(&format!("{{\"b\": \"{}\"}}", "\\n".repeat(500)));
        assert!(!long.contains('\n') && long.chars().count() < 400, "{long}");
    }
}
