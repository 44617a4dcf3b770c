//! Weights: the shard of this rank, and gathered weights.

use super::offloaded_tensor::{Flight, OffloadedTensor};
use super::{FlatShard, Resources, State};
use crate::compute::error::Result;
use crate::config::MemoryTier;
use crate::mesh::comms::Comms;
use crate::mesh::{Axes, within};
use crate::model::layers::prepacked::Prepacked;
use crate::model::{FlatKind, Weights};
use std::collections::VecDeque;
use zbench_collectives::{Communicator, OwnedCall, Ticket};
use zbench_kernels::{Buffer, Category, View};

/// In the FLOP ledger.
const TERM: &str = "gather";

/// The weights of a rank.
pub struct Params {
    flats: Vec<[Option<Flat>; FlatKind::COUNT]>,
}

struct Flat {
    /// This rank's part.
    shard: OffloadedTensor,
    /// Copies of it on their way to the device, in the order in which they are gathered.
    coming: VecDeque<Flight>,
    /// Gathered, in the type that layers read.
    gathered: Option<Buffer>,
    pending: Option<(Axes, Ticket)>,
    is_gathered: bool,
}

impl Params {
    /// MemoryTiers with unspecified contents.
    pub fn new(state: &State, res: Resources<'_>) -> Result<Params> {
        let shard = |flat_shard: &FlatShard| -> Result<Flat> {
            let (at, len) = (state.tiers.parameters, flat_shard.shard.len());
            let shard = OffloadedTensor::new(res, at, Category::Parameters, flat_shard.dtype, len)?;
            Ok(Flat {
                shard,
                coming: VecDeque::new(),
                gathered: None,
                pending: None,
                is_gathered: flat_shard.is_gathered,
            })
        };
        let mut flats = Vec::with_capacity(state.shards.len());
        for shards in &state.shards {
            let mut unit = [const { None }; FlatKind::COUNT];
            for (flat, flat_shard) in unit.iter_mut().zip(shards) {
                *flat = flat_shard.as_ref().map(shard).transpose()?;
            }
            flats.push(unit);
        }
        Ok(Params { flats })
    }

    /// This rank's part of a flat, where it lies in memory.
    pub fn shard_mut(&mut self, unit: usize, part: FlatKind) -> Option<&mut Buffer> {
        self.tensor_mut(unit, part)?.buffer_mut()
    }

    /// This rank's part of a flat, wherever it lives.
    pub fn tensor_mut(&mut self, unit: usize, part: FlatKind) -> Option<&mut OffloadedTensor> {
        Some(&mut self.flats[unit][part as usize].as_mut()?.shard)
    }

    /// Brings this rank's part of a unit into host memory where it lives on a disk, outside of a step.
    pub fn open(&mut self, res: Resources<'_>, unit: usize) -> Result<()> {
        self.flats[unit].iter_mut().flatten().try_for_each(|flat| flat.shard.open(res))
    }

    /// Frees that memory; with `writes`, when the disk has what was changed.
    pub fn close(&mut self, res: Resources<'_>, unit: usize, writes: bool) -> Result<()> {
        self.flats[unit].iter_mut().flatten().try_for_each(|flat| flat.shard.close(res, writes))
    }

    /// Begins to bring this rank's part of a unit to the device, to be gathered.
    pub fn fetch(&mut self, res: Resources<'_>, unit: usize) -> Result<()> {
        for flat in self.flats[unit].iter_mut().flatten().filter(|flat| flat.is_gathered) {
            flat.coming.push_back(flat.shard.copy_to(res, MemoryTier::Device)?);
        }
        Ok(())
    }

    /// Makes shards current where other ranks updated them.
    pub fn refresh(&mut self, state: &State, comms: &Comms, unit: usize) -> Result<()> {
        let Some(flat_shard) = state.trainable(unit) else { return Ok(()) };
        let Some(shard) = self.shard_mut(unit, FlatKind::Trainable) else { return Ok(()) };
        if let (Axes::DATA, Some(replicas)) = (state.sharding.optimizer, comms.over(flat_shard.copies)) {
            let of_group = within(&flat_shard.group_shard, &flat_shard.shard);
            replicas.all_gather_in_place(shard.slice_mut(of_group))?;
        }
        if state.sharding.parameters == Axes::NONE {
            comms.group(flat_shard.group).all_gather_in_place(shard.view_mut())?;
        }
        Ok(())
    }

    /// Waits until this rank's part of a unit is on the device, if it was fetched.
    pub fn land(&mut self, res: Resources<'_>, unit: usize) -> Result<()> {
        for flat in self.flats[unit].iter_mut().flatten() {
            if let Some(first) = flat.coming.pop_front() {
                // The device waits for the copy, not the host.
                let here = first.land(res, MemoryTier::Device, Category::Parameters)?;
                flat.coming.push_front(Flight::Here(here));
            }
        }
        Ok(())
    }

    /// Gathers a unit's weights, or starts to.
    pub fn gather(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        for (flat, flat_shard) in self.flats[unit].iter_mut().zip(&state.shards[unit]) {
            if let (Some(flat), Some(flat_shard)) = (flat, flat_shard)
                && flat.is_gathered
            {
                flat.gather(state, res, flat_shard)?;
            }
        }
        Ok(())
    }

    /// Waits for a unit's gather.
    pub fn wait(&mut self, comms: &Comms, unit: usize) -> Result<()> {
        for flat in self.flats[unit].iter_mut().flatten() {
            let Some((group, ticket)) = flat.pending.take() else { continue };
            let gathered = comms.group(group).wait(ticket)?;
            // A send that is not the shard was a copy, and is done with.
            if let Some(shard) = gathered.send.filter(|_| flat.shard.is_taken()) {
                flat.shard.put(shard);
            }
            flat.gathered = gathered.recv;
        }
        Ok(())
    }

    /// Gives a unit's gathered weights back.
    pub fn release(&mut self, unit: usize) {
        self.flats[unit].iter_mut().flatten().for_each(|flat| flat.gathered = None);
    }

    /// A unit's weights, which the plan has made sure are here.
    pub fn weights<'a>(&'a self, unit: usize, prepacked: Option<&'a Prepacked>) -> Weights<'a> {
        let view = |part: FlatKind| {
            let flat = self.flats[unit][part as usize].as_ref();
            let held = flat.and_then(|f| if f.is_gathered { f.gathered.as_ref() } else { f.shard.buffer() });
            held.map_or(View::of::<f32>(&[]), Buffer::view)
        };
        let (trainable, frozen) = (view(FlatKind::Trainable), view(FlatKind::Frozen));
        Weights { trainable, frozen, quantised: view(FlatKind::Quantised), prepacked, second: None }
    }
}

impl Flat {
    fn gather(&mut self, state: &State, res: Resources<'_>, flat_shard: &FlatShard) -> Result<()> {
        let mut gathered = res.alloc(state.gathered_category, flat_shard.gathered, flat_shard.padded)?;
        let copy = match self.coming.pop_front() {
            Some(flight) => Some(flight.land(res, MemoryTier::Device, Category::Parameters)?),
            None => None,
        };
        let Some(shard) = copy.as_ref().or(self.shard.buffer()) else { return Ok(()) };
        if state.sharding.parameters == Axes::NONE {
            res.cast(TERM, shard.view(), gathered.view_mut())?;
            self.gathered = Some(gathered);
            return Ok(());
        }
        let send = if flat_shard.dtype == flat_shard.gathered {
            copy.or_else(|| self.shard.take())
        } else {
            let mut wire = res.alloc(Category::Communication, flat_shard.gathered, flat_shard.shard.len())?;
            res.cast(TERM, shard.view(), wire.view_mut())?;
            Some(wire)
        };
        let Some(send) = send else { return Ok(()) };
        let ticket = res.comms.group(flat_shard.group).start(OwnedCall::all_gather(send, gathered))?;
        self.pending = Some((flat_shard.group, ticket));
        Ok(())
    }
}
