//! `fusebox logits` from the command line.
//!
//! In: token ids and text. Out: logits as JSON, as a file and as a table, which agree.

use std::fs;

use serde_json::Value;
use support::own;

use crate::{json, told};

fn numbers(told: &Value) -> Vec<f32> {
    told["logits"].as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

fn shape(told: &Value) -> Vec<u64> {
    told["shape"].as_array().expect("a list").iter().map(|n| n.as_u64().expect("a size")).collect()
}

#[test]
fn the_last_row_of_all_is_the_row_of_the_last() {
    let last = json(&["logits", "--tokens", "5,6,7", "--precise", "--json"]);
    let all = json(&["logits", "--tokens", "5,6,7", "--precise", "--all", "--json"]);
    let n_vocab = shape(&last)[0];
    assert_eq!((shape(&last), shape(&all)), (vec![n_vocab], vec![3, n_vocab]));
    let (last, all) = (numbers(&last), numbers(&all));
    assert_eq!((last.len(), all.len()), (n_vocab as usize, 3 * n_vocab as usize));
    let furthest = last.iter().zip(&all[2 * last.len()..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-3, "{furthest}");
}

#[test]
fn a_file_has_the_numbers_of_the_json() {
    let path = own::path("logits.npy");
    let path = path.to_str().expect("a plain path");
    let told = json(&["logits", "--tokens", "5,6", "--all", "--json", "-o", path]);
    let bytes = fs::read(path).expect("it was written");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let head = String::from_utf8_lossy(&bytes[10..start]).into_owned();
    let [rows, columns] = shape(&told)[..] else { panic!("{told}") };
    assert!(head.contains(&format!("'shape': ({rows}, {columns},)")) && head.contains("'<f4'"), "{head}");
    let (words, rest) = bytes[start..].as_chunks::<4>();
    assert!(rest.is_empty());
    assert_eq!(words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<_>>(), numbers(&told));
}

#[test]
fn words_and_threads_make_no_difference() {
    let ask = |threads| numbers(&json(&["logits", "-p", "Once upon", "-t", threads, "--json"]));
    assert_eq!(ask("1"), ask("2"));
    let table = told(&["logits", "-p", "Once upon a"]);
    assert!(table.starts_with("token") && table.lines().count() == 11, "{table}");
}
