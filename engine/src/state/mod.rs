//! Sharded state: shards of weights and gathered weights, gradients, optimizer. One mechanism for every strategy; what differs is
//! which range of a flat a rank holds.

mod buckets;
mod gradients;
pub(crate) mod learning_rate;
pub mod loss_scale;
mod offloaded_activations;
mod offloaded_tensor;
mod optimizer;
mod params;

use crate::plan::placement::{StateTiers, gathered_category, gathered_dtype, is_gathered, shard_dtype, share};
pub use buckets::buckets;
pub use gradients::Gradients;
pub use offloaded_activations::OffloadedActivations;
pub use offloaded_tensor::OffloadedTensor;
pub use optimizer::{Delayed, Due, Flags, GlobalStats, Losses, Moments, Optimizer, Update};
pub use params::Params;

use crate::compute::context::ComputeContext;
use crate::compute::error::{Result, StepError};
use crate::config::{Cell, MemoryTier, Precision};
use crate::memory::tiers::MemoryTiers;
use crate::mesh::comms::Comms;
use crate::mesh::strategy::Sharding;
use crate::mesh::{Axes, Axis, Coords, Mesh};
use crate::model::layers::Gradient;
use crate::model::{FlatKind, Layout, Tensor, Unit};
use std::ops::{Deref, Range};
use zbench_kernels::{Buffer, Category, DType};

/// What one rank holds of one flat.
#[derive(Clone, Debug, PartialEq)]
pub struct FlatShard {
    pub part: FlatKind,
    /// Elements of the flat, padding included.
    pub padded: usize,
    /// The part of the weights that this rank stores.
    pub shard: Range<usize>,
    pub dtype: DType,
    /// The part this rank fills at the start and updates.
    pub owned: Range<usize>,
    /// The part whose norm this rank computes: its share among all ranks that have the same.
    pub norm_shard: Range<usize>,
    /// The ranks that split the flat between them: a shard group, or the ranks that have the same experts.
    pub group: Axes,
    /// The ranks of other groups with the same part as this one.
    pub copies: Axes,
    /// This rank's part where the group splits the flat, whatever the strategy splits.
    pub group_shard: Range<usize>,
    /// Where accumulated gradients live here.
    pub gradients: Range<usize>,
    /// Layers read gathered weights, and not the shard.
    pub is_gathered: bool,
    pub gathered: DType,
    /// Of the trainable flat: tensors that all tensor ranks have whole and of whose gradient each finds its own term of the sum.
    pub partial: Vec<Range<usize>>,
    /// Of `norm_shard`: what this rank's sum of squares counts. What all tensor ranks have is counted by the first one.
    pub counted: Vec<Range<usize>>,
}

impl FlatShard {
    fn new(cell: &Cell, sharding: &Sharding, place: &Coords, unit: &Unit, part: FlatKind) -> FlatShard {
        let padded = unit.flat(part).padded;
        let (group, copies, group_shard, norm_shard) = match unit.replicas {
            Axes::DATA => {
                let [group_shard, norm_shard] = [Axes::SHARD, Axes::DATA].map(|axes| place.range(axes, padded));
                (Axes::SHARD, Axes::REPLICA, group_shard, norm_shard)
            }
            group => {
                let (index, part) = (place.index(group), padded / place.mesh.size(group));
                let shard = index * part..(index + 1) * part;
                (group, Axes::NONE, shard.clone(), shard)
            }
        };
        let split = |over: Axes| match over {
            Axes::NONE => 0..padded,
            Axes::SHARD => group_shard.clone(),
            _ => norm_shard.clone(),
        };
        let [shard, owned, gradients] = [sharding.parameters, share(sharding, part), sharding.gradients].map(split);
        FlatShard {
            partial: runs(unit, part, |tensor| tensor.gradient == Gradient::Partial(Axis::Tensor)),
            counted: match place.at(Axis::Tensor) {
                0 => std::iter::once(norm_shard.clone()).collect(),
                _ => within_range(runs(unit, part, |tensor| tensor.is_counted(place)), &norm_shard),
            },
            part,
            padded,
            shard,
            dtype: shard_dtype(cell, part),
            owned,
            group,
            copies,
            group_shard,
            norm_shard,
            gradients,
            is_gathered: is_gathered(cell, sharding, part),
            gathered: gathered_dtype(cell, part),
        }
    }
}

/// Where a unit's tensors that fit lie in a flat; neighbours are one range.
fn runs(unit: &Unit, part: FlatKind, fits: impl Fn(&Tensor) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for place in unit.tensors_of(part).filter(|tensor| fits(tensor)).map(|tensor| tensor.place.range()) {
        match runs.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => runs.push(place),
        }
    }
    runs
}

/// What of these ranges lies in another one.
fn within_range(runs: Vec<Range<usize>>, of: &Range<usize>) -> Vec<Range<usize>> {
    let cut = |run: Range<usize>| run.start.max(of.start)..run.end.min(of.end);
    runs.into_iter().map(cut).filter(|run| !run.is_empty()).collect()
}

/// What all parts of a rank's state share: what it holds, and of which type.
#[derive(Clone, Debug)]
pub struct State {
    /// By unit: its number in the whole model.
    pub numbers: Vec<usize>,
    /// The unit that is a copy of another stage's, which counts and writes it.
    pub copy: Option<usize>,
    /// By unit, in the order of [`FlatKind::ALL`]; `None` where the flat is empty.
    pub shards: Vec<[Option<FlatShard>; FlatKind::COUNT]>,
    /// Units whose gradients are reduced in one call; every unit is in one of them.
    pub buckets: Vec<Range<usize>>,
    pub place: Coords,
    pub sharding: Sharding,
    pub tiers: StateTiers,
    pub precision: Precision,
    /// Updates lag a step behind their gradients, which ranks keep meanwhile.
    pub delayed: bool,
    /// What gathered weights count as.
    pub gathered_category: Category,
    /// Whether ranks tell each other in every step that they want to stop.
    pub stoppable: bool,
    /// Trainable units that a dry run leaves out because they are like others; 0 in a run.
    pub omitted: usize,
}

impl State {
    /// The state of a rank.
    pub fn new(cell: &Cell, layout: &Layout, sharding: Sharding, place: Coords) -> State {
        let flat_shard = |unit: &Unit, part: FlatKind| {
            (unit.flat(part).len > 0).then(|| FlatShard::new(cell, &sharding, &place, unit, part))
        };
        let shards = layout.units.iter().map(|unit| FlatKind::ALL.map(|part| flat_shard(unit, part))).collect();
        let gathered_category = gathered_category(&sharding);
        let stoppable = cell.checkpoint.is_some();
        State {
            numbers: layout.numbers.clone(),
            copy: layout.copy(),
            shards,
            buckets: buckets(cell, &sharding, &place.mesh, layout),
            place,
            sharding,
            tiers: StateTiers::of(cell, &sharding),
            precision: cell.precision,
            delayed: cell.train.is_delayed(),
            gathered_category,
            stoppable,
            omitted: 0,
        }
    }

    /// The state of these units alone, each of which is a bucket.
    pub fn of_units(&self, units: Range<usize>) -> State {
        let buckets = (0..units.len()).map(|unit| unit..unit + 1).collect();
        let numbers = self.numbers[units.clone()].to_vec();
        State { numbers, copy: None, buckets, shards: self.shards[units].to_vec(), ..*self }
    }

    pub fn mesh(&self) -> Mesh {
        self.place.mesh
    }

    /// How many ranks train on samples of their own. Ranks that share a sequence, a matrix or the layers have the same samples.
    pub fn sample_ranks(&self) -> usize {
        self.place.mesh.size(Axes::SAMPLES)
    }

    /// Which of them this rank is.
    pub fn sample_rank(&self) -> usize {
        self.place.index(Axes::SAMPLES)
    }

    /// How many ranks' gradients of a weight are summed: those with samples of their own, and those that share a sequence.
    pub fn gradient_ranks(&self) -> usize {
        self.place.mesh.size(Axes::DATA)
    }

    /// The trainable flat of a unit.
    pub fn trainable(&self, unit: usize) -> Option<&FlatShard> {
        self.shards[unit][0].as_ref()
    }
}

/// What the parts work with.
#[derive(Clone, Copy)]
pub struct Resources<'a> {
    pub device: ComputeContext<'a>,
    pub tiers: &'a MemoryTiers,
    pub comms: &'a Comms,
}

impl Resources<'_> {
    /// A buffer of a tier, with unspecified contents.
    pub fn alloc_at(&self, tier: MemoryTier, category: Category, dtype: DType, len: usize) -> Result<Buffer> {
        let none = || StepError::Bug("this rank has no memory of a tier that is used");
        let arena = self.tiers.arena(tier).ok_or_else(none)?;
        // A disk reads and writes whole pages.
        Ok(if tier == MemoryTier::Disk {
            arena.alloc_pages(category, dtype, len)?
        } else {
            arena.alloc(category, dtype, len)?
        })
    }
}

impl<'a> Deref for Resources<'a> {
    type Target = ComputeContext<'a>;

    fn deref(&self) -> &ComputeContext<'a> {
        &self.device
    }
}
