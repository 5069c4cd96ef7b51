//! Calls in every format, whole and cut anywhere.
//!
//! In: answers as models of each family write them. Out: text and calls, the same for every division into pieces.

use serde_json::json;

use super::*;

fn tools() -> Vec<Tool> {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
        "required": ["city"],
    });
    vec![Tool { name: "weather".to_owned(), description: None, parameters }]
}

/// Text, and calls with their arguments, of an answer in pieces of `n` characters.
fn parsed(format: Format, text: &str, n: usize) -> (String, Vec<(String, String)>) {
    let mut parser = Parser::new(format, &tools());
    let characters: Vec<char> = text.chars().collect();
    let mut parts = Vec::new();
    for piece in characters.chunks(n) {
        parts.extend(parser.push(&piece.iter().collect::<String>()));
    }
    parts.extend(parser.finish());
    let (mut plain, mut calls) = (String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(text) => plain += &text,
            Part::Call(name) => calls.push((name, String::new())),
            Part::Arguments(text) => calls.last_mut().expect("a call comes first").1 += &text,
        }
    }
    (plain, calls)
}

#[track_caller]
fn check(format: Format, text: &str, plain: &str, calls: &[(&str, Value)]) {
    let lengths = [1, 2, 3, 5, 8, 13, 1000];
    for n in lengths {
        let (found_plain, found) = parsed(format, text, n);
        let found: Vec<(String, Value)> = found
            .into_iter()
            .map(|(name, arguments)| {
                let value = serde_json::from_str(&arguments).unwrap_or_else(|_| panic!("{n}: {arguments}"));
                (name, value)
            })
            .collect();
        let wanted: Vec<(String, Value)> =
            calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!((found_plain.as_str(), found), (plain, wanted), "pieces of {n}");
    }
}

#[test]
fn hermes_writes_tags_around_objects() {
    let call = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Zürich }", "days": 2}}
</tool_call>"#;
    let expected = ("weather", json!({"city": "Zürich }", "days": 2}));
    check(Format::Hermes, call, "", std::slice::from_ref(&expected));
    check(
        Format::Hermes,
        &format!("Let me see.\n{call}\n{call}"),
        "Let me see.",
        &[expected.clone(), expected],
    );
}

#[test]
fn keys_may_come_in_another_order() {
    let call = r#"<tool_call>{"arguments": {"city": "x"}, "name": "weather"}</tool_call>"#;
    check(Format::Hermes, call, "", &[("weather", json!({"city": "x"}))]);
}

#[test]
fn llama_writes_bare_objects() {
    let call = r#"{"name": "weather", "parameters": {"city": "x"}}"#;
    let expected = ("weather", json!({"city": "x"}));
    check(Format::Llama3, call, "", std::slice::from_ref(&expected));
    check(Format::Llama3, &format!("<|python_tag|>{call}; {call}"), "", &[expected.clone(), expected]);
    check(Format::Llama3, r#"{"a": 1} is an object"#, r#"{"a": 1} is an object"#, &[]);
}

#[test]
fn mistral_writes_a_list_or_names() {
    let expected = ("weather", json!({"city": "x"}));
    let one = r#"{"name": "weather", "arguments": {"city": "x"}}"#;
    let old = format!("[TOOL_CALLS][{one}, {one}]");
    check(Format::Mistral, &old, "", &[expected.clone(), expected.clone()]);
    check(Format::Mistral, r#"[TOOL_CALLS]weather[ARGS]{"city": "x"}"#, "", std::slice::from_ref(&expected));
    check(Format::Mistral, r#"Yes.[TOOL_CALLS]weather{"city": "x"}"#, "Yes.", &[expected]);
}

#[test]
fn deepseek_writes_fences() {
    let call = "<｜tool▁calls▁begin｜>\
                <｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"x\"}\n```\
                <｜tool▁call▁end｜>\n\
                <｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"y\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(
        Format::DeepSeek,
        call,
        "",
        &[("weather", json!({"city": "x"})), ("weather", json!({"city": "y"}))],
    );
}

#[test]
fn glm_writes_keys_and_values() {
    let call = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n\
                <arg_key>days</arg_key>\n<arg_value>7</arg_value>\n</tool_call>";
    check(Format::Glm, call, "", &[("weather", json!({"city": "7", "days": 7}))]);
    check(Format::Glm, "<tool_call>weather\n</tool_call>", "", &[("weather", json!({}))]);
}

#[test]
fn what_only_begins_like_a_call_is_text() {
    for text in ["a < b and <tool", "<tool_call> is how it begins", "plain", "  spaces  "] {
        for n in [1, 2, 100] {
            assert_eq!(parsed(Format::Hermes, text, n), (text.to_owned(), Vec::new()));
        }
    }
}

#[test]
fn an_answer_that_ends_within_a_call_has_what_came() {
    let (plain, calls) =
        parsed(Format::Hermes, r#"<tool_call>{"name": "weather", "arguments": {"city": "Z"#, 3);
    assert_eq!((plain.as_str(), calls), ("", vec![("weather".to_owned(), r#"{"city": "Z"#.to_owned())]));
}

#[test]
fn formats_are_known_by_their_templates() {
    let formats = [
        ("{% if tools %}<tool_call>{% endif %}", Some(Format::Hermes)),
        ("{% if tools %}<tool_call><arg_key>{% endif %}", Some(Format::Glm)),
        ("{{ tools }} [TOOL_CALLS]", Some(Format::Mistral)),
        ("{{ tools }} <｜tool▁call▁begin｜>", Some(Format::DeepSeek)),
        ("{{ tools }} \"parameters\" <|python_tag|>", Some(Format::Llama3)),
        ("{{ messages }}", None),
    ];
    for (source, format) in formats {
        assert_eq!(Format::of_template(source), format, "{source}");
    }
}
