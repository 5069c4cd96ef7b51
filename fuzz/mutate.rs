//! How good inputs become bad ones: as bytes, as text and as JSON.
//!
//! In: something that is read, and random numbers. Out: the same with a few faults of the kind that survives the first
//! checks: numbers at the ends of their ranges, parts that are missing, twice, swapped, too long or too deep.

use fusebox_compiler::foundation::random::Random;
use serde_json::{Map, Value, json};

/// Whole numbers at which programs go wrong.
pub(crate) const NUMBERS: [u64; 26] = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    1 << 20,
    (1 << 24) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// One of several.
pub(crate) fn one<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[random.below(all.len())]
}

/// Whether something of this chance happens.
pub(crate) fn chance(random: &mut Random, n_of: usize, all: usize) -> bool {
    random.below(all) < n_of
}

/// A number at which programs go wrong, or any.
pub(crate) fn number(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.bits(),
        1 => random.below(1000) as u64,
        _ => *one(random, &NUMBERS),
    }
}

/// A range within `0..n`, at most `most` long.
fn piece(random: &mut Random, n: usize, most: usize) -> std::ops::Range<usize> {
    let start = random.below(n + 1);
    start..start + random.below((n - start).min(most) + 1)
}

/// Puts a few faults into bytes.
pub(crate) fn bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(10) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.bits() as u8,
            2..=4 => {
                let (width, aligned) = (*one(random, &[1, 2, 4, 8]), at & !3);
                let new = number(random).to_le_bytes();
                let at = if chance(random, 1, 2) { aligned } else { at };
                bytes.iter_mut().skip(at).zip(&new[..width]).for_each(|(to, from)| *to = *from);
            }
            5 => bytes.truncate(at),
            6 => bytes.extend(std::iter::repeat_n(random.bits() as u8, random.below(200))),
            7 => {
                let copy = bytes[piece(random, bytes.len(), 200)].to_vec();
                bytes.splice(at..at, copy);
            }
            8 => {
                bytes.drain(piece(random, bytes.len(), 200));
            }
            _ => {
                let copy = bytes[piece(random, bytes.len(), 64)].to_vec();
                bytes.iter_mut().skip(at).zip(&copy).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

/// The words, numbers and single characters that a text is made of.
fn parts(text: &str) -> Vec<&str> {
    let kind = |c: char| match c {
        _ if c.is_ascii_digit() => 0,
        _ if c.is_alphanumeric() || c == '_' => 1,
        ' ' => 2,
        _ => 3,
    };
    let (mut parts, mut start) = (Vec::new(), 0);
    let all: Vec<(usize, char)> = text.char_indices().collect();
    for pair in all.windows(2) {
        if kind(pair[0].1) != kind(pair[1].1) || kind(pair[0].1) == 3 {
            parts.push(&text[start..pair[1].0]);
            start = pair[1].0;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A text with a few faults; words and lines may come from `others`.
pub(crate) fn text(random: &mut Random, own: &str, others: &[String]) -> String {
    if chance(random, 1, 16) {
        let mut raw = own.as_bytes().to_vec();
        bytes(random, &mut raw);
        return String::from_utf8_lossy(&raw).into_owned();
    }
    let mut text = own.to_owned();
    for _ in 0..=random.below(3) {
        text = if chance(random, 1, 3) {
            with_lines(random, &text, others)
        } else {
            with_parts(random, &text, others)
        };
    }
    text
}

fn with_lines(random: &mut Random, text: &str, others: &[String]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let (at, from) = (random.below(lines.len()), random.below(lines.len()));
    if lines.is_empty() {
        return String::new();
    }
    match random.below(5) {
        0 => {
            lines.remove(at);
        }
        1 => lines.insert(at, lines[from]),
        2 => lines.swap(at, from),
        3 => lines.truncate(at + 1),
        _ => {
            let other: Vec<&str> =
                others.get(random.below(others.len())).map_or(Vec::new(), |o| o.lines().collect());
            if !other.is_empty() {
                lines.insert(at, *one(random, &other));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn with_parts(random: &mut Random, text: &str, others: &[String]) -> String {
    let mut all: Vec<String> = parts(text).into_iter().map(str::to_owned).collect();
    let at = random.below(all.len());
    let is_number = |part: &String| part.starts_with(|c: char| c.is_ascii_digit());
    let numbers: Vec<usize> = (0..all.len()).filter(|at| is_number(&all[*at])).collect();
    match random.below(10) {
        0..=3 if !numbers.is_empty() => {
            all[*one(random, &numbers)] = match random.below(12) {
                0 => "-1".to_owned(),
                1 => "1e999".to_owned(),
                2 => "0.5".to_owned(),
                3 => "9".repeat(40),
                _ => number(random).to_string(),
            }
        }
        0..=4 => {
            let from = random.below(all.len());
            let copy = all[from].clone();
            all[at] = copy;
        }
        5 => {
            all.remove(at);
        }
        6 => {
            let to = random.below(all.len());
            all.swap(at, to);
        }
        7 => {
            let n = *one(random, &[2, 3, 20, 300, 5000]);
            all[at] = all[at].repeat(n.min(40_000 / all[at].len().max(1) + 1));
        }
        8 => {
            let pairs = [("(", ")"), ("[", "]"), ("{", "}"), ("{{", "}}"), ("\"", "\"")];
            let ((open, close), n) = (*one(random, &pairs), *one(random, &[1, 2, 50, 3000]));
            all[at] = format!("{}{}{}", open.repeat(n), all[at], close.repeat(n));
        }
        _ => {
            let other = others.get(random.below(others.len()));
            let other = other.map_or(Vec::new(), |other| parts(other));
            if !other.is_empty() {
                (*one(random, &other)).clone_into(&mut all[at]);
            }
        }
    }
    all.concat()
}

/// Puts a few faults into a tree; names and values may be those of `words`.
pub(crate) fn json(random: &mut Random, tree: &mut Value, words: &[&str]) {
    let n_faults = if chance(random, 3, 4) { 1 } else { 1 + random.below(4) };
    for _ in 0..n_faults {
        let n = count(tree);
        let (at, from) = (random.below(n), random.below(n));
        let copy = nth(tree, &mut from.clone()).cloned().unwrap_or(Value::Null);
        if let Some(node) = nth(tree, &mut at.clone()) {
            spoil(random, node, copy, words);
        }
    }
}

/// The nodes of a tree.
fn count(tree: &Value) -> usize {
    1 + match tree {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// A node by its place in the order of the text.
fn nth<'a>(tree: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(tree);
    }
    *left -= 1;
    match tree {
        Value::Array(all) => all.iter_mut().find_map(|node| nth(node, left)),
        Value::Object(all) => all.values_mut().find_map(|node| nth(node, left)),
        _ => None,
    }
}

fn spoil(random: &mut Random, node: &mut Value, copy: Value, words: &[&str]) {
    let word = one(random, words).to_owned();
    match (random.below(6), &mut *node) {
        (0 | 1, Value::Object(all)) if !all.is_empty() => {
            let key = all.keys().nth(random.below(all.len())).cloned().unwrap_or_default();
            let value = all.remove(&key).unwrap_or_default();
            match random.below(3) {
                0 => {}
                1 => {
                    all.insert(word.to_owned(), value);
                }
                _ => {
                    all.insert(key, copy);
                }
            }
        }
        (0 | 1, Value::Array(all)) if !all.is_empty() => {
            let at = random.below(all.len());
            match random.below(4) {
                0 => {
                    all.remove(at);
                }
                1 => all.push(copy),
                2 => all[at] = copy,
                _ => {
                    let n = *one(random, &[2, 65, 3000]);
                    let one = all[at].clone();
                    if count(&one) < 50 {
                        all.extend(std::iter::repeat_n(one, n));
                    }
                }
            }
        }
        (2, _) => *node = copy,
        (3, _) => {
            let n = *one(random, &[1, 2, 60, 120, 1000]);
            for _ in 0..n {
                let inner = node.take();
                *node = if chance(random, 1, 2) { json!([inner]) } else { json!({ word: inner }) };
            }
        }
        _ => *node = value(random, word),
    }
}

/// Any value.
fn value(random: &mut Random, word: &str) -> Value {
    match random.below(10) {
        0 => Value::Null,
        1 => json!(chance(random, 1, 2)),
        2 | 3 => json!(number(random)),
        4 => json!(-(random.below(1 << 40) as i64)),
        5 => json!(*one(random, &[0.5, -0.0, 1e-320, 1e300, 5.0, 1e19])),
        6 => json!(word.repeat(*one(random, &[0, 2, 1000]))),
        7 => json!(*one(
            random,
            &["", "\0", "\u{1b}[31m", "é\u{301}", "\u{10ffff}", "<0x41>", "{{ x }}", "../../x"]
        )),
        8 => Value::Object(Map::new()),
        _ => json!(word),
    }
}
