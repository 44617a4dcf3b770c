//! Worlds of processes on one host. Each rank's arena is shared memory that all others map, so nothing is copied to be sent.

use super::board::{Board, Control, control_bytes};
use super::local::spin_policy;
use super::shared::Shared;
use super::space::{Processes, Space};
use crate::{CommError, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zbench_kernels::{Arena, Kernels, Region};

/// Gives a blob of bytes to all ranks and gets theirs, in rank order.
pub type Exchange<'a> = dyn FnMut(&[u8]) -> std::result::Result<Vec<Vec<u8>>, String> + 'a;

/// What a rank tells the others of its memory.
struct Card {
    pid: u32,
    /// Descriptor and bytes of its arena, its stand-ins and, from rank 0, the world's control memory.
    maps: Vec<(i32, u64)>,
}

impl Card {
    fn write(&self) -> String {
        let maps: Vec<String> = self.maps.iter().map(|(fd, bytes)| format!("{fd}:{bytes}")).collect();
        format!("{} {} {}", env!("CARGO_PKG_VERSION"), self.pid, maps.join(" "))
    }

    fn read(text: &str) -> Option<Card> {
        let mut words = text.split(' ');
        if words.next()? != env!("CARGO_PKG_VERSION") {
            return None;
        }
        let pid = words.next()?.parse().ok()?;
        let map =
            |word: &str| word.split_once(':').and_then(|(fd, bytes)| Some((fd.parse().ok()?, bytes.parse().ok()?)));
        Some(Card { pid, maps: words.map(map).collect::<Option<_>>()? })
    }
}

fn invalid(reason: impl std::fmt::Display) -> CommError {
    crate::invalid("shm", reason)
}

/// This process's rank of a world of processes on one host. A collective call of all of them; `exchange` carries their
/// first words. Buffers in `arena`, which must be [`Arena::shared`], are used where they lie; others are copied in and out.
///
/// # Errors
/// On every rank, when one of them cannot reach another's memory: they must see each other's `/proc/PID/fd` (one PID
/// namespace, one user). `tcp` needs nothing of that.
pub fn shm(
    rank: usize,
    size: usize,
    exchange: &mut Exchange<'_>,
    kernels: Arc<dyn Kernels>,
    arena: &Arena,
    stall: Duration,
) -> Result<Shared> {
    let memory = |error: zbench_kernels::ArenaError| invalid(error.to_string());
    // Stand-ins of buffers hold no more than the rank's own arena, which reserves twice what it holds.
    let stand_ins = Arena::shared_for(None, arena.region().bytes() / 2).map_err(memory)?;
    let mut own = vec![arena.region(), stand_ins.region()];
    if rank == 0 {
        let control = Arc::new(Region::shared(control_bytes()).map_err(memory)?);
        Board::make(&Control::new(control.clone(), size)?, "world", &(0..size).collect::<Vec<_>>())?;
        own.push(control);
    }
    let unshared = || invalid("the rank's arena is not shared memory; make it with Arena::shared");
    let map = |region: &Arc<Region>| Some((region.fd()?.as_raw_fd(), region.bytes()));
    let maps = own.iter().map(map).collect::<Option<Vec<_>>>().ok_or_else(unshared)?;
    let card = Card { pid: std::process::id(), maps }.write();
    let cards = exchange(card.as_bytes()).map_err(invalid)?;
    let joined = join(rank, &cards, &own);
    // Nobody goes on, or gives its descriptors up, before all have mapped.
    let said = joined.as_ref().map_or_else(|error| error.to_string(), |_| String::new());
    let all = exchange(said.as_bytes()).map_err(invalid)?;
    let (regions, lives, control) = joined?;
    if let Some(other) = all.iter().position(|said| !said.is_empty()) {
        return Err(invalid(format!("rank {other}: {}", String::from_utf8_lossy(&all[other]))));
    }
    let control = Control::new(control, size)?;
    let space = Arc::new(Space::Processes(Processes { own: rank, regions, stand_ins, lives }));
    Shared::new(Board::first(&control)?, rank, space, kernels, spin_policy(size), stall)
}

type Joined = (Vec<Vec<Arc<Region>>>, Vec<(OwnedFd, String)>, Arc<Region>);

fn join(rank: usize, cards: &[Vec<u8>], own: &[Arc<Region>]) -> Result<Joined> {
    let (mut regions, mut lives) = (Vec::new(), Vec::new());
    for (other, text) in cards.iter().enumerate() {
        let unreadable = || invalid(format!("rank {other} runs another version of zbench, or does not speak clearly"));
        let card = Card::read(&String::from_utf8_lossy(text)).ok_or_else(unreadable)?;
        let pid = Pid::from_raw(card.pid as i32).ok_or_else(unreadable)?;
        let life = pidfd_open(pid, PidfdFlags::empty());
        let life =
            life.map_err(|error| invalid(format!("process {} of rank {other} cannot be watched: {error}", card.pid)))?;
        lives.push((life, format!("process {}", card.pid)));
        if other == rank {
            regions.push(own.to_vec());
            continue;
        }
        let mapped: Result<Vec<_>> = card.maps.iter().map(|(fd, bytes)| open(other, card.pid, *fd, *bytes)).collect();
        regions.push(mapped?);
    }
    let control = regions.first().and_then(|of_rank_0| of_rank_0.get(2)).cloned();
    let control = control.ok_or_else(|| invalid("rank 0 did not tell of the memory in which to meet"))?;
    Ok((regions, lives, control))
}

fn open(rank: usize, pid: u32, fd: i32, bytes: u64) -> Result<Arc<Region>> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let unreachable = |error: String| {
        invalid(format!("the memory of rank {rank} ({path}) cannot be mapped: {error}; use --backend tcp"))
    };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(|error| unreachable(error.to_string()))?;
    let region = Region::open(file.into(), bytes).map_err(|error| unreachable(error.to_string()))?;
    Ok(Arc::new(region))
}
