//! Pipelines whose ends share a matrix. Without stages its gradient is summed micro-batch by micro-batch, head and embedding in turn; with
//! stages each end sums its own, and then the two sums are added. So numbers are as near to those without stages as orders of sums are,
//! and the same to the bit for every schedule and number of stages.

use crate::training::accounting::measure;
use crate::training::families::Oracle;
use crate::training::identity::{odd, strategies};
use crate::training::loading::{by, start};
use crate::training::pipelines::{
    Change, INTERLEAVED, SCHEDULES, assert_takes_what_is_planned, bits, memory_policies, staged,
};
use crate::training::resume::{Course, assert_goes_on, bits as bits_of, course, layouts, saved, saving, six_steps};
use crate::training::support::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_engine::config::*;
use zbench_engine::model::FlatKind;
use zbench_engine::observe::outcome::Happening;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{DType, Kernels};
use zbench_kernels_testing::Reference;
use zbench_test_tiers as tiers;

/// Of losses, norms and weights, relative to those without stages: f32, sums in another order.
const TOLERANCE: f64 = 1e-5;
const ONE_F_ONE_B: (PipelineSchedule, usize) = (PipelineSchedule::OneFOneB, 1);

/// So many blocks between the ends.
fn base(blocks: usize, accumulation: usize) -> Cell {
    let mut cell = odd();
    (cell.model.num_hidden_layers, cell.model.tie_word_embeddings) = (blocks, true);
    (cell.train.accumulation, cell.train.micro_batch) = (accumulation, 1);
    cell
}

fn assert_near(reference: &Ran, ran: &Ran, what: &str) {
    assert_eq!(reference.steps.len(), ran.steps.len(), "{what}");
    for (theirs, ours) in reference.steps.iter().zip(&ran.steps) {
        let near = |theirs: f64, ours: f64| (theirs - ours).abs() <= TOLERANCE * theirs.abs();
        assert!(near(theirs.loss, ours.loss), "{what}: step {}: loss {} for {}", ours.step, ours.loss, theirs.loss);
        let (norm, wanted) = (ours.grad_norm, theirs.grad_norm);
        assert!(near(wanted, norm), "{what}: step {}: norm {norm} for {wanted}", ours.step);
    }
    assert_eq!(reference.weights.len(), ran.weights.len(), "{what}");
    for ((name, theirs), (ours_name, ours)) in reference.weights.iter().zip(&ran.weights) {
        assert_eq!(name, ours_name, "{what}");
        // A bias begins at 0 and is nothing but updates, which AdamW makes of the signs of the smallest gradients, too. Biases count among
        // all weights.
        let off = if name.ends_with(".bias") { 0.0 } else { distance(ours, theirs) };
        assert!(off <= TOLERANCE, "{what}: {name} is off by {off:e}");
    }
    let all = |ran: &Ran| ran.weights.iter().flat_map(|(_, values)| values).copied().collect::<Vec<f32>>();
    let off = distance(&all(ran), &all(reference));
    assert!(off <= TOLERANCE, "{what}: all weights are off by {off:e}");
}

/// Losses and norms of all steps and the last weights are those of another run to the bit.
fn assert_same(reference: &Ran, ran: &Ran, what: &str) {
    assert_eq!(bits(reference), bits(ran), "{what}");
    assert!(reference.weights == ran.weights, "{what}: weights");
}

#[test]
fn every_schedule_is_near_no_pipeline_and_the_same_as_every_other() {
    let test = "training::tied::every_schedule_is_near_no_pipeline";
    let micros = tiers::some(&format!("{test} (micro-batches)"), [8, 4], [1, 1]);
    let data = tiers::some(&format!("{test} (data ranks)"), [2, 1], [1, 2]);
    let meshes = data.into_iter().flat_map(|data| strategies(data).into_iter().map(move |with| (data, with)));
    let meshes = tiers::some(&format!("{test} (meshes)"), meshes, [5, 9]);
    let others: Vec<_> = [2, 4].into_iter().flat_map(|stages| SCHEDULES.map(|of| (stages, of))).collect();
    let mut known = BTreeMap::new();
    for [micro, mesh, other] in tiers::combinations(test, [micros.len(), meshes.len(), others.len()]) {
        let (base, (data, (strategy, shard))) = (base(8, micros[micro]), meshes[mesh]);
        let (stages, schedule) = others[other];
        let what = format!("{} on {data} by {shard}, {stages} stages, {schedule:?}", strategy.name());
        let first = known.entry((micro, mesh)).or_insert_with(|| {
            let first = run(&staged(&base, strategy, [data, 2], shard, SCHEDULES[0]));
            assert_near(&run(&on(base.clone(), strategy, data, shard)), &first, &what);
            first
        });
        assert_same(first, &run(&staged(&base, strategy, [data, stages], shard, schedule)), &what);
    }
}

/// Elements as f32, of a rank's part of a unit.
type Part = Vec<f32>;

/// What every rank has of the unit at the bottom: its weights, the optimizer's copy of them, both moments.
fn tables(cell: &Cell) -> Vec<[Part; 4]> {
    let plan = plan(cell);
    let ran = with_ranks(cell, &plan, cpus(cell), |rank| {
        for _ in 0..cell.train.steps {
            rank.step()?;
        }
        // All that is gathered and updated elsewhere is here when the weights have been read again.
        rank.executor.export_weights(|_, _, _| ())?;
        let kernels = rank.kernels().clone();
        let Some(owned) =
            rank.executor.state.trainable(0).map(|of| of.owned.start - of.shard.start..of.owned.end - of.shard.start)
        else {
            return Ok(Default::default());
        };
        let wide = |view: zbench_kernels::View<'_>| {
            let mut values = vec![0f32; view.len()];
            kernels.cast(view, zbench_kernels::ViewMut::of(&mut values)).unwrap();
            values
        };
        let home = wide(rank.executor.params.shard_mut(0, FlatKind::Trainable).unwrap().slice(owned));
        let moments = rank.executor.optimizer.moments_mut(0).unwrap();
        let master = moments.master.as_mut().map_or(Vec::new(), |of| wide(of.buffer_mut().unwrap().view()));
        let [first, second] = [&mut moments.first, &mut moments.second].map(|of| wide(of.buffer_mut().unwrap().view()));
        Ok([home, master, first, second])
    });
    ran.unwrap_or_else(|failure| panic!("{}", failure.cause))
}

#[test]
fn both_ends_have_the_same_table_and_moments() {
    let stochastic = Precision { rounding: WeightRounding::Stochastic, ..Precision::all(DType::Bf16) };
    let (precisions, strategies) = ([Precision::F32, Precision::mixed(DType::Bf16), stochastic], strategies(2));
    let sizes = [precisions.len(), strategies.len()];
    for [precision, at] in tiers::combinations("training::tied::both_ends_have_the_same_table_and_moments", sizes) {
        let (precision, (strategy, shard)) = (precisions[precision], strategies[at]);
        let cell = Cell { precision, ..base(4, 3) };
        let cell = staged(&cell, strategy, [2, 4], shard, if at % 2 == 0 { SCHEDULES[at % 3] } else { ONE_F_ONE_B });
        let what = format!("{} by {shard}, {precision:?}", strategy.name());
        let ranks = tables(&cell);
        for data in 0..2 {
            let [first, last] = [&ranks[data], &ranks[ranks.len() - 2 + data]];
            assert!(first == last, "{what}: rank {data} of the ends");
            assert!(!first[0].is_empty() && first[2].iter().any(|value| *value != 0.0), "{what}: nothing trained");
        }
    }
}

/// The exchange is one call at each end, of what the rank updates of the table.
#[test]
fn every_stage_takes_what_is_planned() {
    let (strategies, policies) = (strategies(2), [Checkpointing::None, Checkpointing::Full]);
    let sizes = [SCHEDULES.len(), strategies.len(), policies.len()];
    for [at, strategy, policy] in tiers::combinations("training::tied::every_stage_takes_what_is_planned", sizes) {
        let (schedule, (strategy, shard), policy) = (SCHEDULES[at], strategies[strategy], &policies[policy]);
        let stages = if at % 2 == 0 { 2 } else { 3 };
        let mut cell = staged(&base(6, 3 + at), strategy, [2, stages], shard, schedule);
        (cell.memory.checkpointing, cell.train.untimed_steps, cell.parallel.prefetch) = (policy.clone(), 1, at);
        if schedule == (INTERLEAVED, 2) {
            cell.train.accumulation = 2 * stages;
        }
        let what = format!("{} by {shard}, {schedule:?}, {policy:?}", strategy.name());
        assert_takes_what_is_planned(&cell, &what);
        let plan = plan(&cell);
        let table = plan.layout.units[0].trainable().padded;
        for (stage, stage_plan) in plan.stage_plans.iter().enumerate() {
            let is_exchange = |row: &&zbench_collectives::Traffic| {
                (row.axis, row.kind) == (GroupName::Pipeline, CollectiveKind::SendRecv)
            };
            let found = stage_plan.estimate.traffic.iter().find(is_exchange);
            if stage > 0 && stage + 1 < stages {
                assert!(found.is_none(), "{what}: stage {stage} has no table");
                continue;
            }
            let found = found.unwrap_or_else(|| panic!("{what}: stage {stage} exchanges nothing"));
            // Under ddp a rank updates all of it, on a hybrid mesh by its own number of ranks.
            let parts = match strategy {
                Strategy::Ddp => 1,
                _ if strategy.is_hybrid() => plan.mesh.size(plan.sharding.optimizer),
                _ => 2,
            };
            let bytes = (table / parts * 4) as f64;
            assert_eq!([found.calls, found.payload_bytes, found.wire_bytes], [1.0, bytes, bytes], "{what}");
        }
    }
}

#[test]
fn parameters_and_operations_are_those_of_the_model() {
    for form in [None].into_iter().chain(forms().into_iter().map(Some)) {
        let cell = form.map_or_else(|| base(4, 4), |form| formed(base(4, 4), form));
        for lora in [false, true] {
            let mut cell = cell.clone();
            if lora {
                let targets = vec![Linear::QProj, Linear::KProj, Linear::VProj];
                cell.lora = Lora { rank: 2, targets, base: Some(Base::Bf16), ..Lora::default() };
            }
            let whole = plan(&on(cell.clone(), Strategy::Zero2, 1, 1)).estimate();
            let of_stages = plan(&staged(&cell, Strategy::Zero2, [1, 2], 1, ONE_F_ONE_B)).estimate();
            let of = |estimate: &zbench_engine::observe::outcome::Estimate| {
                (estimate.parameters, estimate.trainable_parameters, estimate.active_parameters, estimate.base_bytes)
            };
            assert_eq!(of(&whole), of(&of_stages), "{form:?}, adapters {lora}");
            let (flops, of_stages) = (whole.flops, of_stages.flops);
            assert!((of_stages.model / flops.model - 1.0).abs() < 1e-12, "{form:?}, adapters {lora}: model");
            assert!((of_stages.palm / flops.palm - 1.0).abs() < 1e-12, "{form:?}, adapters {lora}: palm");
        }
    }
}

/// Families whose embedding has positions, a norm or a scale: on the first stage alone, in a unit of their own.
#[test]
fn every_form_is_near_no_pipeline() {
    let (forms, all) = (forms(), strategies(2));
    let test = "training::tied::every_form_is_near_no_pipeline";
    for [at, strategy, policy] in tiers::combinations(test, [forms.len(), 3, 2]) {
        let form = forms[at];
        let mut base = formed(base(4, 4), form);
        // A token that sees itself alone gives its queries and keys no gradient but rounding errors.
        base.model.sliding_window = base.model.sliding_window.map(|window| window.max(2));
        (base.train.clip_norm, base.train.lr) = (0.05, 1e-3);
        let (strategy, shard) = [all[at % all.len()], (Strategy::Zero3, 1), (Strategy::Ddp, 1)][strategy];
        let policies = [(Checkpointing::None, SCHEDULES[at % SCHEDULES.len()]), (Checkpointing::Full, ONE_F_ONE_B)];
        let (policy, schedule) = &policies[policy];
        let mut cell = base.clone();
        (cell.memory.checkpointing, cell.parallel.bucket_mb) = (policy.clone(), 0.02 * (at % 2) as f64);
        let what = format!("{}: {} by {shard}, {policy:?}, {schedule:?}", form.0, strategy.name());
        let reference = run(&on(cell.clone(), strategy, 2, shard));
        let cell = staged(&cell, strategy, [2, 2], shard, *schedule);
        assert_near(&reference, &run(&cell), &what);
        assert_takes_what_is_planned(&cell, &what);
    }
}

/// What is offloaded, late or made again stays the plan's, and the numbers near those of no pipeline.
#[test]
fn memory_policies_and_documents_go_with_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    let packed = documents(folder.path(), 40);
    let prepacks: Change = ("kept forms of weights", Box::new(|cell| cell.memory.prepack = true));
    let policies: Vec<_> = memory_policies(&packed).into_iter().chain([prepacks]).collect();
    let schedules = [(INTERLEAVED, 2), (PipelineSchedule::ZbH1, 1)];
    let test = "training::tied::memory_policies_and_documents_go_with_both_ends";
    for [policy, strategy, schedule] in tiers::combinations(test, [policies.len(), 2, schedules.len()]) {
        let (name, change) = &policies[policy];
        let mut base = base(8, 4);
        base.train.lr = 1e-3;
        change(&mut base);
        let strategies = match (base.memory.prepack, base.memory.offload_parameters) {
            (true, _) => [Strategy::Ddp, Strategy::Zero2],
            (_, MemoryTier::Host) => [Strategy::Zero3, Strategy::Fsdp],
            _ => [Strategy::Zero3, Strategy::Zero1],
        };
        let (strategy, schedule) = (strategies[strategy], schedules[schedule]);
        let reference = run(&on(base.clone(), strategy, 2, 1));
        let cell = staged(&base, strategy, [2, 2], 1, schedule);
        let what = format!("{name}, {}, {schedule:?}", strategy.name());
        assert_near(&reference, &run(&cell), &what);
        assert_takes_what_is_planned(&cell, &what);
    }
}

/// Into more stages and back the bits stay; without stages the sums are in another order.
#[test]
fn checkpoints_go_on_over_other_stages_and_none() {
    let gpt2 = *forms().iter().find(|(name, ..)| *name == "gpt2").unwrap();
    let plain = || Cell { train: Train { accumulation: 4, micro_batch: 1, ..six_steps().train }, ..base(6, 4) };
    let cases = [
        (Strategy::Ddp, 2, ONE_F_ONE_B),
        (Strategy::Zero3, 2, (INTERLEAVED, 3)),
        (Strategy::Zero1, 3, (PipelineSchedule::ZbH1, 1)),
    ];
    let test = "training::tied::checkpoints_go_on_over_other_stages_and_none";
    let all = (0..cases.len()).flat_map(|case| (0..layouts().len()).map(move |at| (at, case)));
    for (at, case) in tiers::some(test, all, [2, 8]) {
        let ((layout, asynchronous), (strategy, stages, schedule)) = (layouts()[at], cases[case]);
        let cell = || if at % 2 == 0 { formed(plain(), gpt2) } else { plain() };
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let of = |stages, schedule| saved(staged(&cell(), strategy, [2, stages], 1, schedule), saving.clone());
        let what = format!("{}, {stages} stages, {schedule:?}, {layout:?}, async {asynchronous}", strategy.name());
        let whole = course(&of(stages, schedule));
        let reference = course(&staged(&cell(), strategy, [2, stages], 1, schedule));
        assert_eq!((bits_of(&whole.steps), whole.digest), (bits_of(&reference.steps), reference.digest), "{what}");
        assert_goes_on(&whole, &of(stages, schedule), dir.path(), 4, &what);
        let mut others = [(6, ONE_F_ONE_B), (2, (INTERLEAVED, 3)), (3, (PipelineSchedule::GPipe, 1))];
        others.rotate_left(case + 1);
        for (stages, schedule) in tiers::some(&format!("{test} (others)"), others, [1, 3]) {
            assert_goes_on(&whole, &of(stages, schedule), dir.path(), 2, &what);
        }
        // From stages into none, and from none into stages.
        let goes_on_near = |dir: &std::path::Path, stages, whole: &Course| {
            let own = tempfile::tempdir().unwrap();
            let resume = Resume::From(zbench_engine::checkpoint::training::step_dir(dir, 4));
            let saving = Saving { dir: own.path().into(), resume, ..saving.clone() };
            let rest = course(&saved(staged(&cell(), strategy, [2, stages], 1, ONE_F_ONE_B), saving));
            let pairs = rest.steps.iter().zip(&whole.steps[4..]);
            assert_eq!(rest.steps.len(), 2, "{what}");
            for (ours, theirs) in pairs {
                for (ours, theirs) in [(ours.loss, theirs.loss), (ours.grad_norm, theirs.grad_norm)] {
                    assert!((ours - theirs).abs() <= TOLERANCE * theirs, "{what} into {stages}: {ours} for {theirs}");
                }
            }
        };
        goes_on_near(dir.path(), 1, &whole);
        let without = tempfile::tempdir().unwrap();
        let cell_without = staged(&cell(), strategy, [2, 1], 1, ONE_F_ONE_B);
        let whole = course(&saved(cell_without, Saving { dir: without.path().into(), ..saving.clone() }));
        goes_on_near(without.path(), stages, &whole);
    }
}

/// Both ends read the table of a checkpoint, whoever reads the files.
#[test]
fn weights_of_a_checkpoint_come_to_both_ends() {
    let names = ["gpt2", "bloom", "gemma", "mpt"];
    let test = "training::tied::weights_of_a_checkpoint_come_to_both_ends";
    for [name, loading] in tiers::combinations(test, [names.len(), Loading::ALL.len()]) {
        let (name, loading) = (names[name], Loading::ALL[loading]);
        let mut cell = Oracle::open(name).cell();
        assert!(cell.model.tie_word_embeddings, "{name}");
        (cell.train.steps, cell.train.accumulation, cell.train.micro_batch) = (2, 2, 1);
        let reference = run(&on(cell.clone(), Strategy::Zero1, 2, 1));
        let (weights, _) = start(&on(cell.clone(), Strategy::Zero1, 2, 1));
        let what = format!("{name}, {}", loading.name());
        let cell = staged(&by(cell.clone(), loading), Strategy::Zero1, [2, 2], 1, ONE_F_ONE_B);
        assert!(start(&cell).0 == weights, "{what}");
        assert_near(&reference, &run(&cell), &what);
    }
}

#[test]
fn adapters_over_frozen_tables_go_on_over_other_stages() {
    let cell = || {
        let mut cell = base(6, 4);
        cell.train = Train { accumulation: 4, micro_batch: 1, ..six_steps().train };
        cell.lora = Lora { rank: 2, targets: vec![Linear::QProj, Linear::DownProj], ..Lora::default() };
        cell
    };
    let both = [(SaveLayout::Sharded, true), (SaveLayout::Full, false)];
    for (layout, asynchronous) in tiers::some("training::tied::adapters_over_frozen_tables", both, [1, 2]) {
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let of = |stages| saved(staged(&cell(), Strategy::Zero3, [2, stages], 1, ONE_F_ONE_B), saving.clone());
        let whole = course(&of(2));
        [1, 2, 3]
            .into_iter()
            .for_each(|stages| assert_goes_on(&whole, &of(stages), dir.path(), 4, &format!("{layout:?}")));
    }
}

/// Frozen tables are not exchanged: the bits are those of no pipeline. In low precision and with a loss that is scaled every schedule
/// and number of stages has the same bits, and skips the same steps.
#[test]
fn adapters_precisions_and_evaluations_go_with_both_ends() {
    let evaluation = Some(Evaluation { every: 1, batches: 2, share: 0.1 });
    let watched = |mut cell: Cell| {
        cell.watch = Some(Watch { evaluation, ..Watch::default() });
        cell.model.tie_word_embeddings = true;
        cell
    };
    let evaluated = |course: &Course| -> Vec<(u64, u64)> {
        let of = |what: &Happening| {
            if let Happening::Evaluated(e) = what { Some((e.loss.to_bits(), e.tokens)) } else { None }
        };
        course.said.iter().filter_map(of).collect()
    };
    let same = |reference: &Course, other: &Course, what: &str| {
        assert!(evaluated(reference).len() > 1, "{what}");
        assert_eq!(bits_of(&reference.steps), bits_of(&other.steps), "{what}");
        assert_eq!(evaluated(reference), evaluated(other), "{what}");
        assert_eq!(reference.digest, other.digest, "{what}");
    };
    let test = "training::tied::adapters_precisions_and_evaluations_go_with_both_ends";
    let adapters = adapters().into_iter().chain([dora()]).enumerate();
    for (at, (name, change)) in tiers::some(&format!("{test} (adapters)"), adapters, [3, 7]) {
        let mut cell = base(6, 3);
        change(&mut cell);
        let (cell, strategy) = (watched(cell), Strategy::ALL[at % Strategy::ALL.len()]);
        let reference = course(&on(cell.clone(), strategy, 2, 1));
        for (stages, schedule) in [(2, ONE_F_ONE_B), (3, (INTERLEAVED, 2))] {
            let cell = staged(&cell, strategy, [2, stages], 1, schedule);
            same(&reference, &course(&cell), &format!("{name}, {schedule:?}"));
            let plan = plan(&cell);
            let exchanges = |kind| kind == CollectiveKind::SendRecv;
            let rows = plan.stage_plans.iter().flat_map(|stage_plan| &stage_plan.estimate.traffic);
            assert!(!rows.into_iter().any(|row| exchanges(row.kind)), "{name}: a frozen table is exchanged");
        }
    }
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let f16 = Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) };
    let stochastic = Precision { rounding: WeightRounding::Stochastic, ..Precision::all(DType::Bf16) };
    let narrow_wire = Precision { reduce: DType::Bf16, ..Precision::F32 };
    let mut skipped = 0;
    for precision in [f16, stochastic, Precision::mixed(DType::Bf16), narrow_wire] {
        let mut cell = watched(Cell { precision, ..base(6, 4) });
        cell.train.steps = if precision.scaling.is_some() { 8 } else { 4 };
        let strategies = [Strategy::Zero1, Strategy::Ddp, Strategy::Zero3];
        for strategy in tiers::some(&format!("{test} (strategies)"), strategies, [1, 2]) {
            let first = course(&staged(&cell, strategy, [2, 2], 1, ONE_F_ONE_B));
            skipped += first.steps.iter().filter(|step| step.skipped).count();
            let others = [(3, (PipelineSchedule::ZbH1, 1)), (2, (INTERLEAVED, 3))];
            for (stages, schedule) in tiers::some(&format!("{test} (stages)"), others, [1, 2]) {
                let what = format!("{precision:?}, {}, {schedule:?}", strategy.name());
                same(&first, &course(&staged(&cell, strategy, [2, stages], 1, schedule)), &what);
            }
        }
    }
    assert!(skipped > 0, "no gradient overflowed");
    for (name, cell) in tiers::some(&format!("{test} (experts)"), expert_cells(base(6, 4)), [1, 3]) {
        let mut cell = cell;
        cell.model.tie_word_embeddings = true;
        let reference = run(&on(cell.clone(), Strategy::Zero2, 2, 1));
        let cell = staged(&cell, Strategy::Zero2, [2, 2], 1, ONE_F_ONE_B);
        assert_near(&reference, &run(&cell), name);
        assert_takes_what_is_planned(&cell, name);
    }
}

#[test]
fn evictions_go_with_both_ends() {
    let base = base(8, 4);
    let reference = run(&on(base.clone(), Strategy::Ddp, 1, 1));
    for schedule in [(INTERLEAVED, 2), ONE_F_ONE_B] {
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
        let cell = with(Checkpointing::Evict, Some((all + none) / 2));
        let plan = plan(&cell);
        assert_eq!(plan.above_capacity(&cell), None, "{schedule:?}");
        assert_near(&reference, &run(&cell), &format!("{schedule:?}"));
        let measured = measure(&cell, &plan).iter().map(|report| report.memory().total_peak()).max();
        assert!(measured <= cell.memory.capacity, "{schedule:?}: {measured:?}");
    }
}

/// Losses and norms in f64 on the reference kernels.
fn in_f64(cell: &Cell) -> Vec<f64> {
    let plan = plan(cell);
    let kernels = (0..cell.parallel.ranks).map(|_| Arc::new(Reference) as Arc<dyn Kernels>).collect();
    let ran = with_ranks(cell, &plan, kernels, |rank| {
        (0..cell.train.steps).map(|_| rank.step()).collect::<Result<Vec<_>, _>>()
    });
    let ran = ran.unwrap_or_else(|failure| panic!("{}", failure.cause));
    ran[0].iter().flat_map(|step| [step.loss, step.grad_norm]).collect()
}

/// Where sums are in f64, their order is seen in the last places alone.
#[test]
fn in_f64_numbers_differ_in_the_last_places_alone() {
    let forms: Vec<_> = forms().into_iter().filter(|(name, ..)| ["gpt2", "bloom"].contains(name)).collect();
    for [form, schedule] in tiers::combinations("training::tied::in_f64", [forms.len(), SCHEDULES.len()]) {
        let (form, schedule) = (forms[form], SCHEDULES[schedule]);
        let cell = Cell { precision: Precision::all(DType::F64), ..formed(base(4, 4), form) };
        let reference = in_f64(&on(cell.clone(), Strategy::Zero2, 2, 1));
        let ours = in_f64(&staged(&cell, Strategy::Zero2, [2, 2], 1, schedule));
        let near = |(theirs, ours): (&f64, &f64)| (theirs - ours).abs() <= 1e-12 * theirs;
        assert!(reference.iter().zip(&ours).all(near), "{}, {schedule:?}: {ours:?} for {reference:?}", form.0);
    }
}
