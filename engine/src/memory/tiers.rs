//! The memory of a rank by tier. The device's arena is always there; the host and the disk have one only where something
//! lives there. Each arena has a ledger of its own.

use crate::config::MemoryTier;
use crate::memory::host_link::HostLink;
use crate::memory::moves::Moves;
use std::ops::Index;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zbench_kernels::disk::{DiskError, File, Options, Traffic};
use zbench_kernels::{Arena, ArenaError, Category, CopyStreams, KernelError, Kernels, Ledger, MemoryDelta};

/// One value for each tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByTier<T>([T; MemoryTier::ALL.len()]);

impl<T> ByTier<T> {
    pub fn of(value: impl FnMut(MemoryTier) -> T) -> ByTier<T> {
        ByTier(MemoryTier::ALL.map(value))
    }
}

impl<T> Index<MemoryTier> for ByTier<T> {
    type Output = T;

    fn index(&self, tier: MemoryTier) -> &T {
        &self.0[tier as usize]
    }
}

/// Why a rank has not the memory that it needs.
#[derive(Debug, thiserror::Error)]
pub enum MemoryTiersError {
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Device(#[from] KernelError),
}

/// The arenas of a rank, and what was moved between them. Clones share them.
#[derive(Clone)]
pub struct MemoryTiers {
    device: Arena,
    host: Option<Arena>,
    disk: Option<Arena>,
    /// What the disk's arena gives places in; none in a dry run.
    file: Option<Arc<File>>,
    /// What carries copies between the device and the host's arena; none where they are one memory.
    streams: Option<Arc<CopyStreams>>,
    /// What copies between the two pay, where that is emulated.
    link: Option<Arc<HostLink>>,
    moves: Moves,
    /// What the file has transferred outside of steps.
    aside: Arc<Mutex<Traffic>>,
}

/// Whether a rank has an arena of this tier beside the device's. What lives on a disk passes through the host's memory.
fn is_used(tier: MemoryTier, used: &[MemoryTier]) -> bool {
    used.contains(&tier) || tier == MemoryTier::Host && used.contains(&MemoryTier::Disk)
}

impl MemoryTiers {
    /// The device's arena, and one for each other tier that is used, with room for what is `planned`. What lives on a disk is a file
    /// in `folder`.
    ///
    /// # Errors
    /// The process has no address space left, the host no such memory that can be pinned for a device, or the disk no such room.
    pub fn new(
        kernels: &dyn Kernels,
        device: Arena,
        used: &[MemoryTier],
        folder: &Path,
        planned: &ByTier<Ledger>,
    ) -> Result<MemoryTiers, MemoryTiersError> {
        let host_bytes = pinned_room(&planned[MemoryTier::Host]);
        let host = is_used(MemoryTier::Host, used).then(|| kernels.host_arena(host_bytes)).transpose()?;
        let streams = if host.is_some() { kernels.copy_streams()?.map(Arc::new) } else { None };
        let disk = is_used(MemoryTier::Disk, used).then(|| Arena::file(None));
        let file = disk.as_ref().map(|_| File::create(folder, &Options::default())).transpose()?;
        file.as_ref().map_or(Ok(()), |file| file.reserve(planned[MemoryTier::Disk].total_peak()))?;
        let file = file.map(Arc::new);
        Ok(MemoryTiers {
            device,
            host,
            disk,
            file,
            streams,
            link: None,
            moves: Moves::default(),
            aside: Arc::default(),
        })
    }

    /// The same with an emulated link between the device and the host's memory, which are one.
    pub fn with_link(self, link: Option<HostLink>) -> MemoryTiers {
        MemoryTiers { link: link.map(Arc::new), ..self }
    }

    /// The emulated link between the device and the host's memory.
    pub fn link(&self) -> Option<&HostLink> {
        self.link.as_deref()
    }

    /// Arenas without memory for the device and for each of these tiers.
    ///
    /// # Errors
    /// As of [`Arena::dry`].
    pub fn dry(used: &[MemoryTier]) -> Result<MemoryTiers, ArenaError> {
        let arena = |tier| is_used(tier, used).then(Arena::dry).transpose();
        let (host, disk) = (arena(MemoryTier::Host)?, arena(MemoryTier::Disk)?);
        let (moves, aside) = (Moves::default(), Arc::default());
        Ok(MemoryTiers { device: Arena::dry()?, host, disk, file: None, streams: None, link: None, moves, aside })
    }

    /// What carries copies between the device and the host's memory; none where they are one memory.
    pub fn streams(&self) -> Option<&CopyStreams> {
        self.streams.as_deref()
    }

    /// The file of what lives on a disk; none in a dry run.
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// What the file has transferred in steps.
    pub fn traffic(&self) -> Option<Traffic> {
        let (now, aside) = (self.file()?.traffic(), *self.aside());
        Some(less(now, aside))
    }

    /// Work outside of a step: its moves and transfers are not counted.
    pub fn uncounted<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.file().map(File::traffic).unwrap_or_default();
        let result = self.moves.uncounted(work);
        if let Some(file) = self.file() {
            let (more, mut aside) = (less(file.traffic(), before), self.aside());
            aside.read_bytes += more.read_bytes;
            aside.written_bytes += more.written_bytes;
            aside.busy += more.busy;
        }
        result
    }

    fn aside(&self) -> MutexGuard<'_, Traffic> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was moved between tiers.
    pub fn moves(&self) -> &Moves {
        &self.moves
    }

    pub fn device(&self) -> &Arena {
        &self.device
    }

    /// The arena of a tier; `None` where nothing lives there.
    pub fn arena(&self, tier: MemoryTier) -> Option<&Arena> {
        match tier {
            MemoryTier::Device => Some(&self.device),
            MemoryTier::Host => self.host.as_ref(),
            MemoryTier::Disk => self.disk.as_ref(),
        }
    }

    /// What is and was in use. The ledger of a tier without an arena is empty.
    pub fn ledgers(&self) -> ByTier<Ledger> {
        ByTier::of(|tier| self.arena(tier).map(Arena::ledger).unwrap_or_default())
    }

    /// What `work` does to the ledger of each tier, whatever was in use before.
    pub fn record_change<R>(&self, work: impl FnOnce() -> R) -> (R, ByTier<MemoryDelta>) {
        let (((result, disk), host), device) =
            self.device.record_change(|| recorded(self.host.as_ref(), || recorded(self.disk.as_ref(), work)));
        (result, ByTier([device, host, disk]))
    }

    /// Counts a change so many times again that was recorded, without allocating anything.
    pub fn replay_change(&self, change: &ByTier<MemoryDelta>, times: usize) {
        for tier in MemoryTier::ALL {
            if let Some(arena) = self.arena(tier) {
                arena.replay_change(&change[tier].repeated(times));
            }
        }
    }
}

/// Bytes of a host arena that is pinned for a device, and cannot grow: what is planned, and as much again as comes and goes, as that may
/// lie in pieces.
pub fn pinned_room(planned: &Ledger) -> u64 {
    let passing = [Category::Communication, Category::Activations, Category::Workspace];
    passing.into_iter().fold(planned.total_peak(), |sum, category| sum.saturating_add(planned.peak(category)))
}

fn less(now: Traffic, before: Traffic) -> Traffic {
    Traffic {
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(before.written_bytes),
        busy: now.busy.saturating_sub(before.busy),
    }
}

/// As [`Arena::record_change`]; nothing changes where there is no arena.
fn recorded<R>(arena: Option<&Arena>, work: impl FnOnce() -> R) -> (R, MemoryDelta) {
    match arena {
        Some(arena) => arena.record_change(work),
        None => (work(), MemoryDelta::default()),
    }
}
