//! `fusebox run --print-kernels` from the command line.
//!
//! In: the default model. Out: a table whose rows add up, the plan, and kernels as text. Times are not checked.

use std::path::Path;

use crate::{command, json, told};

#[test]
fn a_table_has_a_row_for_each_kernel_and_few_of_them_a_block() {
    let text = told(&["run", "-n", "4", "--print-kernels"]);
    let (_, table) = text.split_once("step  launches").expect("a table follows the text");
    for head in [
        "kernel",
        "skeleton",
        "ops",
        "bytes",
        "flops",
        "us",
        "GB/s",
        "of peak",
        "Gflop/s",
        "barrier after it",
    ] {
        assert!(table.lines().next().is_some_and(|line| line.contains(head)), "{head}: {table}");
    }
    let (table, fused) = table.split_once("step  fuses").expect("what each row fuses follows");
    assert!(fused.contains("contract") && fused.contains("attend"), "{fused}");
    let per_block = text.lines().find(|line| line.contains("kernels per block")).expect("a line of totals");
    let n: usize = per_block.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!((1..=5).contains(&n), "{per_block}");
    let times = table.lines().skip(1).filter_map(|line| line.trim_start().split_once('×'));
    let times = times
        .filter_map(|(first, rest)| Some((first.trim(), rest.split(' ').next()?.parse::<usize>().ok()?)));
    let (all, each): (Vec<_>, Vec<_>) = times.partition(|(first, _)| *first == "all");
    assert_eq!(all.iter().map(|(_, n)| n).sum::<usize>(), each.iter().map(|(_, n)| n).sum::<usize>());
    let told = json(&["run", "-n", "4", "--json"]);
    assert_eq!(told["kernels"]["per_step"].as_u64(), Some(all[0].1 as u64));
    assert_eq!(told["kernels"]["per_block"].as_u64(), Some(n as u64));
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
