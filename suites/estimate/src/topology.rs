//! What joins the nodes of a cluster, and how many times longer than at the cards' own rate a collective takes there:
//! uplinks that are oversubscribed, flows that hash to one uplink, links of a torus. docs/machines.md derives the formulas.

use crate::group::{Collective, Group};

#[cfg(test)]
mod tests;

/// What joins nodes. Ranks lie on neighbouring nodes in their order, and all devices of the cluster do the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Topology {
    /// Switches: pods of nodes, joined by uplinks (flat, fat tree, rails).
    Pods(Pods),
    /// Links between neighbours, without switches: nodes along each dimension; the last one is longer where a job has more.
    Torus(Vec<usize>),
}

/// Groups of nodes that reach each other at the full rate of their cards.
#[derive(Clone, Debug, PartialEq)]
pub struct Pods {
    /// Nodes of a pod: those below one leaf switch, or below several with as many uplinks as downlinks.
    pub nodes: usize,
    /// Each card of a node has a leaf switch of its own, which joins it to the same card of the pod's other nodes.
    pub rails: bool,
    /// Rate of a pod's downlinks over that of its uplinks; 1 = non-blocking.
    pub oversubscription: f64,
    /// How flows are dealt to uplinks.
    pub routing: Routing,
}

/// How the flows of a pod are dealt to its uplinks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// In whatever way: flows keep this share of their rate; 1 = evenly.
    Share(f64),
    /// By a hash (ECMP): so many equal-cost paths, and so many flows of each card.
    Hash {
        /// Equal-cost paths, each with the rate of a card.
        paths: usize,
        /// Flows (queue pairs) that a card's traffic consists of.
        flows: usize,
    },
}

/// A reason why traffic between nodes takes longer than at the cards' rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// `oversubscription`, `ecmp` or `torus`.
    pub name: &'static str,
    /// How many times longer, from 1.
    pub times: f64,
}

impl Default for Topology {
    /// One switch without congestion.
    fn default() -> Topology {
        Topology::Pods(Pods { nodes: 1, rails: false, oversubscription: 1.0, routing: Routing::Share(1.0) })
    }
}

impl Topology {
    /// Why a collective takes longer between nodes; empty where its group has one node. `relayed` says that an all-to-all
    /// changes rails inside nodes (see [`Topology::relays`]).
    pub fn factors(&self, what: Collective, group: Group, relayed: bool) -> Vec<Factor> {
        if group.nodes() < 2 {
            return Vec::new();
        }
        match self {
            Topology::Pods(pods) => {
                let share = pods.crossing(what, group, relayed);
                let (busy, collisions) = pods.congestion(share);
                vec![Factor { name: "oversubscription", times: busy }, Factor { name: "ecmp", times: collisions }]
            }
            Topology::Torus(sizes) => vec![Factor { name: "torus", times: torus(sizes, what, group) }],
        }
    }

    /// The product of these factors.
    pub fn slowdown(&self, what: Collective, group: Group, relayed: bool) -> f64 {
        match self {
            _ if group.nodes() < 2 => 1.0,
            Topology::Pods(pods) => {
                let (busy, collisions) = pods.congestion(pods.crossing(what, group, relayed));
                busy * collisions
            }
            Topology::Torus(sizes) => torus(sizes, what, group),
        }
    }

    /// Whether a collective can change rails inside nodes: a message goes to the local device whose card is on the receiver's
    /// rail, and from there over that card (NCCL's PXN).
    pub fn relays(&self, what: Collective, group: Group) -> bool {
        matches!(self, Topology::Pods(pods) if pods.rails) && what == Collective::AllToAll && group.per_node > 1
    }

    /// Hops between nodes that a message takes one after another around all nodes of a group, and by a tree.
    pub(crate) fn hops(&self, group: Group) -> (f64, f64) {
        let nodes = group.nodes();
        match self {
            Topology::Pods(_) => (nodes.saturating_sub(1) as f64, (nodes as f64).log2().ceil()),
            Topology::Torus(sizes) => {
                // A ring in each dimension, one dimension after another.
                let hops = along(sizes, group).map(|line| line.apart * (line.nodes - 1.0)).sum();
                (hops, hops)
            }
        }
    }

    /// Hops of a message to the farthest node of a group, or to the next one.
    pub(crate) fn reach(&self, what: Collective, group: Group) -> f64 {
        match self {
            Topology::Pods(_) => 1.0,
            Topology::Torus(sizes) if what == Collective::Send => {
                along(sizes, group).next().map_or(1.0, |line| line.apart)
            }
            Topology::Torus(sizes) => along(sizes, group).map(|line| line.farthest()).sum(),
        }
    }
}

impl Pods {
    /// Share of a card's traffic to other nodes that takes an uplink, on average over the pod.
    fn crossing(&self, what: Collective, group: Group, relayed: bool) -> f64 {
        let all = group.nodes();
        let inside = (self.nodes / group.apart.max(1)).clamp(1, all);
        let (m, k) = (all as f64, inside as f64);
        match what {
            Collective::AllToAll => {
                let same_pod = (k - 1.0) / (m - 1.0);
                // A leaf switch of rails joins the same card of each node; the others are behind uplinks.
                let same_leaf = if self.rails && !relayed { same_pod / group.per_node.max(1) as f64 } else { same_pod };
                1.0 - same_leaf
            }
            // A ring leaves a pod once for the k nodes that it has there.
            _ if inside < all => 1.0 / k,
            _ => 0.0,
        }
    }

    /// How many times longer traffic takes of which this share crosses uplinks: because these are too few, and because flows
    /// share an uplink while another is free.
    fn congestion(&self, share: f64) -> (f64, f64) {
        if share <= 0.0 {
            return (1.0, 1.0);
        }
        let load = self.oversubscription * share;
        let busy = load.max(1.0);
        match self.routing {
            Routing::Share(kept) => (busy, 1.0 / kept),
            Routing::Hash { paths, flows } => {
                let flows = flows.max(1) as f64;
                let fullest = fullest(load * flows, paths.max(1) as f64) / flows;
                (busy, (fullest / busy).max(1.0))
            }
        }
    }
}

/// Flows on the fullest of `paths` when each has a mean of `mean` and a hash deals them: the expectation of the largest of
/// independent Poisson numbers, which is the sum over j of 1 - P(X <= j)^paths (Mitzenmacher and Upfal, Probability and
/// Computing, chapter 5: balls into bins by the Poisson approximation).
fn fullest(mean: f64, paths: f64) -> f64 {
    // Twelve standard deviations below the mean no path is: these terms are 1.
    let first = (mean - 12.0 * mean.sqrt() - 20.0).max(0.0).floor();
    let mut log = first * mean.ln() - mean - log_factorial(first);
    let last = mean + 40.0 * mean.sqrt() + 200.0;
    let (mut j, mut below, mut sum) = (first, 0.0, first);
    while j < last {
        below += log.exp();
        let more = -(paths * f64::min(below, 1.0).ln()).exp_m1();
        sum += more;
        if j > mean && more < 1e-12 {
            break;
        }
        j += 1.0;
        log += mean.ln() - j.ln();
    }
    sum
}

/// Stirling's series; exact for 0.
fn log_factorial(n: f64) -> f64 {
    if n < 1.0 { 0.0 } else { n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + 1.0 / (12.0 * n) }
}

/// Nodes that a group has along one dimension.
struct Line {
    nodes: f64,
    /// From one to the next; as many groups share each link.
    apart: f64,
    /// The first is the last one's neighbour.
    closed: bool,
}

impl Line {
    /// Links of a node that the group can use in this dimension, as whole links.
    fn links(&self) -> f64 {
        (if self.closed { 2.0 } else { 1.0 }) / self.apart
    }

    /// Traffic on the fullest link where each node sends the same to each, over what a node sends: half the nodes send to the
    /// other half over the middle, in a closed line over two places.
    fn fullest(&self) -> f64 {
        (self.nodes * self.nodes / 4.0).floor() / self.nodes / self.links()
    }

    fn farthest(&self) -> f64 {
        self.apart * if self.closed { (self.nodes / 2.0).floor() } else { self.nodes - 1.0 }
    }
}

/// How a group lies in a torus whose nodes are numbered along the first dimension, then the second, and so on.
fn along(sizes: &[usize], group: Group) -> impl Iterator<Item = Line> + '_ {
    let (mut left, mut apart) = (group.nodes(), group.apart.max(1));
    sizes.iter().enumerate().filter_map(move |(at, size)| {
        let is_last = at + 1 == sizes.len();
        if apart >= *size && !is_last {
            apart = apart.div_ceil((*size).max(1));
            return None;
        }
        let nodes = if is_last { left } else { left.min((size / apart).max(1)) };
        let closed = nodes > 2 && nodes.saturating_mul(apart) == *size;
        let line = Line { nodes: nodes as f64, apart: apart as f64, closed };
        left = left.div_ceil(nodes.max(1));
        apart = 1;
        (nodes > 1).then_some(line)
    })
}

/// How many times longer a collective takes on a torus than where every node had the rate of all its links to everywhere.
fn torus(sizes: &[usize], what: Collective, group: Group) -> f64 {
    let links = 2.0 * sizes.len() as f64;
    let nodes = group.nodes() as f64;
    match what {
        Collective::AllToAll => {
            let fullest = along(sizes, group).map(|line| line.fullest()).fold(0.0, f64::max);
            (links * fullest * nodes / (nodes - 1.0)).max(1.0)
        }
        // One neighbour is behind one link.
        Collective::Send => links * along(sizes, group).next().map_or(1.0, |line| line.apart),
        // Each dimension's rings carry the part of the data that begins with it.
        _ => links / along(sizes, group).map(|line| line.links()).sum::<f64>(),
    }
}
