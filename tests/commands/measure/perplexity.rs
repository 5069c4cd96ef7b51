//! `fusebox perplexity`: a text scored by the default model, and the model compared with itself.
//!
//! In: a story, told by the model. Out: perplexities, errors, and the divergence from saved probabilities.

use support::own;

use crate::{json, refused, told};

/// A text that the default model finds likely, long enough for a few chunks.
fn text(file: &str) -> String {
    let story = told(&["run", "-n", "200", "--temp", "0"]);
    let path = own::write(file, story.repeat(2).as_bytes());
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn a_story_is_likely_and_a_model_is_no_different_from_itself() {
    let (text, base) = (text("story.txt"), own::path("base.kl"));
    let base = base.to_str().expect("a plain path");
    let own = json(&["perplexity", "-f", &text, "-c", "64", "--json", "--save", base]);
    let perplexity = own["perplexity"].as_f64().expect("a number");
    assert!(perplexity > 1.0 && perplexity < 20.0, "{own}");
    assert!(own["perplexity_error"].as_f64().is_some_and(|error| error > 0.0 && error < perplexity));
    let shown = told(&["perplexity", "-f", &text, "-c", "64"]);
    assert!(shown.contains(&format!("Final estimate: PPL = {perplexity:.4} +/- ")), "{shown}");
    let same = json(&["perplexity", "--kl", base, "--json"]);
    assert_eq!((&same["perplexity"], &same["same_top"]), (&own["perplexity"], &1.0.into()));
    // What is kept has 16 bits.
    assert!(same["kl_divergence"].as_f64().is_some_and(|kl| kl.abs() < 1e-4), "{same}");
    assert!(same["ln_ratio"].as_f64().is_some_and(|ratio| ratio.abs() < 1e-3), "{same}");
    let precise = json(&["perplexity", "--kl", base, "--json", "--precise"]);
    let kl = precise["kl_divergence"].as_f64().expect("a number");
    assert!(kl > 1e-6 && kl < 0.1, "rounding activations costs something, and not much: {precise}");
}

#[test]
fn a_text_that_is_too_short_and_a_file_of_another_kind_are_sentences() {
    let text = text("short.txt");
    assert!(
        refused(&["perplexity", "-f", &text, "-c", "512"]).contains("expected at least 1024 for two chunks")
    );
    assert!(refused(&["perplexity", "--kl", "Cargo.toml"]).contains("as --save writes them"));
    assert!(refused(&["perplexity"]).contains("--file"));
    assert!(
        refused(&["perplexity", "-f", &text, "-c", "64", "--save", "Cargo.toml"]).contains("another file")
    );
}
