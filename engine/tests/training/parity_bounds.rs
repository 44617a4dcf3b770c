//! The bounds of `parity`: correct cells stay inside, plausible mistakes do not. The survey that the bounds were taken from
//! is here too; docs/mixed-precision.md has its numbers.

use crate::training::identity::{odd, strategies};
use crate::training::recording::{Fault, Recording};
use crate::training::support::*;
use std::sync::Arc;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::Step;
use zbench_engine::observe::parity::{Compared, Point, compare};
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{Cpu, DType, Kernels};
use zbench_test_tiers::{self as tiers, Tier, tier};

/// What the bound of the loss was before, whatever the step and the gradient norms.
const BEFORE: [(&str, f64); 3] = [("bf16-mixed", 2e-2), ("f16-mixed", 5e-3), ("bf16", 2e-2)];

fn steps_of(cell: &Cell, fault: Option<Fault>) -> Vec<Point> {
    let plan = plan(cell);
    let wrong = |fault| -> Arc<dyn Kernels> { Arc::new(Recording::with(Cpu::new(1), fault)) };
    let kernels = match fault {
        Some(fault) => (0..cell.parallel.ranks).map(|_| wrong(fault)).collect(),
        None => cpus(cell),
    };
    let all = |rank: &mut zbench_engine::run::rank::Rank<'_>| (0..cell.train.steps).map(|_| rank.step()).collect();
    let ran: Vec<Vec<Step>> =
        with_ranks(cell, &plan, kernels, all).unwrap_or_else(|failure| panic!("{fault:?}: {}", failure.cause));
    let point = |step: &Step| Point {
        step: step.step,
        loss: step.loss,
        norm: step.grad_norm,
        lr: step.lr,
        skipped: step.skipped,
    };
    ran[0].iter().map(point).collect()
}

fn precisions() -> Vec<(&'static str, Precision)> {
    let (b, f32) = (DType::Bf16, DType::F32);
    let scaling = Some(LossScaling::Dynamic(DynamicScaling { initial_scale_power: 12, ..DynamicScaling::DEFAULT }));
    vec![
        ("f32", Precision::F32),
        ("bf16-mixed", Precision::mixed(b)),
        ("bf16-mixed, bf16 on the wire", Precision { reduce: b, ..Precision::mixed(b) }),
        ("bf16", Precision::all(b)),
        ("bf16, stochastic", Precision { rounding: WeightRounding::Stochastic, ..Precision::all(b) }),
        ("fsdp-mixed", Precision { compute: b, reduce: b, ..Precision::F32 }),
        ("deepspeed", Precision { optimizer: f32, master: Some(f32), ..Precision::all(b) }),
        ("bf16 weights, f32 compute", Precision { parameters: b, optimizer: b, ..Precision::F32 }),
        ("f16-mixed", Precision { scaling, ..Precision::mixed(DType::F16) }),
    ]
}

fn models() -> Vec<(&'static str, Cell)> {
    let sized = |hidden: usize, layers: usize, vocab: usize| {
        let mut cell = odd();
        let model = &mut cell.model;
        (model.hidden_size, model.intermediate_size, model.num_hidden_layers) = (hidden, 2 * hidden + 8, layers);
        (model.vocab_size, model.head_dim) = (vocab, hidden / 4);
        (model.num_attention_heads, model.num_key_value_heads) = (4, 4);
        cell
    };
    let mut gpt2 = formed(odd(), *forms().iter().find(|(name, ..)| *name == "gpt2").unwrap());
    gpt2.model.family = "gpt2".into();
    // Weights so wide that attention is far from uniform and rounding moves the first loss most.
    let mut wide = sized(32, 2, 97);
    wide.model.initializer_range = 0.15;
    let experts = expert_cells(odd()).swap_remove(0).1;
    vec![("24 x 3", odd()), ("64 x 4", sized(64, 4, 256)), ("wide", wide), ("gpt2", gpt2), ("experts", experts)]
}

/// Accumulation, ranks, learning rate, clipping.
const SETTINGS: [(usize, usize, f64, f64); 4] =
    [(1, 4, 1e-3, 1.0), (3, 2, 3e-3, 0.0), (2, 4, 1e-3, 0.5), (2, 2, 1e-2, 1.0)];

fn set(mut cell: Cell, precision: Precision, setting: (usize, usize, f64, f64), seed: u64, steps: usize) -> Cell {
    cell.precision = precision;
    (cell.train.accumulation, cell.parallel.ranks, cell.train.lr, cell.train.clip_norm) = setting;
    (cell.train.seed, cell.train.steps) = (seed, steps);
    cell
}

/// What is compared with the ddp cell: every strategy and mesh, the other attention kernel, another number of threads.
fn variants(cell: &Cell) -> Vec<(String, Cell)> {
    let ranks = cell.parallel.ranks;
    let others = strategies(ranks).into_iter().filter(|(strategy, _)| *strategy != Strategy::Ddp);
    let split = others.map(|(s, shard)| (format!("{} by {shard}", s.name()), on(cell.clone(), s, ranks, shard)));
    let naive = [Strategy::Ddp, Strategy::Zero3].map(|strategy| {
        let mut other = on(cell.clone(), strategy, ranks, 1);
        other.memory.attention = AttentionKind::Naive;
        (format!("{}, naive attention", strategy.name()), other)
    });
    let mut threads = on(cell.clone(), Strategy::Ddp, ranks, 1);
    threads.hardware = Hardware::cpu(3);
    split.chain(naive).chain([("ddp, 3 threads".into(), threads)]).collect()
}

fn compared(cell: &Cell, fault: Option<Fault>, reference: &[Point]) -> Compared {
    compare(&cell.precision, &steps_of(cell, fault), reference).expect("the same steps, and finite losses")
}

/// On seeds that the survey does not have, and with adapters, which it does not have either.
#[test]
fn correct_cells_stay_inside() {
    let adapters = Lora { rank: 4, alpha: 8.0, targets: Linear::ALL.to_vec(), ..Lora::default() };
    let mut models = models();
    models.push(("24 x 3 with adapters", Cell { lora: adapters, ..odd() }));
    models.retain(|(name, _)| *name != "64 x 4"); // the survey has it; here it would take most of the time
    let (mut differ, mut tried) = (0, 0);
    let low = ["bf16-mixed", "bf16", "fsdp-mixed", "f16-mixed"];
    let precisions = precisions().into_iter().filter(|(name, _)| low.contains(name));
    let cells = models.iter().flat_map(|model| precisions.clone().map(move |precision| (model, precision)));
    let test = "training::parity_bounds::correct_cells_stay_inside";
    for ((model, base), (name, precision)) in tiers::some(test, cells, [2, 4]) {
        let settings = SETTINGS.into_iter().enumerate().filter(|(number, _)| number % 2 == 1);
        for (number, setting) in tiers::some(&format!("{test} (settings)"), settings, [1, 2]) {
            let cell = set(base.clone(), precision, setting, 7000 + number as u64, 6);
            let reference = steps_of(&on(cell.clone(), Strategy::Ddp, setting.1, 1), None);
            for (what, other) in variants(&cell) {
                let found = compared(&other, None, &reference);
                assert_eq!(found.outside, None, "{model}, {name}, {setting:?}: {what}");
                (differ, tried) = (differ + usize::from(found.loss > 0.0), tried + 1);
            }
        }
    }
    assert!(2 * differ > tried, "only {differ} cells differ from their reference at all");
}

/// The 8 sequences of a step as ranks, rows of a micro-batch and micro-batches.
const DIVISIONS: [[usize; 3]; 6] = [[1, 8, 1], [2, 4, 1], [4, 2, 1], [4, 1, 2], [2, 1, 4], [1, 1, 8]];

fn divided(cell: &Cell, strategy: Strategy, [ranks, rows, micros]: [usize; 3]) -> Cell {
    let mut cell = on(cell.clone(), strategy, ranks, 1);
    (cell.train.micro_batch, cell.train.accumulation) = (rows, micros);
    cell
}

/// Cells of one global batch train on the same sequences, with the same dropout and the same mean over targets, however the
/// batch is divided. So their losses may be compared; those of another batch or seed may not.
#[test]
fn cells_of_one_global_batch_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    let dropout = Lora { rank: 4, alpha: 8.0, dropout: 0.1, targets: Linear::ALL.to_vec(), ..Lora::default() };
    let mut packed = Cell { data: documents(dir.path(), 40), ..odd() };
    packed.train.seq_len = 20;
    let experts = expert_cells(odd()).swap_remove(0).1;
    let f32 = |(name, cell)| (name, cell, Precision::F32);
    let dropout = Cell { lora: dropout, ..odd() };
    let cells = [("24 x 3", odd()), ("experts", experts), ("dropout", dropout), ("packed", packed)];
    let low = precisions().into_iter().filter(|(_, precision)| *precision != Precision::F32);
    let low = low.map(|(name, precision)| (name, odd(), precision));
    let (mut differ, mut tried) = (0, 0);
    let (test, all) = ("training::parity_bounds::cells_of_one_global_batch", cells.map(f32).into_iter().chain(low));
    for (number, (name, base, precision)) in tiers::some(test, all.enumerate(), [3, 8]) {
        let cell = set(base, precision, SETTINGS[number % 4], 7200 + number as u64, 6);
        let reference = steps_of(&divided(&cell, Strategy::Ddp, DIVISIONS[0]), None);
        let zero3 = DIVISIONS.map(|division| (Strategy::Zero3, division));
        let ddp = [1, 3].map(|index| (Strategy::Ddp, DIVISIONS[index]));
        for (strategy, division) in zero3.into_iter().chain(ddp) {
            let found = compared(&divided(&cell, strategy, division), None, &reference);
            assert_eq!(found.outside, None, "{name}: {} by {division:?}", strategy.name());
            (differ, tried) = (differ + usize::from(found.loss > 0.0), tried + 1);
        }
        let batch = divided(&cell, Strategy::Ddp, [2, 2, 1]);
        assert!(compared(&batch, None, &reference).outside.is_some(), "{name}: another batch");
        let mut seed = divided(&cell, Strategy::Ddp, DIVISIONS[1]);
        seed.train.seed += 1;
        assert!(compared(&seed, None, &reference).outside.is_some(), "{name}: another seed");
    }
    assert!(2 * differ > tried, "only {differ} cells differ from their reference at all");
}

/// Mistakes that an implementation of a strategy may have: all are outside, and the bound of the loss that there was before
/// let each of the first group pass in some cell.
#[test]
fn wrong_implementations_are_outside() {
    use Fault::*;
    let passed_before =
        [NotReduced(1), NotReduced(8), Sum(2.0), Sum(0.5), Sum(1.1), Loss(2.0), NoCorrection, LostUpdate, Stale];
    for fault in passed_before.into_iter().chain([Rate(2.0)]) {
        let mut passed = 0;
        let before = tiers::some("training::parity_bounds::wrong_implementations (precisions)", BEFORE, [1, 2]);
        for (name, most) in before {
            let precision = precisions().into_iter().find(|(known, _)| *known == name).unwrap().1;
            if fault == Stale && precision.master.is_none() {
                continue; // Without master weights there is no copy that could be stale.
            }
            let settings = SETTINGS.into_iter().enumerate();
            for (number, setting) in tiers::some("training::parity_bounds::wrong_implementations", settings, [1, 4]) {
                // At this rate the losses of low precision are too far apart to tell (docs/mixed-precision.md).
                if fault == Rate(2.0) && setting.2 >= 1e-2 {
                    continue;
                }
                let cell = on(set(odd(), precision, setting, 7100 + number as u64, 8), Strategy::Ddp, setting.1, 1);
                let found = compared(&cell, Some(fault), &steps_of(&cell, None));
                assert!(found.outside.is_some(), "{fault:?} in {name}, {setting:?}: {found:?}");
                passed += usize::from(found.loss <= most);
            }
        }
        // The fast tier has one of the cells.
        let has_all = tier() > Tier::Fast;
        assert!(
            passed > 0 || !has_all || !passed_before.contains(&fault),
            "{fault:?} was found in every cell before, too"
        );
    }
}

/// Prints, for each model and precision, the largest differences before the first update and after it, and how many times
/// as large the bounds are at the least.
#[test]
#[ignore = "the survey behind docs/mixed-precision.md, 10 minutes: cargo test -p zbench-engine-tests --test engine survey -- --ignored --nocapture"]
fn survey() {
    let models = models();
    let cells = models.iter().flat_map(|model| precisions().into_iter().map(move |precision| (model, precision)));
    for ((model, base), (name, precision)) in cells {
        let (mut first, mut later, mut least, mut pairs) = ([0.0f64; 2], [0.0f64; 2], f64::INFINITY, 0);
        for (setting, seed) in SETTINGS.into_iter().flat_map(|setting| [100, 101].map(|seed| (setting, seed))) {
            let cell = set(base.clone(), precision, setting, seed, 20);
            let reference = steps_of(&on(cell.clone(), Strategy::Ddp, setting.1, 1), None);
            for (_, other) in variants(&cell) {
                let steps = steps_of(&other, None);
                for end in 1..=steps.len() {
                    let step = |all: &[Point]| all[end - 1..end].to_vec();
                    let found = compare(&precision, &step(&steps), &step(&reference)).unwrap();
                    let seen = [found.loss, found.norm];
                    let kept = if end == 1 { &mut first } else { &mut later };
                    for (i, seen) in seen.into_iter().enumerate().filter(|(_, seen)| *seen > 0.0) {
                        kept[i] = kept[i].max(seen);
                        least = least.min(found.allowed[i] / seen);
                    }
                }
                pairs += 1;
            }
        }
        let both = |[loss, norm]: [f64; 2]| format!("{loss:.1e} and {norm:.1e}");
        println!("{model} | {name} | {pairs} | {} | {} | {least:.1}", both(first), both(later));
    }
}
