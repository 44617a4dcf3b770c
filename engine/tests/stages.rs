//! Plans on paper drawn at random: pipelines, tensor parallelism and both.

use crate::training::accounting::small;
use crate::training::support::*;
use zbench_engine::action::Action;
use zbench_engine::config::*;
use zbench_engine::plan::{Plan, PlanError, StagePlan};
use zbench_kernels::{Cpu, DType};
use zbench_test_tiers as tiers;

/// Numbers below a bound, drawn from a seed.
fn draws(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    }
}

pub fn drawn(seed: u64, evaluates: bool) -> Cell {
    let mut below = draws(seed);
    let mut base = small();
    let tensor = 1 + below(2);
    let pipeline = if tensor == 2 { 1 + below(5) } else { 2 + below(5) };
    let model = &mut base.model;
    (model.num_attention_heads, model.num_key_value_heads, model.hidden_size) = (4, 2, 32);
    model.num_hidden_layers = pipeline + below(40);
    let layers = model.num_hidden_layers;
    match below(6) {
        0 if tensor == 1 => {
            let mut all = expert_cells(base);
            base = all.swap_remove(below(all.len())).1;
            let is_mixtral = base.model.family == "mixtral";
            let experts = base.model.experts.as_mut().unwrap();
            if !is_mixtral {
                experts.decoder_sparse_step = 1 + below(7);
                experts.mlp_only_layers = (0..below(4)).map(|_| below(layers)).collect();
                experts.mlp_only_layers.sort_unstable();
                experts.mlp_only_layers.dedup();
            }
        }
        1 => {
            (base.model.sliding_window, base.model.max_window_layers) = (Some(4), below(layers + 1));
            base.memory.attention = AttentionKind::Naive;
        }
        2 => {
            let all = forms();
            base = formed(base, all[below(all.len())]);
        }
        3 if tensor == 1 => {
            let mut all: Vec<_> = adapters().into_iter().chain([dora()]).collect();
            all.swap_remove(below(all.len())).1(&mut base);
        }
        _ => {}
    }
    let strategy = Strategy::ALL[below(Strategy::ALL.len())];
    let data = [1, 2, 4][below(3)];
    let shard = if strategy.is_hybrid() { 1 + below(data).min(1) } else { 1 };
    let mut cell = on(base, strategy, data * tensor * pipeline, shard);
    let pipeline_schedule = [PipelineSchedule::OneFOneB, PipelineSchedule::GPipe][below(2)];
    cell.parallel.degrees = Degrees { tensor, pipeline, pipeline_schedule, ..Degrees::default() };
    cell.parallel.prefetch = below(5);
    cell.train.accumulation = 1 + below(12);
    cell.memory.checkpointing = match below(6) {
        0 => Checkpointing::None,
        1 => Checkpointing::Full,
        2 => Checkpointing::Selective,
        3 => Checkpointing::Sqrt,
        4 => Checkpointing::Every(1 + below(6)),
        _ => Checkpointing::Keep(vec![SavedTensor::Attention, SavedTensor::MlpNorm]),
    };
    if below(2) == 0 {
        cell.precision = Precision::mixed(DType::Bf16);
    }
    if below(3) == 0 {
        cell.precision.compute = DType::Bf16;
    }
    if below(2) == 0 && evaluates {
        let evaluation = Some(Evaluation { every: 1, batches: 1 + below(6), share: 0.1 });
        cell.watch = Some(Watch { evaluation, ..Watch::default() });
    }
    cell.memory.prepack = below(4) == 0;
    cell.model.tie_word_embeddings = below(3) == 0;
    cell
}

pub fn described(seed: u64, cell: &Cell) -> String {
    let Degrees { tensor, pipeline, pipeline_schedule, .. } = cell.parallel.degrees;
    format!(
        "seed {seed}: {} of {} blocks, {:?}, tp {tensor}, pp {pipeline} {pipeline_schedule:?}, {} micro-batches, prefetch {}, {} ranks",
        cell.parallel.strategy.name(),
        cell.model.num_hidden_layers,
        cell.memory.checkpointing,
        cell.train.accumulation,
        cell.parallel.prefetch,
        cell.parallel.ranks
    )
}

fn counted_as_performed(seeds: std::ops::Range<u64>, evaluates: bool) {
    let kernels = Cpu::new(1);
    let (mut planned, mut wrong, count) = (0, Vec::new(), seeds.end);
    for seed in seeds {
        let cell = drawn(seed, evaluates);
        let what = described(seed, &cell);
        let plan = match Plan::unrunnable(&cell, &kernels) {
            Err(error)
                if error.key == "memory.prepack" || error.key == "lora.targets" || error.key == "lora.feedforward" =>
            {
                continue;
            }
            Err(error) => {
                wrong.push(format!("{what}: {error}"));
                continue;
            }
            Ok(plan) => plan,
        };
        planned += 1;
        let of_stage = cell.parallel.ranks / plan.stage_plans.len();
        for stage in 0..plan.stage_plans.len() {
            let rank = stage * of_stage;
            let whole = plan.estimate_block_by_block(&cell, &kernels, rank);
            let short = &plan.stage_plan_of(rank).estimate;
            if *short != whole {
                wrong.push(format!("{what}: stage {stage}"));
            }
            // What a stage takes is that of its largest rank.
            let last = plan.estimate_block_by_block(&cell, &kernels, rank + of_stage - 1);
            if last.memory().total_peak() > whole.memory().total_peak() {
                wrong.push(format!("{what}: stage {stage}: another rank takes more"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {planned}:\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
    assert!(planned > count / 3, "only {planned} of {count}");
}

#[test]
fn whatever_the_stages_blocks_that_are_counted_are_performed() {
    let test = "stages::whatever_the_stages_blocks_that_are_counted_are_performed";
    counted_as_performed(0..tiers::cases(test, [24, 120, 300]).into(), false);
}

#[test]
fn evaluations_of_stages_are_planned() {
    counted_as_performed(0..tiers::cases("stages::evaluations_of_stages_are_planned", [24, 80, 160]).into(), true);
}

/// What a stage says to its neighbours: (to or from which stage, whether it sends, the micro-batch, whether a gradient).
fn messages(stage_plan: &StagePlan, stage: usize) -> Vec<(usize, bool, usize, bool)> {
    let message = |action: &Action| match *action {
        Action::Send { micro, gradient, .. } => {
            Some((if gradient { stage - 1 } else { stage + 1 }, true, micro, gradient))
        }
        Action::Receive { micro, gradient, .. } => {
            Some((if gradient { stage + 1 } else { stage - 1 }, false, micro, gradient))
        }
        _ => None,
    };
    stage_plan.actions.iter().filter_map(message).collect()
}

/// Every message that is sent is what the neighbour receives next from there.
#[test]
fn neighbours_send_and_receive_the_same_in_one_order() {
    for seed in 0..tiers::cases("stages::neighbours_send_and_receive", [60, 200, 200]).into() {
        let cell = drawn(seed, false);
        let Ok(plan) = Plan::unrunnable(&cell, &Cpu::new(1)) else { continue };
        for stage in 1..plan.stage_plans.len() {
            let (left, right) =
                (messages(&plan.stage_plans[stage - 1], stage - 1), messages(&plan.stage_plans[stage], stage));
            for gradient in [false, true] {
                let of = |list: &[(usize, bool, usize, bool)], other: usize| {
                    let found = list.iter().filter(|(to, _, _, kind)| *to == other && *kind == gradient);
                    found.map(|(_, sends, micro, _)| (*sends, *micro)).collect::<Vec<_>>()
                };
                let (ours, theirs) = (of(&left, stage), of(&right, stage - 1));
                assert_eq!(ours.len(), cell.train.accumulation, "{}", described(seed, &cell));
                for ((sends, micro), (other, same)) in ours.into_iter().zip(theirs) {
                    assert!(sends != other && micro == same, "{}", described(seed, &cell));
                }
            }
        }
    }
}

fn pipeline(schedule: PipelineSchedule, stages: usize, micros: usize) -> Result<Plan, PlanError> {
    let mut cell = small();
    cell.model.num_hidden_layers = stages;
    cell.train.accumulation = micros;
    cell = on(cell, Strategy::Ddp, stages, 1);
    cell.parallel.degrees = Degrees { pipeline: stages, pipeline_schedule: schedule, ..Degrees::default() };
    Plan::unrunnable(&cell, &Cpu::new(1))
}

/// Neighbours send to each other at once, which is why sends are started.
#[test]
fn the_messages_of_every_schedule_meet() {
    for schedule in [PipelineSchedule::GPipe, PipelineSchedule::OneFOneB] {
        for (stages, micros) in [(2, 1), (2, 2), (2, 4), (4, 8), (4, 2), (8, 5), (3, 32)] {
            let plan = pipeline(schedule, stages, micros);
            assert!(plan.is_ok(), "{schedule:?}, {stages} stages, {micros} micro-batches: {:?}", plan.err());
        }
    }
}

#[test]
fn stages_that_would_wait_for_ever_are_refused_with_two_ranks_and_their_calls() {
    let is_receive = |action: &Action| matches!(action, Action::Receive { .. });
    let broken = |break_it: &dyn Fn(&mut Vec<StagePlan>)| {
        let mut plan = pipeline(PipelineSchedule::OneFOneB, 3, 4).unwrap();
        break_it(&mut plan.stage_plans);
        let error = plan.check_messages().unwrap_err();
        assert_eq!(error.key, "parallel.pipeline_schedule");
        error.reason
    };
    // A stage takes the second micro-batch before the first.
    let reason = broken(&|stage_plans| {
        let at: Vec<usize> =
            (0..stage_plans[1].actions.len()).filter(|at| is_receive(&stage_plans[1].actions[*at])).collect();
        stage_plans[1].actions.swap(at[0], at[1]);
    });
    assert!(
        reason.contains("rank 0 waits to send the values of micro-batch 1 to rank 1")
            && reason.contains("rank 1 waits to receive the values of micro-batch 1 from rank 0"),
        "{reason}"
    );
    // A stage ends too early: what is sent to it is never taken.
    let reason = broken(&|stage_plans| {
        let last = stage_plans[2].actions.iter().rposition(is_receive).unwrap();
        stage_plans[2].actions.remove(last);
    });
    assert!(
        reason.contains("rank 1 waits to send the values of micro-batch 3 to rank 2")
            && reason.contains("rank 2 has come to the end of its step"),
        "{reason}"
    );
    // A message to nobody.
    let reason = broken(&|stage_plans| {
        let send = *stage_plans[0].actions.iter().find(|action| matches!(action, Action::Send { .. })).unwrap();
        stage_plans[2].actions.push(send);
    });
    assert!(reason.contains("there is no such stage"), "{reason}");
}

#[test]
fn ends_that_would_wait_for_each_others_tied_gradients_for_ever_are_refused() {
    let broken = |break_it: &dyn Fn(&mut Vec<Action>)| {
        let mut cell = small();
        (cell.model.num_hidden_layers, cell.model.tie_word_embeddings, cell.train.accumulation) = (3, true, 4);
        let mut cell = on(cell, Strategy::Ddp, 3, 1);
        cell.parallel.degrees = Degrees { pipeline: 3, ..Degrees::default() };
        let mut plan = Plan::unrunnable(&cell, &Cpu::new(1)).unwrap();
        let has = |stage_plan: &StagePlan| stage_plan.actions.contains(&Action::ReduceTied { unit: 0 });
        assert_eq!(plan.stage_plans.iter().map(has).collect::<Vec<_>>(), [true, false, true]);
        break_it(&mut plan.stage_plans[2].actions);
        plan.check_messages().unwrap_err().reason
    };
    let exchange = |action: &Action| matches!(action, Action::ReduceTied { .. });
    let reason = broken(&|actions| actions.retain(|action| !exchange(action)));
    assert!(
        reason.contains("rank 0 waits to receive the gradients of tied embeddings from rank 2")
            && reason.contains("rank 2 has come to the end of its step"),
        "{reason}"
    );
    // Before its last gradients have gone back.
    let reason = broken(&|actions| {
        let at = actions.iter().position(exchange).unwrap();
        let exchange = actions.remove(at);
        let last = actions.iter().rposition(|action| matches!(action, Action::Send { .. })).unwrap();
        actions.insert(last, exchange);
    });
    assert!(
        reason.contains("rank 2 waits to receive the gradients of tied embeddings from rank 0")
            || reason.contains("rank 1 waits to receive the gradient of micro-batch 3 from rank 2"),
        "{reason}"
    );
}

/// Operations are those of the whole model, however it is cut.
#[test]
fn operations_of_all_stages_are_those_of_the_model() {
    let base = |ranks, degrees| {
        let mut cell = on(small(), Strategy::Ddp, ranks, 1);
        (cell.model.num_attention_heads, cell.model.num_key_value_heads, cell.model.num_hidden_layers) = (4, 2, 4);
        cell.parallel.degrees = degrees;
        Plan::unrunnable(&cell, &Cpu::new(1)).unwrap()
    };
    let whole = base(1, Degrees::default()).stage_plans[0].estimate.flops.clone();
    for degrees in [Degrees { pipeline: 2, ..Degrees::default() }, Degrees { pipeline: 4, ..Degrees::default() }] {
        let plan = base(degrees.pipeline, degrees);
        let all = |of: fn(&zbench_engine::observe::outcome::Flops) -> f64| {
            plan.stage_plans.iter().map(|stage_plan| of(&stage_plan.estimate.flops)).sum::<f64>()
        };
        assert!((all(|f| f.palm) / whole.palm - 1.0).abs() < 1e-12, "{degrees:?}: palm");
        assert!((all(|f| f.model) / whole.model - 1.0).abs() < 1e-12, "{degrees:?}: model");
    }
}

#[test]
fn options_that_a_plan_on_paper_does_not_know_are_refused() {
    type Change = fn(&mut Priced);
    let changes: [(&str, Change); 4] = [
        ("gather_wire", |priced| priced.gather_wire = Some(Wire::Int8)),
        ("reduce_wire", |priced| priced.reduce_wire = Some(Wire::Int4)),
        ("loss", |priced| priced.loss = PricedLoss::Logits),
        ("parked", |priced| priced.parked = 2),
    ];
    let mut silent = Vec::new();
    let plain = Plan::new(&on(small(), Strategy::Zero3, 4, 1), &Cpu::new(1)).unwrap();
    for (name, change) in changes {
        let mut cell = on(small(), Strategy::Zero3, 4, 1);
        let mut priced = Priced::default();
        change(&mut priced);
        cell.priced = Some(Box::new(priced));
        if let Ok(plan) = Plan::unrunnable(&cell, &Cpu::new(1)) {
            silent.push((name, plan.stage_plans[0].estimate == plain.stage_plans[0].estimate));
        }
    }
    assert!(silent.is_empty(), "planned, and (whether the same as without): {silent:?}");
}

pub fn encoder(blocks: [usize; 2], change: impl FnOnce(&mut Cell)) -> Cell {
    let mut cell = small();
    (cell.model.num_attention_heads, cell.model.num_key_value_heads, cell.model.num_hidden_layers) = (4, 2, blocks[0]);
    let model = Some(PricedModel::EncoderDecoder { num_decoder_layers: blocks[1], decoder_seq_len: 7, gated: true });
    cell.priced = Some(Box::new(Priced { model, ..Priced::default() }));
    change(&mut cell);
    cell
}

/// Drawn encoder-decoders are planned or refused, and their plans hold.
#[test]
fn encoders_of_any_kind_are_planned_or_refused() {
    let mut wrong = Vec::new();
    for seed in 0..tiers::cases("stages::encoders_of_any_kind", [80, 150, 300]).into() {
        let mut below = draws(seed);
        let strategy = Strategy::ALL[below(Strategy::ALL.len())];
        let mut cell = encoder([1 + below(6), 1 + below(6)], |_| ());
        if below(3) == 0 {
            let mut all: Vec<_> = adapters().into_iter().chain([dora()]).collect();
            all.swap_remove(below(all.len())).1(&mut cell);
        }
        let mut cell = on(cell, strategy, 4, if strategy.is_hybrid() { 2 } else { 1 });
        (cell.train.accumulation, cell.parallel.prefetch) = (1 + below(4), below(4));
        cell.model.tie_word_embeddings = below(2) == 0;
        cell.memory.checkpointing = match below(5) {
            0 => Checkpointing::None,
            1 => Checkpointing::Full,
            2 => Checkpointing::Selective,
            3 => Checkpointing::Sqrt,
            _ => Checkpointing::Every(1 + below(6)),
        };
        if below(2) == 0 {
            let evaluation = Some(Evaluation { every: 1, batches: 1 + below(4), share: 0.1 });
            cell.watch = Some(Watch { evaluation, ..Watch::default() });
        }
        let what = described(seed, &cell);
        match Plan::unrunnable(&cell, &Cpu::new(1)) {
            Err(error) if error.reason.contains("bug") => wrong.push(format!("{what}: {error}")),
            // It is refused with a reason.
            Err(_) => {}
            Ok(plan) => {
                let whole = plan.estimate_block_by_block(&cell, &Cpu::new(1), 3);
                if whole != plan.stage_plans[0].estimate {
                    wrong.push(format!("{what}: differs"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(8)].join("\n"));
}

/// Experts that ranks share.
fn shared_experts(expert: usize, ranks: usize, blocks: usize) -> Cell {
    let mut cell = on(small(), Strategy::Ddp, ranks, 1);
    cell.model.num_hidden_layers = blocks;
    cell.model.experts = Some(Experts {
        num_experts: 8,
        num_experts_per_tok: 2,
        moe_intermediate_size: 16,
        norm_topk_prob: true,
        decoder_sparse_step: 1,
        mlp_only_layers: Vec::new(),
    });
    cell.parallel.degrees = Degrees { expert, ..Degrees::default() };
    cell
}

#[test]
fn an_encoder_beside_model_parallelism_is_refused() {
    for degrees in [
        Degrees { expert: 2, ..Degrees::default() },
        Degrees { tensor: 2, ..Degrees::default() },
        Degrees { pipeline: 2, ..Degrees::default() },
    ] {
        let mut cell = shared_experts(degrees.expert, 2, 2);
        (cell.model.num_attention_heads, cell.model.num_key_value_heads) = (4, 2);
        cell.parallel.degrees = degrees;
        let model = Some(PricedModel::EncoderDecoder { num_decoder_layers: 2, decoder_seq_len: 7, gated: true });
        cell.priced = Some(Box::new(Priced { model, ..Priced::default() }));
        let error = Plan::unrunnable(&cell, &Cpu::new(1)).unwrap_err();
        assert_eq!(error.key, "model.family", "{error}");
    }
}

#[test]
fn shared_experts_are_planned_where_they_divide_the_rows() {
    for (expert, ranks) in [(2, 2), (4, 4), (8, 8), (2, 8), (4, 8), (8, 16), (4, 12)] {
        for (micro, seq, top) in [(2, 13, 2), (1, 1, 1), (1, 5, 3), (3, 7, 8)] {
            let mut cell = shared_experts(expert, ranks, 3);
            (cell.train.micro_batch, cell.train.seq_len) = (micro, seq);
            cell.model.experts.as_mut().unwrap().num_experts_per_tok = top;
            match Plan::unrunnable(&cell, &Cpu::new(1)) {
                Ok(_) => assert_eq!(micro * seq * top % expert, 0),
                Err(error) => {
                    assert_ne!(micro * seq * top % expert, 0, "{error}");
                    assert_eq!(error.key, "parallel.expert", "{error}");
                }
            }
        }
    }
}
