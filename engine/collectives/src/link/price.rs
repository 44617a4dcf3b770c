//! What a transfer between nodes costs: bytes by node and direction, and how often the latency is paid in a row.

use crate::Kind;

/// The members of a group by the node they are on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    /// The nodes that have members, by their number in the world, ascending.
    pub nodes: Vec<usize>,
    pub members: Vec<u64>,
    /// Which of `nodes` each member is on.
    pub of: Vec<usize>,
}

/// What a transfer puts on the links of its nodes, in the order of [`Layout::nodes`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Price {
    /// Latencies on the critical path.
    pub hops: u64,
    pub egress: Vec<u64>,
    pub ingress: Vec<u64>,
}

impl Layout {
    /// The layout of a group with these ranks of the world.
    pub fn new(ranks: &[usize], ranks_per_node: usize) -> Layout {
        let mut nodes: Vec<usize> = ranks.iter().map(|rank| rank / ranks_per_node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let of: Vec<usize> =
            ranks.iter().map(|rank| nodes.partition_point(|node| *node < rank / ranks_per_node)).collect();
        let members = (0..nodes.len()).map(|node| of.iter().filter(|at| **at == node).count() as u64).collect();
        Layout { nodes, members, of }
    }

    /// The price of a collective about `bytes` (the whole buffer). Nothing where no byte leaves a node.
    ///
    /// A reduction or gather to all runs as a ring that enters and leaves every node once, as NCCL builds it: each link
    /// carries, each way, what each link of a ring carries. Broadcast and reduce are chains over the nodes, gather,
    /// scatter and all-to-all go straight from node to node.
    pub fn collective(&self, kind: Kind, bytes: u64) -> Option<Price> {
        let (nodes, n) = (self.nodes.len(), self.of.len() as u64);
        if nodes < 2 || (bytes == 0 && kind != Kind::Barrier) {
            return None;
        }
        let around = nodes as u64 - 1;
        let ring = |hops: u64, share: u64| Price { hops, egress: vec![share; nodes], ingress: vec![share; nodes] };
        Some(match kind {
            Kind::AllReduce { .. } => ring(2 * around, part(bytes, 2 * (n - 1), n)),
            Kind::AllGather | Kind::ReduceScatter { .. } => ring(around, part(bytes, n - 1, n)),
            Kind::AllToAll => {
                let share = |members: &u64| part(bytes, members * (n - members), n);
                let each: Vec<u64> = self.members.iter().map(share).collect();
                Price { hops: 1, egress: each.clone(), ingress: each }
            }
            Kind::Broadcast { root } => self.chain(around, bytes, Some(self.of[root]), None),
            Kind::Reduce { root, .. } => self.chain(around, bytes, None, Some(self.of[root])),
            Kind::Gather { root } => {
                let (inwards, outwards) = self.star(root, bytes);
                Price { hops: 1, egress: outwards, ingress: inwards }
            }
            Kind::Scatter { root } => {
                let (outwards, inwards) = self.star(root, bytes);
                Price { hops: 1, egress: outwards, ingress: inwards }
            }
            Kind::Barrier => ring(1, 0),
            Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } => return None,
        })
    }

    /// Everything passes every node once, but the first has nothing to take in and the last nothing to give on. The nodes
    /// stand in a circle; `first` or `last` says where it is opened.
    fn chain(&self, hops: u64, bytes: u64, first: Option<usize>, last: Option<usize>) -> Price {
        let nodes = self.nodes.len();
        let first = first.or(last.map(|last| (last + 1) % nodes)).unwrap_or(0);
        let last = (first + nodes - 1) % nodes;
        let all_but = |out: usize| (0..nodes).map(|node| if node == out { 0 } else { bytes }).collect();
        Price { hops, egress: all_but(last), ingress: all_but(first) }
    }

    /// What the root's node has on its link in one direction, and the other nodes in the other.
    fn star(&self, root: usize, bytes: u64) -> (Vec<u64>, Vec<u64>) {
        let (hub, n) = (self.of[root], self.of.len() as u64);
        let of_hub =
            (0..self.nodes.len()).map(|node| if node == hub { part(bytes, n - self.members[hub], n) } else { 0 });
        let of_others =
            (0..self.nodes.len()).map(|node| if node == hub { 0 } else { part(bytes, self.members[node], n) });
        (of_hub.collect(), of_others.collect())
    }

    /// A member's share of what its node's link carries: the fuller direction, divided among the node's members.
    pub fn share(&self, price: &Price, member: usize) -> u64 {
        let node = self.of[member];
        let bytes = price.egress[node].max(price.ingress[node]);
        let before = self.of[..member].iter().filter(|at| **at == node).count() as u64;
        bytes / self.members[node] + u64::from(before < bytes % self.members[node])
    }
}

/// `bytes * times / of`, rounded up: a link is never faster than stated.
fn part(bytes: u64, times: u64, of: u64) -> u64 {
    u64::try_from((u128::from(bytes) * u128::from(times)).div_ceil(u128::from(of))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_kernels::ReduceOp;

    fn price(layout: &Layout, kind: Kind, bytes: u64) -> (u64, Vec<u64>, Vec<u64>) {
        let Price { hops, egress, ingress } = layout.collective(kind, bytes).unwrap();
        (hops, egress, ingress)
    }

    #[test]
    fn bytes_and_hops_are_those_of_rings_chains_and_stars() {
        let op = ReduceOp::Sum;
        let two = Layout::new(&[0, 1, 2, 3], 2);
        assert_eq!(price(&two, Kind::AllReduce { op }, 1000), (2, vec![1500; 2], vec![1500; 2]));
        assert_eq!(price(&two, Kind::AllGather, 1000), (1, vec![750; 2], vec![750; 2]));
        assert_eq!(price(&two, Kind::ReduceScatter { op, accumulate: true }, 1000), (1, vec![750; 2], vec![750; 2]));
        // Each of 2 ranks gives a quarter of its 1000 bytes to each of the 2 ranks elsewhere.
        assert_eq!(price(&two, Kind::AllToAll, 1000), (1, vec![1000; 2], vec![1000; 2]));
        assert_eq!(price(&two, Kind::Broadcast { root: 3 }, 1000), (1, vec![0, 1000], vec![1000, 0]));
        assert_eq!(price(&two, Kind::Reduce { op, root: 3 }, 1000), (1, vec![1000, 0], vec![0, 1000]));
        assert_eq!(price(&two, Kind::Gather { root: 1 }, 1000), (1, vec![0, 500], vec![500, 0]));
        assert_eq!(price(&two, Kind::Scatter { root: 1 }, 1000), (1, vec![500, 0], vec![0, 500]));
        assert_eq!(price(&two, Kind::Barrier, 0), (1, vec![0; 2], vec![0; 2]));
        // Three nodes of two, one, one members: the chain is open at the root.
        let three = Layout::new(&[0, 1, 3, 4], 2);
        assert_eq!((three.nodes.clone(), three.members.clone()), (vec![0, 1, 2], vec![2, 1, 1]));
        assert_eq!(price(&three, Kind::AllReduce { op }, 1001).0, 4);
        assert_eq!(price(&three, Kind::AllReduce { op }, 1001).1, vec![1502; 3], "rounded up");
        assert_eq!(price(&three, Kind::Broadcast { root: 2 }, 9), (2, vec![0, 9, 9], vec![9, 0, 9]));
        assert_eq!(price(&three, Kind::Reduce { op, root: 2 }, 9), (2, vec![9, 0, 9], vec![9, 9, 0]));
        assert_eq!(price(&three, Kind::AllToAll, 400), (1, vec![400, 300, 300], vec![400, 300, 300]));
    }

    #[test]
    fn a_ring_costs_the_same_whatever_the_order_of_its_members() {
        let kind = Kind::AllReduce { op: ReduceOp::Sum };
        let straight = Layout::new(&[0, 1, 2, 3], 2).collective(kind, 1 << 20);
        assert_eq!(Layout::new(&[0, 2, 1, 3], 2).collective(kind, 1 << 20), straight);
    }

    #[test]
    fn inside_a_node_and_for_nothing_there_is_no_price() {
        let kind = Kind::AllReduce { op: ReduceOp::Sum };
        assert_eq!(Layout::new(&[2, 3], 2).collective(kind, 1000), None);
        assert_eq!(Layout::new(&[1, 2], 2).collective(kind, 0), None);
        assert_eq!(Layout::new(&[4], 1).collective(Kind::Barrier, 0), None);
    }

    #[test]
    fn shares_add_up_to_the_link() {
        let layout = Layout::new(&[0, 1, 2, 3, 4, 5], 3);
        let price = layout.collective(Kind::AllGather, 1001).unwrap();
        for node in 0..2 {
            let shares: u64 = (0..6).filter(|m| layout.of[*m] == node).map(|m| layout.share(&price, m)).sum();
            assert_eq!(shares, price.egress[node]);
        }
    }

    #[test]
    fn absurd_sizes_do_not_wrap() {
        let layout = Layout::new(&[0, 1], 1);
        let price = layout.collective(Kind::AllReduce { op: ReduceOp::Sum }, u64::MAX).unwrap();
        assert_eq!(price.egress, vec![u64::MAX; 2]);
    }
}
