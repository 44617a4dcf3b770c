//! The mesh of ranks: axes, groups of any set of axes, and which part of a flat buffer a rank holds.
//!
//! Ranks are numbered with the axes in this order, innermost first: tensor, context, shard, replica, pipeline. Neighbours
//! therefore share a tensor-parallel group, and stages are as far apart as possible. The experts of a stage have a second
//! order of the same ranks: expert-tensor, expert, expert-data. Both equal the groups of Megatron-core's `RankGenerator`
//! (order `tp-cp-ep-dp-pp`, where its data axis is shard times replica).
//!
//! | here | torchtitan |
//! | --- | --- |
//! | replica | `dp_replicate` |
//! | shard | `dp_shard` |
//! | context | `cp` |
//! | tensor | `tp` |
//! | pipeline | `pp` |
//! | expert | `ep` |

pub mod comms;
pub mod strategy;

use std::ops::{BitAnd, BitOr, Range};
use zbench_collectives::GroupName;

/// One dimension of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// Ranks that share each matrix.
    Tensor,
    /// Ranks that share each sequence.
    Context,
    /// Data-parallel ranks that share the model's state.
    Shard,
    /// Data-parallel ranks that hold the same part of it.
    Replica,
    /// Ranks that share each expert's matrices.
    ExpertTensor,
    /// Ranks that share the experts.
    Expert,
    /// Ranks that hold the same experts.
    ExpertData,
    /// Stages of the model.
    Pipeline,
}

impl Axis {
    pub const COUNT: usize = 8;

    pub const ALL: [Axis; Axis::COUNT] = [
        Axis::Tensor,
        Axis::Context,
        Axis::Shard,
        Axis::Replica,
        Axis::ExpertTensor,
        Axis::Expert,
        Axis::ExpertData,
        Axis::Pipeline,
    ];
}

/// A set of axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Axes(u8);

impl Axes {
    pub const NONE: Axes = Axes(0);
    /// What the state of a shard group is split over: a sequence's ranks have the same weights, so they share them too.
    pub const SHARD: Axes = Axes::of(&[Axis::Context, Axis::Shard]);
    pub const REPLICA: Axes = Axes::of(&[Axis::Replica]);
    /// All ranks that have the same weights.
    pub const DATA: Axes = Axes(Axes::SHARD.0 | Axes::REPLICA.0);
    /// The ranks that train on different samples.
    pub const SAMPLES: Axes = Axes::of(&[Axis::Shard, Axis::Replica]);
    pub const TENSOR: Axes = Axes::of(&[Axis::Tensor]);
    pub const EXPERT: Axes = Axes::of(&[Axis::Expert]);
    /// All ranks that have the same experts.
    pub const EXPERT_DATA: Axes = Axes::of(&[Axis::ExpertData]);
    pub const PIPELINE: Axes = Axes::of(&[Axis::Pipeline]);
    /// All ranks.
    pub const WORLD: Axes = Axes(Axes::DATA.0 | Axes::TENSOR.0 | Axes::PIPELINE.0);
    /// The order of a stage's ranks that is the experts' own.
    const OF_EXPERTS: Axes = Axes::of(&[Axis::ExpertTensor, Axis::Expert, Axis::ExpertData]);

    pub const fn of(axes: &[Axis]) -> Axes {
        let (mut set, mut index) = (0, 0);
        while index < axes.len() {
            set |= 1 << axes[index] as u8;
            index += 1;
        }
        Axes(set)
    }

    pub const fn contains(self, axis: Axis) -> bool {
        self.0 & (1 << axis as u8) != 0
    }

    /// Whether it has all axes of `other`.
    pub const fn includes(self, other: Axes) -> bool {
        self.0 & other.0 == other.0
    }

    /// Its axes, innermost first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Axis> {
        Axis::ALL.into_iter().filter(move |axis| self.contains(*axis))
    }
}

impl BitOr for Axes {
    type Output = Axes;

    fn bitor(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }
}

impl BitAnd for Axes {
    type Output = Axes;

    fn bitand(self, other: Axes) -> Axes {
        Axes(self.0 & other.0)
    }
}

/// How many ranks each axis has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// By axis.
    sizes: [usize; Axis::COUNT],
    /// The axes that there are: of the data-parallel ones also such as have one rank.
    axes: Axes,
}

impl Mesh {
    /// A data-parallel mesh of one axis. The shard group of strategies that shard nothing is all ranks, too.
    pub fn data(ranks: usize) -> Mesh {
        Mesh { sizes: [1, 1, ranks, 1, 1, 1, ranks, 1], axes: Axes::of(&[Axis::Shard]) }
    }

    /// A hybrid data-parallel mesh: `replicas` of shard groups of `shard` ranks.
    pub fn hybrid(shard: usize, replicas: usize) -> Mesh {
        let axes = Axes::of(&[Axis::Shard, Axis::Replica]);
        Mesh { sizes: [1, 1, shard, replicas, 1, 1, shard * replicas, 1], axes }
    }

    /// The same data ranks with these degrees of model parallelism, which exist where they are above 1. The experts' axes
    /// take all ranks of a stage, which `expert * expert_tensor` divides.
    #[must_use]
    pub fn with(self, [tensor, context, pipeline]: [usize; 3], [expert, expert_tensor]: [usize; 2]) -> Mesh {
        let stage = tensor * context * self.size(Axes::SAMPLES);
        let mut mesh = self;
        for (axis, size) in [
            (Axis::Tensor, tensor),
            (Axis::Context, context),
            (Axis::Pipeline, pipeline),
            (Axis::Expert, expert),
            (Axis::ExpertTensor, expert_tensor),
            (Axis::ExpertData, stage / (expert * expert_tensor)),
        ] {
            mesh.sizes[axis as usize] = size;
            mesh.axes = if size > 1 { mesh.axes | Axes::of(&[axis]) } else { mesh.axes };
        }
        mesh
    }

    /// Ranks in all.
    pub fn world(&self) -> usize {
        self.size(Axes::WORLD)
    }

    /// Ranks of a group of these axes.
    pub fn size(&self, axes: Axes) -> usize {
        axes.iter().map(|axis| self.sizes[axis as usize]).product()
    }

    /// How far apart neighbours on an axis are.
    fn stride(&self, axis: Axis) -> usize {
        let inside = Axis::ALL.into_iter().take_while(|other| *other != axis);
        let own = if Axes::OF_EXPERTS.contains(axis) { Axes::OF_EXPERTS } else { Axes::WORLD };
        inside.filter(|other| own.contains(*other)).map(|other| self.sizes[other as usize]).product()
    }

    pub fn place(&self, rank: usize) -> Coords {
        let parts = [Axes::SHARD, Axes::REPLICA].map(|axes| (self.index(rank, axes), self.size(axes)));
        Coords { mesh: *self, rank, parts }
    }

    /// A rank's coordinate on an axis.
    fn at(&self, rank: usize, axis: Axis) -> usize {
        rank / self.stride(axis) % self.sizes[axis as usize]
    }

    /// A rank's number in its group of these axes.
    fn index(&self, rank: usize, axes: Axes) -> usize {
        axes.iter().rev().fold(0, |index, axis| index * self.sizes[axis as usize] + self.at(rank, axis))
    }

    /// The sets of axes whose groups a rank talks in, with their names. Sets of which this mesh has the same axes stand once.
    /// The last one is the world.
    pub fn groups(&self) -> Vec<(Axes, GroupName)> {
        let all = [
            (Axes::SHARD, GroupName::Inner),
            (Axes::REPLICA, GroupName::Outer),
            (Axes::TENSOR, GroupName::Tensor),
            (Axes::of(&[Axis::Context]), GroupName::Context),
            (Axes::EXPERT, GroupName::Expert),
            (self.shared_experts(), GroupName::ExpertData),
            (Axes::PIPELINE, GroupName::Pipeline),
            (Axes::DATA, GroupName::Data),
            (Axes::WORLD, GroupName::World),
        ];
        let mut groups: Vec<(Axes, GroupName)> = Vec::new();
        for (axes, name) in all.map(|(axes, name)| (self.existing(axes), name)) {
            match groups.iter_mut().find(|(known, _)| *known == axes) {
                // Where there are no other axes, all ranks are called those of data parallelism.
                Some((_, known)) if name != GroupName::World => *known = name,
                Some(_) => {}
                None if axes == Axes::NONE => {}
                None => groups.push((axes, name)),
            }
        }
        let world = self.existing(Axes::WORLD);
        groups.sort_by_key(|(axes, _)| *axes == world);
        groups
    }

    /// The replicas of experts, where those are not all ranks of a stage.
    fn shared_experts(&self) -> Axes {
        if self.sizes[Axis::Expert as usize] > 1 { Axes::EXPERT_DATA } else { Axes::NONE }
    }

    /// The axes of a set that this mesh has: sets with the same ones have the same groups.
    pub fn existing(&self, axes: Axes) -> Axes {
        axes & self.axes
    }
}

/// Where a rank stands in a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coords {
    pub mesh: Mesh,
    /// Its number in the world.
    pub rank: usize,
    /// Its numbers in its shard group and among the replicas, and how many ranks each has: every range is made of them.
    parts: [(usize, usize); 2],
}

impl Coords {
    /// Its coordinate on an axis.
    pub fn at(&self, axis: Axis) -> usize {
        self.mesh.at(self.rank, axis)
    }

    /// Its rank in its group of these axes.
    pub fn index(&self, axes: Axes) -> usize {
        self.mesh.index(self.rank, axes)
    }

    /// The group of the ranks that differ from this one on these axes alone, in the order of the mesh. The axes are of one
    /// order: the experts' axes do not stand beside those that they divide.
    pub fn group(&self, axes: Axes) -> Vec<usize> {
        let mut ranks = vec![self.color(axes)];
        for axis in axes.iter() {
            let (size, stride) = (self.mesh.sizes[axis as usize], self.mesh.stride(axis));
            ranks = (0..size).flat_map(|at| ranks.iter().map(move |rank| rank + at * stride)).collect();
        }
        ranks
    }

    /// A number that the ranks of its group have in common, and no other rank: their first one.
    pub fn color(&self, axes: Axes) -> usize {
        self.rank - axes.iter().map(|axis| self.at(axis) * self.mesh.stride(axis)).sum::<usize>()
    }

    /// Of a buffer of `len` elements the part that this rank has where it is split over `axes`: none, [`Axes::SHARD`] or
    /// [`Axes::DATA`]. Replicas split what the shard group has split, so the parts nest. `len` is a multiple of the parts.
    pub fn range(&self, axes: Axes, len: usize) -> Range<usize> {
        let [(shard, ranks), (replica, replicas)] = self.parts;
        let (position, parts) = match (axes.includes(Axes::SHARD), axes.includes(Axes::REPLICA)) {
            (false, _) => (0, 1),
            (true, false) => (shard, ranks),
            (true, true) => (shard * replicas + replica, ranks * replicas),
        };
        let part = len / parts;
        position * part..(position + 1) * part
    }

    /// The rank in the data-parallel group that has the `position`-th part of a split over [`Axes::DATA`].
    pub fn owner(&self, position: usize) -> usize {
        let [(_, ranks), (_, replicas)] = self.parts;
        (position % replicas) * ranks + position / replicas
    }
}

/// `inner` as positions within `outer`, which contains it.
pub fn within(inner: &Range<usize>, outer: &Range<usize>) -> Range<usize> {
    debug_assert!(outer.start <= inner.start && inner.end <= outer.end, "{inner:?} is not within {outer:?}");
    inner.start - outer.start..inner.end - outer.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_nest_and_cover() {
        for (mesh, context) in [(Mesh::hybrid(2, 3), 1), (Mesh::hybrid(2, 3).with([1, 2, 1], [1, 1]), 2)] {
            let len = 60 * context;
            let mut owners = vec![None; len];
            for rank in 0..mesh.world() {
                let place = mesh.place(rank);
                let (shard, world) = (place.range(Axes::SHARD, len), place.range(Axes::DATA, len));
                assert_eq!(within(&world, &shard).len(), 10);
                assert_eq!(place.range(Axes::NONE, len), 0..len);
                owners[world.clone()].iter_mut().for_each(|o| assert!(o.replace(rank).is_none()));
                assert_eq!(place.owner(world.start / 10), rank);
            }
            assert!(owners.iter().all(Option::is_some));
        }
    }

    #[test]
    fn groups_of_data_parallel_meshes_have_the_names_of_records() {
        let names = |mesh: Mesh| mesh.groups().into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(Mesh::data(4)), [GroupName::Data]);
        assert_eq!(names(Mesh::hybrid(2, 2)), [GroupName::Inner, GroupName::Outer, GroupName::Data]);
        let tensor = Mesh::data(4).with([2, 1, 1], [1, 1]);
        assert_eq!(names(tensor), [GroupName::Data, GroupName::Tensor, GroupName::World]);
    }
}
