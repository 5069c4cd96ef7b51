//! Small decoders with odd shapes, whose logits Transformers recorded.
//!
//! In: folders that `tests/fixtures/decoders.py` made, and what it recorded of them. Out: the same logits behind every
//! token, with the text fed at once and token by token.
//! Each has a part that an earlier reader of its family left out, or a part of its own.

use std::fs::read_to_string;

use fusebox_compiler::options::Numbers;
use serde_json::Value as Json;
use support::given::fixture;
use support::run::{Run, relative_error};

/// Single precision, summed in another order, which depends on the instruction set: up to 2.5e-5 with AVX2.
const SAME: f64 = 4e-5;

fn numbers<T>(json: &Json, of: impl Fn(&Json) -> T) -> Vec<T> {
    json.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn decoders_answer_as_transformers_does() {
    let recorded: Json =
        serde_json::from_str(&read_to_string(fixture("decoders/decoders.json")).unwrap()).unwrap();
    let tokens = numbers(&recorded["tokens"], |id| id.as_u64().unwrap() as u32);
    let mut wrong = Vec::new();
    for (name, expected) in recorded["logits"].as_object().unwrap() {
        let expected = numbers(expected, |row| numbers(row, |x| x.as_f64().unwrap() as f32));
        for at_once in [tokens.len(), 1] {
            let mut run = Run::new(Numbers::Single);
            run.settings.context = tokens.len();
            run.settings.scores_every = true;
            let mut session = run.open(&fixture("decoders").join(name));
            let mut found: Vec<Vec<f32>> = Vec::new();
            for piece in tokens.chunks(at_once) {
                session.score(piece, &mut |row: &[f32]| found.push(row.to_vec())).unwrap();
            }
            assert_eq!(found.len(), expected.len());
            let errors = found.iter().zip(&expected).map(|(row, expected)| relative_error(row, expected));
            let worst = errors.fold(0.0, f64::max);
            if worst.is_nan() || worst > SAME {
                wrong.push(format!("{worst:.1e} {name}, {at_once} at once"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
