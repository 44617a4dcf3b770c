use super::activations::Layer;
use super::flops::Sizes;
use super::*;
use crate::framework::framework;
use crate::job::*;

/// Of a run on `data` ranks; the tests change what they are about.
pub(crate) fn job(model: Shape, data: usize) -> Job {
    Job {
        model,
        batch: Batch { seq: 2048, micro: 1, accumulation: 8 },
        degrees: Degrees { data, ..Degrees::default() },
        sharding: Sharding::zero(3, data),
        precision: Precision::MIXED16,
        recompute: Recompute::None,
        attention: Attention::Flash(2),
        offload: Offload::default(),
        peft: Peft::None,
        loss: Loss::Logits,
        framework: framework("fsdp2").unwrap(),
        overlap: Default::default(),
        split: Vec::new(),
    }
}

pub(crate) fn llama3_8b() -> Shape {
    Shape {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14336,
        vocab: 128256,
        gated: true,
        causal: true,
        ..Shape::default()
    }
}

/// In GFLOP, to the two digits of the published table.
fn giga(check: &Check) -> String {
    format!("{:.2}", check.sum() / 1e9)
}

#[test]
fn flops_of_llama_3_8b_are_those_of_the_table() {
    let model = llama3_8b();
    assert_eq!(model.parameters(), 8_030_261_248);
    for (seq, n6, megatron, llm_c, torchtitan, palm, lora) in [
        (2048, "48.18", "46.64", "49.79", "48.25", "51.40", "31.63"),
        (8192, "48.18", "51.47", "54.62", "57.91", "61.07", "36.46"),
        (32768, "48.18", "70.80", "73.95", "96.57", "99.72", "55.79"),
        (131072, "48.18", "148.11", "151.26", "251.19", "254.34", "133.10"),
    ] {
        let s = Sizes::of(&model, seq);
        assert_eq!(s.matrices, 7_504_658_432.0);
        assert_eq!(giga(&flops::six_n(s.parameters)), n6);
        assert_eq!(giga(&flops::megatron(&s, 128.0)), megatron);
        assert_eq!(giga(&flops::max_text(&s)), megatron);
        assert_eq!(giga(&flops::llm_c(&s)), llm_c);
        assert_eq!(giga(&flops::torchtitan(&s)), torchtitan);
        assert_eq!(giga(&flops::nanotron(&s)), torchtitan);
        assert_eq!(giga(&flops::nanochat(&s)), torchtitan);
        assert_eq!(giga(&flops::palm(&s)), palm);
        assert_eq!(giga(&flops::llm_foundry(&s)), palm);
        assert_eq!(giga(&flops::cookbook(&s, false)), palm);
        assert_eq!(giga(&flops::lora(&s, 0.0)), lora);
    }
}

#[test]
fn conventions_differ_where_they_should() {
    let s = Sizes::of(&llama3_8b(), 8192);
    // A window halves nothing but what nanochat counts.
    let windowed = Sizes::of(&Shape { window: 4096, ..llama3_8b() }, 8192);
    let attention = |check: Check| check.terms[1].value;
    assert_eq!(attention(flops::nanochat(&windowed)) * 2.0, attention(flops::nanochat(&s)));
    assert_eq!(flops::palm(&windowed), flops::palm(&s));
    // Learned positions are no work for PaLM; a tied table is for torchtitan.
    let gpt2 = Shape {
        layers: 12,
        hidden: 768,
        heads: 12,
        kv_heads: 12,
        head_dim: 64,
        ffn: 3072,
        vocab: 50257,
        gated: false,
        bias: true,
        tied: true,
        positions: 1024,
        norm_bias: true,
        ..llama3_8b()
    };
    let s = Sizes::of(&gpt2, 1024);
    assert_eq!(s.parameters, 124_439_808.0);
    assert_eq!(flops::palm(&s).terms[0].value, 6.0 * (124_439_808.0 - 786_432.0));
    assert_eq!(flops::torchtitan(&s).terms[0].value, 6.0 * 124_439_808.0);
    // 50,257 rows are padded to 50,304, and with eight ranks to 51,200.
    assert_eq!(flops::megatron(&s, 128.0).terms[1].value, 6.0 * 50304.0 * 768.0);
    assert_eq!(flops::megatron(&s, 1024.0).terms[1].value, 6.0 * 51200.0 * 768.0);
    // Recomputation: four forwards instead of three, 8 instead of 6.
    let ratio = flops::cookbook(&s, true).sum() / flops::cookbook(&s, false).sum();
    assert!((ratio - 4.0 / 3.0).abs() < 1e-12);
    assert_eq!(flops::eight_n(3.0).sum() / flops::six_n(3.0).sum(), 8.0 / 6.0);
    // Adapters train at 6, frozen weights at 4.
    assert_eq!(flops::lora(&s, 1e6).sum() - flops::lora(&s, 0.0).sum(), 6e6);
}

#[test]
fn state_is_what_the_papers_say() {
    assert_eq!(state::sixteen(40e9).sum(), 640e9);
    assert_eq!(state::eighteen(40e9).sum(), 720e9);
    for (stage, whole, split) in [(0, 16.0, 0.0), (1, 4.0, 12.0), (2, 2.0, 14.0), (3, 0.0, 16.0)] {
        for ranks in [1.0, 4.0, 64.0, 1024.0] {
            let check = state::zero(stage, 7.5e9, ranks);
            let wanted = 7.5e9 * (whole + split / ranks);
            assert!((check.sum() - wanted).abs() < 1.0, "{check}");
            assert_eq!(check.terms.len(), 3);
        }
    }
    assert_eq!(state::distributed_optimizer(1e9, 8.0).sum(), 6e9 + 1.5e9);
    // Table 2: 32 GB, 64 ranks.
    for (stage, billions) in [(0, 2.0), (1, 7.6), (2, 14.4), (3, 128.0)] {
        let largest = 32.0 / state::zero(stage, 1.0, 64.0).sum();
        assert!((largest - billions).abs() < 0.06, "{stage}: {largest}");
    }
}

#[test]
fn activations_of_a_layer_in_every_variant() {
    // GPT-3 175B: s 2048, b 1, h 12288, a 96, 5as/h = 80.
    let plain =
        Layer { seq: 2048.0, micro: 1.0, hidden: 12288.0, heads: 96.0, tensor: 1.0, sequence: false, scores: true };
    let sbh = 2048.0 * 12288.0;
    let of = |l: Layer| activations::layer(&l).sum() / sbh;
    let tensor = Layer { tensor: 8.0, ..plain };
    let both = Layer { sequence: true, ..tensor };
    let without = |l: Layer| Layer { scores: false, ..l };
    for (l, wanted) in [
        (plain, 34.0 + 80.0),
        (without(plain), 34.0),
        (tensor, 10.0 + 24.0 / 8.0 + 80.0 / 8.0),
        (without(tensor), 10.0 + 24.0 / 8.0),
        (both, (34.0 + 80.0) / 8.0),
        (without(both), 34.0 / 8.0),
    ] {
        assert!((of(l) - wanted).abs() < 1e-9, "{}", activations::layer(&l));
    }
    let mut names: Vec<&str> = [plain, without(plain), tensor, without(tensor), both, without(both)]
        .iter()
        .map(|l| activations::layer(l).name)
        .collect();
    names.dedup();
    assert_eq!(names.len(), 6);
    assert_eq!(activations::full(&tensor, 1.0).sum(), 2.0 * sbh);
    assert_eq!(activations::full(&tensor, 8.0).sum(), 2.0 * sbh / 8.0);
    // 4 ffn = 16 h: Megatron's estimate is the 34 of the paper.
    assert_eq!(activations::megatron(&both, 4.0 * 12288.0).sum(), 34.0 * sbh / 8.0);
}

#[test]
fn bubbles_and_what_is_in_flight() {
    assert_eq!(pipeline::bubble(4.0, 1.0, 8.0).sum(), 3.0 / 8.0);
    assert_eq!(pipeline::bubble(4.0, 2.0, 8.0).sum(), 3.0 / 16.0);
    assert_eq!(pipeline::bubble(1.0, 1.0, 8.0).sum(), 0.0);
    let flight = |order, stage| pipeline::in_flight(order, 4.0, 8.0, stage).sum();
    assert_eq!((flight(Order::GPipe, 0.0), flight(Order::OneFOneB, 0.0)), (8.0, 4.0));
    assert_eq!((flight(Order::OneFOneB, 3.0), pipeline::in_flight(Order::OneFOneB, 4.0, 2.0, 0.0).sum()), (1.0, 2.0));
    assert_eq!(pipeline::layers_kept(96.0, 8.0, 1.0).sum(), 96.0);
    assert_eq!(pipeline::layers_kept(96.0, 8.0, 3.0).sum(), 96.0 * (1.0 + 7.0 / 24.0));
}

#[test]
fn traffic_is_two_two_two_three() {
    for (stage, times) in [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)] {
        let many = traffic::zero(stage, 1e9, 1e6).sum() / 1e9;
        assert!((many - times).abs() < 1e-5, "{many}");
        assert_eq!(traffic::zero(stage, 1e9, 2.0).sum(), times * 0.5e9);
        assert_eq!(traffic::zero(stage, 1e9, 1.0).sum(), 0.0);
    }
    // 40e9 parameters on two nodes: 120 GB; with many nodes twice that, not less.
    assert_eq!(traffic::zero3_per_node(40e9, 2.0).sum() / 8.0, 120e9);
    assert_eq!(traffic::zero3_per_node(40e9, 8.0).sum() / 8.0, 210e9);
    assert_eq!(traffic::zero3_wire_time(40e9, 2.0, 800e9).sum(), 1.2);
}

#[test]
fn a_job_gets_the_rules_that_apply() {
    let names =
        |job: &Job, machine: Option<&Machine>| -> Vec<&str> { all(job, machine).iter().map(|c| c.name).collect() };
    let plain = job(llama3_8b(), 16);
    let found = names(&plain, None);
    for wanted in ["flops-6n", "flops-megatron", "state-16-bytes", "state-zero-3", "activations", "traffic-zero-3"] {
        assert!(found.contains(&wanted), "{wanted}: {found:?}");
    }
    for absent in ["flops-8n", "flops-lora", "bubble", "traffic-node", "step-at-peak", "activations-full"] {
        assert!(!found.contains(&absent), "{absent}");
    }
    let mut unique = found.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), found.len(), "{found:?}");
    let machine = crate::profile::machine("dgx-a100").unwrap();
    let found = names(&plain, Some(&machine));
    assert!(["traffic-node", "traffic-node-time", "step-at-peak"].iter().all(|name| found.contains(name)), "{found:?}");
    let mut split = plain.clone();
    split.recompute = Recompute::Full { every: 1, partitioned: false };
    (split.degrees.pipeline, split.degrees.tensor, split.degrees.chunks) = (4, 8, 2);
    let found = names(&split, Some(&machine));
    for wanted in ["bubble-interleaved", "in-flight", "layers-kept", "activations-full", "flops-8n"] {
        assert!(found.contains(&wanted), "{wanted}: {found:?}");
    }
    assert!(!found.contains(&"traffic-node"));
    let mut lora = plain.clone();
    lora.peft =
        Peft::Adapters { trainable: 20_000_000, rank: 8, base: Number::Nf4, weight_bytes: 4.0, targets: Targets::ALL };
    let checks = all(&lora, None);
    let of_job = checks.iter().find(|check| check.name == "state-of-this-job").unwrap();
    assert_eq!(of_job.terms[0].value, Number::Nf4.bytes() * 8_030_261_248.0 / 16.0);
    assert!(checks.iter().any(|check| check.name == "flops-lora"));
    // A count of parameters has no layers: what needs them is not said.
    let count =
        Shape { kind: Kind::Count { largest_layer: 32_000_000 }, stated_parameters: 2_851_000_000, ..llama3_8b() };
    let found = names(&job(count, 8), Some(&machine));
    assert!(found.contains(&"state-zero-3") && !found.iter().any(|name| name.starts_with("activations")));
    assert_eq!(found.iter().filter(|name| name.starts_with("flops")).count(), 1);
}

#[test]
fn a_rate_is_the_peak_over_the_work() {
    let machine = crate::profile::machine("a100-80gb").unwrap();
    let plain = job(llama3_8b(), 8);
    let checks = all(&plain, Some(&machine));
    let value = |name: &str| checks.iter().find(|check| check.name == name).unwrap().sum();
    let hour = 3600.0 * 312e12 / (6.0 * 8_030_261_248.0);
    assert!((value("tokens-per-gpu-hour") - hour).abs() < 1.0);
    assert!((value("tokens-per-gpu-hour-40") - 0.4 * hour).abs() < 1.0);
    let step = 2048.0 * 8.0 * 8.0 * 3600.0 / hour / 8.0;
    assert!((value("step-at-peak") - step).abs() < 1e-9);
    // Frozen weights take 4 instead of 6, a repeated forward 2 more.
    let hour_of = |change: &dyn Fn(&mut Job)| {
        let mut job = plain.clone();
        change(&mut job);
        let checks = all(&job, Some(&machine));
        checks.iter().find(|check| check.name == "tokens-per-gpu-hour").map(Check::sum)
    };
    let adapters =
        Peft::Adapters { trainable: 1, rank: 1, base: Number::Bf16, weight_bytes: 2.0, targets: Targets::ALL };
    let frozen = hour_of(&|job| job.peft = adapters.clone()).unwrap();
    let again = hour_of(&|job| job.recompute = Recompute::Full { every: 1, partitioned: false }).unwrap();
    assert!((frozen / hour - 1.5).abs() < 1e-9 && (again / hour - 0.75).abs() < 1e-9);
    let two_stacks = Kind::EncoderDecoder { decoder_layers: 32, decoder_seq: 128 };
    assert_eq!(hour_of(&|job| job.model.kind = two_stacks), None);
    // A device without such numbers has no rate of them.
    let v100 = crate::profile::machine("v100-32gb").unwrap();
    assert!(!all(&plain, Some(&v100)).iter().any(|check| check.name == "step-at-peak"));
}

#[test]
fn a_check_prints_its_sum_term_by_term() {
    let text = state::zero(3, 7.5e9, 64.0).to_string();
    assert_eq!(
        text,
        "state-zero-3: 2P/N + 2P/N + 12P/N [ZeRO paper, figure 1 and table 1]\n\
         \x20   weights    2 × 7,500,000,000 / 64  = 234,375,000 bytes\n\
         \x20   gradients  2 × 7,500,000,000 / 64  = 234,375,000 bytes\n\
         \x20   optimizer  12 × 7,500,000,000 / 64 = 1,406,250,000 bytes\n\
         \x20   sum                                = 1,875,000,000 bytes\n"
    );
    assert_eq!([digits(0.375), digits(1.0), digits(1234567.0), digits(-1e3)], ["0.375", "1", "1,234,567", "-1,000"]);
    assert_eq!(digits(f64::NAN), "NaN");
}

/// Four equal stages and eight micro-batches of 4 and 8 ms: as the engine's own orders come out when they are simulated pass by pass
/// (zbench-engine, pipeline::tests::bubbles_are_those_of_the_papers).
#[test]
fn idle_time_is_that_of_the_orders_themselves() {
    let step = |order, chunks| 8.0 * 12.0 + pipeline::idle(order, chunks, 8.0, &[[4.0; 3]; 4], 12.0);
    let all = [
        (Order::Naive, 1.0),
        (Order::GPipe, 1.0),
        (Order::OneFOneB, 1.0),
        (Order::OneFOneB, 2.0),
        (Order::ZeroBubble, 1.0),
    ];
    assert_eq!(all.map(|(order, chunks)| step(order, chunks)), [384.0, 132.0, 132.0, 114.0, 108.0]);
    assert_eq!(pipeline::bubble_zero(4.0, 8.0).sum(), 12.0 / 96.0);
}

#[test]
fn congestion_is_named_where_a_network_has_it() {
    let congested = |job: &Job, machine: &str| -> Vec<(&'static str, String)> {
        let machine = crate::profile::machine(machine).unwrap();
        let checks = all(job, Some(&machine));
        let checks = checks.iter().filter(|check| check.name.starts_with("congestion"));
        checks.map(|check| (check.name, check.terms[0].how.clone())).collect()
    };
    // Two pods of 384 nodes: the ring over all devices crosses once for 384 nodes, replicas of a pod each cross whole.
    let mut plain = job(llama3_8b(), 6144);
    assert_eq!(congested(&plain, "meta-24k-h100"), []);
    plain.sharding.parameters = 3072;
    let replicas = ("congestion-replicas", "oversubscription 7 × ecmp 1".to_string());
    assert_eq!(congested(&plain, "meta-24k-h100"), [replicas]);
    for quiet in ["h100-sxm", "dgx-superpod-h100"] {
        assert_eq!(congested(&plain, quiet), []);
    }
    assert_eq!(congested(&job(llama3_8b(), 32), "torus-example"), [("congestion-data", "torus 3".to_string())]);
    // Without stages there is nobody to send to.
    plain.degrees.pipeline = 2;
    let names: Vec<&str> = congested(&plain, "meta-24k-h100").iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["congestion-replicas", "congestion-pipeline"]);
}
