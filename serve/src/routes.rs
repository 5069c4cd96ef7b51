//! Which path is answered by what, and what every request goes through first.
//!
//! In: requests. Out: responses.
//! Judged in this order: path, method, origin and host, key, length, content type, JSON; then by the endpoint. The key
//! comes before the body, so that the server reads nothing for who may not ask.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::http::HeaderValue;
use hyper::{HeaderMap, Method, header};
use serde_json::Value;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::app::{App, Request};
use crate::endpoints::anthropic;
use crate::endpoints::embeddings;
use crate::endpoints::native;
use crate::endpoints::ollama;
use crate::endpoints::openai;
use crate::endpoints::rerank;
use crate::endpoints::responses;
use crate::http::ids;
use crate::http::problem::{Dialect, Kind, Problem};
use crate::http::reply::{self, Response};

/// A request as it comes.
type HttpRequest = hyper::Request<Incoming>;

/// The dialect of a path.
fn dialect_of(path: &str) -> Dialect {
    if path.starts_with("/api/") {
        Dialect::Ollama
    } else if path.starts_with("/v1/messages") {
        Dialect::Anthropic
    } else {
        Dialect::OpenAi
    }
}

/// Whether a request has one of the keys.
fn has_key(headers: &HeaderMap, keys: &[String]) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let given: Vec<&str> = [bearer, text("x-api-key")].into_iter().flatten().collect();
    let hash = |text: &str| Sha256::digest(text.as_bytes());
    let is_one = |key: &String| {
        let key = hash(key);
        given.iter().fold(false, |found, given| found | bool::from(hash(given)[..].ct_eq(&key[..])))
    };
    keys.iter().fold(false, |found, key| found | is_one(key))
}

fn check_key(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    if app.settings.keys.is_empty() || has_key(headers, &app.settings.keys) {
        return Ok(());
    }
    Err(Problem {
        code: Some("invalid_api_key"),
        ..Problem::new(Kind::Key, "The API key is missing or wrong.")
    })
}

/// The host of an authority, without its port.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

fn is_local(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let name = host.trim_end_matches('.');
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether pages of an origin may send requests.
fn is_allowed(app: &App, origin: &str) -> bool {
    app.settings.origins.iter().any(|allowed| allowed == "*" || allowed == origin)
}

/// Refuses requests that a web page of another origin sends, and names that lead here by a trick of DNS.
fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if app.settings.host.is_loopback() && !host.is_empty() && !is_local(host_of(host)) {
        return Err(Problem::new(Kind::Forbidden, "This server answers on loopback, for local names only."));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("null");
    let is_own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
    if is_own || is_allowed(app, origin) {
        return Ok(());
    }
    Err(Problem::new(Kind::Forbidden, "Requests of this origin are not allowed; --cors-origin allows it."))
}

/// Refuses a body that says it is no JSON.
fn check_kind(headers: &HeaderMap, dialect: Dialect) -> Result<(), Problem> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    // Ollama's own documentation shows requests that say nothing true of their kind; pages of other origins are
    // refused before this.
    if dialect == Dialect::Ollama && !headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    let kind = kind.to_str().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(Problem::new(Kind::MediaType, "Expected the content type application/json."))
}

/// The JSON of a body.
async fn json_body(
    app: &App,
    headers: &HeaderMap,
    body: Incoming,
    dialect: Dialect,
) -> Result<Value, Problem> {
    let most = app.settings.max_body;
    let too_large = || Problem::new(Kind::TooLarge, format!("The body has more than {most} bytes."));
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    check_kind(headers, dialect)?;
    let bytes = match Limited::new(body, most).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(_) => return Err(Problem::invalid("The body ended before it was complete.")),
    };
    serde_json::from_slice(&bytes).map_err(|error| Problem::invalid(format!("The body is no JSON: {error}")))
}

/// What every request goes through.
struct Gate {
    app: Arc<App>,
    dialect: Dialect,
}

impl Gate {
    /// Refuses other methods.
    fn check_method(request: &HttpRequest, allow: &'static str) -> Result<(), Problem> {
        let method = request.method().as_str();
        if allow.split(", ").any(|allowed| allowed == method) {
            return Ok(());
        }
        let message = format!("{} takes {allow}, found {method}.", request.uri().path());
        Err(Problem { allow: Some(allow), ..Problem::new(Kind::Method, message) })
    }

    /// A request with a JSON body, for an endpoint that needs a model.
    async fn asked(&self, request: HttpRequest) -> Result<(Arc<App>, Request), Problem> {
        Self::check_method(&request, "POST")?;
        let (parts, body) = request.into_parts();
        check_origin(&self.app, &parts.headers)?;
        check_key(&self.app, &parts.headers)?;
        let body = json_body(&self.app, &parts.headers, body, self.dialect).await?;
        self.app.check_ready()?;
        Ok((Arc::clone(&self.app), Request { body, headers: parts.headers }))
    }

    /// A request without a body.
    fn looked(&self, request: &HttpRequest) -> Result<&App, Problem> {
        Self::check_method(request, "GET, HEAD")?;
        check_origin(&self.app, request.headers())?;
        check_key(&self.app, request.headers())?;
        Ok(&self.app)
    }

    /// The same, for an endpoint that needs a model.
    fn looked_ready(&self, request: &HttpRequest) -> Result<&App, Problem> {
        let app = self.looked(request)?;
        app.check_ready()?;
        Ok(app)
    }

    /// A request that needs no key.
    fn public(&self, request: &HttpRequest) -> Result<&App, Problem> {
        Self::check_method(request, "GET, HEAD")?;
        Ok(&self.app)
    }

    /// The answer to a request, by its path.
    async fn answer(&self, request: HttpRequest) -> Result<Response, Problem> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/v1/chat/completions" => {
                let (app, request) = self.asked(request).await?;
                openai::chat::answer(app, request).await
            }
            "/v1/completions" => {
                let (app, request) = self.asked(request).await?;
                openai::completions::answer(app, request).await
            }
            "/v1/responses" => {
                let (app, request) = self.asked(request).await?;
                responses::answer(app, request).await
            }
            "/v1/embeddings" => {
                let (app, request) = self.asked(request).await?;
                embeddings::openai(app, request).await
            }
            "/v1/rerank" | "/v1/reranking" | "/rerank" | "/reranking" => {
                let (app, request) = self.asked(request).await?;
                rerank::answer(app, request).await
            }
            "/v1/messages" => {
                let (app, request) = self.asked(request).await?;
                anthropic::answer(app, request).await
            }
            "/v1/messages/count_tokens" => {
                let (app, request) = self.asked(request).await?;
                anthropic::count_tokens(app, request).await
            }
            "/v1/models" | "/models" => Ok(native::models(self.looked(&request)?)),
            "/health" | "/v1/health" => Ok(native::health(self.public(&request)?)),
            "/ready" => Ok(native::ready(self.public(&request)?)),
            "/version" => self.public(&request).map(|_| native::version()),
            "/metrics" => Ok(native::metrics(self.looked(&request)?)),
            "/props" => native::props(self.looked_ready(&request)?).await,
            "/lora-adapters" => native::adapters(self.looked_ready(&request)?).await,
            "/tokenizer_info" => native::tokenizer_info(self.looked_ready(&request)?).await,
            "/slots" => native::slots(self.looked_ready(&request)?).await,
            "/tokenize" => {
                let (app, request) = self.asked(request).await?;
                native::tokenize(app, request).await
            }
            "/detokenize" => {
                let (app, request) = self.asked(request).await?;
                native::detokenize(app, request).await
            }
            "/apply-template" => {
                let (app, request) = self.asked(request).await?;
                native::apply_template(app, request).await
            }
            "/v1/chat/completions/input_tokens" => {
                let (app, request) = self.asked(request).await?;
                native::input_tokens(app, request).await
            }
            "/" => Ok(native::front(self.public(&request)?, request.headers())),
            _ if path.starts_with("/api/") => self.ollama(&path, request).await,
            _ => match path.strip_prefix("/v1/models/") {
                Some(name) if !name.is_empty() => native::one_model(self.looked(&request)?, &decoded(name)),
                _ => Err(no_path(&path)),
            },
        }
    }

    /// The answer to a request of Ollama's interface.
    async fn ollama(&self, path: &str, request: HttpRequest) -> Result<Response, Problem> {
        match path {
            "/api/chat" => {
                let (app, request) = self.asked(request).await?;
                ollama::chat(app, request).await
            }
            "/api/generate" => {
                let (app, request) = self.asked(request).await?;
                ollama::generate(app, request).await
            }
            "/api/embed" | "/api/embeddings" => {
                let (app, request) = self.asked(request).await?;
                embeddings::ollama(app, request).await
            }
            "/api/show" => {
                let (app, request) = self.asked(request).await?;
                ollama::show(app, request).await
            }
            "/api/tags" => Ok(ollama::tags(self.looked(&request)?)),
            "/api/ps" => Ok(ollama::running(self.looked(&request)?)),
            "/api/version" => self.looked(&request).map(|_| ollama::version()),
            "/api/pull" | "/api/push" | "/api/create" | "/api/copy" | "/api/delete" => {
                check_origin(&self.app, request.headers())?;
                check_key(&self.app, request.headers())?;
                Err(Problem::invalid("fusebox serve does not manage files"))
            }
            _ => Err(no_path(path)),
        }
    }
}

fn no_path(path: &str) -> Problem {
    let path: String = path.chars().take(200).collect();
    Problem { code: Some("not_found"), ..Problem::new(Kind::NotFound, format!("There is no path {path}.")) }
}

/// A part of a path with its `%xx`.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let pair = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = pair.and_then(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A future whose panic is an answer.
async fn caught<T>(future: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let mut future: Pin<Box<_>> = Box::pin(future);
    std::future::poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(Problem::fault("The request could not be answered."))))
    })
    .await
}

/// Answers a request, whatever it is.
pub(crate) async fn respond(app: Arc<App>, request: HttpRequest) -> Response {
    let dialect = dialect_of(request.uri().path());
    let given = request.headers().get("x-request-id").filter(|id| id.len() <= 128).cloned();
    let id = given.or_else(|| HeaderValue::from_str(&ids::name("req_")).ok());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let origin = origin.filter(|origin| origin.to_str().is_ok_and(|origin| is_allowed(&app, origin)));
    let mut response = if origin.is_some() && request.method() == Method::OPTIONS {
        reply::empty()
    } else {
        let gate = Gate { app: Arc::clone(&app), dialect };
        caught(gate.answer(request)).await.unwrap_or_else(|problem| {
            app.refused(problem.status());
            reply::problem(&problem, dialect)
        })
    };
    let headers = response.headers_mut();
    if let Some(id) = id {
        headers.insert("x-request-id", id.clone());
        headers.insert("request-id", id);
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, authorization"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_from_ports() {
        let hosts = ["localhost:80", "[::1]:80", "127.0.0.1", "a.localhost:1", "evil.example:80"];
        assert_eq!(hosts.map(|host| is_local(host_of(host))), [true, true, true, true, false]);
    }

    #[test]
    fn keys_are_compared_whole() {
        let keys = ["secret".to_owned(), "other".to_owned()];
        let with = |name: &'static str, value: &'static str| {
            has_key(&HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))]), &keys)
        };
        assert!(with("authorization", "Bearer secret") && with("authorization", "bearer  other"));
        assert!(with("x-api-key", "secret"));
        assert!(!with("authorization", "Basic secret") && !with("authorization", "secret"));
        assert!(!with("x-api-key", "secre") && !with("x-api-key", "secrets") && !with("x-api-key", ""));
    }

    #[test]
    fn names_in_paths_are_decoded() {
        assert_eq!(decoded("a%2Fb:c%zz%e2%82%ac%"), "a/b:c%zz€%");
    }
}
