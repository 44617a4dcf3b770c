//! A stopwatch that books every moment of a step under one span, so that spans add up to the step.

use crate::outcome::Span;
use std::sync::Arc;
use std::time::Instant;
use zbench_kernels::cuda::machine::Mark;
use zbench_kernels::{KernelError, Kernels};

/// The stopwatch of a rank.
///
/// On a device it reads the device's own clock: a mark is put into the queue where a span begins, and what lies between two
/// marks is the time that the queue's work took, waiting for what moves beside it included.
pub struct Meter {
    kernels: Arc<dyn Kernels>,
    started: Instant,
    since: Instant,
    span: Span,
    ns: [u64; 10],
    /// On a device: which span begins, and where.
    marks: Vec<(Span, Arc<dyn Mark>)>,
    failed: Option<KernelError>,
}

impl Meter {
    /// Starts a step of these kernels.
    pub fn start(kernels: Arc<dyn Kernels>) -> Meter {
        let now = Instant::now();
        let marks = Vec::with_capacity(if kernels.is_host() { 0 } else { 256 });
        let mut meter =
            Meter { kernels, started: now, since: now, span: Span::Other, ns: [0; 10], marks, failed: None };
        meter.enter(Span::Other);
        meter
    }

    /// What follows is `span`.
    pub fn enter(&mut self, span: Span) {
        self.kernels.show(Some(span.name()));
        match self.kernels.mark() {
            Ok(Some(mark)) => self.marks.push((span, mark)),
            Ok(None) => {
                let now = Instant::now();
                self.ns[self.span as usize] += now.duration_since(self.since).as_nanos() as u64;
                (self.since, self.span) = (now, span);
            }
            Err(error) => self.failed = Some(error),
        }
    }

    /// Ends the step, when a device has ended it too: nanoseconds in all and by span; the spans add up exactly.
    ///
    /// # Errors
    /// The device failed, or found something wrong.
    pub fn stop(mut self) -> Result<(u64, [u64; 10]), KernelError> {
        self.enter(Span::Other);
        self.kernels.show(None);
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.marks.is_empty() {
            return Ok((self.since.duration_since(self.started).as_nanos() as u64, self.ns));
        }
        self.kernels.synchronize()?;
        let all = self.started.elapsed().as_nanos() as u64;
        for pair in self.marks.windows(2) {
            let [(span, begin), (_, end)] = pair else { continue };
            self.ns[*span as usize] += end.since(&**begin)?.as_nanos() as u64;
        }
        // Until the first work came to the device, and from the last one's end to the host's noticing.
        let booked: u64 = self.ns.iter().sum();
        self.ns[Span::Other as usize] += all.saturating_sub(booked);
        Ok((all.max(booked), self.ns))
    }
}
