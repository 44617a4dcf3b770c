//! Pipelines train: the bits of the same strategy without one, in every schedule, and bytes as planned on every stage.

use crate::training::accounting::measure;
use crate::training::identity::{odd, strategies};
use crate::training::resume::{Course, assert_goes_on, bits as bits_of, course, layouts, saved, saving, six_steps};
use crate::training::support::*;
use std::collections::BTreeMap;
use zbench_collectives::Traffic;
use zbench_engine::action::Action;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::Happening;
use zbench_kernels::{Category, DType};
use zbench_test_tiers as tiers;

/// Every schedule, with the chunks of layers on each stage.
pub const SCHEDULES: [(PipelineSchedule, usize); 5] = [
    (PipelineSchedule::Naive, 1),
    (PipelineSchedule::GPipe, 1),
    (PipelineSchedule::OneFOneB, 1),
    (PipelineSchedule::Interleaved, 2),
    (PipelineSchedule::ZbH1, 1),
];
pub const INTERLEAVED: PipelineSchedule = PipelineSchedule::Interleaved;

/// Six blocks; matrices are not tied.
fn base(accumulation: usize) -> Cell {
    let mut cell = odd();
    (cell.model.num_hidden_layers, cell.model.tie_word_embeddings) = (6, false);
    (cell.train.accumulation, cell.train.micro_batch) = (accumulation, 1);
    cell
}

/// A cell over so many data ranks with stages.
pub fn staged(
    cell: &Cell,
    strategy: Strategy,
    [data, stages]: [usize; 2],
    shard: usize,
    (schedule, chunks): (PipelineSchedule, usize),
) -> Cell {
    let mut cell = on(cell.clone(), strategy, data * stages, shard);
    cell.parallel.shard = if strategy.is_hybrid() { shard } else { data };
    let degrees = &mut cell.parallel.degrees;
    (degrees.pipeline, degrees.pipeline_schedule, degrees.virtual_stages) = (stages, schedule, chunks);
    cell
}

/// Losses and norms of all steps, and the weights at the end, are to the bit those of a run without stages.
fn assert_as_without_stages(reference: &Ran, cell: &Cell, what: &str) {
    let ran = run(cell);
    assert_eq!(bits(reference), bits(&ran), "{what}");
    assert!(reference.weights == ran.weights, "{what}: weights");
}

pub fn bits(ran: &Ran) -> Vec<(u64, u64)> {
    ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect()
}

#[test]
fn every_schedule_gives_the_bits_of_no_pipeline() {
    let test = "training::pipelines::every_schedule_gives_the_bits_of_no_pipeline";
    let sizes = tiers::some(&format!("{test} (sizes)"), [(2, 4), (4, 4), (4, 8), (2, 8)], [1, 2]);
    let meshes: Vec<_> =
        [1, 2].into_iter().flat_map(|data| strategies(data).into_iter().map(move |with| (data, with))).collect();
    let mut references = BTreeMap::new();
    for [size, mesh, schedule] in tiers::combinations(test, [sizes.len(), meshes.len(), SCHEDULES.len()]) {
        let ((stages, micros), (data, (strategy, shard))) = (sizes[size], meshes[mesh]);
        let mut base = base(micros);
        base.model.num_hidden_layers = 8;
        let reference =
            references.entry((micros, mesh)).or_insert_with(|| run(&on(base.clone(), strategy, data, shard)));
        let schedule = SCHEDULES[schedule];
        let what = format!("{} on {data} by {shard}, {stages} stages, {schedule:?}", strategy.name());
        let cell = staged(&base, strategy, [data, stages], shard, schedule);
        assert_as_without_stages(reference, &cell, &what);
    }
}

/// Stages that do not divide the blocks, fewer micro-batches than stages, and chunks of one block whose messages cross a pair of ranks
/// in both directions.
#[test]
fn uneven_stages_few_micro_batches_and_three_chunks_give_the_bits_of_no_pipeline() {
    let uneven = [PipelineSchedule::GPipe, PipelineSchedule::OneFOneB, PipelineSchedule::ZbH1].map(|s| (s, 1));
    let cases = uneven.into_iter().flat_map(|schedule| [(4, 3, schedule), (5, 6, schedule)]);
    let chunks = [(2, 6, (INTERLEAVED, 3)), (3, 3, (PipelineSchedule::OneFOneB, 2))];
    let cases: Vec<_> = cases.chain(chunks).collect();
    for [case, strategy] in tiers::combinations("training::pipelines::uneven_stages", [cases.len(), 2]) {
        let ((stages, micros, schedule), strategy) = (cases[case], [Strategy::Zero1, Strategy::Zero3][strategy]);
        let base = base(micros);
        let reference = run(&on(base.clone(), strategy, 2, 1));
        let what = format!("{}, {micros} over {stages} stages, {schedule:?}", strategy.name());
        assert_as_without_stages(&reference, &staged(&base, strategy, [2, stages], 1, schedule), &what);
    }
}

/// What every rank takes and moves is what its stage's estimate says.
pub fn assert_takes_what_is_planned(cell: &Cell, what: &str) {
    let plan = plan(cell);
    for report in measure(cell, &plan) {
        let estimate = &plan.stage_plan_of(report.rank).estimate;
        for home in MemoryTier::ALL {
            let (planned, measured) = (&estimate.ledgers[home], &report.ledgers[home]);
            for c in Category::ALL {
                assert_eq!(planned.peak(c), measured.peak(c), "{what}: rank {}: {c}", report.rank);
            }
            assert_eq!(planned.total_peak(), measured.total_peak(), "{what}: rank {}", report.rank);
        }
        let row = |t: &Traffic| (t.axis, t.kind, t.calls, t.payload_bytes, t.wire_bytes);
        let (planned, measured): (Vec<_>, Vec<_>) =
            (estimate.traffic.iter().map(row).collect(), report.traffic.iter().map(row).collect());
        assert_eq!(planned, measured, "{what}: rank {}", report.rank);
    }
}

#[test]
fn every_stage_takes_what_is_planned() {
    let (strategies, policies) = (strategies(2), [Checkpointing::None, Checkpointing::Full, Checkpointing::Sqrt]);
    let sizes = [SCHEDULES.len(), strategies.len(), policies.len()];
    for [at, strategy, policy] in tiers::combinations("training::pipelines::every_stage_takes_what_is_planned", sizes) {
        let ((strategy, shard), schedule) = (strategies[strategy], SCHEDULES[at]);
        let mut cell = staged(&base(3 + at), strategy, [2, 3], shard, schedule);
        cell.memory.checkpointing = policies[policy].clone();
        (cell.train.untimed_steps, cell.train.steps, cell.parallel.prefetch) = (1, 2, at);
        let what = format!("{} by {shard}, {schedule:?}, {:?}", strategy.name(), policies[policy]);
        assert_takes_what_is_planned(&cell, &what);
    }
}

#[test]
fn two_and_four_stages_take_what_is_planned() {
    let strategies = [Strategy::Ddp, Strategy::Zero1, Strategy::Zero2, Strategy::Zero3];
    let sizes = [2, SCHEDULES.len(), strategies.len(), 2];
    let test = "training::pipelines::two_and_four_stages_take_what_is_planned";
    for [size, schedule, strategy, data] in tiers::combinations(test, sizes) {
        let ((stages, micros), schedule, strategy) =
            ([(2, 4), (4, 8)][size], SCHEDULES[schedule], strategies[strategy]);
        let mut base = base(micros);
        (base.model.num_hidden_layers, base.train.steps) = (8, 2);
        let cell = staged(&base, strategy, [data + 1, stages], 1, schedule);
        let what = format!("{} on {}, {stages} stages, {schedule:?}", strategy.name(), data + 1);
        assert_takes_what_is_planned(&cell, &what);
    }
}

/// What it is, and how a cell gets it.
pub type Change = (&'static str, Box<dyn Fn(&mut Cell)>);

/// What of memory and data a cell may have beside stages.
pub fn memory_policies(packed: &Data) -> Vec<Change> {
    let packed = packed.clone();
    vec![
        ("offloaded activations", Box::new(|cell| cell.memory.offload_activations = MemoryTier::Host)),
        (
            "offloaded state",
            Box::new(|cell| {
                (cell.memory.offload_optimizer, cell.memory.offload_parameters) = (MemoryTier::Host, MemoryTier::Host);
            }),
        ),
        (
            "a delayed update",
            Box::new(|cell| (cell.train.delayed_update, cell.memory.offload_optimizer) = (1, MemoryTier::Host)),
        ),
        ("recomputed segments", Box::new(|cell| cell.memory.checkpointing = Checkpointing::Every(2))),
        ("documents", Box::new(move |cell| cell.data = packed.clone())),
    ]
}

/// What is evicted, offloaded or late stays the plan's, and the numbers those of no pipeline.
#[test]
fn memory_policies_and_documents_go_with_chunks_and_split_backward() {
    let folder = tempfile::tempdir().unwrap();
    let packed = documents(folder.path(), 40);
    let (policies, schedules) = (memory_policies(&packed), [(INTERLEAVED, 2), (PipelineSchedule::ZbH1, 1)]);
    let sizes = [policies.len(), schedules.len()];
    for [policy, schedule] in tiers::combinations("training::pipelines::memory_policies_and_documents", sizes) {
        let ((name, change), schedule) = (&policies[policy], schedules[schedule]);
        let mut base = base(4);
        (base.train.lr, base.model.num_hidden_layers) = (1e-3, 8);
        change(&mut base);
        let reference = run(&on(base.clone(), Strategy::Zero3, 2, 1));
        let cell = staged(&base, Strategy::Zero3, [2, 2], 1, schedule);
        let what = format!("{name}, {schedule:?}");
        assert_as_without_stages(&reference, &cell, &what);
        assert_takes_what_is_planned(&cell, &what);
    }
}

#[test]
fn evictions_go_with_chunks_and_split_backward() {
    let mut base = base(4);
    base.model.num_hidden_layers = 8;
    let reference = run(&on(base.clone(), Strategy::Ddp, 1, 1));
    for schedule in [(INTERLEAVED, 2), (PipelineSchedule::ZbH1, 1)] {
        let with = |policy, capacity| {
            let mut cell = staged(&base, Strategy::Ddp, [1, 2], 1, schedule);
            (cell.memory.checkpointing, cell.memory.capacity) = (policy, capacity);
            cell
        };
        let peak = |policy| {
            let plan = plan(&with(policy, None));
            plan.stage_plans.iter().map(|stage_plan| stage_plan.estimate.memory().total_peak()).max().unwrap()
        };
        let [all, none] = [Checkpointing::None, Checkpointing::Full].map(peak);
        let capacities = [(all + 2 * none) / 3, (3 * all + none) / 4];
        for capacity in tiers::some("training::pipelines::evictions (capacities)", capacities, [1, 2]) {
            let cell = with(Checkpointing::Evict, Some(capacity));
            let plan = plan(&cell);
            let evicts = |action: &Action| matches!(action, Action::Evict { .. });
            assert!(
                plan.stage_plans.iter().any(|stage_plan| stage_plan.actions.iter().any(evicts)),
                "{schedule:?} in {capacity} bytes"
            );
            assert_eq!(plan.above_capacity(&cell), None, "{schedule:?} in {capacity} bytes");
            assert_as_without_stages(&reference, &cell, &format!("{schedule:?} in {capacity} bytes"));
        }
    }
}

#[test]
fn checkpoints_go_on_over_other_stages() {
    let cell = || Cell { train: Train { accumulation: 4, micro_batch: 1, ..six_steps().train }, ..base(4) };
    let cases = [
        (Strategy::Ddp, 2, (PipelineSchedule::OneFOneB, 1)),
        (Strategy::Zero3, 2, (INTERLEAVED, 3)),
        (Strategy::Zero1, 3, (PipelineSchedule::ZbH1, 1)),
    ];
    let test = "training::pipelines::checkpoints_go_on_over_other_stages";
    let all = (0..cases.len()).flat_map(|case| (0..layouts().len()).map(move |layout| (layout, case)));
    for (layout, case) in tiers::some(test, all, [2, 8]) {
        let ((layout, asynchronous), (strategy, stages, schedule)) = (layouts()[layout], cases[case]);
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let of = |stages, schedule| {
            let cell = staged(&cell(), strategy, [2, stages], 1, schedule);
            saved(cell, saving.clone())
        };
        let reference = course(&on(cell(), strategy, 2, 1));
        let whole = course(&of(stages, schedule));
        let what = format!("{}, {stages} stages, {schedule:?}, {layout:?}, async {asynchronous}", strategy.name());
        assert_eq!(bits_of(&whole.steps), bits_of(&reference.steps), "{what}");
        assert_eq!(whole.digest, reference.digest, "{what}");
        assert_goes_on(&whole, &of(stages, schedule), dir.path(), 4, &what);
        // Into more stages, into other chunks, and into none.
        let mut others =
            [(6, (PipelineSchedule::OneFOneB, 1)), (2, (INTERLEAVED, 3)), (1, (PipelineSchedule::OneFOneB, 1))];
        others.rotate_left(case);
        for (stages, schedule) in tiers::some(&format!("{test} (others)"), others, [1, 3]) {
            assert_goes_on(&whole, &of(stages, schedule), dir.path(), 2, &what);
        }
    }
}

#[test]
fn precisions_adapters_experts_and_evaluations_come_out_as_without_stages() {
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let f16 = Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) };
    let stochastic = Precision { rounding: WeightRounding::Stochastic, ..Precision::all(DType::Bf16) };
    let mut cells: Vec<(String, Cell)> = vec![
        ("bf16 without a master copy".into(), Cell { precision: stochastic, ..base(4) }),
        ("bf16".into(), Cell { precision: Precision::mixed(DType::Bf16), ..base(4) }),
        ("f16".into(), Cell { precision: f16, train: Train { steps: 8, ..base(4).train }, ..base(4) }),
    ];
    cells.extend(expert_cells(base(3)).into_iter().map(|(name, cell)| (name.to_string(), cell)));
    cells.extend(forms().into_iter().map(|form| (form.0.to_string(), formed(base(3), form))));
    cells.extend(adapters().into_iter().chain([dora()]).map(|(name, change)| {
        let mut cell = base(3);
        change(&mut cell);
        (name.to_string(), cell)
    }));
    let test = "training::pipelines::precisions_adapters_experts_and_evaluations";
    for (at, (name, mut cell)) in tiers::some(test, cells.into_iter().enumerate(), [11, 25]) {
        cell.model.tie_word_embeddings = false;
        let evaluation = Some(Evaluation { every: 1, batches: 2, share: 0.1 });
        cell.watch = Some(Watch { evaluation, ..Watch::default() });
        let strategy = Strategy::ALL[at % Strategy::ALL.len()];
        let reference = course(&on(cell.clone(), strategy, 2, 1));
        let evaluated = |course: &Course| -> Vec<(u64, u64)> {
            let of = |what: &Happening| {
                if let Happening::Evaluated(e) = what { Some((e.loss.to_bits(), e.tokens)) } else { None }
            };
            course.said.iter().filter_map(of).collect()
        };
        assert!(evaluated(&reference).len() > 1);
        // Zero bubble refuses what it does not split.
        let is_split = !cell.lora.on() && cell.model.experts.is_none();
        let other = if is_split { PipelineSchedule::ZbH1 } else { SCHEDULES[at % 3].0 };
        let interleaved = if cell.train.accumulation == 4 { (2, (INTERLEAVED, 3)) } else { (3, (INTERLEAVED, 2)) };
        let mut both = [(2 + at % 2, (other, 1)), interleaved];
        both.rotate_left(at % 2);
        for (stages, schedule) in tiers::some(&format!("{test} (schedules)"), both, [1, 2]) {
            let what = format!("{name}, {schedule:?}");
            let staged = course(&staged(&cell, strategy, [2, stages], 1, schedule));
            assert_eq!(bits_of(&reference.steps), bits_of(&staged.steps), "{what}");
            assert_eq!(reference.digest, staged.digest, "{what}");
            assert_eq!(evaluated(&reference), evaluated(&staged), "{what}");
        }
    }
}
