//! What one rank of a world has: communicators, kernels, memory, and what it knows of where it runs.

use super::memory::Memory;
use super::place::Place;
use zbench_collectives::Communicator;
use zbench_kernels::{Arena, Kernels};

/// One rank's part in the test.
pub struct Member<'a> {
    /// All ranks.
    pub world: &'a dyn Communicator,
    /// The same ranks, for what they tell each other beside the collectives that are measured: exact whatever those are.
    pub control: &'a dyn Communicator,
    /// What writes its buffers, and is waited for where it works by itself.
    pub kernels: &'a dyn Kernels,
    /// Where its buffers lie.
    pub arena: &'a Arena,
    /// Memory of its host, for what ranks tell each other and for data on its way to a device.
    pub host_arena: &'a Arena,
    /// What it is told of where it runs.
    pub place: &'a Place,
    /// How the world came about, in words.
    pub formed: &'a str,
    /// Threads of its kernels.
    pub threads: usize,
    /// Ranks of its process.
    pub local_ranks: usize,
}

impl<'a> Member<'a> {
    /// Access to its buffers.
    pub fn memory(&self) -> Memory<'a> {
        Memory::new(self.kernels, self.host_arena)
    }
}
