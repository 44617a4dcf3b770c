//! Ranks on threads, and the numbers they exchange.

use crate::comm::tree::{Mood, Sample, Tree};
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::GroupName;
use zbench_collectives::shm;
use zbench_collectives::{Communicator, Metered, Shared, group};
use zbench_kernels::{Arena, Kernels, View, ViewMut};

/// The group sizes of the suite.
pub const SIZES: [usize; 6] = [1, 2, 3, 4, 6, 8];
/// Long enough for a loaded machine: only tests of stalls wait for their own, shorter one.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The communicators under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backend {
    Local,
    MeteredLocal,
    /// As processes have it, every rank with mappings of its own; only the process is one.
    Shm,
}

pub const BACKENDS: [Backend; 3] = [Backend::Local, Backend::MeteredLocal, Backend::Shm];

/// A rank of `backend`, on the thread that will use it; `local` carries the first words of the processes.
pub fn rank_of(backend: Backend, local: Shared, kernels: Arc<dyn Kernels>, stall: Duration) -> Box<dyn Communicator> {
    match backend {
        Backend::Local => Box::new(local),
        Backend::MeteredLocal => Box::new(Metered::new(GroupName::Data, Box::new(local))),
        Backend::Shm => {
            let arena = Arena::shared(None).unwrap();
            let mut exchange = |own: &[u8]| Ok(exchanged(&local, own));
            Box::new(shm(local.rank(), local.size(), &mut exchange, kernels, &arena, stall).unwrap())
        }
    }
}

/// All ranks' bytes.
pub fn exchanged(comm: &dyn Communicator, own: &[u8]) -> Vec<Vec<u8>> {
    const ROOM: usize = 1000;
    let mut send = [0i8; ROOM + 1];
    send[0] = 1;
    own.iter().zip(&mut send[1..]).for_each(|(from, to)| *to = *from as i8);
    assert!(own.len() < ROOM && !own.contains(&0));
    let mut all = vec![0i8; comm.size() * send.len()];
    comm.all_gather(View::of(&send), ViewMut::of(&mut all)).unwrap();
    let text = |one: &[i8]| one[1..].iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    all.chunks(send.len()).map(text).collect()
}

/// Runs `rank` on one thread per rank; what each gave, panics as errors.
pub fn attempt<T: Send>(
    backend: Backend,
    moods: &[Mood],
    stall: Duration,
    rank: impl Fn(Box<dyn Communicator>) -> T + Sync,
) -> Vec<std::thread::Result<T>> {
    let kernels: Vec<_> = moods.iter().map(|mood| Arc::new(Tree(*mood)) as Arc<dyn Kernels>).collect();
    std::thread::scope(|scope| {
        let ranks = group("world", kernels.clone(), stall).unwrap().into_iter().zip(kernels);
        let rank = &rank;
        let threads: Vec<_> =
            ranks.map(|(local, kernels)| scope.spawn(move || rank(rank_of(backend, local, kernels, stall)))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    })
}

/// As `attempt` for ranks that are well.
pub fn run<T: Send>(backend: Backend, size: usize, rank: impl Fn(&dyn Communicator) -> T + Sync) -> Vec<T> {
    let results = attempt(backend, &vec![Mood::Well; size], PATIENCE, |comm| rank(&*comm));
    results.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// Values of very different size and both signs, so that another order of sums gives other bits; small whole numbers
/// for u32.
pub fn values<T: Sample>(seed: usize, len: usize) -> Vec<T> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut value = || {
        let bits = next();
        let fraction = (bits >> 11) as f64 / (1u64 << 53) as f64 + 0.5;
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        let exponent = (bits >> 1) % 12;
        sign * fraction * (1 << exponent) as f64
    };
    (0..len)
        .map(|_| T::of(if T::DTYPE == zbench_kernels::DType::U32 { value().abs().floor() } else { value() }))
        .collect()
}
