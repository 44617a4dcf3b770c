//! What a cell takes: memory from the engine's plan where the engine runs such a cell, to the byte, and from the estimator
//! where it does not; time on the machine that its profile describes.

use crate::Timing;
use crate::band::{Band, Group, PUBLISHED};
use crate::job::{is_own_engine, job, possible_attention};
use crate::likeness::Traits;
use std::borrow::Cow;
use zbench_config::Resolved;
use zbench_engine::config::{Cell, DeviceKind, MemoryTier};
use zbench_engine::observe::outcome::Estimate;
use zbench_engine::planner::Planner;
use zbench_estimate::convention::Convention;
use zbench_estimate::job::{Degrees, Job, Loss, Place};
use zbench_estimate::machine::Machine;
use zbench_estimate::memory;
use zbench_estimate::time::{self, Time};
use zbench_kernels::Category;
use zbench_reports::OrderedMap;
use zbench_reports::estimate_report::EstimateTraffic;
use zbench_reports::units;

/// Bytes of a stage's rank as programs report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryFigures {
    /// Peak of what the allocator hands out (`torch.cuda.max_memory_allocated`).
    pub allocated: f64,
    /// Peak of what it holds (`max_memory_reserved`).
    pub reserved: f64,
    /// Peak of what the device shows (nvidia-smi): with the context and what the communication library holds.
    pub device: f64,
    /// What is allocated between steps.
    pub after_step: f64,
    /// What is allocated while weights are read, before the first step; 0 where the engine's plan is printed.
    pub load: f64,
    /// Of the memory of a node's host meanwhile.
    pub load_host: f64,
}

impl MemoryFigures {
    /// By the names that records and reports have for them.
    pub fn named(&self) -> OrderedMap<f64> {
        let load = [("load", self.load), ("load_host", self.load_host)].into_iter().filter(|_| self.load > 0.0);
        [
            ("allocated", self.allocated),
            ("reserved", self.reserved),
            ("device", self.device),
            ("after_step", self.after_step),
        ]
        .into_iter()
        .chain(load)
        .collect()
    }
}

/// FLOP/s of a rank, in units of 1e12, by every way of counting them.
pub fn tflops_by_convention(resolved: &Resolved, timing: &Timing) -> OrderedMap<f64> {
    let (job, ranks, seconds) = (job(resolved), resolved.cell.parallel.ranks as f64, timing.step_ms / 1e3);
    let tokens = timing.tokens_per_second * seconds;
    let hardware = timing.hardware_flops_per_rank * ranks;
    let of = |way: Convention| (way.name(), way.flops(&job, tokens, hardware) / seconds / ranks / 1e12);
    Convention::ALL.into_iter().map(of).collect()
}

/// Memory of the largest rank.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// As programs report it: of the stage that holds most, and of the last one.
    pub figures: [MemoryFigures; 2],
    /// Peak bytes by category; they need not coincide.
    pub peaks: OrderedMap<u64>,
    /// Bytes by category at the moment of the peak; they add up to `total`.
    pub at_peak: OrderedMap<u64>,
    /// Peak bytes over all categories.
    pub total: u64,
    /// The stage of the peak, from 0, of how many.
    pub stage: Option<[u64; 2]>,
    /// Bytes of host memory per node.
    pub host: u64,
    /// Bytes on disk per node.
    pub disk: u64,
    /// Bytes of host memory that a node has, where its profile says.
    pub host_capacity: Option<u64>,
    /// `plan` or `priced`.
    pub source: &'static str,
    /// How far such figures were off; nothing where the engine's plan has it to the byte.
    pub band: Option<Band>,
    /// Traits of the job that no published peak has, as the end of a sentence; empty if none is missing.
    pub lacks: String,
    /// That the loss is over whole logits although the cell states no such loss, in a sentence; else empty.
    pub whole_logits: String,
}

impl Footprint {
    /// Whether it fits into a rank's memory, and what lies outside into the host's as far as that is known.
    pub fn fits(&self, capacity: u64) -> bool {
        self.total <= capacity && self.host_capacity.is_none_or(|host| self.host <= host)
    }

    /// As the engine's plan has it.
    pub fn of_plan(estimate: &Estimate, ranks_per_node: usize) -> Footprint {
        let ranks_per_node = ranks_per_node as u64;
        let named = |bytes: &dyn Fn(Category) -> u64| Category::ALL.iter().map(|c| (c.name(), bytes(*c))).collect();
        Footprint {
            peaks: named(&|category| estimate.peak(category)),
            at_peak: named(&|category| estimate.memory().at_peak(category)),
            total: estimate.memory().total_peak(),
            host: ranks_per_node * estimate.ledgers[MemoryTier::Host].total_peak(),
            disk: ranks_per_node * estimate.ledgers[MemoryTier::Disk].total_peak(),
            stage: estimate.largest_stage(),
            source: "plan",
            // The engine hands out every byte itself and holds no more. Its plan is of the largest stage.
            figures: [MemoryFigures {
                allocated: estimate.memory().total_peak() as f64,
                reserved: estimate.memory().total_peak() as f64,
                device: estimate.memory().total_peak() as f64,
                after_step: estimate.state_bytes() as f64,
                ..MemoryFigures::default()
            }; 2],
            ..Footprint::default()
        }
    }

    /// As the estimator has it.
    pub fn priced(job: &Job, machine: Option<&Machine>, ranks_per_node: usize) -> Footprint {
        let memory = memory::memory(job);
        let (band, lacks) = PUBLISHED.of(Group::Memory, &Traits::of_job(job, machine));
        let stage = memory.worst();
        // What the allocator keeps in pieces and the software's context are nobody's tensors: workspace.
        let held = (memory.needs() - stage.peak()).max(0.0);
        let bytes = |category: memory::Category| {
            let more = if category == memory::Category::Workspace { held } else { 0.0 };
            (stage.by(category) + more).max(0.0).round() as u64
        };
        let at_peak: OrderedMap<u64> =
            Category::ALL.into_iter().map(|category| (category.name(), bytes(priced_as(category)))).collect();
        let total = at_peak.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let figures = |stage: &memory::Stage| MemoryFigures {
            allocated: stage.peak(),
            reserved: memory.habits.reserved(stage),
            device: memory.habits.reserved(stage) + memory.habits.context,
            after_step: stage.after_step,
            load: memory.load.device,
            load_host: memory.load.host(ranks_per_node),
        };
        Footprint {
            figures: [figures(stage), figures(memory.last())],
            peaks: at_peak.clone(),
            at_peak,
            total,
            stage: (job.degrees.pipeline > 1).then_some([stage.index as u64, job.degrees.pipeline as u64]),
            host: (memory.host * ranks_per_node as f64) as u64,
            disk: (memory.disk * ranks_per_node as f64) as u64,
            source: "priced",
            band: Some(band),
            lacks,
            whole_logits: whole_logits(job, stage),
            ..Footprint::default()
        }
    }
}

/// Logits that are a smaller share of the peak are not mentioned.
const NOTABLE_LOGITS: f64 = 0.05;

/// That the software has no fused loss, where a cell is left at `memory.loss = "fused"` and logits are much of the peak.
fn whole_logits(job: &Job, stage: &memory::Stage) -> String {
    let of = job.framework.memory.logit;
    let bytes: f64 =
        stage.terms.iter().filter(|term| term.name == "logits and their loss").map(|term| term.bytes).sum();
    let is_default = job.loss == Loss::Fused && of.whole > 0.0 && bytes >= NOTABLE_LOGITS * stage.peak();
    if !is_default || of.fused != of.whole {
        return String::new();
    }
    format!(
        "{} has no fused loss, so memory.loss = \"fused\" is priced with whole logits; write \"chunked\" for Liger's or another \
         loss in parts",
        job.framework.name
    )
}

fn priced_as(category: Category) -> memory::Category {
    match category {
        Category::Parameters => memory::Category::Parameters,
        Category::Gradients => memory::Category::Gradients,
        Category::Optimizer => memory::Category::Optimizer,
        Category::Activations => memory::Category::Activations,
        Category::Communication => memory::Category::Communication,
        Category::Workspace => memory::Category::Workspace,
    }
}

/// The machine of a cell with the nodes that the cell states.
fn machine<'m>(resolved: &'m Resolved, machine: &'m Machine) -> Cow<'m, Machine> {
    match resolved.cell.parallel.ranks_per_node {
        Some(ranks) if ranks != machine.node_devices => Cow::Owned(machine.with_ranks_of_node(ranks)),
        _ => Cow::Borrowed(machine),
    }
}

/// What the estimator prices of a cell: its job, on the machine of its profile.
pub fn job_and_machine(resolved: &Resolved) -> Option<(Job, Machine)> {
    let rates = resolved.profile.as_ref()?.machine().ok()?;
    Some((job(resolved), machine(resolved, rates).into_owned()))
}

/// Ranks of a node as far as a cell or its machine says.
pub fn ranks_per_node(resolved: &Resolved) -> usize {
    let of_machine = || Some(resolved.profile.as_ref()?.machine.as_ref()?.node_devices);
    let ranks = resolved.cell.parallel.ranks;
    resolved.cell.parallel.ranks_per_node.or_else(of_machine).unwrap_or(ranks).clamp(1, ranks.max(1))
}

/// The memory of a cell: the engine's plan, which is given where there is one, else the estimator's; and the estimator's
/// for a device on which other software is named.
pub fn footprint(resolved: &Resolved, estimate: Option<&Estimate>) -> Footprint {
    let machine = resolved.profile.as_ref().and_then(|profile| profile.machine.as_ref());
    let others = of_other_software(&resolved.cell);
    let footprint = match estimate.filter(|_| !others) {
        Some(estimate) => Footprint::of_plan(estimate, ranks_per_node(resolved)),
        None => Footprint::priced(&job(resolved), machine, ranks_per_node(resolved)),
    };
    let host_capacity = machine.map(|machine| machine.host_memory).filter(|bytes| *bytes > 0);
    Footprint { host_capacity, ..footprint }
}

/// Whether a cell is for a device and names software other than zbench.
pub(crate) fn of_other_software(cell: &Cell) -> bool {
    cell.hardware.device == DeviceKind::Cuda && !is_own_engine(cell)
}

/// The time of a cell on the device of its profile, and its traffic.
///
/// # Errors
/// Why there is none, in words.
pub fn timing(
    planner: &Planner,
    resolved: &Resolved,
    estimate: Option<&Estimate>,
) -> Result<(Timing, Vec<EstimateTraffic>), String> {
    let cell = &resolved.cell;
    if cell.hardware.device != DeviceKind::Cuda {
        let only = || "on the CPU times are predicted for cells that the engine runs alone".to_string();
        estimate.ok_or_else(only)?;
        return Ok((crate::time::of(planner, resolved)?, Vec::new()));
    }
    let Some(profile) = &resolved.profile else {
        return Err("no machine is named; state hardware.profile, for example \"h100-sxm\" (docs/machines.md)".into());
    };
    let rates = profile.machine().map_err(|error| error.to_string())?;
    let (job, machine) = (job(resolved), machine(resolved, rates));
    if matches!(job.model.kind, zbench_estimate::job::Kind::Count { .. }) {
        return Err(
            "a count of parameters says what a step holds and not how long it takes; state the model's shape".into()
        );
    }
    let rated = machine.device.compute.contains_key(&job.precision.products);
    let products = job.precision.products.name();
    if !rated {
        return Err(format!("the profile {} has no rate of {products} (compute.{products})", profile.name));
    }
    if rates.node_devices < machine.node_devices && ranks(&job.degrees) > rates.node_devices {
        return Err(format!(
            "parallel.ranks_per_node = {0} is more than the {1} devices of a node of {2}; where a node has as many, write \
             hardware.changes = [\"node.devices={0}\"]",
            machine.node_devices, rates.node_devices, profile.name
        ));
    }
    let places = [job.offload.optimizer, job.offload.parameters, job.offload.activations];
    if places != [Place::Device; 3] && machine.host.bandwidth <= 0.0 {
        return Err(format!(
            "the profile {} states no link between a device and its host (node.host_link: docs/machines.md)",
            profile.name
        ));
    }
    let disk = places.contains(&Place::Disk);
    if disk && (machine.disk_read <= 0.0 || machine.disk_write <= 0.0) {
        return Err(format!(
            "the profile {} states no NVMe (node.disk_read, node.disk_write: docs/machines.md); on that machine `zbench io` and \
             `zbench calibrate --from-notebook --save=FILE` measure it",
            profile.name
        ));
    }
    refuse_without_links(&machine, ranks(&job.degrees), &profile.name)?;
    let time = time::time(&job, &machine);
    let traffic = traffic(&time);
    let mut timing = of_time(&job, &machine, &time, estimate);
    widen(&mut timing, resolved, &job, &machine);
    if cell.pace.is_some() {
        timing.source.push_str("; without [pace], which is emulated on CPUs alone");
    }
    Ok((timing, traffic))
}

/// Why so many ranks cannot exchange anything on a machine: it states no link that they need.
pub(crate) fn refuse_without_links(machine: &Machine, ranks: usize, profile: &str) -> Result<(), String> {
    for (link, is_needed, place) in [
        (&machine.intra, ranks > 1 && machine.node_devices > 1, "between the devices of a node (node.link)"),
        (&machine.inter, ranks > machine.node_devices, "between nodes (network)"),
    ] {
        if is_needed && link.bandwidth <= 0.0 {
            return Err(format!(
                "the profile {profile} has no link {place}, and {ranks} ranks need one; where one node has them all, write \
                 hardware.changes = [\"node.devices={ranks}\"]"
            ));
        }
    }
    Ok(())
}

/// Collectives of one kind on one axis together, in the order in which they first come.
fn traffic(time: &Time) -> Vec<EstimateTraffic> {
    let mut list: Vec<EstimateTraffic> = Vec::new();
    for of in &time.traffic {
        let (axis, kind) = (of.axis.name(), of.kind.name());
        let place = list.iter().position(|entry| entry.axis == axis && entry.kind == kind);
        let place = place.unwrap_or_else(|| {
            list.push(EstimateTraffic { axis: axis.into(), kind: kind.into(), ..EstimateTraffic::default() });
            list.len() - 1
        });
        list[place].calls += of.calls;
        list[place].payload_bytes += of.payload;
        list[place].wire_bytes += of.wire;
    }
    list
}

fn of_time(job: &Job, machine: &Machine, time: &Time, estimate: Option<&Estimate>) -> Timing {
    let ranks = ranks(&job.degrees) as f64;
    // The engine's ledger counts every product of its own plan; the estimator's is the same sum from the shape.
    let model = estimate.map_or(time.model_flops, |estimate| estimate.flops.model);
    let hardware = estimate.map_or(time.hardware_flops, |estimate| estimate.flops.hardware);
    let mut spans = OrderedMap::new();
    for span in &time.spans {
        let name = span.kind.name().replace(' ', "_");
        let before = spans.get(&name).copied().unwrap_or(0.0);
        spans.insert(name, before + 1e3 * span.seconds);
    }
    let (band, lacks) = PUBLISHED.of(Group::of_speeds(machine), &Traits::of_job(job, Some(machine)));
    Timing {
        // Its bubble is a span.
        pipeline: None,
        step_ms: 1e3 * time.step,
        spans,
        tokens_per_second: time.tokens_per_second_per_device * ranks,
        model_flops_per_rank: model / ranks,
        hardware_flops_per_rank: hardware / ranks,
        peak: machine.device.compute.get(&job.precision.products).map(|rate| rate.peak),
        source: format!("simulated: {} as driven by {}", machine.name, job.framework.name),
        error: None,
        band: Some(band),
        lacks,
        assumed: String::new(),
    }
}

/// Widens the band of a cell that names no attention kernel: from the slowest to the fastest that its software has.
fn widen(timing: &mut Timing, resolved: &Resolved, job: &Job, machine: &Machine) {
    let step = |attention| time::time(&Job { attention, ..job.clone() }, machine).step;
    let speeds: Vec<f64> = possible_attention(resolved)
        .map(|kernel| timing.step_ms / 1e3 / step(kernel))
        .filter(|of| of.is_finite())
        .collect();
    let (slowest, fastest) = speeds.iter().fold((1.0f64, 1.0f64), |(low, high), of| (low.min(*of), high.max(*of)));
    let Some(band) = timing.band.as_mut().filter(|_| fastest > slowest) else { return };
    (band.low, band.high) = (band.low * slowest, band.high * fastest);
    let kernels = &resolved.framework.attention;
    timing.assumed = format!(
        "memory.attention is not stated: memory and time are of {}, and the band of the step is of {}",
        kernels[0],
        units::list(kernels)
    );
}

/// Where the bands of a cell come from.
pub fn of_bands(footprint: Option<&Footprint>, timing: Option<&Timing>) -> String {
    let bands = [footprint.and_then(|of| of.band), timing.and_then(|of| of.band)];
    let sources: Vec<String> = bands.into_iter().flatten().map(|band| band.source()).collect();
    sources.join("; ")
}

/// What a cell leaves open and how it is priced, as sentences without their stops.
pub fn assumed(footprint: Option<&Footprint>, timing: Option<&Timing>) -> Vec<String> {
    let all = [footprint.map(|of| &of.whole_logits), timing.map(|of| &of.assumed)];
    all.into_iter().flatten().filter(|text| !text.is_empty()).cloned().collect()
}

/// Sentence that names the traits of a cell that no published result has; empty if none is missing.
pub fn not_compared(footprint: Option<&Footprint>, timing: Option<&Timing>) -> String {
    let [memory, speed] = [footprint.map_or("", |of| of.lacks.as_str()), timing.map_or("", |of| of.lacks.as_str())];
    let lacks = match (memory, speed) {
        ("", "") => return String::new(),
        (memory, speed) if memory == speed => format!("peak of memory or speed is {speed}"),
        (memory, "") => format!("peak of memory is {memory}"),
        ("", speed) => format!("speed is {speed}"),
        (memory, speed) => format!("peak of memory is {memory}, and no speed is {speed}"),
    };
    format!("no published {lacks}, so its band is wider")
}

fn ranks(degrees: &Degrees) -> usize {
    degrees.data * degrees.tensor * degrees.pipeline * degrees.context
}
