//! Tensor and sequence parallelism train: the numbers of ranks that have whole matrices, the same bits under every strategy, and bytes
//! as planned on every rank.

use crate::training::accounting::measure;
use crate::training::families::Oracle;
use crate::training::identity::{odd, strategies};
use crate::training::pipelines::assert_takes_what_is_planned;
use crate::training::resume::{course, layouts, saved, saving, six_steps, try_loaded};
use crate::training::support::*;
use std::collections::BTreeMap;
use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_engine::checkpoint::training::step_dir;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::Happening;
use zbench_kernels::{Category, DType, Op};
use zbench_test_tiers as tiers;

/// A sum in another order, in f32: the bound that was given.
const CLOSE: f64 = 1e-5;

/// Four heads, so that two and four ranks can share them; the MLP's width and the vocabulary are no multiple of either.
pub fn base() -> Cell {
    let mut cell = odd();
    let model = &mut cell.model;
    (model.num_attention_heads, model.num_key_value_heads, model.intermediate_size) = (4, 4, 42);
    model.vocab_size = 61;
    cell.train.seq_len = 12;
    cell
}

/// A cell over so many data ranks, each of which is this many tensor ranks.
pub fn shared(cell: &Cell, strategy: Strategy, [data, tensor]: [usize; 2], shard: usize, sequence: bool) -> Cell {
    let mut cell = on(cell.clone(), strategy, data * tensor, shard);
    cell.parallel.shard = if strategy.is_hybrid() { shard } else { data };
    let degrees = &mut cell.parallel.degrees;
    (degrees.tensor, degrees.sequence) = (tensor, if sequence { tensor } else { 1 });
    cell
}

fn assert_near(reference: &Ran, cell: &Cell, what: &str) {
    let ran = run(cell);
    for (a, b) in reference.steps.iter().zip(&ran.steps) {
        let near = |a: f64, b: f64| (a - b).abs() <= CLOSE * a.abs();
        assert!(near(a.loss, b.loss), "{what}: step {}: loss {} and {}", a.step, a.loss, b.loss);
        assert!(near(a.grad_norm, b.grad_norm), "{what}: step {}: norm {} and {}", a.step, a.grad_norm, b.grad_norm);
    }
    assert_eq!(reference.gradients.len(), ran.gradients.len(), "{what}");
    let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let all = reference.gradients.iter().map(|(_, values)| norm(values).powi(2)).sum::<f64>().sqrt();
    for ((name, theirs), (ours_name, ours)) in reference.gradients.iter().zip(&ran.gradients) {
        assert_eq!(name, ours_name, "{what}");
        // The gradient of keys' biases is 0 but for rounding.
        if norm(theirs) > f64::from(f32::EPSILON) * all {
            let far = distance(ours, theirs);
            assert!(far <= CLOSE, "{what}: the gradient of {name} is {far:e} off");
        }
    }
}

/// Losses and norms to the bit.
pub fn bits(ran: &Ran) -> Vec<(u64, u64)> {
    ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect()
}

pub fn cases() -> Vec<(String, Cell)> {
    let formed = forms().into_iter().map(|form| (form.0.to_string(), formed(base(), form)));
    let experts = expert_cells(base()).into_iter().map(|(name, cell)| (name.to_string(), cell));
    let mut tied = base();
    tied.model.tie_word_embeddings = true;
    let mut naive = base();
    naive.memory.attention = AttentionKind::Naive;
    let plain = [("llama".to_string(), base()), ("tied".into(), tied), ("naive attention".into(), naive)];
    plain.into_iter().chain(formed).chain(experts).collect()
}

#[test]
fn every_form_has_the_numbers_of_one_rank() {
    let (cases, mut references) = (cases(), BTreeMap::new());
    let test = "training::tensors::every_form_has_the_numbers_of_one_rank";
    for [case, tensor, sequence] in tiers::combinations(test, [cases.len(), 2, 2]) {
        let ((name, mut cell), tensor, sequence) = (cases[case].clone(), [2, 4][tensor], sequence == 1);
        (cell.train.clip_norm, cell.train.lr) = (0.05, 1e-3);
        let reference = references.entry(case).or_insert_with(|| run(&on(cell.clone(), Strategy::Ddp, 1, 1)));
        let what = format!("{name} over {tensor}, sequence parallelism {sequence}");
        assert_near(reference, &shared(&cell, Strategy::Ddp, [1, tensor], 1, sequence), &what);
    }
}

#[test]
fn every_strategy_gives_the_same_bits_at_one_degree() {
    let of = |strategy, shard, sequence| run(&shared(&base(), strategy, [2, 2], shard, sequence));
    let (references, strategies) = ([false, true].map(|sequence| of(Strategy::Ddp, 1, sequence)), strategies(2));
    let test = "training::tensors::every_strategy_gives_the_same_bits_at_one_degree";
    for [sequence, strategy] in tiers::combinations(test, [2, strategies.len()]) {
        let (reference, (strategy, shard)) = (&references[sequence], strategies[strategy]);
        let ran = of(strategy, shard, sequence == 1);
        let what = format!("{} by {shard}, sequence parallelism {sequence}", strategy.name());
        assert_eq!(bits(reference), bits(&ran), "{what}");
        assert!(reference.weights == ran.weights, "{what}: weights");
    }
}

#[test]
fn every_rank_takes_what_is_planned() {
    let (cases, strategies) = (cases(), [Strategy::Ddp, Strategy::Zero2, Strategy::Fsdp]);
    let sizes = [cases.len(), strategies.len(), 2, 2];
    let test = "training::tensors::every_rank_takes_what_is_planned";
    for [case, strategy, sequence, policy] in tiers::combinations(test, sizes) {
        let ((name, cell), strategy, sequence) = (&cases[case], strategies[strategy], sequence == 1);
        let mut cell = shared(cell, strategy, [2, 2], 1, sequence);
        cell.memory.checkpointing = [Checkpointing::None, Checkpointing::Full][policy].clone();
        (cell.train.untimed_steps, cell.train.steps) = (1, 1);
        let what = format!("{name}, {}, sequence parallelism {sequence}", strategy.name());
        assert_takes_what_is_planned(&cell, &what);
    }
}

/// Shared inputs of blocks change no number, and take exactly a share of what they took.
#[test]
fn partitioned_activations_are_a_share_of_the_same_numbers() {
    let policies = [Checkpointing::Full, Checkpointing::Every(2), Checkpointing::Selective, Checkpointing::None];
    for [policy, strategy] in tiers::combinations("training::tensors::partitioned_activations", [policies.len(), 2]) {
        let (policy, strategy) = (&policies[policy], [Strategy::Ddp, Strategy::Fsdp][strategy]);
        let mut cell = shared(&base(), strategy, [2, 2], 1, false);
        (cell.memory.checkpointing, cell.train.untimed_steps) = (policy.clone(), 1);
        let mut shared = cell.clone();
        shared.memory.partition_activations = true;
        let what = format!("{}, {policy:?}", strategy.name());
        let (whole, part) = (run(&cell), run(&shared));
        assert_eq!(bits(&whole), bits(&part), "{what}");
        assert!(whole.weights == part.weights, "{what}: weights");
        assert_takes_what_is_planned(&shared, &what);
    }
}

/// Activations of a model at their peak are those of the block in work and the kept inputs, which grow with the blocks.
#[test]
fn kept_inputs_are_exactly_a_share() {
    let kept = |is_shared: bool, tensor: usize| {
        let peak = |blocks: usize| {
            let mut cell = shared(&base(), Strategy::Ddp, [1, tensor], 1, false);
            cell.model.num_hidden_layers = blocks;
            (cell.memory.checkpointing, cell.memory.partition_activations) = (Checkpointing::Full, is_shared);
            estimate(&cell).peak(Category::Activations)
        };
        peak(9) - peak(8)
    };
    let cell = base();
    // The arena's blocks are multiples of 64 bytes.
    let input = cell.train.micro_batch * cell.train.seq_len * cell.model.hidden_size * 4;
    for tensor in [2, 4] {
        assert_eq!(kept(false, tensor), (input as u64).next_multiple_of(64));
        assert_eq!(kept(true, tensor), (input as u64 / tensor as u64).next_multiple_of(64), "{tensor} ranks");
    }
}

/// Parameters and logits of a rank are exactly a share of those of one rank, where the sizes divide.
#[test]
fn parameters_and_logits_are_exactly_a_share() {
    let of = |tensor: usize| {
        let mut cell = shared(&base(), Strategy::Ddp, [1, tensor], 1, false);
        (cell.model.vocab_size, cell.model.intermediate_size) = (64, 40);
        let (plan, kernels) = (plan(&cell), &*cpus(&cell)[0]);
        let logits = plan.operations(&cell, kernels, 0).into_iter().map(|recorded| match recorded.op {
            Op::CrossEntropy(op) => op.rows * op.row_pitch(),
            Op::VocabParallelCrossEntropy(op) => op.part.rows * op.part.row_pitch(),
            _ => 0,
        });
        let units = plan.layout.units.iter().flat_map(|unit| &unit.tensors);
        let cut: usize = units.clone().filter(|tensor| tensor.shape.len() == 2).map(|tensor| tensor.elements()).sum();
        (logits.sum::<usize>(), cut)
    };
    let (logits, matrices) = of(1);
    for tensor in [2, 4] {
        assert_eq!(of(tensor), (logits / tensor, matrices / tensor), "{tensor} ranks");
    }
}

/// Two tensor ranks in each of two stages of two data ranks, beside two data ranks that have all of the model.
#[test]
fn eight_ranks_have_the_numbers_of_two() {
    let mut cell = base();
    (cell.model.num_hidden_layers, cell.train.accumulation, cell.train.micro_batch) = (4, 4, 1);
    (cell.train.lr, cell.train.clip_norm) = (1e-3, 0.05);
    let reference = run(&on(cell.clone(), Strategy::Ddp, 2, 1));
    let ways = [(Strategy::Fsdp, true), (Strategy::Zero1, false)];
    for (strategy, sequence) in tiers::some("training::tensors::eight_ranks", ways, [1, 2]) {
        let mut eight = shared(&cell, strategy, [2, 2], 1, sequence);
        (eight.parallel.ranks, eight.parallel.degrees.pipeline) = (8, 2);
        let ran = run(&eight);
        for (ours, theirs) in ran.steps.iter().zip(&reference.steps) {
            for (ours, theirs) in [(ours.loss, theirs.loss), (ours.grad_norm, theirs.grad_norm)] {
                assert!((ours - theirs).abs() <= CLOSE * theirs, "{}: {ours} for {theirs}", strategy.name());
            }
        }
    }
}

/// A block's payload per micro-batch, with an all-reduce counted twice: 8 n h c, with sequence parallelism 10 n h c (Korthikanti et al.
/// (2022), section 4.2, where backward gathers inputs again); where attention and MLP are side by side, half of the sums in forward.
#[test]
fn a_block_sends_what_the_paper_says() {
    let falcon = forms().into_iter().find(|(name, ..)| *name == "falcon").unwrap();
    for (cell, sequence, times) in [
        (base(), false, 8),
        (base(), true, 10),
        // One sum forward and one backward, and gathers of two inputs and two gradients.
        (formed(base(), falcon), false, 4),
    ] {
        let payload = |blocks: usize| {
            let mut cell = shared(&cell, Strategy::Ddp, [1, 2], 1, sequence);
            cell.model.num_hidden_layers = blocks;
            let plan = plan(&cell);
            measure(&cell, &plan)
                .into_iter()
                .map(|report| {
                    let of_tensor =
                        report.traffic.iter().filter(|row| row.axis == GroupName::Tensor && row.payload_bytes > 0.0);
                    of_tensor.map(|row| (row.kind, row.payload_bytes)).collect::<BTreeMap<CollectiveKind, f64>>()
                })
                .collect::<Vec<_>>()
        };
        let (few, many) = (payload(3), payload(4));
        let unit = (cell.train.micro_batch * cell.train.seq_len * cell.model.hidden_size * 4) as f64;
        for (few, many) in few.iter().zip(&many) {
            let more = many.iter().map(|(kind, bytes)| bytes - few.get(kind).copied().unwrap_or(0.0)).sum::<f64>();
            // The agreement on the norm has another number of 8 bytes of each rank. With sequence parallelism the gradients of two norms
            // are sums over the ranks.
            let norms = if sequence { 2.0 * 2.0 * cell.model.hidden_size as f64 * 4.0 } else { 0.0 };
            assert_eq!(more - 2.0 * 8.0 - norms, times as f64 * unit, "sequence parallelism {sequence}");
        }
    }
}

#[test]
fn precisions_adapters_and_evaluations_train() {
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let f16 = Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) };
    let mut cells: Vec<(String, f64, Cell)> = vec![
        ("bf16".into(), 2e-2, Cell { precision: Precision::mixed(DType::Bf16), ..base() }),
        ("f16".into(), 5e-3, Cell { precision: f16, train: Train { steps: 8, ..base().train }, ..base() }),
        ("accumulation".into(), CLOSE, Cell { train: Train { accumulation: 3, ..base().train }, ..base() }),
    ];
    let adapters = adapters().into_iter().filter(|(name, _)| !name.starts_with("IA3 on what"));
    cells.extend(adapters.map(|(name, change)| {
        let mut cell = base();
        change(&mut cell);
        // Ranks drop columns of their own at random.
        cell.lora.dropout = 0.0;
        cell.train.clip_norm = 0.05;
        (name.to_string(), CLOSE, cell)
    }));
    let mut nf4 = base();
    let model = &mut nf4.model;
    (model.hidden_size, model.intermediate_size, model.head_dim) = (64, 256, 32);
    let of = |base| Lora { rank: 2, alpha: 3.0, base: Some(base), targets: Linear::ALL.to_vec(), ..Lora::default() };
    nf4.lora = of(Base::Nf4Single);
    (nf4.train.clip_norm, nf4.train.lr) = (0.05, 1e-3);
    // Each rank has scales of scales of its own part.
    cells.push(("QLoRA with scales in 8 bits".into(), 1e-3, Cell { lora: of(Base::Nf4), ..nf4.clone() }));
    cells.push(("QLoRA".into(), CLOSE, nf4));
    let (ways, mut references) =
        ([(Strategy::Ddp, false), (Strategy::Zero3, true), (Strategy::Zero1, true)], BTreeMap::new());
    let test = "training::tensors::precisions_adapters_and_evaluations_train";
    for [number, way] in tiers::combinations(test, [cells.len(), ways.len()]) {
        let ((name, bound, mut cell), (strategy, sequence)) = (cells[number].clone(), ways[way]);
        let evaluation = Some(Evaluation { every: 1, batches: 2, share: 0.1 });
        cell.watch = Some(Watch { evaluation, ..Watch::default() });
        let losses = |cell: &Cell| {
            let course = course(cell);
            let evaluated = course
                .said
                .iter()
                .filter_map(|what| if let Happening::Evaluated(e) = what { Some(e.loss) } else { None });
            course.steps.iter().map(|step| step.loss).chain(evaluated).collect::<Vec<f64>>()
        };
        let reference = references.entry(number).or_insert_with(|| losses(&on(cell.clone(), Strategy::Ddp, 2, 1)));
        let cell = shared(&cell, strategy, [2, 2], 1, sequence);
        let what = format!("{name}, {}, sequence parallelism {sequence}", strategy.name());
        let ours = losses(&cell);
        assert_eq!(reference.len(), ours.len(), "{what}");
        for (at, (theirs, ours)) in reference.iter().zip(&ours).enumerate() {
            assert!((theirs - ours).abs() <= bound * theirs, "{what}: loss {at}: {ours} for {theirs}");
        }
        assert_takes_what_is_planned(&cell, &what);
    }
}

/// Tensor ranks in the stages of a pipeline, in every schedule. With tied matrices the two ends add what each has found, so that the order
/// of the sum is another.
#[test]
fn stages_of_tensor_ranks_have_the_numbers_of_one_stage() {
    let schedules = [
        (PipelineSchedule::GPipe, 1),
        (PipelineSchedule::OneFOneB, 1),
        (PipelineSchedule::Interleaved, 2),
        (PipelineSchedule::ZbH1, 1),
    ];
    let strategies = [Strategy::Ddp, Strategy::Zero1, Strategy::Zero3];
    let test = "training::tensors::stages_of_tensor_ranks_have_the_numbers_of_one_stage";
    for [sequence, tied, strategy, schedule] in tiers::combinations(test, [2, 2, strategies.len(), schedules.len()]) {
        let (sequence, tied) = (sequence == 1, tied == 1);
        let (strategy, (schedule, chunks)) = (strategies[strategy], schedules[schedule]);
        let mut base = base();
        (base.model.num_hidden_layers, base.model.tie_word_embeddings) = (4, tied);
        (base.train.accumulation, base.train.micro_batch, base.train.lr) = (4, 1, 1e-3);
        base.train.steps = 2;
        let one = shared(&base, strategy, [2, 2], 1, sequence);
        let mut staged = one.clone();
        staged.parallel.ranks *= 2;
        let degrees = &mut staged.parallel.degrees;
        (degrees.pipeline, degrees.pipeline_schedule, degrees.virtual_stages) = (2, schedule, chunks);
        let what = format!("{}, {schedule:?}, sequence parallelism {sequence}, tied {tied}", strategy.name());
        let (reference, ran) = (run(&one), run(&staged));
        if tied {
            for (a, b) in reference.steps.iter().zip(&ran.steps) {
                assert!((a.loss - b.loss).abs() <= CLOSE * a.loss, "{what}: loss {} and {}", a.loss, b.loss);
                let far = (a.grad_norm - b.grad_norm).abs();
                assert!(far <= CLOSE * a.grad_norm, "{what}: norm {} and {}", a.grad_norm, b.grad_norm);
            }
        } else {
            assert_eq!(bits(&reference), bits(&ran), "{what}");
            assert!(reference.weights == ran.weights, "{what}: weights");
        }
        staged.train.untimed_steps = 1;
        assert_takes_what_is_planned(&staged, &what);
    }
}

/// What 2 x 2 x 2 ranks (tensor, stages, data) have written is loaded as it was by other meshes, and what those write by these.
#[test]
fn checkpoints_go_from_any_mesh_to_any_other() {
    let mut cell =
        Cell { train: Train { accumulation: 4, micro_batch: 1, seq_len: 12, ..six_steps().train }, ..base() };
    (cell.model.num_hidden_layers, cell.train.steps) = (4, 2);
    let on_mesh = |cell: &Cell, [tensor, stages, data]: [usize; 3], strategy| {
        let mut cell = shared(cell, strategy, [data, tensor], 1, tensor > 1 && stages > 1);
        cell.parallel.ranks *= stages;
        cell.parallel.degrees.pipeline = stages;
        cell
    };
    let meshes = [
        ([2, 2, 2], Strategy::Zero1),
        ([1, 1, 4], Strategy::Zero3),
        ([4, 1, 1], Strategy::Ddp),
        ([1, 4, 1], Strategy::Ddp),
        ([2, 1, 2], Strategy::Fsdp),
    ];
    let cases: Vec<_> = layouts().into_iter().zip([false, true, true, false]).collect();
    let mut written = BTreeMap::new();
    let test = "training::tensors::checkpoints_go_from_any_mesh_to_any_other";
    for [case, of, to] in tiers::combinations(test, [cases.len(), meshes.len(), meshes.len()]) {
        let ((layout, asynchronous), tied) = cases[case];
        cell.model.tie_word_embeddings = tied;
        let on_mesh = |(mesh, strategy)| on_mesh(&cell, mesh, strategy);
        let (dir, digest) = written.entry((case, of)).or_insert_with(|| {
            let dir = tempfile::tempdir().unwrap();
            let saving = Saving { layout, asynchronous, every: 2, ..saving(dir.path()) };
            let digest = course(&saved(on_mesh(meshes[of]), saving)).digest;
            (dir, digest)
        });
        let own = tempfile::tempdir().unwrap();
        let resume = Resume::From(step_dir(dir.path(), 2));
        let saving = Saving { layout, asynchronous, every: 2, resume, ..saving(own.path()) };
        let what = format!("{:?} to {:?}, {layout:?}, asynchronous {asynchronous}", meshes[of], meshes[to]);
        let loaded = try_loaded(&saved(on_mesh(meshes[to]), saving)).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(*digest, loaded, "{what}");
    }
}

/// PyTorch's parallelize_module, SequenceParallel and loss_parallel: tests/interop/torch_tensor.py has run the fixtures.
#[test]
fn gradients_and_losses_are_those_of_pytorch() {
    let text = std::fs::read_to_string(fixture("../tensor.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let mut seen = 0;
    for case in all["cases"].as_array().unwrap() {
        let name = case["fixture"].as_str().unwrap();
        let tensor = case["ranks"].as_u64().unwrap() as usize;
        let sequence = case["sequence_parallel"].as_bool().unwrap();
        let mut cell = Oracle::open(name).cell();
        (cell.train.micro_batch, cell.train.accumulation, cell.train.steps) = (4, 1, 5);
        let cell = shared(&cell, Strategy::Ddp, [1, tensor], 1, sequence);
        let what = format!("{name} on {tensor} ranks, sequence parallelism {sequence}, {}", case["dtype"]);
        let ran = run(&cell);
        for (step, loss) in ran.steps.iter().zip(numbers(&case["losses"])) {
            assert!((step.loss - loss).abs() <= CLOSE * loss, "{what}: step {}: {} for {loss}", step.step, step.loss);
        }
        for (parameter, theirs) in case["gradients"].as_object().unwrap() {
            let positions = numbers(&all["parameters"][name][parameter]["positions"]);
            let (_, ours) =
                ran.gradients.iter().find(|(name, _)| name == parameter).unwrap_or_else(|| panic!("{parameter}"));
            let norm = theirs["norm"].as_f64().unwrap();
            let own = ours.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            assert!((own - norm).abs() <= CLOSE * norm, "{what}: {parameter}: norm {own} for {norm}");
            for (position, element) in positions.iter().zip(numbers(&theirs["elements"])) {
                let found = f64::from(ours[*position as usize]);
                assert!((found - element).abs() <= CLOSE * norm, "{what}: {parameter}: {found} for {element}");
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 8);
}
