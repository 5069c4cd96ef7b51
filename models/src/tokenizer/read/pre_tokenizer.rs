//! Pre-tokenizers by their names in GGUF: how a text is split into words before BPE merges.
//!
//! In: the value of `tokenizer.ggml.pre`. Out: the regular expressions, each applied to what the ones before left
//! unsplit, and the other options that the name implies.
//! An unknown name is refused: another split gives other tokens, and nobody would notice.

use serde_json::Value as Json;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use crate::tokenizer::read::json::steps;

/// A pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreTokenizer {
    patterns: &'static [&'static str],
    /// Whether a text is normalised to NFC first; GGUF files do not state it, the original tokenizers do.
    uses_nfc: bool,
    pub(crate) ignore_merges: bool,
    /// Whether BOS is added unless the file says otherwise.
    pub(crate) adds_bos: bool,
}

const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

const GPT2: [&str; 1] = [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"];

const STARCODER: [&str; 2] = [r"\p{N}", GPT2[0]];

const QWEN2: [&str; 1] = [concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)];

const QWEN35: [&str; 1] = [concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)];

const LLAMA3: [&str; 1] = [concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)];

const GPT4O: [&str; 1] = [concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)];

const TEKKEN: [&str; 1] = [concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)];

const YOUTU: [&str; 2] = [
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    concat!(
        "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ",
        "ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1f7d}ᾀ-ᾴᾶ-ᾼ",
        "\u{1fbe}ῂ-ῄῆ-ῌῐ-\u{1fd3}ῖ-\u{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛ",
        "Ꜣ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    ),
    "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-\u{d7ff}]+",
    r"\p{N}+",
];

const DEEPSEEK_CODER: [&str; 5] =
    [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}"];

const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

const FALCON: [&str; 3] = [r"[\p{P}\$\+<=>\^~\|`]+", GPT2[0], r"[0-9][0-9][0-9]"];

const BLOOM: [&str; 1] = [r" ?[^(\s|.,!?…。，、।۔،)]+"];

const VIKING: [&str; 2] = [BLOOM[0], r"\p{N}"];

const BAILING: [&str; 1] = [concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|",
    r"\s*[\r\n]|\s+(?!\S)|\s+",
)];

const SEED_CODER: [&str; 1] = [concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|",
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)];

const UFAKZEKA: [&str; 1] =
    [concat!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", r"\s*[\r\n]+|\s+(?!\S)|\s+",)];

const SPARK: [&str; 4] = [
    DEEPSEEK_V3[0],
    DEEPSEEK_V3[1],
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
        r" ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
    ),
    r"\p{N}",
];

const JAIS2: [&str; 1] = [concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|",
    r"\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
)];

/// Digits are grouped from the end.
const TINY_AYA: [&str; 2] = [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O[0]];

const LAGUNA: [&str; 2] = [r"[^\n]+|[\n]+", QWEN2[0]];

const KIMI_K2: [&str; 1] = [concat!(
    r"[\p{Han}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)];

/// The known names.
const NAMES: [(&str, PreTokenizer); 81] = [
    ("default", plain(&DEFAULT)),
    ("gpt-2", plain(&GPT2)),
    ("phi-2", plain(&GPT2)),
    ("mpt", plain(&GPT2)),
    ("olmo", plain(&GPT2)),
    ("exaone4", plain(&GPT2)),
    ("starcoder", plain(&STARCODER)),
    ("refact", plain(&STARCODER)),
    ("command-r", plain(&STARCODER)),
    ("smollm", plain(&STARCODER)),
    ("codeshell", plain(&STARCODER)),
    ("exaone", plain(&STARCODER)),
    ("qwen2", with_nfc(&QWEN2)),
    ("deepseek-r1-qwen", with_nfc(&QWEN2)),
    ("qwen35", with_nfc(&QWEN35)),
    ("stablelm2", plain(&QWEN2)),
    ("hunyuan", plain(&QWEN2)),
    ("megrez", plain(&QWEN2)),
    ("llama-bpe", ignoring_merges(&LLAMA3, true)),
    ("llama3", ignoring_merges(&LLAMA3, true)),
    ("llama-v3", ignoring_merges(&LLAMA3, true)),
    ("falcon3", ignoring_merges(&LLAMA3, true)),
    ("pixtral", ignoring_merges(&LLAMA3, true)),
    ("midm-2.0", ignoring_merges(&LLAMA3, true)),
    ("smaug-bpe", plain(&LLAMA3)),
    ("dbrx", plain(&LLAMA3)),
    ("glm4", ignoring_merges(&LLAMA3, false)),
    ("glm5", ignoring_merges(&LLAMA3, false)),
    ("minicpm5", ignoring_merges(&LLAMA3, false)),
    ("chameleon", with_bos(&GPT2)),
    ("mellum2", plain(&STARCODER)),
    ("hy_v4", plain(&DEEPSEEK_V3)),
    ("ufakzeka", plain(&UFAKZEKA)),
    ("spark2_5", plain(&SPARK)),
    ("jais-2", plain(&JAIS2)),
    ("tiny_aya", plain(&TINY_AYA)),
    ("cohere2moe", plain(&TINY_AYA)),
    ("laguna", plain(&LAGUNA)),
    ("chatglm-bpe", plain(&LLAMA3)),
    ("tekken", ignoring_merges(&TEKKEN, true)),
    ("gpt-4o", plain(&GPT4O)),
    ("youtu", ignoring_merges(&YOUTU, false)),
    ("deepseek-llm", plain(&DEEPSEEK_LLM)),
    ("deepseek-coder", plain(&DEEPSEEK_CODER)),
    ("deepseek-v3", plain(&DEEPSEEK_V3)),
    ("jina-es", plain(&GPT2)),
    ("jina-de", plain(&GPT2)),
    ("jina-v2-es", plain(&GPT2)),
    ("jina-v2-de", plain(&GPT2)),
    ("gigachat", plain(&GPT2)),
    ("a.x-4.0", plain(&GPT2)),
    ("mellum", plain(&GPT2)),
    ("jais", plain(&GPT2)),
    ("trillion", plain(&GPT2)),
    ("granite-docling", plain(&GPT2)),
    ("minerva-7b", plain(&STARCODER)),
    ("falcon-h1", ignoring_merges(&LLAMA3, true)),
    ("lfm2", ignoring_merges(&LLAMA3, true)),
    ("jina-v5-nano", ignoring_merges(&LLAMA3, true)),
    ("solar-open", plain(&QWEN2)),
    ("grok-2", plain(&QWEN2)),
    ("llama4", plain(&GPT4O)),
    ("minimax-m2", plain(&GPT4O)),
    ("hunyuan-dense", plain(&DEEPSEEK_V3)),
    ("joyai-llm", plain(&DEEPSEEK_V3)),
    ("falcon", plain(&FALCON)),
    ("bloom", plain(&BLOOM)),
    ("poro-chat", plain(&BLOOM)),
    ("gpt3-finnish", plain(&BLOOM)),
    ("viking", plain(&VIKING)),
    ("bailingmoe", plain(&BAILING)),
    ("bailingmoe2", plain(&BAILING)),
    ("llada-moe", plain(&BAILING)),
    ("seed-coder", plain(&SEED_CODER)),
    ("modern-bert", plain(&GPT2)),
    ("kormo", with_nfc(&QWEN2)),
    ("f2llmv2", with_nfc(&QWEN2)),
    ("kanana2", plain(&GPT4O)),
    ("talkie", plain(&GPT4O)),
    ("kimi-k2", plain(&KIMI_K2)),
    // Not of llama.cpp: no split at all.
    ("whole", plain(&[])),
];

const fn plain(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { patterns, uses_nfc: false, ignore_merges: false, adds_bos: false }
}

const fn with_nfc(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { patterns, uses_nfc: true, ignore_merges: false, adds_bos: false }
}

const fn with_bos(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { patterns, uses_nfc: false, ignore_merges: false, adds_bos: true }
}

const fn ignoring_merges(patterns: &'static [&'static str], adds_bos: bool) -> PreTokenizer {
    PreTokenizer { patterns, uses_nfc: false, ignore_merges: true, adds_bos }
}

/// The pre-tokenizer of this name.
pub(crate) fn named(name: &str) -> Option<PreTokenizer> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, pre)| *pre)
}

/// The name of a pre-tokenizer, given its steps, its normalizer and the option.
pub(crate) fn name_of(
    steps: Option<&PreTokenizerWrapper>,
    normalizer: Option<&NormalizerWrapper>,
    ignore_merges: bool,
) -> Option<&'static str> {
    let found = patterns(&serde_json::to_value(steps?).ok()?)?;
    let uses_nfc = uses_nfc(&serde_json::to_value(normalizer).ok()?)?;
    let is_same = |pre: &PreTokenizer| {
        pre.patterns == found && (pre.uses_nfc, pre.ignore_merges) == (uses_nfc, ignore_merges)
    };
    NAMES.iter().find(|(_, pre)| is_same(pre)).map(|(name, _)| *name)
}

/// The regular expressions of a pre-tokenizer, in order; `None` where a step does more than to split by one.
fn patterns(json: &Json) -> Option<Vec<String>> {
    let of_step = |step: &Json| match step["type"].as_str()? {
        "Sequence" => Some(Vec::new()),
        "Split" if step["behavior"] == "Isolated" && step["invert"] == false => {
            let pattern = step.pointer("/pattern/Regex")?.as_str()?;
            // Some files have these characters unescaped.
            Some(vec![pattern.replace('\r', r"\r").replace('\n', r"\n")])
        }
        "Digits" if step["individual_digits"] == true => Some(vec![r"\p{N}".to_owned()]),
        "ByteLevel" if step["add_prefix_space"] == false => {
            let is_divided = step["use_regex"] == true;
            Some(if is_divided { GPT2.map(str::to_owned).to_vec() } else { Vec::new() })
        }
        _ => None,
    };
    Some(steps(json).into_iter().map(of_step).collect::<Option<Vec<_>>>()?.concat())
}

/// Whether a normalizer is NFC; `None` where it does anything else.
fn uses_nfc(normalizer: &Json) -> Option<bool> {
    let of_normalizer = |step: &Json| match step["type"].as_str() {
        None | Some("Sequence") => Some(false),
        Some("NFC") => Some(true),
        Some(_) => None,
    };
    Some(steps(normalizer).into_iter().map(of_normalizer).collect::<Option<Vec<_>>>()?.contains(&true))
}

/// Lines and the runs of their ends.
pub(crate) fn lines() -> PreTokenizerWrapper {
    let pattern = SplitPattern::Regex(r"[^\n]+|[\n]+".to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
    PreTokenizerWrapper::Split(split.expect("a test compiles it"))
}

/// All names.
pub(crate) fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

impl PreTokenizer {
    /// The normalizer, if there is one.
    pub(crate) fn normalizer(self) -> Option<NormalizerWrapper> {
        self.uses_nfc.then_some(NormalizerWrapper::NFC(NFC))
    }

    /// The steps: splits, then the byte encoding of GPT-2.
    pub(crate) fn words(self) -> PreTokenizerWrapper {
        let split = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            PreTokenizerWrapper::Split(split.expect("a test compiles every pattern"))
        };
        let mut steps: Vec<PreTokenizerWrapper> = self.patterns.iter().map(split).collect();
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        PreTokenizerWrapper::Sequence(Sequence::new(steps))
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;
    use crate::tokenizer::pattern::repeats_repetitions;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = PreTokenizedString::from(text);
        named(name).unwrap().words().pre_tokenize(&mut words).unwrap();
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (start, stop), _)| text[start..stop].to_owned()).collect()
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "I'm\u{3000}12345 x²  \r\n\n日本語テスト가나 мир — …“q” a_b(c) \t ";
        for (name, pre) in NAMES {
            assert_eq!(words(name, text).concat(), text, "{name}");
            assert!(!pre.patterns.iter().any(|pattern| repeats_repetitions(pattern)), "{name}");
        }
    }

    #[test]
    fn splits_are_those_of_another_engine() {
        let recorded: Json =
            serde_json::from_str(include_str!("../../../../tests/fixtures/divisions.json")).unwrap();
        let strings = |json: &Json| -> Vec<String> {
            json.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let texts = strings(&recorded["texts"]);
        let recorded = recorded["words"].as_object().unwrap();
        assert!(recorded.len() > 8 && texts.len() > 12);
        for (name, expected) in recorded {
            for (text, expected) in texts.iter().zip(expected.as_array().unwrap()) {
                assert_eq!(words(name, text), strings(expected), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn every_pre_tokenizer_is_found_again_by_its_steps() {
        for (name, pre) in NAMES {
            let found = name_of(Some(&pre.words()), pre.normalizer().as_ref(), pre.ignore_merges).unwrap();
            assert_eq!(named(found).unwrap().patterns, pre.patterns, "{name}");
        }
        assert_eq!(name_of(None, None, false), None);
    }

    #[test]
    fn a_pre_tokenizer_with_a_step_that_no_name_implies_has_no_name() {
        let name = |steps: &str, normalizer: &str| {
            let steps: PreTokenizerWrapper = serde_json::from_str(steps).unwrap();
            let normalizer: Option<NormalizerWrapper> = serde_json::from_str(normalizer).unwrap();
            name_of(Some(&steps), normalizer.as_ref(), false)
        };
        let bytes =
            r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}"#;
        let with_nfc = r#"{"type": "NFC"}"#;
        assert_eq!(name(bytes, "null"), Some("gpt-2"));
        assert_eq!(name(bytes, r#"{"type": "Sequence", "normalizers": []}"#), Some("gpt-2"));
        assert_eq!(name(bytes, with_nfc), None);
        assert_eq!(name(bytes, r#"{"type": "Lowercase"}"#), None);
        assert_eq!(name(&bytes.replace("prefix_space\": false", "prefix_space\": true"), "null"), None);
        let digits = format!(
            r#"{{"type": "Sequence", "pretokenizers": [{{"type": "Digits", "individual_digits": true}}, {bytes}]}}"#
        );
        assert_eq!(name(&digits, "null"), Some("starcoder"));
        let split = |pattern: &str, behavior: &str| {
            format!(r#"{{"type": "Split", "pattern": {pattern}, "behavior": "{behavior}", "invert": false}}"#)
        };
        // With unescaped line ends.
        let pattern = Json::from(QWEN2[0].replace(r"\r", "\r").replace(r"\n", "\n"));
        let pattern = format!(r#"{{"Regex": {pattern}}}"#);
        assert_eq!(name(&split(&pattern, "Isolated"), with_nfc), Some("qwen2"));
        assert_eq!(name(&split(&pattern, "Removed"), with_nfc), None);
        assert_eq!(name(&split(r#"{"String": " "}"#, "Isolated"), "null"), None);
    }

    #[test]
    fn digits_are_grouped_as_each_family_does() {
        assert_eq!(words("qwen2", "1234"), ["1", "2", "3", "4"]);
        assert_eq!(words("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(words("deepseek-v3", "12345"), ["123", "45"]);
        assert_eq!(words("deepseek-llm", "12345"), ["12345"]);
        assert_eq!(words("gpt-2", "a 12345"), ["a", " 12345"]);
    }

    #[test]
    fn words_take_their_space_and_scripts_are_kept_apart() {
        assert_eq!(words("llama-bpe", "Hello  world's\n x"), ["Hello", " ", " world", "'s", "\n", " x"]);
        assert_eq!(words("gpt-2", "they'LL've"), ["they", "'", "LL", "'ve"]);
        assert_eq!(words("qwen2", "they'LL've"), ["they", "'LL", "'ve"]);
        assert_eq!(words("deepseek-v3", "x日本語y"), ["x", "日本語", "y"]);
        // The third pattern's range from `:` to `~` includes ASCII letters, so it splits words with others.
        assert_eq!(words("deepseek-llm", " über alles!"), [" ü", "ber", " alles", "!"]);
        assert_eq!(words("youtu", "HelloWorld 한국어"), ["Hello", "World", " ", "한국어"]);
    }
}
