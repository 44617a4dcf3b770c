//! What the processes of cells and ranks are told and what they say: one JSON object on their standard input, JSON lines on
//! their standard output.

use crate::gpu_info::GpuInfo;
use crate::loading::Resident;
use crate::turns::token::TurnsPlace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use zbench_collectives::link::LinkUse;
use zbench_config::Hosts;
use zbench_engine::action::span::Span;
use zbench_engine::compute::hardware::Seat;
use zbench_engine::config::{Cell, MemoryTier};
use zbench_engine::data::Found;
use zbench_engine::memory::tiers::ByTier;
use zbench_engine::observe::outcome;
use zbench_engine::observe::outcome::{Cause, Evaluated, Happening, Saved};
use zbench_engine::observe::trace::{ClockOrigin, StepTrace, Tracing};
use zbench_engine::run::launch_ranks::Standing;
use zbench_host::machine::BusySeconds;
use zbench_kernels::{Category, Ledger};
use zbench_reports::record::{Extra, Source, Status, Step};

/// What a cell's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The cell.
    pub cell: Cell,
    /// Cores this process may use.
    pub cores: usize,
    /// Seconds of each measurement of the peak, before and after training.
    pub peak_seconds: f64,
    /// Steps to be traced.
    #[serde(default)]
    pub trace_steps: u64,
    /// Where its ranks wait for their turns, if it takes turns with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsPlace>,
}

/// What a process traces that was told so.
pub fn tracing(steps: u64) -> Option<Tracing> {
    (steps > 0).then(|| Tracing { zero: ClockOrigin::now(), steps })
}

/// One line of what it says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// From now on an order to stop is heard.
    Ready,
    /// A rank's process is connected to the others.
    Met,
    /// A step has ended.
    Step(Step),
    /// Something between steps.
    LifecycleEvent(LifecycleEvent),
    /// What a rank did in a step; each of them says it.
    Traced(Box<StepTrace>),
    /// Training has ended; nothing follows.
    End(Box<End>),
    /// A rank's process has ended its part; nothing follows.
    Rank(Box<RankResult>),
}

/// What happened between steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifecycleEvent {
    /// The loss on data that is not trained on.
    Evaluated(Evaluated),
    /// It goes on from a checkpoint.
    Resumed(Resumed),
    /// A checkpoint is complete.
    Saved(Saved),
    /// The arena of a rank has held so many bytes at its most.
    Peak(u64),
}

/// What a run went on from, and what was done before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    /// Steps done before it.
    pub step: u64,
    /// The checkpoint.
    pub dir: PathBuf,
    /// Bytes that rank 0 read.
    pub bytes: u64,
    /// Wall time of rank 0.
    pub ms: f64,
    /// The steps done before it, as far as the checkpoint has them; none counts for timings.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// And the evaluations.
    #[serde(default)]
    pub evaluations: Vec<Evaluated>,
    /// Settings that were others until then.
    #[serde(default)]
    pub changed: Vec<String>,
}

/// What is told of a cell while it runs.
#[derive(Clone, Copy, Debug)]
pub enum ProgressEvent<'a> {
    /// A step has ended.
    Step(&'a Step),
    /// Something between steps.
    LifecycleEvent(&'a LifecycleEvent),
    /// What a rank did in a step.
    Traced(&'a StepTrace),
    /// The user wants to stop, and the cell was told to, after its step and with a checkpoint.
    Stopping,
}

/// An engine's word as a line of ours.
pub fn event(happening: &Happening) -> Event {
    match happening.clone() {
        Happening::Step(of) => Event::Step(step(&of)),
        Happening::Evaluated(evaluated) => Event::LifecycleEvent(LifecycleEvent::Evaluated(evaluated)),
        Happening::Resumed(outcome::Resumed { step, dir, bytes, ms, history, changed }) => {
            let steps = history.steps.iter().map(|of| Step { timed: false, ..self::step(of) }).collect();
            let evaluations = history.evaluations;
            Event::LifecycleEvent(LifecycleEvent::Resumed(Resumed {
                step,
                dir,
                bytes,
                ms,
                steps,
                evaluations,
                changed,
            }))
        }
        Happening::Saved(saved) => Event::LifecycleEvent(LifecycleEvent::Saved(saved)),
        Happening::Peak(bytes) => Event::LifecycleEvent(LifecycleEvent::Peak(bytes)),
        Happening::Traced(traced) => Event::Traced(traced),
    }
}

/// What a rank's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankJob {
    /// The cell.
    pub cell: Cell,
    /// Which rank of it.
    pub rank: usize,
    /// Where it stands among the ranks of its host.
    pub seat: Seat,
    /// Where the ranks of this trial meet: host, port, and what they know. Backends with a meeting of their own have none.
    pub meeting: Option<(String, u16, String)>,
    /// Threads with which it measures the peak of its host; 0 where another rank does.
    pub peak_threads: usize,
    /// Numbers of the cores that the ranks of its host may use; empty where they are those that it may use itself.
    pub cores: Vec<usize>,
    /// Seconds of each measurement of the peak, before and after training.
    pub peak_seconds: f64,
    /// Steps to be traced.
    #[serde(default)]
    pub trace_steps: u64,
    /// Where its ranks wait for their turns, if it takes turns with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsPlace>,
}

impl Job {
    /// The jobs of its ranks, in their order. The first rank of each host measures its peak.
    pub fn rank_jobs(&self, hosts: &Hosts, meeting: Option<(String, u16, String)>) -> Vec<RankJob> {
        let rank_job = |rank: usize| {
            let (here, sharers) = (hosts.neighbours(rank), hosts.sharers(rank));
            let before = |ranks: &[usize]| ranks.iter().filter(|other| **other < rank).count();
            let threads = here.len().saturating_mul(self.cell.hardware.threads_per_rank);
            let cores = hosts.cores(rank);
            let most = if cores.is_empty() { threads } else { threads.min(cores.len()) };
            RankJob {
                cell: self.cell.clone(),
                rank,
                seat: Seat {
                    place: before(&sharers),
                    sharers: sharers.len(),
                    ..Seat::of(before(&here), here.len(), true)
                },
                meeting: meeting.clone(),
                peak_threads: if before(&here) == 0 { most } else { 0 },
                cores,
                peak_seconds: self.peak_seconds,
                trace_steps: self.trace_steps,
                turns: self.turns.clone(),
            }
        };
        (0..self.cell.parallel.ranks).map(rank_job).collect()
    }
}

/// How a rank ended, and what it measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankResult {
    /// The host's name.
    pub host: String,
    /// Why it ended early, if it did.
    pub failure: Option<RankFailure>,
    /// Its numbers, as far as they are there.
    pub end: RankEnd,
    /// What computed.
    pub kernels: String,
    /// Operations per second of the host's cores, before and after; empty where another rank measured.
    pub peak_flops: Vec<Option<f64>>,
    /// Threads that measured it.
    pub peak_threads: usize,
    /// The processor quota that limits it, in cores.
    pub peak_quota: Option<f64>,
    /// Processor time of its process until it ended its part, in seconds.
    pub own_seconds: f64,
    /// Resident bytes at their most; memory that ranks share counts for its owner alone.
    pub rss_bytes: Option<u64>,
    /// VmSwap at the end.
    pub swap_bytes: Option<u64>,
    /// The host's work while it trained, where it can be told.
    pub busy: Option<BusySeconds>,
}

/// Why a rank ended early.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankFailure {
    /// How near this is to the cause.
    pub standing: Standing,
    /// The outcome it makes.
    pub status: Status,
    /// Who found it.
    pub source: Option<Source>,
    /// A sentence that names the rank.
    pub reason: String,
    /// Ranks that it waited for in vain.
    pub missing: Vec<usize>,
}

impl RankFailure {
    /// It failed, for a reason other than memory or numbers.
    pub fn new(standing: Standing, source: Option<Source>, reason: String) -> RankFailure {
        RankFailure { standing, status: Status::Failed, source, reason, missing: Vec::new() }
    }
}

impl From<String> for RankFailure {
    fn from(reason: String) -> RankFailure {
        RankFailure::new(Standing::Found, None, reason)
    }
}

/// The outcome that a cause makes, and who found it.
pub fn status_of(cause: &Cause) -> (Status, Option<Source>) {
    match cause {
        Cause::OutOfMemory { .. } => (Status::OutOfMemory, Some(Source::Arena)),
        Cause::Diverged { .. } | Cause::Worse(_) => (Status::Diverged, None),
        Cause::Failed { .. } => (Status::Failed, None),
    }
}

/// How training ended, and everything that was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// Absent when it ran to its end.
    pub failure: Option<Ended>,
    /// Every step, with the time of its slowest rank; the events before had that of one rank.
    pub steps: Vec<Step>,
    /// What computed.
    pub kernels: String,
    /// Every rank that could report.
    pub ranks: Vec<RankEnd>,
    /// Floating-point operations per second of the cores at the compute type, before and after.
    pub peak_flops: Vec<Option<f64>>,
    /// Threads that measured it.
    pub peak_threads: usize,
    /// The processor quota that limits it, in cores.
    #[serde(default)]
    pub peak_quota: Option<f64>,
    /// VmHWM.
    pub peak_rss_bytes: Option<u64>,
    /// VmSwap at the end.
    pub swap_bytes: Option<u64>,
    /// Share of the cores that other processes used while it trained.
    pub others_share: Option<f64>,
    /// What is known of the GPU it ran on.
    #[serde(default)]
    pub gpu: Option<GpuInfo>,
    /// It was stopped before its last step, because that was wanted.
    #[serde(default)]
    pub stopped: bool,
}

impl End {
    /// Nothing was measured, because of this.
    pub fn failed(reason: String) -> End {
        End { failure: Some(Ended { status: Status::Failed, reason, source: None }), ..End::default() }
    }
}

/// An end before the last step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// What happened.
    pub status: Status,
    /// Why.
    pub reason: String,
    /// Who found it.
    pub source: Option<Source>,
}

/// One rank's numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankEnd {
    /// Which.
    pub rank: usize,
    /// Its host, as records state it; empty where it is that of the record.
    #[serde(default)]
    pub host: String,
    /// Its process, where each rank has one.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Peak by category.
    pub peak: BTreeMap<Category, u64>,
    /// Share of each category when the total peaked.
    pub at_peak: BTreeMap<Category, u64>,
    /// Peak of all categories together.
    pub total_peak: u64,
    /// Bytes of the arena ever touched.
    pub reserved_bytes: u64,
    /// Wall time of each timed step.
    pub step_ms: Vec<f64>,
    /// The part of it from the first forward to the last backward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipeline_ms: Vec<f64>,
    /// When the passes of its stage were: means over the timed steps, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<outcome::PassTime>,
    /// Mean time per timed step; empty where no step was timed to its end.
    pub spans_ms: BTreeMap<Span, f64>,
    /// Collectives per step.
    pub traffic: Vec<outcome::Traffic>,
    /// What lives elsewhere than on the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierEnd>,
    /// Moves between tiers per step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<outcome::Transfer>,
    /// How its file on a disk was transferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<outcome::DiskReport>,
    /// How its moves fared on an emulated link between device and host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_link: Option<LinkUse>,
    /// What the source found in documents; the same on all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<Found>,
    /// What is known of the GPU it ran on.
    #[serde(default)]
    pub gpu: Option<GpuInfo>,
    /// It was stopped before its last step, because that was wanted.
    #[serde(default)]
    pub stopped: bool,
    /// What loading weights took, where weights were loaded.
    #[serde(default)]
    pub loading: Option<LoadingEnd>,
}

/// What lived in a home beside the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierEnd {
    /// Host or disk.
    pub home: MemoryTier,
    /// Peak by category.
    pub peak: BTreeMap<Category, u64>,
    /// Peak of all categories together.
    pub total_peak: u64,
}

impl TierEnd {
    /// Those tiers beside the device that something lived in.
    pub fn of_ledgers(ledgers: &ByTier<Ledger>) -> Vec<TierEnd> {
        let used = [MemoryTier::Host, MemoryTier::Disk].into_iter().filter(|home| ledgers[*home].total_peak() > 0);
        let end = |home| {
            let ledger = &ledgers[home];
            let peak = Category::ALL.map(|category| (category, ledger.peak(category)));
            TierEnd { home, peak: peak.into(), total_peak: ledger.total_peak() }
        };
        used.map(end).collect()
    }
}

/// What loading weights took on a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadingEnd {
    /// Host memory before any weight was read.
    pub before_bytes: u64,
    /// So much more of it when all were in place.
    pub consumed_bytes: u64,
    /// So much more of it at its most in between.
    pub peak_bytes: u64,
    /// All of it at its most.
    pub total_peak_bytes: u64,
    /// Read from files.
    pub read_bytes: u64,
    /// Received from rank 0.
    pub received_bytes: u64,
    /// Wall time.
    pub ms: f64,
    /// `process`: the system's count of resident memory; `account`: the loader's of what it holds, of which before is none.
    pub source: String,
}

impl LoadingEnd {
    fn by_account(loaded: &outcome::Loaded) -> LoadingEnd {
        LoadingEnd {
            before_bytes: 0,
            consumed_bytes: loaded.kept_bytes,
            peak_bytes: loaded.peak_bytes,
            total_peak_bytes: loaded.peak_bytes,
            read_bytes: loaded.read_bytes,
            received_bytes: loaded.received_bytes,
            ms: loaded.ms,
            source: "account".into(),
        }
    }

    /// The same with memory as the system saw it in the rank's process.
    pub fn of_process(self, seen: Resident) -> LoadingEnd {
        LoadingEnd {
            before_bytes: seen.before,
            consumed_bytes: seen.after.saturating_sub(seen.before),
            peak_bytes: seen.peak - seen.before,
            total_peak_bytes: seen.peak,
            source: "process".into(),
            ..self
        }
    }
}

impl RankEnd {
    /// What the arenas say, when that is all there is.
    pub fn of_ledgers(rank: usize, ledgers: &ByTier<Ledger>) -> RankEnd {
        let ledger = &ledgers[MemoryTier::Device];
        RankEnd {
            rank,
            tiers: TierEnd::of_ledgers(ledgers),
            peak: Category::ALL.map(|category| (category, ledger.peak(category))).into(),
            at_peak: Category::ALL.map(|category| (category, ledger.at_peak(category))).into(),
            total_peak: ledger.total_peak(),
            ..RankEnd::default()
        }
    }
}

impl From<&outcome::RankReport> for RankEnd {
    fn from(report: &outcome::RankReport) -> RankEnd {
        RankEnd {
            reserved_bytes: report.reserved_bytes,
            step_ms: report.step_ms.clone(),
            pipeline_ms: report.pipeline_ms.clone(),
            passes: report.passes.clone(),
            spans_ms: report.spans_ms.stated().collect(),
            traffic: report.traffic.clone(),
            moves: report.moves.clone(),
            disk: report.disk.clone(),
            host_link: report.host_link,
            documents: report.documents,
            stopped: report.stopped,
            loading: report.loaded.as_ref().map(LoadingEnd::by_account),
            ..RankEnd::of_ledgers(report.rank, &report.ledgers)
        }
    }
}

/// A step as a record has it.
pub fn step(step: &outcome::Step) -> Step {
    let mut extra = Extra::new();
    if let Some(scale) = step.loss_scale {
        extra.insert("loss_scale".into(), scale.into());
        extra.insert("skipped".into(), step.skipped.into());
    }
    if let Some(counts) = &step.counts {
        extra.insert("padding_tokens".into(), counts.padding.into());
        extra.insert("target_tokens".into(), counts.targets.into());
    }
    Step {
        step: step.step,
        timed: step.timed,
        loss: step.loss,
        grad_norm: step.grad_norm,
        lr: step.lr,
        ms: step.ms,
        tokens: step.tokens,
        extra,
    }
}
