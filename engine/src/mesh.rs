//! Where a rank stands, and which part of a flat buffer is its own.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The data-parallel ranks as a grid: `outer` replicas of shard groups of `inner` ranks. Neighbours share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    pub outer: usize,
    /// Ranks of a shard group.
    pub inner: usize,
    /// Whether the outer axis exists; strategies without replicas have one axis only.
    pub hybrid: bool,
}

/// The ranks that a collective runs among. The declaration order is the order of rows in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// All data-parallel ranks.
    Data,
    /// The ranks of one shard group of a hybrid mesh.
    Inner,
    /// The ranks with the same place in every shard group of a hybrid mesh.
    Outer,
}

impl Axis {
    /// The name in records, reports and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Inner => "inner",
            Axis::Outer => "outer",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshCoord {
    pub mesh: Mesh,
    /// Which shard group.
    pub outer: usize,
    /// Which rank of the group.
    pub inner: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Split {
    Whole,
    /// Split inside the shard group, the same in every group.
    Shard,
    /// Split over all ranks: the group's parts are split again over the groups.
    World,
}

impl Mesh {
    pub fn world(&self) -> usize {
        self.outer * self.inner
    }

    pub fn place(&self, rank: usize) -> MeshCoord {
        MeshCoord { mesh: *self, outer: rank / self.inner, inner: rank % self.inner }
    }

    /// Parts a buffer is cut into.
    pub fn parts(&self, split: Split) -> usize {
        match split {
            Split::Whole => 1,
            Split::Shard => self.inner,
            Split::World => self.world(),
        }
    }

    /// The rank that owns the `position`-th part of a world-wide split.
    pub fn owner(&self, position: usize) -> usize {
        let (inner, outer) = (position / self.outer, position % self.outer);
        outer * self.inner + inner
    }
}

impl MeshCoord {
    /// This rank's part of a buffer of `len` elements; `len` is a multiple of the number of parts.
    pub fn range(&self, split: Split, len: usize) -> Range<usize> {
        let part = len / self.mesh.parts(split);
        let start = match split {
            Split::Whole => 0,
            Split::Shard => self.inner * part,
            Split::World => (self.inner * self.mesh.outer + self.outer) * part,
        };
        start..start + part
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
        let mesh = Mesh { outer: 3, inner: 2, hybrid: true };
        let mut owners = vec![None; 60];
        for rank in 0..mesh.world() {
            let place = mesh.place(rank);
            let (shard, world) = (place.range(Split::Shard, 60), place.range(Split::World, 60));
            assert_eq!(within(&world, &shard).len(), 10);
            assert_eq!(place.range(Split::Whole, 60), 0..60);
            owners[world.clone()].iter_mut().for_each(|o| assert!(o.replace(rank).is_none()));
            assert_eq!(mesh.owner(world.start / 10), rank);
        }
        assert!(owners.iter().all(Option::is_some));
    }
}
