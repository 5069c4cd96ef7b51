//! The fields of a request: taken one by one, with their types and limits.
//!
//! In: a JSON object. Out: values, or the problem of one field with its path.
//! What was neither taken nor is on the list of fields without effect is refused by name: silence would be worse.
//! `null` always means absent, and an integer may be written as `5.0`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::http::problem::Problem;

/// The fields of an object that were not taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    rest: Map<String, Value>,
    /// The path of the object, with a dot at the end; empty for the body.
    path: String,
}

/// The kind of a value, for people.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// An integer, which may be written with a point.
pub(crate) fn to_integer(value: &Value) -> Option<i64> {
    let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
    value.as_i64().or_else(|| value.as_f64().filter(whole).map(|x| x as i64))
}

impl Fields {
    pub(crate) fn new(value: Value, path: &str) -> Result<Self, Problem> {
        match value {
            Value::Object(rest) => {
                Ok(Self { rest, path: if path.is_empty() { String::new() } else { format!("{path}.") } })
            }
            other => {
                let what = format!("expected an object, found {}", kind(&other));
                Err(if path.is_empty() {
                    Problem::invalid(format!("the body: {what}"))
                } else {
                    Problem::field(path, what)
                })
            }
        }
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn wrong<T>(&self, name: &str, expected: impl Display, found: &Value) -> Result<T, Problem> {
        let mut shown = found.to_string();
        if shown.chars().count() > 40 {
            kind(found).clone_into(&mut shown);
        }
        Err(Problem::field(self.path(name), format!("expected {expected}, found {shown}")))
    }

    /// A field of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.rest.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.rest.get(name).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => self.wrong(name, "true or false", &other),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => self.wrong(name, "a string", &other),
        }
    }

    pub(crate) fn required_string(&mut self, name: &str) -> Result<String, Problem> {
        self.string(name)?.ok_or_else(|| Problem::field(self.path(name), "expected a string, found none"))
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(value)) => Ok(Some(value)),
            Some(other) => self.wrong(name, "an array", &other),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(value)) => Ok(Some(value)),
            Some(other) => self.wrong(name, "an object", &other),
        }
    }

    /// An object as fields of its own.
    pub(crate) fn fields(&mut self, name: &str) -> Result<Option<Self>, Problem> {
        let path = self.path(name);
        self.take(name).map(|value| Self::new(value, &path)).transpose()
    }

    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match to_integer(&value) {
            Some(n) if range.contains(&n) => Ok(Some(n)),
            _ => {
                let (low, high) = (*range.start(), *range.end());
                let expected = match (low, high) {
                    (i64::MIN, _) => "an integer".to_owned(),
                    (_, i64::MAX) => format!("an integer of at least {low}"),
                    _ => format!("an integer from {low} to {high}"),
                };
                self.wrong(name, expected, &value)
            }
        }
    }

    pub(crate) fn size(&mut self, name: &str, least: i64) -> Result<Option<usize>, Problem> {
        Ok(self.integer(name, least..=i64::MAX)?.map(|n| n as usize))
    }

    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if range.contains(&x) => Ok(Some(x as f32)),
            _ => self.wrong(name, format!("a number from {} to {}", range.start(), range.end()), &value),
        }
    }

    /// A string or an array of strings.
    pub(crate) fn strings(&mut self, name: &str, most: usize) -> Result<Vec<String>, Problem> {
        let expected = "a string or an array of strings";
        let found = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => {
                let mut texts = Vec::with_capacity(all.len());
                for (number, value) in all.into_iter().enumerate() {
                    match value {
                        Value::String(text) => texts.push(text),
                        other => return self.wrong(&format!("{name}[{number}]"), "a string", &other),
                    }
                }
                texts
            }
            Some(other) => return self.wrong(name, expected, &other),
        };
        if found.len() > most {
            let what = format!("expected at most {most} strings, found {}", found.len());
            return Err(Problem::field(self.path(name), what));
        }
        Ok(found)
    }

    /// Takes fields that have no effect.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.rest.remove(*name);
        }
    }

    /// Refuses a field that is known and not supported, unless it has its neutral value.
    pub(crate) fn refuse(&mut self, name: &str, neutral: &[Value], why: &str) -> Result<(), Problem> {
        match self.take(name) {
            Some(value) if !neutral.contains(&value) => Err(Problem::unsupported(self.path(name), why)),
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        let Self { rest, path } = self;
        match rest.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let name: String = name.chars().take(100).collect();
                Err(Problem::unknown(format!("{path}{name}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn integers_may_have_a_point_and_null_is_absent() {
        let mut fields = Fields::new(json!({"a": 5.0, "b": 5.5, "c": null, "d": 9e99}), "").unwrap();
        assert_eq!(fields.integer("a", 0..=9).unwrap(), Some(5));
        assert_eq!(fields.integer("b", 0..=9).unwrap_err().param.as_deref(), Some("b"));
        assert_eq!(fields.integer("c", 0..=9).unwrap(), None);
        assert!(fields.integer("d", 0..=i64::MAX).is_err());
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn what_is_left_is_refused_by_its_path() {
        let mut fields = Fields::new(json!({"user": 1, "x": {"y": 1}}), "").unwrap();
        fields.ignore(&["user"]);
        let inner = fields.fields("x").unwrap().unwrap();
        assert_eq!(inner.finish().unwrap_err().message, "x.y: there is no such parameter");
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn a_neutral_value_is_never_refused() {
        let mut fields = Fields::new(json!({"store": false, "audio": {}}), "").unwrap();
        assert!(fields.refuse("store", &[json!(false)], "no").is_ok());
        let problem = fields.refuse("audio", &[], "audio is not made here").unwrap_err();
        assert_eq!((problem.status(), problem.code), (400, Some("unsupported_parameter")));
    }
}
