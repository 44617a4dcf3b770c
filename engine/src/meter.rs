//! A stopwatch that books every moment of a step under one span, so that spans add up to the step.

use crate::outcome::Span;
use std::time::Instant;

/// The stopwatch of a rank.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    since: Instant,
    span: Span,
    ns: [u64; 10],
}

impl Meter {
    /// Starts a step.
    pub fn start() -> Meter {
        let now = Instant::now();
        Meter { started: now, since: now, span: Span::Other, ns: [0; 10] }
    }

    /// What follows is `span`.
    pub fn enter(&mut self, span: Span) {
        let now = Instant::now();
        self.ns[self.span as usize] += now.duration_since(self.since).as_nanos() as u64;
        (self.since, self.span) = (now, span);
    }

    /// Ends the step: nanoseconds in all and by span; the spans add up exactly.
    pub fn stop(mut self) -> (u64, [u64; 10]) {
        self.enter(Span::Other);
        (self.since.duration_since(self.started).as_nanos() as u64, self.ns)
    }
}
