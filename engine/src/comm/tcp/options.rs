//! What can be chosen about connections and algorithms.

use std::net::IpAddr;
use std::time::Duration;

/// How all-reduce, reduce-scatter and all-gather go. The first gives the sums of `local`; the others have an order of their
/// own, and are taken by the direct one where they do not apply (averages; halving of a reduce-scatter; doubling of ranks
/// that are no power of two).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rank exchanges with every other.
    Direct,
    /// Every rank receives from its left and sends to its right neighbour.
    Ring,
    /// Recursive halving and doubling.
    Recursive,
}

impl Algorithm {
    /// The name in records and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::Recursive => "recursive",
        }
    }
}

/// How ranks are connected. All ranks give the same, but for `bind`.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Connections that carry the data of two ranks, 1 to 16.
    pub sockets_per_peer: usize,
    /// Asks for an algorithm; else the direct one.
    pub algorithm: Option<Algorithm>,
    /// How long nothing may move in a call before the world ends.
    pub stall: Duration,
    /// This host's address to use for data; else the one that faces rank 0.
    pub bind: Option<IpAddr>,
    /// Sum up every frame and check it: the price is one more pass over the data on both sides.
    pub checksum: bool,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            sockets_per_peer: 2,
            algorithm: None,
            stall: Duration::from_secs(300),
            bind: None,
            checksum: false,
        }
    }
}
