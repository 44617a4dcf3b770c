//! What can be chosen about connections.

use std::time::Duration;

/// How ranks are connected. All ranks give the same.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Connections that carry the data of two ranks, 1 to 16.
    pub sockets_per_peer: usize,
    /// How long nothing may move in a call before the world ends.
    pub stall: Duration,
    /// Sum up every frame and check it: the price is one more pass over the data on both sides.
    pub checksum: bool,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions { sockets_per_peer: 2, stall: Duration::from_secs(300), checksum: false }
    }
}
