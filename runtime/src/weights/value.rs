//! Metadata of every kind of file: numbers, strings, and lists of one type.
//!
//! In: what the readers found. Out: values that convert to a number or a string, and print.
//! The width and sign of a number in the file are not kept.

use std::fmt;

use crate::error::printable;

/// The most elements of a list that are printed.
const MAX_SHOWN: usize = 8;
/// The most characters of a string that are printed.
const MAX_CHARS: usize = 80;

/// The value of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number that is not negative by its type.
    Unsigned(u64),
    /// A whole number.
    Signed(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// Many values of one type.
    List(List),
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum List {
    /// Truth values.
    Bools(Vec<bool>),
    /// Whole numbers that are not negative by their type.
    Unsigned(Vec<u64>),
    /// Whole numbers.
    Signed(Vec<i64>),
    /// Other numbers.
    Floats(Vec<f64>),
    /// Strings.
    Texts(Vec<String>),
    /// Lists, each of its own type.
    Lists(Vec<List>),
}

impl Value {
    /// The string, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The whole number, if it is one and not negative.
    pub fn to_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(n) => Some(*n),
            Self::Signed(n) => u64::try_from(*n).ok(),
            Self::Bool(_) | Self::Float(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    /// The number, if it is one.
    pub fn to_f64(&self) -> Option<f64> {
        match self {
            Self::Unsigned(n) => Some(*n as f64),
            Self::Signed(n) => Some(*n as f64),
            Self::Float(x) => Some(*x),
            Self::Bool(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    /// The list, if it is one.
    pub fn as_list(&self) -> Option<&List> {
        if let Self::List(list) = self { Some(list) } else { None }
    }
}

impl List {
    /// How many values there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Bools(list) => list.len(),
            Self::Unsigned(list) => list.len(),
            Self::Signed(list) => list.len(),
            Self::Floats(list) => list.len(),
            Self::Texts(list) => list.len(),
            Self::Lists(list) => list.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word for one of the values.
    fn noun(&self) -> &'static str {
        match self {
            Self::Bools(_) => "bool",
            Self::Unsigned(_) | Self::Signed(_) => "integer",
            Self::Floats(_) => "float",
            Self::Texts(_) => "string",
            Self::Lists(_) => "list",
        }
    }

    /// The values as text, where there are few and they are short.
    fn shown(&self) -> Option<Vec<String>> {
        if self.len() > MAX_SHOWN {
            return None;
        }
        match self {
            Self::Bools(list) => Some(list.iter().map(ToString::to_string).collect()),
            Self::Unsigned(list) => Some(list.iter().map(ToString::to_string).collect()),
            Self::Signed(list) => Some(list.iter().map(ToString::to_string).collect()),
            Self::Floats(list) => Some(list.iter().map(|x| short(*x)).collect()),
            Self::Texts(_) | Self::Lists(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Float(value) => f.write_str(&short(*value)),
            Self::Text(value) => f.write_str(&printable(value, MAX_CHARS)),
            Self::List(value) => value.fmt(f),
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(values) = self.shown() {
            return write!(f, "[{}]", values.join(", "));
        }
        let plural = if self.len() == 1 { "" } else { "s" };
        write!(f, "[{} {}{plural}]", self.len(), self.noun())
    }
}

/// A number in few digits: as single precision where it came from there.
fn short(x: f64) -> String {
    let single = x as f32;
    if f64::from(single) == x { format!("{single:?}") } else { format!("{x:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_abbreviated() {
        let texts = List::Texts(vec!["a".to_owned(); 151_936]);
        assert_eq!(Value::List(texts).to_string(), "[151936 strings]");
        assert_eq!(List::Texts(vec!["a".to_owned()]).to_string(), "[1 string]");
        assert_eq!(Value::List(List::Unsigned(vec![1, 2])).to_string(), "[1, 2]");
        assert_eq!(Value::List(List::Floats(vec![0.5; 9])).to_string(), "[9 floats]");
        assert_eq!(Value::Text("x\n".repeat(41)).to_string(), "x\\n".repeat(40) + "…");
        assert_eq!(Value::Float(f64::from(1e-6_f32)).to_string(), "1e-6");
    }

    #[test]
    fn numbers_are_asked_for_whatever_their_width() {
        assert_eq!(Value::Signed(7).to_u64(), Some(7));
        assert_eq!(Value::Signed(-7).to_u64(), None);
        assert_eq!(Value::Unsigned(7).to_f64(), Some(7.0));
        assert_eq!(Value::Text("7".to_owned()).to_f64(), None);
    }
}
