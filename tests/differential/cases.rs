//! Hand-made cases: each names an idea that once failed or easily could.
//!
//! In: small graphs as text. Each is fused for every target, by price and by two seeds, for several values of its
//! symbols, and for processors with one core and with 96. Every kernel must compute what it stands for, interpreted and
//! compiled. The last test breaks kernels on purpose: the harness must notice.

use fusebox_compiler::fuse::hazard::protect;
use fusebox_compiler::fuse::merge::{Steering, partition};
use fusebox_compiler::graph::op::Binary;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::kernel::lower::{Bound, lower};
use fusebox_compiler::kernel::price::LoweredPrice;
use fusebox_compiler::kernel::{Expr, Kernel, Nest, Stmt};
use fusebox_compiler::reference::compare::{Tolerance, close};
use fusebox_compiler::reference::{evaluate, evaluate_all, random};
use fusebox_compiler::target::{CPU, TARGETS};
use fusebox_compiler::tensor::label::Label;

use super::bounds::of_kernels;
use super::gpu::on_gpu;
use super::jit::compiled;
use super::{Checker, Witness, check, check_by, check_launch};

/// The symbols of all cases: positions before, tokens now.
const SYMBOLS: &str = "symbol P in 0..7 near 3\nsymbol T in 1..5 near 2\n";
const VALUES: [(i64, i64); 4] = [(0, 1), (0, 5), (3, 2), (7, 5)];

fn holds(text: &str) {
    let graph = parse(&format!("{SYMBOLS}{text}")).unwrap();
    let [p, t] = ["P", "T"].map(|name| Label::new(name).unwrap());
    for (before, now) in VALUES {
        let bindings = random::bindings(&graph, 5, &[(p, before), (t, now)]);
        let (asked, safe) =
            (evaluate(&graph, &bindings).unwrap(), evaluate(&protect(&graph), &bindings).unwrap());
        for (name, value) in &asked.outputs {
            close(value, &safe.outputs[name], Tolerance::exact()).unwrap();
        }
        assert_eq!(asked.states, safe.states);
        let odd = [(1, 10), (96, 400)].map(|(units, gigabytes)| CPU.with_rates(units, gigabytes));
        let odd = if (before, now) == VALUES[3] { &odd[..] } else { &[] };
        for target in TARGETS.iter().chain(odd) {
            let witness: Witness = if target.is_processor() { compiled } else { on_gpu };
            for chaos in [None, Some(1), Some(2)] {
                let checks = (of_kernels(&graph), chaos.is_none().then_some(witness));
                check_by(&graph, &bindings, target, Steering { chaos, fuel: None }, checks)
                    .unwrap_or_else(|what| panic!("P={before} T={now} {target} {chaos:?}: {what}"));
            }
        }
    }
}

#[test]
fn blocks_that_do_not_divide_the_rows() {
    holds(
        "\
%0 = input x : f32[t:T, d:64]
%1 = weight w : q8_0[f:130, d:64]
%2 = contract %0 %1 over [d]
output y = %2
",
    );
    holds(
        "\
%0 = input x : f32[s:2, b:33]
%1 = state k : f32[s:2, d:130]
%2 = contract %0 %1 over [s]
%3 = split %2 d into [a:10, f:13]
output y = %3
",
    );
}

#[test]
fn rows_of_a_weight_lie_across_what_is_summed() {
    for format in ["f16", "q8_0", "q4_0", "q5_1"] {
        holds(&format!(
            "\
%0 = input x : f32[t:T, c:40]
%1 = weight k : {format}[h:2, c:40, e:64]
%2 = weight v : {format}[h:2, e:32, c:40]
%3 = merge %1 [h, e] into r
%4 = contract %0 %3 over [c]
%5 = contract %0 %2 over [c]
output k = %4
output v = %5
"
        ));
    }
}

#[test]
fn keys_lie_in_two_places() {
    holds(
        "\
%0 = input q : f32[t:T, h:2, e:24]
%1 = state k : f32[s:12, h:2, e:16]
%2 = state c : f32[s:12, e:20]
%3 = slice %2 e at 12 len 8
%4 = expand %3 h:2
%5 = concat %1 %4 along e
%6 = slice %5 s at 0 len P+T
%7 = contract %0 %6 over [e]
%8 = attend %7 %6 over [s]
output y = %8
",
    );
}

#[test]
fn a_window_begins_in_the_middle_of_what_is_cached() {
    for (window, tokens) in [(1, 1), (70, 1), (64, 3), (400, 1)] {
        let text = format!(
            "\
symbol P in 0..299 near 200
%0 = input q : f32[t:{tokens}, h:2, e:8]
%1 = state k : f32[h:2, s:302, e:8]
%2 = slice %1 s at 0 len P+{tokens}
%3 = contract %0 %2 over [e]
%4 = iota s:P+{tokens}
%5 = iota t:{tokens}
%6 = symbolic P
%7 = add %5 %6
%8 = const {window} : i32
%9 = add %4 %8
%10 = lt %7 %9
%11 = le %4 %7
%12 = const 0.0
%13 = const -inf
%14 = select %11 %12 %13
%15 = select %10 %14 %13
%16 = add %3 %15
%17 = attend %16 %2 over [s]
output y = %17
"
        );
        let graph = parse(&text).unwrap();
        for before in [0, 1, 63, 64, 199, 299] {
            let bindings = random::bindings(&graph, 5, &[(Label::new("P").unwrap(), before)]);
            for target in TARGETS {
                check(&graph, &bindings, &target, Steering::default())
                    .unwrap_or_else(|what| panic!("P={before} {window} {tokens} {target}: {what}"));
            }
        }
    }
}

#[test]
fn a_norm_and_a_rotation_share_the_row_they_read() {
    holds(
        "\
%0 = input x : f32[t:T, d:64]
%1 = weight w : f32[f:32, d:64]
%2 = contract %0 %1 over [d]
%3 = mul %2 %2
%4 = reduce-sum %3 over f
%5 = const 1.0
%6 = add %4 %5
%7 = rsqrt %6
%8 = mul %2 %7
%9 = slice %8 f at 0 len 16
%10 = slice %8 f at 16 len 16
%11 = iota t:T
%12 = cast %11 f32
%13 = sin %12
%14 = cos %12
%15 = mul %9 %14
%16 = mul %10 %13
%17 = sub %15 %16
%18 = mul %10 %14
%19 = mul %9 %13
%20 = add %18 %19
%21 = concat %17 %20 along f
output y = %21
",
    );
}

#[test]
fn slices_of_a_joined_projection_go_different_ways() {
    holds(
        "\
%0 = input x : f32[t:T, d:32]
%1 = weight w : q4_0[f:65, d:32]
%2 = contract %0 %1 over [d]
%3 = slice %2 f at 0 len 33
%4 = slice %2 f at 33 len 32
%5 = exp %4
%6 = state k : f32[s:12, f:33]
%90 = iota t:T
%91 = symbolic P
%92 = add %90 %91
%7 = write %6 %3 %92 along [s]
%8 = slice %7 s at 0 len P+T
output a = %5
output b = %8
",
    );
}

#[test]
fn two_outputs_share_a_fold() {
    holds(
        "\
%0 = input x : f32[t:T, d:33]
%1 = reduce-sum %0 over d
%2 = exp %1
%3 = neg %1
output a = %2
output b = %3
",
    );
}

#[test]
fn a_value_sees_a_state_before_and_after_a_write() {
    holds(
        "\
%0 = input x : f32[t:T, d:4]
%1 = state k : f32[s:12, d:4]
%90 = iota t:T
%91 = symbolic P
%92 = add %90 %91
%2 = write %1 %0 %92 along [s]
%3 = sub %2 %1
output y = %3
",
    );
    // Through slices, and only deep inside.
    holds(
        "\
%0 = input x : f32[t:T, d:4]
%1 = state k : f32[s:12, d:4]
%90 = iota t:T
%91 = symbolic P
%92 = add %90 %91
%2 = write %1 %0 %92 along [s]
%3 = slice %1 s at 0 len 4
%4 = reduce-sum %2 over s
%5 = mul %3 %4
%6 = concat %3 %5 along s
output y = %6
",
    );
}

#[test]
fn a_state_moves_within_itself_and_two_swap() {
    holds(
        "\
%0 = state k : f32[s:12, d:4]
%1 = slice %0 s at 1 len 11
%90 = rename %1 s to w
%91 = iota w:11
%92 = symbolic 0
%93 = add %91 %92
%2 = write %0 %90 %93 along [s]
",
    );
    holds(
        "\
%0 = state a : f32[s:12, d:4]
%1 = state b : f32[s:12, d:4]
%90 = rename %1 s to w
%91 = iota w:12
%92 = symbolic 0
%93 = add %91 %92
%2 = write %0 %90 %93 along [s]
%94 = rename %0 s to w
%3 = write %1 %94 %93 along [s]
output y = %2
",
    );
}

#[test]
fn a_cheap_merge_does_not_move_a_read_behind_the_write() {
    holds(
        "\
%0 = input x : bf16[a:7]
%1 = state k : bf16[a:14]
%90 = rename %0 a to w
%91 = iota w:7
%92 = symbolic P
%93 = add %91 %92
%2 = write %1 %90 %93 along [a]
%3 = cast %1 f32
%4 = cast %2 f32
%5 = mul %3 %4
output y = %5
",
    );
}

#[test]
fn rows_are_written_at_the_end_and_in_two_halves() {
    holds(
        "\
%0 = input x : f32[t:T, d:3]
%1 = state k : f16[s:12, d:3]
%2 = cast %0 f16
%90 = iota t:T
%91 = symbolic 12-T
%92 = add %90 %91
%3 = write %1 %2 %92 along [s]
output y = %3
",
    );
    holds(
        "\
%0 = input x : i32[t:T]
%1 = state k : i32[s:24]
%90 = iota t:T
%91 = symbolic P
%92 = add %90 %91
%2 = write %1 %0 %92 along [s]
%93 = iota t:T
%94 = symbolic P+12
%95 = add %93 %94
%3 = write %2 %0 %95 along [s]
%4 = reduce-sum %2 over s
output y = %4
output z = %3
",
    );
}

#[test]
fn attention_over_a_cache_that_may_be_empty() {
    holds(
        "\
%0 = input q : f32[t:T, h:2, d:8]
%1 = state k : f16[s:7, d:8]
%2 = slice %1 s at 0 len P
%3 = contract %0 %2 over [d]
%4 = attend %3 %2 over [s]
output y = %4
",
    );
}

#[test]
fn a_state_of_blocks_is_written_and_read_in_one_replay() {
    for format in ["q8_0", "q4_0"] {
        holds(&format!(
            "\
%0 = input x : f32[t:T, h:2, d:64]
%1 = state k : {format}[h:2, s:12, d:64]
%2 = exp %0
%90 = iota t:T
%91 = symbolic P
%92 = add %90 %91
%3 = write %1 %2 %92 along [s]
%4 = slice %3 s at 0 len P+T
%5 = input q : f32[u:3, h:2, d:64]
%6 = contract %5 %4 over [d]
%7 = attend %6 %4 over [s]
output y = %7
"
        ));
    }
}

#[test]
fn rows_of_blocks_are_products_with_more_rows_than_a_task_takes() {
    for format in ["q8_0", "q4_0"] {
        holds(&format!(
            "\
%0 = input x : f32[t:T, d:96]
%1 = weight w : q8_0[e:288, d:96]
%2 = contract %0 %1 over [d]
%3 = state v : {format}[s:12, e:288]
%90 = iota t:T
%91 = symbolic P
%92 = add %90 %91
%4 = write %3 %2 %92 along [s]
%5 = slice %4 s at 0 len P+T
%6 = input p : f32[c:9, s:P+T]
%7 = contract %6 %5 over [s]
output y = %7
"
        ));
    }
}

#[test]
fn attention_of_few_heads_is_split_over_positions() {
    holds(
        "\
%0 = input q : f32[t:T, h:2, d:8]
%1 = input k : f32[s:520, d:8]
%2 = contract %0 %1 over [d]
%3 = iota s:520
%4 = const 300 : i32
%5 = lt %3 %4
%6 = const -inf
%7 = select %5 %2 %6
%8 = attend %7 %1 over [s]
%9 = neg %8
output y = %9
",
    );
}

#[test]
fn the_largest_with_ties_one_and_all() {
    holds(
        "\
%0 = input x : i32[t:T, e:13]
%1 = cast %0 f32
%2 = top-k %1 e into r:1
%3 = top-k %1 e into r:13
%4 = top-k %1 e into e:4
output a = %2
output b = %3
output c = %4
",
    );
}

#[test]
fn rows_beyond_the_ends_are_the_nearest() {
    holds(
        "\
%0 = input i : i32[n:9]
%1 = const 5 : i32
%2 = sub %0 %1
%3 = input x : f32[v:3, d:5]
%4 = gather %3 %2 along v
%5 = input y : f32[t:T, d:5]
%6 = exp %5
%7 = gather %6 %0 along t
%8 = iota p:P
%9 = gather %8 %0 along p
output a = %4
output b = %7
output c = %9
",
    );
}

#[test]
fn pieces_that_may_be_empty_are_put_together() {
    holds(
        "\
%0 = state k : f32[s:7, d:3]
%1 = slice %0 s at 0 len P
%2 = input x : f32[s:T, d:3]
%3 = exp %1
%4 = slice %0 s at 3 len 0
%5 = concat %3 %2 %4 along s
%6 = reduce-sum %4 over s
%7 = concat %4 %4 along d
output a = %5
output b = %6
output c = %7
",
    );
    // Read beyond the end of a computed piece, in a larger expression.
    holds(
        "\
%0 = input x : f32[t:T, b:13]
%1 = input y : f32[a:3, s:P+T, t:T, b:13]
%2 = contract %1 %0 over [b, t]
%3 = mul %2 %2
%4 = input z : f32[a:3, s:P]
%5 = concat %3 %4 along s
%6 = exp %4
%7 = concat %6 %3 along s
%8 = add %5 %7
output y = %8
",
    );
}

#[test]
fn two_axes_are_summed() {
    holds(
        "\
%0 = input x : f32[t:T, h:3, d:32]
%1 = weight w : q8_0[f:33, h:3, d:32]
%2 = contract %0 %1 over [d, h]
output y = %2
",
    );
}

#[test]
fn stored_weights_are_unpacked_in_blocks_for_many_tokens() {
    for format in ["q8_0", "q4_k", "int8.g64", "f16", "q6_k"] {
        holds(&format!(
            "\
%0 = input x : f32[t:16, d:512]
%1 = weight w : {format}[f:35, d:512]
%2 = contract %0 %1 over [d]
output y = %2
"
        ));
    }
}

#[test]
fn joined_weights_are_unpacked_where_some_need_it() {
    holds(
        "\
%0 = input x : f32[t:16, d:96]
%1 = weight w : f32[f:9, d:96]
%2 = weight v : q8_0[f:22, d:96]
%3 = concat %1 %2 along f
%4 = contract %0 %3 over [d]
%5 = slice %4 f at 0 len 9
%6 = reduce-max %5 over f
%7 = slice %4 f at 9 len 22
output y = %6
output z = %7
",
    );
}

#[test]
fn outputs_that_are_leaves_movements_or_given_requantised() {
    holds(
        "\
%0 = input x : f32[t:T, d:4]
%1 = split %0 d into [a:2, b:2]
%2 = exp %0
%3 = state k : f32[s:3]
%4 = const 2.0
%5 = table i [1.0, 2.0]
output a = %0
output b = %1
output c = %2
output d = %2
output e = %3
output f = %4
output g = %5
",
    );
}

#[test]
fn values_without_elements_need_no_kernel() {
    holds(
        "\
%0 = input x : f16[q:0, d:3]
%1 = cast %0 f32
%2 = reduce-sum %1 over q
%3 = slice %1 d at 1 len 0
output a = %0
output b = %2
output c = %3
",
    );
}

/// The nests of a kernel, whatever loop they stand in.
fn nests(body: &mut [Stmt]) -> Vec<&mut Nest> {
    let mut found = Vec::new();
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => found.push(nest),
            Stmt::Loop { body, .. } | Stmt::Once { body, .. } => found.extend(nests(body)),
            Stmt::Quantise(_) => {}
        }
    }
    found
}

/// Each product becomes a sum.
fn wrong_operator(kernel: &mut Kernel) {
    for nest in kernel.parts.iter_mut().flat_map(|part| nests(&mut part.body)) {
        let ids: Vec<_> = nest.exprs.ids().collect();
        for id in ids {
            if let Expr::Binary(f @ Binary::Mul, ..) = &mut nest.exprs[id] {
                *f = Binary::Add;
            }
        }
    }
}

/// Each load of two indices takes the row of the first.
fn wrong_index(kernel: &mut Kernel) {
    for nest in kernel.parts.iter_mut().flat_map(|part| nests(&mut part.body)) {
        let ids: Vec<_> = nest.exprs.ids().collect();
        for id in ids {
            if let Expr::Load { at, .. } = &mut nest.exprs[id]
                && let [first, _] = at.as_mut_slice()
            {
                *first = first.times(0);
            }
        }
    }
}

/// Nothing is stored by the last part.
fn nothing_stored(kernel: &mut Kernel) {
    kernel.parts.pop();
}

#[test]
fn a_kernel_that_is_wrong_is_noticed() {
    let text = "\
%0 = input x : f32[t:3, d:32]
%1 = weight w : f32[f:5, d:32]
%2 = contract %0 %1 over [d]
output y = %2
";
    let graph = parse(text).unwrap();
    let target = CPU;
    let bindings = random::bindings(&graph, 3, &[]);
    let values = evaluate_all(&graph, &bindings).unwrap();
    let partition = partition(&graph, &mut LoweredPrice::new(&graph, &target), Steering::default());
    let roots = &partition.regions[0];
    let outcome = |sabotage: fn(&mut Kernel)| {
        let mut kernels: Vec<Bound> = lower(&graph, &partition.cut, roots, &target).unwrap();
        for (kernel, _) in &mut kernels {
            sabotage(kernel);
        }
        let checker = Checker::new(&graph, &bindings, &values, roots);
        check_launch(checker, &partition, &kernels, of_kernels(&graph))
    };
    assert_eq!(outcome(|_| ()), Ok(()));
    for sabotage in [wrong_operator, wrong_index, nothing_stored] {
        let what = outcome(sabotage).unwrap_err();
        assert!(what.contains("contract%2"), "{what}");
    }
}
