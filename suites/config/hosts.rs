//! Where the processes of a launch are.

use zbench_engine::comm::Rendezvous;

/// Where the processes of a launch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// All on one host, where they see each other's memory.
    One,
    /// On several.
    Several,
}

impl Hosts {
    /// The hosts of processes that have met.
    pub fn of(met: &Rendezvous) -> Hosts {
        if met.one_host() { Hosts::One } else { Hosts::Several }
    }

    /// Whether shared memory moves the bytes between them where nothing else was asked for; else sockets do.
    pub fn share_memory(self) -> bool {
        self == Hosts::One
    }
}
