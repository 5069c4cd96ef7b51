//! Bad tokenizers and hostile templates: each is one sentence, and none panics or hangs.
//!
//! In: files that are written here, damaged one at a time. Out: sentences.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_models::chat::Chat;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Map, Value as Json, json};
use support::own;

/// A folder of the test's own, with a tensor and these files.
pub(crate) fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = own::path(name);
    fs::create_dir_all(&folder).expect("a writable folder");
    let header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.as_bytes());
    weights.extend([0; 4]);
    fs::write(folder.join("model.safetensors"), weights).expect("a writable folder");
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a writable folder");
    }
    folder
}

/// Why a checkpoint has no tokenizer, without the path.
fn refusal(path: &Path) -> String {
    let error = Tokenizer::open(&Checkpoint::open(path).unwrap()).err().expect("it is refused").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error.split_once(": ").expect("the sentence names the path first").1.to_owned()
}

/// A valid tokenizer of four tokens.
fn tokenizer() -> Json {
    json!({
        "added_tokens": [{"id": 3, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    })
}

/// The error of the tokenizer after one change.
fn spoilt(name: &str, place: &str, value: Json) -> String {
    let mut json = tokenizer();
    *json.pointer_mut(place).unwrap() = value;
    refusal(&folder(name, &[("tokenizer.json", &json.to_string())]))
}

#[test]
fn a_small_tokenizer_works_and_its_name_ends_answers() {
    let text = tokenizer().to_string();
    let path = folder("good", &[("tokenizer.json", &text)]);
    let tokenizer = Tokenizer::open(&Checkpoint::open(&path).unwrap()).unwrap();
    assert_eq!(tokenizer.encode("aba<|im_end|>", true).unwrap(), [2, 0, 3]);
    assert_eq!(
        (tokenizer.decode(&[2, 3, 9], false), tokenizer.decode(&[2, 3], true)),
        ("ab<|im_end|>".into(), "ab".into())
    );
    assert_eq!((tokenizer.eos(), tokenizer.n_tokens()), (&[3][..], 4));
    assert!(tokenizer.token_bytes(9).is_empty() && tokenizer.token_bytes(u32::MAX).is_empty());
}

#[test]
fn a_folder_without_a_tokenizer_is_a_sentence() {
    assert_eq!(refusal(&folder("none", &[])), "expected a tokenizer, found no file");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn every_bad_part_of_a_tokenizer_is_a_sentence() {
    let cases = [
        (
            "merge-unknown",
            "/model/merges",
            json!(["a c"]),
            "key `model.merges`: expected a merge of two tokens",
        ),
        (
            "merge-long",
            "/model/merges",
            json!([["ab".repeat(9), "b"]]),
            "key `model.merges`: expected a merge that makes a token",
        ),
        ("merge-one", "/model/merges", json!(["ab"]), "key `model.merges`: expected a merge of two tokens"),
        ("merge-kind", "/model/merges", json!([7]), "expected JSON of another form"),
        (
            "ids-equal",
            "/model/vocab",
            json!({"a": 0, "b": 1, "ab": 1}),
            "key `model.vocab`: expected one token for id 1",
        ),
        (
            "id-huge",
            "/model/vocab",
            json!({"a": 0, "b": 1, "ab": 4_000_000_000u32}),
            "key `model.vocab`: expected ids",
        ),
        (
            "id-far",
            "/model/vocab",
            json!({"a": 0, "b": 1, "ab": (1 << 22) - 1}),
            "key `model.vocab`: expected ids below 262160, found 4194303",
        ),
        ("id-negative", "/model/vocab", json!({"a": -1}), "expected JSON of another form"),
        (
            "model",
            "/model/type",
            json!("WordLevel"),
            "key `model.type`: `WordLevel` is not supported, expected `BPE`, `WordPiece` or `Unigram`",
        ),
        ("normalizer", "/normalizer", json!({"type": "Nmt"}), "key `normalizer`: `Nmt` is not supported"),
        (
            "replaces-nothing",
            "/normalizer",
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
            "key `normalizer`: expected a non-empty string to replace",
        ),
        (
            "replaces-a-pattern",
            "/normalizer",
            json!({"type": "Replace", "pattern": {"Regex": "^"}, "content": "x"}),
            "key `normalizer`: expected a non-empty string to replace",
        ),
        (
            "prepends-nothing",
            "/normalizer",
            json!({"type": "Prepend", "prepend": ""}),
            "key `normalizer`: expected a text to prepend, found an empty one",
        ),
        (
            "doubles",
            "/normalizer",
            json!({"type": "Sequence", "normalizers":
                vec![json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}); 40]}),
            "key `normalizer`: expected steps that lengthen a text at most 64 times",
        ),
        (
            "prepends-much",
            "/normalizer",
            json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "b".repeat(300_000)},
                {"type": "Replace", "pattern": {"String": "b"}, "content": "b".repeat(64)}]}),
            "key `normalizer`: expected steps that lengthen a text at most 64 times, found 38400128 times",
        ),
        (
            "decomposes-again",
            "/normalizer",
            json!({"type": "Sequence", "normalizers": vec![[
                json!({"type": "Replace", "pattern": {"String": "\u{627}\u{644}"}, "content": "\u{fdfa}"}),
                json!({"type": "NFKD"})]; 2].concat()}),
            "key `normalizer`: expected steps that lengthen a text at most 64 times, found 242 times",
        ),
        (
            "spells-bytes-again",
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers":
                vec![json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false}); 7]}),
            "key `normalizer`: expected steps that lengthen a text at most 64 times, found 128 times",
        ),
        (
            "many-steps",
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers":
                vec![json!({"type": "Digits", "individual_digits": true}); 64]}),
            "key `pre_tokenizer`: expected at most 64 steps, found 65",
        ),
        (
            "long-patterns",
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": vec![json!({"type": "Split",
                "pattern": {"Regex": "a".repeat(9000)}, "behavior": "Isolated", "invert": false}); 2]}),
            "key `pre_tokenizer`: expected patterns of at most 16384 bytes, found 18000",
        ),
        (
            "repeats-repetitions",
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "(?>a+)+b"}, "behavior": "Isolated", "invert": false}),
            "key `pre_tokenizer`: expected patterns whose repeated groups repeat nothing, found `(?>a+)+b`",
        ),
        (
            "inner",
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": [{"type": "X"}]}),
            "key `pre_tokenizer`",
        ),
        (
            "pattern",
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated",
            "invert": false}),
            "key `pre_tokenizer`: expected a valid component",
        ),
        ("decoder", "/decoder", json!(null), "key `decoder`: expected `ByteLevel`"),
        (
            "processor",
            "/post_processor",
            json!({"type": "TemplateProcessing"}),
            "key `post_processor`: expected a list",
        ),
        (
            "prefix",
            "/post_processor",
            json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {"x": {"ids": [77]}}}),
            "key `added_tokens`: expected ids below 4",
        ),
        ("added", "/added_tokens/0/id", json!(0), "key `model.vocab`: expected one token for id 0"),
    ];
    for (name, place, value, expected) in cases {
        let found = spoilt(name, place, value);
        assert!(found.starts_with(expected), "{name}: {found}");
    }
}

#[test]
fn truncated_tokenizers_are_sentences() {
    let text = tokenizer().to_string();
    for n in (0..text.len()).step_by(7) {
        let path = folder("truncated", &[("tokenizer.json", &text[..n])]);
        assert!(refusal(&path).starts_with("expected JSON, which this is not: "), "{n}");
    }
}

/// A GGUF file without tensors: strings, lists of strings, lists of 32-bit numbers.
struct Gguf(Vec<u8>, u64);

impl Gguf {
    fn new() -> Self {
        Self(Vec::new(), 0)
    }

    fn text(&mut self, text: &str) {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.1 += 1;
        self.text(key);
        self.0.extend(kind.to_le_bytes());
    }

    fn value(mut self, key: &str, text: &str) -> Self {
        self.key(key, 8);
        self.text(text);
        self
    }

    fn texts(mut self, key: &str, texts: &[&str]) -> Self {
        self.key(key, 9);
        self.0.extend(8u32.to_le_bytes());
        self.0.extend((texts.len() as u64).to_le_bytes());
        for text in texts {
            self.text(text);
        }
        self
    }

    fn numbers(mut self, key: &str, numbers: &[i32]) -> Self {
        self.key(key, 9);
        self.0.extend(5u32.to_le_bytes());
        self.0.extend((numbers.len() as u64).to_le_bytes());
        self.0.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        self
    }

    fn number(mut self, key: &str, number: u32) -> Self {
        self.key(key, 4);
        self.0.extend(number.to_le_bytes());
        self
    }

    fn write(&self, name: &str) -> PathBuf {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(self.1.to_le_bytes());
        bytes.extend(&self.0);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        let path = folder("gguf", &[]).join(name);
        fs::write(&path, bytes).expect("a writable folder");
        path
    }
}

fn gguf() -> Gguf {
    Gguf::new().value("tokenizer.ggml.model", "gpt2").value("tokenizer.ggml.pre", "llama-bpe")
}

const TOKENS: [&str; 4] = ["a", "b", "ab", "<|eot_id|>"];

#[test]
fn a_small_gguf_tokenizer_works_and_adds_its_first_token() {
    let good = gguf()
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .numbers("tokenizer.ggml.token_type", &[1, 1, 1, 3])
        .texts("tokenizer.ggml.merges", &["a b"])
        .number("tokenizer.ggml.bos_token_id", 1);
    let tokenizer = Tokenizer::open(&Checkpoint::open(&good.write("good")).unwrap()).unwrap();
    assert_eq!(tokenizer.encode("ab<|eot_id|>", true).unwrap(), [1, 2, 3]);
    assert_eq!(tokenizer.encode("ab<|eot_id|>", false).unwrap(), [2, 3]);
    assert_eq!(tokenizer.eos(), [3]);

    // End-of-sequence tokens are recognised by their text, even if the file marks them as normal.
    let odd = gguf()
        .texts("tokenizer.ggml.tokens", &["a", "b", "ab", "<|eot_id|>", "<unk>"])
        .numbers("tokenizer.ggml.token_type", &[1, 1, 1, 1, 2])
        .texts("tokenizer.ggml.merges", &["a b"]);
    let tokenizer = Tokenizer::open(&Checkpoint::open(&odd.write("odd")).unwrap()).unwrap();
    assert_eq!(tokenizer.encode("ab<unk><|eot_id|>", false).unwrap(), [2, 4, 3]);
    assert_eq!(tokenizer.eos(), [3]);
}

#[test]
fn every_token_that_a_file_names_ends_answers() {
    let tokens = ["a", "b", "ab", "<eos>", "<eot>", "<eom>", "<|im_end|>"];
    let gguf = gguf()
        .texts("tokenizer.ggml.tokens", &tokens)
        .numbers("tokenizer.ggml.token_type", &[1, 1, 1, 3, 3, 3, 3])
        .texts("tokenizer.ggml.merges", &["a b"])
        .number("tokenizer.ggml.eos_token_id", 3)
        .number("tokenizer.ggml.eot_token_id", 4)
        .number("tokenizer.ggml.eom_token_id", 5);
    let open = |path: &Path| Tokenizer::open(&Checkpoint::open(path).unwrap()).unwrap();
    assert_eq!(open(&gguf.write("ends")).eos(), [3, 4, 5, 6]);

    let files = [
        ("tokenizer.json", tokenizer().to_string()),
        ("tokenizer_config.json", json!({"eos_token": {"content": "a"}}).to_string()),
        ("generation_config.json", json!({"eos_token_id": [1, 3]}).to_string()),
        ("config.json", json!({"eos_token_id": 2}).to_string()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    assert_eq!(open(&folder("all-ends", &files)).eos(), [0, 1, 2, 3]);
    let one = [("tokenizer.json", files[0].1), ("generation_config.json", "{\"eos_token_id\":1}")];
    assert_eq!(open(&folder("one-end", &one)).eos(), [1, 3]);
}

#[test]
fn an_end_that_is_no_token_is_a_sentence_of_its_file() {
    let tokenizer = tokenizer().to_string();
    let refused = |file: &str, end: Json| {
        let files = [
            ("tokenizer.json", tokenizer.as_str()),
            ("generation_config.json", "{}"),
            ("config.json", "{}"),
            (file, &json!({"eos_token_id": end}).to_string()),
        ];
        let error = Tokenizer::open(&Checkpoint::open(&folder("odd-ends", &files)).unwrap()).err().unwrap();
        error.to_string().rsplit_once('/').unwrap().1.to_owned()
    };
    let expected = "a token id, or a list of them";
    for (end, shown) in [
        (json!("x"), "x"),
        (json!(-1), "-1"),
        (json!(1.5), "1.5"),
        (json!(true), "true"),
        (json!(["a"]), "[1 string]"),
        (json!(1u64 << 63), "9223372036854775808"),
    ] {
        let sentence = format!("config.json: key `eos_token_id`: expected {expected}, found {shown}");
        assert_eq!(refused("config.json", end.clone()), sentence);
        let found = refused("generation_config.json", end);
        assert!(
            found.starts_with(&format!("generation_config.json: expected JSON of another form: {expected}"))
        );
    }
    for file in ["config.json", "generation_config.json"] {
        let sentence = "key `eos_token_id`: expected ids below 4, the number of tokens, found 4";
        assert_eq!(refused(file, json!([3, 4])), format!("{file}: {sentence}"));
    }
}

#[test]
fn every_bad_key_of_a_gguf_tokenizer_is_a_sentence() {
    let tokens = || gguf().texts("tokenizer.ggml.tokens", &TOKENS);
    let merged = || tokens().texts("tokenizer.ggml.merges", &["a b"]);
    let cases = [
        (Gguf::new(), "key `tokenizer.ggml.model`: expected a string, found nothing"),
        (
            Gguf::new().value("tokenizer.ggml.model", "rwkv"),
            "key `tokenizer.ggml.model`: the tokenizer `rwkv` is not",
        ),
        (
            Gguf::new().value("tokenizer.ggml.model", "gpt2").value("tokenizer.ggml.pre", "odd"),
            "key `tokenizer.ggml.pre`: the pre-tokenizer `odd` is not supported, expected one of default, gpt-2,",
        ),
        (gguf(), "key `tokenizer.ggml.tokens`: expected a list of strings, found nothing"),
        (
            gguf().number("tokenizer.ggml.tokens", 1),
            "key `tokenizer.ggml.tokens`: expected a list of strings, found 1",
        ),
        (
            gguf().texts("tokenizer.ggml.tokens", &[]).texts("tokenizer.ggml.merges", &[]),
            "key `tokenizer.ggml.tokens`: expected 1 to",
        ),
        (tokens(), "key `tokenizer.ggml.merges`: expected a list of strings, found nothing"),
        (
            tokens().texts("tokenizer.ggml.merges", &["ab"]),
            "key `tokenizer.ggml.merges`: expected two tokens with a space between, entry 0 is `ab`",
        ),
        (tokens().texts("tokenizer.ggml.merges", &["é"]), "key `tokenizer.ggml.merges`: expected two tokens"),
        (tokens().texts("tokenizer.ggml.merges", &[""]), "key `tokenizer.ggml.merges`: expected two tokens"),
        (
            tokens().texts("tokenizer.ggml.merges", &["a x"]),
            "key `tokenizer.ggml.merges`: expected a merge of two",
        ),
        (
            merged().numbers("tokenizer.ggml.token_type", &[1]),
            "key `tokenizer.ggml.token_type`: expected 4 types, one for each token, found [1]",
        ),
        (
            merged().numbers("tokenizer.ggml.token_type", &[1, 1, 9, 1]),
            "key `tokenizer.ggml.token_type`: expected types up to 6, token 2 has 9",
        ),
        (
            merged().numbers("tokenizer.ggml.token_type", &[1, -1, 1, 1]),
            "key `tokenizer.ggml.token_type`: expected 4",
        ),
        (
            merged().number("tokenizer.ggml.eos_token_id", 4),
            "key `tokenizer.ggml.eos_token_id`: expected a token below 4, found 4",
        ),
        (
            merged().number("tokenizer.ggml.bos_token_id", u32::MAX),
            "key `tokenizer.ggml.bos_token_id`: expected a",
        ),
    ];
    for (gguf, expected) in cases {
        let found = refusal(&gguf.write("bad"));
        assert!(found.starts_with(expected), "{found}");
    }
}

fn rendered(source: &str) -> Result<String, String> {
    let chat = Chat::from_source(source, Map::new()).map_err(|error| error.to_string())?;
    let messages = [json!({"role": "user", "content": "hi"})];
    chat.render(&messages, true, &Map::new()).map_err(|error| error.to_string())
}

#[test]
fn templates_have_what_those_of_real_models_use() {
    let cases = [
        ("{{ messages[0].content.strip().upper() }}", "HI"),
        ("{{ 'a|b'.split('|')[-1] }}{{ ' x '.lstrip() }}{{ 'abc'.startswith('ab') }}", "bx True"),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "b1a2"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        (
            "{% set ns = namespace(n=1) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
            "4",
        ),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        (
            "{{ {'é': [1, 2.0, none, true], '<': '&'} | tojson }}",
            "{\"é\": [1, 2.0, null, true], \"<\": \"&\"}",
        ),
        (
            "{{ {'é': [1]} | tojson(indent=4) }}{{ {'é': 1} | tojson(ensure_ascii=true) }}",
            "{\n    \"é\": [\n        1\n    ]\n}{\"\\u00e9\": 1}",
        ),
        (
            "{{ {'b': [1, 2], 'a': 3} | tojson(ensure_ascii=false, separators=(',', ':'), sort_keys=true) }}",
            "{\"a\":3,\"b\":[1,2]}",
        ),
        (
            "{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | join(d='-') }}{{ 'x\ny' | indent(width=1) }}",
            "1-2x\n y",
        ),
        ("{{ tools is none }}{{ strftime_now is defined }}{{ nothing is defined }}", "TrueFalseFalse"),
        (
            "{{ 'abcd'[1:3] }}{{ [1, 2, 3][::-1] }}{{ [1, 2][5:] }}{{ messages[1:] | length }}",
            "bc[3, 2, 1][]0",
        ),
        ("{{ ['a', 'b'] | map('upper') | join('-') }}{{ [1, 2, 3] | select('odd') | list }}", "A-B[1, 3]"),
        ("{{ dict({'a': 1}, b=2) | items | list | length }}{{ 'a' in {'a': 1}.keys() }}", "2True"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('<a>') }}", "[<a>]"),
        (
            "{% if tools is iterable and tools | length %}T{% endif %}{{ [] is iterable }}{{ nothing is iterable }}",
            "TrueTrue",
        ),
        ("{{ messages[0].tool_calls | length }}{{ nothing | count }}{{ 'ab' | length }}", "002"),
        ("{{ 'a' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}", "TrueTrueFalse"),
        ("{% generation %}{{ 1 }}{%- endgeneration -%}  !{{ '{% generation' }}", "1!{% generation"),
        ("a\r\nb{% if true %}\r\nc{% endif %}", "a\nbc"),
    ];
    for (source, expected) in cases {
        assert_eq!(rendered(source).as_deref(), Ok(expected), "{source}");
    }
    assert_eq!(
        rendered("{{ raise_exception('roles must alternate') }}"),
        Err("chat template: invalid operation: roles must alternate (in chat:1)".to_owned())
    );
}

#[test]
fn a_template_that_fails_is_named_by_its_place() {
    let config = json!({"chat_template": "{{ 1 | nothing }}"}).to_string();
    let named = |files: &[(&str, &str)], name: &str| {
        let checkpoint = Checkpoint::open(&folder(name, files)).unwrap();
        let chat = Chat::open(&checkpoint).unwrap().unwrap();
        chat.render(&[], true, &Map::new()).unwrap_err().to_string()
    };
    let error = named(&[("tokenizer_config.json", &config)], "template-of-config");
    assert!(error.ends_with("(in tokenizer_config.json:1)"), "{error}");
    let both = [("tokenizer_config.json", config.as_str()), ("chat_template.jinja", "\n{{ 1 | nothing }}")];
    let error = named(&both, "template-of-its-own");
    assert!(error.ends_with("(in chat_template.jinja:2)"), "{error}");
    let gguf = Gguf::new().value("tokenizer.chat_template", "{{ 1 | nothing }}").write("template");
    let chat = Chat::open(&Checkpoint::open(&gguf).unwrap()).unwrap().unwrap();
    let error = chat.render(&[], true, &Map::new()).unwrap_err().to_string();
    assert!(error.ends_with("(in tokenizer.chat_template:1)"), "{error}");
}

#[test]
fn hostile_templates_are_sentences() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned();
    let nested = "(".repeat(5000) + "1" + &")".repeat(5000);
    let cases = [
        loops.to_owned(),
        deep,
        "{{ ".to_owned() + &nested + " }}",
        "{% if x %}".repeat(5000),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{% include '/etc/passwd' %}".to_owned(),
        "{% import 'os' as os %}{{ os.environ }}".to_owned(),
        "{{ messages.__class__.__mro__ }}{{ ''.__class__() }}".to_owned(),
        "{% for x in [1] %}".to_owned(),
        "{{ range(999999999) | list }}".to_owned(),
        "x".repeat(2 << 20),
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(l=1) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
            .to_owned(),
        "{% set n = namespace(l=1) %}{% for i in range(60) %}{% set n.l = {0: n.l, 1: n.l} %}{% endfor %}"
            .to_owned(),
        "{% set x = 'x' * 8000000 %}{{ x | replace('x', x) }}".to_owned(),
        "{% set x = 'x' * 8000000 %}{{ x.replace('x', x) }}".to_owned(),
        "{% set x = 'x' * 8000000 %}{{ range(90000) | join(x) }}".to_owned(),
        "{% set x = 'x' * 8000000 %}{% for i in range(90000) %}{% set y = x | upper %}{% endfor %}"
            .to_owned(),
        "{% set x = 'x' * 8000000 %}{% for i in range(90000) %}{{ x }}{% endfor %}".to_owned(),
        "{% set x = 'x,' * 300000 %}{% for i in range(90000) %}{% set y = x.split(',') %}{% endfor %}".to_owned(),
        "{% set x = 'x,' * 300000 %}{{ x.split(',') | map('replace', ',', x) }}".to_owned(),
        "{% set ns = namespace(l=[1, 2]) %}{% for i in range(90000) %}{% set ns.l = ns.l[::-1] %}{% endfor %}\
         {{ [ns.l] * 90000000 }}"
            .to_owned(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(90000) %}{% set ns.l = ns.l | reverse | chain([1]) %}\
         {% endfor %}"
            .to_owned(),
        "{{ ('x\n' * 4000000) | indent(width=8000000) }}".to_owned(),
        "{% for i in range(90000) %}{{ debug() }}{% endfor %}".to_owned(),
        // Work that no filter here can count: it takes too long, or too many steps where the processor is fast enough.
        "{% set x = 'é' * 4000000 %}{% for i in range(90000) %}{% for n in range(4) %}{% for c in x %}\
         {{ loop.length }}{% break %}{% endfor %}{% endfor %}{% endfor %}"
            .to_owned(),
    ];
    for source in cases {
        let error = rendered(&source).expect_err("it is refused");
        assert!(error.starts_with("chat template: ") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn templates_that_go_on_inside_themselves_have_the_stack_for_it() {
    let chains = [
        ["{{ ", "-", "1 }}"],
        ["{{ ", "not ", "x.y.z }}"],
        ["{{ x", ".a", " }}"],
        ["{{ x", "()", " }}"],
        ["{{ 1", "+1", " }}"],
        ["{{ 1", "~1", " }}"],
        ["{{ 2", "**1", " }}"],
        ["{{ 1", "|abs", " }}"],
        ["{{ x", "[0]", " }}"],
        ["{% if x.y.z %}", "{% elif x %}", "{% endif %}"],
        ["{% set x", ".a", " = 1 %}"],
    ];
    for [begin, link, end] in chains {
        let longest = begin.to_owned() + &link.repeat(131_000 / link.len()) + end;
        // Whether it renders or not: it ends.
        if let Err(error) = rendered(&longest) {
            assert!(error.starts_with("chat template: ") && error.lines().count() == 1, "{error}");
        }
    }
}

#[test]
fn a_vocabulary_of_151936_tokens_opens_quickly() {
    let letters: Vec<String> = (0..390).map(|n| char::from_u32(0x100 + n).unwrap().to_string()).collect();
    let pairs = letters.iter().flat_map(|a| letters.iter().map(move |b| (a, b)));
    let pairs: Vec<(&String, &String)> = pairs.take(151_936 - letters.len()).collect();
    let joined: Vec<String> = pairs.iter().map(|(a, b)| format!("{a}{b}")).collect();
    let merges: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
    let tokens: Vec<&str> = letters.iter().chain(&joined).map(String::as_str).collect();
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    let gguf = gguf().texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &merges);
    let checkpoint = Checkpoint::open(&gguf.write("large")).unwrap();
    let start = std::time::Instant::now();
    let tokenizer = Tokenizer::open(&checkpoint).unwrap();
    println!("{} tokens in {:?}", tokenizer.n_tokens(), start.elapsed());
    assert_eq!(tokenizer.n_tokens(), 151_936);
}
