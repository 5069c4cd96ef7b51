//! The objects around the choices of chat and completions, whole and in chunks.
//!
//! In: what a request says of its answer, and its choices. Out: the same object for both but for its name, which ends
//! with usage, reasons and times.

use serde_json::{Map, Value, json};

use crate::answer::Reason;
use crate::app::App;
use crate::ask::Answering;
use crate::http::fields::Fields;
use crate::http::frames::Frames;
use crate::http::ids;
use crate::http::problem::Problem;
use crate::model;
use crate::model::Served;

/// What kind of answer it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// How its identifier begins.
    pub(crate) prefix: &'static str,
    /// The name of a whole one.
    pub(crate) whole: &'static str,
    /// The name of a chunk.
    pub(crate) chunk: &'static str,
}

/// What an answer shows beside its choices.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    kind: Kind,
    model: String,
    id: String,
    created: u64,
    includes_usage: bool,
    continuous_usage: bool,
    timings: bool,
}

impl Shown {
    /// Takes what a request says of the form of its answer.
    ///
    /// # Errors
    /// The problem of one field.
    pub(crate) fn take(
        fields: &mut Fields,
        kind: Kind,
        app: &App,
        name: &str,
        is_stream: bool,
    ) -> Result<Self, Problem> {
        let (includes_usage, continuous_usage) = stream_options(fields, is_stream)?;
        Ok(Self {
            kind,
            model: name.to_owned(),
            id: ids::name(kind.prefix),
            created: model::now(),
            includes_usage,
            continuous_usage,
            timings: fields.bool("timings_per_token")?.unwrap_or(app.settings.shows_timings),
        })
    }

    /// The whole answer.
    pub(crate) fn whole(&self, served: &Served, answering: &Answering<'_>, choices: &[Value]) -> Value {
        let mut whole = self.object(self.kind.whole, served, choices);
        whole["usage"] = answering.usage();
        if self.timings {
            whole["timings"] = answering.timings();
        }
        whole
    }

    /// A chunk, with what was used so far where a request wants to know it in each.
    fn chunk(&self, served: &Served, answering: &Answering<'_>, choices: &[Value]) -> Value {
        let mut chunk = self.object(self.kind.chunk, served, choices);
        if self.includes_usage || self.continuous_usage {
            chunk["usage"] = if self.continuous_usage { answering.usage() } else { Value::Null };
        }
        chunk
    }

    fn object(&self, name: &str, served: &Served, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": served.fingerprint(),
            "choices": choices,
        })
    }

    /// Sends a chunk of one choice, to which the reason is added where it ends.
    ///
    /// # Errors
    /// Where nobody reads.
    pub(crate) async fn send(
        &self,
        frames: &Frames,
        served: &Served,
        answering: &Answering<'_>,
        (index, mut choice): (usize, Map<String, Value>),
        is_end: bool,
    ) -> Result<(), Problem> {
        choice.insert("finish_reason".to_owned(), Value::Null);
        if is_end {
            insert_reason(&mut choice, answering.readers[index].reason.as_ref());
        }
        let mut chunk = self.chunk(served, answering, &[choice.into()]);
        if is_end && self.timings {
            chunk["timings"] = answering.timings();
        }
        frames.send(&chunk).await
    }

    /// Ends a stream.
    ///
    /// # Errors
    /// Where nobody reads.
    pub(crate) async fn end(
        &self,
        frames: &Frames,
        served: &Served,
        answering: &Answering<'_>,
    ) -> Result<(), Problem> {
        if self.includes_usage {
            let mut last = self.chunk(served, answering, &[]);
            last["usage"] = answering.usage();
            frames.send(&last).await?;
        }
        frames.done().await
    }
}

/// Whether usage is sent at the end, and with each chunk.
fn stream_options(fields: &mut Fields, is_stream: bool) -> Result<(bool, bool), Problem> {
    let Some(mut options) = fields.fields("stream_options")? else { return Ok((false, false)) };
    if !is_stream {
        return Err(Problem::field("stream_options", "it needs stream: true"));
    }
    let usage = options.bool("include_usage")?.unwrap_or(false);
    let continuous = options.bool("continuous_usage_stats")?.unwrap_or(false);
    options.bool("include_obfuscation")?;
    options.finish()?;
    Ok((usage, continuous))
}

/// The end of a choice: OpenAI's reason, and vLLM's.
pub(crate) fn insert_reason(choice: &mut Map<String, Value>, reason: Option<&Reason>) {
    let name = reason.map_or("stop", Reason::openai);
    choice.insert("finish_reason".to_owned(), name.into());
    let stop = match reason {
        Some(Reason::StopText(text)) => Value::from(text.as_str()),
        Some(Reason::StopToken(id)) => Value::from(*id),
        _ => Value::Null,
    };
    choice.insert("stop_reason".to_owned(), stop);
}
