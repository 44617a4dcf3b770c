//! What can be chosen about connections.

use std::net::IpAddr;
use std::time::Duration;

/// How ranks are connected. All ranks give the same, but for `bind`.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Connections that carry the data of two ranks, 1 to 16.
    pub sockets_per_peer: usize,
    /// How long nothing may move in a call before the world ends.
    pub stall: Duration,
    /// This host's address to use for data; else the one that faces rank 0.
    pub bind: Option<IpAddr>,
    /// Sum up every frame and check it: the price is one more pass over the data on both sides.
    pub checksum: bool,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions { sockets_per_peer: 2, stall: Duration::from_secs(300), bind: None, checksum: false }
    }
}
