//! Numbers that must not depend on the strategy: bit for bit where the order of sums is the same, 1e-5 where it is not.

use crate::training::support::*;
use std::collections::BTreeMap;
use zbench_engine::config::*;
use zbench_engine::state::buckets;
use zbench_test_tiers as tiers;

/// Runs that others are compared with, by number; each is trained once.
#[derive(Default)]
struct References(BTreeMap<usize, Ran>);

impl References {
    fn of(&mut self, number: usize, cell: impl FnOnce() -> Cell) -> &Ran {
        self.0.entry(number).or_insert_with(|| run(&cell()))
    }
}

/// Three blocks of sizes that divide nothing; clipping is active.
pub fn odd() -> Cell {
    let mut cell = synthetic();
    let model = &mut cell.model;
    (model.hidden_size, model.intermediate_size, model.num_hidden_layers, model.vocab_size) = (24, 40, 3, 61);
    (model.num_attention_heads, model.num_key_value_heads, model.head_dim) = (3, 1, 8);
    let train = &mut cell.train;
    (train.seq_len, train.micro_batch, train.steps, train.clip_norm, train.lr) = (13, 2, 3, 0.5, 1e-2);
    cell
}

/// Loss, norm and weights as bits.
fn bits(ran: &Ran) -> (Vec<(u64, u64)>, Vec<Vec<u32>>) {
    let steps = ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect();
    let weights = ran.weights.iter().map(|(_, v)| v.iter().map(|x| x.to_bits()).collect()).collect();
    (steps, weights)
}

pub fn assert_same(reference: &Ran, cell: &Cell, what: &str) {
    let ran = run(cell);
    assert!(ran.steps.iter().all(|s| s.grad_norm > cell.train.clip_norm), "{what}: clipping is not active");
    assert_eq!(bits(reference).0, bits(&ran).0, "{what}: losses and norms");
    assert_eq!(bits(reference).1, bits(&ran).1, "{what}: weights");
}

pub fn assert_close(a: &Ran, b: &Ran, what: &str) {
    for (x, y) in a.steps.iter().zip(&b.steps) {
        assert!((x.loss - y.loss).abs() <= 1e-5 * x.loss, "{what}: loss {} and {}", x.loss, y.loss);
        assert!((x.grad_norm - y.grad_norm).abs() <= 1e-5 * x.grad_norm, "{what}: norm");
    }
}

/// Strategies and shard groups for a number of ranks.
pub fn strategies(ranks: usize) -> Vec<(Strategy, usize)> {
    let power = ranks.is_power_of_two();
    let groups =
        |s: Strategy| if s.is_hybrid() { (1..=ranks).filter(|d| ranks.is_multiple_of(*d)).collect() } else { vec![1] };
    let all = Strategy::ALL.into_iter().filter(|s| power || !s.is_hybrid());
    all.flat_map(|s| groups(s).into_iter().map(move |shard| (s, shard))).collect()
}

/// On one, two and four ranks the golden cells compare them, too, with everything else that a cell has.
#[test]
fn every_strategy_gives_the_same_bits() {
    let mut references = References::default();
    let mut assert = |strategy: Strategy, ranks, shard| {
        let reference = references.of(ranks, || on(odd(), Strategy::Ddp, ranks, 1));
        let what = format!("{} on {ranks} ranks by {shard}", strategy.name());
        assert_same(reference, &on(odd(), strategy, ranks, shard), &what);
    };
    let (counts, plain) = ([1, 2, 3, 4, 6], Strategy::ALL.into_iter().filter(|strategy| !strategy.is_hybrid()));
    let plain: Vec<_> = plain.collect();
    const TEST: &str = "training::identity::every_strategy_gives_the_same_bits";
    for [strategy, ranks] in tiers::combinations(TEST, [plain.len(), counts.len()]) {
        assert(plain[strategy], counts[ranks], 1);
    }
    let (hybrids, meshes) =
        ([Strategy::Hsdp, Strategy::HsdpFullOptimizer], [(4, 2), (4, 1), (4, 4), (2, 1), (2, 2), (1, 1)]);
    for [strategy, mesh] in tiers::combinations(TEST, [hybrids.len(), meshes.len()]) {
        assert(hybrids[strategy], meshes[mesh].0, meshes[mesh].1);
    }
}

#[test]
fn every_form_gives_the_same_bits_under_every_strategy_and_policy() {
    let (forms, strategies) = (forms(), strategies(2));
    let policies = [Checkpointing::None, Checkpointing::Full, Checkpointing::Every(2)];
    let mut references = References::default();
    const TEST: &str = "training::identity::every_form_gives_the_same_bits_under_every_strategy_and_policy";
    for [form, strategy, policy] in tiers::combinations(TEST, [forms.len(), strategies.len(), policies.len()]) {
        let mut base = formed(odd(), forms[form]);
        (base.train.clip_norm, base.train.lr) = (0.05, 1e-3);
        let reference = references.of(form, || on(base.clone(), Strategy::Ddp, 2, 1));
        let (strategy, shard) = strategies[strategy];
        let mut cell = on(base, strategy, 2, shard);
        cell.memory.checkpointing = policies[policy].clone();
        let what = format!("{}: {} by {shard}, {:?}", forms[form].0, strategy.name(), policies[policy]);
        assert_same(reference, &cell, &what);
    }
}

#[test]
fn experts_give_the_same_bits_under_every_strategy_and_policy() {
    let mut base = odd();
    (base.train.clip_norm, base.train.lr) = (0.05, 1e-3);
    let experts = expert_cells(base);
    let policies = [
        Checkpointing::None,
        Checkpointing::Full,
        Checkpointing::Selective,
        Checkpointing::Sqrt,
        Checkpointing::Every(2),
        Checkpointing::Keep(vec![SavedTensor::GateUp]),
        Checkpointing::Keep(vec![SavedTensor::Activation, SavedTensor::MlpNorm]),
    ];
    for (ranks, policies) in [(2, &policies[..]), (4, &policies[..2])] {
        let (strategies, mut references) = (strategies(ranks), References::default());
        const TEST: &str = "training::identity::experts_give_the_same_bits_under_every_strategy_and_policy";
        let sizes = [experts.len(), strategies.len(), policies.len()];
        for [at, strategy, policy] in tiers::combinations(TEST, sizes) {
            let ((name, base), (strategy, shard)) = (&experts[at], strategies[strategy]);
            let reference = references.of(at, || on(base.clone(), Strategy::Ddp, ranks, 1));
            let mut cell = on(base.clone(), strategy, ranks, shard);
            cell.memory.checkpointing = policies[policy].clone();
            let what = format!("{name}: {} on {ranks} by {shard}, {:?}", strategy.name(), policies[policy]);
            assert_same(reference, &cell, &what);
        }
    }
}

/// Low precision repeats itself, whatever recomputes the routing; f32 does not depend on how the batch is shared out.
#[test]
fn experts_repeat_themselves_and_share_out_a_batch() {
    const TEST: &str = "training::identity::experts_repeat_themselves_and_share_out_a_batch";
    let experts = expert_cells(odd());
    let ways = [
        (Strategy::Ddp, Checkpointing::Full),
        (Strategy::Zero3, Checkpointing::None),
        (Strategy::Zero3, Checkpointing::Selective),
    ];
    for [at, way] in tiers::combinations(TEST, [experts.len(), ways.len()]) {
        let ((name, base), (strategy, policy)) = (&experts[at], &ways[way]);
        let mut narrow = on(base.clone(), *strategy, 2, 1);
        narrow.precision = Precision::mixed(zbench_kernels::DType::Bf16);
        let reference = run(&on(narrow.clone(), Strategy::Ddp, 2, 1));
        narrow.memory.checkpointing = policy.clone();
        assert_eq!(bits(&reference), bits(&run(&narrow)), "{name}: {}", strategy.name());
    }
    let mut references = References::default();
    for [at, shares] in tiers::combinations(TEST, [experts.len(), SHARES.len()]) {
        let ((name, base), shares) = (&experts[at], SHARES[shares]);
        assert_shared_out(references.of(at, || whole_batch(base.clone())), base, shares, name);
    }
}

#[test]
fn neither_checkpointing_nor_prefetch_nor_attention_layout_changes_a_bit() {
    let policies = [
        Checkpointing::Full,
        Checkpointing::Selective,
        Checkpointing::Sqrt,
        Checkpointing::Every(2),
        Checkpointing::Every(5),
        Checkpointing::Keep(vec![SavedTensor::Qkv]),
        Checkpointing::Keep(vec![SavedTensor::Activation, SavedTensor::AttentionNorm]),
    ];
    let strategies = [(Strategy::Ddp, 1), (Strategy::Zero3, 1), (Strategy::FsdpGradOp, 1), (Strategy::Hsdp, 2)];
    let (prefetches, mut references) = ([0, 1, 4], References::default());
    const TEST: &str = "training::identity::neither_checkpointing_nor_prefetch_nor_attention_layout_changes_a_bit";
    let sizes = [2, strategies.len(), policies.len(), prefetches.len()];
    for [tied, strategy, policy, prefetch] in tiers::combinations(TEST, sizes) {
        let mut base = odd();
        base.model.tie_word_embeddings = tied == 1;
        let reference = references.of(tied, || on(base.clone(), Strategy::Ddp, 2, 1));
        let ((strategy, shard), prefetch) = (strategies[strategy], prefetches[prefetch]);
        let mut cell = on(base, strategy, 2, shard);
        (cell.memory.checkpointing, cell.parallel.prefetch) = (policies[policy].clone(), prefetch);
        let what = format!("{} {:?} prefetch {prefetch}", strategy.name(), policies[policy]);
        assert_same(reference, &cell, &what);
    }
}

/// Gradients of all units in one call, of some together, of each by itself; of 2 and of 3 ranks, in copies that travel and in place.
#[test]
fn buckets_change_no_bit() {
    let mut tied = odd();
    tied.model.tie_word_embeddings = true;
    let lora = Lora { rank: 2, alpha: 3.0, targets: Linear::ALL.to_vec(), ..Lora::default() };
    let mixed = Precision { reduce: zbench_kernels::DType::Bf16, ..Precision::mixed(zbench_kernels::DType::Bf16) };
    let narrow = Precision { gradients: zbench_kernels::DType::Bf16, ..Precision::F32 };
    let bases =
        [odd(), tied, Cell { lora, ..odd() }, Cell { precision: mixed, ..odd() }, Cell { precision: narrow, ..odd() }];
    // Of the dense model: several buckets, one of which has several units.
    let sizes = |bucket_mb| {
        let mut cell = on(odd(), Strategy::Ddp, 2, 1);
        cell.parallel.bucket_mb = bucket_mb;
        let plan = plan(&cell);
        buckets(&cell, &plan.sharding, &plan.mesh, &plan.layout).iter().map(|units| units.len()).collect::<Vec<_>>()
    };
    assert_eq!([sizes(0.0), sizes(0.03), sizes(BUCKET_MB)], [vec![1; 5], vec![2, 1, 2], vec![5]]);
    let bases: Vec<Cell> = bases.into_iter().chain(expert_cells(odd()).into_iter().map(|(_, cell)| cell)).collect();
    let (counts, buckets) = ([2, 3], [0.03, BUCKET_MB]);
    const TEST: &str = "training::identity::buckets_change_no_bit";
    for [base, ranks, bucket] in tiers::combinations(TEST, [bases.len(), counts.len(), buckets.len()]) {
        let mut cell = on(bases[base].clone(), Strategy::Ddp, counts[ranks], 1);
        (cell.train.clip_norm, cell.train.accumulation, cell.parallel.bucket_mb) = (0.01, 2, 0.0);
        let reference = run(&cell);
        cell.parallel.bucket_mb = buckets[bucket];
        assert_same(&reference, &cell, &format!("{} MiB on {} ranks", buckets[bucket], counts[ranks]));
    }
}

#[test]
fn accumulation_gives_the_same_bits_inside_a_group_and_close_ones_across() {
    let accumulated = |strategy, shard| {
        let mut cell = on(odd(), strategy, 4, shard);
        cell.train.accumulation = 3;
        cell
    };
    let sums_last = run(&accumulated(Strategy::Ddp, 1));
    assert_same(&sums_last, &accumulated(Strategy::Zero1, 1), "zero1");
    let sums_first = run(&accumulated(Strategy::Zero2, 1));
    for strategy in [Strategy::Zero3, Strategy::Fsdp, Strategy::FsdpGradOp] {
        assert_same(&sums_first, &accumulated(strategy, 1), strategy.name());
    }
    let hybrid = run(&accumulated(Strategy::Hsdp, 2));
    assert_same(&hybrid, &accumulated(Strategy::HsdpFullOptimizer, 2), "hsdp-full-optimizer");
    assert_close(&sums_last, &sums_first, "ddp and zero2");
    assert_close(&sums_last, &hybrid, "ddp and hsdp");
}

/// Ranks, rows of a micro-batch, micro-batches: four rows in all.
const SHARES: [[usize; 3]; 4] = [[2, 2, 1], [4, 1, 1], [2, 1, 2], [1, 1, 4]];

fn whole_batch(mut cell: Cell) -> Cell {
    cell.train.micro_batch = 4;
    cell
}

fn assert_shared_out(whole: &Ran, base: &Cell, [ranks, rows, accumulation]: [usize; 3], what: &str) {
    let mut cell = on(base.clone(), Strategy::Zero3, ranks, 1);
    (cell.train.micro_batch, cell.train.accumulation) = (rows, accumulation);
    assert_close(whole, &run(&cell), &format!("{what}: {ranks} ranks, {rows} rows, {accumulation} micro-batches"));
}

#[test]
fn the_global_batch_is_the_same_however_it_is_shared_out() {
    let whole = run(&whole_batch(odd()));
    SHARES.into_iter().for_each(|shares| assert_shared_out(&whole, &odd(), shares, "llama"));
}

#[test]
fn a_low_precision_run_repeats_itself_under_every_strategy() {
    let precisions = [Precision::mixed(zbench_kernels::DType::Bf16), Precision::all(zbench_kernels::DType::Bf16)];
    let (strategies, mut references) = (strategies(4), References::default());
    const TEST: &str = "training::identity::a_low_precision_run_repeats_itself_under_every_strategy";
    for [at, strategy] in tiers::combinations(TEST, [precisions.len(), strategies.len()]) {
        let ((strategy, shard), base) = (strategies[strategy], Cell { precision: precisions[at], ..odd() });
        let cell = on(base.clone(), strategy, 4, shard);
        let ran = run(&cell);
        // bf16 on the wire rounds a partial sum between the two levels of a hybrid mesh.
        let is_wide = base.precision.reduce == zbench_kernels::DType::F32;
        if is_wide || !strategy.is_hybrid() || shard == 1 || shard == 4 {
            let reference = references.of(at, || on(base, Strategy::Ddp, 4, 1));
            assert_eq!(bits(reference), bits(&ran), "{} by {shard}", strategy.name());
        }
        assert_eq!(bits(&ran), bits(&run(&cell)), "{} by {shard}, twice", strategy.name());
    }
}

/// What travels is rounded, what is summed is not: the strategies that scatter agree to the bit also when gradients travel
/// in a narrower type than they are kept in. (An all-reduce's sum travels back and is rounded once more.)
#[test]
fn narrow_wires_leave_sums_wide() {
    let mut base = odd();
    base.precision = Precision { reduce: zbench_kernels::DType::Bf16, ..Precision::F32 };
    let reference = run(&on(base.clone(), Strategy::Zero1, 4, 1));
    for strategy in [Strategy::Zero2, Strategy::Zero3, Strategy::Fsdp, Strategy::FsdpGradOp] {
        assert_same(&reference, &on(base.clone(), strategy, 4, 1), strategy.name());
    }
}

#[test]
fn adapters_train_alike_under_every_strategy_and_leave_the_base_alone() {
    let mut base = odd();
    base.lora = Lora { rank: 3, alpha: 6.0, dropout: 0.1, targets: Linear::ALL.to_vec(), ..Lora::default() };
    let start = {
        let mut cell = base.clone();
        cell.train.lr = 0.0;
        run(&on(cell, Strategy::Ddp, 2, 1))
    };
    base.train.clip_norm = 1e-4;
    let reference = run(&on(base.clone(), Strategy::Ddp, 2, 1));
    for ((name, before), (_, after)) in start.weights.iter().zip(&reference.weights) {
        assert_eq!(name.contains("lora_"), before != after, "{name}");
    }
    assert!(reference.gradients.iter().all(|(name, _)| name.contains(".lora_")));
    let (strategies, policies) = (strategies(2), [Checkpointing::None, Checkpointing::Full]);
    const TEST: &str = "training::identity::adapters_train_alike_under_every_strategy_and_leave_the_base_alone";
    for [strategy, policy] in tiers::combinations(TEST, [strategies.len(), policies.len()]) {
        let (strategy, shard) = strategies[strategy];
        let mut cell = on(base.clone(), strategy, 2, shard);
        cell.memory.checkpointing = policies[policy].clone();
        assert_same(&reference, &cell, strategy.name());
    }
}

#[test]
fn adapters_of_every_kind_train_alike_under_every_strategy() {
    let all: Vec<Adapters> = adapters().into_iter().chain([dora()]).collect();
    let of = |(_, adapt): &Adapters| {
        let mut base = on(odd(), Strategy::Ddp, 2, 1);
        adapt(&mut base);
        base.train.clip_norm = 1e-5;
        base
    };
    let mut references = References::default();
    for (at, adapters) in all.iter().enumerate() {
        let (what, mut still) = (adapters.0, of(adapters));
        let reference = references.of(at, || still.clone());
        still.train.lr = 0.0;
        let start = run(&still);
        assert!(!reference.gradients.is_empty());
        for ((name, before), (_, after)) in start.weights.iter().zip(&reference.weights) {
            let adapter = zbench_engine::model::is_adapter(name);
            assert_eq!(adapter, before != after, "{what}: {name}");
            assert_eq!(adapter, reference.gradients.iter().any(|(other, _)| other == name), "{what}: {name}");
        }
    }
    let (strategies, policies) = (strategies(2), [Checkpointing::None, Checkpointing::Every(2)]);
    const TEST: &str = "training::identity::adapters_of_every_kind_train_alike_under_every_strategy";
    for [at, strategy, policy] in tiers::combinations(TEST, [all.len(), strategies.len(), policies.len()]) {
        let (strategy, shard) = strategies[strategy];
        let mut cell = on(of(&all[at]), strategy, 2, shard);
        cell.memory.checkpointing = policies[policy].clone();
        let reference = references.of(at, || unreachable!("all references are trained"));
        assert_same(reference, &cell, &format!("{}: {} by {shard}", all[at].0, strategy.name()));
    }
}
