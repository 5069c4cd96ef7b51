//! Chats with the default model.
//!
//! In: messages as flags, and as lines on standard input. Out: answers that end with the assistant's turn.

use std::fs;
#[cfg(unix)]
use std::fs::File;
#[cfg(unix)]
use std::io::Read;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use support::own;

use crate::{ROOT, command, json, programs, refused, without};

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
    fs::copy(Path::new(ROOT).join("assets/story.gguf"), &path).expect("a copy");
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
    let sentence = format!("fusebox: {}: {what}", path.display());
    let lines: Vec<&str> = error.lines().collect();
    let (told, rest) = lines.split_at(lines.len() - 1);
    assert!(!told.is_empty() && told.iter().all(|line| *line == sentence), "{error}");
    let n = if told.len() == 1 { "1 message".to_owned() } else { format!("{} messages", told.len()) };
    assert_eq!(rest, [format!("fusebox: {n} not answered in full")], "the process goes on to its end");
}

#[test]
fn a_full_context_is_told_with_what_may_be_done() {
    let remedies = "/clear starts a new chat, --context-shift forgets its beginning";
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
            format!("fusebox: the context is full: {remedies}, {remedy}"),
            "fusebox: 1 message not answered in full".to_owned(),
        ];
        assert_eq!(error.lines().collect::<Vec<_>>(), expected);
    }
}

/// What a chat prints for lines on standard input, and its exit code.
fn answers(more: &[&str], lines: &str) -> (String, Option<i32>) {
    let mut command = command(&programs(), &[&["run", "--chat", "-n", "8", "--temp", "0"], more].concat());
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
fn a_chat_may_forget_its_beginning() {
    let flags = ["--precise", "-c", "64", "--context-shift"];
    let line = format!("{}\n", "Tell me a story. ".repeat(5));
    let (once, code) = answers(&flags, &line);
    assert_eq!(code, Some(0));
    // Each message is answered as if it were the first.
    assert_eq!(answers(&flags, &line.repeat(3)), (once.repeat(3), Some(0)));
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
    assert!(refused(&["run", "--system", "Sing.", "-p", "a"]).contains("--chat"));
}

#[test]
fn a_command_is_never_sent_to_the_model() {
    let (text, code) =
        answers(&[], "Hello.\n/foo\n/regen\n/set temp 3x\n/system Sing.\n/quit\nNever read.\n");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), code), (2, Some(2)), "{text}");
    assert_eq!(lines[0], lines[1], "the likeliest answer is the same again");
}

#[test]
fn settings_can_be_changed_and_messages_kept() {
    let path = own::path("messages.json");
    let path = path.to_str().expect("a plain path");
    let (text, code) = answers(&[], &format!("Hello.\n/save {path}\n/set n 3\n/regen\n"));
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(lines[1]) && lines[1].len() < lines[0].len(), "{text}");
    let kept = fs::read_to_string(path).expect("messages");
    let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!((&kept[0]["role"], &kept[0]["content"]), (&"user".into(), &"Hello.".into()));
    let (again, code) = answers(&[], &format!("/load {path}\n/regen\n"));
    assert_eq!((again.lines().next(), code), (Some(lines[0]), Some(0)));
}

#[test]
fn quotes_make_one_message_of_several_lines() {
    let once = answers(&[], "\"\"\"Tell me\na story.\"\"\"\n");
    assert_eq!((once.0.lines().count(), once.1), (1, Some(0)), "{}", once.0);
}

#[test]
fn words_and_pipes_are_messages_and_p_is_text() {
    let model = "assets/story.gguf";
    let n_prompt = |arguments: &[&str], input: &str| {
        let fixed = ["-n", "1", "--json"];
        let mut command = command(&programs(), &[arguments, &fixed].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the command runs");
        // A command that does not read its input may have ended.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("it ends");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (told["prompt_tokens"].as_u64().expect("a number"), told["sampling"]["temperature"] == 0.0)
    };
    let message = n_prompt(&["run", "--chat", "-p", "Hello there"], "");
    assert!(!message.1, "a chat draws");
    assert_eq!(n_prompt(&["run", model, "Hello", "there"], ""), message);
    assert_eq!(n_prompt(&["run", "-m", model, "Hello there"], ""), message);
    assert_eq!(n_prompt(&["run", model], "Hello there\n"), message);
    assert!(n_prompt(&["run", model, "there"], "Hello").0 >= message.0);
    let text = n_prompt(&["run", "-p", "Hello there"], "not read");
    assert!(text.0 < message.0 && text.1, "a completion is greedy");
    assert_eq!(n_prompt(&["run", model, "--no-chat"], "Hello there\n"), text);
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
