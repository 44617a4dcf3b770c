//! Low precision against f32: bands, loss scaling, stochastic rounding, the type that weights are loaded in.
//!
//! The bands, with u the unit roundoff of the compute type (2^-8 for bf16, 2^-11 for f16) and L0 the first loss in f32:
//!
//! - mixed, 8 u L0. A block rounds about 8 results to the compute type, the two blocks of these models and both ends some 20:
//!   independent roundings add up to sqrt(20) u = 4.5 u of the last hidden state, and so of the logits, whose spread is
//!   below half of L0; a token's loss is the difference of two functions of them, hence 4.5 u L0. The gradients' errors
//!   are as large, and change the fall of the loss, which is at most L0, by less than another 3.5 u of it.
//! - pure, 12 u L0: weights and both moments are rounded once more in every step, each by at most u of itself, and an
//!   update enters with the sum of the three; weights of norms, whose last place is above the learning rate, stand still.
//!
//! All steps of a run see the same batch, so that the loss falls by more than three of the widest bands: a run that does not
//! learn would not stay in any.

use crate::training::families::Oracle;
use crate::training::recording::Recording;
use crate::training::support::*;
use std::path::Path;
use std::sync::Arc;
use zbench_collectives::CollectiveKind;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Cause, Step};
use zbench_engine::run::launch_ranks::{train, with_ranks};
use zbench_engine::state::loss_scale::LossScaler;
use zbench_kernels::{Cpu, DType, Kernels, Op};
use zbench_test_tiers as tiers;

const BF16: f64 = 1.0 / 256.0;
const F16: f64 = 1.0 / 2048.0;

fn dynamic(initial_scale_power: u32) -> Option<LossScaling> {
    Some(LossScaling::Dynamic(DynamicScaling { initial_scale_power, ..DynamicScaling::DEFAULT }))
}

fn f16_mixed(initial_scale_power: u32) -> Precision {
    Precision { scaling: dynamic(initial_scale_power), ..Precision::mixed(DType::F16) }
}

fn stochastic(dtype: DType) -> Precision {
    Precision { rounding: WeightRounding::Stochastic, ..Precision::all(dtype) }
}

/// The cell of a fixture on two ranks, its data cut to the batch of the first step.
fn one_batch(folder: &Path, mut cell: Cell) -> Cell {
    let Data::Tokens { path, dtype, .. } = &cell.data else { panic!("fixtures read tokens") };
    let width = if *dtype == TokenType::U16 { 2 } else { 4 };
    let first = cell.train.micro_batch * (cell.train.seq_len + 1) * width;
    let cut = folder.join("first.bin");
    std::fs::write(&cut, &std::fs::read(path).unwrap()[..first]).unwrap();
    cell.data = Data::Tokens { path: cut, dtype: *dtype, shuffle: false };
    cell.train.micro_batch /= 2;
    (cell.train.steps, cell.train.clip_norm, cell.train.lr) = (30, 1.0, 2e-3);
    on(cell, Strategy::Ddp, 2, 1)
}

fn losses(steps: &[Step]) -> Vec<f64> {
    steps.iter().map(|step| step.loss).collect()
}

fn assert_in_band(got: &[f64], wanted: &[f64], band: f64, what: &str) {
    assert!(!wanted.is_empty() && got.len() == wanted.len(), "{what}: {} and {} steps", got.len(), wanted.len());
    for (step, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((got - wanted).abs() <= band, "{what}: step {step}: loss {got} for {wanted}, band {band:.4}");
    }
}

#[test]
fn low_precision_stays_in_its_band_of_the_f32_curve() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures =
        [("llama", llama_fixture()), ("gpt2", Oracle::open("gpt2").cell()), ("qwen2", Oracle::open("qwen2").cell())];
    let fixtures = tiers::some("training::precision::low_precision_stays_in_its_band (models)", fixtures, [1, 3]);
    for (name, cell) in fixtures {
        let base = one_batch(folder.path(), cell);
        let f32_curve = losses(&run(&base).steps);
        let (first, last) = (f32_curve[0], f32_curve[f32_curve.len() - 1]);
        assert!(first - last > 3.0 * 12.0 * BF16 * first, "{name}: falls from {first} to {last} only");
        let cases = [
            ("bf16-mixed", Precision::mixed(DType::Bf16), 8.0 * BF16),
            ("bf16", Precision::all(DType::Bf16), 12.0 * BF16),
            ("bf16, stochastic", stochastic(DType::Bf16), 12.0 * BF16),
            ("f16-mixed", f16_mixed(16), 8.0 * F16),
        ];
        let sizes = [cases.len(), 2];
        for [case, strategy] in tiers::combinations("training::precision::low_precision_stays_in_its_band", sizes) {
            let ((case, precision, band), strategy) = (cases[case], [Strategy::Ddp, Strategy::Zero3][strategy]);
            let mut cell = on(base.clone(), strategy, 2, 2);
            cell.precision = precision;
            let ran = run(&cell);
            let what = format!("{name} in {case} under {}", strategy.name());
            assert!(ran.steps.iter().all(|step| !step.skipped), "{what}: skipped a step");
            assert_in_band(&losses(&ran.steps), &f32_curve, band * first, &what);
        }
    }
}

/// A first scale of 2^40 overflows until it has come down, and stays at the edge, where a later step may overflow again.
/// Whatever is skipped, the updates are those of f32: the same batch, the same count, the same learning rates.
#[test]
fn a_run_recovers_from_injected_overflows() {
    let folder = tempfile::tempdir().unwrap();
    let mut base = one_batch(folder.path(), llama_fixture());
    (base.train.lr_schedule, base.train.lr_warmup_steps) = (Schedule::Linear, 3);
    base.train.steps = 60;
    let wanted = run(&base).steps;
    let strategies = [Strategy::Zero3, Strategy::Ddp];
    for strategy in tiers::some("training::precision::a_run_recovers_from_injected_overflows", strategies, [1, 2]) {
        let mut cell = on(base.clone(), strategy, 2, 2);
        cell.precision = f16_mixed(40);
        let steps = run(&cell).steps;
        let mut scaler = LossScaler::new(dynamic(40).unwrap());
        for (at, step) in steps.iter().enumerate() {
            assert_eq!(step.loss_scale, Some(scaler.scale()), "step {at}");
            assert_eq!(step.skipped, !step.grad_norm.is_finite(), "step {at}");
            let unmoved = steps.get(at + 1).is_none_or(|next| next.loss.to_bits() == step.loss.to_bits());
            assert!(!step.skipped || unmoved, "step {at} was skipped, and the weights moved");
            scaler.update(step.skipped).unwrap();
        }
        // 2^40 is far above what f16 can hold of any gradient; from 2^16 on there is room.
        let first = steps.iter().take_while(|step| step.skipped).count();
        let updates: Vec<Step> = steps.iter().filter(|step| !step.skipped).cloned().collect();
        assert!((10..=25).contains(&first) && updates.len() >= 30, "{first} skipped first, {} updates", updates.len());
        let wanted = &wanted[..updates.len()];
        assert!(updates.iter().zip(wanted).all(|(step, wanted)| step.lr == wanted.lr), "the schedule moved");
        let (updates, wanted) = (losses(&updates), losses(wanted));
        assert_in_band(&updates, &wanted, 8.0 * F16 * wanted[0], strategy.name());
        assert!(wanted[0] - wanted[wanted.len() - 1] > 24.0 * F16 * wanted[0], "it has learnt little since");
    }
}

/// Powers of two change exponents only: in f32, where nothing underflows, a scaled run is the unscaled one to the bit.
#[test]
fn a_scale_that_is_a_power_of_two_changes_no_bit_of_f32() {
    let mut base = on(synthetic(), Strategy::Ddp, 2, 1);
    (base.train.steps, base.train.clip_norm) = (6, 0.5);
    let plain = run(&base);
    let window = DynamicScaling { loss_scale_window: 2, ..DynamicScaling::DEFAULT };
    for scaling in [LossScaling::Static(0.25), LossScaling::Static(4096.0), LossScaling::Dynamic(window)] {
        for strategy in [Strategy::Ddp, Strategy::Zero3] {
            let mut cell = on(base.clone(), strategy, 2, 2);
            cell.precision.scaling = Some(scaling);
            let scaled = run(&cell);
            for (a, b) in plain.steps.iter().zip(&scaled.steps) {
                assert_eq!((a.loss.to_bits(), a.grad_norm.to_bits()), (b.loss.to_bits(), b.grad_norm.to_bits()));
                assert!(b.loss_scale.is_some() && a.loss_scale.is_none());
            }
            let same = plain.weights == scaled.weights && plain.gradients == scaled.gradients;
            assert!(same, "weights or gradients under {scaling:?}");
        }
    }
    let mut cell = base;
    cell.precision.scaling = Some(LossScaling::Dynamic(window));
    let scales: Vec<_> = run(&cell).steps.iter().map(|step| step.loss_scale.unwrap() / 65536.0).collect();
    assert_eq!(scales, [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
}

/// Losses, norms (which are not finite where a step is skipped), scales and weights.
fn told(cell: &Cell) -> (Vec<(u64, u64, u64, bool)>, Tensors) {
    let ran = run(cell);
    let bits = |x: f64| x.to_bits();
    let step = |s: &Step| (bits(s.loss), bits(s.grad_norm), bits(s.loss_scale.unwrap_or(0.0)), s.skipped);
    (ran.steps.iter().map(step).collect(), ran.weights)
}

#[test]
fn skipped_steps_and_stochastic_rounding_are_the_same_under_every_strategy() {
    let mut base = synthetic();
    (base.train.micro_batch, base.train.steps, base.train.clip_norm, base.train.lr) = (1, 12, 0.5, 1e-2);
    // Starts where some of the first steps overflow.
    // Sums of gradients are in f32: in bf16 a hybrid mesh rounds them once more between its two levels.
    let wide = Precision { gradients: DType::F32, reduce: DType::F32, ..stochastic(DType::Bf16) };
    for (precision, skips) in [(f16_mixed(26), true), (wide, false)] {
        let mut cell = on(base.clone(), Strategy::Ddp, 4, 1);
        cell.precision = precision;
        let reference = told(&cell);
        let skipped = reference.0.iter().filter(|step| step.3).count();
        assert!((skipped > 0) == skips && skipped < 12, "{skipped} of 12 steps are skipped");
        let shards = |strategy: Strategy| if strategy.is_hybrid() { vec![2, 1, 4] } else { vec![4] };
        let all =
            Strategy::ALL.into_iter().flat_map(|strategy| shards(strategy).into_iter().map(move |d| (strategy, d)));
        let test = "training::precision::skipped_steps_and_stochastic_rounding";
        for (strategy, shard) in tiers::some(test, all, [4, 12]) {
            let (steps, weights) = told(&on(cell.clone(), strategy, 4, shard));
            assert_eq!(reference.0, steps, "{} by {shard}", strategy.name());
            assert!(reference.1 == weights, "{} by {shard}: weights", strategy.name());
        }
    }
}

/// A learning rate of 2e-6 is less than half of the last place of nineteen in twenty weights (standard deviation 0.02;
/// bf16 has 2^-8 of a value): rounding to nearest keeps less than a quarter of what f32 learns; stochastic rounding at
/// least half.
#[test]
fn stochastic_rounding_learns_where_nearest_loses_the_updates() {
    let folder = tempfile::tempdir().unwrap();
    let mut base = one_batch(folder.path(), llama_fixture());
    base.model.weights = None;
    let steps = tiers::cases("training::precision::stochastic_rounding_learns (steps)", [150, 400, 400]);
    (base.train.lr, base.train.steps, base.train.weight_decay) = (2e-6, steps as usize, 0.0);
    let learnt = |precision| {
        let mut cell = base.clone();
        cell.precision = precision;
        let losses = losses(&run(&cell).steps);
        losses[0] - losses[losses.len() - 1]
    };
    // Only the weights differ: compute and moments are f32.
    let weights = |rounding| Precision { parameters: DType::Bf16, rounding, ..Precision::F32 };
    let whole = learnt(Precision::F32);
    let (nearest, drawn) = (learnt(weights(WeightRounding::Nearest)), learnt(weights(WeightRounding::Stochastic)));
    assert!(whole > 0.01 * f64::from(steps) / 400.0, "f32 learns {whole}");
    assert!(nearest < whole / 4.0, "nearest learns {nearest} of {whole}");
    assert!(drawn > whole / 2.0, "stochastic rounding learns {drawn} of {whole}");
    if tiers::cases("training::precision::stochastic_rounding_learns (pure bf16)", [0, 1, 1]) == 1 {
        let pure = learnt(stochastic(DType::Bf16));
        assert!(pure > whole / 2.0, "pure bf16 learns {pure} of {whole}");
    }
}

#[test]
fn an_overflow_at_the_smallest_scale_ends_the_run() {
    let mut cell = on(synthetic(), Strategy::Zero3, 2, 2);
    cell.train.steps = 10;
    let rules = DynamicScaling { initial_scale_power: 40, min_loss_scale: 2f64.powi(39), ..DynamicScaling::DEFAULT };
    cell.precision = Precision { scaling: Some(LossScaling::Dynamic(rules)), ..Precision::mixed(DType::F16) };
    let failure = train(&cell, &plan(&cell), &|_| {}).unwrap_err();
    let text = failure.cause.to_string();
    let Cause::Diverged { step, what, value } = failure.cause else { panic!("{}", failure.cause) };
    // Forgiven, halved, at the minimum.
    assert_eq!((step, what, value), (3, "loss_scale", 2f64.powi(39)));
    assert!(text.contains("smallest loss scale") && text.contains("precision.min_loss_scale"), "{text}");
    assert!(failure.steps.len() == 2 && failure.steps.iter().all(|step| step.skipped));
}

/// DeepSpeed's static scale skips what overflows, too, and stays.
#[test]
fn a_static_scale_skips_and_stays() {
    let mut cell = synthetic();
    cell.train.steps = 3;
    cell.precision = Precision { scaling: Some(LossScaling::Static(1e12)), ..Precision::mixed(DType::F16) };
    let ran = run(&cell);
    assert!(ran.steps.iter().all(|step| step.skipped && step.loss_scale == Some(1e12)));
    cell.precision.scaling = Some(LossScaling::Static(100.0));
    assert!(run(&cell).steps.iter().all(|step| !step.skipped && step.grad_norm.is_finite()));
}

/// A skipped step asks for all that the plan states but the update: AdamW and the cast of the master weights.
#[test]
fn a_skipped_step_does_all_but_the_update() {
    let ways = [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::HsdpFullOptimizer, 4)];
    for [way, power] in tiers::combinations("training::precision::a_skipped_step", [ways.len(), 2]) {
        let ((strategy, ranks), power) = (ways[way], [8, 40][power]);
        let mut cell = on(synthetic(), strategy, ranks, 2.min(ranks));
        (cell.train.micro_batch, cell.precision) = (1, f16_mixed(power));
        let recorders: Vec<_> = (0..ranks).map(|_| Arc::new(Recording::new(Cpu::new(1)))).collect();
        let kernels = recorders.iter().map(|r| r.clone() as Arc<dyn Kernels>).collect();
        let plan = plan(&cell);
        let ran = with_ranks(&cell, &plan, kernels, |rank| {
            recorders[rank.number()].clear();
            rank.step().map(|step| step.skipped)
        });
        let skipped = power == 40;
        assert!(ran.unwrap().iter().all(|each| *each == skipped));
        for (number, recorder) in recorders.iter().enumerate() {
            let stated = plan.operations(&cell, &Cpu::new(1), number);
            let update = stated.iter().position(|s| matches!(s.op, Op::AdamW(_))).unwrap();
            let wanted = if skipped { &stated[..update] } else { &stated[..] };
            let wanted: Vec<_> = wanted.iter().map(|s| Recording::plain(s.op)).collect();
            assert_eq!(wanted, recorder.take(), "{} with 2^{power}", strategy.name());
        }
    }
}

/// Weights that are rounded when they are read or drawn are f32 numbers of the narrow type; adapters are not loaded.
#[test]
fn weights_are_loaded_in_the_type_of_precision_load() {
    let folder = tempfile::tempdir().unwrap();
    for (load, round) in [
        (DType::Bf16, (|x: f32| half::bf16::from_f32(x).to_f32()) as fn(f32) -> f32),
        (DType::F16, |x: f32| half::f16::from_f32(x).to_f32()),
    ] {
        for base in [one_batch(folder.path(), llama_fixture()), synthetic()] {
            for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 2)] {
                let mut cell = on(base.clone(), strategy, ranks, ranks);
                // The first weights, trained by nothing.
                (cell.train.steps, cell.train.lr) = (1, 0.0);
                cell.lora = Lora { rank: 2, alpha: 4.0, dropout: 0.0, targets: vec![Linear::QProj], ..Lora::default() };
                let plain = run(&cell).weights;
                cell.precision.load = Some(load);
                let loaded = run(&cell).weights;
                for ((name, plain), (_, loaded)) in plain.iter().zip(&loaded) {
                    let adapter = name.contains("lora_");
                    let wanted = plain.iter().map(|x| if adapter { *x } else { round(*x) });
                    assert!(loaded.iter().copied().eq(wanted), "{name}");
                    assert!(adapter || plain.len() < 100 || plain != loaded, "{name}: nothing was rounded");
                }
            }
        }
    }
}

/// What travels when gradients are reduced is of the type of `reduce`, under every strategy, in every axis of its mesh.
#[test]
fn gradients_travel_in_the_type_of_reduce_under_every_strategy() {
    let mut base = synthetic();
    (base.train.micro_batch, base.train.steps, base.train.lr) = (1, 4, 1e-3);
    let shards = |strategy: Strategy| if strategy.is_hybrid() { vec![2, 4] } else { vec![4] };
    let all = Strategy::ALL.into_iter().flat_map(|strategy| shards(strategy).into_iter().map(move |d| (strategy, d)));
    let test = "training::precision::gradients_travel_in_the_type_of_reduce";
    for (strategy, shard) in tiers::some(test, all, [5, 10]) {
        let run_with = |reduce| {
            let mut cell = on(base.clone(), strategy, 4, shard);
            cell.precision = Precision { reduce, ..Precision::mixed(DType::Bf16) };
            let run = train(&cell, &plan(&cell), &|_| {}).unwrap();
            let reductions = run.ranks[1]
                .traffic
                .iter()
                .filter(|t| matches!(t.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter));
            let rows: Vec<_> = reductions.map(|t| (t.axis, t.kind, t.calls, t.payload_bytes)).collect();
            (rows, losses(&run.steps))
        };
        let ((wide, f32_curve), (narrow, curve)) = (run_with(DType::F32), run_with(DType::Bf16));
        assert!(!wide.is_empty());
        let halves: Vec<_> =
            wide.iter().map(|(axis, kind, calls, bytes)| (*axis, *kind, *calls, bytes / 2.0)).collect();
        assert_eq!(halves, narrow, "{} by {shard}", strategy.name());
        // One more rounding of each gradient, by u: a fraction of the mixed band.
        assert_in_band(&curve, &f32_curve, 2.0 * BF16 * f32_curve[0], strategy.name());
        assert_ne!(curve, f32_curve, "{}: the wire's type changes nothing", strategy.name());
    }
}
