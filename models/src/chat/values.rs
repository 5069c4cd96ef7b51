//! Conversion between JSON and the values of templates.
//!
//! In: the variables of a template as JSON. Out: template values; and for `tojson`, the text that Python's `json.dumps`
//! writes.
//! The order of an object's keys is kept both ways.

use std::fmt::Write;
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::{Map, Value as Json};

/// The deepest nesting that is written.
const MAX_DEPTH: usize = 64;

/// A JSON value as a template value.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(values) => values.iter().map(value).collect(),
        Json::Object(object) => object_value(object),
    }
}

/// A JSON object as a template value.
pub(super) fn object_value(object: &Map<String, Json>) -> Value {
    let pairs = object.iter().map(|(key, json)| (Value::from(key.as_str()), value(json)));
    Value::from_object(Ordered(pairs.collect()))
}

/// An object that keeps the order of its keys.
#[derive(Debug)]
pub(super) struct Ordered(pub(super) IndexMap<Value, Value>);

impl Object for Ordered {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().cloned().collect())
    }
}

/// Options of `tojson`.
pub(super) struct Style {
    /// Indentation per level; `None` writes one line.
    pub(super) indent: Option<usize>,
    /// The separators between values and after a key.
    pub(super) separators: [String; 2],
    /// Whether non-ASCII characters are escaped.
    pub(super) is_ascii: bool,
    /// Whether keys are sorted.
    pub(super) is_sorted: bool,
}

/// Writes JSON as Python does, up to a size limit.
pub(super) struct Writer {
    out: String,
    style: Style,
    max_bytes: usize,
}

impl Writer {
    /// An empty writer.
    pub(super) fn new(style: Style, max_bytes: usize) -> Self {
        Self { out: String::new(), style, max_bytes }
    }

    /// The text of a value.
    pub(super) fn write(mut self, value: &Value) -> Result<String, Error> {
        self.add(value, 0)?;
        Ok(self.out)
    }

    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH || self.out.len() > self.max_bytes {
            return Err(Error::new(ErrorKind::InvalidOperation, "too much for JSON"));
        }
        match value.kind() {
            ValueKind::None => self.out += "null",
            ValueKind::Bool => self.out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number if value.is_integer() => self.out += &value.to_string(),
            ValueKind::Number => self.out += &float(f64::try_from(value.clone())?),
            ValueKind::String => self.add_text(value.as_str().unwrap_or("")),
            ValueKind::Seq | ValueKind::Iterable => {
                self.add_all('[', ']', value.try_iter()?, depth, |own, item| own.add(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.is_sorted {
                    keys.sort();
                }
                self.add_all('{', '}', keys.into_iter(), depth, |own, key| {
                    own.add_text(key.as_str().unwrap_or(&key.to_string()));
                    own.out += &own.style.separators[1];
                    own.add(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} has no JSON form")));
            }
        }
        Ok(())
    }

    fn add_all(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = Value>,
        depth: usize,
        add: impl Fn(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                self.out += &self.style.separators[0];
            }
            is_empty = false;
            self.add_line(depth + 1);
            add(self, item)?;
        }
        if !is_empty {
            self.add_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn add_line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn add_text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                c if c < ' ' || self.style.is_ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("a text takes every text");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python writes it.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = x.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Style {
        let separators = [", ", ": "].map(str::to_owned);
        Style { indent: None, separators, is_ascii: false, is_sorted: false }
    }

    fn written(json: &str, style: Style) -> String {
        let json: Json = serde_json::from_str(json).unwrap();
        Writer::new(style, 1000).write(&value(&json)).unwrap()
    }

    #[test]
    fn json_is_written_as_python_does() {
        let json = "{\"b\":[1,2.0,true,null,{}],\"a\":\"<é'\\\"\\n\\u0001>\",\"c\":-0.5}";
        let expected = "{\"b\": [1, 2.0, true, null, {}], \"a\": \"<é'\\\"\\n\\u0001>\", \"c\": -0.5}";
        assert_eq!(written(json, plain()), expected);
        let separators = [",", ": "].map(str::to_owned);
        let lines = Style { indent: Some(2), separators, ..plain() };
        assert_eq!(written("{\"a\":[1,[]]}", lines), "{\n  \"a\": [\n    1,\n    []\n  ]\n}");
        let numbered = Style { is_ascii: true, is_sorted: true, ..plain() };
        let expected = "{\"a\": 2, \"\\u00e9\\ud83d\\ude00\\u007f\": 1}";
        assert_eq!(written("{\"é😀\\u007f\":1,\"a\":2}", numbered), expected);
    }

    #[test]
    fn floats_are_written_as_python_does() {
        let texts = [1e-5, 1e16, 123_456.789, 1e22, 0.0001, 1.5e300].map(float);
        assert_eq!(texts, ["1e-05", "1e+16", "123456.789", "1e+22", "0.0001", "1.5e+300"]);
    }

    #[test]
    fn too_much_json_is_an_error() {
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(Writer::new(plain(), 1000).write(&value(&serde_json::from_str(&deep).unwrap())).is_err());
        let long = Json::from(vec!["x".repeat(600); 3]);
        assert!(Writer::new(plain(), 1000).write(&value(&long)).is_err());
    }
}
