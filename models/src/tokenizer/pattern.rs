//! Regular expressions that take too long on some strings.
//!
//! In: a pattern of a file. Out: whether a group that repeats without bound is itself repeated, as in `(?>a+)+b`.
//! Such a pattern may try a string in as many ways as it has parts, for each place where it begins; the limit of the
//! engine counts the places where it turns back and not what it reads. No tokenizer that is known has one.

use std::iter::Peekable;
use std::str::Chars;

/// From this many repetitions on they count as without bound.
const MANY: u32 = 64;

/// Whether a repeated group repeats something itself.
pub(super) fn repeats_repetitions(pattern: &str) -> bool {
    let mut rest = pattern.chars().peekable();
    // Of each open group, whether something in it repeats; the first stands for the whole.
    let mut groups = vec![false];
    while let Some(c) = rest.next() {
        let repeats = match c {
            '\\' => {
                skip_escape(&mut rest);
                false
            }
            '[' => {
                skip_class(&mut rest);
                false
            }
            '(' => {
                groups.push(false);
                continue;
            }
            ')' if groups.len() > 1 => groups.pop().unwrap_or_default(),
            _ => false,
        };
        let is_repeated = is_repeated(&mut rest);
        if repeats && is_repeated {
            return true;
        }
        if let Some(group) = groups.last_mut() {
            *group |= repeats || is_repeated;
        }
    }
    false
}

/// Passes over what follows a backslash: one character, or the name of a class in braces.
fn skip_escape(rest: &mut Peekable<Chars<'_>>) {
    if rest.next().is_some_and(|kind| "pPxuk".contains(kind)) && rest.peek() == Some(&'{') {
        rest.by_ref().take_while(|c| *c != '}').for_each(drop);
    }
}

/// Passes over the rest of a class, in which others may stand.
fn skip_class(rest: &mut Peekable<Chars<'_>>) {
    let mut depth = 1;
    rest.next_if_eq(&'^');
    rest.next_if_eq(&']');
    while depth > 0 {
        match rest.next() {
            Some('\\') => skip_escape(rest),
            Some('[') => depth += 1,
            Some(']') => depth -= 1,
            Some(_) => {}
            None => return,
        }
    }
}

/// Passes over the count of what went before, and says whether it is without bound.
fn is_repeated(rest: &mut Peekable<Chars<'_>>) -> bool {
    let mut is_without_bound = false;
    loop {
        match rest.peek() {
            Some('*' | '+') => {
                rest.next();
                is_without_bound = true;
            }
            Some('?') => {
                rest.next();
            }
            Some('{') => {
                let count: String = rest.clone().skip(1).take_while(|c| *c != '}').collect();
                let is_count = !count.is_empty() && count.chars().all(|c| c.is_ascii_digit() || c == ',');
                if !is_count {
                    return is_without_bound;
                }
                rest.by_ref().take_while(|c| *c != '}').for_each(drop);
                let most = count.rsplit(',').next().unwrap_or_default();
                is_without_bound |= most.parse().map_or(true, |most: u32| most >= MANY);
            }
            _ => return is_without_bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_repetitions_are_found() {
        for pattern in [
            "(?>a+)+b",
            "(a+)*$",
            "((?:a|b*)c){2,}",
            "(?:x(?i:y+))++",
            "(a*){64}",
            "((((\\s*))))+",
            "(?=(a+)+$)",
            "(a{1000}){100}",
        ] {
            assert!(repeats_repetitions(pattern), "{pattern}");
        }
    }

    #[test]
    fn patterns_of_tokenizers_have_none() {
        for pattern in [
            "",
            ")(",
            "(a+)(b+)?c*",
            r"\d{1,3}(?=(?:\d{3})*\b)",
            r"(?:a\+)+\p{L}*",
            r"(?:[a+*]\[)+",
            "(?:[^]+])*",
            r"(?:[\p{Lu}&&[^\p{Han}]]x)+(?i:'s|'t)?",
            "(?:a{2}|b{,x})+",
            r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ] {
            assert!(!repeats_repetitions(pattern), "{pattern}");
        }
    }
}
