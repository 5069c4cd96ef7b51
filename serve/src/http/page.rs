//! The page at `/`: a chat, and what the server does.
//!
//! In: nothing. Out: one HTML file with its style and script; it loads nothing from elsewhere.

use hyper::header;
use hyper::http::HeaderValue;

use crate::http::reply::{self, Response};

/// The file.
const PAGE: &str = include_str!("page.html");
/// Nothing from elsewhere is loaded, framed or sent to.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The page.
pub(crate) fn html() -> Response {
    let mut response = reply::text("text/html; charset=utf-8", PAGE);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
