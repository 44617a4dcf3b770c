//! What the plan says a run will take against what it took: bytes by category, bytes on the wire, calls, operations.

use crate::training::recording::Recording;
use crate::training::support::*;
use std::sync::Arc;
use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_collectives::Traffic;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::RankReport;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{Category, Cpu, CrossEntropy, DType, Kernels, Op};
use zbench_test_tiers as tiers;

pub fn small() -> Cell {
    let mut cell = synthetic();
    let model = &mut cell.model;
    (model.hidden_size, model.intermediate_size, model.num_hidden_layers, model.vocab_size) = (24, 40, 3, 61);
    (model.num_attention_heads, model.num_key_value_heads, model.head_dim) = (3, 1, 8);
    let train = &mut cell.train;
    (train.seq_len, train.micro_batch, train.steps, train.untimed_steps) = (13, 2, 2, 1);
    cell
}

pub fn measure(cell: &Cell, plan: &Plan) -> Vec<RankReport> {
    let steps = cell.train.steps + cell.train.untimed_steps;
    let ran = with_ranks(cell, plan, cpus(cell), |rank| {
        for _ in 0..steps {
            rank.step()?;
        }
        Ok(rank.report())
    });
    ran.unwrap_or_else(|failure| panic!("{}", failure.cause))
}

/// Equal to the byte and to the call, on every rank.
pub fn assert_as_planned(cell: &Cell, what: &str) {
    let plan = plan(cell);
    for report in measure(cell, &plan) {
        let (planned, measured) = (plan.stage_plan_of(0).estimate.memory(), report.memory());
        for c in Category::ALL {
            assert_eq!(planned.peak(c), measured.peak(c), "{what}: rank {}: peak of {c}", report.rank);
            assert_eq!(planned.at_peak(c), measured.at_peak(c), "{what}: rank {}: {c} at the peak", report.rank);
        }
        assert_eq!(planned.total_peak(), measured.total_peak(), "{what}: peak");
        let plain = |t: &Traffic| (t.axis, t.kind, t.calls, t.payload_bytes, t.wire_bytes, t.ranks);
        let stated: Vec<_> = plan.stage_plan_of(0).estimate.traffic.iter().map(plain).collect();
        let moved: Vec<_> = report.traffic.iter().map(plain).collect();
        assert_eq!(stated, moved, "{what}: rank {}", report.rank);
    }
}

pub fn policies() -> Vec<Checkpointing> {
    vec![
        Checkpointing::None,
        Checkpointing::Full,
        Checkpointing::Selective,
        Checkpointing::Every(2),
        Checkpointing::Keep(vec![SavedTensor::Attention, SavedTensor::MlpNorm]),
    ]
}

#[test]
fn plans_hold_for_every_strategy_accumulation_and_policy() {
    let (strategies, policies, counts) = (Strategy::ALL, policies(), [1, 3]);
    const TEST: &str = "training::accounting::plans_hold_for_every_strategy_accumulation_and_policy";
    for [strategy, policy, count] in tiers::combinations(TEST, [strategies.len(), policies.len(), counts.len()]) {
        let (strategy, accumulation) = (strategies[strategy], counts[count]);
        let mut cell = on(small(), strategy, 4, 2);
        (cell.train.accumulation, cell.memory.checkpointing) = (accumulation, policies[policy].clone());
        let what = format!("{} accumulation {accumulation} {:?}", strategy.name(), policies[policy]);
        assert_as_planned(&cell, &what);
    }
}

#[test]
fn plans_hold_for_every_rank_count_and_shape() {
    let (strategies, meshes) = (Strategy::ALL, [(1, 1), (2, 2), (3, 3), (6, 2), (6, 3)]);
    let shapes = [(false, 0, true), (true, 0, false), (true, 3, true)];
    const TEST: &str = "training::accounting::plans_hold_for_every_rank_count_and_shape";
    for [strategy, mesh, shape] in tiers::combinations(TEST, [strategies.len(), meshes.len(), shapes.len()]) {
        let (strategy, (ranks, shard), (tied, prefetch, naive)) = (strategies[strategy], meshes[mesh], shapes[shape]);
        let mut cell = on(small(), strategy, ranks, shard);
        cell.model.tie_word_embeddings = tied;
        cell.parallel.prefetch = prefetch;
        cell.memory.attention = if naive { AttentionKind::Naive } else { AttentionKind::Flash };
        assert_as_planned(&cell, &format!("{} on {ranks} by {shard} tied {tied}", strategy.name()));
    }
}

/// As many calls as buckets: backward completes the head first, and a unit joins the bucket before it while that has room.
#[test]
fn plans_hold_for_buckets() {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let calls = |cell: &Cell| {
        let rows = estimate(cell).traffic;
        rows.iter().filter(|row| row.kind == CollectiveKind::AllReduce).map(|row| row.calls).sum::<f64>()
    };
    for (reduce, accumulation) in [(DType::F32, 1), (DType::F32, 2), (DType::Bf16, 1), (DType::Bf16, 2)] {
        let mut cell = on(small(), Strategy::Ddp, 3, 1);
        (cell.precision.reduce, cell.train.accumulation, cell.parallel.bucket_mb) = (reduce, accumulation, BUCKET_MB);
        let bytes: Vec<usize> = plan(&cell).layout.units.iter().map(|unit| 4 * unit.trainable().padded).collect();
        let of_one_bucket = calls(&cell);
        for (bucket_mb, buckets) in [
            (0.0, bytes.len()),
            (mib(bytes.iter().copied().min().unwrap()), bytes.len()),
            (mib(bytes[1..].iter().sum()), 2),
            (mib(bytes.iter().sum()), 1),
            (BUCKET_MB, 1),
        ] {
            cell.parallel.bucket_mb = bucket_mb;
            let what = format!("buckets of {bucket_mb} MiB, {reduce} travels, accumulation {accumulation}");
            assert_as_planned(&cell, &what);
            assert_eq!(calls(&cell) - of_one_bucket, (buckets - 1) as f64, "{what}");
        }
    }
}

/// Where heads are wide and the MLP is narrow the peak of a step lies in attention's backward, elsewhere in the MLP's.
#[test]
fn plans_hold_where_attention_is_the_widest_part() {
    let mut base = small();
    (base.model.head_dim, base.model.intermediate_size, base.train.seq_len) = (64, 16, 40);
    let mut cells: Vec<(String, Cell)> = expert_cells(base.clone()).into_iter().map(|(n, c)| (n.into(), c)).collect();
    for form in forms() {
        for kv in [1, 3] {
            let mut cell = formed(base.clone(), form);
            (cell.model.head_dim, cell.model.intermediate_size, cell.model.num_key_value_heads) = (64, 16, kv);
            cells.push((format!("{} with {kv} key heads", form.0), cell));
        }
    }
    for (name, change) in adapters().into_iter().chain([dora()]) {
        let mut cell = base.clone();
        change(&mut cell);
        (cell.model.head_dim, cell.model.intermediate_size) = (64, 16);
        cell.lora.rank *= 100;
        cells.push((name.into(), cell));
    }
    let policies = [Checkpointing::None, Checkpointing::Full, Checkpointing::Selective];
    let strategies = [(Strategy::Ddp, 1), (Strategy::Zero3, 2)];
    const TEST: &str = "training::accounting::plans_hold_where_attention_is_the_widest_part";
    for [at, policy, strategy] in tiers::combinations(TEST, [cells.len(), policies.len(), strategies.len()]) {
        let ((name, base), (strategy, ranks)) = (&cells[at], strategies[strategy]);
        let mut cell = on(base.clone(), strategy, ranks, ranks);
        cell.memory.checkpointing = policies[policy].clone();
        assert_as_planned(&cell, &format!("{name}: {} {:?}", strategy.name(), policies[policy]));
    }
}

fn scaled(initial_scale_power: u32) -> LossScaling {
    LossScaling::Dynamic(DynamicScaling { initial_scale_power, ..DynamicScaling::DEFAULT })
}

#[test]
fn plans_hold_for_every_precision_and_for_adapters() {
    let bf16 = DType::Bf16;
    let mixed = Precision::mixed(bf16);
    let precisions = [
        mixed,
        Precision { gradients: bf16, ..mixed },
        Precision { gradients: bf16, reduce: bf16, ..mixed },
        Precision { parameters: DType::F32, master: None, ..mixed },
        Precision::all(bf16),
        Precision::mixed(DType::F16),
        Precision { reduce: bf16, ..mixed },
        // All steps of 2^40 are skipped: they ask for no less memory and move no fewer bytes.
        Precision { scaling: Some(scaled(16)), ..Precision::mixed(DType::F16) },
        Precision { scaling: Some(scaled(40)), ..Precision::mixed(DType::F16) },
        Precision { load: Some(bf16), rounding: WeightRounding::Stochastic, ..Precision::all(bf16) },
    ];
    const TEST: &str = "training::accounting::plans_hold_for_every_precision_and_for_adapters";
    for [precision, strategy, adapts] in tiers::combinations(TEST, [precisions.len(), Strategy::ALL.len(), 2]) {
        let (strategy, precision, adapters) = (Strategy::ALL[strategy], precisions[precision], 2 * adapts);
        let mut cell = on(small(), strategy, 4, 2);
        (cell.precision, cell.train.accumulation) = (precision, 2);
        let (targets, base) = (vec![Linear::QProj, Linear::DownProj], Some(Base::Bf16));
        cell.lora = Lora { rank: adapters, alpha: 4.0, dropout: 0.25, targets, base, ..Lora::default() };
        assert_as_planned(&cell, &format!("{} {precision:?} adapters {adapters}", strategy.name()));
    }
}

#[test]
fn plans_hold_for_every_form_of_block() {
    let strategies = [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::FsdpGradOp, 2), (Strategy::Hsdp, 1)];
    let kinds = [(0, Precision::F32), (2, Precision::mixed(DType::Bf16))];
    let (forms, policies) = (forms(), policies());
    const TEST: &str = "training::accounting::plans_hold_for_every_form_of_block";
    let sizes = [forms.len(), policies.len(), strategies.len(), kinds.len()];
    for [form, policy, strategy, kind] in tiers::combinations(TEST, sizes) {
        let ((strategy, shard), (adapters, precision)) = (strategies[strategy], kinds[kind]);
        let mut cell = on(formed(small(), forms[form]), strategy, 2, shard);
        (cell.train.accumulation, cell.precision) = (2, precision);
        (cell.model.tie_word_embeddings, cell.parallel.prefetch) = (adapters > 0, adapters);
        cell.memory.attention = if adapters > 0 { AttentionKind::Naive } else { AttentionKind::Flash };
        let targets = Linear::ALL.to_vec();
        cell.lora = Lora { rank: adapters, alpha: 4.0, dropout: 0.25, targets, ..Lora::default() };
        cell.memory.checkpointing = policies[policy].clone();
        let (form, policy) = (forms[form].0, &policies[policy]);
        assert_as_planned(&cell, &format!("{form}: {} {policy:?} adapters {adapters}", strategy.name()));
    }
}

#[test]
fn plans_hold_for_experts() {
    let bf16 = DType::Bf16;
    let meshes = [
        (Strategy::Ddp, 1, 1),
        (Strategy::Zero1, 2, 2),
        (Strategy::Zero2, 2, 2),
        (Strategy::Zero3, 2, 2),
        (Strategy::FsdpGradOp, 3, 3),
        (Strategy::Hsdp, 4, 2),
    ];
    let kinds =
        [(0, Precision::F32), (0, Precision { gradients: bf16, ..Precision::mixed(bf16) }), (2, Precision::F32)];
    let (experts, policies) = (expert_cells(small()), policies());
    const TEST: &str = "training::accounting::plans_hold_for_experts";
    let sizes = [experts.len(), meshes.len(), policies.len(), kinds.len()];
    for [at, mesh, policy, kind] in tiers::combinations(TEST, sizes) {
        let ((name, base), (strategy, ranks, shard), (adapters, precision)) = (&experts[at], meshes[mesh], kinds[kind]);
        let mut cell = on(base.clone(), strategy, ranks, shard);
        (cell.memory.checkpointing, cell.precision) = (policies[policy].clone(), precision);
        cell.train.accumulation = 2;
        let targets = vec![Linear::QProj, Linear::OProj];
        cell.lora = Lora { rank: adapters, alpha: 4.0, dropout: 0.25, targets, ..Lora::default() };
        assert_as_planned(&cell, &format!("{name}: {} {:?} adapters {adapters}", strategy.name(), policies[policy]));
    }
}

#[test]
fn stated_operations_of_experts_are_the_ones_issued() {
    let (experts, policies) = (expert_cells(small()), policies());
    let kinds = [(Precision::F32, 0), (Precision::mixed(DType::Bf16), 2)];
    const TEST: &str = "training::accounting::stated_operations_of_experts_are_the_ones_issued";
    for [at, policy, kind] in tiers::combinations(TEST, [experts.len(), policies.len(), kinds.len()]) {
        let ((name, base), (precision, adapters)) = (&experts[at], kinds[kind]);
        let mut cell = on(base.clone(), Strategy::Zero3, 2, 2);
        (cell.memory.checkpointing, cell.precision) = (policies[policy].clone(), precision);
        let targets = vec![Linear::VProj];
        cell.lora = Lora { rank: adapters, alpha: 4.0, dropout: 0.25, targets, ..Lora::default() };
        assert_stated(&cell, &format!("{name} {:?}", policies[policy]));
    }
}

/// Operations of experts are those of the ones a token goes to, which is what 6 N of the active parameters says.
#[test]
fn experts_count_as_far_as_tokens_pass_through_them() {
    let mut cell = expert_cells(small()).swap_remove(0).1;
    let all = estimate(&cell);
    let (hidden, wide) = (cell.model.hidden_size as u64, 14);
    assert_eq!(all.parameters - all.active_parameters, 3 * 3 * 3 * hidden * wide);
    let tokens = all.flops.tokens;
    let term = |name: &str| all.flops.ledger.iter().find(|(term, _)| term == name).unwrap().1;
    assert_eq!(term("forward expert up_proj"), (3 * 2 * 2 * tokens * hidden * wide) as f64);
    assert_eq!(term("backward expert down_proj"), (3 * 2 * 4 * tokens * hidden * wide) as f64);
    assert_eq!(term("forward router"), (3 * 2 * tokens * hidden * 5) as f64);
    // More experts to choose from are more parameters, and no more work but the router's.
    cell.model.experts.as_mut().unwrap().num_experts = 10;
    let more = estimate(&cell);
    let router = 3 * 5 * hidden;
    assert_eq!(more.active_parameters - all.active_parameters, router);
    assert_eq!(more.flops.model - all.flops.model, (6 * tokens * router) as f64);
    assert_eq!(more.flops.palm - all.flops.palm, (6 * tokens * router) as f64);
    assert!(more.parameters > all.parameters + 3 * 5 * 3 * hidden * wide);
}

#[test]
fn adapters_on_experts_are_refused_with_a_way_out() {
    for target in [Linear::GateProj, Linear::UpProj, Linear::DownProj] {
        let mut cell = expert_cells(small()).swap_remove(1).1;
        cell.lora = Lora { rank: 2, alpha: 1.0, dropout: 0.0, targets: vec![Linear::QProj, target], ..Lora::default() };
        let refused = Plan::new(&cell, &Cpu::new(1)).unwrap_err();
        assert_eq!(refused.key, "lora.targets");
        assert!(refused.reason.contains(target.name()) && refused.reason.contains("o_proj"), "{refused}");
    }
}

#[test]
fn stated_operations_of_every_form_are_the_ones_issued() {
    let (forms, policies) = (forms(), policies());
    let kinds = [(Precision::F32, 0), (Precision::mixed(DType::Bf16), 2)];
    const TEST: &str = "training::accounting::stated_operations_of_every_form_are_the_ones_issued";
    for [form, policy, kind] in tiers::combinations(TEST, [forms.len(), policies.len(), kinds.len()]) {
        let (precision, adapters) = kinds[kind];
        let mut cell = on(formed(small(), forms[form]), Strategy::Zero3, 2, 2);
        (cell.memory.checkpointing, cell.precision) = (policies[policy].clone(), precision);
        let targets = Linear::ALL.to_vec();
        cell.lora = Lora { rank: adapters, alpha: 4.0, dropout: 0.25, targets, ..Lora::default() };
        assert_stated(&cell, &format!("{} {:?}", forms[form].0, policies[policy]));
    }
}

/// The operations that layers and shards state are those a device is asked for, one for one and in order.
#[test]
fn stated_operations_are_the_ones_issued() {
    let stochastic = Precision { rounding: WeightRounding::Stochastic, ..Precision::all(DType::Bf16) };
    let f16 = Precision { scaling: Some(scaled(10)), ..Precision::mixed(DType::F16) };
    let kinds = [(Precision::F32, 0), (Precision::mixed(DType::Bf16), 2), (stochastic, 0), (f16, 0)];
    let meshes = [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::HsdpFullOptimizer, 4)];
    let policies = policies();
    const TEST: &str = "training::accounting::stated_operations_are_the_ones_issued";
    for [mesh, policy, kind] in tiers::combinations(TEST, [meshes.len(), policies.len(), kinds.len()]) {
        let ((strategy, ranks), (precision, adapters)) = (meshes[mesh], kinds[kind]);
        let mut cell = on(small(), strategy, ranks, 2.min(ranks));
        (cell.memory.checkpointing, cell.precision) = (policies[policy].clone(), precision);
        cell.train.accumulation = 2;
        let targets = Linear::ALL.to_vec();
        cell.lora = Lora { rank: adapters, alpha: 4.0, dropout: 0.25, targets, ..Lora::default() };
        assert_stated(&cell, &format!("{} {:?}", strategy.name(), policies[policy]));
    }
}

pub fn assert_stated(cell: &Cell, what: &str) {
    let ranks = cell.parallel.ranks;
    let recorders: Vec<_> = (0..ranks).map(|_| Arc::new(Recording::new(Cpu::new(1)))).collect();
    let kernels = recorders.iter().map(|r| r.clone() as Arc<dyn Kernels>).collect();
    let plan = plan(cell);
    with_ranks(cell, &plan, kernels, |rank| {
        recorders[rank.number()].clear();
        rank.step().map(|_| ())
    })
    .unwrap();
    for (number, recorder) in recorders.into_iter().enumerate() {
        let stated = plan.operations(cell, &Cpu::new(1), number);
        // What a token of documents counts depends on how many others have a loss, which a plan does not read.
        let plain = |op: Op| match op {
            Op::CrossEntropy(c) if matches!(cell.data, Data::Documents(_)) => {
                Op::CrossEntropy(CrossEntropy { scale: 0.0, ..c })
            }
            op => Recording::plain(op),
        };
        let stated: Vec<_> = stated.iter().map(|s| plain(s.op)).collect();
        let issued: Vec<_> = recorder.take().into_iter().map(plain).collect();
        let differs = stated.iter().zip(&issued).position(|(a, b)| a != b);
        if let Some(at) = differs {
            panic!("{what}: operation {at}: stated {:?}, issued {:?}", stated[at], issued[at]);
        }
        assert_eq!(stated.len(), issued.len(), "{what}");
    }
}

/// Published traffic per step, in parameters: ddp and zero1 2, zero2 A + 1, fsdp-grad-op 2A, zero3 3A less slot hits.
#[test]
fn payloads_follow_the_published_volumes() {
    for accumulation in [1, 4] {
        let payload_on = |strategy, ranks: usize, shard| -> (f64, f64) {
            let mut cell = on(small(), strategy, ranks, shard);
            (cell.train.accumulation, cell.parallel.prefetch) = (accumulation, 0);
            let plan = plan(&cell);
            let padded: usize = plan.layout.units.iter().map(|u| u.trainable().padded).sum();
            let sum = |outer: bool| -> f64 {
                let rows =
                    plan.stage_plan_of(0).estimate.traffic.iter().filter(|t| (t.axis == GroupName::Outer) == outer);
                let rows = rows.filter(|t| !(t.axis == GroupName::Data && shard > 1));
                let agree = 8.0 * ranks as f64 * (1.0 + plan.layout.units.len() as f64);
                let bytes: f64 = rows.map(|t| t.payload_bytes).sum();
                (bytes - if outer || shard > 1 { 0.0 } else { agree }) / (4.0 * padded as f64)
            };
            (sum(false), sum(true))
        };
        let payload = |strategy, shard| payload_on(strategy, 4, shard);
        let a = accumulation as f64;
        assert_eq!(payload(Strategy::Ddp, 1).0, 2.0);
        assert_eq!(payload(Strategy::Zero1, 1).0, 2.0);
        assert_eq!(payload(Strategy::Zero2, 1).0, a + 1.0);
        assert_eq!(payload(Strategy::FsdpGradOp, 1).0, 2.0 * a);
        let (zero3, fsdp) = (payload(Strategy::Zero3, 1).0, payload(Strategy::Fsdp, 1).0);
        assert!(zero3 <= 3.0 * a && zero3 > 2.0 * a && zero3 == fsdp, "{zero3}");
        let (inner, outer) = payload(Strategy::Hsdp, 2);
        assert!(inner == zero3 && outer == 2.0 / 2.0, "{inner} {outer}");
        let (inner, outer) = payload_on(Strategy::Hsdp, 8, 4);
        assert!(inner == payload_on(Strategy::Zero3, 8, 1).0 && outer == 2.0 / 4.0, "{inner} {outer}");
    }
}

#[test]
fn flash_attention_takes_memory_linear_in_the_sequence() {
    let peak = |seq: usize, kind| {
        let mut cell = small();
        (cell.train.seq_len, cell.train.micro_batch, cell.train.steps) = (seq, 1, 1);
        cell.model.max_position_embeddings = 4096;
        cell.memory.attention = kind;
        let plan = plan(&cell);
        let report = &measure(&cell, &plan)[0];
        report.memory().peak(Category::Activations) + report.memory().peak(Category::Workspace)
    };
    let ratio = |kind| peak(2048, kind) as f64 / peak(512, kind) as f64;
    let (flash, naive) = (ratio(AttentionKind::Flash), ratio(AttentionKind::Naive));
    assert!(flash <= 4.2, "4 times the sequence takes {flash:.2} times the memory");
    assert!(naive > 8.0, "naive attention takes {naive:.2} times: the test would not notice a quadratic tensor");
}

#[test]
fn a_capacity_exists_at_which_zero3_trains_and_ddp_does_not() {
    let cell = |strategy| on(small(), strategy, 4, 4);
    let need = |strategy| estimate(&cell(strategy)).memory().total_peak();
    assert!(need(Strategy::Zero3) < need(Strategy::Ddp));
    let capacity = need(Strategy::Zero3);
    let limited = |strategy, capacity| {
        let mut cell = cell(strategy);
        cell.memory.capacity = Some(capacity);
        try_run_steps(&cell)
    };
    limited(Strategy::Zero3, capacity).unwrap();
    for (strategy, capacity) in [(Strategy::Ddp, capacity), (Strategy::Zero3, capacity - 1)] {
        let failure = limited(strategy, capacity).unwrap_err();
        let zbench_engine::observe::outcome::Cause::OutOfMemory { error, .. } = failure.cause else {
            panic!("{}", failure.cause)
        };
        assert!(error.capacity == capacity && error.live <= capacity && error.live + error.requested > capacity);
    }
}

/// Bytes of model state per rank follow the ZeRO paper's formulas, to the padding.
#[test]
fn model_states_follow_the_published_table() {
    let mixed = Precision::mixed(DType::Bf16);
    for precision in [Precision { gradients: DType::Bf16, ..mixed }, mixed] {
        for ranks in [1usize, 2, 4, 8] {
            for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
                let mut cell = on(small(), strategy, ranks, ranks);
                cell.precision = precision;
                let plan = plan(&cell);
                let psi: usize = plan.layout.units.iter().map(|u| u.trainable().padded).sum();
                let unpadded = plan.stage_plan_of(0).estimate.parameters as usize;
                assert!(psi - unpadded < plan.layout.units.len() * ranks * 32, "padding is bounded");
                let split = |on: bool| if on { ranks } else { 1 };
                let parameters = 2 * psi / split(strategy == Strategy::Zero3);
                let gradients =
                    precision.gradients.size() * psi / split(matches!(strategy, Strategy::Zero2 | Strategy::Zero3));
                let optimizer = 12 * psi / split(strategy != Strategy::Ddp);
                let reports = measure(&cell, &plan);
                let measured = reports[0].memory();
                assert_eq!(measured.peak(Category::Parameters), parameters as u64);
                assert_eq!(measured.peak(Category::Gradients), gradients as u64);
                assert_eq!(measured.peak(Category::Optimizer), optimizer as u64);
            }
        }
    }
}

fn try_run_steps(cell: &Cell) -> Result<(), zbench_engine::observe::outcome::Failure> {
    let mut free = cell.clone();
    free.memory.capacity = None;
    let plan = plan(&free);
    with_ranks(cell, &plan, cpus(cell), |rank| (0..2).try_for_each(|_| rank.step().map(|_| ()))).map(|_| ())
}

/// GFLOP per token of Llama-3-8B by Megatron-LM's (`num_floating_point_operations`) and PaLM's (appendix B) convention, and of
/// its frozen base with adapters (4 P_mat and attention; ours adds the adapters' own products, here of rank 1 on one layer
/// kind: below 0.1 %).
#[test]
fn flops_are_the_published_ones_for_llama_3_8b() {
    let preset: zbench_engine::formats::hf::PartialModel =
        toml::from_str(zbench_engine::formats::hf::preset("llama3-8b").unwrap()).unwrap();
    let giga = |seq: usize, adapters: usize, checkpointing: Checkpointing| {
        let mut cell = synthetic();
        cell.model = preset.clone().resolve("llama3-8b").unwrap();
        cell.model.max_position_embeddings = 32768;
        (cell.train.seq_len, cell.train.micro_batch) = (seq, 1);
        cell.memory.checkpointing = checkpointing;
        cell.lora = Lora { rank: adapters, alpha: 1.0, dropout: 0.0, targets: vec![Linear::KProj], ..Lora::default() };
        let flops = estimate(&cell).flops;
        [flops.model, flops.palm, flops.hardware].map(|f| f / flops.tokens as f64 / 1e9)
    };
    for (seq, megatron, palm) in [(2048, 46.64, 51.40), (8192, 51.47, 61.07), (32768, 70.80, 99.72)] {
        let [model, ours, hardware] = giga(seq, 0, Checkpointing::None);
        assert!((model - megatron).abs() < 0.005, "{seq}: {model} for {megatron}");
        assert!((ours - palm).abs() < 0.005, "{seq}: {ours} for {palm}");
        // Without checkpointing only flash attention's backward computes something again: a quarter of its scores' products.
        assert!(hardware > model && hardware < 1.1 * model, "{seq}: {hardware}");
        let [same, _, full] = giga(seq, 0, Checkpointing::Full);
        assert!(same == model && full > 1.2 * model && full < 4.0 / 3.0 * hardware, "{seq}: {full}");
    }
    let [lora, ..] = giga(2048, 1, Checkpointing::None);
    assert!(lora > 31.63 && lora < 31.63 * 1.001, "{lora}");
}

#[test]
fn plans_hold_for_adapters_of_every_kind() {
    let all: Vec<Adapters> = adapters().into_iter().chain([dora()]).collect();
    let meshes = [(Strategy::Ddp, 1), (Strategy::Zero2, 2), (Strategy::Zero3, 2), (Strategy::HsdpFullOptimizer, 1)];
    let policies = policies();
    const TEST: &str = "training::accounting::plans_hold_for_adapters_of_every_kind";
    for [at, mesh, policy] in tiers::combinations(TEST, [all.len(), meshes.len(), policies.len()]) {
        let ((what, adapt), (strategy, shard)) = (all[at], meshes[mesh]);
        let mut cell = on(small(), strategy, 2, shard);
        adapt(&mut cell);
        let precision = if policy % 2 == 0 { Precision::F32 } else { Precision::mixed(DType::Bf16) };
        (cell.train.accumulation, cell.precision) = (2, precision);
        cell.memory.checkpointing = policies[policy].clone();
        let what = format!("{what}: {} {:?}", strategy.name(), policies[policy]);
        assert_as_planned(&cell, &what);
        assert_stated(&cell, &what);
    }
}

/// What adapters train and what they cost, by hand. Hidden size 24, MLP 40, 3 query heads and 1 key head of 8, three blocks,
/// batches of 26 tokens.
#[test]
fn adapters_cost_what_they_say() {
    let estimate = |adapt: fn(&mut Cell)| {
        let mut cell = small();
        adapt(&mut cell);
        estimate(&cell)
    };
    let executed = |estimate: &zbench_engine::observe::outcome::Estimate, term: &str| {
        estimate.flops.ledger.iter().find(|(name, _)| name == term).map_or(0.0, |(_, flops)| *flops)
    };
    // One A for queries, keys and values together, and B's rows for each.
    let fused = estimate(|cell| {
        cell.model.family = "falcon".into();
        let targets = vec![Linear::QProj, Linear::KProj, Linear::VProj];
        cell.lora = Lora { rank: 2, alpha: 1.0, targets, ..Lora::default() };
    });
    let (a, b) = (2 * 24, 2 * (24 + 8 + 8));
    assert_eq!(fused.trainable_parameters, 3 * (a + b));
    let tokens = 26.0;
    let product = 2.0 * tokens * 3.0 * (a + b) as f64;
    assert_eq!(executed(&fused, "forward adapters"), product);
    assert_eq!(executed(&fused, "backward adapters"), 2.0 * product);
    assert_eq!(executed(&fused, "recompute adapters (hardware only)"), 2.0 * tokens * 3.0 * a as f64);
    // Factors multiply element by element: no matrix product of theirs, and none for frozen weights.
    let ia3 = estimate(|cell| {
        let targets = vec![Linear::KProj, Linear::VProj, Linear::DownProj];
        cell.lora = Lora { method: Method::Ia3, targets, feedforward: vec![Linear::DownProj], ..Lora::default() };
    });
    assert_eq!(ia3.trainable_parameters, 3 * (8 + 8 + 40));
    assert_eq!(executed(&ia3, "forward adapters") + executed(&ia3, "backward adapters"), 0.0);
    let k_proj = 2.0 * tokens * 3.0 * (8 * 24) as f64;
    for term in ["forward k_proj", "backward k_proj", "recompute k_proj (hardware only)"] {
        assert_eq!(executed(&ia3, term), k_proj, "{term}");
    }
    let down = 2.0 * tokens * 3.0 * (24 * 40) as f64;
    assert_eq!([executed(&ia3, "forward down_proj"), executed(&ia3, "backward down_proj")], [down; 2]);
    assert_eq!(executed(&ia3, "recompute down_proj (hardware only)"), 0.0);
}
