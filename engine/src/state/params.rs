//! Weights: a home for this rank's part, slots for what is gathered.

use super::offloaded_tensor::{Flight, OffloadedTensor};
use super::{Holding, Resources, State};
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
    home: OffloadedTensor,
    /// Copies of it on their way to the device, in the order in which they are gathered.
    coming: VecDeque<Flight>,
    /// Gathered, in the type that layers read.
    slot: Option<Buffer>,
    pending: Option<Ticket>,
    slotted: bool,
}

impl Params {
    /// MemoryTiers with unspecified contents.
    pub fn new(state: &State, res: Resources<'_>) -> Result<Params> {
        let home = |holding: &Holding| -> Result<Flat> {
            let (at, len) = (state.tiers.parameters, holding.home.len());
            let home = OffloadedTensor::new(res, at, Category::Parameters, holding.dtype, len)?;
            Ok(Flat { home, coming: VecDeque::new(), slot: None, pending: None, slotted: holding.slotted })
        };
        let mut flats = Vec::with_capacity(state.holdings.len());
        for holdings in &state.holdings {
            let mut unit = [const { None }; FlatKind::COUNT];
            for (flat, holding) in unit.iter_mut().zip(holdings) {
                *flat = holding.as_ref().map(home).transpose()?;
            }
            flats.push(unit);
        }
        Ok(Params { flats })
    }

    /// This rank's part of a flat, where it lies in memory.
    pub fn home_mut(&mut self, unit: usize, part: FlatKind) -> Option<&mut Buffer> {
        self.homed_mut(unit, part)?.buffer_mut()
    }

    /// This rank's part of a flat, wherever it lives.
    pub fn homed_mut(&mut self, unit: usize, part: FlatKind) -> Option<&mut OffloadedTensor> {
        Some(&mut self.flats[unit][part as usize].as_mut()?.home)
    }

    /// Brings this rank's part of a unit into host memory where it lives on a disk, outside of a step.
    pub fn open(&mut self, res: Resources<'_>, unit: usize) -> Result<()> {
        self.flats[unit].iter_mut().flatten().try_for_each(|flat| flat.home.open(res))
    }

    /// Frees that memory; with `writes`, when the disk has what was changed.
    pub fn close(&mut self, res: Resources<'_>, unit: usize, writes: bool) -> Result<()> {
        self.flats[unit].iter_mut().flatten().try_for_each(|flat| flat.home.close(res, writes))
    }

    /// Begins to bring this rank's part of a unit to the device, to be gathered.
    pub fn fetch(&mut self, res: Resources<'_>, unit: usize) -> Result<()> {
        for flat in self.flats[unit].iter_mut().flatten().filter(|flat| flat.slotted) {
            flat.coming.push_back(flat.home.copy_to(res, MemoryTier::Device)?);
        }
        Ok(())
    }

    /// Makes tiers current where other ranks updated them.
    pub fn refresh(&mut self, state: &State, comms: &Comms, unit: usize) -> Result<()> {
        let Some(holding) = state.trainable(unit) else { return Ok(()) };
        let Some(home) = self.home_mut(unit, FlatKind::Trainable) else { return Ok(()) };
        if let (Axes::DATA, Some(replicas)) = (state.sharding.optimizer, comms.over(Axes::REPLICA)) {
            let shard = within(&state.place.range(Axes::SHARD, holding.padded), &holding.home);
            replicas.all_gather_in_place(home.slice_mut(shard))?;
        }
        if state.sharding.parameters == Axes::NONE {
            comms.shard().all_gather_in_place(home.view_mut())?;
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

    /// Fills a unit's slots, or starts to.
    pub fn gather(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        for (flat, holding) in self.flats[unit].iter_mut().zip(&state.holdings[unit]) {
            if let (Some(flat), Some(holding)) = (flat, holding)
                && flat.slotted
            {
                flat.gather(state, res, holding)?;
            }
        }
        Ok(())
    }

    /// Waits for a unit's gather.
    pub fn wait(&mut self, comms: &Comms, unit: usize) -> Result<()> {
        for flat in self.flats[unit].iter_mut().flatten() {
            let Some(ticket) = flat.pending.take() else { continue };
            let gathered = comms.shard().wait(ticket)?;
            // A send that is not the home was a copy, and is done with.
            if let Some(home) = gathered.send.filter(|_| flat.home.is_taken()) {
                flat.home.put(home);
            }
            flat.slot = gathered.recv;
        }
        Ok(())
    }

    /// Gives a unit's slots back.
    pub fn release(&mut self, unit: usize) {
        self.flats[unit].iter_mut().flatten().for_each(|flat| flat.slot = None);
    }

    /// A unit's weights, which the plan has made sure are here.
    pub fn weights<'a>(&'a self, unit: usize, prepacked: Option<&'a Prepacked>) -> Weights<'a> {
        let view = |part: FlatKind| {
            let flat = self.flats[unit][part as usize].as_ref();
            let held = flat.and_then(|f| if f.slotted { f.slot.as_ref() } else { f.home.buffer() });
            held.map_or(View::of::<f32>(&[]), Buffer::view)
        };
        let (trainable, frozen) = (view(FlatKind::Trainable), view(FlatKind::Frozen));
        Weights { trainable, frozen, quantised: view(FlatKind::Quantised), prepacked, second: None }
    }
}

impl Flat {
    fn gather(&mut self, state: &State, res: Resources<'_>, holding: &Holding) -> Result<()> {
        let mut slot = res.alloc(state.slots, holding.slot, holding.padded)?;
        let copy = match self.coming.pop_front() {
            Some(flight) => Some(flight.land(res, MemoryTier::Device, Category::Parameters)?),
            None => None,
        };
        let Some(home) = copy.as_ref().or(self.home.buffer()) else { return Ok(()) };
        if state.sharding.parameters == Axes::NONE {
            res.cast(TERM, home.view(), slot.view_mut())?;
            self.slot = Some(slot);
            return Ok(());
        }
        let send = if holding.dtype == holding.slot {
            copy.or_else(|| self.home.take())
        } else {
            let mut wire = res.alloc(Category::Communication, holding.slot, holding.home.len())?;
            res.cast(TERM, home.view(), wire.view_mut())?;
            Some(wire)
        };
        let Some(send) = send else { return Ok(()) };
        self.pending = Some(res.comms.shard().start(OwnedCall::all_gather(send, slot))?);
        Ok(())
    }
}
