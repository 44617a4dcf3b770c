//! What this machine is and how busy it is, read from /proc. Whatever cannot be read is absent, never guessed. What a
//! record says of it is in [`crate::environment`].

use crate::environment::root::{kib_line, line_of};
use crate::environment::{self, Root, container, cpu};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::time::Instant;
use zbench_kernels::DType;
use zbench_kernels::cpu::peak;
use zbench_kernels::threads::affinity;

pub use crate::environment::of_this_process as environment;
pub use zbench_reports::redact::host_hash;

/// Processor time on a host, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BusySeconds {
    /// Wall time meanwhile.
    pub wall: f64,
    /// Processor time of all processes.
    pub all: f64,
    /// Processor time of the rank.
    pub own: f64,
    /// Cores of the host.
    pub cores: usize,
}

/// Cores of the launch on this host, where this process decides for a launch.
static OF_LAUNCH: OnceLock<Vec<usize>> = OnceLock::new();

/// States the cores that the ranks of a launch may use on this host. From then on they count as those of this process. Only the first
/// call counts.
pub fn set_cores_of_launch(cores: Vec<usize>) {
    let _ = OF_LAUNCH.set(cores);
}

/// Numbers of the cores of the launch on this host; nothing where this process decides for none.
pub(crate) fn cores_of_launch() -> Option<&'static Vec<usize>> {
    OF_LAUNCH.get().filter(|cores| !cores.is_empty())
}

/// Numbers of the cores that this process, or its launch on this host, may use.
pub fn core_numbers() -> Vec<usize> {
    let own = || Some(affinity::available()).filter(|cores| !cores.is_empty());
    cores_of_launch().cloned().or_else(own).unwrap_or_else(|| (0..cpu::cores()).collect())
}

/// Cores that this process, or its launch on this host, may use at once: a processor quota counts in whole cores.
pub fn cores() -> usize {
    let at_once = |cores: usize| quota_below(cores).map_or(cores, |quota| (quota as usize).max(1));
    cores_of_launch().map_or_else(cpu::cores, |cores| at_once(cores.len()))
}

/// The processor quota of this process's control group, in cores.
pub fn quota() -> Option<f64> {
    container::cpu_quota(&Root::system())
}

/// The same, where it is less than so many cores.
pub fn quota_below(cores: usize) -> Option<f64> {
    quota().filter(|quota| *quota < cores as f64)
}

/// Floating-point operations per second of so many threads on `cores` within the processor quota, as [`peak::measure`] measures them.
pub fn peak_flops(cores: &[usize], threads: usize, dtype: DType, seconds: f64) -> Option<f64> {
    // A launcher may have put this process on some of them.
    let beyond = if cores.len() > affinity::available().len() { cores } else { &[] };
    Some(within(quota_below(threads), threads, peak::measure_on(beyond, threads, dtype, seconds)?))
}

/// The rate of threads under a quota. Each was measured while the quota left it alone, at the full rate of a core.
fn within(quota: Option<f64>, threads: usize, rate: f64) -> f64 {
    quota.map_or(rate, |quota| rate * quota / threads as f64)
}

/// Processor time of this process so far, in seconds.
pub fn own_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A value of /proc/self/status, as `VmHWM`.
pub fn status_bytes(name: &str) -> Option<u64> {
    kib_line(&read("/proc/self/status")?, name)
}

/// Bytes that are free for users on a folder's disk.
pub fn free_bytes(folder: &std::path::Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// `MemTotal` or `MemAvailable`; the container's limit where that is lower.
pub fn memory_bytes(name: &str) -> Option<u64> {
    environment::memory_bytes(&Root::system(), name)
}

/// Whether a user id that the system states is this process's user. In a user namespace all ids that it does not map are
/// stated as one.
pub fn is_this_user(uid: u32) -> bool {
    let overflow = read("/proc/sys/kernel/overflowuid").and_then(|text| text.trim().parse().ok()).unwrap_or(65_534);
    let map = read("/proc/self/uid_map").unwrap_or_default();
    is_same_user(uid, rustix::process::geteuid().as_raw(), overflow, &map)
}

fn is_same_user(uid: u32, own: u32, overflow: u32, map: &str) -> bool {
    let maps_all = map.lines().any(|line| line.split_whitespace().nth(2) == Some("4294967295"));
    uid == own && (uid != overflow || maps_all)
}

/// How often the system has ended a process for lack of memory.
pub fn oom_kills() -> u64 {
    let count =
        |path: &str| -> u64 { read(path).and_then(|text| line_of(&text, "oom_kill")?.parse().ok()).unwrap_or(0) };
    count("/proc/vmstat") + count("/sys/fs/cgroup/memory.events")
}

/// The largest cache of the first core, in bytes.
pub fn last_level_cache_bytes() -> Option<u64> {
    let caches = cpu::caches(&Root::system());
    let sizes = caches.iter().filter(|(name, _)| !name.contains('_'));
    sizes.filter_map(|(_, bytes)| bytes.as_u64()).max()
}

/// This host's name.
pub fn host_name() -> String {
    environment::host_name(&Root::system())
}

/// The processor's name.
pub fn cpu_model() -> Option<String> {
    cpu::model(&Root::system())
}

/// The chosen mode: `always`, `madvise` or `never`.
pub fn transparent_huge_pages() -> Option<String> {
    environment::transparent_huge_pages(&Root::system())
}

/// Mean number of processes that wanted to run, over the last minute.
pub fn load_average() -> Option<f64> {
    read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

/// Measures the processor time of all processes while something runs.
pub struct Busy {
    since: Instant,
    all: f64,
    own: f64,
    cores: usize,
}

/// Clock ticks per second of /proc; fixed at 100 in Linux's interface to user space.
pub const TICKS: f64 = 100.0;

/// Ticks of a core in the text of /proc/stat, `cpu` for all cores together: user, nice, system, idle, iowait, irq, softirq, steal.
pub fn cpu_ticks(stat: &str, core: &str) -> Option<Vec<f64>> {
    Some(line_of(stat, core)?.split_whitespace().map_while(|ticks| ticks.parse().ok()).collect())
}

/// Whether the system shows so many cores and no more, and no quota limits them. Else the work of other processes may be on cores that
/// are not used here.
pub fn shows_only(cores: usize) -> bool {
    let stat = read("/proc/stat").unwrap_or_default();
    stat.lines().filter(|line| line.starts_with("cpu")).count() == cores + 1 && quota_below(cores).is_none()
}

impl Busy {
    /// Begins; absent where the system shows other cores than these, which the cell may use.
    pub fn start(cores: usize) -> Option<Busy> {
        let (all, own) = busy_seconds().filter(|_| shows_only(cores))?;
        Some(Busy { since: Instant::now(), all, own, cores })
    }

    /// Processor time since the start.
    pub fn seconds(self) -> Option<BusySeconds> {
        let wall = self.since.elapsed().as_secs_f64();
        let (all, own) = busy_seconds()?;
        Some(BusySeconds { wall, all: all - self.all, own: own - self.own, cores: self.cores })
    }
}

impl BusySeconds {
    /// Share of all cores that processes used beside the `own` seconds of this cell; absent for less than half a second, which
    /// ticks cannot resolve.
    pub fn others_share(&self, own: f64) -> Option<f64> {
        (self.wall >= 0.5).then(|| ((self.all - own) / (self.wall * self.cores as f64)).max(0.0))
    }
}

/// Processor seconds of all processes, and of this one.
fn busy_seconds() -> Option<(f64, f64)> {
    let fields = cpu_ticks(&read("/proc/stat")?, "cpu")?;
    let all: f64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| fields.get(*i)).sum();
    let own = read("/proc/self/stat")?;
    // The name of the program may hold spaces; it ends with the last bracket.
    let own: Vec<f64> = own.rsplit_once(')')?.1.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    // state is no number and drops out, so utime and stime are the 11th and 12th of what is left.
    Some((all / TICKS, (own.get(10)? + own.get(11)?) / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_limits_the_peak_of_more_threads() {
        assert_eq!(within(None, 2, 100.0), 100.0);
        assert_eq!(within(Some(1.5), 2, 100.0), 75.0, "two threads that may use one core and a half");
    }

    #[test]
    fn users_that_are_not_mapped_are_not_the_same() {
        let (whole, none, one) = ("         0          0 4294967295", "", "  65534  1000  1");
        assert!(is_same_user(1000, 1000, 65_534, none) && !is_same_user(0, 1000, 65_534, whole));
        assert!(is_same_user(65_534, 65_534, 65_534, whole), "nobody, where every user is mapped");
        assert!(!is_same_user(65_534, 65_534, 65_534, none) && !is_same_user(65_534, 65_534, 65_534, one));
        assert!(is_this_user(rustix::process::geteuid().as_raw()) && !is_this_user(u32::MAX));
    }

    #[test]
    fn own_work_is_not_others() {
        let Some(busy) = Busy::start(cores()) else { return };
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 0.6 {
            std::hint::spin_loop();
        }
        let (all, own) = busy_seconds().unwrap();
        // Ticks are a hundredth of a second; this thread alone has spun for 0.6 s, if the machine let it.
        assert!(all - busy.all >= own - busy.own - 0.05);
        assert!(own > busy.own);
    }
}
