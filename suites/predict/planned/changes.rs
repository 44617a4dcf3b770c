//! What would make a cell fit that does not.

use super::{estimate, gib};
use crate::forecast::{self, Footprint};
use zbench_config::{Resolved, software};
use zbench_engine::config::{Cell, Checkpointing, DeviceKind, MemoryTier, Strategy};
use zbench_engine::planner::Planner;
use zbench_kernels::DType;

/// One thing that can be changed, and how it is written.
struct Change {
    text: &'static str,
    apply: fn(&mut Cell) -> bool,
}

const FULL_SHARD: &str = "parallel.strategy = \"fsdp\"";

/// What takes less of the host's memory.
const FOR_HOST: &[Change] = &[
    Change {
        text: "memory.offload_parameters = \"none\"",
        apply: |cell| keep_here(&mut cell.memory.offload_parameters),
    },
    Change {
        text: "memory.offload_activations = \"none\"",
        apply: |cell| keep_here(&mut cell.memory.offload_activations),
    },
    Change { text: "memory.offload_optimizer = \"none\"", apply: |cell| keep_here(&mut cell.memory.offload_optimizer) },
    Change { text: FULL_SHARD, apply: full_shard },
];

fn keep_here(home: &mut MemoryTier) -> bool {
    std::mem::replace(home, MemoryTier::Device) == MemoryTier::Host
}

/// From what costs least (time, then numerics, then machines). Each says false where it changes nothing.
const CHANGES: &[Change] = &[
    Change {
        text: "memory.checkpointing = \"selective\"",
        apply: |cell| set_checkpointing(cell, Checkpointing::Selective),
    },
    Change { text: "memory.checkpointing = \"full\"", apply: |cell| set_checkpointing(cell, Checkpointing::Full) },
    Change { text: "half train.micro_batch and twice train.accumulation", apply: halve_micro_batch },
    Change { text: FULL_SHARD, apply: full_shard },
    Change { text: "precision.gradients = \"bf16\"", apply: low_gradients },
    Change { text: "memory.offload_optimizer = \"host\"", apply: offload_optimizer },
];

/// On a device with a host beside it, where optimizer state is a part of its own.
fn offload_optimizer(cell: &mut Cell) -> bool {
    let can = cell.hardware.device == DeviceKind::Cuda
        && !cell.lora.on()
        && cell.parallel.strategy != Strategy::Ddp
        && cell.memory.offload_optimizer == MemoryTier::Device;
    if can {
        cell.memory.offload_optimizer = MemoryTier::Host;
    }
    can
}

fn set_checkpointing(cell: &mut Cell, to: Checkpointing) -> bool {
    let keeps_more = match cell.memory.checkpointing {
        Checkpointing::None => true,
        Checkpointing::Keep(_) | Checkpointing::Selective => to == Checkpointing::Full,
        _ => false,
    };
    if keeps_more {
        cell.memory.checkpointing = to;
    }
    keeps_more
}

fn halve_micro_batch(cell: &mut Cell) -> bool {
    let even = cell.train.micro_batch.is_multiple_of(2);
    if even {
        cell.train.micro_batch /= 2;
        cell.train.accumulation *= 2;
    }
    even
}

fn full_shard(cell: &mut Cell) -> bool {
    let partial = !matches!(cell.parallel.strategy, Strategy::Fsdp | Strategy::Zero3);
    cell.parallel.strategy = Strategy::Fsdp;
    cell.parallel.shard = cell.parallel.ranks;
    partial
}

fn low_gradients(cell: &mut Cell) -> bool {
    let wide = cell.precision.gradients == DType::F32 && cell.precision.compute != DType::F32;
    if wide {
        cell.precision.gradients = DType::Bf16;
    }
    wide
}

/// The cheapest change that makes a cell fit, found by planning: one change, then several together, then more
/// ranks beside as few changes as do.
pub(crate) fn cheapest_change(planner: &Planner, resolved: &Resolved, capacity: u64) -> Option<String> {
    // What the changed cell takes, where that can be known; what the engine would hold says nothing of another program.
    let footprint = |changed: &Resolved| {
        let estimate = match changed.cell.is_priced() || forecast::of_other_software(&changed.cell) {
            true => None,
            false => Some(estimate(planner, &changed.cell).ok()?),
        };
        Some(forecast::footprint(changed, estimate.as_ref()))
    };
    let fitting = |cell: Cell| {
        // No advice to do what the software does not have.
        if software::no_such_pair(&resolved.framework, cell.parallel.strategy).is_some() {
            return None;
        }
        // Evictions find their least by themselves, and take long to plan where nothing fits.
        if cell.memory.checkpointing == Checkpointing::Evict {
            return None;
        }
        footprint(&resolved.with_cell(cell)).filter(|footprint| footprint.fits(capacity))
    };
    let stated = footprint(resolved);
    let is_of_host = stated.as_ref().is_some_and(|stated| stated.total <= capacity && !stated.fits(capacity));
    let say = |what: &str, changed: &Footprint| match changed.host_capacity.filter(|_| is_of_host) {
        Some(host) if changed.host > 0 => format!("{what} (predicted {} of a host's {})", gib(changed.host), gib(host)),
        // Reading the weights may need memory of the host all the same.
        Some(_) => format!("{what} (predicted {} of {}, and no state on the host)", gib(changed.total), gib(capacity)),
        None => format!("{what} (predicted {} of {})", gib(changed.total), gib(capacity)),
    };
    let full = software::full_shard(&resolved.framework).name();
    let named = |change: &&Change| change.text.replace("fsdp", full);
    let all_changes = if is_of_host { FOR_HOST } else { CHANGES };
    let changed = |changes: &[&Change], times: usize| -> Option<Cell> {
        let mut changed = resolved.cell.clone();
        if !changes.iter().all(|change| (change.apply)(&mut changed)) {
            return None;
        }
        let parallel = &mut changed.parallel;
        let whole_group = parallel.shard >= parallel.ranks / parallel.degrees.ranks_per_replica().max(1);
        parallel.ranks = parallel.ranks.checked_mul(times)?;
        if times > 1 && whole_group {
            parallel.shard = parallel.shard.checked_mul(times)?;
        }
        Some(changed)
    };
    let attempt = |changes: &[&Change], times: usize| -> Option<String> {
        let changed = changed(changes, times)?;
        let mut words: Vec<String> = changes.iter().map(named).collect();
        words.extend((times > 1).then(|| format!("parallel.ranks = {}", changed.parallel.ranks)));
        Some(say(&words.join(" and "), &fitting(changed)?))
    };
    // Every set of changes, few changes first, cheap ones first among as many.
    let mut sets: Vec<Vec<&Change>> = (1usize..1 << all_changes.len())
        .map(|bits| {
            all_changes.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, change)| change).collect()
        })
        .collect();
    sets.sort_by_key(Vec::len);
    sets.insert(0, Vec::new());
    // Most cells that do not fit are not made to by anything. The largest sets tell that early: what applies of all changes, or of all
    // but one, whether or not the software has it and the host holds it. What cannot be known is looked for.
    let mut most = resolved.cell.clone();
    let all: Vec<&Change> = all_changes.iter().filter(|change| (change.apply)(&mut most)).collect();
    let without = |left_out: &&Change| all.iter().copied().filter(|change| !std::ptr::eq(*change, *left_out)).collect();
    let largest: Vec<Vec<&Change>> = std::iter::once(all.clone()).chain(all.iter().map(without)).collect();
    let may_fit = |set: &Vec<&Change>, times: usize| {
        let least = changed(set, times).map(|cell| footprint(&resolved.with_cell(cell)));
        least.is_some_and(|footprint| footprint.is_none_or(|footprint| footprint.total <= capacity))
    };
    let mut times = [1, 2, 4, 8, 16, 32, 64].into_iter().filter(|times| largest.iter().any(|set| may_fit(set, *times)));
    times.find_map(|times| sets.iter().find_map(|set| attempt(set, times)))
}
