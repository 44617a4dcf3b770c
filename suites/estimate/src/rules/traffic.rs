//! What data parallelism moves: 2, 2, 2, 3 times the parameters, and the least that has to enter a node.

use super::{Check, digits, world};
use crate::collective::{Collective, Group};
use crate::job::Job;
use crate::layout::Layout;
use crate::machine::Machine;

/// Elements that a rank sends in a step: a reduction (and gather) of gradients for stages 0 to 2, two gathers of weights
/// and a reduction for stage 3; each is Ψ(N-1)/N.
pub fn zero(stage: u8, parameters: f64, ranks: f64) -> Check {
    const NAMES: [&str; 4] = ["traffic-zero-0", "traffic-zero-1", "traffic-zero-2", "traffic-zero-3"];
    let stage = stage.min(3);
    let parts: &[&str] = match stage {
        0 => &["reduce-scatter of gradients (half an all-reduce)", "all-gather of gradients (the other half)"],
        1 | 2 => &["reduce-scatter of gradients", "all-gather of updated weights"],
        _ => &["all-gather of weights, forward", "all-gather of weights, backward", "reduce-scatter of gradients"],
    };
    let says = format!("{}Ψ, for few ranks times (N - 1)/N", parts.len());
    let each = parameters * (ranks - 1.0) / ranks;
    let how = format!("{} × {} / {}", digits(parameters), digits(ranks - 1.0), digits(ranks));
    let check = Check::new(NAMES[usize::from(stage)], says, "ZeRO paper, section 7", "elements a rank and step");
    parts.iter().fold(check, |check, part| check.term(*part, how.clone(), each))
}

/// Bits that have to enter each node in a step of ZeRO-3 with 16-bit weights and gradients: three passes over what the
/// other nodes have. `48 × M` alone is right for many nodes; `48 × M / N` is right for two.
pub fn zero3_per_node(parameters: f64, nodes: f64) -> Check {
    let says = "3 × 16 bits × M (N - 1)/N have to enter a node of N";
    let check =
        Check::new("traffic-node", says, "ml-engineering, network, corrected (docs/claims.md)", "bits a node and step");
    let how = format!("16 × {} × {} / {}", digits(parameters), digits(nodes - 1.0), digits(nodes));
    let each = 16.0 * parameters * (nodes - 1.0) / nodes;
    ["all-gather, forward", "all-gather, backward", "reduce-scatter"]
        .iter()
        .fold(check, |check, part| check.term(*part, how.clone(), each))
}

/// Seconds that those bits take at a node's rating.
pub fn zero3_wire_time(parameters: f64, nodes: f64, bits_per_second: f64) -> Check {
    let bits = zero3_per_node(parameters, nodes).sum();
    Check::new(
        "traffic-node-time",
        "bits into a node / rating of its network cards: no step is faster",
        "arithmetic",
        "s",
    )
    .term("on the wire", format!("{} / {}", digits(bits), digits(bits_per_second)), bits / bits_per_second)
}

/// Those that say something about a job.
pub(super) fn all(job: &Job, machine: Option<&Machine>) -> Vec<Check> {
    let ranks = (job.degrees.data * job.degrees.context) as f64;
    if ranks < 2.0 {
        return Vec::new();
    }
    let of_rank = job.model.parameters() as f64 / (job.degrees.tensor * job.degrees.pipeline).max(1) as f64;
    let mut list: Vec<Check> = (0..4).map(|stage| zero(stage, of_rank, ranks)).collect();
    let Some(machine) = machine else { return list };
    let nodes = (world(job) / machine.node_devices as f64).ceil();
    // The bound is for whole nodes that all hold parts of the same weights.
    let split = job.degrees.tensor * job.degrees.pipeline == 1 && job.sharding.parameters as f64 >= ranks;
    if nodes >= 2.0 && split {
        let parameters = job.model.parameters() as f64;
        list.push(zero3_per_node(parameters, nodes));
        let rating = machine.inter.bandwidth * 8.0 * machine.node_devices as f64;
        if rating > 0.0 {
            list.push(zero3_wire_time(parameters, nodes, rating));
        }
    }
    list
}

/// How many times longer the network between nodes takes for a job's collectives than its cards alone would; nothing where
/// it does not, or where the group of an axis has one node.
pub(super) fn congestion(job: &Job, machine: &Machine) -> Vec<Check> {
    let layout = Layout::of(job, machine);
    let (data, gathers) = match job.sharding.parameters > 1 {
        true => (layout.shard, Collective::AllGather),
        false => (layout.data, Collective::AllReduce),
    };
    let groups: [(&'static str, Collective, Group); 6] = [
        ("congestion-data", gathers, data),
        ("congestion-replicas", Collective::AllReduce, layout.replicas),
        ("congestion-tensor", Collective::AllReduce, layout.tensor),
        ("congestion-context", Collective::Send, layout.context),
        ("congestion-expert", Collective::AllToAll, layout.expert),
        ("congestion-pipeline", Collective::Send, layout.neighbours),
    ];
    // The layout has neighbours without stages, too, and replicas of one.
    let used = groups.into_iter().filter(|(name, ..)| *name != "congestion-pipeline" || job.degrees.pipeline > 1);
    used.filter_map(|(name, what, group)| {
        let topology = &machine.topology;
        let factors = topology.factors(what, group, topology.relays(what, group));
        let times: f64 = factors.iter().map(|factor| factor.times).product();
        let stated: Vec<String> =
            factors.iter().map(|factor| format!("{} {}", factor.name, digits(factor.times))).collect();
        let says = format!("{} over {} nodes, times as long as at the cards' rate", what.name(), group.nodes());
        let check = Check::new(name, says, "the machine's topology (docs/machines.md)", "times");
        (times > 1.0).then(|| check.term("slower", stated.join(" × "), times))
    })
    .collect()
}
