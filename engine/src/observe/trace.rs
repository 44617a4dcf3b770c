//! What a rank did and when, for those who want to see a step as a timeline: the segments that the stopwatch books, the
//! collectives under way beside them, and the memory in use.

use crate::action::Action;
use crate::action::span::Span;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zbench_collectives::GroupName;
use zbench_collectives::{CollectiveKind, Seen};
use zbench_kernels::{Arena, Category, Change, DType};

/// A moment that the system's clock and the one that only goes forward are both read at; all ranks of a process share it.
#[derive(Clone, Copy, Debug)]
pub struct ClockOrigin {
    instant: Instant,
    epoch_ns: u64,
}

impl ClockOrigin {
    pub fn now() -> ClockOrigin {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ClockOrigin { instant: Instant::now(), epoch_ns: nanoseconds(since) }
    }

    /// Nanoseconds since 1970 at another moment.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        let later = nanoseconds(instant.saturating_duration_since(self.instant));
        let earlier = nanoseconds(self.instant.saturating_duration_since(instant));
        (self.epoch_ns + later).saturating_sub(earlier)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Tracing {
    pub zero: ClockOrigin,
    /// So many steps of the run, from the first that it does itself, and the evaluations among them.
    pub steps: u64,
}

/// A rank's account of a step, or of an evaluation. Times are nanoseconds, moments since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTrace {
    pub rank: usize,
    pub what: What,
    /// The number of the step; of an evaluation, of the step before it.
    pub step: u64,
    pub timed: bool,
    pub from: u64,
    pub ns: u64,
    /// What was done, one after the other. Of a step they add up to it, exactly; on a device by the device's own clock.
    pub segments: Vec<Segment>,
    /// On a device: when the host asked for it.
    pub asked: Vec<Segment>,
    /// Collectives, by the host's clock.
    pub flights: Vec<Flight>,
    /// Bytes in use by category, where they change: moment, category, bytes. On a device as the host asks.
    pub memory: Vec<(u64, Category, u64)>,
    /// About what it took to write this down, within `ns`.
    pub cost_ns: u64,
    pub broken: bool,
}

impl StepTrace {
    pub(crate) fn empty(rank: usize, what: What, step: u64) -> StepTrace {
        StepTrace { rank, what, step, ..StepTrace::default() }
    }
}

/// What a trace is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    #[default]
    Step,
    Evaluation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub from: u64,
    pub ns: u64,
    pub span: Span,
    /// In which action of the plan; none between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
}

/// A collective. One that was only called, not started and waited for, begins and is awaited at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flight {
    pub axis: GroupName,
    pub kind: CollectiveKind,
    pub ranks: usize,
    /// As `communication` in records counts it.
    pub payload_bytes: u64,
    pub wire_bytes: u64,
    /// When it was asked for.
    pub from: u64,
    /// When that returned.
    pub begun: u64,
    /// When its result was wanted.
    pub awaited: u64,
    /// When it was there.
    pub until: u64,
    /// Whether the rank did something else in between.
    pub is_started: bool,
}

impl Flight {
    fn of(seen: &Seen, zero: &ClockOrigin) -> Flight {
        let Seen { axis, kind, ranks, payload_bytes, wire_bytes, moments, is_started } = *seen;
        let [from, begun, awaited, until] = moments.map(|moment| zero.at(moment));
        Flight { axis, kind, ranks, payload_bytes, wire_bytes, from, begun, awaited, until, is_started }
    }
}

/// The tracing of a rank: what is wanted, and what has not been told yet.
#[derive(Debug)]
pub(crate) struct Tracer {
    tracing: Tracing,
    /// The last step that is traced.
    last: u64,
    entry: Duration,
    ready: Vec<StepTrace>,
    /// Entries of those.
    held: usize,
}

/// Whoever is told works on the cores that the next steps want, and a rank that tells comes late to the next one. So ranks tell
/// seldom, and after the same steps: after so many,
const MOST: usize = 256;
/// when they hold so many entries,
const MOST_ENTRIES: usize = 200_000;
/// or behind a step that took so long that telling is nothing beside it.
const LONG_NS: u64 = 1_000_000_000;

impl Tracer {
    /// `done`: steps that lie behind the run already, as it goes on from a checkpoint.
    pub(crate) fn new(tracing: Tracing, arena: &Arena, done: u64) -> Tracer {
        let last = done.saturating_add(tracing.steps);
        Tracer { tracing, last, entry: entry_takes(arena), ready: Vec::new(), held: 0 }
    }

    /// Something to write down the step of this number in, if it is to be traced.
    pub(crate) fn record(&self, step: u64, arena: &Arena) -> Option<Recording> {
        (step <= self.last).then(|| Recording::new(arena.clone()))
    }

    /// What was written down, when what it is of has ended or failed.
    pub(crate) fn keep(&mut self, of: StepTrace, recording: Recording, seen: &[Seen]) {
        let zero = self.tracing.zero;
        let changes = recording.arena.watched();
        let entries = recording.entries.len() + recording.asked.len() + changes.len() + seen.len();
        let live = |change: &Change| (zero.at(change.at), change.category, change.live);
        let segment = |entry: &Entry| Segment {
            from: zero.at(entry.from),
            ns: nanoseconds(entry.time),
            span: entry.span,
            action: entry.action,
        };
        self.held += entries;
        self.ready.push(StepTrace {
            from: zero.at(recording.began),
            segments: lasting(&recording.entries).map(segment).collect(),
            asked: lasting(&recording.asked).map(segment).collect(),
            flights: seen.iter().map(|seen| Flight::of(seen, &zero)).collect(),
            memory: changes.iter().map(live).collect(),
            cost_ns: nanoseconds(self.entry.saturating_mul(entries as u32)),
            ..of
        });
    }

    /// Tells what is ready, if it is time to, or it is the end.
    pub(crate) fn tell(&mut self, is_end: bool, tell: impl Fn(StepTrace)) {
        let is_long = self.ready.last().is_some_and(|last| last.ns >= LONG_NS);
        if is_end || is_long || self.ready.len() >= MOST || self.held >= MOST_ENTRIES {
            self.ready.drain(..).for_each(tell);
            self.held = 0;
        }
    }
}

/// A stretch of time, while it is written down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub from: Instant,
    pub time: Duration,
    pub span: Span,
    pub action: Option<Action>,
}

fn lasting(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|entry| !entry.time.is_zero())
}

/// What is written down of a step while it runs.
#[derive(Debug)]
pub(crate) struct Recording {
    arena: Arena,
    pub began: Instant,
    /// By the device's clock where there is one, else by the host's.
    pub entries: Vec<Entry>,
    /// By the host's clock, where there is another.
    pub asked: Vec<Entry>,
}

impl Recording {
    fn new(arena: Arena) -> Recording {
        arena.watch();
        Recording { arena, began: Instant::now(), entries: Vec::with_capacity(512), asked: Vec::new() }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.arena.watched();
    }
}

/// What it takes to write down one thing, by measurement: memory that is asked for and given back, of which each is one.
fn entry_takes(arena: &Arena) -> Duration {
    const PAIRS: u32 = 512;
    let time = || {
        let begin = Instant::now();
        for _ in 0..PAIRS {
            // An arena that has no room for nothing has none for a step either, which says so.
            drop(std::hint::black_box(arena.alloc(Category::Workspace, DType::U32, 0)));
        }
        begin.elapsed()
    };
    let unwatched = time();
    arena.watch();
    let watched = time();
    arena.watched();
    watched.saturating_sub(unwatched) / (2 * PAIRS)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
