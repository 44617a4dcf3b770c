//! What holds of every job, whatever its numbers: more bandwidth is never slower, more ranks with the same work each are
//! never faster, making things again is never faster, and no span is negative or no number. Over random jobs on every
//! machine; a job that breaks a rule is printed whole.

use zbench_estimate::framework;
use zbench_estimate::job::{
    Attention, Batch, Degrees, Experts, Job, Kind, Loss, Number, Offload, Order, Peft, Place, Placement, Precision,
    Recompute, Shape, Sharding, Targets,
};
use zbench_estimate::machine::Machine;
use zbench_estimate::profile;
use zbench_estimate::time::{Time, time};
use zbench_estimate::topology::{Pods, Routing, Topology};

const JOBS: usize = 4000;

/// Rounding alone.
const EXACT: f64 = 1.0 + 1e-9;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[(self.next() % list.len() as u64) as usize].clone()
    }

    fn yes(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }
}

fn shape(dice: &mut Dice) -> Shape {
    let (hidden, heads) =
        dice.of(&[(768, 12), (1024, 16), (1600, 25), (2048, 32), (4096, 32), (4544, 71), (8192, 64), (12288, 96)]);
    let gated = dice.yes();
    let ffn = if gated { (8 * hidden / 3) / 64 * 64 } else { 4 * hidden };
    let experts = (dice.next().is_multiple_of(4)).then(|| Experts {
        count: dice.of(&[8, 16, 64, 128, 256]),
        top: dice.of(&[1, 2, 8]),
        ffn: dice.of(&[ffn, ffn / 4]),
        shared_ffn: dice.of(&[0, ffn / 4]),
        dense_layers: dice.of(&[0, 1]),
        imbalance: dice.of(&[1.0, 1.3]),
    });
    let twice = dice.next().is_multiple_of(8);
    let layers = dice.of(&[1, 2, 12, 24, 32, 61, 80, 96]);
    let kind = if twice { Kind::EncoderDecoder { decoder_layers: layers, decoder_seq: 256 } } else { Kind::Decoder };
    Shape {
        kind,
        layers,
        hidden,
        heads,
        kv_heads: if dice.yes() { heads } else { dice.of(&[1, 8, heads]).min(heads) },
        head_dim: hidden / heads,
        ffn,
        vocab: dice.of(&[32000, 50257, 128256, 250880]),
        gated,
        bias: !gated,
        tied: dice.yes(),
        positions: if gated { 0 } else { 2048 },
        norm_bias: !gated,
        causal: !twice,
        window: dice.of(&[0, 0, 0, 1024]),
        dropout: dice.of(&[false, false, true]),
        experts,
        latent: None,
        ahead: 0,
        stated_parameters: 0,
    }
}

fn job(dice: &mut Dice) -> Job {
    let mut degrees = Degrees {
        data: dice.of(&[1, 2, 3, 8, 16, 64, 512]),
        tensor: dice.of(&[1, 1, 2, 4, 8, 16]),
        sequence: dice.yes(),
        pipeline: dice.of(&[1, 1, 2, 4, 8, 13]),
        chunks: dice.of(&[1, 2, 4]),
        schedule: dice.of(&[Order::OneFOneB, Order::GPipe]),
        context: dice.of(&[1, 1, 1, 2, 8]),
        expert: dice.of(&[1, 1, 2, 8]),
        expert_tensor: dice.of(&[1, 2]),
        placement: Placement::DataInside,
    };
    // Without a throw of its own, so that all other jobs stay those of before.
    if degrees.tensor == 2 {
        degrees.placement = Placement::PipelineInside;
    }
    let ranks = degrees.data * degrees.context;
    let sharding = match dice.next() % 6 {
        0 => Sharding::whole(),
        1 => Sharding { reshard_after_forward: false, ..Sharding::zero(3, ranks) },
        2 => Sharding { parked: 8.min(ranks), gather_bytes: 1.0, reduce_bytes: 0.5, ..Sharding::zero(3, ranks) },
        stage => Sharding::zero((stage - 2) as u8, ranks),
    };
    let attention = dice.of(&[Attention::Naive, Attention::Flash(1), Attention::Flash(2), Attention::Flash(3)]);
    let name = dice.of(&framework::names().collect::<Vec<_>>());
    let framework = framework::framework(name).expect(name);
    let place = |dice: &mut Dice| dice.of(&[Place::Device, Place::Device, Place::Device, Place::Host]);
    let mut model = shape(dice);
    // A stage has a block at least.
    model.layers = model.layers.max(degrees.pipeline);
    Job {
        model,
        batch: Batch {
            seq: dice.of(&[128, 512, 1000, 2048, 8192, 65536]),
            micro: dice.of(&[1, 2, 4, 16]),
            accumulation: dice.of(&[1, 2, 8, 64]),
        },
        degrees,
        sharding,
        precision: dice.of(&[Precision::MIXED16, Precision::MIXED18, Precision::F32]),
        recompute: dice.of(&[
            Recompute::None,
            Recompute::None,
            Recompute::Full { every: 1, partitioned: false },
            Recompute::Core,
            Recompute::PerOp,
            Recompute::SomeBlocks { of: 2 },
        ]),
        attention,
        offload: Offload { optimizer: place(dice), parameters: place(dice), activations: place(dice) },
        peft: if dice.next().is_multiple_of(8) {
            Peft::Adapters {
                trainable: 0,
                rank: 16,
                base: dice.of(&[Number::Bf16, Number::Nf4]),
                weight_bytes: 2.0,
                targets: Targets::ALL,
            }
        } else {
            Peft::None
        },
        loss: dice.of(&[Loss::Logits, Loss::Fused, Loss::Chunked(1024)]),
        framework,
        overlap: Default::default(),
        split: Vec::new(),
    }
}

fn machines() -> Vec<Machine> {
    profile::names().map(|name| profile::machine(name).expect(name)).collect()
}

/// Random jobs, each on a random machine.
fn each(seed: u64, mut check: impl FnMut(&Job, &Machine, &mut Dice)) {
    let (mut dice, machines) = (Dice(seed), machines());
    for _ in 0..JOBS {
        let machine = dice.of(&machines);
        let job = job(&mut dice);
        check(&job, &machine, &mut dice);
    }
}

fn sound(time: &Time, job: &Job, machine: &Machine) {
    let context = || format!("{time:?} of {job:?} on {}", machine.name);
    assert!(time.step.is_finite() && time.step > 0.0, "{}", context());
    assert!(time.tokens_per_second_per_device.is_finite() && time.tokens_per_second_per_device > 0.0, "{}", context());
    assert!(time.spans.iter().all(|span| span.seconds.is_finite() && span.seconds >= 0.0), "{}", context());
    let sum: f64 = time.spans.iter().map(|span| span.seconds).sum();
    assert!((sum / time.step - 1.0).abs() < 1e-9, "{}", context());
    assert!(time.traffic.iter().all(|t| t.wire.is_finite() && t.wire >= 0.0 && t.payload > 0.0), "{}", context());
    assert!(time.model_flops > 0.0 && time.hardware_flops >= time.model_flops, "{}", context());
}

#[test]
fn no_job_has_no_time() {
    each(1, |job, machine, _| sound(&time(job, machine), job, machine));
}

#[test]
fn odd_degrees_have_a_time() {
    // Zeros and numbers that fit nothing: what a file may say is refused elsewhere, but nothing here may panic.
    each(2, |job, machine, dice| {
        let mut job = job.clone();
        let odd = |dice: &mut Dice| dice.of(&[0, 1, 7, 4096, 65_537]);
        let d = &mut job.degrees;
        for slot in [&mut d.data, &mut d.tensor, &mut d.pipeline, &mut d.chunks, &mut d.context, &mut d.expert] {
            *slot = odd(dice);
        }
        d.expert_tensor = odd(dice);
        sound(&time(&job, machine), &job, machine);
    });
}

#[test]
fn more_bandwidth_and_less_latency_are_never_slower() {
    each(3, |job, machine, dice| {
        let before = time(job, machine);
        let mut better = machine.clone();
        let what = dice.next() % 7;
        match what {
            0 => better.device.bandwidth *= 1.5,
            1 => better.intra.bandwidth *= 1.5,
            2 => better.inter.bandwidth *= 1.5,
            3 => better.host.bandwidth *= 1.5,
            4 => better.host_bandwidth *= 1.5,
            5 => {
                (better.intra.latency, better.inter.latency) =
                    (0.5 * machine.intra.latency, 0.5 * machine.inter.latency)
            }
            _ => better.device.compute.values_mut().for_each(|rate| rate.reached = (rate.reached * 1.1).min(1.0)),
        }
        let after = time(job, &better);
        assert!(
            after.step <= before.step * EXACT,
            "{what}: {} to {} of {job:?} on {}",
            before.step,
            after.step,
            machine.name
        );
    });
}

#[test]
fn more_oversubscription_and_more_collisions_are_never_faster() {
    each(9, |job, machine, dice| {
        let nodes = dice.of(&[1, 2, 16, 384]);
        let rails = dice.yes();
        let hash = |paths, flows| Routing::Hash { paths, flows };
        let step = |oversubscription: f64, routing: Routing| {
            let topology = Topology::Pods(Pods { nodes, rails, oversubscription, routing });
            time(job, &Machine { topology, ..machine.clone() }).step
        };
        let flat = time(job, &Machine { topology: Topology::default(), ..machine.clone() }).step;
        let free = step(1.0, Routing::Share(1.0));
        assert_eq!(free.to_bits(), flat.to_bits(), "{job:?} on {}", machine.name);
        let mut last = free;
        for (ratio, routing) in [
            (2.0, Routing::Share(1.0)),
            (7.0, Routing::Share(1.0)),
            (7.0, Routing::Share(0.5)),
            (20.0, Routing::Share(0.5)),
        ] {
            let more = step(ratio, routing);
            assert!(more >= last / EXACT, "{ratio} {routing:?}: {last} to {more} of {job:?} on {}", machine.name);
            last = more;
        }
        let hashed = step(2.0, hash(16, 4));
        assert!(hashed >= step(2.0, Routing::Share(1.0)) / EXACT && hashed <= step(2.0, hash(16, 1)) * EXACT);
    });
}

#[test]
fn more_ranks_with_the_same_work_are_never_faster() {
    each(4, |job, machine, _| {
        let mut more = job.clone();
        more.degrees.data *= 2;
        // What is split further is not the same work, and more experts' ranks hold fewer of them. Eight and more: fewer of
        // a node have fewer links of a mesh, and no sums in the switch.
        if job.sharding != Sharding::whole() || job.model.experts.is_some() || job.degrees.data < 8 {
            return;
        }
        // On a torus more ranks may close a ring, which has twice the links of a line.
        if matches!(machine.topology, Topology::Torus(_)) {
            return;
        }
        let (before, after) = (time(job, machine), time(&more, machine));
        let (a, b) = (before.tokens_per_second_per_device, after.tokens_per_second_per_device);
        assert!(b <= a * EXACT, "{a} to {b}: {job:?} on {}", machine.name);
    });
}

#[test]
fn larger_micro_batches_are_not_slower() {
    // Per token, at the same accumulation. Tiles and waves may cost a few per cent.
    each(5, |job, machine, _| {
        let mut more = job.clone();
        more.batch.micro *= 2;
        let (before, after) = (time(job, machine), time(&more, machine));
        let (a, b) = (before.tokens_per_second_per_device, after.tokens_per_second_per_device);
        assert!(b >= a * 0.95, "{a} to {b}: {job:?} on {}", machine.name);
    });
}

#[test]
fn making_things_again_is_never_faster() {
    each(6, |job, machine, _| {
        let of = |recompute: &Recompute| {
            let job = Job { recompute: recompute.clone(), ..job.clone() };
            time(&job, machine).step
        };
        // Activations that wait on the host are fewer where they are made again.
        if job.offload.activations != Place::Device {
            return;
        }
        let none = of(&Recompute::None);
        let full = of(&Recompute::Full { every: 1, partitioned: false });
        for some in [Recompute::Core, Recompute::PerOp, Recompute::SomeBlocks { of: 2 }] {
            let some_time = of(&some);
            assert!(
                none <= some_time * EXACT && some_time <= full * EXACT,
                "{none} {some:?} {some_time} {full}: {job:?} on {}",
                machine.name
            );
        }
    });
}

#[test]
fn eight_bits_are_not_slower_for_large_products() {
    each(7, |job, machine, _| {
        let large = job.model.hidden >= 4096 && job.model.experts.is_none() && job.model.kind == Kind::Decoder;
        if !machine.device.compute.contains_key(&Number::Fp8) || !large {
            return;
        }
        let mut job = job.clone();
        (job.batch.seq, job.batch.micro) = (4096, 2);
        (job.degrees.tensor, job.degrees.context) = (1, 1);
        job.precision = Precision::MIXED18;
        let half = time(&job, machine).step;
        job.precision.products = Number::Fp8;
        let eight = time(&job, machine).step;
        assert!(eight <= half * EXACT, "{half} to {eight}: {job:?} on {}", machine.name);
    });
}

#[test]
fn longer_sequences_and_more_work_take_longer() {
    each(8, |job, machine, dice| {
        let mut more = job.clone();
        let what = dice.next() % 4;
        match what {
            0 => more.batch.seq *= 2,
            1 => more.batch.accumulation *= 2,
            2 => more.model.layers *= 2,
            _ => more.model.vocab *= 2,
        }
        let (before, after) = (time(job, machine).step, time(&more, machine).step);
        assert!(after >= before / EXACT, "{what}: {before} to {after}: {job:?} on {}", machine.name);
    });
}
