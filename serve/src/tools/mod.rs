//! Tool calls in the text of an answer, in the formats of the families that run here.
//!
//! In: text in pieces, cut anywhere. Out: the same text without its calls, and the calls: a name, then the arguments in
//! fragments as they come.
//! The whole answer goes through the same parser, so a stream and a whole answer cannot differ. What looks like a call
//! and is none comes out as text.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::http::json_scan::{Scan, end_of_value, json_prefix};

/// How a family writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes and Qwen.
    Hermes,
    /// `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]` or `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, and JSON in a fence: `DeepSeek`.
    DeepSeek,
    /// `<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`: GLM.
    Glm,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) parameters: Value,
}

/// Which calls are made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// None.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// One of this function.
    Named(String),
}

/// What a piece of text becomes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Text outside of calls.
    Text(String),
    /// A call begins.
    Call(String),
    /// More of its arguments.
    Arguments(String),
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON: &str = "<|python_tag|>";
const MISTRAL: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";
const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

impl Tool {
    /// As chat templates want it.
    pub(crate) fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.name.clone().into());
        function.insert("description".to_owned(), self.description.clone().unwrap_or_default().into());
        function.insert("parameters".to_owned(), self.parameters.clone());
        json!({ "type": "function", "function": function })
    }
}

impl Format {
    /// The format of a chat template; none where it knows of no tools.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        match () {
            () if !has("tools") && !has("tool_calls") => None,
            () if has(KEY) => Some(Self::Glm),
            () if has(OPEN) => Some(Self::Hermes),
            () if has(MISTRAL) => Some(Self::Mistral),
            () if has(CALL_BEGIN) => Some(Self::DeepSeek),
            () if has("python_tag") || has("\"parameters\"") => Some(Self::Llama3),
            () if has("tools") => Some(Self::Hermes),
            () => None,
        }
    }

    /// Special tokens that are part of calls.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[OPEN, CLOSE],
            Self::Llama3 => &[PYTHON],
            Self::Mistral => &[MISTRAL, ARGS, CALL_ID],
            Self::DeepSeek => &[CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR],
            Self::Glm => &[OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END],
        }
    }

    /// How text starts that is a call.
    fn openings(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Glm => &[OPEN],
            Self::Llama3 => &[PYTHON],
            Self::Mistral => &[MISTRAL],
            Self::DeepSeek => &[CALLS_BEGIN, CALL_BEGIN],
        }
    }

    /// A Lark grammar of nothing but calls of these tools. `literal` writes a text as the grammar wants it.
    pub(crate) fn grammar(self, tools: &[&Tool], is_many: bool, literal: &dyn Fn(&str) -> String) -> String {
        let mut rules = String::new();
        let mut names = Vec::new();
        for (number, tool) in tools.iter().enumerate() {
            let name = Value::from(tool.name.as_str()).to_string();
            let before = match self {
                Self::Hermes | Self::Mistral => literal(&format!("{{\"name\": {name}, \"arguments\": ")),
                Self::Llama3 => literal(&format!("{{\"name\": {name}, \"parameters\": ")),
                Self::DeepSeek => format!(
                    "{} {} {} {}",
                    literal(CALL_BEGIN),
                    literal("function"),
                    literal(SEPARATOR),
                    literal(&format!("{}\n```json\n", tool.name))
                ),
                Self::Glm => literal(&format!("{}\n", tool.name)),
            };
            let after = match self {
                Self::Hermes | Self::Llama3 | Self::Mistral => literal("}"),
                Self::DeepSeek => format!("{} {}", literal("\n```"), literal(CALL_END)),
                Self::Glm => String::new(),
            };
            let arguments = match self {
                Self::Glm => Self::glm_arguments(tool, number, literal, &mut rules),
                _ => format!("%json {}", bounded(&tool.parameters)),
            };
            let _ =
                writeln!(rules, "args_{number}: {arguments}\ncall_{number}: {before} args_{number} {after}");
            names.push(format!("call_{number}"));
        }
        let one = "call".to_owned();
        let _ = writeln!(rules, "call: {}", names.join(" | "));
        let many = |first: &str, between: &str| {
            if is_many { format!("{first} ({between} {first})*") } else { first.to_owned() }
        };
        let start = match self {
            Self::Hermes => {
                let wrapped =
                    format!("{} {} call {} {}", literal(OPEN), literal("\n"), literal("\n"), literal(CLOSE));
                many(&wrapped, &literal("\n"))
            }
            Self::Glm => many(&format!("{} call {}", literal(OPEN), literal(CLOSE)), &literal("\n")),
            Self::Llama3 => many(&one, &literal("; ")),
            Self::Mistral => {
                format!(
                    "{} {} {} {}",
                    literal(MISTRAL),
                    literal("["),
                    many(&one, &literal(", ")),
                    literal("]")
                )
            }
            Self::DeepSeek => {
                format!("{} {} {}", literal(CALLS_BEGIN), many(&one, &literal("\n")), literal(CALLS_END))
            }
        };
        format!("start: {start}\n{rules}")
    }

    /// Keys and values of a call, each value as its schema wants it.
    fn glm_arguments(
        tool: &Tool,
        number: usize,
        literal: &dyn Fn(&str) -> String,
        rules: &mut String,
    ) -> String {
        let empty = Map::new();
        let properties = tool.parameters["properties"].as_object().unwrap_or(&empty);
        let required = tool.parameters["required"].as_array().cloned().unwrap_or_default();
        let mut all = Vec::new();
        for (at, (key, schema)) in properties.iter().enumerate() {
            let value = if schema["type"] == "string" && schema.get("enum").is_none() {
                "/[^<]*/".to_owned()
            } else {
                format!("%json {}", bounded(schema))
            };
            let _ = writeln!(rules, "value_{number}_{at}: {value}");
            let pair = format!(
                "{} {} {} {} value_{number}_{at} {} {}",
                literal(KEY),
                literal(key),
                literal(KEY_END),
                literal(&format!("\n{VALUE}")),
                literal(VALUE_END),
                literal("\n")
            );
            let is_required = required.iter().any(|name| name == key.as_str());
            all.push(if is_required { pair } else { format!("({pair})?") });
        }
        if all.is_empty() { literal("") } else { all.join(" ") }
    }
}

/// A schema with bounded white space.
fn bounded(schema: &Value) -> Value {
    let mut schema = if schema.is_object() { schema.clone() } else { json!({ "type": "object" }) };
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": r"[ \n]{1,4}" }));
    }
    schema
}

/// Where a parser is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far.
    Start,
    Text,
    /// After the opening of calls; the text so far is kept in case it is none.
    Opened,
    /// Within arguments that are passed on as they come.
    Streaming,
    /// After a call.
    After,
    /// Between keys and values of GLM; whether there was one.
    Pairs(bool),
}

/// Finds calls in text that comes in pieces.
#[derive(Clone, Debug)]
pub(crate) struct Parser {
    format: Format,
    tools: Vec<Tool>,
    state: State,
    held: String,
    scan: Scan,
    /// The function whose arguments come.
    name: String,
    parts: Vec<Part>,
}

/// How many bytes at the end of a text may be the start of one of these.
fn n_undecided(text: &str, openings: &[&str]) -> usize {
    let may_begin = |opening: &&str| {
        let longest = (opening.len() - 1).min(text.len());
        (1..=longest).rev().find(|n| opening.is_char_boundary(*n) && text.ends_with(&opening[..*n]))
    };
    openings.iter().filter_map(may_begin).max().unwrap_or(0)
}

impl Parser {
    pub(crate) fn new(format: Format, tools: &[Tool]) -> Self {
        Self {
            format,
            tools: tools.to_vec(),
            state: State::Start,
            held: String::new(),
            scan: Scan::default(),
            name: String::new(),
            parts: Vec::new(),
        }
    }

    /// What this piece makes certain.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held += piece;
        while self.advance() {}
        std::mem::take(&mut self.parts)
    }

    /// What was held back, at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        if self.state == State::Opened && self.format != Format::Glm {
            self.whole_call(true);
        }
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Pairs(false) => self.parts.push(Part::Arguments("{}".to_owned())),
            State::Pairs(true) => self.parts.push(Part::Arguments("}".to_owned())),
            State::Start | State::Text | State::Opened => self.text(held),
            // What follows a call and is no other is of no use to anybody.
            State::Streaming | State::After => {}
        }
        std::mem::take(&mut self.parts)
    }

    fn text(&mut self, text: String) {
        if !text.is_empty() {
            self.parts.push(Part::Text(text));
        }
    }

    /// Drops bytes of what is held.
    fn skip(&mut self, n: usize) {
        self.held.drain(..n);
    }

    /// Makes a step; false where more text is needed.
    fn advance(&mut self) -> bool {
        match self.state {
            State::Start => self.start(),
            State::Text => self.plain(),
            State::Opened => self.opened(),
            State::Streaming => self.streaming(),
            State::After => self.after(),
            State::Pairs(has_one) => self.pair(has_one),
        }
    }

    fn start(&mut self) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        self.state = State::Text;
        // Llama writes a bare object.
        if self.format == Format::Llama3 && text.starts_with('{') {
            self.state = State::Opened;
        }
        true
    }

    fn plain(&mut self) -> bool {
        let openings = self.format.openings();
        let first = openings.iter().filter_map(|opening| self.held.find(opening)).min();
        if let Some(at) = first {
            let before: String = self.held.drain(..at).collect();
            // Line ends before a call belong to its format.
            self.text(before.trim_end().to_owned());
            self.state = State::Opened;
            return true;
        }
        // White space is kept back, too: it may come before a call.
        let undecided = n_undecided(&self.held, openings);
        let certain = self.held[..self.held.len() - undecided].trim_end().len();
        let certain: String = self.held.drain(..certain).collect();
        self.text(certain);
        false
    }

    /// The length of the openings at the start of what is held, with white space.
    fn opening(&self) -> usize {
        let mut rest = self.held.as_str();
        loop {
            let trimmed = rest.trim_start();
            let opening = self.format.openings().iter().find(|opening| trimmed.starts_with(**opening));
            match opening {
                Some(opening) => rest = &trimmed[opening.len()..],
                None => return self.held.len() - trimmed.len(),
            }
        }
    }

    fn opened(&mut self) -> bool {
        let opening = self.opening();
        let body = &self.held[opening..];
        if body.is_empty() || self.format.openings().iter().any(|opening| opening.starts_with(body)) {
            return false;
        }
        match self.format {
            Format::Hermes | Format::Llama3 => self.json_call(opening),
            Format::Mistral => {
                if body.starts_with('[') && !body.starts_with(ARGS) {
                    self.json_call(opening + 1)
                } else if body.starts_with('{') {
                    self.json_call(opening)
                } else {
                    self.named(opening, &[ARGS, "{"])
                }
            }
            Format::DeepSeek => self.deepseek(opening),
            Format::Glm => self.glm(opening),
        }
    }

    /// A call as an object with a name and arguments.
    fn json_call(&mut self, at: usize) -> bool {
        match json_prefix(&self.held[at..]) {
            // The name is known, and the arguments begin.
            Ok(Some((name, begin))) => {
                let n = at + begin;
                self.begin(name, n);
                true
            }
            Ok(None) => false,
            // In another order: the object as a whole.
            Err(()) => self.whole_call(false),
        }
    }

    fn begin(&mut self, name: String, n: usize) {
        self.skip(n);
        self.parts.push(Part::Call(name.clone()));
        self.name = name;
        self.scan = Scan::default();
        self.state = State::Streaming;
    }

    /// A call whose object is complete; `is_end` where no more text comes. What is no call is text.
    fn whole_call(&mut self, is_end: bool) -> bool {
        let mut at = self.opening();
        if self.format == Format::Mistral && self.held[at..].starts_with('[') {
            at += 1;
        }
        let body = &self.held[at..];
        let lead = body.len() - body.trim_start().len();
        let Some(end) = end_of_value(&body[lead..]) else {
            if is_end || !body.trim_start().starts_with('{') {
                let held = std::mem::take(&mut self.held);
                self.text(held);
                self.state = State::Text;
            }
            return false;
        };
        let end = at + lead + end;
        let call: Option<Value> = serde_json::from_str(&self.held[at + lead..end]).ok();
        let call = call.and_then(|call| {
            let name = call["name"].as_str()?.to_owned();
            let arguments = call.get("arguments").or(call.get("parameters")).cloned();
            Some((name, arguments.unwrap_or_else(|| json!({}))))
        });
        if let Some((name, arguments)) = call {
            self.skip(end);
            self.parts.push(Part::Call(name));
            // Some models write the arguments as a string of JSON.
            let text = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
            self.parts.push(Part::Arguments(text));
            self.state = State::After;
        } else {
            let text: String = self.held.drain(..end).collect();
            self.text(text);
            self.state = State::Text;
        }
        true
    }

    /// A name that ends where the arguments begin.
    fn named(&mut self, at: usize, ends: &[&str]) -> bool {
        let body = &self.held[at..];
        let found = ends.iter().filter_map(|end| body.find(end).map(|n| (n, *end))).min();
        let Some((n, end)) = found else { return false };
        let name = body[..n].split(CALL_ID).next().unwrap_or_default().trim().to_owned();
        let begin = at + n + if end == "{" { 0 } else { end.len() };
        self.begin(name, begin);
        true
    }

    fn deepseek(&mut self, at: usize) -> bool {
        let body = &self.held[at..];
        let Some(separator) = body.find(SEPARATOR) else { return false };
        let rest = &body[separator + SEPARATOR.len()..];
        let kind = body[..separator].trim();
        let Some(n) = rest.find('{') else { return false };
        let name =
            if kind.is_empty() || kind == "function" { rest[..n].lines().next().unwrap_or("") } else { kind };
        let name = name.trim().to_owned();
        let begin = at + separator + SEPARATOR.len() + n;
        self.begin(name, begin);
        true
    }

    fn glm(&mut self, at: usize) -> bool {
        let body = &self.held[at..];
        let ends = [body.find(KEY), body.find(CLOSE), body.find('\n')];
        let Some(n) = ends.into_iter().flatten().min() else { return false };
        let name = body[..n].trim().to_owned();
        self.skip(at + n);
        self.parts.push(Part::Call(name.clone()));
        self.name = name;
        self.state = State::Pairs(false);
        true
    }

    /// A key and a value of GLM, or the end of a call.
    fn pair(&mut self, has_one: bool) -> bool {
        let body = self.held.trim_start();
        let lead = self.held.len() - body.len();
        if body.starts_with(CLOSE) {
            self.parts.push(Part::Arguments(if has_one { "}" } else { "{}" }.to_owned()));
            self.skip(lead);
            self.state = State::After;
            return true;
        }
        let Some(end) = body.find(VALUE_END) else { return false };
        let within = |open: &str, close: &str| {
            let from = body.find(open)? + open.len();
            body[from..].find(close).map(|n| &body[from..from + n])
        };
        let key = within(KEY, KEY_END).unwrap_or_default().trim();
        let value = within(VALUE, VALUE_END).unwrap_or_default();
        let tool = self.tools.iter().find(|tool| tool.name == self.name);
        let is_text = tool.is_some_and(|tool| tool.parameters["properties"][key]["type"] == "string");
        let value = if is_text { None } else { serde_json::from_str::<Value>(value.trim()).ok() }
            .unwrap_or_else(|| Value::from(value));
        let begin = if has_one { ", " } else { "{" };
        self.parts.push(Part::Arguments(format!("{begin}{}: {value}", Value::from(key))));
        self.skip(lead + end + VALUE_END.len());
        self.state = State::Pairs(true);
        true
    }

    /// Arguments are passed on up to their end.
    fn streaming(&mut self) -> bool {
        let (n, is_over) = self.scan.push(&self.held);
        let fragment: String = self.held.drain(..n).collect();
        if !fragment.is_empty() {
            self.parts.push(Part::Arguments(fragment));
        }
        if is_over {
            self.state = State::After;
        }
        is_over
    }

    /// What follows a call: another, or text that is of no use.
    fn after(&mut self) -> bool {
        let is_next = match self.format {
            Format::Hermes | Format::Glm => self.held.find(OPEN),
            Format::DeepSeek => self.held.find(CALL_BEGIN),
            Format::Mistral => self.held.find(['{']).or_else(|| self.held.find(MISTRAL)),
            Format::Llama3 => self.held.find("; {").map(|at| at + 2).or_else(|| self.held.find(PYTHON)),
        };
        let Some(at) = is_next else { return false };
        self.skip(at);
        self.state = State::Opened;
        true
    }
}

#[cfg(test)]
mod tests;
