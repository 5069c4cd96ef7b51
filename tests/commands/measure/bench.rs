//! `fusebox bench` from the command line.
//!
//! In: token counts, depths and threads. Out: a rate for each repetition of each test; its value is not checked.

use std::fs;

use serde_json::{Value, json as value};
use support::own;

use crate::{json, refused, told};

const SMALL: [&str; 7] = ["bench", "-p", "8", "-n", "4", "-r", "2"];

#[test]
fn json_has_a_row_for_each_test() {
    let told = json(&[&SMALL[..], &["-d", "3,16", "-t", "1,2", "-o", "json"]].concat());
    let rows = told.as_array().expect("a list");
    let row = |row: &Value| {
        assert_eq!(row["tok_s"].as_array().map(Vec::len), Some(2));
        assert!(row["tok_s"][0].as_f64().is_some_and(|rate| rate > 0.0));
        for key in ["ms", "gb_s", "share"] {
            let values = row[key].as_array().expect("a value for each repetition");
            assert!(values.len() == 2 && values.iter().all(|value| value.as_f64() > Some(0.0)), "{row}");
        }
        assert!(row["bandwidth_gb_s"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["hash"][0], row["hash"][1], "the same tokens give the same answers");
        let number = |key: &str| row[key].as_u64().expect("a number");
        (
            row["test"].as_str().expect("a name").to_owned(),
            number("tokens"),
            number("depth"),
            number("threads"),
        )
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    let mut expected = Vec::new();
    for threads in [1, 2] {
        expected.extend([0, 3, 16].map(|depth| ("prefill".to_owned(), 8, depth, threads)));
        expected.extend([3, 16].map(|depth| ("decode".to_owned(), 4, depth, threads)));
    }
    assert_eq!(rows, expected);
    // Threads do not change answers either.
    let hash = |row: usize| told[row]["hash"][0].as_str().expect("a hash").to_owned();
    let half = expected.len() / 2;
    assert!((0..half).all(|row| hash(row) == hash(half + row)));
    assert_ne!(hash(0), hash(1), "other places have other answers");
}

#[test]
fn a_table_and_values_have_the_same_rows() {
    let table = told(&[&SMALL[..], &["-t", "1"]].concat());
    assert!(table.starts_with("| test ") && table.lines().count() == 4, "{table}");
    assert!(table.lines().all(|line| line.starts_with('|') && line.ends_with('|')), "{table}");
    let values = told(&[&SMALL[..], &["-t", "1", "-o", "csv"]].concat());
    assert!(
        values.starts_with("version,model,device,kv_type,test,tokens,depth,batch,threads,repeat,tok_s,"),
        "{values}"
    );
    assert_eq!(values.lines().filter(|line| line.contains(",f16,prefill,8,0,1,1,")).count(), 2, "{values}");
    assert_eq!(values.lines().count(), 5);
    let once = told(&["bench", "-p", "8", "-n", "0", "-r", "1"]);
    let deviation = once.lines().nth(2).and_then(|row| row.split('|').nth(7)).map(str::trim);
    assert_eq!(deviation, Some("-"), "{once}");
}

#[test]
fn a_batch_gives_what_one_sequence_gives() {
    let of = |flag, n| json(&["bench", "-p", "0", "-n", "4", "-d", "3", "-r", "1", flag, n, "-o", "json"]);
    let told = of("--batch", "1,3");
    assert_eq!([&told[0]["batch"], &told[1]["batch"]], [1, 3]);
    assert_eq!(told[0]["hash"], told[1]["hash"]);
    // The former names of the flag and of the key still work.
    let former = of("--texts", "3");
    assert_eq!((&former[0]["texts"], &former[0]["hash"]), (&told[1]["batch"], &told[1]["hash"]));
}

#[test]
fn lists_of_tokens_are_tests_of_their_own() {
    let told = json(&["bench", "-p", "8,16", "-n", "2,4", "-d", "3", "-r", "1", "-o", "json"]);
    let row = |row: &Value| value!([row["test"], row["tokens"], row["depth"]]);
    let rows: Vec<Value> = told.as_array().expect("a list").iter().map(row).collect();
    let prefill = [8, 16].into_iter().flat_map(|n| [0, 3].map(|depth| value!(["prefill", n, depth])));
    let expected: Vec<Value> = prefill.chain([2, 4].map(|n| value!(["decode", n, 3]))).collect();
    assert_eq!(rows, expected);
}

#[test]
fn results_are_kept_with_where_they_come_from() {
    let folder = own::path("results");
    let _ = fs::remove_dir_all(&folder);
    let folder = folder.to_str().expect("a plain path");
    let save = [&SMALL[..], &["-t", "1", "-o", "json", "--kv-type", "q8_0", "--save", folder]].concat();
    let printed = [json(&save), json(&save)];
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert_eq!(files.len(), 2, "no file replaces another: {files:?}");
    for file in &files {
        let text = fs::read_to_string(file).expect("a text");
        let saved: Value = serde_json::from_str(&text).expect("JSON");
        assert!(printed.contains(&saved["tests"]), "{saved}");
        assert_eq!((&saved["schema"], &saved["command"][0]), (&1.into(), &"bench".into()));
        let flags = &saved["flags"];
        assert_eq!([&flags["kv_type"], &flags["device"]], ["q8_0", "auto"]);
        assert_eq!(
            [&flags["prefill"], &flags["threads"], &flags["depths"]],
            [&value!([8]), &value!([1]), &value!([0])]
        );
        assert_eq!(saved["model"]["architecture"], "qwen3");
        assert_eq!(saved["commit"], saved["tests"][0]["commit"]);
        let time = saved["date"].as_str().expect("a date").replace(':', "-");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a plain name");
        assert!(name.starts_with(&time) && time.ends_with('Z'), "{name}: {time}");
        for key in ["processor", "threads", "memory"] {
            assert!(!saved["machine"][key].is_null() || !cfg!(target_os = "linux"), "{key}: {saved}");
        }
    }
    assert!(refused(&["bench", "--save", "Cargo.toml"]).contains("expected a folder"));
}

#[test]
fn a_text_is_scored_beside_the_speed() {
    let story = told(&["run", "-n", "200", "--temp", "0"]);
    let file = own::write("story.txt", story.repeat(6).as_bytes());
    let file = file.to_str().expect("a plain path");
    let told = json(&["bench", "-p", "8", "-n", "0", "-r", "1", "-o", "json", "--perplexity", file]);
    let score = told.as_array().and_then(|rows| rows.last()).expect("a row");
    assert_eq!(score["test"], "perplexity");
    let alone = json(&["perplexity", "-f", file, "--json"]);
    let inspected = &json(&["inspect", "--json", "--perplexity", file])["perplexity"];
    for key in ["tokens", "perplexity", "perplexity_error"] {
        assert!(alone[key].is_number(), "{alone}");
        assert_eq!([&score[key], &inspected[key]], [&alone[key]; 2], "{key}");
    }
    assert!(refused(&["bench", "-o", "csv", "--perplexity", file]).contains("-o json"));
    let short = own::write("short.txt", b"Once");
    let short = short.to_str().expect("a plain path");
    assert!(refused(&["inspect", "--perplexity", short]).contains("expected at least 1024"));
}
