//! The time of a collective over ranks that span nodes: hops, the slower of both levels of links, and what filling the
//! pipeline between them costs. What joins the nodes may slow the outer level ([`crate::topology`]).

pub use crate::group::{Collective, Group};
use crate::machine::{Link, Machine};

#[cfg(test)]
mod tests;

/// Seconds that a collective's kernel takes to start on all ranks, beside its hops (nccl-tests of 8 devices, 32 KiB:
/// 40 us, of which hops are the greater part).
const START: f64 = 8e-6;

/// Filling the pipeline of chunks, against the geometric mean of hops and transfer: an optimal chunk size gives 2 with all
/// hops one by one; set by hand on the single-node sweeps from 1 MiB to 16 GiB, both halves seen.
const FILL: f64 = 0.6;

/// Algorithm bandwidth of a reduction in the switch over what a ring's links reach: each device sends its whole payload
/// once and takes the sum once (H200: 275 of 365 GB/s; B200: 475 of 700).
const IN_SWITCH: f64 = 0.72;

/// Hops that a sum in the switch takes at most, however many devices (32 KiB over 8 H200: 40 us; B200: 47).
const IN_SWITCH_HOPS: f64 = 12.0;

/// Share of a link's rating that one copy between two devices reaches: 274 of 300 GB/s (A100), 392 of 450 (H200).
const COPY_REACHED: f64 = 0.89;

/// Ranks from which the switch is asked (NCCL's own choice: 4 devices take the ring).
const IN_SWITCH_RANKS: usize = 5;

/// Bytes per second one way that a device of `ranks` beside each other has.
fn beside(link: &Link, ranks: usize, devices: usize) -> f64 {
    let rate = link.bandwidth * link.reached;
    let kind = link.kind.to_ascii_lowercase();
    // A full mesh has a link per pair: fewer ranks have fewer links.
    let mesh = ["infinity", "xgmi", "mesh"].iter().any(|word| kind.contains(word));
    if mesh && devices > 1 && ranks < devices { rate * (ranks - 1) as f64 / (devices - 1) as f64 } else { rate }
}

/// Seconds of a collective of `bytes` (all ranks' together, as nccl-tests counts) over a group, by the quicker of a ring and
/// a tree.
pub fn seconds(what: Collective, bytes: f64, group: Group, machine: &Machine) -> f64 {
    seconds_by(what, bytes, group, machine, true)
}

/// The same by a ring alone, where `trees` is false.
pub fn seconds_by(what: Collective, bytes: f64, group: Group, machine: &Machine, trees: bool) -> f64 {
    let ranks = group.ranks;
    if ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let nodes = group.nodes();
    let local = group.per_node.min(ranks);
    let inside = beside(&machine.intra, local, machine.node_devices).max(1.0);
    // Where no switch joins the devices of a node, a ring enters and leaves it by few of its cards.
    let few = if local > 1 && !switched(&machine.intra) { UNSWITCHED } else { 1.0 };
    let outside = (machine.inter.bandwidth * machine.inter.reached * few).max(1.0);
    let (n, m, r) = (ranks as f64, nodes as f64, local as f64);
    let share = |k: f64| (k - 1.0) / k;
    let (near, far) = match what {
        Collective::AllReduce => {
            let ring = 2.0 * bytes * share(r) / inside;
            let switch = bytes / (inside * IN_SWITCH);
            let near = if machine.intra.in_switch && local >= IN_SWITCH_RANKS { ring.min(switch) } else { ring };
            (near, 2.0 * bytes * share(m) / r / outside)
        }
        Collective::AllGather | Collective::ReduceScatter => {
            (bytes * share(r) / inside, bytes * share(m) / r / outside)
        }
        Collective::Broadcast => (if r > 1.0 { bytes / inside } else { 0.0 }, bytes / r / outside),
        Collective::AllToAll => (bytes * (r - 1.0) / n / inside, bytes * (n - r) / n / outside),
        Collective::Send => {
            if nodes > 1 {
                (0.0, bytes / outside)
            } else {
                let copy = if switched(&machine.intra) { machine.intra.bandwidth * COPY_REACHED } else { inside };
                (bytes / copy.max(inside), 0.0)
            }
        }
    };
    let between = |relayed: bool| {
        let detour = if relayed { far * outside * share(r) / inside } else { 0.0 };
        (near + detour).max(far * machine.topology.slowdown(what, group, relayed))
    };
    let transfer = match nodes {
        1 => near,
        _ if machine.topology.relays(what, group) => between(false).min(between(true)),
        _ => between(false),
    };
    let fixed = START + hops(what, group, machine, trees);
    fixed + transfer + FILL * (fixed * transfer).sqrt()
}

/// Share of a node's cards that a collective over several of its devices keeps busy where no switch joins them; set by hand
/// on the ZeRO-3 rows of V100 nodes (BigScience), both halves seen.
const UNSWITCHED: f64 = 0.5;

fn switched(link: &Link) -> bool {
    let kind = link.kind.to_ascii_lowercase();
    !["pcie", "nvlink1", "nvlink2", "bridge"].iter().any(|word| kind.contains(word))
}

/// Seconds of the hops that a message takes one after another: all of a ring; or a chain inside a node and a tree between
/// nodes, where that is shorter and there is one.
fn hops(what: Collective, group: Group, machine: &Machine, trees: bool) -> f64 {
    let (nodes, local) = (group.nodes(), group.per_node.min(group.ranks));
    let (near, far) = (machine.intra.latency, machine.inter.latency);
    let (around, up) = machine.topology.hops(group);
    let inner = (local - 1) as f64 * near;
    let ring = nodes as f64 * inner + around * far;
    let tree = inner + up * far;
    let best = if trees { ring.min(tree) } else { ring };
    match what {
        Collective::AllReduce if machine.intra.in_switch && local >= IN_SWITCH_RANKS => {
            (2.0 * inner).min(IN_SWITCH_HOPS * near) + 2.0 * (best - inner)
        }
        Collective::AllReduce => 2.0 * best,
        Collective::AllGather | Collective::ReduceScatter => ring,
        Collective::Broadcast => best,
        // All pairs are open at once; a message waits for its own way.
        Collective::AllToAll | Collective::Send => {
            if nodes > 1 {
                far * machine.topology.reach(what, group)
            } else {
                near
            }
        }
    }
}
