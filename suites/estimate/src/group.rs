//! What ranks do together, and where those that do it lie.

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Sum, everywhere.
    AllReduce,
    /// Parts of each, everywhere.
    AllGather,
    /// Sum, a part each.
    ReduceScatter,
    /// One's, everywhere.
    Broadcast,
    /// A part of each to each.
    AllToAll,
    /// One's to another.
    Send,
}

impl Collective {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast => "broadcast",
            Collective::AllToAll => "all_to_all",
            Collective::Send => "send",
        }
    }

    /// Bus bandwidth over algorithm bandwidth (nccl-tests).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (n - 1.0) / n,
            Collective::Broadcast | Collective::Send => 1.0,
        }
    }

    /// Bytes that each rank sends of a payload.
    pub fn wire(self, bytes: f64, ranks: usize) -> f64 {
        if ranks < 2 { 0.0 } else { bytes * self.bus_factor(ranks) }
    }
}

/// Ranks that act together and how many of them share a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// All of them.
    pub ranks: usize,
    /// Those on one node.
    pub per_node: usize,
    /// Nodes from one that has ranks of the group to the next such one; 1 = neighbours.
    pub apart: usize,
}

impl Group {
    /// A rank alone.
    pub const ALONE: Group = Group::new(1, 1);

    /// `ranks` on neighbouring nodes, so many on each.
    pub const fn new(ranks: usize, per_node: usize) -> Group {
        Group { ranks, per_node, apart: 1 }
    }

    /// `ranks` that lie `stride` apart on nodes of `devices`.
    pub fn strided(ranks: usize, stride: usize, devices: usize) -> Group {
        let (ranks, stride, devices) = (ranks.max(1), stride.max(1), devices.max(1));
        Group { ranks, per_node: (devices / stride).clamp(1, ranks), apart: stride.div_ceil(devices) }
    }

    /// Nodes that it spans.
    pub fn nodes(&self) -> usize {
        self.ranks.div_ceil(self.per_node.max(1))
    }
}
