//! What was sampled while a cell ran, and the flags that follow from it. A flag says that the cell's timings do not count. Every
//! threshold is here with its reason; the numbers are in the record, so that a reader can judge for himself.

use super::gpu::GpuSampled;
use serde::Serialize;

/// Share of the cores that other processes may use; above it timings do not count (`busy_machine`, `contended`).
pub const BUSY_SHARE: f64 = 0.2;
/// Share of its time that a core spent slowed for heat. Clocks under heat fall by a third and more: at 1 % of the time the
/// mean moves by less than what three trials can tell apart.
const THROTTLED_SHARE: f64 = 0.01;
/// Share of the cores' time that the hypervisor gave to other guests. Quiet virtual machines are below 1 %; steps that wait for
/// the slowest rank lose about twice the share.
const STOLEN_SHARE: f64 = 0.05;
/// Bytes per second swapped in or out. A slow disk moves a hundred times as much: below this it is 1 % of its time.
const SWAPPED_PER_SECOND: f64 = 1048576.0;
/// Major faults per second of the cell's own processes. One takes about 0.1 ms on flash: at 100 that is 1 % of a core.
const FAULTS_PER_SECOND: f64 = 100.0;
/// Fewer major faults come from reading the program's own file into a cold cache.
const LEAST_FAULTS: u64 = 2000;
/// Share of the time in which some task waited for memory.
const MEMORY_STALL_SHARE: f64 = 0.1;
/// Share of the time in which the control group's quota held its tasks back.
const QUOTA_SHARE: f64 = 0.01;
/// Shorter cells get no flags: the system counts in hundredths of a second, which is too coarse for them.
pub const LEAST_SECONDS: f64 = 0.5;

/// What was sampled from the beginning to the end of a cell, including its start and the measurements of the peak. A field is
/// absent where this machine does not show its value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sampled {
    /// Time from the beginning to the end.
    pub seconds: f64,
    /// How often momentary values were read.
    pub samples: u64,
    /// Whether the machine has more cores than the cell may use: then the flag is `contended`, not `busy_machine`.
    #[serde(skip)]
    pub shares_cores: bool,
    /// Time of one core that the sampling took.
    pub cost_ms: f64,
    /// Clock of the fastest core: minimum, median and maximum of the samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<[f64; 3]>,
    /// The hottest processor sensor: minimum, median and maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<[f64; 3]>,
    /// The machine's own power meter: minimum, median and maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<[f64; 3]>,
    /// Energy of all packages and their memory, whichever process used it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// Energy between the end of the last untimed and of the last timed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_joules: Option<f64>,
    /// Why there is no energy.
    #[serde(skip)]
    pub why_no_energy: Option<String>,
    /// How often cores and packages were slowed for heat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_events: Option<u64>,
    /// How long the cores were slowed for heat, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_ms: Option<u64>,
    /// Share of the cores' time that the hypervisor gave to other guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stolen_share: Option<f64>,
    /// Share of the usable cores that other processes of this machine used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_share: Option<f64>,
    /// Processor time on this host of ranks that a launcher has started in other processes. It is no part of `others_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers_seconds: Option<f64>,
    /// Page faults of the cell's processes that read from a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// Bytes that the whole machine read back from swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_in_bytes: Option<u64>,
    /// Bytes that the whole machine wrote to swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_out_bytes: Option<u64>,
    /// Share of the time in which some task waited for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_stall_share: Option<f64>,
    /// Share of the time in which some task waited for a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_stall_share: Option<f64>,
    /// Periods of the control group's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_periods: Option<u64>,
    /// Periods in which the quota was used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_throttled: Option<u64>,
    /// Share of the time in which the quota held tasks back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_stall_share: Option<f64>,
    /// The GPUs that the cell ran on, by NVML.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSampled>,
}

impl Sampled {
    /// The flags that follow, each with a sentence.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        if self.seconds < LEAST_SECONDS {
            return Vec::new();
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        // A sentence with the share in it, where the share is above its limit.
        let above = |share: Option<f64>, limit: f64, before: &str, after: &str| {
            let share = share.filter(|share| *share > limit)?;
            Some(format!("{before} {} {after} (limit {}).", percent(share), percent(limit)))
        };
        let throttled = match (self.throttle_ms, self.throttle_events) {
            (Some(ms), _) => ms as f64 / 1e3 / self.seconds > THROTTLED_SHARE,
            (None, events) => events.is_some_and(|events| events > 0),
        };
        let throttled = throttled.then(|| {
            let events = self.throttle_events.unwrap_or(0);
            let ms = self.throttle_ms.map_or("an unknown number of".into(), |ms| ms.to_string());
            format!("The processor was slowed for heat {events} times during the run, {ms} ms in all.")
        });
        let mut flags = vec![("throttled", throttled)];
        for gpu in self.gpus.iter().filter(|gpu| gpu.slowed_share > THROTTLED_SHARE) {
            let (share, limit) = (percent(gpu.slowed_share), percent(THROTTLED_SHARE));
            let reasons = gpu.throttle_reasons.join(", ");
            let words = format!("GPU {} was slowed in {share} of the samples (limit {limit}): {reasons}.", gpu.gpu);
            flags.push(("throttled", Some(words)));
        }
        let others = self.others_share.filter(|_| self.shares_cores);
        let swapped = self.swap_in_bytes.unwrap_or(0).saturating_add(self.swap_out_bytes.unwrap_or(0)) as f64;
        let swapped = (swapped / self.seconds > SWAPPED_PER_SECOND)
            .then(|| format!("The machine moved {:.1} MiB to or from swap during the run.", swapped / 1048576.0));
        let faults = self.major_faults.unwrap_or(0);
        let paged = (faults >= LEAST_FAULTS && faults as f64 / self.seconds > FAULTS_PER_SECOND)
            .then(|| format!("The cell's processes waited {faults} times for pages from a disk."));
        let quota = "The control group's processor quota held tasks back for";
        flags.extend([
            ("stolen", above(self.stolen_share, STOLEN_SHARE, "The hypervisor gave", "of the cores' time to others")),
            ("contended", above(others, BUSY_SHARE, "Other processes used", "of the cores that this one may use")),
            ("swapped", swapped),
            ("paged", paged),
            (
                "memory_pressure",
                above(self.memory_stall_share, MEMORY_STALL_SHARE, "Tasks waited for memory in", "of the time"),
            ),
            ("cpu_quota", above(self.quota_stall_share, QUOTA_SHARE, quota, "of the time")),
        ]);
        flags.into_iter().filter_map(|(flag, words)| Some((flag, words?))).collect()
    }
}
