//! How much of the machine others use while an experiment runs: the work of all cores, less that of the experiment's own
//! processes. Foreign work on the same cores biases a comparison towards no difference, so rounds under it are discarded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use zbench_host::environment::Root;
use zbench_host::machine::{TICKS, cores, cpu_ticks, shows_only};
use zbench_host::processes::{Processes, Used, programs};
use zbench_reports::record::others::{MOST_OTHERS, OtherProgram, sentence};

/// Observes how much of the machine others use.
pub trait Watch {
    /// Seconds since the last look.
    fn seconds(&self) -> f64;
    /// What others used since the last look; nothing where that is not known.
    fn look(&mut self) -> Option<Seen>;
}

/// What others used between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// As shares of all cores.
    pub shares: Shares,
    /// Seconds between the looks.
    pub seconds: f64,
    /// Other processes that used the cores.
    pub used: Vec<Used>,
}

/// What others used since the last sample, as shares of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Other processes of this system.
    pub others: f64,
    /// Other guests of this machine, where the system states it.
    pub stolen: f64,
}

impl Shares {
    /// Whether others used more than turns bear.
    pub fn is_busy(&self) -> bool {
        self.others > MOST_OTHERS || self.stolen > MOST_OTHERS
    }
}

/// What others used over several looks.
#[derive(Clone, Debug, Default)]
pub struct Others {
    seconds: f64,
    others: f64,
    stolen: f64,
    used: BTreeMap<u32, Used>,
}

impl Others {
    /// Adds a look.
    pub fn add(&mut self, seen: &Seen) {
        self.seconds += seen.seconds;
        self.others += seen.seconds * seen.shares.others;
        self.stolen += seen.seconds * seen.shares.stolen;
        for used in &seen.used {
            let before = self.used.get(&used.process).map_or(0.0, |before| before.seconds);
            self.used.insert(used.process, Used { seconds: before + used.seconds, ..used.clone() });
        }
    }

    /// The programs, the busiest first.
    pub fn programs(&self) -> Vec<OtherProgram> {
        programs(self.used.values(), self.seconds)
    }

    /// What share of the cores they used, with their names; empty where nothing was seen.
    pub fn words(&self) -> String {
        match self.seconds > 0.0 {
            true => sentence(self.others / self.seconds, self.stolen / self.seconds, &self.programs()),
            false => String::new(),
        }
    }
}

/// Compares the work of an experiment's processes with that of all processes.
pub struct Load {
    /// Whether the system shows the cores of this process alone. Else the work of others need not be in the way, and no share is told.
    is_known: bool,
    since: Option<Sample>,
}

struct Sample {
    at: Instant,
    idle: f64,
    stolen: f64,
    own: f64,
    own_processes: BTreeSet<u32>,
    processes: Processes,
}

impl Load {
    /// Takes the first sample.
    pub fn begin() -> Load {
        let is_known = shows_only(cores());
        Load { is_known, since: is_known.then(Sample::now).flatten() }
    }
}

impl Watch for Load {
    fn seconds(&self) -> f64 {
        self.since.as_ref().map_or(f64::INFINITY, |since| since.at.elapsed().as_secs_f64())
    }

    fn look(&mut self) -> Option<Seen> {
        let now = self.is_known.then(Sample::now).flatten()?;
        let seen = self.since.as_ref().map(|before| {
            let seconds = (now.at - before.at).as_secs_f64();
            let all = seconds * cores() as f64;
            let stolen = now.stolen - before.stolen;
            let others = all - (now.idle - before.idle) - stolen - (now.own - before.own);
            let shares = Shares { others: (others / all).max(0.0), stolen: (stolen / all).max(0.0) };
            let used = match shares.is_busy() {
                true => now.processes.others(&before.processes, &now.own_processes),
                false => Vec::new(),
            };
            Seen { shares, seconds, used }
        });
        self.since = Some(now);
        seen
    }
}

impl Sample {
    /// All processes that descend from this one are its own, also those that began since the last sample.
    fn now() -> Option<Sample> {
        let processes = Processes::read(&Root::system());
        let own_processes = processes.descendants(std::process::id());
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let at = Instant::now();
        let fields = cpu_ticks(&stat, "cpu")?;
        let idle = fields.get(3)? + fields.get(4)?;
        let stolen = fields.get(7).copied().unwrap_or(0.0);
        let own = processes.seconds(&own_processes);
        Some(Sample { at, idle: idle / TICKS, stolen: stolen / TICKS, own, own_processes, processes })
    }
}

/// A process and all its descendants.
pub fn descendants(root: u32) -> BTreeSet<u32> {
    Processes::read(&Root::system()).descendants(root)
}
