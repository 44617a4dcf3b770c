use super::*;
use crate::residuals::Residuals;
use std::collections::BTreeMap;
use zbench_collectives::GroupName;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Context, Document};
use zbench_engine::config::{MemoryTier, Strategy};
use zbench_engine::memory::moves::{MoveEvent, Moves};
use zbench_engine::plan::Plan;
use zbench_engine::planner::Planner;
use zbench_engine::planner::clock::Overheads;
use zbench_engine::planner::curves::{COPY, Class, Curves, Point};
use zbench_kernels::Cpu;
use zbench_reports::record::Record;

/// The quickstart's cells on four ranks: more than the two cores of these tests.
fn quickstart() -> Vec<GridCell> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs")).to_path_buf();
    let document = Document::read(&root.join("quickstart.toml"), &["parallel.ranks=4".to_string()]).unwrap();
    let context = Context::new(root, 2);
    grid::expand(&document, &[], grid::MOST_CELLS, &context, &mut Files::default()).unwrap()
}

fn cells() -> Vec<Cell> {
    quickstart().into_iter().map(|cell| cell.resolved.unwrap().cell).collect()
}

/// A nanosecond for a thousand products of sizes, whatever the operation: one point says it for all sizes.
fn curves(cells: &[Cell], without: &str) -> Curves {
    let mut points = BTreeMap::new();
    for cell in cells {
        let kernels = Cpu::new(1);
        for stated in Plan::new(cell, &kernels).unwrap().operations(cell, &kernels, 0) {
            let class = Class::of(&stated.op);
            points.insert(class.name, vec![1.0; class.sizes.len()]);
        }
    }
    points.remove(without);
    let mut curves = Curves::default();
    points.into_iter().for_each(|(name, sizes)| curves.add(&name, Point { sizes, seconds: 1e-12 }));
    curves
}

/// Collectives of any size take `us` microseconds.
fn fits(kinds: &[&str], ranks: &[usize], us: f64) -> Table {
    let mut text = String::new();
    for (kind, ranks) in kinds.iter().flat_map(|kind| ranks.iter().map(move |ranks| (kind, ranks))) {
        text += &format!(
            "[collectives.local.ranks-{ranks}.{kind}]\nfits = [{{ of = \"x\", type = \"float\", redop = \"sum\", factor = 1.0, in_place = true, segments = \
             [{{ from_bytes = 8, to_bytes = 1024, latency_us = {us:?}, points = 4, median_error = 0.0, worst_error = 0.0 \
             }}] }}]\n"
        );
    }
    text.parse::<Table>().unwrap()["collectives"].as_table().unwrap().clone()
}

const KINDS: [&str; 3] = ["all_reduce", "all_gather", "reduce_scatter"];

fn profile(cells: &[Cell], without: &str) -> TimeProfile {
    let layout = RankLayout { ranks: 4, threads: 1, crowded: true };
    let overheads = Overheads { operation: 1e-6, load: 2e-6, step: 3e-6, call: 4e-6, all_reduce: 4e-6, tensor: 4e-6 };
    let operations = vec![Operations { layout, curves: curves(cells, without), overheads, spread: 0.0 }];
    let fits = fits(&KINDS, &[2, 4], 50.0);
    TimeProfile { name: "m.toml".into(), cores: 2, operations, fits, corrections: None, ..TimeProfile::default() }
}

#[test]
fn every_cell_of_the_quickstart_has_a_time_that_adds_up() {
    let cells = cells();
    let profile = profile(&cells, "");
    for cell in &cells {
        let kernels = Cpu::new(1);
        let plan = Plan::new(cell, &kernels).unwrap();
        let time = profile.time(&Planner::default(), cell).unwrap();
        let spans: f64 = time.spans.iter().map(|(_, ms)| ms).sum();
        assert!((spans - time.step_ms).abs() < 1e-9 && time.step_ms > 0.0);
        let rate = plan.stage_plan_of(0).estimate.flops.tokens as f64 / time.step_ms * 1e3;
        assert!((time.tokens_per_second / rate - 1.0).abs() < 1e-12);
        // By hand: four ranks on two cores take twice as long; each collective 50 us and 4 of waiting, or twice that where two groups of two
        // ranks talk on the same two cores; nothing else is in a step.
        let stated = plan.operations(cell, &kernels, 0);
        let operations: f64 = stated
            .iter()
            .map(|stated| 1e-12 * Class::of(&stated.op).sizes.iter().product::<f64>().max(1.0) + 1e-6)
            .sum();
        let loads = cell.train.accumulation as f64 * 2e-6;
        let calls: f64 = plan
            .stage_plan_of(0)
            .estimate
            .traffic
            .iter()
            .map(|row| row.calls * (4e-6 + if row.ranks == 2 { 100e-6 } else { 50e-6 }))
            .sum();
        let seconds = 2.0 * (operations + loads + 3e-6) + calls;
        assert!((time.step_ms / (seconds * 1e3) - 1.0).abs() < 1e-9, "{} for {}", time.step_ms, seconds * 1e3);
    }
}

#[test]
fn a_timeline_is_the_same_time_action_by_action() {
    let cells = cells();
    let profile = profile(&cells, "");
    for cell in &cells {
        let time = profile.time(&Planner::default(), cell).unwrap();
        let line = profile.timelines(&Planner::default(), cell).unwrap().swap_remove(0);
        for (span, ms) in time.spans.iter() {
            let sum: f64 = line.iter().filter(|stretch| stretch.span.name() == span).map(|stretch| stretch.ms).sum();
            assert!((sum - ms).abs() < 1e-9, "{span}: {sum} and {ms}");
        }
        let mut actions: Vec<_> = line.iter().filter_map(|stretch| stretch.action).collect();
        actions.dedup();
        let plan = Plan::new(cell, &Cpu::new(1)).unwrap();
        let mut planned = plan.stage_plan_of(0).actions.iter();
        assert!(actions.iter().all(|action| planned.any(|other| other == action)), "in the plan's order");
    }
}

#[test]
fn a_message_takes_as_long_as_a_sendrecv_of_its_size() {
    let cells = cells();
    let message =
        |kind| Collective { axis: GroupName::Pipeline, kind, ranks: 4, bytes: 64, in_place: true, is_started: false };
    let of = |kinds: &[&str]| TimeProfile { fits: fits(kinds, &[4], 30.0), ..profile(&cells, "") };
    let time = |profile: &TimeProfile| {
        let fits = Fits { profile, cell: &cells[0], drive: OnceCell::new() };
        // Of any type: its bytes are copied.
        [DType::F32, DType::Bf16].map(|dtype| fits.collective(&message(CollectiveKind::Recv), dtype))
    };
    assert_eq!(time(&of(&["sendrecv"])), [Ok(30.0 * 1e-6), Ok(30.0 * 1e-6)]);
    let [reason, _] = time(&of(&KINDS)).map(Result::unwrap_err);
    assert!(reason.ends_with("`zbench allreduce --backend local --ranks 4 --collective sendrecv --save`"), "{reason}");
}

#[test]
fn what_was_not_measured_is_named_with_what_to_do() {
    let cells = cells();
    let fsdp = cells.iter().find(|cell| cell.parallel.strategy == zbench_engine::config::Strategy::Fsdp).unwrap();
    let reason = profile(&cells, "adamw f32").time(&Planner::default(), fsdp).unwrap_err();
    assert!(reason.contains("\"adamw f32\"") && reason.contains("zbench calibrate"), "{reason}");
    let few = TimeProfile { fits: fits(&["all_gather"], &[4], 1.0), ..profile(&cells, "") };
    let reason = few.time(&Planner::default(), fsdp).unwrap_err();
    for part in ["reduce_scatter", "4 ranks of local", "zbench allreduce --backend local --ranks 4", "-d float"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(!reason.contains("calibrate"), "{reason}");
    let mut threads = fsdp.clone();
    threads.hardware.threads_per_rank = 3;
    let reason = profile(&cells, "").time(&Planner::default(), &threads).unwrap_err();
    assert!(reason.contains("--threads 3") && reason.contains("4 ranks of 1 thread"), "{reason}");
    let mut cuda = fsdp.clone();
    cuda.hardware.device = DeviceKind::Cuda;
    assert!(profile(&cells, "").time(&Planner::default(), &cuda).unwrap_err().contains("CPU"));
    // Two ranks have cores of their own; their times are taken from four on two cores, and that is said.
    let mut two = fsdp.clone();
    (two.parallel.ranks, two.parallel.shard) = (2, 2);
    let source = profile(&cells, "").time(&Planner::default(), &two).unwrap().source;
    assert!(source.contains("4 ranks of 1 thread"), "{source}");
}

#[test]
fn a_profile_that_is_not_there_or_has_no_times_is_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.toml");
    let reason = TimeProfile::read(&path).unwrap_err();
    assert!(reason.contains("zbench calibrate") && reason.contains("m.toml"), "{reason}");
    std::fs::write(&path, "device = \"cpu\"\n").unwrap();
    assert!(TimeProfile::read(&path).unwrap_err().contains("no times of operations"));
    std::fs::write(&path, "device = ").unwrap();
    assert!(TimeProfile::read(&path).is_err());
    // As calibrate writes it, read as a whole.
    std::fs::write(&path, "device = \"cpu\"\n").unwrap();
    let cells = cells();
    operations::save(&path, &profile(&cells, "").operations, "today", 2).unwrap();
    let reason = TimeProfile::read(&path).unwrap().time(&Planner::default(), &cells[0]).unwrap_err();
    assert!(reason.contains("no fit of"), "{reason}");
}

#[test]
fn corrections_are_applied_and_said() {
    let cells = cells();
    let plain = profile(&cells, "").time(&Planner::default(), &cells[0]).unwrap();
    let value: Table =
        "made = \"today\"\nspans = [{ of = \"forward\", factor = 2.0, low = 1.5, high = 2.5, records = 7 }]"
            .parse()
            .unwrap();
    let corrections = Some(corrections::of_value(&Value::Table(value)).unwrap());
    let corrected = TimeProfile { corrections, ..profile(&cells, "") };
    let time = corrected.time(&Planner::default(), &cells[0]).unwrap();
    let forward = plain.spans.iter().find(|(name, _)| *name == "forward").unwrap().1;
    assert!((time.step_ms - plain.step_ms - forward).abs() < 1e-9);
    assert!(time.source.contains("forward x2.00 (1.50 to 2.50, 7 records)"), "{}", time.source);
    assert_eq!(corrected.uncorrected().time(&Planner::default(), &cells[0]).unwrap(), plain);
}

/// The first cell of the quickstart under zero3, with state elsewhere.
fn offloaded(optimizer: MemoryTier, activations: MemoryTier, prefetch: usize) -> Cell {
    let mut cell = cells().into_iter().find(|cell| cell.parallel.strategy == Strategy::Zero3).unwrap();
    (cell.memory.offload_optimizer, cell.memory.offload_activations) = (optimizer, activations);
    (cell.memory.offload_parameters, cell.memory.offload_prefetch) = (optimizer, prefetch);
    cell
}

/// What a step moves, in order, and that it is what the estimate counts; every transfer is waited for once, after it began.
#[test]
fn recorded_moves_are_those_of_the_estimate_and_all_are_waited_for() {
    let placements =
        [MemoryTier::Host, MemoryTier::Disk].map(|of| MemoryTier::ALL.map(|activations| (of, activations)));
    for (optimizer, activations) in placements.into_iter().flatten() {
        for prefetch in [0, 1, 3] {
            let cell = offloaded(optimizer, activations, prefetch);
            let kernels = Cpu::new(1);
            let plan = Plan::new(&cell, &kernels).unwrap();
            let counted = Moves::default();
            let (mut begun, mut waited) = (Vec::new(), Vec::new());
            for event in plan.recorded_actions(&cell, &kernels, 0).flat_map(|recorded| recorded.moves) {
                match event {
                    MoveEvent::Copy(of) => counted.count(of),
                    MoveEvent::Start { transfer, of } => {
                        counted.count(of);
                        begun.push(transfer);
                    }
                    MoveEvent::Wait { transfer } => {
                        assert!(begun.contains(&transfer) && !waited.contains(&transfer), "{transfer}");
                        waited.push(transfer);
                    }
                }
            }
            waited.sort_unstable();
            assert_eq!(begun, waited);
            assert_eq!(begun.is_empty(), [optimizer, activations].iter().all(|home| *home != MemoryTier::Disk));
            let planned = &plan.stage_plan_of(0).estimate.moves;
            assert_eq!((&counted.counted(), planned.is_empty()), (planned, false));
        }
    }
}

/// Copies take what their curve says and are booked as offload; nothing of a disk is in such a step.
#[test]
fn moves_to_the_host_are_timed_by_the_curve_of_copies() {
    let cell = offloaded(MemoryTier::Host, MemoryTier::Host, 1);
    let mut profile = profile(std::slice::from_ref(&cell), "");
    let reason = profile.time(&Planner::default(), &cell).unwrap_err();
    assert!(reason.contains("\"copy\"") && reason.contains("zbench calibrate"), "{reason}");
    profile.operations[0].curves.add(COPY, Point { sizes: vec![1.0], seconds: 1e-9 });
    let time = profile.time(&Planner::default(), &cell).unwrap();
    let plan = Plan::new(&cell, &Cpu::new(1)).unwrap();
    // By hand: a nanosecond for a byte and a microsecond for each, twice, as four ranks are on two cores.
    let of = |transfer: &zbench_engine::observe::outcome::Transfer| transfer.bytes * 1e-9 + transfer.moves * 1e-6;
    let seconds: f64 = 2.0 * plan.stage_plan_of(0).estimate.moves.iter().map(of).sum::<f64>();
    let offload = *time.spans.get("offload").unwrap();
    assert!((offload / (seconds * 1e3) - 1.0).abs() < 1e-9, "{offload} ms for {seconds} s");
    assert!((time.spans.iter().map(|(_, ms)| ms).sum::<f64>() - time.step_ms).abs() < 1e-9);
    assert!(!time.source.contains("transfers"), "{}", time.source);
}

/// Rates of the profile come first, of a folder on the same file system; without any, and without leave to measure, the reason says
/// which commands measure them.
#[test]
fn transfers_of_a_disk_are_timed_by_the_profiles_rates() {
    use zbench_config::profile::drives::DriveRate;
    let folder = tempfile::tempdir().unwrap();
    let mut cell = offloaded(MemoryTier::Disk, MemoryTier::Disk, 0);
    cell.memory.offload_path = Some(folder.path().into());
    let mut profile = profile(std::slice::from_ref(&cell), "").without_measuring();
    profile.operations[0].curves.add(COPY, Point { sizes: vec![1.0], seconds: 1e-12 });
    let reason = profile.time(&Planner::default(), &cell).unwrap_err();
    assert!(reason.contains("zbench io --dir") && reason.contains("--from-notebook"), "{reason}");
    let time = |rate: f64, prefetch: usize| {
        let rate = DriveRate { bytes: 1, read: rate, write: rate };
        let drives = vec![DriveRates { folder: folder.path().into(), measured: "today".into(), rates: vec![rate] }];
        let memory = zbench_engine::config::Memory { offload_prefetch: prefetch, ..cell.memory.clone() };
        let profile = TimeProfile {
            drives,
            operations: profile.operations.clone(),
            fits: profile.fits.clone(),
            ..TimeProfile::default()
        };
        let profile = TimeProfile { cores: 2, ..profile };
        profile.time(&Planner::default(), &Cell { memory, ..cell.clone() }).unwrap()
    };
    let slow = time(1e6, 0);
    assert!(slow.source.contains("records of zbench io") && slow.source.contains("4 ranks"), "{}", slow.source);
    // Of a slow drive nearly all is exposed: bytes at a quarter of its rate each way.
    let plan = Plan::new(&cell, &Cpu::new(1)).unwrap();
    let of_disk = |of: &&zbench_engine::observe::outcome::Transfer| [of.from, of.to].contains(&MemoryTier::Disk);
    let bytes: f64 = plan.stage_plan_of(0).estimate.moves.iter().filter(of_disk).map(|of| of.bytes).sum();
    let offload = slow.spans.get("offload").unwrap() / (bytes * 4.0 / 1e6 * 1e3);
    assert!((0.9..1.1).contains(&offload), "{offload}");
    // A faster drive takes less, and what is fetched ahead never more.
    let steps = [time(1e6, 0), time(1e6, 1), time(1e9, 0), time(1e9, 1)].map(|time| time.step_ms);
    assert!(steps[1] <= steps[0] && steps[3] <= steps[2] && steps[2] < steps[0], "{steps:?}");
    // Where it may, it measures the drive.
    let measures = TimeProfile { measures_nothing: false, ..profile };
    let source = measures.time(&Planner::default(), &cell).unwrap().source;
    assert!(source.contains("measured now with 4 files"), "{source}");
}

#[test]
fn a_size_is_priced_by_the_line_it_lies_on_or_is_nearest_to() {
    let line = |from_bytes, to_bytes, latency_us| Segment { from_bytes, to_bytes, latency_us, ..Segment::default() };
    let segments = [line(8, 100, 1.0), line(1000, 10_000, 2.0)];
    let found = |bytes| time_us(&segments, bytes).unwrap();
    assert_eq!([1.0, 50.0, 300.0, 400.0, 5000.0, 1e9].map(found), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert_eq!(time_us(&[], 8.0), None);
}

#[test]
fn a_row_states_its_time_or_the_reason() {
    let grid = quickstart().swap_remove(0);
    let mut planned = crate::planned::plan(&Planner::default(), grid, None);
    let profile = profile(&cells(), "");
    let time = profile.time(&Planner::default(), planned.cell().unwrap()).unwrap();
    let flops = planned.estimate.as_ref().unwrap().flops.clone();
    assert_eq!(time.model_flops_per_rank, flops.model / 4.0);
    let spans = [("forward", 2.0)].into_iter().collect();
    planned.timing = Ok(Timing { step_ms: 2.0, spans, tokens_per_second: 8.0, source: "s".into(), ..time });
    let row = planned.row();
    assert_eq!(
        (row.step_ms, row.time.get("forward").copied(), row.tokens_per_second),
        (Some(2.0), Some(2.0), Some(8.0))
    );
    assert_eq!((row.tokens_per_second_per_rank, row.time_source.as_str()), (Some(2.0), "s"));
    assert_eq!(row.tflops_per_rank, Some(flops.model / 4.0 / 2e-3 / 1e12));
    planned.timing = Err("no profile".into());
    let row = planned.row();
    assert_eq!((row.step_ms, row.time_source.as_str()), (None, "no profile"));
}

/// Three records of this host that took twice as long as predicted, and one of another host that did not.
#[test]
fn residuals_are_of_this_hosts_records() {
    use zbench_reports::record::{Bytes, Category, Outcome};
    let cells = cells();
    let profile = profile(&cells, "");
    let record = |cell: &Cell, host: &str, factor: f64| {
        let time = profile.time(&Planner::default(), cell).unwrap();
        let mut record = Record::new("id", "key", "x", Outcome::measured());
        record.environment.insert("host".into(), host.into());
        record.cell = grid::plain(cell);
        record.state("step_ms_p50", factor * time.step_ms);
        time.spans.iter().for_each(|(name, ms)| record.time.set(name, factor * ms));
        let bytes = Bytes { predicted_bytes: Some(100), peak_bytes: Some(100), ..Bytes::default() };
        record.memory.set(Category::Gradients, bytes);
        record
    };
    let mut records: Vec<Record> = cells[..3].iter().map(|cell| record(cell, "here", 2.0)).collect();
    records.push(record(&cells[0], "elsewhere", 7.0));
    let residuals = Residuals::of(&records, "here", &profile);
    let step = residuals.step.clone().unwrap();
    assert_eq!((residuals.records, step.records), (3, 3));
    assert!((step.factor - 2.0).abs() < 1e-9 && (residuals.step_error().unwrap() - 1.0).abs() < 1e-9);
    assert!(residuals.spans.iter().any(|span| span.name == "forward" && (span.factor - 2.0).abs() < 1e-9));
    assert!(residuals.memory.iter().all(|of| of.factor == 1.0 && of.name == "gradients"));
    assert_eq!(residuals.memory.len(), 1);
    let document = serde_json::to_string(&residuals.document()).unwrap();
    assert!(document.contains("forward") && document.contains("gradients"), "{document}");
    // Too few say nothing about the error to be expected.
    assert_eq!(Residuals::of(&records[..2], "here", &profile).step_error(), None);
}
