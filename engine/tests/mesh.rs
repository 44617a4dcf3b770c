//! The groups of meshes, beside those of Megatron-core's `RankGenerator`. `tests/interop/mesh.py` makes the list.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use zbench_engine::mesh::{Axes, Axis, Mesh};

#[derive(Deserialize)]
struct Expected {
    dense: Vec<Groups>,
    experts: Vec<Experts>,
}

#[derive(Deserialize)]
struct Experts {
    dense: Groups,
    expert: Groups,
}

#[derive(Deserialize)]
struct Groups {
    degrees: BTreeMap<String, usize>,
    /// By axes, joined by `-`: the groups.
    groups: BTreeMap<String, Vec<Vec<usize>>>,
}

fn expected() -> Expected {
    serde_json::from_str(include_str!("mesh/megatron.json")).unwrap()
}

/// All groups of these axes, in the order of their first ranks.
fn groups(mesh: &Mesh, axes: Axes) -> Vec<Vec<usize>> {
    let all: BTreeSet<Vec<usize>> = (0..mesh.world()).map(|rank| mesh.place(rank).group(axes)).collect();
    all.into_iter().collect()
}

/// The axes of Megatron's name, where its data axis is ours of shards and replicas.
fn dense(token: &str) -> Axes {
    token.split('-').fold(Axes::NONE, |axes, name| {
        axes | match name {
            "tp" => Axes::TENSOR,
            "cp" => Axes::of(&[Axis::Context]),
            "dp" => Axes::of(&[Axis::Shard, Axis::Replica]),
            "pp" => Axes::PIPELINE,
            other => panic!("no axis of ours is {other}"),
        }
    })
}

fn of_experts(token: &str) -> Axes {
    token.split('-').fold(Axes::NONE, |axes, name| {
        axes | match name {
            "tp" => Axes::of(&[Axis::ExpertTensor]),
            "ep" => Axes::EXPERT,
            "dp" => Axes::of(&[Axis::ExpertData]),
            "pp" => Axes::PIPELINE,
            other => panic!("no axis of ours is {other}"),
        }
    })
}

/// The meshes of a row: its data ranks as one shard group, and as every hybrid.
fn meshes(degrees: &BTreeMap<String, usize>, experts: [usize; 2]) -> Vec<Mesh> {
    let of = |name: &str| degrees[name];
    let data = of("dp");
    let hybrids = (1..=data).filter(|shard| data.is_multiple_of(*shard)).map(|shard| Mesh::hybrid(shard, data / shard));
    let all = [Mesh::data(data)].into_iter().chain(hybrids);
    all.map(|mesh| mesh.with([of("tp"), of("cp"), of("pp")], experts)).collect()
}

fn check(mesh: &Mesh, row: &Groups, axes: fn(&str) -> Axes) {
    assert!(row.groups.len() >= 6, "{:?}", row.groups.keys());
    for (token, expected) in &row.groups {
        assert_eq!(&groups(mesh, axes(token)), expected, "{token} of {:?}", row.degrees);
    }
}

#[test]
fn dense_groups_are_megatrons() {
    let rows = expected().dense;
    assert_eq!(rows.len(), 16);
    for row in &rows {
        meshes(&row.degrees, [1, 1]).iter().for_each(|mesh| check(mesh, row, dense));
    }
}

#[test]
fn groups_of_experts_are_megatrons() {
    let rows = expected().experts;
    assert_eq!(rows.len(), 4);
    for Experts { dense: of_stage, expert } in &rows {
        let degree = |name: &str| expert.degrees[name];
        for mesh in meshes(&of_stage.degrees, [degree("ep"), degree("tp")]) {
            assert_eq!(mesh.size(Axes::of(&[Axis::ExpertData])), degree("dp"));
            check(&mesh, of_stage, dense);
            check(&mesh, expert, of_experts);
        }
    }
}

#[test]
fn the_last_group_is_the_world() {
    let degrees = [1, 2, 3];
    for [tensor, context, pipeline] in degrees.map(|a| degrees.map(|b| degrees.map(|c| [a, b, c]))).concat().concat() {
        for expert in [1, 2] {
            for mesh in [Mesh::data(2), Mesh::hybrid(2, 1), Mesh::hybrid(1, 2)] {
                let mesh = mesh.with([tensor, context, pipeline], [expert, 1]);
                let groups = mesh.groups();
                assert_eq!(groups.last().unwrap().0, mesh.existing(Axes::WORLD), "{groups:?}");
                assert_eq!(mesh.size(groups.last().unwrap().0), mesh.world(), "{groups:?}");
                let names: BTreeSet<_> = groups.iter().map(|(_, name)| name).collect();
                let sets: BTreeSet<_> = groups.iter().map(|(axes, _)| axes).collect();
                assert_eq!((names.len(), sets.len()), (groups.len(), groups.len()), "{groups:?}");
            }
        }
    }
}

#[test]
fn ranks_of_a_group_agree_on_it_and_on_its_color() {
    let mesh = Mesh::hybrid(3, 2).with([2, 2, 2], [4, 3]);
    let axes = [Axes::SHARD, Axes::DATA, Axes::TENSOR, Axes::EXPERT, Axes::PIPELINE, Axes::WORLD];
    for axes in axes.into_iter().chain(Axis::ALL.map(|axis| Axes::of(&[axis]))) {
        for rank in 0..mesh.world() {
            let (place, group) = (mesh.place(rank), mesh.place(rank).group(axes));
            assert_eq!(group[place.index(axes)], rank);
            assert_eq!((group.len(), group[0]), (mesh.size(axes), place.color(axes)));
            let others = (0..mesh.world()).filter(|other| mesh.place(*other).color(axes) == place.color(axes));
            assert_eq!(others.collect::<Vec<_>>(), {
                let mut sorted = group.clone();
                sorted.sort_unstable();
                sorted
            });
        }
    }
}
