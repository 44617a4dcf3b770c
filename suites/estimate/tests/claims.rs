//! The arithmetic of docs/claims.md: what well-known documents say, and what their own figures come to. Configurations
//! that price the same runs are in configs/claims.

use zbench_estimate::deepspeed::{self, Formula, Line, Offloaded};
use zbench_estimate::job::{Kind, Number, Shape};
use zbench_estimate::profile;
use zbench_estimate::rules::flops::{self, Sizes};
use zbench_estimate::rules::{Check, state, traffic, utilisation};

const GIB: f64 = (1u64 << 30) as f64;

/// A plain decoder; the tests change what is not so.
fn decoder(layers: usize, hidden: usize, heads: usize, kv_heads: usize, ffn: usize, vocab: usize) -> Shape {
    Shape {
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn,
        vocab,
        gated: true,
        causal: true,
        ..Shape::default()
    }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

fn bf16_peak(machine: &str) -> f64 {
    profile::machine(machine).unwrap().device.compute[&Number::Bf16].peak
}

#[test]
fn the_zero_papers_table_is_right() {
    for (stage, gigabytes) in [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)] {
        assert_eq!(rounded(state::zero(stage, 7.5e9, 64.0).sum() / 1e9, 1), gigabytes);
    }
    // Gradients in f32, as most programs keep them now.
    for (stage, gigabytes) in [(0, 135.0), (1, 46.4), (2, 16.9), (3, 2.1)] {
        let check = Check::new("", "", "", "bytes");
        let sum = state::state(check, 7.5e9, state::Bytes::EIGHTEEN, state::Over::zero(stage, 64.0)).sum();
        assert_eq!(rounded(sum / 1e9, 1), gigabytes);
    }
    // In GiB, which people read the table as, they are 111.8 to 1.7.
    assert_eq!(rounded(state::zero(0, 7.5e9, 64.0).sum() / GIB, 1), 111.8);
    assert_eq!(rounded(state::zero(3, 7.5e9, 64.0).sum() / GIB, 2), 1.75);
}

/// T5-3B as its configuration has it.
fn t5_3b() -> f64 {
    let shape = Shape {
        kind: Kind::EncoderDecoder { decoder_layers: 24, decoder_seq: 512 },
        head_dim: 128,
        gated: false,
        tied: true,
        ..decoder(24, 1024, 32, 32, 16384, 32128)
    };
    shape.parameters() as f64
}

#[test]
fn the_t5_3b_tables_mix_two_formulas() {
    let p = t5_3b();
    assert_eq!(p, 2_851_598_336.0);
    let largest_layer = 32128.0 * 1024.0;
    let line = |lines: &[Line], offloaded, zero_init| {
        let line = lines.iter().find(|line| line.offloaded == offloaded && line.zero_init == zero_init).unwrap();
        (rounded(line.gpu_gib, 2), rounded(line.host_gib, 2))
    };
    // ZeRO-2 without offload: documented, and what the code has given since.
    let zero2 =
        |formula, parameters| line(&deepspeed::zero2(parameters, 8.0, 1.0, formula), Offloaded::Nothing, None).0;
    assert_eq!((zero2(Formula::Documented, p), zero2(Formula::Current, p)), (15.93, 11.29));
    // The page that prints 11.28 has 2,851e6.
    assert_eq!(zero2(Formula::Current, 2851e6), 11.28);
    // The paper's formula for the same, which keeps gradients in 16 bits.
    assert_eq!(rounded(state::zero(2, p, 8.0).sum() / GIB, 2), 9.96);
    // ZeRO-3: device and host memory, the printed figures.
    let zero3 = deepspeed::zero3(p, largest_layer, 8.0, 1.0);
    assert_eq!(line(&zero3, Offloaded::ParametersAndOptimizer, Some(false)), (0.12, 127.48));
    assert_eq!(line(&zero3, Offloaded::Optimizer, Some(true)), (0.79, 63.74));
    // What is called GB there is GiB: in GB the 127.48 would be 136.88.
    assert_eq!(rounded(1.5 * p * 32.0 / 1e9, 2), 136.88);
}

#[test]
fn falcon_40bs_720_gb_are_18_bytes() {
    assert_eq!(state::eighteen(40e9).sum(), 720e9);
    assert_eq!(state::sixteen(40e9).sum(), 640e9);
    let falcon =
        Shape { gated: false, bias: false, tied: true, norm_bias: true, ..decoder(60, 8192, 128, 8, 4 * 8192, 65024) };
    let parameters = falcon.parameters() as f64;
    assert_eq!(rounded(parameters / 1e9, 1), 41.3);
    assert_eq!(rounded(state::sixteen(parameters).sum() / 1e9, 0), 661.0);
    assert_eq!(rounded(state::eighteen(parameters).sum() / 1e9, 0), 743.0);
    // Its weights in bf16: 80 GB of a round 40e9, which are the 74 GiB that another page calls GB.
    assert_eq!((2.0 * 40e9 / 1e9, (2.0 * 40e9 / GIB).floor()), (80.0, 74.0));
}

#[test]
fn the_llama_2_70b_post_divides_by_one_device() {
    let peak = bf16_peak("a100-80gb");
    assert_eq!(peak, 312e12);
    let tokens = 500.0 * 16.0 * 2048.0;
    let seconds = 48_600.0;
    assert_eq!((tokens, seconds / 500.0), (16.384e6, 97.2));
    let percent = |flops: f64, ranks: f64| 100.0 * utilisation(flops, tokens / seconds, ranks, peak).sum();
    let six_n = |parameters: f64| flops::six_n(parameters).sum();
    // 6.88e18, where the text has 6.89e17.
    assert_eq!(rounded(six_n(70e9) * tokens / 1e18, 2), 6.88);
    // The work of 16 devices, rounded to 1.42e14, by the peak of one is the post's figure; by 16 it is the honest share.
    assert_eq!(rounded(six_n(70e9) * tokens / seconds / 1e14, 2), 1.42);
    assert_eq!(rounded(100.0 * 1.42e14 / peak, 2), 45.51);
    assert_eq!(rounded(percent(six_n(70e9), 16.0), 2), 2.84);
    let llama = decoder(80, 8192, 64, 8, 28672, 32000);
    let parameters = llama.parameters() as f64;
    assert_eq!(parameters, 68_976_648_192.0);
    assert_eq!(rounded(percent(six_n(parameters), 16.0), 2), 2.79);
    // With the recomputed forward, and by what zbench reports (attention counted, embedding not).
    assert_eq!(rounded(percent(flops::eight_n(70e9).sum(), 16.0), 1), 3.8);
    let sizes = Sizes::of(&llama, 2048);
    assert_eq!(rounded(percent(flops::megatron(&sizes, 128.0).sum(), 16.0), 2), 2.84);
    // 21 tokens a second and device.
    assert_eq!(rounded(tokens / seconds / 16.0, 0), 21.0);
}

fn llama3_405b() -> Shape {
    decoder(126, 16384, 128, 8, 53248, 128256)
}

#[test]
fn llama_3s_utilisations_are_the_rates_over_989() {
    let peak = bf16_peak("h100-sxm");
    let percent = |tflops: f64| rounded(100.0 * tflops * 1e12 / peak, 1);
    // Printed: 43, 41, 38. The second is 40.4 of 989.4, and 41 of nothing that is printed there.
    assert_eq!([430.0, 400.0, 380.0].map(percent), [43.5, 40.4, 38.4]);
    // Ranks and tokens of the three rows agree.
    for (ranks, context, data, seq, batch) in
        [(8192, 1, 64, 8192, 32), (16384, 1, 128, 8192, 16), (16384, 16, 8, 131_072, 16)]
    {
        assert_eq!(8 * context * 16 * data, ranks);
        assert_eq!(data * seq * batch, 16_777_216);
    }
    let model = llama3_405b();
    let parameters = model.parameters() as f64;
    assert_eq!(rounded(parameters / 1e9, 1), 405.9);
    // The whole training: 3.8e25 in 30.84e6 GPU hours is 35 %, restarts and all.
    let compute = flops::six_n(405e9).sum() * 15.6e12;
    assert_eq!(rounded(compute / 1e25, 1), 3.8);
    let average = compute / (30.84e6 * 3600.0);
    assert_eq!((rounded(average / 1e12, 0), rounded(100.0 * average / peak, 1)), (341.0, 34.5));
    // At 131,072 tokens the convention is worth more than any optimisation: 380 TFLOP/s of which count?
    let long = Sizes::of(&model, 131_072);
    let tokens_per_s = |check: &Check| 380e12 / check.sum();
    let (half, whole) = (flops::megatron(&long, 1024.0), flops::palm(&long));
    assert_eq!(rounded(whole.sum() / half.sum(), 2), 1.4);
    assert!(tokens_per_s(&half) > 93.0 && tokens_per_s(&half) < 94.0, "{half}");
    assert!(tokens_per_s(&whole) > 66.0 && tokens_per_s(&whole) < 67.5, "{whole}");
}

#[test]
fn narayanans_zero_3_waits_and_not_for_bytes_alone() {
    let gpt = Shape {
        gated: false,
        bias: true,
        tied: true,
        positions: 2048,
        norm_bias: true,
        ..decoder(96, 12288, 96, 96, 4 * 12288, 51200)
    };
    let parameters = gpt.parameters() as f64;
    assert_eq!(rounded(parameters / 1e9, 1), 174.6);
    let per_token = flops::narayanan(&Sizes::of(&gpt, 2048)).sum();
    // The paper's own form of the formula, for a batch.
    let (l, h, s, v) = (96.0, 12288.0, 2048.0, 51200.0);
    let of_paper = 96.0 * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    assert!((per_token / of_paper - 1.0).abs() < 1e-12);
    let step = |tflops: f64, ranks: f64| per_token * 1536.0 * s / (ranks * tflops * 1e12);
    let zero3 = [step(144.0, 384.0), step(88.0, 768.0), step(44.0, 1536.0)];
    assert_eq!(zero3.map(|seconds| rounded(seconds, 1)), [81.6, 66.7, 66.7]);
    // Twice the ranks, the same step: the time is not compute, of which each rank has half.
    assert!((zero3[1] / zero3[2] - 1.0).abs() < 1e-9);
    // The same sequences in tensor and pipeline parallelism go on shrinking.
    let others = [step(153.0, 384.0), step(149.0, 768.0), step(141.0, 1536.0)];
    assert_eq!(others.map(|seconds| rounded(seconds, 1)), [76.8, 39.4, 20.8]);
    // 300e9 tokens at the step's speed: 74 days, as the paper has it.
    assert_eq!(rounded(300e9 / (1536.0 * s) * zero3[2] / 86400.0, 0), 74.0);
    // Bytes: what has to enter a node, at the rating of its eight cards of 200 Gb/s.
    let machine = profile::machine("dgx-a100").unwrap();
    let rating = machine.inter.bandwidth * machine.node_devices as f64 * 8.0;
    assert!((rating - 1.6e12).abs() < 1.0);
    let least = traffic::zero3_wire_time(parameters, 192.0, rating).sum();
    assert_eq!(rounded(least, 1), 5.2);
    // So the run drew 8 % of its network.
    assert_eq!(rounded(100.0 * least / zero3[2], 0), 8.0);
}

#[test]
fn forty_eight_m_over_n_is_right_for_two_nodes_alone() {
    let gigabytes = |nodes: f64| traffic::zero3_per_node(40e9, nodes).sum() / 8e9;
    let said = |nodes: f64| 48.0 * 40e9 / nodes / 8e9;
    assert_eq!((gigabytes(2.0), said(2.0)), (120.0, 120.0));
    assert_eq!((gigabytes(16.0), said(16.0)), (225.0, 15.0));
}
