//! `fusebox run --print-kernels` from the command line.
//!
//! In: the default model, and one without micro-kernels for its format. Out: a table whose rows add up and that marks
//! slow products, the plan, and kernels as text. Times are not checked.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::own::path;

use crate::{command, json, told};

#[test]
fn a_table_has_a_row_for_each_kernel_and_few_of_them_a_block() {
    let text = told(&["run", "-n", "4", "--print-kernels"]);
    let (table, fused) = tables(&text);
    let heads = |table: &str| table.lines().next().map(str::to_owned).unwrap_or_default();
    for head in ["bytes", "us", "GB/s", "of peak", "Gflop/s", "code", "tensors"] {
        assert!(heads(table).contains(head), "{head}: {table}");
    }
    for head in ["ops", "flops", "barrier after it", "kernel", "fuses"] {
        assert!(heads(fused).contains(head), "{head}: {fused}");
    }
    assert!(fused.contains("contract") && fused.contains("attend"), "{fused}");
    let per_block = text.lines().find(|line| line.contains("kernels per block")).expect("a line of totals");
    let n: usize = per_block.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!((1..=5).contains(&n), "{per_block}");
    let times = table.lines().skip(1).filter_map(|line| line.trim_start().split_once('×'));
    let times = times
        .filter_map(|(first, rest)| Some((first.trim(), rest.split(' ').next()?.parse::<usize>().ok()?)));
    let (all, each): (Vec<_>, Vec<_>) = times.partition(|(first, _)| *first == "all");
    assert_eq!(all.iter().map(|(_, n)| n).sum::<usize>(), each.iter().map(|(_, n)| n).sum::<usize>());
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    let told = json(&["run", "-n", "4", "--json"]);
    assert_eq!(told["kernels"]["per_step"].as_u64(), Some(all[0].1 as u64));
    assert_eq!(told["kernels"]["per_block"].as_u64(), Some(n as u64));
}

/// The table of times with the lines below it, and the table of what is fused.
fn tables(text: &str) -> (&str, &str) {
    let start = text.find("step  launches").expect("a table follows the text");
    let second = start + text[start..].find("\nstep  ops").expect("what each row fuses follows");
    (&text[start..second], &text[second + 1..])
}

/// A qwen3.c checkpoint of zeros with a scale for every 16 elements; micro-kernels want one for 32 or more.
fn groups_of_16() -> PathBuf {
    let sizes = [64, 96, 1, 4, 2, 50, 48, 32, 1, 16];
    let [dim, ff, n_layers, n_heads, n_kv, vocab, _, head, _, group] = sizes;
    let n_plain = n_layers * (2 * dim + 2 * head) + dim;
    let n_elements = vocab * dim + n_layers * dim * (2 * head * (n_heads + n_kv) + 3 * ff);
    let mut bytes = [b"1cja".to_vec(), 1u32.to_le_bytes().to_vec()].concat();
    bytes.extend(sizes.iter().flat_map(|n| (*n as u32).to_le_bytes()));
    bytes.resize(256 + 4 * n_plain + n_elements + 4 * n_elements / group, 0);
    let file = path("groups-of-16.bin");
    fs::write(&file, bytes).expect("a writable folder");
    let mut tokens = [9u32, 0, 1].map(u32::to_le_bytes).concat();
    for letter in b'A'..b'A' + vocab as u8 {
        tokens.extend([(-1e6_f32).to_le_bytes(), 1u32.to_le_bytes()].concat());
        tokens.push(letter);
    }
    fs::write(file.with_extension("bin.tokenizer"), tokens).expect("a writable folder");
    file
}

#[test]
fn a_product_without_a_micro_kernel_is_marked_and_has_a_reason() {
    let model = groups_of_16();
    let model = model.to_str().expect("a plain path");
    let run = ["run", "-m", model, "--tokens", "1,2,3,4,5", "-n", "2", "--ignore-eos"];
    for view in ["--print-kernels", "--print-kernels=prompt"] {
        let text = told(&[&run[..], &[view]].concat());
        let (table, _) = tables(&text);
        let reason = "ffn_down runs without a fast form: no micro-kernel multiplies int8.g16 with f32";
        let line = table.lines().find(|line| line.ends_with(reason)).expect("a line with the reason");
        let number = line.strip_prefix("! kernel ").and_then(|line| line.split(':').next());
        let of_number = |line: &&str| line.split_whitespace().next() == number;
        let row = table.lines().find(of_number).expect("a row of the same number");
        assert!(row.contains("! generated"), "{table}");
        // What is no product of a weight is not marked, and caches have their micro-kernels.
        let gather = table.lines().find(|line| line.ends_with(" token_embd")).expect("a row for tokens");
        assert!(gather.contains(" map ") && table.contains("gemm f16, mix f16"), "{table}");
    }
}

#[test]
fn products_with_micro_kernels_are_named_and_not_marked() {
    for view in ["--print-kernels", "--print-kernels=prompt"] {
        let text = told(&["run", "--tokens", "1,2,3,4,5,6,7,8,9", "-n", "2", view]);
        let (table, _) = tables(&text);
        assert!(!table.contains('!') && !table.contains("without a fast form"), "{table}");
        let op = if view.ends_with("prompt") { "gemm" } else { "gemv" };
        let is_down = |line: &&str| line.ends_with(" ffn_down");
        assert!(table.lines().find(is_down).is_some_and(|line| line.contains(op)), "{op}: {table}");
        assert!(table.contains("mix f16"), "{table}");
    }
}

#[test]
fn a_table_of_a_prompt_has_all_of_its_tokens() {
    let text = told(&["run", "--tokens", "1,2,3,4,5,6,7", "-n", "2", "--print-kernels=prompt"]);
    let place = text.lines().find(|line| line.contains("kernels per block")).expect("a line of totals");
    assert!(place.ends_with("8 tokens"), "{place}");
    // A prompt of one token is a decode step.
    told(&["run", "--tokens", "5", "-n", "0", "--print-kernels=prompt"]);
}

#[test]
fn totals_by_kind_and_by_layer_add_up_to_the_launches() {
    let told = json(&["run", "--tokens", "1,2,3,4,5,6,7,8,9", "-n", "2", "--print-kernels=json"]);
    assert_eq!(told["tokens"].as_array().map(Vec::len), Some(2), "it is the object of --json");
    assert!(told["profile"]["threads"].as_u64() > Some(0));
    for (phase, n_tokens) in [("token", 1), ("prompt", 10)] {
        let profile = &told["profile"][phase];
        assert_eq!(profile["tokens"], n_tokens, "{phase}");
        let list = |key: &str| profile[key].as_array().expect("a list").clone();
        let sum = |rows: &[Value], key: &str| {
            rows.iter().map(|row| row[key].as_f64().expect("a number")).sum::<f64>()
        };
        for key in ["us", "bytes", "flops"] {
            let whole = profile[key].as_f64().expect("a number");
            for rows in ["kinds", "layers", "steps"] {
                // Each number is rounded.
                let near =
                    (sum(&list(rows), key) - whole).abs() <= 1e-6 * whole + 0.5 * list(rows).len() as f64;
                assert!(near, "{phase}: {key} of {rows}");
            }
        }
        assert_eq!(profile["launches"].as_u64(), Some(list("steps").len() as u64));
        assert_eq!(sum(&list("kinds"), "launches"), sum(&list("layers"), "launches"));
        let launches = |kind: &str| {
            let kinds = list("kinds");
            kinds
                .iter()
                .find(|row| row["kind"] == kind)
                .and_then(|row| row["launches"].as_u64())
                .expect("a kind")
        };
        // The default model has five layers without experts, and no launch for norms alone.
        assert_eq!([launches("attention"), launches("experts"), launches("norm and rotation")], [5, 0, 0]);
        assert!(launches("products") > 10 && launches("rest") > 1, "{profile}");
        let numbers: Vec<Value> = list("layers").iter().map(|row| row["layer"].clone()).collect();
        assert_eq!(numbers, [Value::Null, 0.into(), 1.into(), 2.into(), 3.into(), 4.into()]);
        let is_named = |step: &Value| step["name"].as_str().is_some_and(|name| name.contains("ffn_down"));
        let steps = list("steps");
        let down = steps.iter().find(|step| is_named(step)).expect("a product");
        assert_eq!((&down["kind"], &down["layer"]), (&"products".into(), &0.into()));
        assert!(down["code"][0].as_str().is_some_and(|code| code.starts_with("gem")), "{down}");
    }
}

#[test]
fn a_table_has_the_shares_of_the_kinds() {
    let text = told(&["run", "-n", "2", "--print-kernels"]);
    let kinds = text.split("\nkind ").nth(1).expect("a table of kinds");
    let shares = kinds.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split(" %").next());
    let shares: Vec<f64> = shares.filter_map(|line| line.split(' ').next_back()?.parse().ok()).collect();
    assert!(shares.len() == 3 && (shares.iter().sum::<f64>() - 100.0).abs() < 2.0, "{kinds}");
}

#[test]
fn a_full_context_has_room_for_the_table() {
    told(&["run", "--tokens", "5", "-c", "1", "--print-kernels=table"]);
}

#[test]
fn the_plan_and_the_kernels_are_text() {
    let plan = told(&["run", "-n", "1", "--print-kernels=plan"]);
    assert!(plan.contains("plan: ") && plan.contains("offset"), "{plan}");
    let source = told(&["run", "-n", "1", "--print-kernels=source"]);
    assert!(source.contains("kernel \""), "{source}");
    let mut command = command(Path::new(""), &["run", "-n", "1", "--print-kernels=source"]);
    let output = command.env("FUSEBOX_TARGET", "cuda-sm90").output().expect("the command runs");
    let source = String::from_utf8(output.stdout).expect("text");
    assert!(source.contains("kernel \"") && !source.contains("__global__"), "what ran: {source}");
}
