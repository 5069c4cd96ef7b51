//! Models of other kinds converted to GGUF.
//!
//! In: small models with random weights, in folders, qwen3.c checkpoints and Qorus files. Out: GGUF files with the same
//! logits, bit for bit where nothing was rounded.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::chat::Chat;
use fusebox_models::config::rope::{Pairing, Rope, Scaling};
use fusebox_models::config::{self, Config, Mixer};
use fusebox_models::load::Model;
use fusebox_models::quantize::types::Type;
use fusebox_models::quantize::{Job, quantize};
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Map, Value, json};
use support::given::fixture;
use support::oracles;
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window, window_of};
use support::run::relative_error;

use crate::files::arrays::{dequantised, logits, of_qorus, of_qwen3_c, write_qorus, write_qwen3_c};
use crate::files::packed::{packed_latents, packed_llama};
use crate::made::Made;
use crate::odd::{grouped, latent, small};
use crate::published::recorded::{mixtral, write_mixtral};

/// A checkpoint converted to a GGUF file.
fn converted(input: &Path, ty: &str) -> PathBuf {
    let output = PathBuf::from(format!("{}-{ty}.gguf", input.display()));
    quantize(input, &output, &Job::to(Type::named(ty).unwrap(), 2), &mut |_, _| ())
        .unwrap_or_else(|error| panic!("{error}"));
    output
}

/// Adds a tokenizer of four tokens to a folder.
pub(crate) fn add_tokenizer(folder: &Path) {
    let pre =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "added_tokens": [{"id": 3, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": pre, "post_processor": null, "decoder": pre,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// Compares two files of the same weights.
#[track_caller]
fn same(a: &Path, b: &Path) {
    assert!(logits(a, Numbers::Single) == logits(b, Numbers::Single), "{} {}", a.display(), b.display());
}

#[track_caller]
fn same_tokens(a: &Path, b: &Path, text: &str) {
    let [a, b] = [a, b].map(|file| {
        let tokenizer = Tokenizer::open(&Checkpoint::open(file).unwrap()).unwrap();
        (tokenizer.encode(text, true).unwrap(), tokenizer.eos().to_vec())
    });
    assert_eq!(a, b);
}

/// The mixer, whatever RoPE pairs: GGUF reorders the rows of Llama.
fn turned(mixer: &Mixer) -> Mixer {
    match mixer {
        Mixer::Grouped(own) => {
            let rope = own.rope.clone().map(|rope| Rope { pairing: Pairing::Halves, ..rope });
            Mixer::Grouped(config::attention::Grouped { rope, ..own.clone() })
        }
        other => other.clone(),
    }
}

#[test]
fn blocks_with_and_without_a_window_stay_so() {
    let window = |full: &[usize]| Some(Window { size: 5, full: full.iter().copied().collect() });
    let dense = |full| Attention::Grouped(Grouped { window: window(full), ..grouped(4, 2, 16) });
    let normed =
        |full| Attention::Grouped(Grouped { window: window(full), qk_norm: true, ..grouped(4, 2, 16) });
    for (name, attention) in [
        ("mistral", dense(&[1, 2])),
        ("mistral", dense(&[])),
        ("qwen2", dense(&[0])),
        ("qwen3", normed(&[0, 3])),
        ("qwen3", normed(&[])),
    ] {
        let made = Made::new(&Plain { n_layers: 4, ..small(attention, Format::BF16) });
        let folder = path(&format!("converted-{name}"));
        made.folder(&folder, name);
        add_tokenizer(&folder);
        let file = converted(&folder, "BF16");
        let read = Model::open(&file).unwrap().config;
        let mixers =
            |config: &Config| config.blocks.iter().map(|block| turned(&block.mixer)).collect::<Vec<_>>();
        assert_eq!(mixers(&read), mixers(&made.config.config()), "{name}");
        same(&folder, &file);
        // And again, from GGUF to GGUF.
        same(&folder, &converted(&file, "F32"));
    }
}

#[test]
fn stretched_positions_stay_so() {
    let attention = || Attention::Grouped(Grouped { qk_norm: true, ..grouped(4, 2, 16) });
    let yarn = |more: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        scaling
    };
    for scaling in [
        json!({"rope_type": "linear", "factor": 2.5}),
        yarn(json!({})),
        yarn(json!({"attention_factor": 1.5, "beta_fast": 20.0, "beta_slow": 2.0})),
        yarn(json!({"mscale": 0.5, "mscale_all_dim": 0.25})),
        yarn(json!({"mscale": 0.5, "mscale_all_dim": 0.5})),
    ] {
        let (mut made, folder) = (Made::new(&small(attention(), Format::F32)), path("converted-stretched"));
        made.facts.insert("rope_scaling".to_owned(), scaling.clone());
        made.folder(&folder, "qwen3");
        add_tokenizer(&folder);
        let file = converted(&folder, "F32");
        // Readers of GGUF expect no per-pair factors with these scaling types.
        assert!(!Checkpoint::open(&file).unwrap().tensors().contains_key("rope_freqs.weight"));
        let (a, b) = (logits(&folder, Numbers::Single), logits(&file, Numbers::Single));
        let most = a.iter().map(|x| x.abs()).fold(0.0, f32::max);
        let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= 1e-5 * most, "{scaling}: {off} of {most}");
    }
}

#[test]
fn stretched_positions_of_latents_stay_so() {
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 24.0 };
    let (made, folder) =
        (Made::new(&Plain { rope: Rope { scaling, ..rope }, ..own }), path("converted-latents"));
    made.folder(&folder, "deepseek_v3");
    add_tokenizer(&folder);
    same(&folder, &converted(&folder, "F32"));
}

#[test]
fn heads_that_are_turned_in_part_stay_so() {
    for (model_type, pairs) in [("llama", Pairing::Interleaved), ("qwen2", Pairing::Halves)] {
        let own = small(Attention::Grouped(Grouped { rotary_dim: 8, ..grouped(4, 2, 16) }), Format::F32);
        let (made, folder) = (Made::new(&own), path(&format!("converted-part-{model_type}")));
        made.folder(&folder, model_type);
        add_tokenizer(&folder);
        let file = converted(&folder, "F32");
        let config = Model::open(&file).unwrap().config;
        assert_eq!(config.rope().unwrap().pairing, pairs);
        assert_eq!(turned(&config.blocks[0].mixer), turned(&own.config().blocks[0].mixer));
        same(&folder, &file);
    }
}

#[test]
fn experts_of_mixtral_stay_so() {
    let (made, folder) = (Made::new(&mixtral()), path("converted-mixtral"));
    write_mixtral(&made, &folder);
    add_tokenizer(&folder);
    let file = converted(&folder, "BF16");
    assert_eq!(Model::open(&file).unwrap().config.experts(), made.config.experts.as_ref());
    same(&folder, &file);
}

#[test]
fn a_file_says_which_blocks_have_a_window_in_several_ways() {
    let heads = Grouped { window: Some(Window { size: 5, full: [2].into() }), ..grouped(4, 2, 16) };
    let mut made = Made::new(&Plain { n_layers: 4, ..small(Attention::Grouped(heads), Format::F32) });
    let file = path("pattern.gguf");
    let mut full = |pattern: Value| {
        made.facts.insert("attention.sliding_window_pattern".to_owned(), pattern);
        made.gguf(&file, "llama");
        Model::open(&file).map(|model| window_of(&model.config).unwrap().full.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(full(json!(3)).unwrap(), [2]);
    assert_eq!(full(json!(2)).unwrap(), [1, 3]);
    assert!(full(json!(0)).unwrap().is_empty());
    assert_eq!(full(json!([true, false, true, false])).unwrap(), [1, 3]);
    assert_eq!(full(json!([1, 1, 0, 1])).unwrap(), [2]);
    let error = full(json!([1, 0])).unwrap_err().to_string();
    let expected =
        "key `llama.attention.sliding_window_pattern`: expected a boolean for each of the 4 blocks, found 2";
    assert!(error.ends_with(expected), "{error}");
    assert!(
        full(json!("all")).unwrap_err().to_string().contains("sliding_window_pattern`: expected a number")
    );
}

#[test]
fn packed_folders_become_files_of_their_numbers() {
    let pairs = ["gptq-64", "gptq-rows", "awq-128"].map(packed_llama);
    for [plain, packed] in pairs.into_iter().chain(["gptq-64", "awq-32"].map(packed_latents)) {
        add_tokenizer(&packed);
        same(&plain, &converted(&packed, "F32"));
    }
}

#[test]
fn checkpoints_of_qwen3_c_become_files_of_their_numbers() {
    let made = of_qwen3_c(false);
    let (file, plain) = (write_qwen3_c(&made, "converted.bin"), path("converted-bin-plain.gguf"));
    dequantised(&made).gguf(&plain, "qwen3");
    for (ending, text) in [
        ("", "[%s]"),
        (".with-thinking", "\"%s\"\n{{ think }}"),
        (".with-system", "<%s> [%s]"),
        (".with-system-and-thinking", "<%s> [%s] {% think %}"),
    ] {
        fs::write(format!("{}.template{ending}", file.display()), text).unwrap();
    }
    let copy = converted(&file, "F32");
    same(&plain, &copy);
    same_tokens(&file, &copy, "HELLO");
    let messages = [json!({"role": "system", "content": "be %s"}), json!({"role": "user", "content": "hi"})];
    let chats = [&file, &copy].map(|file| Chat::open(&Checkpoint::open(file).unwrap()).unwrap().unwrap());
    for messages in [&messages[..], &messages[1..]] {
        for thinks in [json!({}), json!({"enable_thinking": false}), json!({"enable_thinking": true})] {
            let arguments: Map<_, _> = thinks.as_object().unwrap().clone();
            let [a, b] = chats.each_ref().map(|chat| chat.render(messages, true, &arguments).unwrap());
            assert_eq!(a, b);
        }
    }
    let refused = chats.map(|chat| chat.render(&messages[..1], true, &Map::new()).unwrap_err().to_string());
    assert!(refused.iter().all(|error| error.contains("expected one user message")), "{refused:?}");
}

#[test]
fn files_of_qorus_become_files_of_their_numbers() {
    let made = of_qorus();
    let (file, plain) = (write_qorus(&made, "converted.qorus"), path("converted-qorus-plain.gguf"));
    dequantised(&made).gguf(&plain, "llama");
    let copy = converted(&file, "F32");
    same(&plain, &copy);
    same_tokens(&file, &copy, "ab b</s>abab");
}

/// What GGUF has no key for, of the small decoders.
const LOST: [(&str, &str); 4] = [
    ("falcon-serial", "the places of norms of block 0"),
    ("bitnet", "the activation of block 0"),
    ("cohere2-moe", "the network of block 1"),
    ("falcon-h1", "factors on projections"),
];

#[test]
fn decoders_stay_so_or_say_what_would_be_lost() {
    for entry in fs::read_dir(fixture("decoders")).unwrap().map(Result::unwrap) {
        if !entry.path().is_dir() {
            continue;
        }
        let name = entry.file_name().into_string().unwrap();
        let folder = path(&format!("converted-{name}"));
        fs::create_dir_all(&folder).unwrap();
        for file in fs::read_dir(entry.path()).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        // Its tokenizer has four tokens.
        let mut config: Map<String, Value> =
            serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        config.insert("eos_token_id".to_owned(), json!(3));
        fs::write(folder.join("config.json"), json!(config).to_string()).unwrap();
        add_tokenizer(&folder);
        match LOST.iter().find(|(own, _)| *own == name) {
            None => same(&folder, &converted(&folder, "F32")),
            Some((_, part)) => {
                let output = folder.with_extension("gguf");
                let job = Job::to(Type::named("F32").unwrap(), 1);
                let refused = quantize(&folder, &output, &job, &mut |_, _| ()).unwrap_err().to_string();
                let expected = format!("GGUF has no key for {part}");
                assert!(refused.ends_with(&expected) && !output.exists(), "{name}: {refused}");
            }
        }
    }
}

/// Families whose folders say what GGUF cannot: steps of time that have a least value, and ramps of YaRN that are not
/// rounded. llama.cpp converts them all the same.
const OTHERWISE: [&str; 2] = ["tiny-nemotron-h", "tiny-gpt-oss"];

#[test]
fn folders_of_further_families_become_the_files_of_llama_cpp() {
    let Some(folder) = oracles::missing() else { return };
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let own = entry.path().join("hf");
        if !own.is_dir() || WITHOUT.contains(&&*name) {
            continue;
        }
        let output = path(&format!("converted-{name}.gguf"));
        quantize(&own, &output, &Job::to(Type::named("F32").unwrap(), 2), &mut |_, _| ())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        match &*name {
            _ if OTHERWISE.contains(&&*name) => {}
            // Columns in another order are added up in another order.
            "tiny-qwen3_5" => {
                let [before, after] = [&own, &output].map(|file| logits(file, Numbers::Single));
                assert!(relative_error(&after, &before) < 1e-6, "{name}");
            }
            _ => same(&own, &output),
        }
        let Some(theirs) = plain_file(&entry.path().join("gguf")) else { continue };
        let (ours, theirs) = (Checkpoint::open(&output).unwrap(), Checkpoint::open(&theirs).unwrap());
        for (tensor, info) in theirs.tensors() {
            let same = ours.tensors().get(tensor).unwrap_or_else(|| panic!("{name}: {tensor} is missing"));
            assert_eq!(same.shape, info.shape, "{name}, {tensor}");
        }
        assert_eq!(ours.tensors().len(), theirs.tensors().len(), "{name}");
    }
}

/// Families that do not run.
const WITHOUT: [&str; 2] = ["tiny-deepseek-v32", "tiny-gemma3n"];

/// A file of llama.cpp's converter that is not quantised.
fn plain_file(folder: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(folder).ok()?.map(|file| file.unwrap().path());
    files.find(|file| ["F32.gguf", "BF16.gguf"].iter().any(|end| file.to_string_lossy().ends_with(end)))
}
