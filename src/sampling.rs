//! How tokens are drawn where nobody says it.
//!
//! In: what the files of a model recommend. Out: settings of a sampler. A chat takes the recommendation, else
//! temperature 0.7 and top-p 0.95; a completion is greedy, which is what [`Settings`] are by default.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use fusebox_models::sample::Settings;
use fusebox_models::sample::recommended::Recommended;

/// Temperature of a chat, and of a completion that asks for a draw, where the model's files state nothing.
pub const TEMPERATURE: f32 = 0.7;
/// Top-p of a chat where the model's files state nothing.
const TOP_P: f32 = 0.95;

/// Settings of a chat, with a drawn seed.
pub fn of_chat(recommended: &Recommended) -> Settings {
    let base = Settings { seed: drawn_seed(), ..Settings::default() };
    if recommended.is_empty() {
        return Settings { temperature: TEMPERATURE, top_p: TOP_P, ..base };
    }
    let own = recommended.clone();
    Settings {
        // As Transformers where another setting is stated.
        temperature: own.temperature.unwrap_or(1.0),
        top_k: own.top_k.unwrap_or(base.top_k),
        top_p: own.top_p.unwrap_or(base.top_p),
        min_p: own.min_p.unwrap_or(base.min_p),
        typical_p: own.typical_p.unwrap_or(base.typical_p),
        xtc_probability: own.xtc_probability.unwrap_or(base.xtc_probability),
        xtc_threshold: own.xtc_threshold.unwrap_or(base.xtc_threshold),
        repeat_penalty: own.repeat_penalty.unwrap_or(base.repeat_penalty),
        repeat_last: own.repeat_last.unwrap_or(base.repeat_last),
        steps: own.steps.unwrap_or(base.steps),
        ..base
    }
}

/// A seed that nobody chose, short enough to be typed again.
pub fn drawn_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}
