//! Bad command lines: each is one sentence that says what is wrong and what would be accepted.
//!
//! In: invalid flags and files. Out: exit code 2, nothing on standard output, and the words to look for.

#[cfg(unix)]
use std::ffi::OsStr;
use std::fs;
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fusebox_runtime::weights::Checkpoint;
use serde_json::json;
use support::own;

use crate::{ROOT, command, json, programs, refused, sentence, without};

#[test]
fn a_device_that_is_not_there_is_a_sentence_that_says_what_is() {
    let found = json(&["doctor", "--json"]);
    for device in found["devices"].as_array().expect("a list") {
        let Some(missing) = device["missing"].as_str() else { continue };
        assert_eq!(device["adapters"], json!([]));
        let name = device["name"].as_str().expect("a name");
        let sentence = refused(&["run", "--device", name]);
        assert!(sentence.contains(missing) && sentence.contains("auto, cpu"), "{sentence}");
    }
}

#[test]
fn senseless_flags_are_sentences() {
    for (line, known) in [
        ("run -c 0", "1 to 512"),
        ("run -c 99999999", "1 to 512"),
        ("run -t 0", "1 to 256"),
        ("run -t 10000", "1 to 256"),
        ("run -n 99999999999999999999999", "too large"),
        ("run -n many", "'--n <N>': expected a whole number; -1 is no limit"),
        ("run -t -1", "--threads"),
        ("bench -r -1", "--repetitions"),
        ("run --seed -2", "or -1 for a drawn one"),
        ("run --samplers mirostat", "penalties;dry;top_n_sigma"),
        ("run --frequency-penalty much", "expected a number"),
        ("run --promt a", "did you mean --prompt?"),
        ("run -m assets/story.gguf a -p b", "given twice"),
        ("run --port 80", "--port: fusebox run serves nobody"),
        ("run --draft 16 -p a", "--draft is 16, expected ngram or a model; --draft-max is a number"),
        ("run --draft ngram --draft-max 0 -p a", "--draft-max is 0, expected 1 to 64"),
        ("ps", "ps: no model stays loaded"),
        ("benhc", "did you mean bench?"),
        ("run --tokens 1,99999", "no token 99999"),
        ("run --tokens -1", "'-1' for '--tokens <IDS>': expected a whole number of at least 0"),
        ("logits --tokens 1,-1", "expected a whole number of at least 0"),
        ("run --tokens 4294967296", "4294967296"),
        ("run --tokens 1,,2", "--tokens"),
        ("run --tokens ", "expected a whole number"),
        ("logits --tokens ", "expected a whole number"),
        ("bench -t ", "expected a whole number"),
        ("bench -d ", "expected a whole number"),
        ("run --temp nan", "at least 0"),
        ("run --temp -1", "'-1' for '--temp <X>': expected a number of at least 0"),
        ("run --temp inf", "at least 0"),
        ("run --top-p 0", "above 0"),
        ("run --top-p 2", "'--top-p <P>': expected"),
        ("run --min-p 1", "below 1"),
        ("run --repeat-penalty 0", "above 0"),
        ("run --repeat-penalty 1e308", "'1e308' for"),
        ("run --kv-type f64", "f32, f16, q8_0, q4_0"),
        ("run --print-kernels=all", "table, prompt, json, plan, source"),
        ("run --device abacus", "expected one of auto, cpu"),
        ("run --gpu-memory 5", "--device cuda, vulkan or metal"),
        ("run --target cuda-sm90", "--print-kernels"),
        ("run --target abacus --print-kernels=source", "cuda-sm90, vulkan, metal"),
        ("run --target cpu:2 --print-kernels=source", "NAME:UNITS:GB/S"),
        ("run --target vulkan --print-kernels=plan", "--print-kernels=source"),
        ("run --speed 9", "did you mean --seed?"),
        ("run --colourful 9", "--help"),
        ("run -p a --tokens 1", "cannot be used with"),
        ("run -f no-such-file", "no-such-file"),
        ("run -f /dev/zero", "expected at most"),
        ("story /dev/zero", "expected at most"),
        ("story", "a FILE, --block NAME or -m MODEL"),
        ("story --tokens 5", "a FILE, --block NAME or -m MODEL"),
        ("story --tokens 5 a.graph", "'--tokens <T>' cannot be used with"),
        ("story --layers 2 a.graph", "'--layers <N>' cannot be used with"),
        ("logits --tokens 1 -o Cargo.toml", "another file there"),
        ("run -m no-such-file -p a", "no-such-file"),
        ("run -m assets/story.gguf", "a prompt is needed"),
        ("run -m Cargo.toml -p a", "expected GGUF"),
        ("run -m docs -p a", "docs"),
        ("logits", "a prompt is needed"),
        ("tokens", "a prompt is needed"),
        ("tokens --tokens 99999", "no token 99999"),
        ("logits --tokens 1 --all", "-o FILE or --json"),
        ("run --chat --thinking maybe", "expected on or off"),
        ("run --chat --tokens 5", "takes text, not token ids"),
        ("logits --tokens 99999", "no token 99999"),
        ("logits --tokens 1 -o no-such-folder/a.npy", "no-such-folder"),
        ("logits -m Cargo.toml --tokens 1", "expected GGUF"),
        ("bench -p 0 -n 0", "at least one token"),
        ("bench -d 5000", "but the context length is 512; the model supports no more"),
        ("bench -p 2 -n 0 -c 1", "has 2 tokens, but the context length is 1; -c raises it to at most 512"),
        ("bench -p 1 -n 0 -c 0", "--context is 0, expected 1 to 512, the model's context length"),
        ("bench -d 18446744073709551615", "but the context length is 512"),
        ("bench -r 0", "1 to 1000"),
        ("bench -t 1,0", "1 to 256"),
        ("bench -o xml", "md, json, csv"),
        ("bench -c 513", "1 to 512"),
        ("inspect -m no-such-file", "no-such-file"),
        ("inspect no-such-file", "no-such-file"),
        ("inspect a -m b", "cannot be used with"),
        (
            "sing",
            "commands are run, serve, logits, embed, perplexity, tokens, bench, story, inspect, quantize, imatrix",
        ),
    ] {
        says(line, known);
    }
}

#[test]
fn files_that_are_not_there_are_named_with_their_flag() {
    let model = "no such file or folder, and no stored model; expected a GGUF file";
    let missing = "is nope: no such file or folder; expected";
    for (line, known) in [
        // A name like a path is not asked for at a hub.
        ("run x/y.gguf -p a", model),
        ("run -m x/y.safetensors -p a", model),
        ("run ./nope -p a", model),
        ("run ../nope -p a", model),
        ("run /nope/nope -p a", model),
        ("run ~/nope -p a", model),
        ("run docs/nope -p a", model),
        ("run nope -p a", model),
        ("show x/y.gguf", model),
        ("bench -m nope", model),
        ("story -m nope", model),
        ("run --draft nope -p a", "--draft takes ngram or a model: nope: no such file"),
        (
            "run --lora nope -p a",
            "--lora is nope: no such file or folder; expected a GGUF file or a folder of PEFT",
        ),
        ("run --lora-scaled nope:1 -p a", missing),
        ("run --control-vector nope -p a", "--control-vector is nope: no such"),
        (
            "run --control-vector docs -p a",
            "--control-vector is docs: this is a folder; expected a GGUF file",
        ),
        ("run --prompt-cache nope/a -p a", "--prompt-cache is nope/a: the folder nope is not there"),
        ("run --prompt-cache docs -p a", "--prompt-cache is docs: this is a folder"),
        ("run --prompt-cache nope --prompt-cache-ro -p a", missing),
        (
            "run -f nope",
            "--file is nope: no such file or folder; expected a text file, or - for standard input",
        ),
        ("logits -f docs", "--file is docs: this is a folder; expected a text file"),
        (
            "logits --tokens 1 -o nope/a.npy",
            "--output is nope/a.npy: the folder nope is not there; expected the name",
        ),
        ("logits --tokens 1 -o README.md/a.npy", "the folder README.md is a file"),
        ("embed -f nope", missing),
        ("tokens -f nope", missing),
        ("perplexity -f nope", missing),
        ("perplexity --kl nope", "--kl is nope: no such file or folder; expected a file that --save"),
        ("perplexity -f README.md --save nope/a", "--save is nope/a: the folder nope is not there"),
        ("bench --perplexity nope", "--perplexity is nope: no such"),
        ("bench --save README.md", "--save is README.md: this is a file; expected a folder"),
        ("bench --save README.md/a", "--save is README.md/a: a file in the path"),
        ("inspect --perplexity nope", "--perplexity is nope: no such"),
        ("story nope", "FILE is nope: no such"),
        ("quantize nope a.gguf Q8_0", "INPUT is nope: no such file or folder; expected a GGUF file"),
        (
            "quantize assets/story.gguf nope/a.gguf Q8_0",
            "OUTPUT is nope/a.gguf: the folder nope is not there",
        ),
        ("quantize assets/story.gguf a.gguf Q8_0 --imatrix nope", "--imatrix is nope: no such"),
        ("quantize assets/story.gguf a.gguf Q8_0 --imatrix docs", "--imatrix is docs: this is a folder"),
        ("imatrix -f nope", missing),
        ("imatrix -f README.md -o nope/a", "--output is nope/a: the folder nope is not there"),
        ("merge nope a.gguf --lora assets/story.gguf", "BASE is nope: no such"),
        ("merge assets/story.gguf a.gguf --lora nope", "--lora is nope: no such"),
        ("serve -m nope", model),
        ("serve --lora a=nope", "--lora is nope: no such"),
        ("serve --api-key-file nope", "--api-key-file is nope: no such"),
        ("serve --api-key-file docs", "--api-key-file is docs: this is a folder"),
        ("serve --tls-cert nope --tls-key README.md", "--tls-cert is nope: no such"),
        ("serve --tls-cert README.md --tls-key docs", "--tls-key is docs: this is a folder"),
        ("serve --chat-template nope", "--chat-template is nope: no such file or folder; expected chatml or"),
        ("serve --prompt-cache README.md", "--prompt-cache is README.md: this is a file; expected a folder"),
    ] {
        says(line, known);
    }
}

/// Checks that a line is refused with a sentence that has these words.
#[track_caller]
fn says(line: &str, known: &str) {
    let arguments: Vec<&str> = line.split(' ').collect();
    let sentence = refused(&arguments);
    assert!(sentence.contains(known), "{line}: {sentence}");
    assert!(!sentence.contains("os error"), "{line}: {sentence}");
}

#[test]
fn senseless_adapters_and_formats_are_sentences() {
    for (line, known) in [
        ("run --lora-scaled a:b -p a", "--lora-scaled is `a:b`, expected PATH:SCALE with a number"),
        ("run --lora assets/story.gguf -p a", "key `general.type`: expected `adapter`, found `model`"),
        ("run --control-vector-layer-range 3 2 -p a", "--control-vector-layer-range is 3 to 2"),
        ("merge assets/story.gguf out.gguf", "--lora"),
        (
            "quantize assets/story.gguf out.gguf Q4_0 --tensor-type a",
            "--tensor-type is `a`, expected NAME=TYPE",
        ),
        (
            "quantize assets/story.gguf out.gguf Q4_0 --tensor-type ffn_dwon=q8_0",
            "expected a tensor whose name matches `ffn_dwon`, found none",
        ),
        ("imatrix assets/story.gguf -f README.md --chunks 0", "--chunks is 0, expected at least 1"),
        ("quantize assets/story.gguf out.gguf COPY --split-max-size big", "expected a size such as 500M"),
        ("quantize a b F16 Cargo.toml", "--help"),
        ("quantize assets/story.gguf no-such-folder/a.gguf IQ2_XS", "Q4_K_M"),
        ("quantize assets/story.gguf assets/story.gguf Q4_0", "another file"),
        ("quantize assets/story.gguf docs Q4_0", "folder"),
        ("quantize no-such-file a.gguf Q4_0", "no-such-file"),
        ("quantize assets/story.gguf no-such-folder/a.gguf F16", "no-such-folder/a.gguf: "),
        ("quantize assets/story.gguf a.gguf F16 -t 0", "1 to 256"),
    ] {
        says(line, known);
    }
}

#[test]
fn empty_words_are_sentences() {
    assert!(refused(&["run", "-p", ""]).contains("at least one token is needed"));
    assert!(refused(&["logits", "-p", ""]).contains("at least one token is needed"));
    assert!(refused(&["run", "--stop", ""]).contains("stop"));
    let bytes = own::write("bytes.txt", &[0xff, 0xfe, 0x00]);
    assert!(refused(&["run", "-f", bytes.to_str().expect("a plain path")]).contains("bytes.txt"));
}

#[test]
fn a_file_that_is_no_whole_model_is_a_sentence() {
    let model = without("qwen3.block_count", "blockless.gguf");
    assert!(refused(&["run", "-m", &model, "-p", "a"]).contains("block_count"));
    let whole = fs::read(&model).expect("it was written");
    let path = own::write("half.gguf", &whole[..whole.len() / 2]);
    assert!(refused(&["run", "-m", path.to_str().expect("a plain path"), "-p", "a"]).contains("half.gguf"));
}

#[test]
fn an_answer_that_cannot_be_written_is_a_sentence() {
    let full = Path::new("/dev/full");
    if full.exists() {
        for arguments in [&["inspect", "-m", "assets/story.gguf"][..], &["--help"], &["--version"]] {
            let mut command = command(&programs(), arguments);
            let output = command.stdout(fs::File::create(full).expect("a device")).output().expect("it runs");
            let sentence = sentence(&output, arguments);
            assert!(sentence.starts_with("standard output cannot be written to: "), "{sentence}");
        }
    }
}

#[test]
fn a_name_of_two_lines_is_told_in_one() {
    let sentence = refused(&["inspect", "-m", "no\nsuch\u{1b}file"]);
    assert!(sentence.starts_with("no\\nsuch\\u{1b}file: "), "{sentence}");
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_no_text_is_told_by_its_place() {
    let mut command = command(&programs(), &["run", "-p"]);
    let output = command.arg(OsStr::from_bytes(b"a\xff")).output().expect("it runs");
    assert_eq!(sentence(&output, &[]), "expected UTF-8 text, found `a\u{fffd}` as argument 3");
}

#[test]
fn the_environment_is_refused_with_what_would_be_accepted() {
    for (variable, value, expected) in [
        ("FUSEBOX_TARGET", "abacus", "FUSEBOX_TARGET is `abacus`, expected one of cpu, cuda-sm80"),
        ("FUSEBOX_FUEL", "much", "FUSEBOX_FUEL is `much`, expected a whole number of at least 0"),
        (
            "FUSEBOX_LEVEL",
            "mmx",
            "FUSEBOX_LEVEL is `mmx`, expected an instruction set of this processor, one of ",
        ),
        ("FUSEBOX_STORY", "no-such-folder/a.txt", "FUSEBOX_STORY: no-such-folder/a.txt: "),
        ("FUSEBOX_STORY", "Cargo.toml", "FUSEBOX_STORY: Cargo.toml: expected the name of a new file"),
    ] {
        for arguments in [&["run", "-n", "1"][..], &["story", "--block", "qwen3-0.6b"]] {
            if variable == "FUSEBOX_LEVEL" && arguments[0] == "story" {
                continue;
            }
            let mut command = command(Path::new(""), arguments);
            let output = command.env(variable, value).output().expect("it runs");
            let sentence = sentence(&output, arguments);
            assert!(sentence.starts_with(expected), "{arguments:?}: {sentence}");
        }
    }
}

#[test]
fn scores_that_are_no_numbers_are_no_answer_of_any_command() {
    let path = Path::new(ROOT).join("assets/story.gguf");
    let (model, name) = (Checkpoint::open(&path).expect("the default model"), "output_norm.weight");
    let mut bytes = fs::read(&path).expect("the default model");
    let weight = model.bytes(name).expect("it has a norm");
    let at = bytes.windows(weight.len()).position(|window| window == weight).expect("it is in the file");
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = own::write("nan.gguf", &bytes);
    let path = path.to_str().expect("a plain path");
    for rest in
        ["run --tokens 5", "logits --tokens 5,6", "logits --tokens 5,6 --all --json", "bench -p 2 -n 2"]
    {
        let sentence = refused(&rest.split(' ').chain(["-m", path]).collect::<Vec<_>>());
        let expected = format!("{path}: logits: expected finite numbers, found NaN for token 0");
        assert_eq!(sentence, expected, "{rest}");
    }
}
