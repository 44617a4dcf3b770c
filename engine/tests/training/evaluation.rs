//! Evaluations: the same loss whatever the strategy, no trace in training, no byte that is not planned. And the end of a run
//! that gets worse.

use crate::training::accounting::{policies, small};
use crate::training::identity::{odd, strategies};
use crate::training::support::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use zbench_collectives::Traffic;
use zbench_engine::compute::hardware::no_machines;
use zbench_engine::config::*;
use zbench_engine::data::Source;
use zbench_engine::observe::outcome::{Cause, Evaluated, Failure, Happening, Run};
use zbench_engine::run::launch_ranks::train_on;
use zbench_engine::run::train_loop::Control;
use zbench_kernels::{Category, DType};
use zbench_test_tiers as tiers;

fn watched(mut cell: Cell, every: u64, batches: usize) -> Cell {
    let evaluation = Some(Evaluation { every, batches, share: 0.1 });
    cell.watch = Some(Watch { evaluation, ..cell.watch.unwrap_or_default() });
    cell
}

/// The run and its evaluations.
fn try_course(cell: &Cell) -> (Result<Run, Failure>, Vec<Evaluated>) {
    let evaluations = Mutex::new(Vec::new());
    let tell = |happening: &Happening| {
        if let Happening::Evaluated(evaluated) = happening {
            evaluations.lock().unwrap().push(*evaluated);
        }
    };
    let control = Control { stop: &AtomicBool::new(false), tell: &tell, trace: None, pace: None };
    let run = train_on(cell, &plan(cell), &no_machines, control);
    (run, evaluations.into_inner().unwrap())
}

fn course(cell: &Cell) -> (Run, Vec<Evaluated>) {
    let (run, evaluations) = try_course(cell);
    (run.unwrap_or_else(|failure| panic!("{}", failure.cause)), evaluations)
}

fn losses(run: &Run) -> Vec<(u64, u64)> {
    run.steps.iter().map(|step| (step.loss.to_bits(), step.grad_norm.to_bits())).collect()
}

fn held(evaluations: &[Evaluated]) -> Vec<(u64, u64, u64)> {
    evaluations.iter().map(|e| (e.step, e.loss.to_bits(), e.tokens)).collect()
}

#[test]
fn every_strategy_has_the_same_evaluations_and_training_does_not_see_them() {
    let test = "training::evaluation::every_strategy_has_the_same_evaluations";
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 4, 1], [1, 2]) {
        let base = |strategy, shard| on(odd(), strategy, ranks, shard);
        let (plain, none) = course(&base(Strategy::Ddp, 1));
        assert!(none.is_empty());
        let (reference, evaluations) = course(&watched(base(Strategy::Ddp, 1), 2, 3));
        let steps: Vec<u64> = evaluations.iter().map(|e| e.step).collect();
        assert_eq!(steps, [0, 2, 3], "before the first step, every second, and after the last");
        assert!(evaluations.iter().all(|e| e.tokens == (3 * ranks * 2 * 13) as u64));
        assert_ne!(evaluations[0].loss.to_bits(), evaluations[2].loss.to_bits(), "training changes it");
        assert_eq!(losses(&plain), losses(&reference));
        let (strategies, policies) = (strategies(ranks), [Checkpointing::None, Checkpointing::Full]);
        for [strategy, policy] in tiers::combinations(test, [strategies.len(), policies.len()]) {
            let ((strategy, shard), policy) = (strategies[strategy], policies[policy].clone());
            let mut cell = watched(base(strategy, shard), 2, 3);
            cell.memory.checkpointing = policy.clone();
            let (run, own) = course(&cell);
            let what = format!("{} on {ranks} by {shard}, {policy:?}", strategy.name());
            assert_eq!(losses(&plain), losses(&run), "{what}: training");
            assert_eq!(held(&evaluations), held(&own), "{what}: evaluations");
        }
    }
}

/// Sequences are added in their order, so that it does not matter either how many ranks share them out.
#[test]
fn evaluations_do_not_depend_on_the_number_of_ranks() {
    let of = |ranks: usize, batches| {
        let mut cell = watched(on(odd(), Strategy::Zero3, ranks, 1), 100, batches);
        cell.train.accumulation = 4 / ranks;
        course(&cell).1[0]
    };
    let one = of(1, 8);
    for (ranks, batches) in [(2, 4), (4, 2)] {
        let many = of(ranks, batches);
        assert_eq!((many.loss.to_bits(), many.tokens), (one.loss.to_bits(), one.tokens), "{ranks} ranks");
    }
}

/// What is left at the end of a file is what is held out, and its loss is that of a training step on these sequences one by
/// one, before its update.
#[test]
fn the_loss_is_that_of_the_held_out_sequences() {
    let cell = |ranks| {
        let mut cell = watched(on(llama_fixture(), Strategy::Zero3, ranks, 1), 100, 0);
        (cell.train.steps, cell.train.micro_batch) = (1, 1);
        cell
    };
    let mut held_out = cell(2);
    let open = |cell: &Cell| {
        let source = Source::open(&cell.data, cell.model.vocab_size, cell.train.seq_len, cell.train.seed).unwrap();
        source.hold_out(0.1).unwrap()
    };
    let kept = open(&held_out).held_out().unwrap() as usize;
    assert!(kept >= 2 && kept.is_multiple_of(2), "{kept} sequences are held out");
    held_out.watch = watched(held_out.clone(), 100, kept / 2).watch;
    let (_, evaluations) = course(&held_out);
    // The file's last records, by themselves.
    let bytes = std::fs::read(fixture("tokens.bin")).unwrap();
    let record = 4 * (held_out.train.seq_len + 1);
    let whole = bytes.len() / record;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("held.bin");
    std::fs::write(&path, &bytes[(whole - kept) * record..whole * record]).unwrap();
    let mut by_hand = cell(1);
    (by_hand.watch, by_hand.train.accumulation) = (None, kept);
    by_hand.data = Data::Tokens { path, dtype: TokenType::U32, shuffle: false };
    let (run, _) = course(&by_hand);
    let (ours, theirs) = (evaluations[0].loss, run.steps[0].loss);
    assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours} and {theirs}");
    assert_eq!(evaluations[0].tokens, (kept * held_out.train.seq_len) as u64);
    // They are not trained on.
    let mut trained = cell(1);
    trained.watch = None;
    (trained.train.steps, trained.train.accumulation) = (1, whole - kept);
    let with = watched(trained.clone(), 100, 1);
    let mut all = trained.clone();
    all.train.steps = 2;
    let mut with_twice = with.clone();
    with_twice.train.steps = 2;
    let ((plain, _), (kept_back, _)) = (course(&all), course(&with_twice));
    assert_eq!(plain.steps[0].loss.to_bits(), kept_back.steps[0].loss.to_bits(), "the first records are the same");
    assert_ne!(plain.steps[1].loss.to_bits(), kept_back.steps[1].loss.to_bits(), "one goes on, the other begins anew");
}

/// A plan counts what an evaluation of any size shares among any number of ranks, and needs no memory of that size itself.
#[test]
fn an_evaluation_of_any_size_is_planned() {
    let cell = watched(on(small(), Strategy::Ddp, 1 << 20, 1 << 20), 1, 1 << 26);
    let peak = estimate(&cell).memory().peak(Category::Communication);
    assert_eq!(peak, (2 << 26) * 8 * ((1 << 20) + 1));
}

/// Bytes are those of the plan, traffic is that of the steps, and an evaluation asks for no more than a step does.
#[test]
fn plans_hold_with_evaluations() {
    let adapted = |mut cell: Cell| {
        let targets = vec![Linear::QProj, Linear::DownProj];
        cell.lora = Lora { rank: 2, alpha: 4.0, dropout: 0.25, targets, ..Lora::default() };
        cell
    };
    let mixed = |mut cell: Cell| {
        cell.precision = Precision::mixed(DType::Bf16);
        cell
    };
    let tied = |mut cell: Cell| {
        cell.model.tie_word_embeddings = true;
        cell.parallel.prefetch = 2;
        cell
    };
    let cells: [(&str, &dyn Fn(Cell) -> Cell); 4] =
        [("plain", &|cell| cell), ("adapters", &adapted), ("bf16", &mixed), ("tied", &tied)];
    let policies = policies();
    let sizes = [cells.len(), Strategy::ALL.len(), policies.len()];
    for [cell, strategy, policy] in tiers::combinations("training::evaluation::plans_hold_with_evaluations", sizes) {
        let ((name, change), strategy, policy) = (cells[cell], Strategy::ALL[strategy], policies[policy].clone());
        let mut cell = change(on(small(), strategy, 4, 2));
        cell.memory.checkpointing = policy.clone();
        let without = estimate(&cell);
        let cell = watched(cell, 1, 2);
        let planned = estimate(&cell);
        let what = format!("{name}: {} {policy:?}", strategy.name());
        assert_eq!(planned.memory().total_peak(), without.memory().total_peak(), "{what}: an evaluation takes more");
        assert_eq!((&planned.traffic, &planned.flops), (&without.traffic, &without.flops), "{what}");
        let (run, evaluations) = course(&cell);
        assert_eq!(evaluations.len(), 4, "{what}");
        for report in &run.ranks {
            for c in Category::ALL {
                let (ours, theirs) = (planned.memory().peak(c), report.memory().peak(c));
                assert_eq!(ours, theirs, "{what}: rank {}: peak of {c}", report.rank);
            }
            assert_eq!(planned.memory().total_peak(), report.memory().total_peak(), "{what}: peak");
            let plain = |t: &Traffic| (t.axis, t.kind, t.calls, t.payload_bytes, t.wire_bytes, t.ranks);
            let stated: Vec<_> = planned.traffic.iter().map(plain).collect();
            let moved: Vec<_> = report.traffic.iter().map(plain).collect();
            assert_eq!(stated, moved, "{what}: rank {}", report.rank);
        }
    }
}

/// Forms of weights that products read are made anew for an evaluation, and again for the step behind it.
#[test]
fn prepacked_weights_are_those_of_the_moment() {
    let mut cell = watched(odd(), 1, 2);
    let (plain, evaluations) = course(&cell);
    cell.memory.prepack = true;
    let planned = estimate(&cell);
    let (run, own) = course(&cell);
    assert_eq!((losses(&plain), held(&evaluations)), (losses(&run), held(&own)));
    assert_eq!(planned.memory().total_peak(), run.ranks[0].memory().total_peak());
}

/// Adapters that were trained with dropout are looked at without: as they are where they are loaded for a run that has none.
#[test]
fn nothing_is_dropped_in_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let of = |dropout| {
        let mut cell = watched(odd(), 100, 2);
        cell.lora = Lora { rank: 2, alpha: 4.0, dropout, targets: Linear::ALL.to_vec(), ..Lora::default() };
        cell
    };
    let mut trained = of(0.5);
    trained.lora.save = Some(folder.path().join("adapters"));
    let (_, evaluations) = course(&trained);
    assert_ne!(evaluations[0].loss.to_bits(), evaluations[1].loss.to_bits(), "the adapters have learned something");
    let mut loaded = of(0.0);
    loaded.lora.path = trained.lora.save;
    let (_, reference) = course(&loaded);
    assert_eq!(evaluations[1].loss.to_bits(), reference[0].loss.to_bits());
}

fn diverging(factor: f64, steps: u64) -> Cell {
    let mut cell = on(odd(), Strategy::Zero2, 2, 1);
    (cell.train.lr, cell.train.clip_norm, cell.train.steps) = (3.0, 0.0, 40);
    cell.watch = Some(Watch { divergence: Some(Divergence { factor, steps }), ..Watch::default() });
    cell
}

#[test]
fn a_run_that_gets_worse_ends_with_its_numbers() {
    let (run, _) = try_course(&diverging(1.5, 3));
    let failure = run.unwrap_err();
    let Cause::Worse(worse) = &failure.cause else { panic!("{}", failure.cause) };
    let losses: Vec<f64> = failure.steps.iter().map(|step| step.loss).collect();
    assert_eq!((worse.step as usize, losses.last()), (losses.len(), Some(&worse.loss)), "the last step is kept");
    let smallest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!((worse.smallest, losses[worse.at as usize - 1]), (smallest, smallest));
    assert!(losses[losses.len() - 3..].iter().all(|loss| *loss >= 1.5 * smallest), "{losses:?}");
    let said = failure.cause.to_string();
    assert!(said.contains(&format!("{:.4}", worse.loss)) && said.contains("train.lr"), "{said}");
    // A factor that is never reached ends nothing.
    let (run, _) = try_course(&diverging(1e6, 3));
    assert!(!matches!(run, Err(Failure { cause: Cause::Worse(_), .. })));
}
