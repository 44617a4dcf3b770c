//! From what was measured to a record: metrics, memory beside its prediction, communication, time, operations.

mod offload;
mod pipeline;
pub use offload::ceiling;

use crate::gpu_info::GpuInfo;
use crate::protocol::{End, LoadingEnd, RankEnd};
use hdrhistogram::Histogram;
use zbench_collectives::CollectiveKind;
use zbench_collectives::Traffic;
use zbench_collectives::link::LinkUse;
use zbench_engine::action::span::Span;
use zbench_engine::checkpoint::weights::note_of_untied_head;
use zbench_engine::config::{Backend, Cell, Data, DeviceKind};
use zbench_engine::observe::outcome::Estimate;
use zbench_host::devices;
use zbench_host::sampling::sampled::BUSY_SHARE;
use zbench_kernels::Category;
use zbench_predict::planned::Planned;
use zbench_reports::record::{self, Bytes, Communication, LedgerTerm, Rank, Record, Step};
use zbench_reports::{stats, units};

/// How far the peak before and after may be apart, relative to the larger.
pub const PEAK_DRIFT: f64 = 0.2;

/// What the plan says, into a record that has run or will not run.
pub fn predicted(record: &mut Record, planned: &Planned) {
    let mut row = planned.row();
    // What a search says of a cell stands beside its estimate.
    if let Some(search) = row.search.take() {
        search.put(record);
    }
    record.estimate = serde_json::to_value(row).unwrap_or_default();
    for (_, category) in categories() {
        record.memory.set(category, Bytes::default());
    }
    let Some(footprint) = &planned.footprint else { return };
    for (ours, theirs) in categories() {
        let bytes = footprint.peaks.get(ours.name()).copied();
        record.memory.set(theirs, Bytes { predicted_bytes: bytes, ..Bytes::default() });
    }
    record.memory.total = Some(Bytes { predicted_bytes: Some(footprint.total), ..Bytes::default() });
    let Some(estimate) = &planned.estimate else { return };
    pipeline::planned(record, estimate);
    let flops = &estimate.flops;
    for (name, value) in [("model", flops.model), ("palm", flops.palm), ("hardware", flops.hardware)] {
        record.flops.set(name, value);
    }
    let term = |(term, flops): &(String, f64)| LedgerTerm {
        term: term.clone(),
        flops: *flops,
        formula: String::new(),
        extra: Default::default(),
    };
    record.flops.conventions.insert("source".into(), record::PLANNED.into());
    record.flops.ledger = flops.ledger.iter().map(term).collect();
    for (name, count) in [("trainable_parameters", estimate.trainable_parameters), ("parameters", estimate.parameters)]
    {
        record.extra.insert(name.into(), count.into());
    }
    if estimate.active_parameters != estimate.parameters {
        record.extra.insert("active_parameters".into(), estimate.active_parameters.into());
    }
    let base = estimate.parameters - estimate.trainable_parameters;
    if base > 0 {
        record.extra.insert("base_bytes_per_parameter".into(), (estimate.base_bytes as f64 / base as f64).into());
    }
    let share = estimate.trainable_parameters as f64 / estimate.parameters.max(1) as f64;
    record.extra.insert("trainable_share".into(), share.into());
}

fn categories() -> impl Iterator<Item = (Category, record::Category)> {
    Category::ALL.into_iter().map(|category| (category, in_record(category)))
}

fn in_record(category: Category) -> record::Category {
    match category {
        Category::Parameters => record::Category::Parameters,
        Category::Gradients => record::Category::Gradients,
        Category::Optimizer => record::Category::Optimizer,
        Category::Activations => record::Category::Activations,
        Category::Communication => record::Category::Communication,
        Category::Workspace => record::Category::Workspace,
    }
}

/// What was measured. Metrics follow from the timed steps alone.
pub fn measured(record: &mut Record, steps: Vec<Step>, end: &End, cell: &Cell, estimate: &Estimate, host: &str) {
    record.steps = steps;
    memory(record, end);
    record.ranks = end.ranks.iter().map(|rank| rank_of(rank, host)).collect();
    record.communication = communication(&end.ranks, &estimate.traffic, cell.parallel.backend);
    offload::add(record, end, estimate);
    time(record, end);
    metrics(record, end, cell, estimate);
    pipeline::add(record, end, [cell.parallel.degrees.pipeline, cell.parallel.ranks]);
    if !end.kernels.is_empty() {
        record.environment.insert("kernels".into(), end.kernels.clone().into());
    }
    flags(record, end);
    emulated(record, cell, end);
    if cell.lora.use_dora && cell.train.weight_decay > 0.0 {
        record.notes.push(format!(
            "DoRA's magnitudes have no weight decay; transformers' Trainer gives them that of its matrices (train.weight_decay = {}).",
            cell.train.weight_decay
        ));
    }
    pipeline::paced(record, cell);
    offload::first_step(record, cell);
    if !record.is_measured() {
        // Whatever is missing is missing because the cell did not reach its end.
        let reason = format!("the cell ended early: {}", record.outcome.reason);
        let missing: Vec<String> = record.unstated.names().map(str::to_string).collect();
        missing.iter().for_each(|metric| record.leave_unstated(metric, reason.as_str()));
    }
}

fn memory(record: &mut Record, end: &End) {
    let Some(largest) = end.ranks.iter().max_by_key(|rank| rank.total_peak) else { return };
    for (of, category) in categories() {
        let predicted_bytes = record.memory.get(category).and_then(|bytes| bytes.predicted_bytes);
        // peak_bytes is what predicted_bytes predicts: the largest of any rank.
        let peak_bytes = end.ranks.iter().filter_map(|rank| rank.peak.get(&of).copied()).max();
        let at_peak_bytes = largest.at_peak.get(&of).copied();
        let bytes = Bytes { predicted_bytes, peak_bytes, at_peak_bytes, extra: Default::default() };
        record.memory.set(category, bytes);
    }
    let total = record.memory.total.get_or_insert_default();
    total.peak_bytes = Some(largest.total_peak);
    total.at_peak_bytes = Some(largest.total_peak);
    let reserved = end.ranks.iter().map(|rank| rank.reserved_bytes).max().unwrap_or(0);
    record.memory.extra.insert("reserved_bytes".into(), reserved.into());
}

fn rank_of(rank: &RankEnd, host: &str) -> Rank {
    let p50 = histogram(&rank.step_ms).map(|histogram| quantile(&histogram, 0.5));
    let mut extra = record::Extra::new();
    extra.insert("reserved_bytes".into(), rank.reserved_bytes.into());
    if rank.spans_ms.contains_key(&Span::ExposedPipeline)
        && let Some(ms) = stats::median(&rank.pipeline_ms)
    {
        extra.insert("pipeline_ms_p50".into(), ms.into());
    }
    if let Some(pid) = rank.pid {
        extra.insert("pid".into(), pid.into());
    }
    if let Some(loading) = &rank.loading {
        extra.insert("loading".into(), serde_json::to_value(loading).unwrap_or_default());
    }
    let host = if rank.host.is_empty() { host } else { &rank.host };
    Rank { rank: rank.rank as u64, host: host.into(), step_ms_p50: p50, peak_bytes: Some(rank.total_peak), extra }
}

/// Bytes of the largest rank, times of the slowest, by axis and kind.
/// What a library moves it does not tell: only the plan's bytes are stated.
fn communication(ranks: &[RankEnd], predicted: &[Traffic], backend: Backend) -> Vec<Communication> {
    let planned = record::wire_is_planned(backend.name());
    let steps = ranks.iter().map(|rank| rank.step_ms.len()).max().unwrap_or(0);
    let mut all: Vec<Traffic> = Vec::new();
    for traffic in ranks.iter().flat_map(|rank| &rank.traffic) {
        match all.iter_mut().find(|known| known.axis == traffic.axis && known.kind == traffic.kind) {
            None => all.push(traffic.clone()),
            Some(known) => {
                known.calls = known.calls.max(traffic.calls);
                known.payload_bytes = known.payload_bytes.max(traffic.payload_bytes);
                known.wire_bytes = known.wire_bytes.max(traffic.wire_bytes);
                known.ms = known.ms.max(traffic.ms);
                known.exposed_ms = known.exposed_ms.max(traffic.exposed_ms);
                known.link = known.link.most(traffic.link);
            }
        }
    }
    all.iter()
        .map(|traffic| {
            let expected = predicted.iter().find(|t| t.axis == traffic.axis && t.kind == traffic.kind);
            let bandwidth = bandwidth(traffic);
            let mut extra = record::Extra::new();
            extra.insert("ranks".into(), traffic.ranks.into());
            if planned {
                extra.insert("source".into(), record::PLANNED.into());
            }
            if traffic.link.calls > 0 {
                let per_step = traffic.link.crossing_bytes as f64 / steps.max(1) as f64;
                extra.insert("crossing_bytes".into(), per_step.into());
                extra
                    .insert("over_budget".into(), (traffic.link.over_budget as f64 / traffic.link.calls as f64).into());
            }
            Communication {
                axis: traffic.axis.name().into(),
                kind: traffic.kind.name().into(),
                calls: traffic.calls,
                payload_bytes: traffic.payload_bytes,
                wire_bytes: if planned { f64::NAN } else { traffic.wire_bytes },
                predicted_wire_bytes: expected.map(|traffic| traffic.wire_bytes),
                ms: traffic.ms,
                exposed_ms: traffic.exposed_ms,
                algbw_gb_s: bandwidth.map(|(algorithm, _)| algorithm),
                busbw_gb_s: bandwidth.map(|(_, bus)| bus),
                extra,
            }
        })
        .collect()
}

/// nccl-tests' algbw and busbw in GB/s. Its size of an all-reduce is the buffer, of which our payload is twice.
fn bandwidth(traffic: &Traffic) -> Option<(f64, f64)> {
    let n = traffic.ranks as f64;
    let (size, factor) = match traffic.kind {
        CollectiveKind::AllReduce => (traffic.payload_bytes / 2.0, 2.0 * (n - 1.0) / n),
        CollectiveKind::AllGather
        | CollectiveKind::ReduceScatter
        | CollectiveKind::AllToAll
        | CollectiveKind::Gather
        | CollectiveKind::Scatter => (traffic.payload_bytes, (n - 1.0) / n),
        _ => (traffic.payload_bytes, 1.0),
    };
    let seconds = traffic.ms / 1e3;
    (traffic.ranks > 1 && seconds > 0.0 && size > 0.0).then(|| {
        let algorithm = size / seconds / 1e9;
        (algorithm, algorithm * factor)
    })
}

/// Spans of the slowest rank; they add up to its step.
fn time(record: &mut Record, end: &End) {
    let total = |rank: &&RankEnd| rank.spans_ms.values().sum::<f64>();
    let Some(slowest) = end.ranks.iter().max_by(|a, b| total(a).total_cmp(&total(b))) else { return };
    for (span, ms) in &slowest.spans_ms {
        record.time.set(span.name(), *ms);
    }
}

/// Microseconds with four digits; absent when there is nothing to count.
fn histogram(step_ms: &[f64]) -> Option<Histogram<u64>> {
    // Four significant digits are always a valid choice, and an auto-resizing histogram takes any value.
    let mut histogram = Histogram::<u64>::new(4).ok()?;
    for ms in step_ms {
        histogram.record((ms * 1e3).round().max(1.0) as u64).ok()?;
    }
    (!histogram.is_empty()).then_some(histogram)
}

fn quantile(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

/// The metrics that every record has.
pub const METRICS: &[&str] = &[
    "tokens_per_second",
    "tokens_per_second_per_rank",
    "step_ms_p50",
    "step_ms_p90",
    "step_ms_p99",
    "step_ms_mean",
    "tflops_per_rank",
    "mfu",
    "mfu_palm",
    "hfu",
    "mfu_of_measured_peak",
    "peak_memory_bytes",
    "peak_rss_bytes",
    "all_reduce_busbw_gb_s",
    "exposed_communication_ms",
    "loss_first",
    "loss_last",
    "joules_per_token",
];

/// Nothing ran: every metric is unstated, for one reason.
pub fn unmeasured(record: &mut Record, reason: &str) {
    for metric in METRICS {
        record.leave_unstated(metric, reason);
    }
}

fn metrics(record: &mut Record, end: &End, cell: &Cell, estimate: &Estimate) {
    let ranks = cell.parallel.ranks as f64;
    let step_ms: Vec<f64> = record.timed_steps().map(|step| step.ms).collect();
    let tokens: u64 = record.timed_steps().map(|step| step.tokens).sum();
    if let Some(histogram) = histogram(&step_ms) {
        let seconds = step_ms.iter().sum::<f64>() / 1e3;
        let mean_seconds = seconds / step_ms.len() as f64;
        record.state("tokens_per_second", tokens as f64 / seconds);
        record.state("tokens_per_second_per_rank", tokens as f64 / seconds / ranks);
        for (name, share) in [("step_ms_p50", 0.5), ("step_ms_p90", 0.9), ("step_ms_p99", 0.99)] {
            record.state(name, quantile(&histogram, share));
        }
        record.state("step_ms_mean", mean_seconds * 1e3);
        let flops = &estimate.flops;
        record.state("tflops_per_rank", flops.model / mean_seconds / ranks / 1e12);
        utilisation(record, end, cell, estimate, mean_seconds);
    } else {
        for metric in &METRICS[..11] {
            record.leave_unstated(metric, "no timed step ended");
        }
    }
    match end.ranks.iter().map(|rank| rank.total_peak).max() {
        Some(peak) => record.state("peak_memory_bytes", peak as f64),
        None => record.leave_unstated("peak_memory_bytes", "no rank could report its arena"),
    }
    match end.peak_rss_bytes {
        Some(bytes) => record.state("peak_rss_bytes", bytes as f64),
        None => record.leave_unstated("peak_rss_bytes", "the system does not state VmHWM"),
    }
    all_reduce(record, cell);
    if end.ranks.iter().any(|rank| !rank.spans_ms.is_empty()) {
        let exposed = record.time.iter().filter(|(name, _)| name.starts_with("exposed_"));
        let exposed: f64 = exposed.filter_map(|(_, ms)| *ms).sum();
        record.state("exposed_communication_ms", exposed);
    } else {
        record.leave_unstated("exposed_communication_ms", "no timed step ended");
    }
    let ends = (record.steps.first().map(|step| step.loss), record.steps.last().map(|step| step.loss));
    for (metric, loss) in [("loss_first", ends.0), ("loss_last", ends.1)] {
        match loss {
            Some(loss) => record.state(metric, loss),
            None => record.leave_unstated(metric, "no step ended"),
        }
    }
    scaled(record, cell);
    documents(record, end, cell);
    loading(record, end, cell);
}

/// Of a step, what its sequences hold beside the tokens: `padding_tokens` or `target_tokens`.
fn counted(step: &Step, name: &str) -> Option<u64> {
    step.extra.get(name).and_then(serde_json::Value::as_u64)
}

/// Padding and targets apart, where sequences are of documents. `tokens_per_second` counts the tokens of documents alone.
fn documents(record: &mut Record, end: &End, cell: &Cell) {
    if !matches!(cell.data, Data::Documents(_)) {
        return;
    }
    let names = ["padding_share", "target_tokens_per_second", "places_per_second"];
    // Added as for `tokens_per_second`: the two must not differ by a rounding.
    let seconds = record.timed_steps().map(|step| step.ms).sum::<f64>() / 1e3;
    let sum = |of: &dyn Fn(&Step) -> u64| record.timed_steps().map(of).sum::<u64>() as f64;
    let real = sum(&|step| step.tokens);
    let padding = sum(&|step| counted(step, "padding_tokens").unwrap_or(0));
    let targets = sum(&|step| counted(step, "target_tokens").unwrap_or(0));
    if seconds > 0.0 && real > 0.0 {
        let values = [padding / (real + padding), targets / seconds, (real + padding) / seconds];
        names.into_iter().zip(values).for_each(|(name, value)| record.state(name, value));
    } else {
        names.into_iter().for_each(|name| record.leave_unstated(name, "no timed step ended"));
    }
    let Some(found) = end.ranks.iter().find_map(|rank| rank.documents) else { return };
    record.extra.insert("documents".into(), serde_json::to_value(found).unwrap_or_default());
    let documents = units::plural(found.documents as usize, "document", "documents");
    if found.without_loss > 0 {
        record.notes.push(format!("{} of {documents} have no token with a loss and are left out.", found.without_loss));
    }
    if found.cut > 0 {
        let cut = found.cut;
        record.notes.push(format!(
            "{cut} of {documents} are longer than train.seq_len and cut into pieces that do not see each other."
        ));
    }
    if padding > 0.0 {
        record.notes.push("tokens_per_second counts tokens of documents; padding is counted apart (padding_share, places_per_second).".into());
    }
}

/// What loading took of the rank that needed most, where there are weights to load.
fn loading(record: &mut Record, end: &End, cell: &Cell) {
    if cell.model.weights.is_none() {
        return;
    }
    record.notes.extend(note_of_untied_head(&cell.model).map(|text| format!("{text}.")));
    let of = |value: fn(&LoadingEnd) -> f64| end.ranks.iter().filter_map(move |rank| rank.loading.as_ref().map(value));
    let slowest = of(|loading| loading.ms).reduce(f64::max);
    let largest = of(|loading| loading.peak_bytes as f64).reduce(f64::max);
    for (metric, most) in [("loading_ms", slowest), ("loading_peak_bytes", largest)] {
        match most {
            Some(most) => record.state(metric, most),
            None => record.leave_unstated(metric, "no rank came so far as to say what loading took"),
        }
    }
}

/// What the loss scale did, where there is one.
fn scaled(record: &mut Record, cell: &Cell) {
    if cell.precision.scaling.is_none() {
        return;
    }
    let skipped = record.steps.iter().filter(|step| step.is_skipped()).count();
    record.state("skipped_steps", skipped as f64);
    match record.steps.last().and_then(Step::loss_scale) {
        Some(scale) => record.state("loss_scale_last", scale),
        None => record.leave_unstated("loss_scale_last", "no step ended"),
    }
    if skipped > 0 {
        record.notes.push(format!(
            "{} of {} overflowed at the loss scale and updated nothing; their gradient norm is null.",
            units::plural(skipped, "step", "steps"),
            record.steps.len()
        ));
    }
}

fn utilisation(record: &mut Record, end: &End, cell: &Cell, estimate: &Estimate, step_seconds: f64) {
    let flops = &estimate.flops;
    let names = [
        ("mfu", flops.model),
        ("mfu_palm", flops.palm),
        ("hfu", flops.hardware),
        ("mfu_of_measured_peak", flops.model),
    ];
    if cell.hardware.device == DeviceKind::Cuda {
        // A launcher's processes do not say what their GPUs are.
        let unknown = GpuInfo { why_no_data_sheet: "no rank told what its GPU is".into(), ..GpuInfo::default() };
        let gpu = end.gpu.as_ref().unwrap_or(&unknown);
        return of_gpu(record, end, gpu, cell, names, step_seconds);
    }
    match best_peak(end).filter(|peak| *peak > 0.0) {
        Some(peak) => {
            for (name, flops) in names {
                record.state(name, flops / step_seconds / peak);
            }
            record.extra.insert("peak_flops_per_second".into(), peak.into());
            let quota = end.peak_quota.map(|quota| {
                format!(
                    " A processor quota of {quota} cores limits it: on each host the rate of so many threads counts."
                )
            });
            record.notes.push(format!(
                "The peak is that of {} threads at {}, measured beside the cell by a register loop and shared by its \
                 ranks; mfu equals mfu_of_measured_peak here.{}",
                end.peak_threads,
                cell.precision.compute,
                quota.unwrap_or_default()
            ));
        }
        None => {
            let reason = format!("the peak of this processor at {} could not be measured", cell.precision.compute);
            for (name, _) in names {
                record.leave_unstated(name, reason.as_str());
            }
        }
    }
}

/// The best of the peaks that were measured beside the cell, where none of the measurements failed.
fn best_peak(end: &End) -> Option<f64> {
    let peaks = end.peak_flops.iter().copied().collect::<Option<Vec<f64>>>()?;
    peaks.into_iter().reduce(f64::max)
}

/// On a GPU: the share of its data sheet's dense rate, and of what a large product reached beside the cell.
fn of_gpu(
    record: &mut Record,
    end: &End,
    gpu: &GpuInfo,
    cell: &Cell,
    names: [(&'static str, f64); 4],
    step_seconds: f64,
) {
    // The operations are those of all ranks; ranks that share a GPU share its rate.
    let gpus = if cell.parallel.backend == Backend::Nccl { cell.parallel.ranks } else { 1 } as f64;
    let measured = best_peak(end);
    for (name, flops) in names {
        let is_measured = name == "mfu_of_measured_peak";
        match if is_measured { measured } else { gpu.data_sheet_flops } {
            Some(peak) => record.state(name, flops / step_seconds / (peak * gpus)),
            None if is_measured => record.leave_unstated(name, "the peak of a large product could not be measured"),
            None => record.leave_unstated(name, gpu.why_no_data_sheet.as_str()),
        }
    }
    record.extra.insert("gpu".into(), serde_json::to_value(gpu).unwrap_or_default());
    fallbacks(record, &gpu.fallbacks);
    if devices::on_host() {
        return emulated_device(record);
    }
    if let Some(measured) = measured {
        record.extra.insert("peak_flops_per_second".into(), measured.into());
    }
    record.notes.push(format!(
        "mfu, mfu_palm and hfu are shares of the dense rate in the data sheet of {}; mfu_of_measured_peak of the best of ten \
         products of 8192 x 8192 random numbers beside the cell.",
        gpu.name
    ));
}

/// That products were not the vendor's library's: they are slower, and their speed is not that of the machine.
pub fn fallbacks(record: &mut Record, fallbacks: &[String]) {
    let Some(first) = fallbacks.first() else { return };
    record.validity.push(record::label_flags::PRODUCT_FALLBACK.into());
    let count = units::plural(fallbacks.len(), "shape", "shapes");
    record.notes.push(format!(
        "Products of {count} were computed by zbench's own kernels and not by cuBLASLt; {first}. All of them are in gpu.fallbacks."
    ));
}

/// That the kernels for a GPU ran on the processor: the numbers they computed count, and their speed does not.
pub fn emulated_device(record: &mut Record) {
    record.validity.push("emulated_device".into());
    record.notes.push(format!(
        "{} is set: the kernels for GPUs ran on the processor, whose speed says nothing of a GPU's.",
        devices::ON_HOST
    ));
}

/// The bus bandwidth of the all-reduce that moves most.
fn all_reduce(record: &mut Record, cell: &Cell) {
    let metric = "all_reduce_busbw_gb_s";
    let of_kind = record.communication.iter().filter(|c| c.kind == CollectiveKind::AllReduce.name());
    let largest = of_kind.max_by(|a, b| a.payload_bytes.total_cmp(&b.payload_bytes)).and_then(|c| c.busbw_gb_s);
    match largest {
        Some(bandwidth) => record.state(metric, bandwidth),
        None if cell.parallel.ranks == 1 => record.leave_unstated(metric, "one rank moves nothing"),
        None => record.leave_unstated(metric, "no timed all-reduce in a step of this strategy"),
    }
}

/// Says that links were emulated, and how often the machine was too slow for them.
fn emulated(record: &mut Record, cell: &Cell, end: &End) {
    let Some(link) = cell.link else { return };
    record.validity.push(record::label_flags::EMULATED_LINK.into());
    if let Some(host) = link.host {
        let rate = units::link(host.bandwidth, host.latency);
        record.notes.push(format!("Emulated link between device and host: one for each rank, {rate}."));
        let slowest = end.ranks.iter().filter_map(|rank| rank.host_link).max_by_key(|usage| usage.late_ns);
        slower(record, slowest.unwrap_or_default(), "moves between device and host");
    }
    let Some(link) = cell.link_spec() else { return };
    let nodes = cell.parallel.ranks / link.ranks_per_node;
    let ranks = link.ranks_per_node;
    record.notes.push(format!(
        "Emulated links between nodes: {} of {}, {}.",
        units::plural(nodes, "node", "nodes"),
        units::plural(ranks, "rank", "ranks"),
        units::link(link.bandwidth, link.latency)
    ));
    let of_rank = |rank: &RankEnd| rank.traffic.iter().fold(LinkUse::default(), |sum, row| sum.plus(row.link));
    let slowest = end.ranks.iter().map(of_rank).max_by_key(|usage| usage.late_ns).unwrap_or_default();
    slower(record, slowest, "transfers between nodes");
}

/// Says how often the machine was slower than an emulated link.
fn slower(record: &mut Record, slowest: LinkUse, transfers: &str) {
    if slowest.over_budget > 0 {
        record.notes.push(format!(
            "In {} of {} {transfers} this machine was slower than the emulated link, by {:.3} ms together (the \
             slowest rank): there the time is the machine's, not the link's.",
            slowest.over_budget,
            slowest.calls,
            slowest.late_ns as f64 / 1e6
        ));
    }
}

fn flags(record: &mut Record, end: &End) {
    if let Some(share) = end.others_share.filter(|share| *share > BUSY_SHARE) {
        record.validity.push("busy_machine".into());
        record.notes.push(format!(
            "Other processes used {:.0} % of the cores during the run (limit {:.0} %).",
            share * 100.0,
            BUSY_SHARE * 100.0
        ));
    }
    if end.swap_bytes.is_some_and(|bytes| bytes > 0) {
        record.validity.push("swap_used".into());
    }
    if let [Some(before), Some(after)] = end.peak_flops[..]
        && (before - after).abs() > PEAK_DRIFT * before.max(after)
    {
        record.validity.push(record::UNSTEADY_PEAK.into());
        record.notes.push(format!(
            "The peak of the cores moved from {:.1} to {:.1} GFLOP/s during the run (limit {:.0} %).",
            before / 1e9,
            after / 1e9,
            PEAK_DRIFT * 100.0
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_collectives::GroupName;

    #[test]
    fn bytes_of_a_library_are_planned_and_those_of_others_measured() {
        let planned = Traffic {
            axis: GroupName::Data,
            kind: CollectiveKind::AllReduce,
            calls: 0.0,
            payload_bytes: 0.0,
            wire_bytes: 120.0,
            ms: 0.0,
            exposed_ms: 0.0,
            ranks: 2,
            link: LinkUse::default(),
        };
        let measured_traffic = Traffic { wire_bytes: 100.0, ..planned.clone() };
        let end = RankEnd { traffic: vec![measured_traffic], ..RankEnd::default() };
        for (backend, measured) in [
            (Backend::Mpi, None),
            (Backend::Nccl, None),
            (Backend::Local, Some(100.0)),
            (Backend::Shm, Some(100.0)),
            (Backend::Tcp, Some(100.0)),
            (Backend::Device, Some(100.0)),
        ] {
            let rows = communication(std::slice::from_ref(&end), std::slice::from_ref(&planned), backend);
            let row = serde_json::to_value(&rows[0]).unwrap();
            assert_eq!(row["wire_bytes"].as_f64(), measured, "{row}");
            assert_eq!(row["predicted_wire_bytes"].as_f64(), Some(120.0), "{row}");
            assert_eq!(row.get("source").and_then(|source| source.as_str()), measured.is_none().then_some("planned"));
        }
    }
}
