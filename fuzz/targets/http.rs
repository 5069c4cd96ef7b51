//! Bodies of requests to a server that runs in this process: trees of JSON with faults, for every endpoint.
//!
//! An answer comes in time and is no failure of the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fusebox_compiler::foundation::random::Random;
use fusebox_serve::{Settings, Source, serve};
use serde_json::{Value, json};

use crate::mutate::{self, chance, one};
use crate::targets::target::Target;

/// The endpoints, and a body that each takes.
fn requests() -> Vec<(&'static str, Value)> {
    let messages =
        json!([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Tell a story."}]);
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "string"}}, "required": ["a"]}}}]);
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object",
        "properties": {"a": {"enum": [1, "b", null]}}, "additionalProperties": false}}});
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 2, "temperature": 0.5, "top_p": 0.9,
            "stop": ["x"], "logprobs": true, "top_logprobs": 2, "n": 1, "seed": 1, "stream": false,
            "logit_bias": {"5": -10}, "tools": tool, "tool_choice": "auto"}),
        ),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2, "response_format": schema})),
        (
            "/v1/completions",
            json!({"prompt": "Once", "max_tokens": 2, "echo": true, "logprobs": 1, "stream": true}),
        ),
        ("/v1/responses", json!({"input": "Hello", "max_output_tokens": 2, "instructions": "Be short."})),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "max_tokens": 2, "system": "Be short.", "stop_sequences": ["x"]}),
        ),
        (
            "/api/chat",
            json!({"messages": messages, "options": {"num_predict": 2, "temperature": 0}, "stream": false}),
        ),
        ("/api/generate", json!({"prompt": "Once", "options": {"num_predict": 2}, "raw": true})),
        ("/completion", json!({"prompt": [1, 2, "a"], "n_predict": 2, "samplers": ["top_k"], "grammar": ""})),
        ("/tokenize", json!({"content": "Once upon", "add_special": true, "with_pieces": true})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
        ("/apply-template", json!({"messages": messages})),
        ("/v1/embeddings", json!({"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b", "c"], "top_n": 1})),
    ]
}

/// Names and values that mean something.
const WORDS: [&str; 24] = [
    "messages",
    "role",
    "content",
    "user",
    "assistant",
    "tool",
    "tool_calls",
    "image_url",
    "max_tokens",
    "stream",
    "n",
    "best_of",
    "pattern",
    "^(a+)+$",
    "anyOf",
    "$ref",
    "#",
    "items",
    "minItems",
    "grammar",
    "model",
    "format",
    "stop",
    "prompt",
];

/// The address of the server, if it is up.
#[derive(Default)]
pub(crate) struct Http {
    address: Option<SocketAddr>,
}

impl Http {
    fn address(&mut self) -> Result<SocketAddr, String> {
        if let Some(address) = self.address {
            return Ok(address);
        }
        let (to, from) = channel();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf").into();
        let source = Source { names: vec!["story".to_owned()], path };
        let settings = Settings { port: 0, ..Settings::default() };
        thread::spawn(move || {
            serve(settings, vec![source], move |address| {
                let _ = to.send(address);
            })
        });
        let address = from.recv_timeout(Duration::from_mins(1)).map_err(|error| error.to_string())?;
        self.address = Some(address);
        let ready = || ask(&mut connect(address)?, "GET", "/health", b"").map(|status| status == 200);
        while !ready()? {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(address)
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    let connection = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let _ = connection.set_nodelay(true);
    let _ = connection.set_read_timeout(Some(Duration::from_secs(30)));
    Ok(connection)
}

/// Sends a request and reads its answer; the status.
fn ask(to: &mut TcpStream, method: &str, path: &str, body: &[u8]) -> Result<u16, String> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let sent = to.write_all(&[head.as_bytes(), body].concat());
    let mut answer = Vec::new();
    let read = sent.and_then(|()| to.read_to_end(&mut answer));
    let status = String::from_utf8_lossy(&answer).split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| format!("no answer: {read:?}"))
}

impl Target for Http {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let requests = requests();
        let (path, mut body) = one(random, &requests).clone();
        mutate::json(random, &mut body, &WORDS);
        let mut bytes = body.to_string().into_bytes();
        if chance(random, 1, 12) {
            mutate::bytes(random, &mut bytes);
        }
        [path.as_bytes(), b"\n", &bytes].concat()
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        let address = self.address()?;
        let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let path = String::from_utf8_lossy(&input[..at]).into_owned();
        let body = input.get(at + 1..).unwrap_or_default();
        let status = ask(&mut connect(address)?, "POST", &path, body)?;
        if status == 500 {
            return Err("the server fails".to_owned());
        }
        Ok(status < 400)
    }

    fn is_bounded(&self) -> bool {
        // A model and its sequences are in this process.
        false
    }
}
