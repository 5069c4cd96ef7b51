//! Messages of every interface as those of a chat template.
//!
//! In: OpenAI's messages. Out: objects with `role`, `content` as text, `tool_calls` with arguments as objects, and
//! `reasoning_content`. Keys that no template reads are dropped: clients echo whole messages.

use serde_json::{Map, Value, json};

use crate::http::fields::kind;
use crate::http::problem::Problem;

/// The text of a content that is a string or parts.
fn text_of(content: &Value, path: &str) -> Result<String, Problem> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut text = String::new();
            for (number, part) in parts.iter().enumerate() {
                let path = format!("{path}[{number}]");
                text += &part_text(part, &path)?;
            }
            Ok(text)
        }
        other => Err(Problem::field(
            path,
            format!("expected a string or an array of parts, found {}", kind(other)),
        )),
    }
}

fn part_text(part: &Value, path: &str) -> Result<String, Problem> {
    if let Value::String(text) = part {
        return Ok(text.clone());
    }
    let Some(object) = part.as_object() else {
        return Err(Problem::field(path, format!("expected an object, found {}", kind(part))));
    };
    let name = object.get("type").and_then(Value::as_str);
    let key = match name {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            let what =
                format!("parts of type {} are not supported, this model reads text", Value::from(other));
            return Err(Problem::unsupported(format!("{path}.type"), what));
        }
        None => return Err(Problem::field(format!("{path}.type"), "expected a string, found none")),
    };
    match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => {
            Err(Problem::field(format!("{path}.{key}"), format!("expected a string, found {}", kind(other))))
        }
        None => Err(Problem::field(format!("{path}.{key}"), "expected a string, found none")),
    }
}

/// A call as templates want it: with its arguments as an object.
pub(crate) fn call(id: &str, name: &str, arguments: &Value) -> Value {
    let arguments = match arguments {
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    };
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn calls_of(calls: &Value, path: &str) -> Result<Vec<Value>, Problem> {
    let Some(list) = calls.as_array() else {
        return Err(Problem::field(path, format!("expected an array, found {}", kind(calls))));
    };
    let mut all = Vec::with_capacity(list.len());
    for (number, one) in list.iter().enumerate() {
        let function = &one["function"];
        let Some(name) = function["name"].as_str() else {
            return Err(Problem::field(
                format!("{path}[{number}].function.name"),
                "expected a string, found none",
            ));
        };
        all.push(call(one["id"].as_str().unwrap_or_default(), name, &function["arguments"]));
    }
    Ok(all)
}

/// OpenAI's messages.
///
/// # Errors
/// The problem of one message.
pub(crate) fn openai(messages: Vec<Value>) -> Result<Vec<Value>, Problem> {
    if messages.is_empty() {
        return Err(Problem::field("messages", "expected at least one message, found none"));
    }
    let each = messages
        .into_iter()
        .enumerate()
        .map(|(number, message)| one(message, &format!("messages[{number}]")));
    each.collect()
}

fn one(message: Value, path: &str) -> Result<Value, Problem> {
    let Value::Object(message) = message else {
        return Err(Problem::field(path, format!("expected an object, found {}", kind(&message))));
    };
    let field = |name: &str| message.get(name).filter(|value| !value.is_null());
    let role = match field("role") {
        Some(Value::String(role)) => role.as_str(),
        Some(other) => {
            return Err(Problem::field(
                format!("{path}.role"),
                format!("expected a string, found {}", kind(other)),
            ));
        }
        None => return Err(Problem::field(format!("{path}.role"), "expected a string, found none")),
    };
    let role = match role {
        "system" | "developer" => "system",
        "user" | "assistant" => role,
        "tool" | "function" => "tool",
        _ => {
            let what = "expected system, developer, user, assistant, tool or function";
            return Err(Problem::field(format!("{path}.role"), what));
        }
    };
    let mut told = Map::new();
    told.insert("role".to_owned(), role.into());
    let calls =
        field("tool_calls").map(|calls| calls_of(calls, &format!("{path}.tool_calls"))).transpose()?;
    let calls = calls.filter(|calls| role == "assistant" && !calls.is_empty());
    let content = match field("content") {
        Some(content) => text_of(content, &format!("{path}.content"))?,
        None if calls.is_some() => String::new(),
        None if role == "assistant" && field("refusal").is_some() => {
            field("refusal").and_then(Value::as_str).unwrap_or_default().to_owned()
        }
        None => return Err(Problem::field(format!("{path}.content"), "expected a string, found none")),
    };
    told.insert("content".to_owned(), content.into());
    if let Some(calls) = calls {
        told.insert("tool_calls".to_owned(), calls.into());
    }
    if role == "assistant"
        && let Some(thought) =
            ["reasoning_content", "reasoning"].iter().find_map(|name| field(name)?.as_str())
    {
        told.insert("reasoning_content".to_owned(), thought.into());
    }
    if role == "tool" {
        for name in ["tool_call_id", "name"] {
            if let Some(Value::String(text)) = field(name) {
                told.insert(name.to_owned(), text.clone().into());
            }
        }
    }
    Ok(Value::Object(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_and_stray_keys_dropped() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]);
        let told =
            openai(vec![json!({"role": "developer", "content": parts, "id": 7, "name": "x"})]).unwrap();
        assert_eq!(told, [json!({"role": "system", "content": "ab"})]);
    }

    #[test]
    fn arguments_are_objects_and_content_may_be_null_beside_calls() {
        let calls =
            json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]);
        let told = openai(vec![json!({"role": "assistant", "content": null, "tool_calls": calls})]).unwrap();
        assert_eq!(told[0]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!(told[0]["content"], "");
    }

    #[test]
    fn each_malformed_message_is_named() {
        let cases = [
            (json!(1), "messages[0]"),
            (json!({}), "messages[0].role"),
            (json!({"role": 5, "content": "x"}), "messages[0].role"),
            (json!({"role": "wizard", "content": "x"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "user", "content": [5]}), "messages[0].content[0]"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0].type"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
            (json!({"role": "assistant", "tool_calls": 1}), "messages[0].tool_calls"),
        ];
        for (message, param) in cases {
            let problem = openai(vec![message.clone()]).unwrap_err();
            assert_eq!((problem.status(), problem.param.as_deref()), (400, Some(param)), "{message}");
        }
        assert!(openai(Vec::new()).is_err());
    }
}
