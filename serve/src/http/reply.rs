//! Responses: their bodies and their headers.
//!
//! In: JSON, text, a stream of bytes, or a problem. Out: a response.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::http::{HeaderName, HeaderValue};
use hyper::{StatusCode, header};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::http::problem::{Dialect, Kind, Problem};

/// Tells nginx to pass a stream on as it comes.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Tells SDKs whether another attempt makes sense.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A response of this server.
pub(crate) type Response = hyper::Response<Body>;

/// The body of a response.
pub(crate) enum Body {
    /// All of it; none once it was sent.
    Whole(Option<Bytes>),
    /// Pieces as they come.
    Stream(mpsc::Receiver<Bytes>),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Stream(receiver) => receiver.poll_recv(context),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

fn with_kind(status: u16, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// JSON with status 200.
pub(crate) fn json(value: &Value) -> Response {
    json_with(200, value)
}

/// JSON with a status.
pub(crate) fn json_with(status: u16, value: &Value) -> Response {
    with_kind(status, "application/json", Body::Whole(Some(value.to_string().into())))
}

/// Text of a kind.
pub(crate) fn text(kind: &'static str, body: impl Into<Bytes>) -> Response {
    with_kind(200, kind, Body::Whole(Some(body.into())))
}

/// Nothing, with status 204.
pub(crate) fn empty() -> Response {
    let mut response = Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A stream of a kind.
pub(crate) fn stream(kind: &'static str, receiver: mpsc::Receiver<Bytes>) -> Response {
    let mut response = with_kind(200, kind, Body::Stream(receiver));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// A problem in a dialect.
pub(crate) fn problem(problem: &Problem, dialect: Dialect) -> Response {
    let mut response = json_with(problem.status(), &problem.body(dialect));
    let headers = response.headers_mut();
    if let Some(seconds) = problem.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(methods) = problem.allow {
        headers.insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    if problem.kind == Kind::Fault {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if problem.kind == Kind::Key {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
