//! The time of a collective over ranks that span nodes: hops, the slower of both levels of links, and what filling the
//! pipeline between them costs. What joins the nodes may slow the outer level ([`crate::topology`]).

pub use crate::group::{Collective, Group};
use crate::machine::{Link, Machine};

#[cfg(test)]
mod tests;

/// Seconds that a collective's kernel takes to start on all ranks, beside its hops (nccl-tests of 8 devices, 32 KiB:
/// 40 us, of which hops are the greater part).
const START: f64 = 8e-6;

/// Seconds that a call takes longer where it starts when the one before has ended, as nccl-tests measures with `-z` and PyTorch's
/// benchmarks with a barrier: the host's start of its kernel and what ranks are apart. 4 MB over 8 H200 take 49 us back to back,
/// 4 MiB 68 us one at a time (ml-engineering, network).
pub const BLOCKING: f64 = 20e-6;

/// Filling the pipeline of chunks, against the geometric mean of a node's hops and transfer: an optimal chunk size gives 2 with
/// all hops one by one. This and the next two were set by hand on sweeps over 8 A100, 8 H200 and 8 B200.
const FILL: f64 = 1.0;

/// What filling takes less, in hops of a node: a short message is one chunk, whose transfer adds to its hops and no more.
const ONE_CHUNK: f64 = 0.18;

/// What filling takes at most, in hops of a node: chunks have a largest size.
const LARGEST_CHUNK: f64 = 2.5;

/// Share of the cards' rate that a tree between nodes reaches: 0.92 by NCCL's own model, and 0.85 of it for one pattern of trees,
/// which is taken here for all (src/graph/tuning.cc at 5067397c).
const TREE: f64 = 0.782;

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

/// Seconds of a collective of `bytes` (all ranks' together, as nccl-tests counts) over a group, by the quickest of a ring, and for
/// an all-reduce a tree and sums in the switch.
pub fn seconds(what: Collective, bytes: f64, group: Group, machine: &Machine) -> f64 {
    let by = |way| by(way, what, bytes, group, machine);
    let ring = by(Way::Ring);
    if what != Collective::AllReduce {
        return ring;
    }
    let tree = if group.nodes() > 1 { by(Way::Tree) } else { ring };
    let adds = machine.intra.in_switch > 0.0 && group.per_node.min(group.ranks) >= IN_SWITCH_RANKS;
    ring.min(tree).min(if adds { by(Way::Switch) } else { ring })
}

/// The same by a ring.
pub fn ring_seconds(what: Collective, bytes: f64, group: Group, machine: &Machine) -> f64 {
    by(Way::Ring, what, bytes, group, machine)
}

/// How a collective is carried out.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A ring through all devices.
    Ring,
    /// A chain inside each node, and a tree between nodes.
    Tree,
    /// The switch of each node adds (NVLS), and a tree between nodes.
    Switch,
}

fn by(way: Way, what: Collective, bytes: f64, group: Group, machine: &Machine) -> f64 {
    let ranks = group.ranks;
    if ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let nodes = group.nodes();
    let local = group.per_node.min(ranks);
    let inside = beside(&machine.intra, local, machine.node_devices).max(1.0);
    // Where no switch joins the devices of a node, a ring enters and leaves it by few of its cards.
    let few = if local > 1 && !switched(&machine.intra) { UNSWITCHED } else { 1.0 };
    let tree = if way == Way::Ring { 1.0 } else { TREE };
    let outside = (machine.inter.bandwidth * machine.inter.reached * few * tree).max(1.0);
    let (n, m, r) = (ranks as f64, nodes as f64, local as f64);
    let share = |k: f64| (k - 1.0) / k;
    let (near, far) = match what {
        Collective::AllReduce => {
            let near = match way {
                Way::Switch => bytes / (machine.intra.bandwidth * machine.intra.in_switch).max(1.0),
                Way::Ring | Way::Tree => 2.0 * bytes * share(r) / inside,
            };
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
    let (inside, between) = hops(way, what, group, machine);
    let start = START + inside;
    let fill = FILL * (start * transfer).sqrt() - ONE_CHUNK * start;
    start + between + transfer + fill.clamp(0.0, LARGEST_CHUNK * start)
}

/// Share of a node's cards that a collective over several of its devices keeps busy where no switch joins them; set by hand
/// on the ZeRO-3 rows of V100 nodes (BigScience), both halves seen.
const UNSWITCHED: f64 = 0.5;

fn switched(link: &Link) -> bool {
    let kind = link.kind.to_ascii_lowercase();
    !["pcie", "nvlink1", "nvlink2", "bridge"].iter().any(|word| kind.contains(word))
}

/// Seconds of the hops that a message takes one after another inside a node, and those that more nodes add: a ring goes through
/// all nodes, a tree through one, up and down.
fn hops(way: Way, what: Collective, group: Group, machine: &Machine) -> (f64, f64) {
    let (nodes, local) = (group.nodes(), group.per_node.min(group.ranks));
    let (near, far) = (machine.intra.latency, machine.inter.latency);
    let (around, up) = machine.topology.hops(group);
    let inner = (local - 1) as f64 * near;
    let between = match way {
        Way::Ring => (nodes - 1) as f64 * inner + around * far,
        Way::Tree | Way::Switch => up * far,
    };
    match what {
        Collective::AllReduce if way == Way::Switch => ((2.0 * inner).min(IN_SWITCH_HOPS * near), 2.0 * between),
        Collective::AllReduce => (2.0 * inner, 2.0 * between),
        Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast => (inner, between),
        // All pairs are open at once; a message waits for its own way.
        Collective::AllToAll | Collective::Send if nodes > 1 => (0.0, far * machine.topology.reach(what, group)),
        Collective::AllToAll | Collective::Send => (near, 0.0),
    }
}
