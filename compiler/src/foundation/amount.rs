//! Amounts as people read them: bytes, operations, and how many there are of something.
//!
//! In: a number. Out: a short text with its unit, or with its word in the right number.
//! The text is for people only: it is rounded, and nothing reads it back.

/// An amount of bytes.
pub fn bytes(n: f64) -> String {
    scaled(n, &[" B", " KiB", " MiB", " GiB", " TiB"], 1024.0)
}

/// An amount of operations.
pub fn count(n: f64) -> String {
    scaled(n, &["", " k", " M", " G", " T"], 1000.0)
}

/// A number with its noun: `1 token`, `2 tokens`.
pub fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n if what.ends_with('s') => format!("{n} {what}es"),
        n => format!("{n} {what}s"),
    }
}

fn scaled(mut n: f64, units: &[&str], step: f64) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or("");
    for larger in units {
        if n < step {
            break;
        }
        n /= step;
        unit = larger;
    }
    // Three digits, or all of a whole number.
    let digits = match n {
        n if n.fract() == 0.0 || n >= 99.95 => 0,
        n if n >= 9.995 => 1,
        _ => 2,
    };
    format!("{n:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        assert_eq!([bytes(512.0), bytes(1536.0), bytes(3e9)], ["512 B", "1.50 KiB", "2.79 GiB"]);
        assert_eq!([count(12.0), count(2_500_000.0), count(123_456.0)], ["12", "2.50 M", "123 k"]);
        assert_eq!([bytes(20_000.0), bytes(1023.0 * 1024.0)], ["19.5 KiB", "1023 KiB"]);
    }

    #[test]
    fn a_word_is_in_the_number_of_what_it_counts() {
        let counted = |n| [counted(n, "token"), counted(n, "class")];
        assert_eq!(counted(0), ["0 tokens", "0 classes"]);
        assert_eq!(counted(1), ["1 token", "1 class"]);
        assert_eq!(counted(2), ["2 tokens", "2 classes"]);
    }
}
