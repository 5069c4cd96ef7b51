//! Chats on a terminal, as a person types them.
//!
//! In: keys, sent through the terminal that `script` makes; without that program the tests are skipped. Out: what the
//! terminal shows.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use support::own;
use support::skip::skip;

use crate::{ROOT, programs};

/// How long the terminal may take to show something.
const PATIENCE: Duration = Duration::from_mins(1);

/// A command on a terminal of 24 lines and 60 columns.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    pieces: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    /// Starts `fusebox run` with these flags, and a state folder of the test's own.
    fn run(flags: &str, states: &str) -> Option<Self> {
        let fusebox = env!("CARGO_BIN_EXE_fusebox");
        let line = format!("stty rows 24 cols 60; exec '{fusebox}' run assets/story.gguf {flags}");
        let mut script = Command::new("script");
        script.current_dir(ROOT);
        script.env("FUSEBOX_CACHE", programs()).env_remove("FUSEBOX_LEVEL").env("FUSEBOX_TARGET", "cpu");
        script.args(["-qec", &line, "/dev/null"]).env("XDG_STATE_HOME", states).env("TERM", "xterm");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = script.spawn() else {
            skip("`script` is not installed");
            return None;
        };
        let (keys, mut from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (to, pieces) = channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                if to.send(piece[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Some(Self { child, keys, pieces, shown: String::new() })
    }

    /// Types keys, and waits until the terminal shows a text after them; returns what it showed until then.
    fn types(&mut self, keys: &str, until: &str) -> String {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
        self.keys.flush().expect("a terminal");
        let start = Instant::now();
        while !self.shown.contains(until) {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let piece = self.pieces.recv_timeout(left);
            let piece = piece.unwrap_or_else(|_| panic!("`{until}` did not come: {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&piece);
        }
        let end = self.shown.find(until).expect("it came") + until.len();
        self.shown.drain(..end).collect()
    }

    /// Waits for the end, and returns the exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.keys);
        self.child.wait().expect("it ends").code()
    }
}

#[test]
fn a_person_edits_pastes_and_recalls() {
    let states = own::path("states");
    let states_text = states.to_str().expect("a plain path");
    let Some(mut terminal) = Terminal::run("-n 6 --temp 0", states_text) else { return };
    terminal.types("", "> ");
    terminal.types("Helo\u{1b}[Dl\r", "of 512");
    terminal.types("", "> ");
    let recalled = terminal.types("\u{1b}[A", "Hello");
    assert!(!recalled.contains("^["), "{recalled}");
    terminal.types("\u{3}", "/quit ends the chat");
    terminal.types("", "> ");
    let refused = terminal.types("/foo\r", "makes it a message");
    assert!(refused.contains("/foo is no command") && !refused.contains("tok"), "{refused}");
    terminal.types("", "> ");
    let answered = terminal.types("\u{1b}[200~one\ntwo\nthree\nfour\u{1b}[201~\r", "of 512");
    assert_eq!(answered.matches("token").count(), 1, "{answered}");
    terminal.types("", "> ");
    let stats = terminal.types("/stats\r", "sampling");
    assert!(stats.contains("answers    2"), "{stats}");
    terminal.types("", "> ");
    terminal.types("\u{4}", "");
    assert_eq!(terminal.end(), Some(0));
    let history = fs::read_to_string(states.join("fusebox/history")).expect("a history");
    assert!(history.contains("Hello") && history.contains("one\\ntwo\\nthree\\nfour"), "{history}");
}

#[test]
fn ctrl_c_stops_an_answer_and_words_stay_whole() {
    let states = own::path("states");
    let states = states.to_str().expect("a plain path");
    let Some(mut terminal) = Terminal::run("--temp 0 --ignore-eos -t 1", states) else { return };
    terminal.types("", "> ");
    terminal.types("Tell me a story.\r", "Once");
    let rest = terminal.types("\u{3}", "of 512");
    let stopped = terminal.types("", "\n");
    assert!(stopped.contains("; stopped"), "{rest}{stopped}");
    terminal.types("", "> ");
    terminal.types("\u{4}", "");
    assert_eq!(terminal.end(), Some(0));
}
