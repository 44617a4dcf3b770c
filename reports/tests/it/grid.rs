//! A synthetic grid: seven cells that ran, two that did not, with numbers that a reader can check by hand.

use serde_json::json;
use zbench_reports::Record;
use zbench_reports::record::*;

const MIB: u64 = 1 << 20;

/// What one cell looks like.
pub struct Spec {
    pub strategy: &'static str,
    pub checkpointing: &'static str,
    pub accumulation: u64,
    /// Milliseconds per step of 2048 tokens in each of three trials.
    pub ms: [f64; 3],
    pub peak_mib: u64,
    pub wire_mb: f64,
    pub verdict: Verdict,
}

/// One trial of a cell. Every step takes the trial's time, give or take one percent.
pub fn trial(spec: &Spec, number: u32) -> Record {
    let key = format!("{}{}{}key-of-the-cell", spec.strategy, spec.checkpointing, spec.accumulation);
    let id = format!("{}{}{}{number}-id-of-the-trial", spec.strategy, &spec.checkpointing[..1], spec.accumulation);
    let mut record = Record::new(id, key, "synthetic", Outcome::measured());
    record.trial = number;
    record.command = "zbench grid configs/synthetic.toml".into();
    record.started = format!("2026-01-01T00:0{number}:00Z");
    record.cell = json!({
        "model": {"hidden_size": 64},
        "train": {"accumulation": spec.accumulation, "seq_len": 128},
        "parallel": {"ranks": 4, "strategy": spec.strategy, "shard": if spec.strategy == "hsdp" { Some(2) } else { None }},
        "memory": {"checkpointing": spec.checkpointing},
    });
    record.environment =
        json!({"cpu": {"model": "Synthetic 3000", "cores": 2}, "os": "Linux"}).as_object().unwrap().clone();
    let ms = spec.ms[number as usize - 1];
    for step in 0..6u64 {
        let wobble = [1.3, 0.99, 1.0, 1.01, 0.995, 1.005][step as usize];
        record.steps.push(Step {
            step,
            timed: step > 0,
            loss: 5.5 - 0.1 * step as f64,
            grad_norm: 1.0,
            lr: 1e-3,
            ms: ms * wobble,
            tokens: 2048,
            extra: Extra::new(),
        });
    }
    record.state("tokens_per_second", 2048.0 / ms * 1000.0);
    record.state("step_ms_p50", ms);
    record.state("step_ms_mean", ms);
    record.state("mfu", 40.0 / ms);
    record.state("exposed_communication_ms", ms * 0.1);
    record.state("loss_last", 5.0);
    record.leave_unstated("hfu", "the recompute policy is not known");
    let bytes = |mib: u64| Bytes {
        predicted_bytes: Some(mib * MIB),
        peak_bytes: Some(mib * MIB),
        at_peak_bytes: Some(mib * MIB),
        extra: Extra::new(),
    };
    record.memory.set(Category::Parameters, bytes(spec.peak_mib / 2));
    record.memory.set(Category::Activations, bytes(spec.peak_mib / 4));
    record.memory.total = Some(bytes(spec.peak_mib));
    record.communication.push(Communication {
        axis: "data".into(),
        kind: "all_gather".into(),
        calls: 2.0,
        payload_bytes: spec.wire_mb * 1e6 / 0.75,
        wire_bytes: spec.wire_mb * 1e6,
        predicted_wire_bytes: Some(spec.wire_mb * 1e6),
        ms: ms * 0.1,
        exposed_ms: ms * 0.1,
        algbw_gb_s: Some(1.0),
        busbw_gb_s: Some(0.75),
        extra: Extra::new(),
    });
    for (span, share) in [("forward", 0.3), ("backward", 0.6), ("exposed_gather", 0.1), ("offload", 0.0)] {
        record.time.set(span, ms * share);
    }
    record.parity.verdict = spec.verdict;
    if spec.verdict != Verdict::Reference {
        record.parity.reference = Some(format!("ddp{}{}1-id-of-the-trial", "n", spec.accumulation));
        record.parity.max_loss_difference = Some(match spec.verdict {
            Verdict::Failed => 0.25,
            Verdict::WithinTolerance => 3e-7,
            _ => 0.0,
        });
    }
    record
}

/// A cell that was not measured.
pub fn ended(strategy: &'static str, status: Status, source: Source, reason: &str) -> Record {
    let spec = Spec {
        strategy,
        checkpointing: "none",
        accumulation: 1,
        ms: [1.0; 3],
        peak_mib: 640,
        wire_mb: 0.0,
        verdict: Verdict::None,
    };
    let mut record = trial(&spec, 1);
    let plan = record.memory.total.take();
    let mut ended = Record::new(record.id, record.key, record.name, Outcome::ended(status, reason, Some(source)));
    ended.trial = 1;
    ended.cell = record.cell;
    ended.environment = record.environment;
    ended.command = record.command;
    ended.memory.total = plan.map(|plan| Bytes { peak_bytes: None, at_peak_bytes: None, ..plan });
    ended
}

/// The cells that ran.
pub fn specs() -> Vec<Spec> {
    let spec = |strategy, checkpointing, accumulation, ms: [f64; 3], peak_mib, wire_mb, verdict| Spec {
        strategy,
        checkpointing,
        accumulation,
        ms,
        peak_mib,
        wire_mb,
        verdict,
    };
    vec![
        spec("ddp", "none", 1, [100.0, 102.0, 101.0], 400, 60.0, Verdict::Reference),
        spec("ddp", "full", 1, [130.0, 131.0, 132.0], 300, 60.0, Verdict::Identical),
        spec("ddp", "none", 4, [90.0, 91.0, 92.0], 400, 60.0, Verdict::Reference),
        spec("zero3", "none", 1, [120.0, 125.0, 121.0], 200, 90.0, Verdict::Identical),
        spec("zero3", "full", 1, [150.0, 151.0, 152.0], 100, 90.0, Verdict::Identical),
        spec("zero3", "none", 4, [91.0, 92.0, 93.0], 200, 330.0, Verdict::WithinTolerance),
        spec("zero2", "none", 4, [50.0, 51.0, 52.0], 250, 150.0, Verdict::Failed),
    ]
}

/// All records, trials round robin over the cells.
pub fn records() -> Vec<Record> {
    let specs = specs();
    let mut records: Vec<Record> =
        (1..=3).flat_map(|number| specs.iter().map(move |spec| trial(spec, number))).collect();
    records.push(ended(
        "hsdp",
        Status::OutOfMemory,
        Source::Arena,
        "optimizer asked for 96 MiB with 420 of 512 MiB in use",
    ));
    records.push(ended("zero1", Status::Skipped, Source::Host, "needs 8 GPUs, this machine has none"));
    records
}
