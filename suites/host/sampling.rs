//! What the machine does while a cell runs: clocks, heat, power, swapping, waiting. Counters are read when the cell begins
//! and ends. Momentary values are sampled ten times a second by a thread of the process that waits for the cell. [`Watch`]
//! uses neither threads nor clocks, so that tests can do without both.

mod counters;
mod energy;
pub mod gpu;
pub mod sampled;

use crate::environment::root::{Root, cpu_list, line_of};
use crate::machine;
use counters::{Counters, PAGE, TICKS, throttle_events};
use energy::Energy;
pub use energy::TimedEnergy;
use gpu::GpuWatch;
use sampled::Sampled;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two samples. A sample reads some ten small files in well under a millisecond: below 1 % of one core.
const PERIOD: Duration = Duration::from_millis(100);
/// At most this many cores' clocks and sensors are read in a sample: on large machines one read may interrupt a core.
const MAX_READ: usize = 8;
/// /proc/cpuinfo describes every core and is long, so it is read in every tenth sample only.
const CPUINFO_PERIOD: u64 = 10;

/// Processor time of this thread.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Watches one cell.
#[derive(Clone, Debug)]
pub struct Watch {
    root: Root,
    cpus: Vec<u32>,
    /// The counters at the beginning, and when that was.
    begin: Counters,
    began: Duration,
    energy: Energy,
    /// Joules when the last untimed step and when the last timed step had ended.
    timed_energy: [Option<f64>; 2],
    /// Files with the temperatures of processors.
    sensors: Vec<String>,
    /// The file with the power of the whole machine.
    meter: Option<String>,
    has_cpufreq: bool,
    shares_cores: bool,
    clocks: Vec<f64>,
    temperatures: Vec<f64>,
    watts: Vec<f64>,
    samples: u64,
    /// Processor time of ranks of the cell that are no descendants of this process.
    peers_seconds: f64,
}

impl Watch {
    /// Begins at the time `at` of the caller's clock; `cpus` are the cores that the cell may use.
    pub fn begin(root: Root, cpus: Vec<u32>, at: Duration) -> Watch {
        let mut watch = Watch {
            begin: Counters::read(&root, &cpus),
            began: at,
            energy: Energy::begin(&root),
            timed_energy: [None; 2],
            sensors: sensors(&root),
            meter: meter(&root),
            has_cpufreq: cpus.first().is_some_and(|cpu| root.has(&clock_file(*cpu))),
            shares_cores: cores_of_machine(&root) > cpus.len(),
            clocks: Vec::new(),
            temperatures: Vec::new(),
            watts: Vec::new(),
            samples: 0,
            peers_seconds: 0.0,
            root,
            cpus,
        };
        watch.sample();
        watch
    }

    /// Samples the momentary values.
    pub fn sample(&mut self) {
        let root = &self.root;
        if self.has_cpufreq {
            let khz = self.cpus.iter().take(MAX_READ).filter_map(|cpu| root.count(&clock_file(*cpu))).max();
            self.clocks.extend(khz.map(|khz| khz as f64 / 1000.0));
        } else if self.samples.is_multiple_of(CPUINFO_PERIOD) {
            self.clocks.extend(clock_of_cpuinfo(root));
        }
        self.temperatures.extend(hottest(root, &self.sensors));
        let microwatts = self.meter.as_ref().and_then(|file| root.count(file));
        self.watts.extend(microwatts.map(|microwatts| microwatts as f64 / 1e6));
        self.energy.advance(root);
        self.samples += 1;
    }

    /// A step has ended.
    pub fn step(&mut self, timed: bool) {
        if !self.energy.zones.is_empty() {
            self.energy.advance(&self.root);
            self.timed_energy[usize::from(timed)] = Some(self.energy.joules);
        }
    }

    /// Ranks of the cell that others have started on this host used so much processor time: they are no other processes.
    pub fn add_peers(&mut self, seconds: f64) {
        self.peers_seconds += seconds;
    }

    /// The cell has ended, and its processes have been waited for.
    pub fn end(mut self, at: Duration) -> Sampled {
        self.sample();
        let end = Counters::read(&self.root, &self.cpus);
        let begin = &self.begin;
        let seconds = at.saturating_sub(self.began).as_secs_f64();
        let share = |part: f64| (seconds > 0.0).then(|| part / seconds);
        let cores = self.cpus.len() as f64;
        let grown = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
        let grown_f = |from: Option<f64>, to: Option<f64>| Some((to? - from?).max(0.0));
        let us_share = |from, to| grown(from, to).and_then(|us| share(us as f64 / 1e6));
        let core_share = |spent: f64| share(spent / cores);
        let others = grown_f(begin.busy_ticks, end.busy_ticks)
            .zip(grown_f(begin.own_seconds, end.own_seconds))
            .and_then(|(busy, own)| core_share((busy / TICKS - own - self.peers_seconds).max(0.0)));
        let bytes = |from, to| grown(from, to).map(|pages| pages.saturating_mul(PAGE));
        let has_energy = self.energy.why_not.is_none();
        Sampled {
            seconds,
            shares_cores: self.shares_cores,
            samples: self.samples,
            cost_ms: 0.0,
            clock_mhz: spread(&self.clocks),
            temperature_c: spread(&self.temperatures),
            power_w: spread(&self.watts),
            energy_joules: has_energy.then_some(self.energy.joules),
            timed_joules: match self.timed_energy {
                [Some(from), Some(to)] if has_energy => Some(to - from),
                _ => None,
            },
            why_no_energy: self.energy.why_not.clone(),
            throttle_events: grown(begin.throttle_events, end.throttle_events),
            throttle_ms: grown(begin.throttle_ms, end.throttle_ms),
            stolen_share: grown_f(begin.stolen_ticks, end.stolen_ticks).and_then(|ticks| core_share(ticks / TICKS)),
            others_share: others,
            peers_seconds: (self.peers_seconds > 0.0).then_some(self.peers_seconds),
            major_faults: grown(begin.major_faults, end.major_faults),
            swap_in_bytes: bytes(begin.swap_in_pages, end.swap_in_pages),
            swap_out_bytes: bytes(begin.swap_out_pages, end.swap_out_pages),
            memory_stall_share: us_share(begin.memory_stall_us, end.memory_stall_us),
            io_stall_share: us_share(begin.io_stall_us, end.io_stall_us),
            quota_periods: grown(begin.quota_periods, end.quota_periods),
            quota_throttled: grown(begin.quota_throttled, end.quota_throttled),
            quota_stall_share: us_share(begin.quota_throttled_us, end.quota_throttled_us),
            gpus: Vec::new(),
        }
    }
}

fn cores_of_machine(root: &Root) -> usize {
    let stat = root.text("proc/stat").unwrap_or_default();
    let is_core =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    stat.lines().filter(is_core).count()
}

fn clock_file(cpu: u32) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
}

/// The fastest core's clock, MHz: idle cores are slow on purpose.
fn clock_of_cpuinfo(root: &Root) -> Option<f64> {
    let text = root.text("proc/cpuinfo")?;
    let mhz = |line: &str| line_of(line, "cpu MHz")?.parse::<f64>().ok();
    text.lines().filter_map(mhz).filter(|mhz| mhz.is_finite() && *mhz > 0.0).reduce(f64::max)
}

/// The highest temperature that these sensors state, °C.
fn hottest(root: &Root, sensors: &[String]) -> Option<f64> {
    let millidegrees = sensors.iter().filter_map(|file| root.number(file)).max()?;
    Some(millidegrees as f64 / 1000.0)
}

/// Files with the temperatures of processors.
fn sensors(root: &Root) -> Vec<String> {
    const CHIPS: [&str; 5] = ["coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal"];
    let mut files = Vec::new();
    for chip in root.names("sys/class/hwmon") {
        let folder = format!("sys/class/hwmon/{chip}");
        if root.text(&format!("{folder}/name")).is_some_and(|name| CHIPS.contains(&name.as_str())) {
            let is_input = |name: &&String| name.starts_with("temp") && name.ends_with("_input");
            files.extend(root.names(&folder).iter().filter(is_input).map(|name| format!("{folder}/{name}")));
        }
    }
    if files.is_empty() {
        for zone in root.names("sys/class/thermal").into_iter().filter(|name| name.starts_with("thermal_zone")) {
            let kind = root.text(&format!("sys/class/thermal/{zone}/type")).unwrap_or_default();
            if kind.contains("x86_pkg_temp") || kind.to_lowercase().contains("cpu") {
                files.push(format!("sys/class/thermal/{zone}/temp"));
            }
        }
    }
    files.truncate(MAX_READ);
    files
}

/// The file with the power of the whole machine, where it has a meter.
fn meter(root: &Root) -> Option<String> {
    let is_meter = |chip: &String| root.text(&format!("sys/class/hwmon/{chip}/name")).as_deref() == Some("power_meter");
    let chip = root.names("sys/class/hwmon").into_iter().find(is_meter)?;
    Some(format!("sys/class/hwmon/{chip}/power1_average")).filter(|file| root.has(file))
}

/// Minimum, median and maximum.
fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some([*sorted.first()?, sorted[sorted.len() / 2], *sorted.last()?])
}

/// The cores that this process may use; all cores of the machine where the system does not say.
pub fn usable_cpus(root: &Root) -> Vec<u32> {
    let allowed = root.text("proc/self/status").and_then(|text| cpu_list(line_of(&text, "Cpus_allowed_list")?));
    let online = || root.text("sys/devices/system/cpu/online").as_deref().and_then(cpu_list);
    let allowed = allowed.or_else(online).unwrap_or_default();
    // The list may name cores that the machine does not have.
    let stat = root.text("proc/stat").unwrap_or_default();
    allowed.into_iter().filter(|cpu| line_of(&stat, &format!("cpu{cpu}")).is_some()).collect()
}

/// A [`Watch`] with a thread and the machine's clock.
pub struct Sampler {
    watched: Arc<Mutex<Watched>>,
    /// Ends the thread when it is dropped.
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
    start: Instant,
}

#[derive(Clone)]
struct Watched {
    machine: Watch,
    gpus: Vec<GpuWatch>,
    /// Processor time that the sampling has taken so far.
    cost: Duration,
}

impl Sampler {
    /// Begins to watch this machine and its first `gpus` GPUs.
    pub fn start(gpus: usize) -> Sampler {
        let (start, begin) = (Instant::now(), thread_time());
        let root = Root::system();
        let of_launch = machine::cores_of_launch().map(|cores| cores.iter().map(|core| *core as u32).collect());
        let cpus = of_launch.unwrap_or_else(|| usable_cpus(&root));
        let machine = Watch::begin(root, cpus, start.elapsed());
        let cost = thread_time().saturating_sub(begin);
        let watched = Arc::new(Mutex::new(Watched { machine, gpus: gpu::watches(gpus), cost }));
        let (stop, stopped) = channel();
        let shared = watched.clone();
        let work = move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let mut watched = lock(&shared);
                let begin = thread_time();
                watched.machine.sample();
                watched.gpus.iter_mut().for_each(GpuWatch::sample);
                watched.cost += thread_time().saturating_sub(begin);
            }
        };
        // Without a thread there are two samples, at both ends, and the record says so by their number.
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(work).ok();
        Sampler { watched, stop, thread, start }
    }

    /// A step has ended.
    pub fn step(&self, timed: bool) {
        let mut watched = lock(&self.watched);
        watched.machine.step(timed);
        watched.gpus.iter_mut().for_each(|gpu| gpu.step(timed));
    }

    /// As [`Watch::add_peers`].
    pub fn add_peers(&self, seconds: f64) {
        lock(&self.watched).machine.add_peers(seconds);
    }

    /// The cell has ended.
    pub fn finish(self) -> Sampled {
        let Sampler { watched, stop, thread, start } = self;
        let at = start.elapsed();
        drop(stop);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        let Watched { machine, gpus, cost } = lock(&watched).clone();
        let begin = thread_time();
        let mut sampled = machine.end(at);
        sampled.gpus = gpus.into_iter().map(GpuWatch::end).collect();
        sampled.cost_ms = (cost + thread_time().saturating_sub(begin)).as_secs_f64() * 1e3;
        sampled
    }
}

fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this machine shows of clocks, throttling, temperature and energy, for `zbench doctor`.
pub fn readable_sensors(root: &Root) -> [(&'static str, Option<String>); 4] {
    let cpus = usable_cpus(root);
    let energy = Energy::begin(root);
    let clock = cpus.first().and_then(|cpu| root.count(&clock_file(*cpu))).map(|khz| khz as f64 / 1000.0);
    let clock = clock.or_else(|| clock_of_cpuinfo(root));
    [
        ("clock", clock.map(|mhz| format!("{mhz:.0} MHz"))),
        ("throttling", throttle_events(root, &cpus).map(|count| format!("{count} times since it was started"))),
        ("temperature", hottest(root, &sensors(root)).map(|degrees| format!("{degrees:.0} °C"))),
        ("energy", energy.why_not.is_none().then(|| format!("{} counters", energy.zones.len()))),
    ]
}
