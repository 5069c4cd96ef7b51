//! Templates in Jinja, as Transformers runs them.
//!
//! In: the text of a template, and its arguments. Out: a text, or a sentence.
//! A template has no loader, so it can name no file; there is no clock unless one is given. What a step can do is
//! bounded by fuel, by depth and by the length of the output.

use std::io;

use fusebox_runtime::error::printable;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error as Failure, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use crate::chat::clock;
use crate::chat::values::{Writer, object_value};
use crate::error::Error;

/// The most steps of a rendering.
const FUEL: u64 = 2_000_000;
/// The deepest nesting of calls and loops.
const MAX_DEPTH: usize = 100;
/// The longest text that comes out.
const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// The longest JSON that is written in one place.
const MAX_JSON_BYTES: usize = 8 << 20;
/// The longest template.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The most characters of a complaint that are shown: it may quote the template.
const MAX_COMPLAINT: usize = 240;

/// The one template of an environment.
const NAME: &str = "chat";

/// A template that was read.
#[derive(Debug)]
pub(super) struct Jinja(Environment<'static>);

impl Jinja {
    /// Reads a template.
    pub(super) fn new(source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE_BYTES {
            let what = format!("expected at most {MAX_SOURCE_BYTES} bytes, found {}", source.len());
            return Err(Error::Template { what });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|failure| error(&failure))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        let added = environment.add_template_owned(NAME, source.to_owned());
        added.map_err(|failure| error(&failure))?;
        Ok(Self(environment))
    }

    /// Gives the template a clock.
    pub(super) fn set_clock(&mut self, seconds: i64) {
        self.0.add_function("strftime_now", move |format: &str| clock::format(seconds, format));
    }

    /// The text for these arguments.
    pub(super) fn render(&self, arguments: &Map<String, Json>) -> Result<String, Error> {
        let template = self.0.get_template(NAME).map_err(|failure| error(&failure))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(object_value(arguments), &mut out).map_err(|failure| error(&failure))?;
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }
}

/// Bytes that only so many fit into.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other("the output is too long"));
        }
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON as Transformers writes it: nothing is escaped for HTML, and the order is kept.
fn to_json(value: &Value, indent: Option<usize>, arguments: Kwargs) -> Result<String, Failure> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => arguments.get::<Option<usize>>("indent")?,
    };
    Writer::new(indent.map(|indent| indent.min(16)), MAX_JSON_BYTES).write(value)
}

/// What a template calls where it does not want the messages.
fn raise_exception(what: &str) -> Result<Value, Failure> {
    Err(Failure::new(ErrorKind::InvalidOperation, what.to_owned()))
}

fn error(failure: &Failure) -> Error {
    Error::Template { what: printable(&failure.to_string(), MAX_COMPLAINT) }
}
