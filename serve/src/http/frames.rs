//! Streams: events over HTTP as they happen.
//!
//! In: JSON. Out: a body of server-sent events or of lines, each write a whole event.
//! The status waits for the first event, so what fails before it is a status and not a stream. A client that leaves
//! ends the task that produces for it. Silence is filled with comments.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};

/// Events between the producer and the socket.
const BUFFER: usize = 16;
/// After how much silence a comment is sent.
const SILENCE: Duration = Duration::from_secs(15);

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `data: {…}`, and an error as data, then `[DONE]`.
    Data,
    /// `event: X` and `data: {…}`, as Anthropic writes them.
    Events,
    /// The same, as OpenAI's Responses writes them: errors have their own event.
    Responses,
    /// One object a line.
    Lines,
}

/// JSON in which no line end is left that any client takes for one.
pub(crate) fn one_line(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        return text;
    }
    text.replace('\u{85}', "\\u0085").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Tells whether an answer has begun, once.
type Started = oneshot::Sender<Result<(), Problem>>;

/// What a producer writes to.
#[derive(Clone)]
pub(crate) struct Frames {
    framing: Framing,
    sender: mpsc::Sender<Bytes>,
    started: Arc<Mutex<Option<Started>>>,
}

/// The client has left.
fn gone() -> Problem {
    Problem::fault("the client has left")
}

impl Frames {
    fn start(&self) -> Option<Started> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn write(&self, text: String) -> Result<(), Problem> {
        if let Some(started) = self.start() {
            let _ = started.send(Ok(()));
        }
        self.sender.send(Bytes::from(text)).await.map_err(|_| gone())
    }

    /// Sends an object.
    pub(crate) async fn send(&self, value: &Value) -> Result<(), Problem> {
        let line = one_line(value);
        self.write(match self.framing {
            Framing::Data => format!("data: {line}\n\n"),
            Framing::Events | Framing::Responses => {
                format!("event: {}\ndata: {line}\n\n", value["type"].as_str().unwrap_or("message"))
            }
            Framing::Lines => format!("{line}\n"),
        })
        .await
    }

    /// Sends the end of OpenAI's streams.
    pub(crate) async fn done(&self) -> Result<(), Problem> {
        self.write("data: [DONE]\n\n".to_owned()).await
    }

    /// Waits for a future as long as the client is there.
    pub(crate) async fn wait<T>(
        &self,
        future: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(gone()),
                outcome = timeout(SILENCE, &mut future) => {
                    if let Ok(outcome) = outcome {
                        return outcome;
                    }
                    let is_started = self.started.lock().unwrap_or_else(PoisonError::into_inner).is_none();
                    if is_started && self.framing != Framing::Lines {
                        self.write(":\n\n".to_owned()).await?;
                    }
                }
            }
        }
    }

    /// Ends a stream that has begun with an error.
    async fn fail(&self, problem: &Problem, dialect: Dialect) {
        let mut body = problem.body(dialect);
        if self.framing == Framing::Responses {
            body = serde_json::json!({
                "type": "error",
                "sequence_number": 0,
                "code": problem.code,
                "message": problem.message,
                "param": problem.param,
            });
        }
        // Who has left hears nothing.
        let _ = self.send(&body).await;
        if self.framing == Framing::Data {
            let _ = self.done().await;
        }
    }
}

/// A response that a task of its own produces.
///
/// # Errors
/// What the producer failed with before its first event.
pub(crate) async fn stream<F, Out>(
    framing: Framing,
    dialect: Dialect,
    produce: F,
) -> Result<Response, Problem>
where
    F: FnOnce(Frames) -> Out,
    Out: Future<Output = Result<(), Problem>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BUFFER);
    let (started, is_started) = oneshot::channel();
    let frames = Frames { framing, sender, started: Arc::new(Mutex::new(Some(started))) };
    let work = produce(frames.clone());
    tokio::spawn(async move {
        if let Err(problem) = work.await {
            match frames.start() {
                Some(started) => {
                    let _ = started.send(Err(problem));
                }
                None => frames.fail(&problem, dialect).await,
            }
        }
    });
    is_started.await.map_err(|_| Problem::fault("The answer ended before it began."))??;
    let kind =
        if framing == Framing::Lines { "application/x-ndjson" } else { "text/event-stream; charset=utf-8" };
    Ok(reply::stream(kind, receiver))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_line_end_of_any_kind_is_left() {
        let line = one_line(&json!({ "a": "x\u{85}\u{2028}\u{2029}\n\r\u{1c}y" }));
        assert_eq!(line, r#"{"a":"x\u0085\u2028\u2029\n\r\u001cy"}"#);
    }
}
