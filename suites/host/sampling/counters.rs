//! Counters of the machine that only grow: a cell's share is the difference between two readings.

use crate::environment::container;
use crate::environment::root::{Root, line_of};
pub(super) use crate::machine::TICKS;
use crate::machine::cpu_ticks;

/// Bytes of a page of /proc/vmstat, on the machines that this runs on.
pub(super) const PAGE: u64 = 4096;

/// Counters that only grow. Absent where the system does not have them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub throttle_events: Option<u64>,
    pub throttle_ms: Option<u64>,
    /// Ticks in which the cores that this process may use worked for any process, and those that the hypervisor took.
    pub busy_ticks: Option<f64>,
    pub stolen_ticks: Option<f64>,
    /// Seconds of this process and of its children that have ended.
    pub own_seconds: Option<f64>,
    pub major_faults: Option<u64>,
    pub swap_in_pages: Option<u64>,
    pub swap_out_pages: Option<u64>,
    pub memory_stall_us: Option<u64>,
    pub io_stall_us: Option<u64>,
    pub quota_periods: Option<u64>,
    pub quota_throttled: Option<u64>,
    pub quota_throttled_us: Option<u64>,
}

impl Counters {
    pub fn read(root: &Root, cpus: &[u32]) -> Counters {
        let vmstat = root.text("proc/vmstat").unwrap_or_default();
        let pages = |name: &str| line_of(&vmstat, name)?.parse().ok();
        let stat = root.text("proc/stat").unwrap_or_default();
        let (busy_ticks, stolen_ticks) = ticks(&stat, cpus).unzip();
        let (own_seconds, major_faults) = own(root).unzip();
        let quota = |line: &str| container::group_number(root, "cpu", "cpu.stat", line);
        // Version 1 of control groups counts nanoseconds, version 2 microseconds.
        let throttled_us = quota("throttled_usec").or_else(|| quota("throttled_time").map(|ns| ns / 1000));
        Counters {
            throttle_events: throttle_events(root, cpus),
            throttle_ms: throttle_ms(root, cpus),
            busy_ticks,
            stolen_ticks,
            own_seconds,
            major_faults,
            swap_in_pages: pages("pswpin"),
            swap_out_pages: pages("pswpout"),
            memory_stall_us: stall(root, "memory"),
            io_stall_us: stall(root, "io"),
            quota_periods: quota("nr_periods"),
            quota_throttled: quota("nr_throttled"),
            quota_throttled_us: throttled_us,
        }
    }
}

/// How often cores and packages were slowed for heat: the sum over cores, and the maximum over packages, as a package's counter
/// stands in the folder of each of its cores.
pub(super) fn throttle_events(root: &Root, cpus: &[u32]) -> Option<u64> {
    let cores = throttles(root, cpus, "core_throttle_count").reduce(u64::saturating_add);
    let packages = throttles(root, cpus, "package_throttle_count").max();
    (cores.is_some() || packages.is_some()).then(|| cores.unwrap_or(0).saturating_add(packages.unwrap_or(0)))
}

/// How many milliseconds a core, or its package, was slowed on average.
fn throttle_ms(root: &Root, cpus: &[u32]) -> Option<u64> {
    let sum = |what| throttles(root, cpus, what).reduce(u64::saturating_add);
    let most = sum("core_throttle_total_time_ms").max(sum("package_throttle_total_time_ms"))?;
    most.checked_div(cpus.len() as u64)
}

fn throttles<'a>(root: &'a Root, cpus: &'a [u32], what: &'a str) -> impl Iterator<Item = u64> + 'a {
    cpus.iter().filter_map(move |cpu| root.count(&format!("sys/devices/system/cpu/cpu{cpu}/thermal_throttle/{what}")))
}

/// Busy and stolen ticks of these cores. A stolen tick counts as neither busy nor idle.
fn ticks(stat: &str, cpus: &[u32]) -> Option<(f64, f64)> {
    let mut sums = None;
    for cpu in cpus {
        let fields = cpu_ticks(stat, &format!("cpu{cpu}"))?;
        let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|i| fields.get(*i)).sum();
        let stolen = *fields.get(7)?;
        let (all_busy, all_stolen) = sums.unwrap_or((0.0, 0.0));
        sums = Some((all_busy + busy, all_stolen + stolen));
    }
    sums
}

/// Processor seconds and major faults of this process and of all its descendants that have ended.
fn own(root: &Root) -> Option<(f64, u64)> {
    let stat = root.text("proc/self/stat")?;
    // The name of the program may hold spaces; it ends with the last bracket. Then the state, and numbers.
    let fields: Vec<i64> = stat.rsplit_once(')')?.1.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    let sum = |places: std::ops::Range<usize>| Some(fields.get(places)?.iter().sum::<i64>().max(0) as u64);
    Some((sum(10..14)? as f64 / TICKS, sum(8..10)?))
}

/// Microseconds in which some task waited for a resource: in this process's control group where that states it, else on the
/// whole machine.
fn stall(root: &Root, resource: &str) -> Option<u64> {
    let of_group = container::folders(root, resource)
        .iter()
        .find_map(|folder| root.text(&format!("{folder}/{resource}.pressure")));
    let text = of_group.or_else(|| root.text(&format!("proc/pressure/{resource}")))?;
    let some = line_of(&text, "some")?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}
