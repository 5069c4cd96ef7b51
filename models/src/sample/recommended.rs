//! Recommended settings: what the authors of a model say about sampling from it.
//!
//! In: a checkpoint. Out: the settings that its files state: `general.sampling.*` in a GGUF file, and
//! `generation_config.json` next to safetensors. A value that no sampler takes counts as not stated.

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind};
use serde::Deserialize;

use super::{Settings, Step};
use crate::naming::files;
use crate::sidecar;

/// The settings that a model's files state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    /// Temperature.
    pub temperature: Option<f32>,
    /// Top-k; 0 keeps all.
    pub top_k: Option<usize>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Min-p.
    pub min_p: Option<f32>,
    /// Locally typical sampling.
    pub typical_p: Option<f32>,
    /// XTC's probability.
    pub xtc_probability: Option<f32>,
    /// XTC's threshold.
    pub xtc_threshold: Option<f32>,
    /// Repeat penalty.
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens it looks at.
    pub repeat_last: Option<usize>,
    /// The order of the steps.
    pub steps: Option<Vec<Step>>,
}

/// The parts of `generation_config.json` that matter here.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Config {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

impl Recommended {
    /// What the files of a checkpoint state.
    ///
    /// # Errors
    /// Where `generation_config.json` cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, Error> {
        let stated = match checkpoint.kind() {
            Kind::Gguf { .. } => Self::in_gguf(checkpoint),
            Kind::Safetensors => {
                let config = sidecar::read_json(&sidecar::in_folder(checkpoint, files::GENERATION))?;
                Self::in_config(&config.unwrap_or_default())
            }
            Kind::Ajc1 | Kind::Qorus => Self::default(),
        };
        Ok(stated.checked())
    }

    fn in_gguf(checkpoint: &Checkpoint) -> Self {
        let value = |name: &str| checkpoint.metadata().get(&format!("general.sampling.{name}"));
        let number = |name: &str| value(name)?.to_f64().map(|number| number as f32);
        let count = |name: &str| value(name)?.to_f64().map(|number| as_count(number as i64));
        let names = value("sequence").and_then(|names| names.as_text());
        Self {
            temperature: number("temp"),
            top_k: count("top_k"),
            top_p: number("top_p"),
            min_p: number("min_p"),
            typical_p: None,
            xtc_probability: number("xtc_probability"),
            xtc_threshold: number("xtc_threshold"),
            repeat_penalty: number("penalty_repeat"),
            repeat_last: value("penalty_last_n").and_then(Value::to_f64).map(|n| last(n as i64)),
            steps: names.and_then(|names| names.split(';').map(Step::named).collect()),
        }
    }

    fn in_config(config: &Config) -> Self {
        if config.do_sample == Some(false) {
            return Self { temperature: Some(0.0), ..Self::default() };
        }
        Self {
            temperature: config.temperature,
            top_k: config.top_k.map(as_count),
            top_p: config.top_p,
            min_p: config.min_p,
            typical_p: config.typical_p,
            repeat_penalty: config.repetition_penalty,
            // Transformers looks at the whole sequence.
            repeat_last: config.repetition_penalty.map(|_| usize::MAX),
            ..Self::default()
        }
    }

    /// The same without values that no sampler takes.
    fn checked(self) -> Self {
        let base = Settings::default;
        let kept = |value: Option<f32>, set: fn(f32, Settings) -> Settings| {
            value.filter(|value| set(*value, base()).check().is_ok())
        };
        Self {
            temperature: kept(self.temperature, |temperature, all| Settings { temperature, ..all }),
            top_p: kept(self.top_p, |top_p, all| Settings { top_p, ..all }),
            min_p: kept(self.min_p, |min_p, all| Settings { min_p, ..all }),
            typical_p: kept(self.typical_p, |typical_p, all| Settings { typical_p, ..all }),
            xtc_probability: kept(self.xtc_probability, |xtc_probability, all| Settings {
                xtc_probability,
                ..all
            }),
            xtc_threshold: kept(self.xtc_threshold, |xtc_threshold, all| Settings { xtc_threshold, ..all }),
            repeat_penalty: kept(self.repeat_penalty, |repeat_penalty, all| Settings {
                repeat_penalty,
                ..all
            }),
            ..self
        }
    }

    /// Whether the files state nothing about how tokens are drawn.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A top-k; negative numbers keep all.
fn as_count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// How many of the last tokens: -1 is all.
fn last(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(json: &str) -> Recommended {
        Recommended::in_config(&serde_json::from_str(json).unwrap()).checked()
    }

    #[test]
    fn what_transformers_would_take_is_taken() {
        let found = stated(r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95}"#);
        assert_eq!(
            found,
            Recommended {
                temperature: Some(0.6),
                top_k: Some(20),
                top_p: Some(0.95),
                ..Recommended::default()
            }
        );
        assert_eq!(stated(r#"{"do_sample": false, "top_p": 0.9}"#).temperature, Some(0.0));
        assert!(stated(r#"{"eos_token_id": 2}"#).is_empty());
    }

    #[test]
    fn values_that_no_sampler_takes_are_not_stated() {
        let found = stated(r#"{"temperature": -1, "top_k": -1, "top_p": 0, "min_p": 0.05}"#);
        let expected = Recommended { top_k: Some(0), min_p: Some(0.05), ..Recommended::default() };
        assert_eq!(found, expected);
    }
}
