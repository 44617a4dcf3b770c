use super::*;
use crate::framework::framework;
use crate::job::{
    Attention, Batch, Degrees, Experts, Kind, Loss, Number, Offload, Order, Peft, Place, Placement, Precision,
    Recompute, Shape, Sharding, Targets,
};
use crate::layout::Layout;
use crate::profile;

fn job() -> Job {
    Job {
        model: Shape {
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: 32,
            head_dim: 128,
            ffn: 16384,
            vocab: 51200,
            tied: true,
            positions: 2048,
            norm_bias: true,
            causal: true,
            ..Shape::default()
        },
        batch: Batch { seq: 2048, micro: 4, accumulation: 8 },
        degrees: Degrees { data: 8, ..Degrees::default() },
        sharding: Sharding::whole(),
        precision: Precision::MIXED16,
        recompute: Recompute::None,
        attention: Attention::Flash(2),
        offload: Offload::default(),
        peft: Peft::None,
        loss: Loss::Logits,
        framework: framework("megatron-core").unwrap(),
        overlap: Default::default(),
        split: Vec::new(),
    }
}

fn a100() -> Machine {
    profile::machine("a100-80gb").expect("a100")
}

fn near(a: f64, b: f64, share: f64) {
    assert!((a / b - 1.0).abs() <= share, "{a} is not within {share} of {b}");
}

/// Every axis at once, every policy, every place: the spans add up to the step and nothing is negative.
#[test]
fn spans_add_up_to_the_step() {
    let mut jobs = vec![job()];
    for stack in ["megatron-lm", "deepspeed", "fsdp1", "fsdp2-compiled", "torch", "zbench"] {
        for stage in 0..=3 {
            let mut one = Job { framework: framework(stack).unwrap(), sharding: Sharding::zero(stage, 8), ..job() };
            one.recompute = Recompute::Full { every: 1, partitioned: false };
            one.offload.optimizer = if stage == 2 { Place::Host } else { Place::Device };
            jobs.push(one);
        }
    }
    let mut one = job();
    one.degrees = Degrees { data: 2, tensor: 4, sequence: true, pipeline: 4, chunks: 2, context: 2, ..one.degrees };
    jobs.push(one);
    for job in jobs {
        let time = time(&job, &a100());
        let sum: f64 = time.spans.iter().map(|span| span.seconds).sum();
        near(sum, time.step, 1e-12);
        assert!(time.spans.iter().all(|span| span.seconds > 0.0 && span.seconds.is_finite()));
        assert!(time.hardware_flops >= time.model_flops);
        let devices = 64.min(time_world(&job)) as f64;
        assert!(time.model_flops / time.step / devices < 312e12);
    }
}

/// zbench's collectives are waited for where they start; Megatron-Core's run beside compute where there is enough of it.
#[test]
fn what_does_not_overlap_is_exposed_whole() {
    let of = |stack| {
        let job = Job { framework: framework(stack).unwrap(), sharding: Sharding::zero(3, 8), ..job() };
        time(&job, &a100()).span(SpanKind::Exposed(Axis::Data))
    };
    // Two gathers in each of eight micro-batches; 7/8 of the half-precision weights cross the link of each GPU at 300 GB/s.
    let parameters = 12.0 * 32.0 * 4096.0 * 4096.0 + 51200.0 * 4096.0;
    let least = 8.0 * 2.0 * 2.0 * parameters * 7.0 / 8.0 / 300e9;
    assert!(of("zbench") > least, "{} of at least {least}", of("zbench"));
    assert!(of("megatron-core") < 0.5 * of("zbench"));
}

fn time_world(job: &Job) -> usize {
    let d = job.degrees;
    d.data * d.tensor * d.pipeline * d.context
}

#[test]
fn model_flops_are_six_per_parameter_and_half_of_attentions_square() {
    let job = job();
    let tokens = 8.0 * 4.0 * 8.0 * 2048.0;
    let matrices = 12.0 * 32.0 * 4096.0 * 4096.0 + 51200.0 * 4096.0;
    let attention = 6.0 * 32.0 * 4096.0 * 2048.0;
    near(time(&job, &a100()).model_flops, tokens * (6.0 * matrices + attention), 1e-9);
    let full = Job { recompute: Recompute::Full { every: 1, partitioned: false }, ..job };
    let again = tokens * (2.0 * 12.0 * 32.0 * 4096.0 * 4096.0 + attention / 3.0);
    let time = time(&full, &a100());
    near(time.hardware_flops - time.model_flops, again, 1e-9);
}

/// Elements per parameter and rank: 2 with whole weights, 3 where they are split (Rajbhandari et al. 2020, ZeRO, section 7).
#[test]
fn traffic_is_that_of_the_books() {
    let parameters = job().model.parameters() as f64;
    let sent = |stage: u8| {
        let mut job = Job { sharding: Sharding::zero(stage, 8), framework: framework("fsdp1").unwrap(), ..job() };
        job.batch.accumulation = 1;
        time(&job, &a100()).traffic.iter().map(|row| row.wire).sum::<f64>() / (parameters * 2.0 * 7.0 / 8.0)
    };
    near(sent(0), 2.0, 0.01);
    near(sent(1), 2.0, 0.01);
    near(sent(2), 2.0, 0.01);
    near(sent(3), 3.0, 0.01);
}

/// hpZ gathers for backward within the group of the second copy; HSDP sums up among replicas what was scattered within a group.
#[test]
fn groups_of_the_data_axis_have_their_own_traffic() {
    let rows = |change: &dyn Fn(&mut Sharding)| {
        let mut job = Job { sharding: Sharding::zero(3, 8), ..job() };
        job.batch.accumulation = 1;
        change(&mut job.sharding);
        let bytes = job.model.parameters() as f64 * 2.0;
        let of = |kind: Collective, traffic: &[Traffic]| {
            traffic.iter().filter(|row| row.kind == kind).map(|row| row.wire / bytes).sum::<f64>()
        };
        let traffic = time(&job, &a100()).traffic;
        [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce].map(|kind| of(kind, &traffic))
    };
    let close = |have: [f64; 3], want: [f64; 3]| {
        have.iter().zip(want).for_each(|(have, want)| near(have + 1.0, want + 1.0, 0.01))
    };
    close(rows(&|_| {}), [2.0 * 7.0 / 8.0, 7.0 / 8.0, 0.0]);
    close(rows(&|sharding| sharding.parked = 2), [7.0 / 8.0 + 1.0 / 2.0, 7.0 / 8.0, 0.0]);
    let hybrid = rows(&|sharding| {
        (sharding.parameters, sharding.gradients, sharding.optimizer) = (4, 4, 4);
    });
    close(hybrid, [2.0 * 3.0 / 4.0, 3.0 / 4.0, 2.0 / 2.0 / 4.0]);
    // Of four micro-batches FSDP sums each up, the engine and MiCS all of them at once.
    for (stack, times) in [("fsdp2", 4.0), ("zbench", 1.0), ("deepspeed", 1.0)] {
        let mut job = Job { sharding: Sharding::zero(3, 4), framework: framework(stack).unwrap(), ..job() };
        job.batch.accumulation = 4;
        let rows = time(&job, &a100()).traffic;
        let sent = |kind: Collective| rows.iter().filter(|row| row.kind == kind).map(|row| row.wire).sum::<f64>();
        near(
            sent(Collective::AllReduce) / sent(Collective::ReduceScatter),
            times / 4.0 * (1.0 / 4.0) / (3.0 / 4.0),
            0.01,
        );
    }
}

#[test]
fn a_pipelines_bubble_is_p_less_one_over_m_and_chunks_divide_it() {
    let mut job = job();
    job.model.vocab = 0;
    job.degrees = Degrees { data: 1, pipeline: 8, ..job.degrees };
    job.batch = Batch { seq: 2048, micro: 1, accumulation: 16 };
    let bubble = |chunks: usize| {
        let mut job = job.clone();
        job.degrees.chunks = chunks;
        let time = time(&job, &a100());
        let ideal = time.span(SpanKind::Forward) + time.span(SpanKind::Backward);
        time.span(SpanKind::Bubble) / ideal
    };
    near(bubble(1), 7.0 / 16.0, 0.02);
    near(bubble(2), 7.0 / 32.0, 0.02);
    near(bubble(4), 7.0 / 64.0, 0.02);
}

#[test]
fn a_stated_cut_costs_what_its_stages_do() {
    let of = |schedule, split: &[usize]| {
        let mut job = job();
        job.model.vocab = 0;
        job.degrees = Degrees { data: 2, pipeline: 4, schedule, ..job.degrees };
        job.split = split.to_vec();
        time(&job, &a100())
    };
    for schedule in [Order::OneFOneB, Order::ZeroBubble] {
        let even = of(schedule, &[]);
        let stated = of(schedule, &[0, 8, 16, 24]);
        near(stated.step, even.step, 1e-9);
        near(stated.model_flops, even.model_flops, 1e-9);
        near(of(schedule, &[0, 6, 20, 26]).model_flops, even.model_flops, 1e-9);
    }
    // Eight micro-batches through the longest stage, and one through the others: 8 x 14 + 18 blocks in place of 8 x 8 + 24.
    let computes = |split: &[usize]| {
        let time = of(Order::OneFOneB, split);
        time.span(SpanKind::Forward) + time.span(SpanKind::Backward) + time.span(SpanKind::Bubble)
    };
    near(computes(&[0, 6, 20, 26]) / computes(&[]), 130.0 / 88.0, 0.02);
    // What the gradients of weights fill was a bubble before; all else is as it was.
    let [plain, split] = [Order::OneFOneB, Order::ZeroBubble].map(|schedule| of(schedule, &[]));
    near(split.span(SpanKind::Backward), plain.span(SpanKind::Backward), 1e-9);
    let ratio = split.span(SpanKind::Bubble) / plain.span(SpanKind::Bubble);
    assert!(ratio > 0.3 && ratio < 0.6, "{ratio}");
}

#[test]
fn accumulation_repeats_the_micro_batch() {
    let of = |accumulation| {
        let mut job = job();
        job.degrees.data = 1;
        job.batch.accumulation = accumulation;
        time(&job, &a100())
    };
    near(of(16).span(SpanKind::Forward), 4.0 * of(4).span(SpanKind::Forward), 1e-9);
    near(of(16).span(SpanKind::Optimizer), of(4).span(SpanKind::Optimizer), 1e-9);
}

#[test]
fn what_ought_to_be_slower_is() {
    let base = time(&job(), &a100()).step;
    let naive = Job { attention: Attention::Naive, ..job() };
    assert!(time(&naive, &a100()).step > base);
    let again = Job { recompute: Recompute::Full { every: 1, partitioned: false }, ..job() };
    near(time(&again, &a100()).step / base, 4.0 / 3.0, 0.06);
    let mut single = Job { precision: Precision::F32, ..job() };
    single.precision.products = Number::F32;
    assert!(time(&single, &a100()).step > 4.0 * base);
    let mut slow = a100();
    slow.intra.bandwidth /= 50.0;
    let sharded = Job { sharding: Sharding::zero(3, 8), framework: framework("fsdp2").unwrap(), ..job() };
    assert!(time(&sharded, &slow).step > 1.5 * time(&sharded, &a100()).step);
    let mut host = Job { sharding: Sharding::zero(2, 8), ..job() };
    host.offload.optimizer = Place::Host;
    assert!(time(&host, &a100()).span(SpanKind::Offload) > 0.0);
}

#[test]
fn adapters_spare_the_gradients_of_weights() {
    let lora = Peft::Adapters { trainable: 0, rank: 8, base: Number::Bf16, weight_bytes: 2.0, targets: Targets::ALL };
    let full = time(&job(), &a100());
    let adapted = time(&Job { peft: lora, ..job() }, &a100());
    let ratio = adapted.model_flops / full.model_flops;
    assert!((0.66..0.70).contains(&ratio), "{ratio}");
    assert!(adapted.step < 0.8 * full.step);
}

#[test]
fn adapters_cost_by_their_targets_and_a_narrow_base_by_its_matrices() {
    let step = |base, rank, targets| {
        let peft = Peft::Adapters { trainable: 0, rank, base, weight_bytes: 2.0, targets };
        time(&Job { peft, ..job() }, &a100()).step
    };
    let usual = Targets { query: true, value: true, ..Targets::default() };
    let (few, all) = (step(Number::Bf16, 8, usual), step(Number::Bf16, 8, Targets::ALL));
    assert!(few < all && step(Number::Bf16, 0, usual) < few, "{few} {all}");
    // Every frozen matrix comes back from NF4, whether it has an adapter or not.
    let (narrow_few, narrow_all) = (step(Number::Nf4, 8, usual) - few, step(Number::Nf4, 8, Targets::ALL) - all);
    assert!(narrow_few > 0.0 && (narrow_few / narrow_all - 1.0).abs() < 1e-9, "{narrow_few} {narrow_all}");
    // All of a rank's experts come back, where the software quantises them.
    let experts = |quantised: bool, base| {
        let mut sparse = job();
        sparse.model.experts = Some(Experts { count: 8, top: 2, ffn: sparse.model.ffn, ..Experts::default() });
        sparse.framework = framework(if quantised { "fsdp2" } else { "zbench" }).unwrap();
        sparse.peft = Peft::Adapters { trainable: 0, rank: 8, base, weight_bytes: 2.0, targets: usual };
        time(&sparse, &a100()).step
    };
    let dense = |software, base| {
        let peft = Peft::Adapters { trainable: 0, rank: 8, base, weight_bytes: 2.0, targets: usual };
        time(&Job { peft, framework: framework(software).unwrap(), ..job() }, &a100()).step
    };
    let of_dense = |software| dense(software, Number::Nf4) - dense(software, Number::Bf16);
    let of_experts = |quantised| experts(quantised, Number::Nf4) - experts(quantised, Number::Bf16);
    assert!(of_experts(true) > 5.0 * of_dense("fsdp2"), "{} {}", of_experts(true), of_dense("fsdp2"));
    assert!(of_experts(false) < of_dense("zbench"), "{} {}", of_experts(false), of_dense("zbench"));
}

/// The price of a step is a formula of the degrees: if it walked over the ranks, this would not end.
#[test]
fn a_trillion_replicas_are_priced_at_once() {
    let mut large = job();
    large.model.layers = 128;
    large.degrees = Degrees { data: 1 << 40, tensor: 8, sequence: true, pipeline: 16, chunks: 4, ..large.degrees };
    large.batch = Batch { seq: 8192, micro: 1, accumulation: 2048 };
    let step = time(&large, &a100()).step;
    assert!(step.is_finite() && step > 0.0, "{step}");
}

/// Nothing that a file can say makes the estimator panic or name no number.
#[test]
fn odd_jobs_are_priced() {
    let mut count = job();
    count.model.kind = Kind::Count { largest_layer: 1 };
    count.model.stated_parameters = 7_000_000_000;
    let mut empty = job();
    empty.model.layers = 0;
    empty.model.vocab = 0;
    empty.degrees.data = 0;
    empty.batch = Batch { seq: 1, micro: 1, accumulation: 0 };
    let mut stages = job();
    stages.degrees = Degrees { pipeline: 64, expert: 512, tensor: 3, expert_tensor: 0, ..stages.degrees };
    for job in [count, empty, stages] {
        let time = time(&job, &a100());
        assert!(time.step.is_finite() && time.step > 0.0);
        assert!(time.tokens_per_second_per_device.is_finite());
    }
}

mod queue {
    use super::super::queue::{Unit, run};

    fn unit(compute: f64, gather: f64, reduce: f64) -> Unit {
        Unit {
            count: 10,
            forward: compute,
            backward: 2.0 * compute,
            gather_forward: gather,
            gather_backward: gather,
            reduce,
        }
    }

    #[test]
    fn what_hides_is_hidden_but_for_the_first_gather_and_the_last_reduction() {
        let waited = run(&[unit(1.0, 0.5, 0.5)], 1);
        // The first gather of forward; that of backward waits for forward's end; the last reduction.
        assert!((waited.exposed - 1.5).abs() < 1e-9, "{waited:?}");
        assert!((waited.exposed + waited.hidden - 15.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_longer_than_compute_sets_the_pace() {
        let waited = run(&[unit(1.0, 4.0, 4.0)], 1);
        // All of the wire but what compute covers.
        assert!(waited.exposed > 120.0 - 30.0 - 1e-9 && waited.exposed < 120.0, "{waited:?}");
    }

    #[test]
    fn nothing_to_send_is_nothing_to_wait_for() {
        assert_eq!(run(&[unit(1.0, 0.0, 0.0)], 1), super::super::queue::Waited::default());
    }
}

/// Ranks that are numbered one by one, and those of each group that a node of eight holds at most.
#[test]
fn groups_of_both_placements_are_those_of_numbered_ranks() {
    let machine = Machine { node_devices: 8, ..a100() };
    let mut one = job();
    for placement in [Placement::DataInside, Placement::PipelineInside] {
        for [tensor, context, pipeline, data] in [
            [2, 1, 4, 4],
            [2, 2, 2, 8],
            [1, 1, 8, 4],
            [4, 2, 4, 2],
            [1, 4, 2, 2],
            [2, 4, 1, 4],
            [8, 1, 2, 4],
            [1, 2, 16, 2],
        ] {
            one.degrees = Degrees { data, tensor, pipeline, context, placement, ..one.degrees };
            one.sharding = Sharding::zero(3, data * context);
            let layout = Layout::of(&one, &machine);
            // Coordinates of a rank: tensor, context, data, stage.
            let place = |rank: usize| {
                let (t, rest) = (rank % tensor, rank / tensor);
                let (c, rest) = (rest % context, rest / context);
                let (d, s) = match placement {
                    Placement::DataInside => (rest % data, rest / data),
                    Placement::PipelineInside => (rest / pipeline, rest % pipeline),
                };
                [t, c, d, s]
            };
            let all: Vec<[usize; 4]> = (0..tensor * context * data * pipeline).map(place).collect();
            // Of the first node, those that differ from its first rank along these axes alone.
            let of = |axes: [bool; 4]| {
                let same = |place: &&[usize; 4]| (0..4).all(|axis| axes[axis] || place[axis] == all[0][axis]);
                all.iter().take(8).filter(same).count()
            };
            let name = format!("{placement:?} of {tensor} x {context} x {pipeline} x {data}");
            assert_eq!(layout.tensor.per_node, of([true, false, false, false]), "tensor of {name}");
            assert_eq!(layout.context.per_node, of([false, true, false, false]), "context of {name}");
            assert_eq!(layout.data.per_node, of([false, true, true, false]), "data of {name}");
            assert_eq!(layout.shard, layout.data, "shard of {name}");
            if pipeline > 1 {
                // From any stage to the next.
                let stage_after = |place: &[usize; 4]| [place[0], place[1], place[2], place[3] + 1];
                let node = |place: &[usize; 4]| all.iter().position(|other| other == place).map(|rank| rank / 8);
                let next =
                    all.iter().all(|place| node(&stage_after(place)).is_none_or(|after| Some(after) == node(place)));
                assert_eq!(layout.neighbours.per_node, if next { 2 } else { 1 }, "stages of {name}");
            }
        }
    }
}

/// Stages inside a node send over its links, and gradients over the network.
#[test]
fn a_placement_decides_which_axis_crosses_the_network() {
    let mut one = job();
    one.degrees = Degrees { data: 8, tensor: 2, sequence: true, pipeline: 4, ..one.degrees };
    one.sharding = Sharding::zero(1, 8);
    let apart = time(&one, &a100());
    one.degrees.placement = Placement::PipelineInside;
    let near = time(&one, &a100());
    let [pipeline, data] = [Axis::Pipeline, Axis::Data].map(SpanKind::Exposed);
    assert!(near.span(pipeline) < apart.span(pipeline), "{} {}", near.span(pipeline), apart.span(pipeline));
    assert!(near.span(data) > apart.span(data), "{} {}", near.span(data), apart.span(data));
    assert_eq!(near.traffic, apart.traffic, "the same bytes travel");
}

/// Where gradients are whole, eight ranks each move all of them and not an eighth, over the host's link.
#[test]
fn whole_gradients_move_to_the_host_whole() {
    let machine = a100();
    let offload = |stage| {
        let mut one = Job { sharding: Sharding::zero(stage, 8), ..job() };
        one.offload.optimizer = Place::Host;
        let spans = time(&one, &machine).spans;
        spans.iter().filter(|span| span.kind == SpanKind::Offload).map(|span| span.seconds).sum::<f64>()
    };
    let model = job().model.parameters() as f64;
    let more = 7.0 / 8.0 * model * job().precision.gradients / (machine.host.bandwidth * machine.host.reached);
    near(offload(1) - offload(2), more, 0.01);
}

/// A ring that is not balanced waits for its last rank, which has (2c - 1)/c of the mean work.
#[test]
fn the_last_rank_of_an_unbalanced_ring_has_all_keys() {
    let machine = profile::machine("h100-sxm").expect("h100");
    let forward = |balanced: bool, context: usize| {
        let mut framework = (*framework("fsdp2").unwrap()).clone();
        framework.drive.balanced_ring = balanced;
        let mut one = Job { framework: framework.into(), ..job() };
        (one.degrees.data, one.degrees.context, one.batch.seq) = (1, context, 262_144);
        let spans = time(&one, &machine).spans;
        spans.iter().filter(|span| span.kind == SpanKind::Forward).map(|span| span.seconds).sum::<f64>()
    };
    assert_eq!(forward(true, 1), forward(false, 1));
    // At such lengths attention is nearly all.
    for context in [2, 4, 8] {
        let c = context as f64;
        near(forward(false, context) / forward(true, context), (2.0 * c - 1.0) / c, 0.1);
    }
}
