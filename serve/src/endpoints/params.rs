//! Settings of sampling and of output that OpenAI's endpoints have in common.
//!
//! In: the fields of a request. Out: an [`Ask`] without its prompts.
//! Names of vLLM and llama.cpp are taken beside OpenAI's where they mean the same.

use std::time::{Duration, Instant};

use fusebox::text::amount::counted;
use hyper::HeaderMap;
use serde_json::{Map, Value, json};

use crate::ask::Ask;
use crate::grammar::Grammar;
use crate::http::fields::{Fields, kind, to_integer};
use crate::http::problem::Problem;
use crate::model::Served;
use crate::tools::{Choice, Tool};

/// The most stop strings, and the longest.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 4096;
/// The most entries of a bias.
const MAX_BIAS: usize = 1024;
/// The largest factor on an adapter.
const MAX_SCALE: f64 = 1000.0;
/// The most functions.
const MAX_TOOLS: usize = 512;

/// Fields that are taken and have no effect.
pub(crate) const IGNORED: [&str; 14] = [
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "verbosity",
    "prediction",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "request_id",
    "speculative.n_min",
    "speculative.p_min",
];

/// Takes the settings of sampling, stops and output.
///
/// # Errors
/// The problem of one field.
pub(crate) fn openai(fields: &mut Fields, served: &Served, ask: &mut Ask) -> Result<(), Problem> {
    let chain = &mut ask.sampling.chain;
    if let Some(x) = fields.number("temperature", 0.0..=5.0)? {
        chain.temperature = x;
    }
    if let Some(x) = fields.number("top_p", 0.0..=1.0)? {
        chain.top_p = x.max(f32::MIN_POSITIVE);
    }
    if let Some(k) = fields.integer("top_k", -1..=i64::MAX)? {
        chain.top_k = k.max(0) as usize;
    }
    if let Some(x) = fields.number("min_p", 0.0..=1.0)? {
        chain.min_p = x.min(0.999_999);
    }
    for name in ["repetition_penalty", "repeat_penalty"] {
        if let Some(x) = fields.number(name, 1e-3..=1e3)? {
            chain.repeat_penalty = x;
        }
    }
    if let Some(n) = fields.integer("repeat_last_n", -1..=i64::MAX)? {
        chain.repeat_last = usize::try_from(n).unwrap_or(usize::MAX);
    }
    if let Some(x) = fields.number("typical_p", 0.0..=1.0)? {
        chain.typical_p = x.max(f32::MIN_POSITIVE);
    }
    if let Some(x) = fields.number("top_n_sigma", -1.0..=100.0)? {
        chain.top_n_sigma = x.max(0.0);
    }
    if let Some(x) = fields.number("xtc_probability", 0.0..=1.0)? {
        chain.xtc_probability = x;
    }
    if let Some(x) = fields.number("xtc_threshold", 0.0..=1.0)? {
        chain.xtc_threshold = x;
    }
    if let Some(x) = fields.number("frequency_penalty", -2.0..=2.0)? {
        ask.sampling.frequency = x;
    }
    if let Some(x) = fields.number("presence_penalty", -2.0..=2.0)? {
        ask.sampling.presence = x;
    }
    if let Some(n) = fields.integer("n", 1..=128)? {
        ask.n = n as usize;
    }
    ask.seed = fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64);
    bias(fields, served, ask)?;
    stops(fields, served, ask)?;
    if let Some(n) = fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))? {
        ask.priority = n;
    }
    ask.is_cached = fields.bool("cache_prompt")?.unwrap_or(true);
    ask.salt = fields.string("cache_salt")?;
    if let Some(n) = fields.integer("speculative.n_max", 0..=i64::MAX)? {
        ask.guesses = Some(n as usize);
    }
    adapters(fields, served, ask)?;
    grammar(fields, ask)?;
    for name in ["return_tokens_as_token_ids", "return_token_ids", "use_beam_search", "mirostat"] {
        fields.refuse(name, &[json!(false), json!(0), json!(1), json!(1.0)], "it is not supported")?;
    }
    fields.refuse("structural_tag", &[], "it is not supported")?;
    fields.refuse("chat_template", &[], "a template is code, and is not taken from a request")?;
    fields.refuse("store", &[json!(false)], "answers are not stored")?;
    fields.ignore(&IGNORED);
    Ok(())
}

/// Adapters as llama.cpp has them: a list of ids and scales, with 0 for those that are not in it.
fn adapters(fields: &mut Fields, served: &Served, ask: &mut Ask) -> Result<(), Problem> {
    let Some(list) = fields.array("lora")? else { return Ok(()) };
    let n = served.adapters.len();
    ask.adapters = vec![0.0; n];
    for (number, one) in list.into_iter().enumerate() {
        let mut one = Fields::new(one, &format!("lora[{number}]"))?;
        let id = one.integer("id", 0..=i64::MAX)?.map(|id| id as usize);
        let Some(factor) = id.and_then(|id| ask.adapters.get_mut(id)) else {
            let what = format!("expected the number of one of {}", counted(n, "adapter"));
            return Err(Problem::field(one.path("id"), what));
        };
        *factor = one.number("scale", -MAX_SCALE..=MAX_SCALE)?.unwrap_or(1.0);
        one.finish()?;
    }
    Ok(())
}

/// Biases by token: a map of ids, or llama.cpp's list of pairs.
fn bias(fields: &mut Fields, served: &Served, ask: &mut Ask) -> Result<(), Problem> {
    let Some(value) = fields.take("logit_bias") else { return Ok(()) };
    let wrong = |what: String| Problem::field("logit_bias", what);
    let pairs: Vec<(Option<i64>, Option<f64>)> = match &value {
        Value::Object(map) => map.iter().map(|(id, amount)| (id.parse().ok(), amount.as_f64())).collect(),
        Value::Array(list) => {
            let amount =
                |value: &Value| if value == &Value::Bool(false) { Some(-100.0) } else { value.as_f64() };
            list.iter().map(|pair| (to_integer(&pair[0]), amount(&pair[1]))).collect()
        }
        other => return Err(wrong(format!("expected an object of token ids, found {}", kind(other)))),
    };
    if pairs.len() > MAX_BIAS {
        return Err(wrong(format!("expected at most {MAX_BIAS} tokens, found {}", pairs.len())));
    }
    let vocab = served.worker.capacity.vocab as i64;
    for (id, amount) in pairs {
        let id = id.filter(|id| (0..vocab).contains(id));
        let id = id.ok_or_else(|| wrong(format!("expected token ids below {vocab}")))?;
        let amount = amount.filter(|amount| (-100.0..=100.0).contains(amount));
        let amount = amount.ok_or_else(|| wrong("expected numbers from -100 to 100".to_owned()))?;
        ask.sampling.bias.push((id as u32, amount as f32));
    }
    Ok(())
}

fn stops(fields: &mut Fields, served: &Served, ask: &mut Ask) -> Result<(), Problem> {
    ask.reading.stops = checked_stops("stop", fields.strings("stop", MAX_STOPS)?)?;
    if let Some(ids) = fields.array("stop_token_ids")? {
        let vocab = served.worker.capacity.vocab as i64;
        for id in ids {
            let id = to_integer(&id).filter(|id| (0..vocab).contains(id));
            let wrong = || Problem::field("stop_token_ids", format!("expected token ids below {vocab}"));
            ask.stop_tokens.push(id.ok_or_else(wrong)? as u32);
        }
    }
    ask.reading.includes_stop = fields.bool("include_stop_str_in_output")?.unwrap_or(false);
    ask.ignores_ends = fields.bool("ignore_eos")?.unwrap_or(false);
    ask.min_tokens = fields.size("min_tokens", 0)?.unwrap_or(0);
    ask.reading.shows_special = !fields.bool("skip_special_tokens")?.unwrap_or(true);
    Ok(())
}

/// Stop strings that may be searched for.
///
/// # Errors
/// Where one is empty or too long.
pub(crate) fn checked_stops(param: &str, stops: Vec<String>) -> Result<Vec<String>, Problem> {
    if stops.iter().any(String::is_empty) {
        return Err(Problem::field(param, "expected strings that are not empty"));
    }
    if stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        return Err(Problem::field(param, format!("expected strings of at most {MAX_STOP_BYTES} bytes")));
    }
    Ok(stops)
}

/// What the answer must match, by any of its names.
fn grammar(fields: &mut Fields, ask: &mut Ask) -> Result<(), Problem> {
    let mut found: Vec<Grammar> = Vec::new();
    if let Some(mut format) = fields.fields("response_format")? {
        found.extend(response_format(&mut format)?);
        format.finish()?;
    }
    if let Some(mut outputs) = fields.fields("structured_outputs")? {
        let given = structured(&mut outputs, "")?;
        if given.len() != 1 {
            let what = "expected exactly one of json, regex, choice, grammar, json_object";
            return Err(Problem::field("structured_outputs", what));
        }
        outputs.refuse("structural_tag", &[], "it is not supported")?;
        outputs.ignore(&["disable_any_whitespace", "whitespace_pattern", "disable_fallback"]);
        outputs.finish()?;
        found.extend(given);
    }
    found.extend(structured(fields, "guided_")?);
    fields.ignore(&["guided_decoding_backend", "guided_whitespace_pattern"]);
    fields.refuse(
        "grammar",
        &[json!("")],
        "GBNF is not read here; give structured_outputs.grammar in Lark's syntax",
    )?;
    if let Some(schema) = fields.take("json_schema") {
        found.push(Grammar::Schema(schema));
    }
    if found.len() > 1 {
        return Err(Problem::field(
            "response_format",
            "the answer can match one grammar only, found several",
        ));
    }
    ask.grammar = found.pop();
    Ok(())
}

/// OpenAI's `response_format`, also in the flat form of Responses.
///
/// # Errors
/// The problem of one field.
pub(crate) fn response_format(format: &mut Fields) -> Result<Option<Grammar>, Problem> {
    let name = format.required_string("type")?;
    match name.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(match format.take("schema") {
            Some(schema) => schema_of(format, "schema", schema)?,
            None => Grammar::JsonObject,
        })),
        "json_schema" => {
            let flat = format.has("schema");
            let mut inner = if flat { None } else { format.fields("json_schema")? };
            let schema = match &mut inner {
                Some(inner) => inner.take("schema"),
                None => format.take("schema"),
            };
            let Some(schema) = schema else {
                let param = format.path("json_schema.schema");
                return Err(Problem::field(param, "expected a schema, found none"));
            };
            let fields = inner.as_mut().unwrap_or(format);
            fields.string("name")?;
            fields.bool("strict")?;
            fields.ignore(&["description"]);
            let grammar = schema_of(fields, "schema", schema)?;
            if let Some(inner) = inner {
                inner.finish()?;
            }
            Ok(Some(grammar))
        }
        _ => {
            let what = format!("expected text, json_object or json_schema, found {}", Value::from(name));
            Err(Problem::field(format.path("type"), what))
        }
    }
}

fn schema_of(fields: &Fields, name: &str, schema: Value) -> Result<Grammar, Problem> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::Schema(schema)),
        other => {
            let what = format!("expected a JSON schema, found {}", kind(&other));
            Err(Problem::field(fields.path(name), what))
        }
    }
}

/// vLLM's names for grammars.
fn structured(fields: &mut Fields, prefix: &str) -> Result<Vec<Grammar>, Problem> {
    let name = |end: &str| format!("{prefix}{end}");
    let mut found = Vec::new();
    if let Some(schema) = fields.take(&name("json")) {
        let schema = match schema {
            Value::String(text) => serde_json::from_str(&text)
                .map_err(|error| Problem::field(fields.path(&name("json")), error.to_string()))?,
            other => other,
        };
        found.push(schema_of(fields, &name("json"), schema)?);
    }
    if let Some(regex) = fields.string(&name("regex"))? {
        found.push(Grammar::Regex(regex));
    }
    let choices = fields.array(&name("choice"))?;
    if let Some(choices) = choices {
        let texts: Option<Vec<String>> = choices
            .iter()
            .map(|choice| {
                choice.as_str().filter(|text| !text.is_empty()).map(|text| Value::from(text).to_string())
            })
            .collect();
        let texts = texts.filter(|texts| !texts.is_empty());
        let wrong =
            || Problem::field(fields.path(&name("choice")), "expected an array of strings, none empty");
        found.push(Grammar::Lark(format!("start: {}", texts.ok_or_else(wrong)?.join(" | "))));
    }
    if let Some(lark) = fields.string(&name("grammar"))? {
        found.push(Grammar::Lark(lark));
    }
    if fields.bool(&name("json_object"))? == Some(true) {
        found.push(Grammar::JsonObject);
    }
    Ok(found)
}

/// The functions of a request, in OpenAI's form; `flat` without the inner `function`.
///
/// # Errors
/// The problem of one field.
pub(crate) fn tools(list: Option<Vec<Value>>, flat: bool) -> Result<Vec<Tool>, Problem> {
    let list = list.unwrap_or_default();
    if list.len() > MAX_TOOLS {
        return Err(Problem::field("tools", format!("expected at most {MAX_TOOLS}, found {}", list.len())));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
    for (number, value) in list.into_iter().enumerate() {
        let path = format!("tools[{number}]");
        let mut fields = Fields::new(value, &path)?;
        let kind = fields.required_string("type")?;
        if kind != "function" {
            let what = format!("expected function, found {}", Value::from(kind));
            return Err(Problem::unsupported(format!("{path}.type"), what));
        }
        let mut function = if flat {
            fields
        } else {
            let missing = || Problem::field(format!("{path}.function"), "expected an object, found none");
            fields.fields("function")?.ok_or_else(missing)?
        };
        let tool = tool(&mut function, "parameters")?;
        function.bool("strict")?;
        push_tool(&mut tools, tool, &path)?;
    }
    Ok(tools)
}

/// One function; `schema` names the schema of its arguments.
///
/// # Errors
/// The problem of one field.
pub(crate) fn tool(fields: &mut Fields, schema: &str) -> Result<Tool, Problem> {
    let name = fields.required_string("name")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_name) {
        let what = "expected 1 to 64 letters, digits, _ or -";
        return Err(Problem::field(fields.path("name"), what));
    }
    let description = fields.string("description")?;
    let parameters = fields.object(schema)?.map_or_else(|| json!({ "type": "object" }), Value::Object);
    Ok(Tool { name, description, parameters })
}

/// Adds a function whose name must be new.
///
/// # Errors
/// Where it is not.
pub(crate) fn push_tool(tools: &mut Vec<Tool>, tool: Tool, path: &str) -> Result<(), Problem> {
    if tools.iter().any(|other| other.name == tool.name) {
        return Err(Problem::field(
            format!("{path}.name"),
            format!("there are two tools of the name {}", tool.name),
        ));
    }
    tools.push(tool);
    Ok(())
}

/// OpenAI's `tool_choice`; `allowed_tools` leaves only some of the tools.
///
/// # Errors
/// The problem of the field.
pub(crate) fn tool_choice(value: Option<Value>, tools: &mut Vec<Tool>) -> Result<Choice, Problem> {
    let wrong = |what: &str| Problem::field("tool_choice", what);
    let needs = |choice: Choice, tools: &[Tool]| {
        if tools.is_empty() { Err(wrong("it needs tools, found none")) } else { Ok(choice) }
    };
    let named = |name: &str, tools: &[Tool]| {
        if tools.iter().any(|tool| tool.name == name) {
            Ok(Choice::Named(name.to_owned()))
        } else {
            Err(wrong(&format!("there is no tool of the name {}", Value::from(name))))
        }
    };
    match value {
        None => Ok(if tools.is_empty() { Choice::None } else { Choice::Auto }),
        Some(Value::String(mode)) => match mode.as_str() {
            "none" => Ok(Choice::None),
            "auto" if tools.is_empty() => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" => needs(Choice::Required, tools),
            _ => Err(wrong("expected none, auto, required or a function")),
        },
        Some(Value::Object(object)) => match object.get("type").and_then(Value::as_str) {
            Some("function") => {
                let name = object.get("function").map_or(object.get("name"), |function| function.get("name"));
                named(
                    name.and_then(Value::as_str).ok_or_else(|| wrong("expected the name of a function"))?,
                    tools,
                )
            }
            Some("allowed_tools") => {
                let allowed = object.get("allowed_tools").and_then(Value::as_object).unwrap_or(&object);
                let list = allowed.get("tools").and_then(Value::as_array).cloned().unwrap_or_default();
                let mut names = Vec::new();
                for tool in &list {
                    let name =
                        tool["function"]["name"].as_str().or(tool["name"].as_str()).unwrap_or_default();
                    named(name, tools)?;
                    names.push(name.to_owned());
                }
                tools.retain(|tool| names.contains(&tool.name));
                let is_required = allowed.get("mode").and_then(Value::as_str) == Some("required");
                needs(if is_required { Choice::Required } else { Choice::Auto }, tools)
            }
            _ => Err(wrong("expected none, auto, required or a function")),
        },
        Some(_) => Err(wrong("expected none, auto, required or a function")),
    }
}

/// Variables for the template, with what a request says of reasoning.
///
/// # Errors
/// The problem of one field.
pub(crate) fn variables(fields: &mut Fields) -> Result<Map<String, Value>, Problem> {
    let mut variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    for reserved in ["messages", "tools", "add_generation_prompt"] {
        if variables.contains_key(reserved) {
            let what = "this variable has a field of its own";
            return Err(Problem::field(format!("chat_template_kwargs.{reserved}"), what));
        }
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        effort_variables("reasoning_effort", &effort, &mut variables)?;
    }
    for name in ["thinking_token_budget", "reasoning_budget_tokens"] {
        fields.refuse(name, &[json!(-1)], "a budget of reasoning is not supported")?;
    }
    Ok(variables)
}

/// What an effort means to a template.
///
/// # Errors
/// Where there is no such effort.
pub(crate) fn effort_variables(
    param: &str,
    effort: &str,
    variables: &mut Map<String, Value>,
) -> Result<(), Problem> {
    match effort {
        "none" => variables.insert("enable_thinking".to_owned(), false.into()),
        "minimal" | "low" | "medium" | "high" | "xhigh" | "max" => {
            variables.insert("reasoning_effort".to_owned(), effort.into())
        }
        _ => return Err(Problem::field(param, "expected none, minimal, low, medium, high, xhigh or max")),
    };
    Ok(())
}

/// The deadline of a request: its header, or that of the server.
///
/// # Errors
/// Where the header is no number of seconds.
pub(crate) fn deadline(headers: &HeaderMap, usual: Option<Duration>) -> Result<Option<Instant>, Problem> {
    let limit = match headers.get("x-request-timeout") {
        None => usual,
        Some(value) => {
            let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
            let seconds = seconds.filter(|seconds| (0.001..=1e7).contains(seconds));
            let wrong = || Problem::field("x-request-timeout", "expected a number of seconds");
            Some(Duration::from_secs_f64(seconds.ok_or_else(wrong)?))
        }
    };
    Ok(limit.map(|limit| Instant::now() + limit))
}
