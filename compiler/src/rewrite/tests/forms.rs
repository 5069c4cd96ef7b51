//! The forms that the architecture requires are found, at the sizes of real models.
//!
//! In: parts of models. Out: nothing, or the lines of the graph that are not as they should be. Nothing is evaluated.

use super::parts::{Block, REAL, Sizes};
use super::{cpu, lines};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::rewrite::{Report, Settings, Stop, improve};
use crate::target::Target;

fn best(graph: &Graph) -> (Graph, Report) {
    let (made, report) = improve(graph, &Settings::new(cpu()));
    assert_eq!(report.stopped, Stop::Saturated);
    assert!(report.seconds <= report.seconds_before, "{report:?}");
    (made, report)
}

/// Whether anything that a contraction needs is summed over one of its own axes.
fn awaits_a_sum(graph: &Graph) -> bool {
    graph.nodes.values().any(|node| {
        let Op::Contract { over } = &node.op else { return false };
        let mut below = node.args.clone();
        while let Some(id) = below.pop() {
            match &graph.nodes[id].op {
                Op::Reduce { axis, .. } if over.contains(axis) => return true,
                Op::Contract { .. } | Op::Attend { .. } => {}
                _ => below.extend(&graph.nodes[id].args),
            }
        }
        false
    })
}

#[test]
fn a_norm_is_not_a_kernel() {
    let b = Block::new(REAL);
    let f = b.g.dim("f", 4096);
    let y = b.norm("gain", &b.x(), &b.d).contract(&b.w("w", &[&f, &b.d]), [&b.d]);
    let graph = b.finish(&y);
    assert!(awaits_a_sum(&graph));
    let (made, report) = best(&graph);
    assert!(!awaits_a_sum(&made), "{made}");
    assert_eq!(report.used, ["contract-hoist-scale"]);
}

#[test]
fn projections_of_one_norm_are_one_contraction() {
    let b = Block::new(REAL);
    let y = b.attention(&b.norm("gain", &b.x(), &b.d));
    let (made, _) = best(&b.finish(&y));
    assert!(!awaits_a_sum(&made), "{made}");
    assert_eq!(
        lines(&made, "contract"),
        [
            "contract [t:1, d:2048] [row0:6144, d:2048] -> [t:1, row0:6144]",
            "contract [t:1, h:16, e:128] [h:16, s:P+1, e:128] -> [t:1, h:16, s:P+1]",
            "contract [t:1, h:16, e:128] [d:2048, h:16, e:128] -> [t:1, d:2048]",
        ]
    );
    assert_eq!(lines(&made, "attend").len(), 1);
    assert!(lines(&made, "select").is_empty(), "one token sees every position: no mask\n{made}");
}

#[test]
fn one_token_absorbs_the_expansion_of_latents() {
    let b = Block::new(REAL);
    let (made, report) = best(&b.finish(&b.latent(&b.x())));
    assert_eq!(
        lines(&made, "contract"),
        [
            "contract [t:1, d:2048] [row0:3648, d:2048] -> [t:1, row0:3648]",
            "contract [t:1, h:16, e:128] [h:16, c:512, e:128] -> [t:1, h:16, c:512]",
            "contract [t:1, h:16, c:576] [s:P+1, c:576] -> [t:1, h:16, s:P+1]",
            "contract [t:1, h:16, c:512] [h:16, e:128, c:512] -> [t:1, h:16, e:128]",
            "contract [t:1, h:16, e:128] [d:2048, h:16, e:128] -> [t:1, d:2048]",
        ]
    );
    assert_eq!(lines(&made, "attend"), ["attend [t:1, h:16, s:P+1] [s:P+1, c:512] -> [t:1, h:16, c:512]"]);
    let against = |rule| report.forms.iter().find(|form| form.chosen == rule && form.other == "as written");
    let scores = against("contract-join-slices").unwrap();
    assert!(scores.other_seconds > 4.0 * scores.chosen_seconds, "{scores}");
}

#[test]
fn a_weight_for_keys_and_values_together_is_absorbed_too() {
    let b = Block::new(REAL);
    let (made, _) = best(&b.finish(&b.latent_combined(&b.x())));
    assert_eq!(lines(&made, "attend"), ["attend [t:1, h:16, s:P+1] [s:P+1, c:512] -> [t:1, h:16, c:512]"]);
    assert!(lines(&made, "contract").iter().all(|line| !line.ends_with("s:P+1, h:16, e:128]")), "{made}");
}

#[test]
fn many_tokens_expand_the_latents() {
    let sizes = Sizes { tokens: 512, ..REAL };
    for target in ["cpu", "cuda-sm90"] {
        let b = Block::new(sizes);
        let graph = b.finish(&b.latent(&b.x()));
        let (made, _) = improve(&graph, &Settings::new(Target::named(target).unwrap()));
        let attend = lines(&made, "attend");
        assert_eq!(attend, ["attend [t:512, h:16, s:P+512] [s:P+512, h:16, e:128] -> [t:512, h:16, e:128]"]);
        // Keys and values are expanded from the latents together.
        let expansions = lines(&made, "contract");
        let expansion = "contract [s:P+512, c:512] [row0:4096, c:512] -> [s:P+512, row0:4096]";
        assert!(expansions.iter().any(|line| line == expansion), "{expansions:#?}");
    }
}

#[test]
fn only_selected_experts_are_read() {
    let b = Block::new(REAL);
    let (made, _) = best(&b.finish(&b.experts(&b.norm("gain", &b.x(), &b.d))));
    assert_eq!(
        lines(&made, "contract"),
        [
            "contract [t:1, d:2048] [x:64, d:2048] -> [t:1, x:64]",
            "contract [t:1, d:2048] [t:1, k:6, row0:2816, d:2048] -> [t:1, k:6, row0:2816]",
            "contract [t:1, k:6, f:1408] [t:1, k:6, d:2048, f:1408] -> [t:1, d:2048]",
        ]
    );
    let tables = lines(&made, "gather").into_iter().filter(|line| line.contains("x:64, ")).count();
    assert_eq!(tables, 3, "gate, up and down are gathered\n{made}");
}

#[test]
fn movement_disappears() {
    let b = Block::new(REAL);
    let (h, e, m) = (&b.g.dim("h", 16), &b.g.dim("e", 128), &b.g.dim("m", 2048));
    let x = b.x().split(&b.d, &[h, e]).merge(&[h, e], m).rename(m, &b.d).slice(&b.d, 0, 2048);
    let (made, report) = best(&b.finish(&(x * 1.0 + 0.0)));
    assert_eq!(made.nodes.len(), 1, "{made}");
    assert_eq!(report.seconds, 0.0);
}

#[test]
fn a_block_stays_small_and_comes_out_the_same_each_time() {
    let b = Block::new(REAL);
    let x = &b.x();
    let y = x + b.latent(&b.norm("first", x, &b.d));
    let graph = b.finish(&(&y + b.experts(&b.norm("second", &y, &b.d))));
    let (made, report) = best(&graph);
    assert!(report.nodes < 500 && report.rounds <= 16, "{} nodes, {} rounds", report.nodes, report.rounds);
    for _ in 0..3 {
        let (again, same) = best(&graph);
        assert_eq!(again.to_string(), made.to_string());
        assert_eq!(same, report);
    }
}
