//! A stopwatch that books every moment of a step under one span, so that spans add up to the step.

use crate::action::Action;
use crate::action::span::{BySpan, Span, Spans};
use crate::observe::pass_times;
use crate::observe::pass_times::PassTime;
use crate::observe::trace::{Entry, Recording};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zbench_kernels::memory::device::Event;
use zbench_kernels::{KernelError, Kernels};

/// Nanoseconds of a step.
#[derive(Clone, Debug, Default)]
pub struct Booked {
    /// The step.
    pub ns: u64,
    /// By span; they add up to the step.
    pub spans: BySpan<u64>,
    /// From the beginning of the first forward to the end of the last backward.
    pub pipeline_ns: u64,
    /// When passes were, since the step began, where that was wanted.
    pub passes: Option<Vec<PassTime>>,
}

/// From the first forward to the last backward, in nanoseconds since a step began.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    first: Option<u64>,
    last: u64,
}

impl Window {
    fn book(&mut self, span: Span, from: u64, until: u64) {
        match span {
            Span::Forward => _ = self.first.get_or_insert(from),
            Span::Backward => self.last = until,
            _ => {}
        }
    }

    fn ns(&self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last))
    }
}

/// The stopwatch of a rank.
///
/// On a device it reads the device's own clock: a mark is put into the queue where a span begins, and what lies between two
/// marks is the time that the queue's work took, waiting for what moves beside it included.
pub struct Meter {
    kernels: Arc<dyn Kernels>,
    started: Instant,
    since: Instant,
    span: Span,
    ns: BySpan<u64>,
    pipeline: Window,
    passes: Option<Vec<PassTime>>,
    /// On a device: which span begins, in which action, and where.
    marks: Vec<(Span, Option<Action>, Arc<dyn Event>)>,
    /// Where the step is traced.
    recording: Option<Recording>,
    /// What the rank is at.
    current: Option<Action>,
    /// The action that the span began in.
    action: Option<Action>,
    failed: Option<KernelError>,
}

impl Meter {
    /// Starts a step of these kernels, of which nothing more than the sums is kept.
    pub fn start(kernels: Arc<dyn Kernels>) -> Meter {
        Meter::recorded(kernels, None)
    }

    /// Starts a step, and writes down every stretch of it where that is wanted.
    pub(crate) fn recorded(kernels: Arc<dyn Kernels>, mut recording: Option<Recording>) -> Meter {
        let now = Instant::now();
        let marks = Vec::with_capacity(if kernels.is_host() { 0 } else { 256 });
        if let Some(recording) = &mut recording {
            recording.began = now;
        }
        let mut meter = Meter {
            kernels,
            started: now,
            since: now,
            span: Span::Other,
            ns: BySpan::default(),
            pipeline: Window::default(),
            passes: None,
            marks,
            recording,
            current: None,
            action: None,
            failed: None,
        };
        meter.enter(Span::Other);
        meter
    }

    /// Keeps when passes begin and end.
    pub(crate) fn with_passes(self, wanted: bool) -> Meter {
        Meter { passes: wanted.then(Vec::new), ..self }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    fn book(&mut self, span: Span, action: Option<Action>, [from, until]: [u64; 2]) {
        self.ns[span] += until - from;
        self.pipeline.book(span, from, until);
        if let Some(passes) = self.passes.as_mut().filter(|_| span != Span::ExposedPipeline) {
            pass_times::add(passes, action, from, until);
        }
    }

    /// Writes down the span that ends now, as the host sees it.
    fn close(&mut self, now: Instant, next: Span) {
        let Some(recording) = &mut self.recording else { return };
        let time = now.duration_since(self.since);
        recording.entries.push(Entry { from: self.since, time, span: self.span, action: self.action });
        // On a device nothing else keeps them.
        (self.since, self.span, self.action) = (now, next, self.current);
    }

    /// Ends the step, when a device has ended it too: nanoseconds in all and by span, or what the device found wrong; and what was
    /// written down, if anything was.
    pub(crate) fn stop(mut self) -> (Result<Booked, KernelError>, Option<Recording>) {
        let ended = self.end();
        (ended, self.recording)
    }

    /// What was written down until a step failed, and how long that took. A device is not waited for.
    pub(crate) fn broken(mut self) -> (u64, Option<Recording>) {
        let now = Instant::now();
        if self.recording.is_some() {
            self.close(now, Span::Other);
        }
        (now.duration_since(self.started).as_nanos() as u64, self.recording)
    }

    fn end(&mut self) -> Result<Booked, KernelError> {
        self.enter(Span::Other);
        self.kernels.profiler_range(None);
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.marks.is_empty() {
            let ns = self.since.duration_since(self.started).as_nanos() as u64;
            return Ok(self.booked(ns));
        }
        self.kernels.synchronize()?;
        let all = self.started.elapsed().as_nanos() as u64;
        let mut times = Vec::with_capacity(self.marks.len());
        let marks = std::mem::take(&mut self.marks);
        for pair in marks.windows(2) {
            let [(span, action, begin), (.., end)] = pair else { continue };
            let time = end.elapsed(&**begin)?;
            let from: u64 = self.ns.sum();
            self.book(*span, *action, [from, from + time.as_nanos() as u64]);
            times.push(time);
        }
        // Until the first work came to the device, and from the last one's end to the host's noticing.
        let booked = self.ns.sum();
        let rest = all.saturating_sub(booked);
        self.ns[Span::Other] += rest;
        self.by_the_device(&times, Duration::from_nanos(rest));
        Ok(self.booked(all.max(booked)))
    }

    fn booked(&mut self, ns: u64) -> Booked {
        Booked { ns, spans: self.ns, pipeline_ns: self.pipeline.ns(), passes: self.passes.take() }
    }

    /// What the host has written down is when things were asked for; when they were done follows from the times between marks.
    fn by_the_device(&mut self, times: &[Duration], rest: Duration) {
        let Some(recording) = &mut self.recording else { return };
        recording.asked = std::mem::take(&mut recording.entries);
        let mut from = recording.began;
        // The first was closed before any mark; each of the others lies behind the mark of its own.
        for (asked, time) in recording.asked.iter().skip(1).zip(times) {
            recording.entries.push(Entry { from, time: *time, ..*asked });
            from += *time;
        }
        recording.entries.push(Entry { from, time: rest, span: Span::Other, action: None });
    }
}

impl Spans for Meter {
    fn during(&mut self, action: Option<Action>) {
        self.current = action;
    }

    fn enter(&mut self, span: Span) {
        self.kernels.profiler_range(Some(span.name()));
        match self.kernels.record_event() {
            Ok(Some(mark)) => {
                self.marks.push((span, self.current, mark));
                if self.recording.is_some() {
                    self.close(Instant::now(), span);
                }
            }
            Ok(None) => {
                let now = Instant::now();
                let at = |moment: Instant| moment.duration_since(self.started).as_nanos() as u64;
                self.book(self.span, self.action, [at(self.since), at(now)]);
                if self.recording.is_some() {
                    self.close(now, span);
                }
                (self.since, self.span, self.action) = (now, span, self.current);
            }
            Err(error) => self.failed = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::trace::{ClockOrigin, StepTrace, Tracer, Tracing, What};
    use zbench_kernels::{Arena, Cpu};

    #[test]
    fn what_is_written_down_adds_up_to_what_is_booked() {
        let kernels: Arc<dyn Kernels> = Arc::new(Cpu::new(1));
        let arena = Arena::host(None).unwrap();
        let tracing = Tracing { zero: ClockOrigin::now(), steps: 1 };
        let mut tracer = Tracer::new(tracing, &arena, 0);
        assert!(tracer.record(2, &arena).is_none(), "a step behind the last that is wanted");
        let mut meter = Meter::recorded(kernels, tracer.record(1, &arena));
        let spans = [Span::Data, Span::Forward, Span::Backward, Span::Forward, Span::Optimizer];
        for (unit, span) in spans.into_iter().enumerate() {
            meter.during(Some(Action::Forward { micro: 0, layer: unit }));
            meter.enter(span);
            // Work of a length that is not nothing.
            std::hint::black_box((0..10_000u64).fold(1u64, |sum, i| sum.wrapping_mul(31).wrapping_add(i)));
        }
        let (ended, recording) = meter.stop();
        let Booked { ns, spans: by_span, pipeline_ns, passes } = ended.unwrap();
        assert_eq!(passes, None, "nobody wanted them");
        // Between them is a forward; before them fetching, behind them the update.
        let parts = by_span[Span::Forward] + by_span[Span::Backward];
        assert!(pipeline_ns > 0 && pipeline_ns <= parts, "{pipeline_ns} of {parts}");
        tracer.keep(StepTrace { ns, ..StepTrace::empty(0, What::Step, 1) }, recording.unwrap(), &[]);
        let told = std::cell::RefCell::new(Vec::new());
        tracer.tell(false, |traced| told.borrow_mut().push(traced));
        assert!(told.borrow().is_empty(), "one step in no time is not told yet");
        tracer.tell(true, |traced| told.borrow_mut().push(traced));
        let told = told.into_inner().remove(0);
        assert_eq!(told.segments.iter().map(|segment| segment.ns).sum::<u64>(), ns);
        for span in Span::ALL {
            let of_span = told.segments.iter().filter(|segment| segment.span == span).map(|segment| segment.ns);
            assert_eq!(of_span.sum::<u64>(), by_span[span], "{}", span.name());
        }
        let mut from = told.from;
        for segment in &told.segments {
            assert_eq!(segment.from, from, "without gaps");
            from += segment.ns;
        }
        let actions: Vec<_> = told.segments.iter().filter_map(|segment| segment.action).collect();
        assert_eq!(actions, (0..5).map(|unit| Action::Forward { micro: 0, layer: unit }).collect::<Vec<_>>());
    }
}
