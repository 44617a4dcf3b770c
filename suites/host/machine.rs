//! What this machine is and how busy it is, read from /proc. Whatever cannot be read is absent, never guessed. What a
//! record says of it is in [`crate::environment`].

use crate::environment::{self, Root, cpu};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Instant;

pub use zbench_reports::redact::host_hash;

/// Seconds of work on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BusySeconds {
    /// That passed.
    pub wall: f64,
    /// Of all processes.
    pub all: f64,
    /// Of the rank.
    pub own: f64,
    /// The host's cores.
    pub cores: usize,
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// `VmHWM` and its kin of this process.
pub fn status_bytes(name: &str) -> Option<u64> {
    environment::root::kib_line(&read("/proc/self/status")?, name)
}

/// `MemTotal`, `MemAvailable`; the container's limit where there is one and it is lower.
pub fn memory_bytes(name: &str) -> Option<u64> {
    environment::memory_bytes(&Root::system(), name)
}

/// How often the system has ended a process for lack of memory.
pub fn oom_kills() -> u64 {
    let count = |path: &str| -> u64 {
        let text = read(path).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    };
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
/// `[always] madvise never`, the chosen word.
pub fn transparent_huge_pages() -> Option<String> {
    environment::transparent_huge_pages(&Root::system())
}

/// Mean number of processes that wanted to run, over the last minute.
pub fn load_average() -> Option<f64> {
    read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

/// The machine and the program, as records state them; as it was when this process first asked.
pub fn environment() -> Map<String, Value> {
    environment::of_this_process()
}

/// What other processes take while something is measured.
pub struct Busy {
    since: Instant,
    all: f64,
    own: f64,
    cores: usize,
}

/// Clock ticks per second of /proc; fixed at 100 in Linux's interface to user space.
const TICKS: f64 = 100.0;

impl Busy {
    /// Begins; absent where the system shows more cores than this process may use, as their work is not in our way.
    pub fn start() -> Option<Busy> {
        let shown = read("/proc/stat")?.lines().filter(|line| line.starts_with("cpu")).count().checked_sub(1)?;
        if shown != cores() {
            return None;
        }
        let (all, own) = busy_seconds()?;
        Some(Busy { since: Instant::now(), all, own, cores: shown })
    }

    /// Seconds of work since.
    pub fn seconds(self) -> Option<BusySeconds> {
        let wall = self.since.elapsed().as_secs_f64();
        let (all, own) = busy_seconds()?;
        Some(BusySeconds { wall, all: all - self.all, own: own - self.own, cores: self.cores })
    }
}

impl BusySeconds {
    /// Share of all cores that others used than those who used `own` seconds; absent for less than half a second, which
    /// ticks cannot resolve.
    pub fn others_share(&self, own: f64) -> Option<f64> {
        (self.wall >= 0.5).then(|| ((self.all - own) / (self.wall * self.cores as f64)).max(0.0))
    }
}

/// Seconds that all processes have run, and this one.
fn busy_seconds() -> Option<(f64, f64)> {
    let stat = read("/proc/stat")?;
    let fields: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user, nice, system, then idle and iowait, irq, softirq, steal.
    let all =
        fields.iter().enumerate().filter(|(i, _)| ![3, 4].contains(i) && *i < 8).map(|(_, ticks)| ticks).sum::<f64>();
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
    fn own_work_is_not_others() {
        let Some(busy) = Busy::start() else { return };
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
