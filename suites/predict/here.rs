//! What of a cell is on this machine.

use zbench_engine::config::{Backend, Cell};

/// The launch that this process is part of.
fn launch() -> Option<zbench_launch::World> {
    zbench_launch::detect(&|name| std::env::var(name).ok()).ok().flatten()
}

/// Whether a launcher has started several processes, of which this is one.
pub fn is_launched() -> bool {
    launch().is_some_and(|world| world.size > 1)
}

/// Ranks of a cell that share this machine's memory, as far as it is known before they have met.
pub fn ranks_here(cell: &Cell) -> usize {
    let launched = || launch().and_then(|world| world.local_size);
    match cell.parallel.backend {
        Backend::Local | Backend::Shm | Backend::Device => cell.parallel.ranks,
        Backend::Tcp | Backend::Nccl => launched().unwrap_or(cell.parallel.ranks).min(cell.parallel.ranks),
        // mpirun knows the hosts; what one rank takes this machine must have in any case.
        Backend::Mpi => 1,
    }
}
