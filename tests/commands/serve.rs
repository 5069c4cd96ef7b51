//! `fusebox serve`: requests over plain sockets, and an orderly end.
//!
//! In: requests as bytes. Out: answers that are those of `fusebox run`, refusals by name, exit code 0 after SIGTERM.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::gguf::{F32, TEXT, Writer, pair, tensor, text};
use support::given::fixture;
use support::own;

use crate::{command, json as told_json, programs, refused};

/// A server over the built-in model; it ends with this.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(None, arguments)
    }

    /// One whose environment has a variable.
    fn start_with(variable: Option<(&str, &str)>, arguments: &[&str]) -> Self {
        let fixed = ["serve", "--port", "0", "--chat-template", "chatml", "--drain-delay", "0"];
        let mut command = command(&programs(), &[&fixed, arguments].concat());
        command.envs(variable);
        Self::of(&mut command)
    }

    /// The one that a command line starts.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let server = Self { child, port };
        let until = Instant::now() + Duration::from_mins(2);
        while server.get("/ready").0 != 200 {
            assert!(Instant::now() < until, "the server does not become ready");
            sleep(Duration::from_millis(50));
        }
        server
    }

    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let length = body.len();
        let text = format!(
            "{head}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(text.as_bytes()).expect("it reads");
        socket
    }

    fn whole(&self, head: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(head, body).read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, text.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.whole(&format!("GET {path} HTTP/1.1"), "")
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Type: application/json");
        let (status, text) = self.whole(&head, &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Sequences that run or wait.
    fn n_busy(&self) -> f64 {
        let text = self.get("/metrics").1;
        let names = ["fusebox_requests_running ", "fusebox_requests_waiting "];
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        lines.filter_map(|line| line.split(' ').nth(1)?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_greedy_answer_is_that_of_run_streamed_or_not() {
    let server = Server::start(&["--parallel", "1"]);
    let told = told_json(&["run", "-p", "Once upon a time", "-n", "24", "--temp", "0", "--json"]);
    let wanted = told["text"].as_str().expect("a text");
    let mut body = json!({ "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0 });
    for _ in 0..2 {
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!((status, answer["choices"][0]["text"].as_str()), (200, Some(wanted)), "{answer}");
    }
    body["stream"] = true.into();
    let head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json";
    let (_, text) = server.whole(head, &body.to_string());
    let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let events = events.map(|rest| serde_json::from_str::<Value>(&format!("{{{rest}")).expect("JSON"));
    let streamed: String =
        events.filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(streamed, wanted);
    assert!(text.contains("data: [DONE]\n\n"));
}

#[test]
fn a_panic_in_a_replay_is_the_fault_of_one_request() {
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0 });
    for planted in ["0:60", "1:60"] {
        let server = Server::start_with(Some(("FUSEBOX_PANIC", planted)), &["-t", "2"]);
        let (mut n_failed, mut texts, mut n_after) = (0, Vec::new(), 0);
        // A thread whose tasks the other took has made fewer calls.
        for _ in 0..200 {
            let (status, answer) = server.post("/v1/completions", &body);
            if status == 500 {
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                assert!(message.contains("panicked"), "{answer}");
                n_failed += 1;
            } else {
                assert_eq!(status, 200, "{answer}");
                texts.push(answer["choices"][0]["text"].clone());
                n_after += usize::from(n_failed > 0);
            }
            if n_after == 3 {
                break;
            }
        }
        assert_eq!((n_failed, n_after), (1, 3), "{planted}");
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let server = Server::start(&["--api-key", "secret"]);
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "bogus": 1 });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!((status, answer["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    let head = "POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer secret";
    let (status, text) = server.whole(head, &body.to_string());
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("bogus")), "{answer}");
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.get("/nowhere").0, 404);
}

#[test]
fn who_leaves_is_not_computed_for() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": "The", "max_tokens": 100_000, "ignore_eos": true });
    let head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json";
    let socket = server.send(head, &body.to_string());
    let until = Instant::now() + Duration::from_secs(20);
    while server.n_busy() == 0.0 && Instant::now() < until {
        sleep(Duration::from_millis(5));
    }
    drop(socket);
    while server.n_busy() > 0.0 {
        assert!(Instant::now() < until, "it goes on for nobody");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_encoder_embeds_as_the_command_does_and_generates_nothing() {
    let path = fixture("encoders/bert.gguf");
    let model = path.to_str().expect("a plain path");
    let server = Server::start(&["-m", model]);
    let text = "Hello worlds, café!";
    let told = told_json(&["embed", model, "-p", text, "--json"]);
    let (status, answer) =
        server.post("/v1/embeddings", &json!({ "input": [text, [2, 5, 6, 7, 9, 8, 10, 3]] }));
    assert_eq!(status, 200, "{answer}");
    for index in 0..2 {
        assert_eq!(answer["data"][index]["embedding"], told["embeddings"][0], "{index}");
    }
    let (_, shown) = server.post("/api/show", &json!({ "model": "bert" }));
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/api/generate", json!({ "model": "bert", "prompt": "a" })),
    ] {
        let (status, answer) = server.post(path, &body);
        assert!(status == 400 && answer.to_string().contains("embeds texts"), "{path}: {answer}");
    }
    let (status, answer) = server.post("/v1/rerank", &json!({ "query": "a", "documents": ["b"] }));
    assert!(status == 400 && answer.to_string().contains("expected a head that scores them"), "{answer}");
}

#[test]
fn a_model_with_a_head_ranks_as_the_command_does() {
    for name in ["rankers/bert", "rankers/xlm-roberta.gguf"] {
        let path = fixture(name);
        let model = path.to_str().expect("a plain path");
        let server = Server::start(&["-m", model]);
        let documents = ["a world, hello!", "b", "hello cafe"];
        let (status, answer) =
            server.post("/v1/rerank", &json!({ "query": "hello world", "documents": documents }));
        assert_eq!((status, answer["results"].as_array().map(Vec::len)), (200, Some(3)), "{answer}");
        let lines = documents.join("\n");
        let told = told_json(&["embed", model, "--query", "hello world", "-p", &lines, "--json"]);
        let scores = answer["results"].as_array().expect("results").iter().map(|result| {
            let index = result["index"].as_u64().expect("a number") as usize;
            assert_eq!(result["relevance_score"], told["scores"][index], "{name}: {index}");
            result["relevance_score"].as_f64().expect("a number")
        });
        let scores: Vec<f64> = scores.collect();
        assert!(
            scores.is_sorted_by(|a, b| a > b) && scores.iter().all(|x| (0.0..1.0).contains(x)),
            "{scores:?}"
        );
        let long = json!({ "query": "hello", "documents": ["a", "world ".repeat(100)] });
        for (path, body, what) in [
            ("/v1/rerank", long, "maximum context length is 96"),
            ("/v1/embeddings", json!({ "input": "a" }), "use /v1/rerank"),
            ("/v1/completions", json!({ "prompt": "a" }), "ranks texts and generates none"),
        ] {
            let (status, answer) = server.post(path, &body);
            assert!(status == 400 && answer.to_string().contains(what), "{path}: {answer}");
        }
    }
}

#[test]
fn a_model_that_cannot_rank_says_so_as_the_command_does() {
    let server = Server::start(&[]);
    let (status, answer) =
        server.post("/v1/rerank", &json!({ "query": "dog", "documents": ["A dog runs."] }));
    assert!(status == 400 && answer.to_string().contains("the tokens `yes` and `no`"), "{answer}");
    assert!(refused(&["embed", "-p", "A dog runs.", "--query", "dog"]).contains("the tokens `yes` and `no`"));
    let (status, answer) = server.post("/v1/rerank", &json!({ "query": "dog", "documents": [] }));
    assert!(status == 400 && answer["error"]["param"] == "documents", "{answer}");
}

/// A LoRA adapter of the built-in model: large numbers for what its blocks return.
fn adapter(name: &str, mut state: u32) -> String {
    let mut writer = Writer::good();
    writer.pairs = vec![
        pair("general.architecture", TEXT, text("qwen3")),
        pair("general.type", TEXT, text("adapter")),
        pair("adapter.type", TEXT, text("lora")),
        pair("adapter.lora.alpha", F32, 1_f32.to_le_bytes()),
    ];
    (writer.tensors, writer.data) = (Vec::new(), Vec::new());
    for block in 0..5 {
        for (end, sizes) in [("lora_a", [512, 2]), ("lora_b", [2, 256])] {
            let name = format!("blk.{block}.ffn_down.weight.{end}");
            writer.tensors.push(tensor(&name, &sizes, 0, writer.data.len() as u64));
            for _ in 0..sizes[0] * sizes[1] {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                writer.data.extend(((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes());
            }
        }
    }
    own::write(name, &writer.bytes()).into_os_string().into_string().expect("a plain path")
}

#[test]
fn requests_at_the_same_time_have_adapters_of_their_own() {
    let [one, other] = [adapter("one-adapter.gguf", 1), adapter("other-adapter.gguf", 2)];
    let [first, second] = [format!("one={one}"), format!("other={other}:0.5")];
    let flags = ["--precise", "--alias", "base", "--lora", &first, "--lora-scaled", &second];
    let server = Server::start(&flags);
    let run = ["run", "--precise", "-p", "Once upon a time", "-n", "24", "--temp", "0", "--json"];
    let alone = |more: &[&str]| told_json(&[&run[..], more].concat())["text"].clone();
    let expected = [
        ("base", alone(&[])),
        ("one", alone(&["--lora", &one])),
        ("other", alone(&["--lora-scaled", &format!("{other}:0.5")])),
    ];
    assert!(
        expected[0].1 != expected[1].1 && expected[0].1 != expected[2].1 && expected[1].1 != expected[2].1
    );
    let prompt = "Once upon a time";
    let body = |model: &str| json!({ "model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0 });
    let head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json";
    // All of them, and again with what the first ones have left.
    for _ in 0..2 {
        let sockets = expected.each_ref().map(|(model, _)| server.send(head, &body(model).to_string()));
        for ((model, text), mut socket) in expected.iter().zip(sockets) {
            let mut said = String::new();
            socket.read_to_string(&mut said).expect("an answer");
            let answer = said.split_once("\r\n\r\n").expect("a body").1;
            let answer: Value = serde_json::from_str(answer).expect("JSON");
            assert_eq!((&answer["choices"][0]["text"], &answer["model"]), (text, &json!(model)), "{answer}");
        }
    }
    let mut by_number = body("base");
    by_number["lora"] = json!([{ "id": 1, "scale": 1.0 }]);
    let (_, answer) = server.post("/v1/completions", &by_number);
    assert_eq!(answer["choices"][0]["text"], expected[2].1, "{answer}");
    by_number["lora"] = json!([{ "id": 2 }]);
    let (status, answer) = server.post("/v1/completions", &by_number);
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("lora[0].id")), "{answer}");
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).expect("JSON");
    let parents: Vec<(&Value, &Value)> =
        models["data"].as_array().expect("a list").iter().map(|own| (&own["id"], &own["parent"])).collect();
    let base = &models["data"][0]["id"];
    assert_eq!(parents, [(base, &Value::Null), (&json!("one"), base), (&json!("other"), base)]);
    let (status, answer) = server.post("/v1/embeddings", &json!({ "model": "one", "input": "a" }));
    assert!(status == 400 && answer.to_string().contains("an adapter makes no embeddings"), "{answer}");
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_server_in_order() {
    let mut server = Server::start(&[]);
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    assert!(server.child.wait().expect("it ends").success());
}

#[test]
fn bad_flags_are_sentences() {
    assert!(refused(&["serve", "--parallel", "0"]).starts_with("--parallel is 0"));
    assert!(refused(&["serve", "-m", "no such file", "--port", "0"]).contains("no such file"));
    let model = concat!("a=", env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf");
    assert!(refused(&["serve", "-m", model, "-m", model]).contains("two models"));
    assert!(refused(&["serve", "-m", model, "--lora", "a=b"]).starts_with("--lora is b: no such file"));
    let twice = refused(&["serve", "-m", model, "--lora", model]);
    assert!(twice.contains("a model and an adapter have the name a"), "{twice}");
    assert!(refused(&["serve", "--lora", "a=b,a=c"]).contains("two adapters have the name a"));
    assert!(refused(&["run", "--lora", model, "-p", "c"]).contains("expected a path"));
}

#[test]
fn guesses_change_no_answer_alone_or_in_a_crowd() {
    let flags = ["--parallel", "6", "--precise"];
    let plain = Server::start(&flags);
    let guessing = Server::start(&[&flags[..], &["--draft", "ngram", "--draft-max", "6"]].concat());
    let body = |seed: usize, prompt: &str| {
        let mut body = json!({ "prompt": prompt, "max_tokens": 160, "ignore_eos": true, "temperature": 0 });
        if seed % 2 == 1 {
            let sampled = json!({ "temperature": 0.7, "seed": seed, "top_k": 5, "repeat_penalty": 1.1 });
            body.as_object_mut().expect("an object").extend(sampled.as_object().expect("an object").clone());
        }
        body["logprobs"] = 1.into();
        body
    };
    let prompts = ["Once upon a time", "One day, a cat and a cat and a cat", "The end. The end. The"];
    let bodies: Vec<Value> = (0..6).map(|seed| body(seed, prompts[seed % 3])).collect();
    let of = |server: &Server, body: &Value| {
        let (status, answer) = server.post("/v1/completions", body);
        assert_eq!(status, 200, "{answer}");
        (answer["choices"][0]["text"].clone(), answer["choices"][0]["logprobs"]["tokens"].clone())
    };
    let wanted: Vec<_> = bodies.iter().map(|body| of(&plain, body)).collect();
    let count = |name: &str| {
        let text = guessing.get("/metrics").1;
        let line =
            text.lines().find_map(|line| line.strip_prefix(&format!("fusebox_{name} ")).map(str::to_owned));
        line.and_then(|number| number.parse::<f64>().ok()).expect("a number")
    };
    let mut off = bodies[0].clone();
    off["speculative.n_max"] = 0.into();
    assert_eq!(of(&guessing, &off), wanted[0]);
    assert_eq!(count("spec_decode_num_draft_tokens_total"), 0.0);
    // Guesses that would take longer than they save are left out, which the time of each step decides.
    let until_more = |name: &str, ask: &dyn Fn()| {
        let before = count(name);
        let is_more = (0..20).any(|_| {
            ask();
            count(name) > before
        });
        assert!(is_more, "{name} stays {before}");
    };
    until_more("spec_decode_num_accepted_tokens_total", &|| {
        for (body, wanted) in bodies.iter().zip(&wanted) {
            assert_eq!(&of(&guessing, body), wanted);
        }
    });
    until_more("spec_decode_num_draft_tokens_total", &|| {
        std::thread::scope(|scope| {
            let asked: Vec<_> = bodies.iter().map(|body| scope.spawn(|| of(&guessing, body))).collect();
            for (asked, wanted) in asked.into_iter().zip(&wanted) {
                assert_eq!(&asked.join().expect("an answer"), wanted);
            }
        });
    });
    assert!(refused(&["serve", "--draft", "a.gguf"]).contains("[possible values: ngram]"));
    let sentence = "--draft-max is 65, expected 1 to 64";
    assert!(refused(&["serve", "--draft", "ngram", "--draft-max", "65"]).contains(sentence));
}
