//! Verifies a partition.
//!
//! In: a graph and its partition. Out: a complaint for each breach; none for anything `merge.rs` makes. Every stored
//! value belongs to one region, every region comes after what it reads, no contraction is computed by two, no region
//! reads a state that it writes, and none stores the dequantised form of a weight unless the graph returns it.

use crate::error::Complaint;
use crate::foundation::entity::List;
use crate::fuse::cut::weight_views;
use crate::fuse::group::is_never_recomputed;
use crate::fuse::merge::Partition;
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId};

/// Everything that is wrong with a partition.
pub(crate) fn verify(graph: &Graph, partition: &Partition) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut stored_by: List<NodeId, Option<usize>> = graph.nodes.ids().map(|_| None).collect();
    let mut computed_by: List<NodeId, Option<usize>> = graph.nodes.ids().map(|_| None).collect();
    for (region, roots) in partition.regions.iter().enumerate() {
        let cone = partition.cut.cone(graph, roots);
        for load in partition.cut.loads(graph, &cone) {
            if partition.cut.has(load) && stored_by[load].is_none() {
                complaints
                    .push(Complaint::new(load, format!("region {region} reads it before it is stored")));
            }
        }
        for node in cone.iter().filter(|node| is_never_recomputed(&graph.nodes[**node].op)) {
            if let Some(other) = computed_by[*node].replace(region) {
                complaints
                    .push(Complaint::new(node, format!("regions {other} and {region} both compute it")));
            }
        }
        for root in roots {
            if let Some(other) = stored_by[*root].replace(region) {
                complaints.push(Complaint::new(root, format!("regions {other} and {region} both store it")));
            }
        }
        complaints.extend(state_clashes(graph, partition, roots, region));
    }
    let missing = partition.cut.nodes().filter(|node| stored_by[*node].is_none());
    complaints.extend(missing.map(|node| Complaint::new(node, "no region stores it")));
    let (is_weight, asked_for) = (weight_views(graph), graph.roots());
    let dequantised = partition.cut.nodes().filter(|node| is_weight[*node] && !asked_for.contains(node));
    complaints
        .extend(dequantised.map(|node| Complaint::new(node, "the dequantised form of a weight is stored")));
    complaints
}

fn state_clashes(graph: &Graph, partition: &Partition, roots: &[NodeId], region: usize) -> Vec<Complaint> {
    let loads = partition.cut.loads(graph, &partition.cut.cone(graph, roots));
    let writes = roots.iter().filter(|root| matches!(graph.nodes[**root].op, Op::Write { .. }));
    let clashes = writes.filter_map(|write| {
        let state = graph.state_of(*write)?;
        let read = loads.iter().find(|load| graph.state_of(**load) == Some(state))?;
        Some(Complaint::new(read, format!("region {region} reads the state {state} that it writes")))
    });
    clashes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::cut::Cut;
    use crate::graph::parse::parse;

    const TEXT: &str = "\
%0 = input x : f32[t:2, d:4]
%1 = mul %0 %0
%2 = reduce-sum %1 over d
%3 = exp %2
output y = %3
";

    fn partition(regions: &[&[usize]]) -> (Graph, Partition) {
        let graph = parse(TEXT).unwrap();
        let ids: Vec<NodeId> = graph.nodes.ids().collect();
        let regions = regions.iter().map(|roots| roots.iter().map(|root| ids[*root]).collect()).collect();
        let cut = Cut::everywhere(&graph);
        (graph, Partition { cut, regions, reasons: Vec::new(), merges: Vec::new(), joins: Vec::new() })
    }

    fn complaints(regions: &[&[usize]]) -> Vec<String> {
        let (graph, partition) = partition(regions);
        verify(&graph, &partition).iter().map(Complaint::to_string).collect()
    }

    #[test]
    fn a_partition_in_order_is_fine() {
        assert_eq!(complaints(&[&[1], &[2], &[3]]), [""; 0]);
    }

    #[test]
    fn a_region_must_come_after_what_it_reads() {
        assert_eq!(complaints(&[&[2], &[1], &[3]]), ["%1: region 0 reads it before it is stored"]);
    }

    #[test]
    fn a_dequantised_weight_is_not_stored() {
        let graph = parse(
            "\
%0 = input x : f32[t:2, d:32]
%1 = input picks : i32[t:2]
%2 = weight w : q8_0[x:4, f:3, d:32]
%3 = gather %2 %1 along x
%4 = contract %0 %3 over [d]
output y = %4
",
        )
        .unwrap();
        let [gathered, product] = [3, 4].map(|number| graph.nodes.ids().nth(number).unwrap());
        let whole = Cut::everywhere(&graph);
        assert_eq!(whole.nodes().collect::<Vec<_>>(), [product]);
        let found = |cut: Cut| {
            let regions = cut.nodes().map(|node| vec![node]).collect();
            let (reasons, merges, joins) = Default::default();
            let partition = Partition { cut, regions, reasons, merges, joins };
            verify(&graph, &partition).iter().map(Complaint::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(whole.clone()), [""; 0]);
        let mut with = whole;
        with.store(gathered);
        assert_eq!(found(with), ["%3: the dequantised form of a weight is stored"]);
    }

    #[test]
    fn every_stored_value_has_one_region() {
        assert_eq!(complaints(&[&[1], &[2]]), ["%3: no region stores it"]);
        assert_eq!(complaints(&[&[1], &[2], &[3], &[1]]), ["%1: regions 0 and 3 both store it"]);
    }
}
