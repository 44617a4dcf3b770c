//! What the machine does while a cell runs: clocks, heat, power, swapping, waiting. Counters are read when the cell begins
//! and ends; what only has a momentary value is sampled ten times a second by a thread of the process that waits for the
//! cell. [`Watch`] knows neither threads nor clocks, so that tests bring both.

mod counters;
mod energy;
pub mod gpu;
pub mod sampled;

use crate::environment::root::{Root, cpu_list, line_of};
use counters::{Counters, PAGE, TICKS, throttle_events};
use energy::Energy;
use gpu::{GpuSampled, GpuWatch};
use sampled::Sampled;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two samples. A sample reads some ten small files, well under a millisecond: below 1 % of one core.
pub const PERIOD: Duration = Duration::from_millis(100);
/// At most this many cores' clocks and sensors are read in a sample: on large machines one read may interrupt a core.
const MOST_READ: usize = 8;
/// /proc/cpuinfo says everything about every core, and is read in every tenth sample only.
const SLOW: u64 = 10;

/// Time that this thread has computed.
fn own_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Watches one cell.
#[derive(Clone, Debug)]
pub struct Watch {
    root: Root,
    cpus: Vec<u32>,
    begin: Counters,
    began: Duration,
    energy: Energy,
    /// Energy when the last untimed step, and the last timed step had ended.
    timed_energy: (Option<f64>, Option<f64>),
    sensors: Vec<String>,
    meter: Option<String>,
    has_cpufreq: bool,
    shares_cores: bool,
    clocks: Vec<f64>,
    temperatures: Vec<f64>,
    watts: Vec<f64>,
    samples: u64,
}

impl Watch {
    /// Begins at a moment of the caller's clock; `cpus` are those that the cell may use.
    pub fn begin(root: Root, cpus: Vec<u32>, at: Duration) -> Watch {
        let mut watch = Watch {
            begin: Counters::read(&root, &cpus),
            began: at,
            energy: Energy::begin(&root),
            timed_energy: (None, None),
            sensors: sensors(&root),
            meter: meter(&root),
            has_cpufreq: cpus.first().is_some_and(|cpu| root.has(&clock_file(*cpu))),
            shares_cores: cores_of_machine(&root) > cpus.len(),
            clocks: Vec::new(),
            temperatures: Vec::new(),
            watts: Vec::new(),
            samples: 0,
            root,
            cpus,
        };
        watch.sample();
        watch
    }

    /// One look at what only has a momentary value.
    pub fn sample(&mut self) {
        let root = &self.root;
        let of_cores = || self.cpus.iter().take(MOST_READ);
        let clock = if self.has_cpufreq {
            of_cores().filter_map(|cpu| root.count(&clock_file(*cpu))).max().map(|khz| khz as f64 / 1000.0)
        } else if self.samples.is_multiple_of(SLOW) {
            clock_of_cpuinfo(&root.text("proc/cpuinfo").unwrap_or_default())
        } else {
            None
        };
        self.clocks.extend(clock);
        let hottest = self.sensors.iter().filter_map(|file| root.number(file)).max();
        self.temperatures.extend(hottest.map(|millidegrees| millidegrees as f64 / 1000.0));
        let microwatts = self.meter.as_ref().and_then(|file| root.count(file));
        self.watts.extend(microwatts.map(|microwatts| microwatts as f64 / 1e6));
        self.energy.advance(root);
        self.samples += 1;
    }

    /// A step has ended.
    pub fn step(&mut self, timed: bool) {
        if self.energy.zones.is_empty() {
            return;
        }
        self.energy.advance(&self.root);
        if timed {
            self.timed_energy.1 = Some(self.energy.joules);
        } else {
            self.timed_energy.0 = Some(self.energy.joules);
        }
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
            .and_then(|(busy, own)| core_share((busy / TICKS - own).max(0.0)));
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
                (Some(from), Some(to)) if has_energy => Some(to - from),
                _ => None,
            },
            why_no_energy: self.energy.why_not.clone(),
            throttle_events: grown(begin.throttle_events, end.throttle_events),
            throttle_ms: grown(begin.throttle_ms, end.throttle_ms),
            stolen_share: grown_f(begin.stolen_ticks, end.stolen_ticks).and_then(|ticks| core_share(ticks / TICKS)),
            others_share: others,
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

/// The fastest core's clock: idle ones are slow on purpose.
fn clock_of_cpuinfo(text: &str) -> Option<f64> {
    let mhz =
        |line: &str| line.strip_prefix("cpu MHz")?.trim_start_matches([' ', '\t', ':']).trim().parse::<f64>().ok();
    text.lines().filter_map(mhz).filter(|mhz| mhz.is_finite() && *mhz > 0.0).reduce(f64::max)
}

/// Files with the temperature of processors.
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
    files.truncate(MOST_READ);
    files
}

/// The file with the power of the whole machine, where it has a meter.
fn meter(root: &Root) -> Option<String> {
    let is_meter = |chip: &String| root.text(&format!("sys/class/hwmon/{chip}/name")).as_deref() == Some("power_meter");
    let chip = root.names("sys/class/hwmon").into_iter().find(is_meter)?;
    Some(format!("sys/class/hwmon/{chip}/power1_average")).filter(|file| root.has(file))
}

/// Least, median and most.
fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some([*sorted.first()?, sorted[sorted.len() / 2], *sorted.last()?])
}

/// The cores that this process may use; the machine's where the system does not say.
pub fn usable_cpus(root: &Root) -> Vec<u32> {
    let allowed = root.text("proc/self/status").and_then(|text| cpu_list(line_of(&text, "Cpus_allowed_list")?));
    let online = || root.text("sys/devices/system/cpu/online").as_deref().and_then(cpu_list);
    let allowed = allowed.or_else(online).unwrap_or_default();
    // What may be used and is not there counts for nothing.
    let stat = root.text("proc/stat").unwrap_or_default();
    allowed.into_iter().filter(|cpu| line_of(&stat, &format!("cpu{cpu}")).is_some()).collect()
}

/// A [`Watch`] with a thread and the machine's clock.
pub struct Sampler {
    watch: Arc<Mutex<(Watch, Duration)>>,
    gpus: Arc<Mutex<Vec<GpuWatch>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    start: Instant,
}

impl Sampler {
    /// Begins to watch this machine, and so many GPUs of it.
    pub fn start(gpus: usize) -> Sampler {
        let (start, cost) = (Instant::now(), own_time());
        let root = Root::system();
        let cpus = usable_cpus(&root);
        let watch = Watch::begin(root, cpus, start.elapsed());
        let watch = Arc::new(Mutex::new((watch, own_time().saturating_sub(cost))));
        let gpus = Arc::new(Mutex::new(gpu::watches(gpus)));
        let (stop, stopped) = channel();
        let (shared, of_gpus) = (watch.clone(), gpus.clone());
        let work = move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let mut guard = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let begin = own_time();
                guard.0.sample();
                of_gpus.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(GpuWatch::sample);
                guard.1 += own_time().saturating_sub(begin);
            }
        };
        // Without a thread there are two samples, at both ends, and the record says so by their number.
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(work).ok();
        Sampler { watch, gpus, stop: Some(stop), thread, start }
    }

    /// A step has ended.
    pub fn step(&self, timed: bool) {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).0.step(timed);
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|gpu| gpu.step(timed));
    }

    /// The cell has ended.
    pub fn finish(mut self) -> Sampled {
        let at = self.start.elapsed();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let (watch, cost) = self.watch.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let begin = own_time();
        let mut sampled = watch.end(at);
        let gpus = std::mem::take(&mut *self.gpus.lock().unwrap_or_else(PoisonError::into_inner));
        sampled.gpus = gpus.into_iter().map(GpuWatch::end).collect::<Vec<GpuSampled>>();
        sampled.cost_ms = (cost + own_time().saturating_sub(begin)).as_secs_f64() * 1e3;
        sampled
    }
}

/// Whether this machine shows how often it slowed its cores for heat, its temperature, its energy: for `zbench doctor`.
pub fn what_can_be_read(root: &Root) -> [(&'static str, Option<String>); 4] {
    let cpus = usable_cpus(root);
    let energy = Energy::begin(root);
    let clock = cpus.first().and_then(|cpu| root.count(&clock_file(*cpu))).map(|khz| khz as f64 / 1000.0);
    let clock = clock.or_else(|| clock_of_cpuinfo(&root.text("proc/cpuinfo").unwrap_or_default()));
    let hottest = sensors(root).iter().filter_map(|file| root.number(file)).max();
    [
        ("clock", clock.map(|mhz| format!("{mhz:.0} MHz"))),
        ("throttling", throttle_events(root, &cpus).map(|count| format!("{count} times since it was started"))),
        ("temperature", hottest.map(|millidegrees| format!("{:.0} °C", millidegrees as f64 / 1000.0))),
        ("energy", energy.why_not.is_none().then(|| format!("{} counters", energy.zones.len()))),
    ]
}
