//! Models that were cut into several GGUF files.
//!
//! In: the two halves of a small file, spoilt one at a time. Out: all tensors, whichever half was named, or a sentence.

use std::fs::{read, remove_file};
use std::path::PathBuf;

use fusebox_models::quantize::types::Type;
use fusebox_models::quantize::{Job, quantize};
use fusebox_runtime::weights::Checkpoint;
use support::gguf::{U32, Writer, pair, tensor, text};
use support::own::{path, write};

use crate::refusal;

/// What spoils two halves.
type Change = dyn Fn(&mut [Writer; 2]);

/// What a part says of itself.
fn said(number: u32, count: u32, n_tensors: u32) -> Vec<Vec<u8>> {
    let own = [("split.no", number), ("split.count", count), ("split.tensors.count", n_tensors)];
    own.map(|(key, n)| pair(key, U32, n.to_le_bytes())).into()
}

/// The good file in two parts.
fn halves() -> [Writer; 2] {
    let whole = Writer::good();
    let part = |pairs: Vec<Vec<u8>>, tensors, data: &[u8]| Writer {
        pairs,
        tensors,
        data: data.to_vec(),
        ..whole.clone()
    };
    [
        part(
            [whole.pairs.clone(), said(0, 2, 2)].concat(),
            vec![tensor("norm", &[3], 0, 0)],
            &whole.data[..32],
        ),
        part(said(1, 2, 2), vec![tensor("proj", &[32, 2], 8, 0)], &whole.data[32..]),
    ]
}

fn written(name: &str, halves: &[Writer; 2]) -> [String; 2] {
    let names = [1, 2].map(|part| format!("{name}-{part:05}-of-00002.gguf"));
    for (name, half) in names.iter().zip(halves) {
        write(name, &half.bytes());
    }
    names
}

#[test]
fn all_parts_are_one_model_whichever_is_named() {
    let whole = Checkpoint::open(&write("not-cut.gguf", &Writer::good().bytes())).unwrap();
    for name in written("cut", &halves()) {
        let checkpoint = Checkpoint::open(&path(&name)).unwrap();
        assert_eq!(checkpoint.files().count(), 2);
        assert_eq!(checkpoint.architecture(), Some("qwen3"));
        let names: Vec<&String> = checkpoint.tensors().keys().collect();
        assert_eq!(names, ["norm", "proj"]);
        for name in names {
            assert_eq!(checkpoint.bytes(name), whole.bytes(name), "{name}");
        }
    }
}

#[test]
fn what_they_become_is_one_file() {
    let of_type = Type::named("Q8_0").unwrap();
    let written_as = |input: PathBuf, name: &str| {
        let output = path(name);
        // What an earlier run has left.
        let _ = remove_file(&output);
        quantize(&input, &output, &Job::to(of_type, 1), &mut |_, _| ()).unwrap();
        read(output).unwrap()
    };
    let [_, second] = written("pieces", &halves());
    let whole = written_as(write("in-one.gguf", &Writer::good().bytes()), "of-one.gguf");
    assert!(written_as(path(&second), "of-pieces.gguf") == whole);
    // One that was never cut may say so.
    let mut uncut = Writer::good();
    uncut.pairs.push(pair("split.count", U32, 1u32.to_le_bytes()));
    assert!(written_as(write("uncut.gguf", &uncut.bytes()), "of-uncut.gguf") == whole);
}

#[test]
fn parts_that_do_not_belong_together_are_sentences() {
    let refused = |name: &str, change: &Change| {
        let mut halves = halves();
        change(&mut halves);
        let [first, _] = written(name, &halves);
        refusal(&path(&first))
    };
    let cases: [(&str, &Change, &str); 7] = [
        (
            "twice",
            &|halves| halves[1].tensors = vec![tensor("norm", &[3], 0, 0)],
            "tensor `norm`: expected a tensor of no other file, found it twice",
        ),
        (
            "numbers",
            &|halves| halves[1].pairs = said(0, 2, 2),
            "key `split.no`: expected 1 of 2, found 0 of 2",
        ),
        (
            "counts",
            &|halves| halves[1].pairs = said(1, 3, 2),
            "key `split.no`: expected 1 of 2, found 1 of 3",
        ),
        ("beyond", &|halves| halves[0].pairs = said(2, 2, 2), "key `split.no`: expected 0 to 1, found 2"),
        (
            "unsaid",
            &|halves| halves[0].pairs = vec![pair("split.count", U32, 2u32.to_le_bytes())],
            "key `split.no`: expected 0 to 1, found none",
        ),
        (
            "many",
            &|halves| halves[0].pairs = said(0, 5000, 2),
            "key `split.count`: expected 1 to 4096 files, found 5000",
        ),
        (
            "fewer",
            &|halves| halves[0].pairs = said(0, 2, 3),
            "key `split.tensors.count`: expected the 2 of all files, found 3",
        ),
    ];
    for (name, change, sentence) in cases {
        assert_eq!(refused(name, change), sentence, "{name}");
    }
    let odd = write("renamed.gguf", &halves()[0].bytes());
    let sentence = "expected a name that ends in -00001-of-00002.gguf, for it is one of 2 files of a model";
    assert_eq!(refusal(&odd), sentence);
    let [first, second] = written("gone", &halves());
    remove_file(path(&second)).unwrap();
    let error = Checkpoint::open(&path(&first)).unwrap_err().to_string();
    assert!(error.contains(&second) && error.contains("no such file"), "{error}");
    write(&second, b"no GGUF");
    assert!(refusal(&path(&first)).contains("expected GGUF, as the other files"));
    let mut text_number = Writer::good();
    text_number.pairs.push(pair("split.count", 8, text("2")));
    assert!(refusal(&write("texts.gguf", &text_number.bytes())).contains("expected 1 to 4096 files"));
}
