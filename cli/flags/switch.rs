//! `--switch-device` of `run`: a sequence begins on one device and goes on on another.
//!
//! In: flags. Out: a generator whose sequence moves, and what that won, in words and as JSON.

use clap::Args;
use fusebox::generate::{Answer, Generator};
use fusebox::nn::embed::Scored;
use fusebox::open::Opened;
use fusebox::open::context::ContextRange;
use serde_json::{Value, json};

/// Where a sequence goes on.
#[derive(Args)]
pub(crate) struct SwitchFlags {
    /// Device that the sequence moves to when it has --switch-device-at tokens: cpu, cuda, vulkan or metal.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["evict", "print_kernels"])]
    switch_device: Option<String>,
    /// How many tokens the sequence has when it moves, those of the prompt included.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 512,
        requires = "switch_device",
        alias = "switch-threshold"
    )]
    switch_device_at: usize,
    /// Tokens of the prompt that run on the other device beforehand, so that the move waits for no compilation.
    #[arg(long, value_name = "N", default_value_t = 3, requires = "switch_device")]
    warmup_tokens: usize,
}

impl SwitchFlags {
    /// Has the sequence of a generator move, where that is wanted; `open` opens the model on the device.
    pub(crate) fn begin(
        &self,
        generator: &mut Generator,
        prompt: Option<&[u32]>,
        (n_threads, scored): (usize, Scored),
        open: impl FnOnce(&str) -> Result<Opened, String>,
    ) -> Result<(), String> {
        let Some(device) = &self.switch_device else { return Ok(()) };
        let prompt = prompt.ok_or("--switch-device is for one prompt; in a chat the device stays")?;
        let mut opened = open(device)?;
        opened.scores_every = generator.session().most_scored() > 0;
        let context = ContextRange::exactly(generator.session().context());
        let mut session = opened.session(n_threads, context, scored)?;
        let n = self.warmup_tokens.min(prompt.len());
        let mut warm_up = || {
            session.prepare(1)?;
            if n > 0 {
                session.feed(&prompt[..n])?;
            }
            session.truncate(0)
        };
        warm_up().map_err(|error| opened.in_model(error))?;
        generator.set_switch(session, self.switch_device_at).map_err(|error| error.to_string())
    }

    /// What the move took and won, in words: nothing where the sequence stays.
    pub(crate) fn in_words(&self, answer: &Answer) -> String {
        let Some(device) = &self.switch_device else { return String::new() };
        let Some((switched, rates)) = answer.switched.zip(answer.rates_around_switch()) else {
            return format!("; never had {} tokens to move to {device}", self.switch_device_at);
        };
        let rate = |rate: Option<f64>| rate.map_or("no tokens".to_owned(), |rate| format!("{rate:.1} tok/s"));
        let [before, after] = rates.map(rate);
        let ms = 1e3 * switched.took.as_secs_f64();
        format!("; moved to {device} in {ms:.1} ms, decode {before} before, {after} after")
    }

    /// The same as data.
    pub(crate) fn to_json(&self, answer: &Answer) -> Value {
        let switched = answer.switched.zip(answer.rates_around_switch());
        switched.map_or(Value::Null, |(switched, [before, after])| {
            json!({
                "device": self.switch_device,
                "after_tokens": switched.n_before,
                "ms": 1e3 * switched.took.as_secs_f64(),
                "decode_tok_s_before": before,
                "decode_tok_s_after": after,
            })
        })
    }
}
