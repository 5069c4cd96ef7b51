//! Models by name: `pull`, `ls`, `rm`, `show` and `run`, against a hub on this machine.
//!
//! In: a server that answers as the hub does, and then cuts lines, sends other bytes, refuses, or takes its time. Out:
//! what is printed, what lies in the cache, and which requests came.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::own;

use crate::serve::Server;
use crate::{ROOT, command, programs};

/// What the server does wrong with a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Closes the connection after a third of the file, three times.
    Cut,
    /// Sends another byte.
    Damage,
    /// Sends the whole file whatever is asked for.
    NoRange,
    /// Waits between pieces.
    Slow,
    /// Answers 429 to two requests.
    Busy,
    /// Answers this.
    Status(u16),
}

/// A server and the requests that came.
struct Hub {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    home: PathBuf,
}

impl Hub {
    /// A hub with one file of this content in `test/story`.
    fn start(content: Vec<u8>, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (content, seen) = (content.clone(), Arc::clone(&seen));
                thread::spawn(move || answer(&connection, &content, fault, &seen));
            }
        });
        let home = own::path("hub");
        // What an earlier run of the tests left.
        let _ = fs::remove_dir_all(&home);
        Self { address, requests, home }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&programs(), arguments);
        command.env("HF_ENDPOINT", &self.address).env("HF_HOME", &self.home);
        for name in [
            "HF_TOKEN",
            "HF_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the command runs")
    }

    /// What a command line prints that succeeds.
    #[track_caller]
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The last line of what a command line is refused with.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).expect("text");
        error.lines().last().expect("a sentence").to_owned()
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no test panics there").clone()
    }
}

/// Answers the requests of a connection.
fn answer(connection: &TcpStream, content: &[u8], fault: Fault, seen: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(connection).lines();
    loop {
        let mut request = String::new();
        while let Some(Ok(line)) = lines.next().filter(|line| !line.as_ref().is_ok_and(String::is_empty)) {
            let _ = writeln!(request, "{}", line.to_ascii_lowercase());
        }
        if request.is_empty() {
            return;
        }
        let n_before = {
            let mut seen = seen.lock().expect("no test panics there");
            seen.push(request.clone());
            seen.iter().filter(|other| other.contains("/resolve/")).count()
        };
        let is_content = request.contains("/resolve/");
        let status = match fault {
            Fault::Status(status) => Some(status),
            Fault::Busy if is_content && n_before <= 2 => Some(429),
            _ => None,
        };
        let sent = match status {
            Some(status) => send(connection, status, "retry-after: 0\r\n", b"no", fault),
            None if !is_content => send(connection, 200, "", description(content).as_bytes(), fault),
            None => {
                let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="));
                let (from, to) = range.and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
                let from: usize = from.parse().expect("a number");
                let to = to.parse().map_or(content.len(), |to: usize| (to + 1).min(content.len()));
                let mut bytes = content[from..to].to_vec();
                // The head is right, so that the fault shows in the file.
                let is_whole = to == content.len();
                match fault {
                    Fault::NoRange => send(connection, 200, "", content, fault),
                    Fault::Damage if is_whole => {
                        *bytes.last_mut().expect("bytes") ^= 1;
                        partial(connection, from, &bytes, content.len(), fault)
                    }
                    Fault::Cut if is_whole && n_before <= 4 => {
                        let head = format!(
                            "HTTP/1.1 206 Partial\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{}/{}\r\n\r\n",
                            bytes.len(),
                            to - 1,
                            content.len()
                        );
                        let third = &bytes[..bytes.len() / 3];
                        let mut to = connection;
                        let _ = to.write_all(head.as_bytes()).and_then(|()| to.write_all(third));
                        return;
                    }
                    _ => partial(connection, from, &bytes, content.len(), fault),
                }
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn partial(
    connection: &TcpStream,
    from: usize,
    bytes: &[u8],
    n_all: usize,
    fault: Fault,
) -> std::io::Result<()> {
    let range = format!("content-range: bytes {from}-{}/{n_all}\r\n", from + bytes.len() - 1);
    send(connection, 206, &range, bytes, fault)
}

fn send(mut to: &TcpStream, status: u16, more: &str, bytes: &[u8], fault: Fault) -> std::io::Result<()> {
    write!(to, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{more}\r\n", bytes.len())?;
    if fault != Fault::Slow {
        return to.write_all(bytes);
    }
    for piece in bytes.chunks(bytes.len() / 20 + 1) {
        to.write_all(piece)?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What the hub says about the repository.
fn description(content: &[u8]) -> String {
    let sum = format!("{:x}", Sha256::digest(content));
    let lfs = json!({ "sha256": sum, "size": content.len() });
    let siblings = [
        json!({ "rfilename": "README.md", "size": 5, "blobId": "aa" }),
        json!({ "rfilename": "../escape.gguf", "size": 5, "blobId": "ab" }),
        json!({ "rfilename": "story-Q8_0.gguf", "size": content.len(), "blobId": "ac", "lfs": lfs }),
    ];
    json!({ "sha": "0123abcd", "siblings": siblings }).to_string()
}

fn story() -> Vec<u8> {
    fs::read(Path::new(ROOT).join("assets/story.gguf")).expect("the story model")
}

#[test]
fn a_model_is_fetched_listed_run_and_deleted() {
    let hub = Hub::start(story(), Fault::None);
    let path = hub.told(&["pull", "test/story"]);
    let expected = "hub/models--test--story/snapshots/0123abcd/story-Q8_0.gguf";
    assert!(path.trim_end().ends_with(expected), "{path}");
    assert!(fs::read(path.trim_end()).expect("a file") == story());
    let n_requests = hub.requests().len();
    let listed: Value = serde_json::from_str(&hub.told(&["ls", "--json"])).expect("JSON");
    assert_eq!(listed[0]["name"], "test/story:Q8_0");
    assert!(hub.told(&["ls"]).contains("test/story:Q8_0"));
    for name in ["test/story", "test/story:q8_0", "story", "story-Q8_0"] {
        let shown: Value = serde_json::from_str(&hub.told(&["show", name, "--json"])).expect("JSON");
        assert_eq!((&shown["context"], &shown["chat"]), (&json!(512), &json!(true)), "{name}");
    }
    let text = hub.told(&["run", "test/story", "-p", "Once", "-n", "4"]);
    assert_eq!(text, hub.told(&["run", "-p", "Once", "-n", "4"]));
    assert_eq!(hub.requests().len(), n_requests, "what is here is not asked for again");
    hub.told(&["rm", "story"]);
    assert_eq!(hub.told(&["ls", "--json"]).trim(), "[]");
    assert!(!hub.home.join("hub/models--test--story").exists());
    assert!(hub.refused(&["rm", "story"]).contains("no stored model is called story"));
}

#[test]
fn run_fetches_a_model_that_is_not_here() {
    let hub = Hub::start(story(), Fault::None);
    let text = hub.told(&["run", "test/story:Q8_0", "-p", "Once", "-n", "4"]);
    assert_eq!(text, hub.told(&["run", "-p", "Once", "-n", "4"]));
    let sentence = hub.refused(&["run", "test/story:Q4_K_M", "-p", "Once"]);
    assert!(sentence.ends_with("test/story:Q4_K_M: there is no Q4_K_M, expected one of Q8_0"), "{sentence}");
}

#[test]
fn serve_takes_what_run_takes_and_calls_it_so() {
    let hub = Hub::start(story(), Fault::None);
    let own = Path::new(ROOT).join("assets/story.gguf");
    let named = format!("mine={}", own.display());
    let arguments = ["serve", "test/story", own.to_str().expect("text"), &named, "--port", "0"];
    let server = Server::of(&mut hub.command(&arguments));
    let listed: Value = serde_json::from_str(&server.get("/v1/models").1).expect("JSON");
    let names: Vec<&str> =
        listed["data"].as_array().expect("a list").iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(names, ["test/story", "story", "mine"]);
    drop(server);
    let n_requests = hub.requests().len();
    let server = Server::of(&mut hub.command(&["serve", "-m", "own=story", "--port", "0"]));
    assert!(server.get("/v1/models/own").1.contains("\"own\""));
    assert_eq!(hub.requests().len(), n_requests, "what is here is not asked for again");
    let sentence = hub.refused(&["serve", "test/story", "x=test/story", "test/story"]);
    assert!(sentence.contains("two models have the name test/story"), "{sentence}");
    let sentence = hub.refused(&["serve", "none.gguf"]);
    assert!(sentence.contains("none.gguf: no such file or folder"), "{sentence}");
}

#[test]
fn lines_that_are_cut_and_servers_that_are_slow_or_busy_are_no_fault() {
    for fault in [Fault::Cut, Fault::NoRange, Fault::Slow, Fault::Busy] {
        let hub = Hub::start(story(), fault);
        let path = hub.told(&["pull", "test/story"]);
        assert!(fs::read(path.trim_end()).expect("a file") == story(), "{fault:?}");
        if fault == Fault::Cut {
            let from = |request: &String| {
                let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="))?;
                range.strip_suffix('-')?.parse::<usize>().ok()
            };
            let starts: Vec<usize> = hub.requests().iter().filter_map(from).collect();
            assert!(starts.len() == 4 && starts.windows(2).all(|pair| pair[0] < pair[1]), "{starts:?}");
        }
    }
}

#[test]
fn a_file_that_was_begun_goes_on() {
    let hub = Hub::start(story(), Fault::None);
    let sum = format!("{:x}", Sha256::digest(story()));
    let blobs = hub.home.join("hub/models--test--story/blobs");
    fs::create_dir_all(&blobs).expect("a folder");
    fs::write(blobs.join(format!("{sum}.incomplete")), &story()[..1_000_000]).expect("a file");
    let path = hub.told(&["pull", "test/story"]);
    assert!(fs::read(path.trim_end()).expect("a file") == story());
    assert!(hub.requests().iter().any(|request| request.contains("range: bytes=1000000-")));
    // The same with bytes that are not those of the file: all of it comes again.
    hub.told(&["rm", "test/story"]);
    fs::create_dir_all(&blobs).expect("a folder");
    fs::write(blobs.join(format!("{sum}.incomplete")), vec![7; 1_000_000]).expect("a file");
    let path = hub.told(&["pull", "test/story"]);
    assert!(fs::read(path.trim_end()).expect("a file") == story());
}

#[test]
fn what_cannot_be_had_is_a_sentence() {
    for (fault, known) in [
        (Fault::Status(401), "HF_TOKEN"),
        (Fault::Status(404), "no such model"),
        (Fault::Damage, "expected the SHA-256"),
    ] {
        let hub = Hub::start(story(), fault);
        let sentence = hub.refused(&["pull", "test/story"]);
        assert!(sentence.starts_with("fusebox: test/story: ") && sentence.contains(known), "{sentence}");
        assert_eq!(hub.told(&["ls", "--json"]).trim(), "[]");
    }
    let hub = Hub::start(story(), Fault::None);
    let offline = hub.command(&["run", "test/story", "-p", "a"]).env("HF_HUB_OFFLINE", "1").output();
    let sentence = String::from_utf8(offline.expect("the command runs").stderr).expect("text");
    assert!(sentence.contains("HF_HUB_OFFLINE forbids"), "{sentence}");
    assert!(hub.requests().is_empty());
    assert!(hub.refused(&["pull", "story"]).contains("expected owner/name"));
}

#[test]
fn an_unknown_architecture_is_refused_by_the_head_of_the_file() {
    let mut content = story();
    let key = b"general.architecture";
    let at = content.windows(key.len()).position(|window| window == key).expect("its architecture");
    // The key is followed by the type of its value and its length.
    content[at + key.len() + 12] = b'x';
    let hub = Hub::start(content, Fault::None);
    let sentence = hub.refused(&["pull", "test/story"]);
    assert!(sentence.contains("the architecture `xwen3` is not supported"), "{sentence}");
    let ranges: Vec<String> =
        hub.requests().iter().filter(|request| request.contains("/resolve/")).cloned().collect();
    assert_eq!(ranges.len(), 1);
    assert!(ranges[0].contains("range: bytes=0-65535"), "{}", ranges[0]);
}

#[test]
fn the_token_goes_to_the_hub_and_two_processes_fetch_once() {
    let hub = Hub::start(story(), Fault::Slow);
    let mut both: Vec<_> = (0..2)
        .map(|_| hub.command(&["pull", "test/story"]).env("HF_TOKEN", "secret").spawn().expect("it runs"))
        .collect();
    assert!(both.iter_mut().all(|child| child.wait().expect("it ends").success()));
    let requests = hub.requests();
    assert!(requests.iter().all(|request| request.contains("authorization: bearer secret")));
    assert_eq!(requests.iter().filter(|request| request.contains("range: bytes=0-\n")).count(), 1);
}
