use super::*;
use crate::calibrate::probes::{probes, rank_layouts};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use zbench_collectives::GroupName;
use zbench_config::files::Files;
use zbench_config::{Context, Document, grid};
use zbench_engine::config::DeviceKind;
use zbench_kernels::Cpu;

const TWO: RankLayout = RankLayout { ranks: 2, threads: 1, crowded: false };

/// The classes that a cell's step has, with their smallest and largest product of sizes.
fn classes(cell: &Cell) -> BTreeSet<String> {
    let kernels = Cpu::new(cell.hardware.threads_per_rank);
    let plan = Plan::new(cell, &kernels).unwrap();
    let actions: Vec<RecordedAction> = plan.recorded_actions(cell, &kernels, 0).collect();
    // By action or in one list: the same operations.
    let flat: Vec<Recorded> = actions.iter().flat_map(|stated| stated.operations.clone()).collect();
    assert_eq!(flat, plan.operations(cell, &kernels, 0));
    flat.iter().map(|stated| Class::of(&stated.op).name).collect()
}

fn all_classes(layout: RankLayout) -> BTreeSet<String> {
    probes(layout).unwrap().iter().flat_map(|probe| classes(&probe.cell)).collect()
}

/// Every operation that cells of these files state, on the CPU, is timed by a probe of the same kernel, form and types.
#[test]
fn probes_have_every_operation_of_our_configurations() {
    let (all, crowded) = (all_classes(TWO), all_classes(RankLayout { ranks: 4, threads: 1, crowded: true }));
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs")).to_path_buf();
    let mut cells = 0;
    for file in ["quickstart.toml", "precision-table.toml", "two-nodes.toml", "offload.toml", "mesh.toml"] {
        let document = Document::read(&root.join(file), &[]).unwrap();
        let context = Context::new(root.clone(), 2);
        let expanded = grid::expand(&document, &[], grid::MOST_CELLS, &context, &mut Files::default()).unwrap();
        for cell in expanded.iter().filter_map(|cell| cell.resolved.as_ref().ok()) {
            if cell.cell.hardware.device != DeviceKind::Cpu {
                continue;
            }
            cells += 1;
            let missing: Vec<String> = classes(&cell.cell).difference(&all).cloned().collect();
            assert!(missing.is_empty(), "{file}: {missing:?}");
            if ["quickstart.toml", "mesh.toml"].contains(&file) {
                let missing: Vec<String> = classes(&cell.cell).difference(&crowded).cloned().collect();
                assert!(missing.is_empty(), "{file}, crowded: {missing:?}");
            }
        }
    }
    assert!(cells > 41, "{cells} cells");
}

/// An odd number of ranks has no pairs of tensor ranks, and all other probes.
#[test]
fn one_rank_has_the_probes_without_tensor_ranks() {
    let one = probes(RankLayout { ranks: 1, threads: 2, crowded: false }).unwrap();
    let two = probes(TWO).unwrap();
    let pairs = two.iter().filter(|probe| probe.cell.parallel.degrees.tensor > 1).count();
    assert!(pairs > 0 && one.len() + pairs == two.len(), "{} {} {pairs}", one.len(), two.len());
}

/// Kernels that no configuration of ours may have, and some may.
#[test]
fn probes_have_the_kernels_of_every_family() {
    let all = all_classes(TWO);
    for kernel in [
        "gemm_prepacked",
        "prepack",
        "layer_norm",
        "layer_norm_backward",
        "add_rows",
        "add_rows_backward",
        "mul_rows",
        "mul_rows_backward",
        "inverse_norms",
        "naive_attention",
        "naive_attention_backward",
        "activate",
        "activate_backward",
        "dropout",
        "scale",
        "accumulate",
        "unpack",
        "route",
        "route_backward",
        "dispatch",
        "combine",
        "weigh",
        "grouped_gemm",
        "cast",
        "fill",
        "sum",
        "sum_squares",
        "embedding",
        "embedding_backward",
        "cross_entropy",
        "adamw",
        "rope",
        "swiglu",
        "swiglu_backward",
        "rms_norm",
        "rms_norm_backward",
        "gemm",
        "attention",
        "attention_backward",
    ] {
        for dtype in ["f32", "bf16"] {
            let found = all.iter().any(|class| class.split(' ').next() == Some(kernel) && class.contains(dtype));
            // Sums are of f32 whatever the type of the rest.
            let only_wide = ["sum"].contains(&kernel) && dtype == "bf16";
            assert!(found || only_wide, "no probe has {kernel} in {dtype}: {all:?}");
        }
    }
}

#[test]
fn seats_fill_the_cores_and_then_crowd_them() {
    let layout = |ranks, threads, crowded| RankLayout { ranks, threads, crowded };
    assert_eq!(rank_layouts(&[1, 2], 2), [layout(2, 1, false), layout(4, 1, true), layout(1, 2, false)]);
    assert_eq!(rank_layouts(&[1, 16], 16), [layout(16, 1, false), layout(32, 1, true), layout(1, 16, false)]);
    assert_eq!(rank_layouts(&[1], 1), [layout(1, 1, false), layout(2, 1, true)]);
    assert_eq!(rank_layouts(&[3], 8), [layout(2, 3, false)]);
}

/// Not how long, which depends on the machine: that each operation of a probe has a time above nothing, once by size.
#[test]
fn every_operation_of_a_probe_has_a_time() {
    let mut chosen = probes(TWO).unwrap();
    chosen.retain(|probe| probe.cell.model.hidden_size < 100);
    chosen.truncate(1);
    let wanted = classes(&chosen[0].cell);
    let stop = AtomicBool::new(false);
    let limits = Limits { stop: &stop, deadline: Instant::now() + Duration::from_secs(600), parts: None };
    let mut told = Vec::new();
    let measured = measure(&[(TWO, chosen)], 2, 2, &limits, &mut |done, all| told.push((done, all))).unwrap();
    assert_eq!((told, measured.len(), measured[0].layout), (vec![(1, 2), (2, 2)], 1, TWO));
    let found: BTreeSet<String> = measured[0].curves.classes().map(|(name, _)| name.to_string()).collect();
    assert_eq!(found, wanted);
    let mut points = measured[0].curves.classes().flat_map(|(_, points)| points);
    assert!(points.all(|point| point.seconds > 0.0 && point.seconds < 600.0));
    assert!(measured[0].spread >= 0.0 && measured[0].overheads.load > 0.0);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let stopped = measure(&[(TWO, probes(TWO).unwrap())], 1, 2, &limits, &mut |_, _| {});
    assert!(matches!(stopped, Err(OperationsError::Stopped)));
}

/// Copies of offloaded state, by the sizes that the plan moves.
#[test]
fn moves_of_offloaded_state_have_times() {
    let mut chosen = probes(TWO).unwrap();
    chosen.retain(|probe| probe.cell.memory.offloads());
    assert!(chosen.iter().any(|probe| probe.cell.model.hidden_size == 1024), "large copies, too");
    chosen.truncate(1);
    let stop = AtomicBool::new(false);
    let limits = Limits { stop: &stop, deadline: Instant::now() + Duration::from_secs(600), parts: None };
    let cell = chosen[0].cell.clone();
    let measured = measure(&[(TWO, chosen)], 1, 2, &limits, &mut |_, _| {}).unwrap();
    let kernels = Cpu::new(1);
    let plan = Plan::new(&cell, &kernels).unwrap();
    let events = plan.recorded_actions(&cell, &kernels, 0).flat_map(|stated| stated.moves);
    let sizes: BTreeSet<u64> = events
        .map(|event| match event {
            MoveEvent::Copy(of) => of.bytes,
            other => panic!("{other:?} in a cell without a disk"),
        })
        .collect();
    let points = measured[0].curves.classes().find(|(name, _)| *name == COPY).unwrap().1;
    assert!(points.iter().all(|point| point.seconds > 0.0));
    assert_eq!(points.iter().map(|point| point.sizes[0] as u64).collect::<BTreeSet<_>>(), sizes);
}

#[test]
fn the_middle_leaves_out_what_is_odd() {
    assert_eq!(middle(vec![1.0]), 1.0);
    assert_eq!(middle(vec![100.0, 2.0, 4.0, 0.1]), 3.0);
    assert_eq!(middle(vec![3.0, 1.0]), 2.0);
}

#[test]
fn crowded_seats_take_long_operations_from_the_others() {
    let of = |layout, points: &[(f64, f64)], operation| {
        let mut curves = Curves::default();
        points
            .iter()
            .for_each(|(size, seconds)| curves.add("fill f32", Point { sizes: vec![*size], seconds: *seconds }));
        Operations { layout, curves, overheads: Overheads { operation, ..Overheads::default() }, spread: 0.0 }
    };
    let crowded = RankLayout { ranks: 4, threads: 1, crowded: true };
    let mut all = [of(TWO, &[(10.0, 1.0), (100.0, 2.0)], 3.0), of(crowded, &[(10.0, 5.0), (20.0, 6.0)], 9.0)];
    complete(&mut all);
    let points: Vec<(f64, f64)> =
        all[1].curves.classes().flat_map(|(_, points)| points).map(|p| (p.sizes[0], p.seconds)).collect();
    assert_eq!((points, all[1].overheads.operation), (vec![(10.0, 5.0), (20.0, 6.0), (100.0, 2.0)], 3.0));
}

/// A step of 100 us with two operations of 10 us, two collectives that take 15 us alone, on two ranks to a core: 22.5 us of
/// waiting for each collective.
#[test]
fn what_is_neither_operation_nor_collective_is_waiting() {
    let mut curves = Curves::default();
    curves.add("fill f32", Point { sizes: vec![8.0], seconds: 10e-6 });
    let layout = RankLayout { ranks: 4, threads: 1, crowded: true };
    let of = Operations { layout, curves, overheads: Overheads::default(), spread: 0.0 };
    let fill = zbench_kernels::Elementwise { len: 8, sources: 0, from: DType::F32, to: DType::F32 };
    let operation =
        Recorded { phase: zbench_engine::compute::recorder::Phase::Forward, term: "x", op: Op::Fill(fill, 0.0) };
    let call = Collective {
        axis: GroupName::Data,
        kind: CollectiveKind::AllGather,
        ranks: 4,
        bytes: 64,
        in_place: false,
        is_started: false,
    };
    let action = Action::Forward { micro: 0, layer: 0 };
    let stated = RecordedAction {
        action,
        operations: vec![operation; 2],
        collectives: vec![call; 2],
        moves: Vec::new(),
        overlaps: Vec::new(),
        least: 0.0,
    };
    let split = SplitStep { stated: vec![stated], reduce: DType::F32, step: 100e-6, alone: 15e-6 };
    assert!((waiting(&of, &[split], 2, Calls::Others) - 22.5e-6).abs() < 1e-12);
    assert_eq!(waiting(&of, &[], 2, Calls::Others), 0.0);
    // With the gather at 22.5 us, the all-reduce beside it has the other 62.5 of the 85 that are left in a step of 140 us.
    let known = Operations { overheads: Overheads { call: 22.5e-6, ..Overheads::default() }, ..of.clone() };
    let sum = Collective { kind: CollectiveKind::AllReduce, ..call };
    let stated = vec![RecordedAction {
        action,
        operations: vec![operation; 2],
        collectives: vec![call, sum],
        moves: Vec::new(),
        overlaps: Vec::new(),
        least: 0.0,
    }];
    let split = SplitStep { stated, reduce: DType::F32, step: 140e-6, alone: 15e-6 };
    assert!((waiting(&known, &[split], 2, Calls::AllReduces) - 62.5e-6).abs() < 1e-12);
    // The same step between tensor ranks says nothing of data ranks: its two calls have 42.5 us each.
    let stated = vec![RecordedAction {
        action,
        operations: vec![operation; 2],
        collectives: [call, sum].map(|call| Collective { axis: GroupName::Tensor, ..call }).to_vec(),
        moves: Vec::new(),
        overlaps: Vec::new(),
        least: 0.0,
    }];
    let split = [SplitStep { stated, reduce: DType::F32, step: 140e-6, alone: 15e-6 }];
    assert!((waiting(&of, &split, 2, Calls::OfTensorRanks) - 42.5e-6).abs() < 1e-12);
    assert_eq!([Calls::Others, Calls::AllReduces].map(|which| waiting(&of, &split, 2, which)), [0.0; 2]);
}

/// The split probes are there, with ranks that wait and collectives that are replayed.
#[test]
fn waiting_is_measured_in_a_probe_whose_weights_are_split() {
    let mut chosen = probes(TWO).unwrap();
    chosen.retain(|probe| probe.cell.model.num_hidden_layers == WAITING_BLOCKS);
    assert_eq!(chosen.len(), 3, "one with all-reduces, one without, and one of tensor ranks");
    let mut sums = Vec::new();
    for probe in &chosen {
        let split = run(&probe.cell).unwrap().split.unwrap();
        let calls: Vec<Collective> = split.stated.iter().flat_map(|stated| stated.collectives.clone()).collect();
        if probe.cell.parallel.degrees.tensor > 1 {
            assert!(calls.iter().filter(|call| call.axis == GroupName::Tensor).count() > 16, "{calls:?}");
            continue;
        }
        assert!(calls.len() > 4 && split.alone > 0.0 && split.step > 0.0, "{} {}", split.alone, split.step);
        sums.push(calls.iter().filter(|call| call.kind == CollectiveKind::AllReduce).count());
    }
    assert!(sums.contains(&0) && sums.iter().any(|count| *count > 4), "{sums:?}");
}

/// Ranks that outnumber the cores are all tensor ranks of one group in a probe, whose collectives are replayed, too.
#[test]
fn waits_of_crowded_tensor_ranks_are_measured() {
    let crowded = RankLayout { ranks: 4, threads: 1, crowded: true };
    let mut chosen = probes(crowded).unwrap();
    chosen.retain(|probe| probe.cell.parallel.degrees.tensor == 4);
    assert_eq!(chosen.len(), 1);
    let split = run(&chosen[0].cell).unwrap().split.unwrap();
    assert!(split.alone > 0.0 && split.step > split.alone, "{} {}", split.step, split.alone);
}
