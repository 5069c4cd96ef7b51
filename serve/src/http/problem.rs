//! What a request is refused with.
//!
//! In: what went wrong, and where. Out: a status and a body in the form of OpenAI, Anthropic or Ollama.
//! A client's mistake is a 4xx and names the field. A fault that would repeat says so, because clients try a 5xx again.

use serde_json::{Map, Value, json};

/// Whose error bodies a path speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
    /// `{"error": "text"}`
    Ollama,
}

/// The kind of a problem, which decides its status and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request cannot be answered as it is.
    Invalid,
    /// The key is missing or wrong.
    Key,
    /// The request comes from a page or for a host that is not allowed.
    Forbidden,
    /// There is no such model or path.
    NotFound,
    /// The path has another method.
    Method,
    /// The body is too long.
    TooLarge,
    /// The body is no JSON.
    MediaType,
    /// The queue is full.
    Full,
    /// The deadline has passed before the first token.
    Late,
    /// The model or the device failed.
    Fault,
    /// The server is loading or stopping.
    Unavailable,
}

impl Kind {
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Key => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Method => 405,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::Full => 429,
            Self::Late => 504,
            Self::Fault => 500,
            Self::Unavailable => 503,
        }
    }

    fn openai(self) -> &'static str {
        match self {
            Self::Invalid | Self::NotFound | Self::Method | Self::TooLarge | Self::MediaType => {
                "invalid_request_error"
            }
            Self::Key => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::Full => "rate_limit_error",
            Self::Late => "timeout_error",
            Self::Fault => "server_error",
            Self::Unavailable => "unavailable_error",
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            Self::Invalid | Self::Method | Self::MediaType => "invalid_request_error",
            Self::Key => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::Full => "rate_limit_error",
            Self::Late => "timeout_error",
            Self::Fault => "api_error",
            Self::Unavailable => "overloaded_error",
        }
    }
}

/// Why a request was refused or ended.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The path of the field.
    pub(crate) param: Option<String>,
    /// What programs look at.
    pub(crate) code: Option<&'static str>,
    /// After how many seconds another attempt makes sense.
    pub(crate) retry_after: Option<u64>,
    /// The methods that the path has.
    pub(crate) allow: Option<&'static str>,
    /// The tokens of a prompt that is too long, and those of the context.
    pub(crate) lengths: Option<Box<(usize, usize)>>,
}

impl Problem {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            allow: None,
            lengths: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// A field with a wrong value.
    pub(crate) fn field(param: impl Into<String>, what: impl AsRef<str>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", what.as_ref());
        Self { param: Some(param), code: Some("invalid_value"), ..Self::invalid(message) }
    }

    /// A field that is known and not supported.
    pub(crate) fn unsupported(param: impl Into<String>, what: impl AsRef<str>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(param, what) }
    }

    /// A field that nobody knows.
    pub(crate) fn unknown(param: impl Into<String>) -> Self {
        Self { code: Some("unknown_parameter"), ..Self::field(param, "there is no such parameter") }
    }

    pub(crate) fn fault(message: impl Into<String>) -> Self {
        Self { code: Some("server_error"), ..Self::new(Kind::Fault, message) }
    }

    /// A prompt that does not fit; clients know this error by its words.
    pub(crate) fn too_long(context: usize, n_tokens: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your request has {n_tokens} tokens."
        );
        Self {
            param: Some("messages".to_owned()),
            code: Some("context_length_exceeded"),
            lengths: Some(Box::new((n_tokens, context))),
            ..Self::invalid(message)
        }
    }

    /// What a model cannot do.
    pub(crate) fn model(message: impl Into<String>) -> Self {
        Self { param: Some("model".to_owned()), ..Self::invalid(message) }
    }

    pub(crate) fn no_model(name: &str, known: &[String]) -> Self {
        let name: String = name.chars().take(200).collect();
        let message = format!("The model `{name}` does not exist; models are {}", known.join(", "));
        let param = Some("model".to_owned());
        Self { param, code: Some("model_not_found"), ..Self::new(Kind::NotFound, message) }
    }

    pub(crate) fn queue_full(retry_after: u64) -> Self {
        let retry_after = Some(retry_after);
        Self {
            code: Some("queue_full"),
            retry_after,
            ..Self::new(Kind::Full, "The queue is full; try again later.")
        }
    }

    pub(crate) fn unavailable(why: &str) -> Self {
        Self { code: Some("unavailable"), retry_after: Some(2), ..Self::new(Kind::Unavailable, why) }
    }

    pub(crate) fn late() -> Self {
        Self {
            code: Some("timeout"),
            ..Self::new(Kind::Late, "The deadline of the request has passed before its first token.")
        }
    }

    /// The status of the answer.
    pub(crate) fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The object under `error` of OpenAI.
    pub(crate) fn openai(&self) -> Value {
        let mut error = Map::new();
        error.insert("message".to_owned(), self.message.clone().into());
        error.insert("type".to_owned(), self.kind.openai().into());
        error.insert("param".to_owned(), self.param.clone().into());
        error.insert("code".to_owned(), self.code.into());
        if let Some((n_tokens, context)) = self.lengths.as_deref() {
            error.insert("n_prompt_tokens".to_owned(), (*n_tokens).into());
            error.insert("n_ctx".to_owned(), (*context).into());
        }
        Value::Object(error)
    }

    /// The body in a dialect.
    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => json!({ "error": self.openai() }),
            Dialect::Anthropic => {
                let message = match self.lengths.as_deref() {
                    Some((n_tokens, context)) => {
                        format!("prompt is too long: {n_tokens} tokens > {context} maximum")
                    }
                    None => self.message.clone(),
                };
                json!({ "type": "error", "error": { "type": self.kind.anthropic(), "message": message } })
            }
            Dialect::Ollama => json!({ "error": self.message }),
        }
    }
}
