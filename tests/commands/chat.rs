//! Chats with the default model.
//!
//! In: messages as flags, and as lines on standard input. Out: answers that end with the assistant's turn.

#[cfg(unix)]
use std::fs::{self, File};
#[cfg(unix)]
use std::io::Read;
use std::io::Write;
use std::process::Stdio;

#[cfg(unix)]
use support::own;

use crate::{command, json, programs, refused, without};

#[test]
fn a_message_is_not_a_text_to_go_on_with() {
    let ask =
        |more: &[&str]| json(&[&["run", "-p", "Tell me a story.", "-n", "12", "--json"], more].concat());
    let (answer, text) = (ask(&["--chat"]), ask(&[]));
    assert!(answer["prompt_tokens"].as_u64() > text["prompt_tokens"].as_u64(), "{answer}");
}

#[test]
fn lines_are_answered_one_after_another() {
    let mut command = command(&programs(), &["run", "--chat", "-n", "8"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    let mut lines = child.stdin.take().expect("it reads");
    lines.write_all(b"Tell me a story.\n\nAnother.\n/quit\nNever read.\n").expect("it reads");
    drop(lines);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.lines().count() >= 2, "{text}");
}

#[test]
fn a_line_that_cannot_be_answered_does_not_end_the_conversation() {
    let mut command = command(&programs(), &["run", "--chat", "-n", "8"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    let mut lines = child.stdin.take().expect("it reads");
    let (long, longer) = ("a ".repeat(1000), "a ".repeat(8 << 20));
    lines.write_all(format!("{long}\n").as_bytes()).expect("it reads");
    lines.write_all(format!("\u{e9}{longer}\n").as_bytes()).expect("it reads");
    lines.write_all(b"\xff\nTell me a story.\n").expect("it reads");
    drop(lines);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    assert!(!output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).expect("text");
    let sentences: Vec<&str> = error.lines().collect();
    assert!(sentences[0].ends_with("but the context length is 512; the model supports no more"), "{error}");
    assert!(sentences[1].contains("expected lines of less than 16777216 bytes"), "{error}");
    assert!(sentences[2].contains("expected UTF-8 text"), "{error}");
    assert_eq!(sentences[3..], ["fusebox: 3 messages not answered in full"], "{error}");
}

#[test]
#[cfg(unix)]
fn a_model_that_becomes_shorter_is_a_sentence() {
    let path = own::path("shrinking.gguf");
    fs::copy("assets/story.gguf", &path).expect("a copy");
    let arguments = ["run", "--chat", "-n", "8", "-m", path.to_str().expect("text")];
    let mut command = command(&programs(), &arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    let mut lines = child.stdin.take().expect("it reads");
    lines.write_all(b"Tell me a story.\n").expect("it reads");
    // An answer begins once the model is mapped.
    child.stdout.as_mut().expect("it writes").read_exact(&mut [0]).expect("it answers");
    File::options().write(true).open(&path).expect("a file").set_len(4096).expect("it is shorter");
    // Where the first answer was already whole, the second needs the model.
    let _ = lines.write_all(b"Another.\n");
    drop(lines);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).expect("text");
    let what = "expected a file that stays as it is, found it shorter while it was read";
    assert_eq!(error, format!("fusebox: {}: {what}\n", path.display()));
}

#[test]
fn a_full_context_is_told_with_what_may_be_done() {
    for (context, remedy) in [("128", "-c raises it to at most 512"), ("512", "the model supports no more")] {
        let arguments = ["run", "--chat", "-n", "1000", "--ignore-eos", "-c", context];
        let mut command = command(&programs(), &arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        child.stdin.take().expect("it reads").write_all(b"Tell me a story.\n").expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).expect("text");
        let expected = [
            format!("fusebox: the context is full: /clear starts a new chat, {remedy}"),
            "fusebox: 1 message not answered in full".to_owned(),
        ];
        assert_eq!(error.lines().collect::<Vec<_>>(), expected);
    }
}

/// What a chat prints for lines on standard input, and its exit code.
fn answers(more: &[&str], lines: &str) -> (String, Option<i32>) {
    let mut command = command(&programs(), &[&["run", "--chat", "-n", "8"], more].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command runs");
    child.stdin.take().expect("it reads").write_all(lines.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    (String::from_utf8(output.stdout).expect("text"), output.status.code())
}

#[test]
fn a_conversation_that_is_cleared_begins_anew() {
    let answers = |lines: &str| answers(&["--precise", "-c", "64"], lines);
    let line = format!("{}\n", "Tell me a story. ".repeat(5));
    let (once, code) = answers(&line);
    assert_eq!(code, Some(0));
    assert_eq!(answers(&line.repeat(2)), (once.clone(), Some(2)), "both do not fit the context");
    assert_eq!(answers(&format!("{line}/clear\n{line}")), (once.repeat(2), Some(0)));
}

#[test]
fn a_model_is_told_its_part_once() {
    let ask = |more: &[&str]| {
        let told = json(&[&["run", "--chat", "-p", "Hello", "-n", "1", "--json"], more].concat());
        told["prompt_tokens"].as_u64().expect("a number")
    };
    assert!(ask(&["--system", "You are a pirate."]) > ask(&[]));
    // The template of the default model has no such switch.
    assert_eq!(ask(&["--thinking", "off"]), ask(&["--thinking", "on"]));
    let [own, cleared] = ["Hello.\n", "/clear\nHello.\n"].map(|lines| answers(&["--system", "Sing."], lines));
    assert_eq!(own, cleared, "its part stays");
    assert!(refused(&["run", "--system", "Sing."]).contains("--chat"));
}

#[test]
fn a_conversation_may_end_before_it_begins() {
    let mut command = command(&programs(), &["run", "--chat"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command runs");
    child.stdin.take().expect("it reads").write_all(b"/quit\n").expect("it reads");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_chat_needs_a_template_and_a_message() {
    let model = without("tokenizer.chat_template", "speechless.gguf");
    let sentence = refused(&["run", "-m", &model, "--chat", "-p", "Hello"]);
    assert!(sentence.contains("chat template"), "{sentence}");
    assert!(refused(&["run", "--chat"]).contains("a message is needed"));
    assert!(refused(&["run", "--chat", "--json"]).contains("a message"));
}
