//! What was sampled while a cell ran, and when it makes the cell's timings worthless. Every threshold stands here with its
//! reason; the numbers stand in the record, so that a reader can judge again.

use super::gpu::GpuSampled;
use serde::Serialize;

/// Others' share of the cores above which timings are not to be trusted (`busy_machine`, `contended`).
pub const BUSY_SHARE: f64 = 0.2;
/// Share of its time that a core spent slowed for heat. Clocks under heat fall by a third and more: at 1 % of the time the
/// mean moves by less than what three trials can tell apart.
pub const THROTTLED_SHARE: f64 = 0.01;
/// Share of the cores' time that the hypervisor gave to others. Quiet virtual machines are below 1 %; steps that wait for
/// the slowest rank feel about twice the share.
pub const STOLEN_SHARE: f64 = 0.05;
/// Bytes per second swapped in or out. A slow disk moves a hundred times as much: below this it is 1 % of its time.
pub const SWAPPED_PER_SECOND: f64 = 1048576.0;
/// Major faults per second of the cell's own processes. One takes about 0.1 ms on flash: at 100 that is 1 % of a core.
pub const FAULTS_PER_SECOND: f64 = 100.0;
/// Fewer than these are the program's own file on a cold cache.
pub const LEAST_FAULTS: u64 = 2000;
/// Share of the time in which some task waited for memory.
pub const MEMORY_STALL_SHARE: f64 = 0.1;
/// Share of the time in which the group's quota held its tasks back.
pub const QUOTA_SHARE: f64 = 0.01;
/// Shorter cells are not judged: ticks of a hundredth of a second resolve nothing there.
pub const LEAST_SECONDS: f64 = 0.5;

/// What was seen between the beginning and the end of a cell, its start and the measurements of the peak included. Absent
/// is what this machine does not show.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sampled {
    /// Time between the two.
    pub seconds: f64,
    /// How often momentary values were read.
    pub samples: u64,
    /// Whether the machine has more cores than the cell may use: then `busy_machine` cannot be told, and `contended` is.
    #[serde(skip)]
    pub shares_cores: bool,
    /// What all of this took of one core.
    pub cost_ms: f64,
    /// Clock of the fastest core: least, median and most of the samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<[f64; 3]>,
    /// The hottest processor sensor: least, median and most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<[f64; 3]>,
    /// The machine's own power meter: least, median and most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<[f64; 3]>,
    /// Energy of all packages and their memory, whoever used it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// The same between the end of the last untimed and of the last timed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_joules: Option<f64>,
    /// Why there is no energy.
    #[serde(skip)]
    pub why_no_energy: Option<String>,
    /// How often cores and packages were slowed for heat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_events: Option<u64>,
    /// For how long, the mean of the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_ms: Option<u64>,
    /// Share of the cores' time that the hypervisor gave to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stolen_share: Option<f64>,
    /// Share of the usable cores that other processes of this machine used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_share: Option<f64>,
    /// Faults of the cell's processes that went to a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// Read back from swap, by the whole machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_in_bytes: Option<u64>,
    /// Written to swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_out_bytes: Option<u64>,
    /// Share of the time in which some task waited for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_stall_share: Option<f64>,
    /// The same for disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_stall_share: Option<f64>,
    /// Periods of the group's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_periods: Option<u64>,
    /// Those in which it was used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_throttled: Option<u64>,
    /// Share of the time in which it held tasks back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_stall_share: Option<f64>,
    /// The GPUs that the cell ran on, as NVML told of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSampled>,
}

impl Sampled {
    /// The flags that follow, each with a sentence.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        if self.seconds < LEAST_SECONDS {
            return Vec::new();
        }
        let mut flags = Vec::new();
        let mut raise = |flag, is: bool, words: String| {
            if is {
                flags.push((flag, words))
            }
        };
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let over = |share: Option<f64>, limit: f64| share.is_some_and(|share| share > limit);
        let heat = match (self.throttle_ms, self.throttle_events) {
            (Some(ms), _) => ms as f64 / 1e3 / self.seconds > THROTTLED_SHARE,
            (None, events) => events.is_some_and(|events| events > 0),
        };
        raise(
            "throttled",
            heat,
            format!(
                "The processor was slowed for heat {} times during the run, {} ms in all.",
                self.throttle_events.unwrap_or(0),
                self.throttle_ms.map_or("an unknown number of".into(), |ms| ms.to_string())
            ),
        );
        for gpu in &self.gpus {
            raise(
                "throttled",
                gpu.slowed_share > THROTTLED_SHARE,
                format!(
                    "GPU {} was slowed in {} of the samples (limit {}): {}.",
                    gpu.gpu,
                    percent(gpu.slowed_share),
                    percent(THROTTLED_SHARE),
                    gpu.throttle_reasons.join(", ")
                ),
            );
        }
        raise(
            "stolen",
            over(self.stolen_share, STOLEN_SHARE),
            format!(
                "The hypervisor gave {} of the cores' time to others (limit {}).",
                percent(self.stolen_share.unwrap_or(0.0)),
                percent(STOLEN_SHARE)
            ),
        );
        raise(
            "contended",
            self.shares_cores && over(self.others_share, BUSY_SHARE),
            format!(
                "Other processes used {} of the cores that this one may use (limit {}).",
                percent(self.others_share.unwrap_or(0.0)),
                percent(BUSY_SHARE)
            ),
        );
        let swapped = self.swap_in_bytes.unwrap_or(0).saturating_add(self.swap_out_bytes.unwrap_or(0));
        raise(
            "swapped",
            swapped as f64 / self.seconds > SWAPPED_PER_SECOND,
            format!("The machine moved {:.1} MiB to or from swap during the run.", swapped as f64 / 1048576.0),
        );
        let faults = self.major_faults.unwrap_or(0);
        raise(
            "paged",
            faults >= LEAST_FAULTS && faults as f64 / self.seconds > FAULTS_PER_SECOND,
            format!("The cell's processes waited {faults} times for pages from a disk."),
        );
        raise(
            "memory_pressure",
            over(self.memory_stall_share, MEMORY_STALL_SHARE),
            format!(
                "Tasks waited for memory in {} of the time (limit {}).",
                percent(self.memory_stall_share.unwrap_or(0.0)),
                percent(MEMORY_STALL_SHARE)
            ),
        );
        raise(
            "cpu_quota",
            over(self.quota_stall_share, QUOTA_SHARE),
            format!(
                "The control group's processor quota held tasks back for {} of the time (limit {}).",
                percent(self.quota_stall_share.unwrap_or(0.0)),
                percent(QUOTA_SHARE)
            ),
        );
        flags
    }
}
