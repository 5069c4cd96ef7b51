//! Runs Jinja chat templates as Transformers does.
//!
//! In: the source of a template, and its variables. Out: a text, or a sentence.
//! Templates are sandboxed: there is no loader, so no file can be read, and no clock unless one is given. Fuel and
//! recursion depth bound the steps, `limits.rs` bounds memory, and a thread with a timeout bounds the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use fusebox_runtime::error::printable;
use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error as Failure, ErrorKind, filters};
use serde_json::{Map, Value as Json};

use crate::chat::limits::{self, Work};
use crate::chat::strftime;
use crate::chat::values::{Style, Writer, object_value};
use crate::error::Error;

/// The deepest nesting of calls and loops.
const MAX_DEPTH: usize = 100;
/// The longest JSON that `tojson` writes.
const MAX_JSON_BYTES: usize = 8 << 20;
/// The longest template: several times the longest of real models.
const MAX_SOURCE_BYTES: usize = 1 << 17;
/// The time limit of a rendering: thousands of times what real templates take.
const MAX_TIME: Duration = Duration::from_secs(20);
/// The stack size for parsing and rendering. Each byte of a template may open another level of nesting, at some 400
/// bytes of stack. Untouched pages take no memory.
const STACK_BYTES: usize = MAX_SOURCE_BYTES << 11;
/// The longest message of the template engine that is shown, in characters: it may quote the template.
const MAX_MESSAGE: usize = 240;

/// A parsed template.
#[derive(Clone, Debug)]
pub(super) struct Jinja {
    /// Its name in errors.
    name: Arc<str>,
    source: Arc<str>,
    environment: Environment<'static>,
}

impl Jinja {
    /// Parses a template.
    pub(super) fn new(name: &str, source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE_BYTES {
            let what = format!("expected at most {MAX_SOURCE_BYTES} bytes, found {}", source.len());
            return Err(Error::Template { what });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|failure| error(&failure))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_recursion_limit(MAX_DEPTH);
        environment.add_filter("tojson", to_json);
        environment.add_filter("length", length);
        environment.add_filter("count", length);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_sequence);
        environment.add_function("raise_exception", raise_exception);
        let own = Self { name: name.into(), source: to_jinja(source).into(), environment };
        own.clone().bounded(|own, _| own.steps().map(|_| ()))?;
        Ok(own)
    }

    /// The text it was parsed from.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Defines `strftime_now`.
    pub(super) fn set_clock(&mut self, seconds: i64) {
        self.environment.add_function("strftime_now", move |format: &str| strftime::format(seconds, format));
    }

    /// Renders the template with these variables.
    pub(super) fn render(&self, arguments: &Map<String, Json>) -> Result<String, Error> {
        let arguments = object_value(arguments);
        self.clone().bounded(move |own, work| own.run(arguments, work))
    }

    /// Runs a closure on a thread with a large stack and a time limit.
    fn bounded<T: Send + 'static>(
        self,
        act: impl FnOnce(&Self, Work) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let refused = |what: String| Error::Template { what };
        let (work, (done, outcome)) = (Work::default(), channel());
        let counted = work.clone();
        // After a timeout nobody receives the result.
        let render = move || drop(done.send(act(&self, counted)));
        let thread = thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(render).map_err(|error| refused(format!("cannot start a thread for it: {error}")))?;
        let outcome = outcome.recv_timeout(MAX_TIME).map_err(|error| {
            work.exhaust();
            refused(match error {
                RecvTimeoutError::Timeout => {
                    format!("expected a result within {} seconds", MAX_TIME.as_secs())
                }
                RecvTimeoutError::Disconnected => "its thread ended without a result".to_owned(),
            })
        })?;
        outcome.map_err(|failure| error(&failure))
    }

    /// Compiles the template.
    fn steps(&self) -> Result<Instructions<'_>, Failure> {
        let template = parse(&self.source, &self.name, self.environment.syntax().clone())?;
        let mut generator = CodeGenerator::new(&self.name, &self.source);
        generator.compile_stmt(&template);
        let (steps, blocks) = generator.finish();
        if blocks.is_empty() {
            return Ok(steps);
        }
        Err(Failure::new(ErrorKind::InvalidOperation, "blocks are not supported in chat templates"))
    }

    fn run(&self, arguments: Value, work: Work) -> Result<String, Failure> {
        let mut steps = self.steps()?;
        let (filters, fuel) = (limits::filters(&steps), limits::fuel(&steps));
        limits::redirect(&mut steps, &filters);
        let mut environment = self.environment.clone();
        limits::add_to(&mut environment, &filters, fuel, work);
        let (mut text, blocks) = (String::new(), BTreeMap::new());
        let mut out = make_string_output(&mut text);
        eval(&environment, &steps, arguments, &blocks, &mut out, AutoEscape::None)?;
        Ok(text)
    }
}

/// Replaces the `generation` tags, which only Transformers knows and which make no text, and normalises line ends to
/// `⏎`, as Jinja does.
fn to_jinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let (mut plain, mut rest) = (String::with_capacity(source.len()), &source[..]);
    while let Some(start) = rest.find("{%") {
        let end = rest[start..].find("%}").map_or(rest.len(), |end| start + end + 2);
        let tag = &rest[start..end];
        plain.push_str(&rest[..start]);
        plain.push_str(&match tag.trim_matches(|c: char| "{%-+}".contains(c) || c.is_whitespace()) {
            "generation" => tag.replace("generation", "with"),
            "endgeneration" => tag.replace("endgeneration", "endwith"),
            _ => tag.to_owned(),
        });
        rest = &rest[end..];
    }
    plain + rest
}

/// As in Jinja: an undefined value has length 0.
fn length(value: &Value) -> Result<usize, Failure> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// As in Python: `None` is not iterable.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// As in Python: strings and objects are sequences, too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Bytes | ValueKind::Seq | ValueKind::Map)
}

/// `tojson` as in Transformers: no HTML escapes, and the order of keys is kept unless `sort_keys` is set.
#[expect(clippy::needless_pass_by_value, reason = "a filter gets its named arguments by value")]
fn to_json(
    value: &Value,
    is_ascii: Option<Value>,
    indent: Option<usize>,
    separators: Option<Value>,
    named: Kwargs,
) -> Result<String, Failure> {
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = indent.or(named.get("indent")?).map(|indent| indent.min(16));
    let separators = match separators.or(named.get("separators")?) {
        Some(both) => both.try_iter()?.map(|text| text.to_string()).collect(),
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned).to_vec(),
    };
    let separators = separators.try_into().map_err(|_| {
        Failure::new(ErrorKind::InvalidOperation, "JSON has two separators: between values, and after a key")
    })?;
    let is_ascii = is_set(is_ascii.or(named.get("ensure_ascii")?));
    let is_sorted = is_set(named.get("sort_keys")?);
    named.assert_all_used()?;
    Writer::new(Style { indent, separators, is_ascii, is_sorted }, MAX_JSON_BYTES).write(value)
}

/// Called by templates to refuse messages.
fn raise_exception(what: &str) -> Result<Value, Failure> {
    Err(Failure::new(ErrorKind::InvalidOperation, what.to_owned()))
}

fn error(failure: &Failure) -> Error {
    Error::Template { what: printable(&failure.to_string(), MAX_MESSAGE) }
}
