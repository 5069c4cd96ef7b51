//! Command lines: the flags of every command, with odd values. Nothing is run: a line is understood or refused.

use std::ffi::OsString;

use fusebox_compiler::foundation::random::Random;

use crate::mutate::{self, chance, one};
use crate::targets::target::Target;

/// Reads command lines, whose words lie apart by zeros.
pub(crate) struct Arguments {
    words: Vec<String>,
}

/// Values, right and wrong.
const VALUES: [&str; 24] = [
    "",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "4294967296",
    "18446744073709551616",
    "1e308",
    "nan",
    "inf",
    "0x10",
    "1,2,,3",
    "1,2",
    "on",
    "off",
    "auto",
    "cpu",
    "f16",
    "Q4_K_M",
    "a=b",
    "é\u{301}\u{10ffff}",
    "a\nb",
    "\u{1b}[31m",
];

impl Arguments {
    pub(crate) fn new() -> Self {
        // Every flag is in the page that is made from the parser.
        let page = include_str!("../../docs/commands.md");
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let mut words: Vec<String> =
            page.split(word).filter(|word| word.starts_with('-')).map(str::to_owned).collect();
        let commands = [
            "run",
            "serve",
            "logits",
            "embed",
            "perplexity",
            "tokens",
            "bench",
            "story",
            "inspect",
            "quantize",
            "doctor",
            "pull",
            "ls",
            "rm",
            "show",
            "completions",
            "man",
            "help",
        ];
        words.sort();
        words.dedup();
        words.extend(commands.map(str::to_owned));
        Self { words }
    }
}

impl Target for Arguments {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let mut line: Vec<Vec<u8>> = vec![b"fusebox".to_vec()];
        for _ in 0..=random.below(7) {
            let mut word = if chance(random, 1, 2) {
                one(random, &self.words).clone()
            } else {
                (*one(random, &VALUES)).to_owned()
            };
            if chance(random, 1, 5) {
                word = format!("{word}={}", one(random, &VALUES));
            }
            let mut word = word.into_bytes();
            if chance(random, 1, 10) {
                mutate::bytes(random, &mut word);
            }
            word.retain(|byte| *byte != 0);
            line.push(word);
        }
        line.join(&0)
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        let words = input.split(|byte| *byte == 0).map(|word| {
            #[cfg(unix)]
            return std::os::unix::ffi::OsStringExt::from_vec(word.to_vec());
            #[cfg(not(unix))]
            return OsString::from(String::from_utf8_lossy(word).into_owned());
        });
        let words: Vec<OsString> = words.collect();
        match fusebox_cli::understand(&words) {
            Ok(()) => Ok(true),
            Err(sentence) if sentence.trim().is_empty() => Err("it is refused without a word".to_owned()),
            Err(sentence) if sentence.contains('\n') => {
                Err(format!("its sentence has several lines: {sentence:?}"))
            }
            Err(_) => Ok(false),
        }
    }
}
