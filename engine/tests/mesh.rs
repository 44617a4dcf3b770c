//! The groups of meshes, beside those of Megatron-core's `RankGenerator`. `tests/interop/mesh.py` makes the list.

use proptest::prelude::*;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use zbench_engine::config::{BUCKET_MB, Backend, Degrees, Parallel, STALL, Strategy as Sharding};
use zbench_engine::mesh::strategy;
use zbench_engine::mesh::strategy::MeshError;
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

fn parallel(ranks: usize, strategy: Sharding, shard: usize, degrees: Degrees) -> Parallel {
    Parallel {
        ranks,
        ranks_per_node: None,
        strategy,
        shard,
        degrees,
        pipeline_split: Vec::new(),
        tensor_chunks: 1,
        prefetch: 1,
        bucket_mb: BUCKET_MB,
        backend: Backend::Local,
        stall: STALL,
    }
}

/// The numbers after the last "write".
fn suggested(reason: &str) -> Vec<usize> {
    let (_, ways) = reason.rsplit_once("write ").expect("a way out");
    ways.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// `given` with another value of a key.
fn with(given: &Parallel, key: &str, value: usize) -> Parallel {
    let mut given = given.clone();
    *match key {
        "parallel.ranks" => &mut given.ranks,
        "parallel.shard" => &mut given.shard,
        "parallel.tensor" => &mut given.degrees.tensor,
        "parallel.sequence" => &mut given.degrees.sequence,
        "parallel.pipeline" => &mut given.degrees.pipeline,
        "parallel.context" => &mut given.degrees.context,
        "parallel.expert" => &mut given.degrees.expert,
        "parallel.expert_tensor" => &mut given.degrees.expert_tensor,
        other => panic!("{other} is no key of a mesh"),
    } = value;
    given
}

/// Where a key stands among those that are checked.
fn order(key: &str) -> usize {
    let keys = ["parallel.ranks", "parallel.sequence", "parallel.shard", "parallel.expert", "parallel.expert_tensor"];
    keys.iter().position(|known| *known == key).unwrap_or(0)
}

/// Small numbers, which often fit, beside zero and such as no product may exceed.
fn any_degree() -> impl Strategy<Value = usize> {
    let huge = prop::sample::select(vec![1 << 31, 1 << 40, (1 << 40) - 1, 1 << 62, usize::MAX - 1, usize::MAX]);
    prop_oneof![8 => 1..=4usize, 4 => 0..=64usize, 1 => huge, 1 => any::<usize>()]
}

proptest! {
    #[test]
    fn any_degrees_make_a_mesh_of_all_ranks_or_an_error_with_a_way_out(
        ranks in prop_oneof![4 => any_degree(), 4 => (0..10u32, 0..3u32).prop_map(|(two, three)| 2usize.pow(two) * 3usize.pow(three))],
        hybrid in any::<bool>(),
        shard in any_degree(),
        degrees in [any_degree(), any_degree(), any_degree(), any_degree(), any_degree(), any_degree()],
    ) {
        let [tensor, sequence, pipeline, context, expert, expert_tensor] = degrees;
        let degrees = Degrees { tensor, sequence, pipeline, context, expert, expert_tensor, ..Degrees::default() };
        let given = parallel(ranks, if hybrid { Sharding::Hsdp } else { Sharding::Fsdp }, shard, degrees);
        match strategy::mesh(&given) {
            Ok(mesh) => {
                prop_assert_eq!(mesh.world(), ranks);
                prop_assert_eq!(mesh.size(Axes::EXPERT | Axes::of(&[Axis::ExpertTensor, Axis::ExpertData])), ranks / pipeline);
                let last = mesh.place(ranks - 1);
                prop_assert_eq!(last.index(Axes::WORLD), ranks - 1);
            }
            Err(MeshError { key, other, reason }) => {
                prop_assert!(key.starts_with("parallel.") && other.starts_with("parallel."));
                for value in suggested(&reason) {
                    // What is checked later may still be wrong.
                    match strategy::mesh(&with(&given, key, value)) {
                        Err(next) if next.key == key => prop_assert!(next.reason != reason && value > 0, "{}: {}", reason, next),
                        Err(_) if reason.starts_with("is 0") => {}
                        Err(next) => prop_assert!(order(next.key) >= order(key), "{}: {}", reason, next),
                        Ok(_) => {}
                    }
                }
            }
        }
    }
}

#[test]
fn errors_name_the_nearest_values_on_both_sides() {
    let one = Degrees::default();
    let said = |ranks, shard, degrees| {
        let strategy = if shard > 0 { Sharding::Hsdp } else { Sharding::Fsdp };
        let MeshError { key, reason, .. } = strategy::mesh(&parallel(ranks, strategy, shard, degrees)).unwrap_err();
        (key, suggested(&reason))
    };
    let replica = Degrees { tensor: 2, pipeline: 3, ..one };
    assert_eq!(said(20, 0, replica), ("parallel.ranks", vec![18, 24]));
    assert_eq!(said(5, 0, replica), ("parallel.ranks", vec![6]));
    assert_eq!(said(8, 0, Degrees { sequence: 2, ..one }), ("parallel.sequence", vec![1]));
    assert_eq!(said(60, 7, one), ("parallel.shard", vec![6, 10]));
    assert_eq!(said(60, 61, one), ("parallel.shard", vec![60]));
    assert_eq!(said(60, 7, Degrees { tensor: 2, ..one }), ("parallel.shard", vec![6, 10]));
    assert_eq!(said(48, 0, Degrees { pipeline: 2, expert: 7, ..one }), ("parallel.expert", vec![6, 8]));
    assert_eq!(said(48, 0, Degrees { expert: 4, expert_tensor: 5, ..one }), ("parallel.expert_tensor", vec![4, 6]));
    // A prime, and the square of one.
    assert_eq!(said(65_537, 2, one), ("parallel.shard", vec![1, 65_537]));
    assert_eq!(said(65_521 * 65_521, 2, one), ("parallel.shard", vec![1, 65_521]));
    // Products that no number holds.
    assert_eq!(said(8, 0, Degrees { tensor: 1 << 40, context: 1 << 40, ..one }), ("parallel.ranks", vec![]));
    assert_eq!(said(8, 0, Degrees { tensor: 1 << 62, ..one }), ("parallel.ranks", vec![1 << 62]));
}
