//! Requests to the hub: answers as text, and contents from a byte on.
//!
//! In: an address. Out: a body, or what the server said, in a sentence. The token is sent to the hub alone, never along
//! a redirect to another server. What may pass (a server that is busy, a line that is cut) is told from what may not.

use std::io::Read;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::error::Error;
use crate::settings::Settings;

/// How long a connection and the head of an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one body may take; what came until then is kept, and the rest is asked for again.
const BODY: Duration = Duration::from_mins(1);
/// The longest text that is read.
const MAX_TEXT_BYTES: u64 = 32 << 20;
/// The longest that a server may ask to wait.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// A client of one hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// Why there is no answer.
pub(crate) enum Fault {
    /// It makes no sense to ask again.
    Final(Error),
    /// It may go better after a while.
    Passing(Error, Option<Duration>),
}

impl Fault {
    /// The error, however long it may last.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Final(error) | Self::Passing(error, _) => error,
        }
    }
}

/// A content from a byte on.
pub(crate) struct Content {
    /// The first byte of the body.
    pub(crate) from: u64,
    pub(crate) body: Body,
}

impl Client {
    /// A client of the hub that the settings name.
    pub(crate) fn new(settings: &Settings) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_recv_body(Some(BODY))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("fusebox/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Self { agent: config.into(), endpoint: settings.endpoint.clone(), token: settings.token.clone() }
    }

    /// A text of the hub.
    pub(crate) fn text(&self, path: &str) -> Result<String, Fault> {
        let mut response = self.get(path, None)?;
        let text = response.body_mut().with_config().limit(MAX_TEXT_BYTES).read_to_string();
        text.map_err(|error| Fault::Passing(self.at(path, error), None))
    }

    /// A content of the hub from a byte on; the server may send all of it.
    pub(crate) fn content(&self, path: &str, from: u64) -> Result<Content, Fault> {
        let response = self.get(path, Some(format!("bytes={from}-")))?;
        let starts = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
                let start = range
                    .and_then(|range| range.trim_start_matches("bytes ").split('-').next()?.parse().ok());
                start.ok_or_else(|| Fault::Final(self.at(path, "expected a Content-Range, found none")))?
            }
            _ => 0,
        };
        Ok(Content { from: starts, body: response.into_body() })
    }

    /// The first bytes of a content.
    pub(crate) fn head(&self, path: &str, n_bytes: u64) -> Result<Vec<u8>, Fault> {
        let response = self.get(path, Some(format!("bytes=0-{}", n_bytes - 1)))?;
        let mut bytes = Vec::new();
        // A server that sends all of it is not listened to beyond that.
        let read = response.into_body().into_reader().take(n_bytes).read_to_end(&mut bytes);
        read.map(|_| bytes).map_err(|error| Fault::Passing(self.at(path, error), None))
    }

    fn get(&self, path: &str, range: Option<String>) -> Result<Response<Body>, Fault> {
        let mut request = self.agent.get(format!("{}{path}", self.endpoint));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(range) = range {
            request = request.header("range", range).header("accept-encoding", "identity");
        }
        let response = request.call().map_err(|error| Fault::Passing(self.at(path, error), None))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let wait = header("retry-after").and_then(|wait| wait.parse().ok()).map(Duration::from_secs);
        let hint = match (status.as_u16(), &self.token) {
            (401 | 403, None) => {
                "; a private or gated model needs a token in HF_TOKEN, and its licence accepted"
            }
            (401 | 403, Some(_)) => {
                "; the token may not read it, or the licence of the model is not accepted"
            }
            (404, _) => "; there is no such model, or it is private",
            (429, _) => "; the server asks to wait",
            _ => "",
        };
        let error = self.at(path, format!("the server answers {status}{hint}"));
        let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
        Err(if may_pass {
            Fault::Passing(error, wait.map(|wait| wait.min(MAX_WAIT)))
        } else {
            Fault::Final(error)
        })
    }

    fn at(&self, path: &str, error: impl std::fmt::Display) -> Error {
        Error::new(format!("{}{path}: {error}", self.endpoint))
    }
}
