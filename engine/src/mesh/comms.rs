//! The groups of a rank, one for each set of axes of the mesh.

use crate::mesh::{Axes, Mesh};
use zbench_collectives::GroupName;
use zbench_collectives::{Metered, Seen, Totals, Traffic};

/// The groups that a rank talks in.
pub struct Comms {
    mesh: Mesh,
    /// By set of axes, in the order of [`Mesh::groups`]; all but the world.
    groups: Vec<(Axes, Metered)>,
    world: Metered,
}

impl Comms {
    /// The groups of [`Mesh::groups`]. All but the last, which is `world`, are made by `group`.
    ///
    /// # Errors
    /// As of `group`.
    pub fn new<E>(
        mesh: Mesh,
        world: impl FnOnce(GroupName) -> Metered,
        mut group: impl FnMut(&Metered, Axes, GroupName) -> Result<Metered, E>,
    ) -> Result<Comms, E> {
        let mut all = mesh.groups();
        let world = world(all.pop().map_or(GroupName::World, |(_, name)| name));
        let groups: Result<Vec<_>, E> =
            all.into_iter().map(|(axes, name)| Ok((axes, group(&world, axes, name)?))).collect();
        Ok(Comms { mesh, groups: groups?, world })
    }

    /// The group of the ranks that differ from this one on these axes alone; `None` where the mesh has none of them. The axes are
    /// one of the sets of [`Mesh::groups`].
    pub fn over(&self, axes: Axes) -> Option<&Metered> {
        let axes = self.mesh.existing(axes);
        if axes == self.mesh.existing(Axes::WORLD) {
            return Some(&self.world);
        }
        let found = self.groups.iter().find(|(known, _)| *known == axes).map(|(_, group)| group);
        debug_assert!(found.is_some() || axes == Axes::NONE, "no group of {axes:?} was formed");
        found
    }

    /// As [`Comms::over`], and the world where the mesh has none of the axes, of which a rank is then the only one.
    pub fn group(&self, axes: Axes) -> &Metered {
        self.over(axes).unwrap_or(&self.world)
    }

    /// All ranks that have the same weights.
    pub fn data(&self) -> &Metered {
        self.group(Axes::DATA)
    }

    /// All ranks.
    pub fn world(&self) -> &Metered {
        &self.world
    }

    fn all(&self) -> impl Iterator<Item = &Metered> {
        self.groups.iter().map(|(_, group)| group).chain([&self.world])
    }

    /// What has been counted, to be restored when what follows is no part of a step.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        self.all().map(Metered::totals).collect()
    }

    /// What has been counted since is forgotten.
    pub(crate) fn restore(&self, totals: Vec<Totals>) {
        self.all().zip(totals).for_each(|(comm, totals)| comm.restore(totals));
    }

    /// From now on every collective is written down, or none.
    pub(crate) fn watch(&self, wanted: bool) {
        self.all().for_each(|comm| comm.watch(wanted));
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.all().flat_map(Metered::seen).collect()
    }

    /// The account of all groups.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.all().flat_map(Metered::snapshot).collect()
    }

    pub(crate) fn reset(&self) {
        self.all().for_each(Metered::reset);
    }
}
