//! What the processes of cells and ranks have in common: the job on standard input, the events on standard output, the
//! order to stop.

use crate::protocol::Event;
use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// Exit status of a process that could not begin.
pub const BROKEN: u8 = 70;

/// Set when the process was told, by SIGUSR1, to end its run after the step under way. Batch systems send their warnings, and
/// a terminal that is lost its own, to all processes of a job: these mean the same.
pub fn stop_order() -> &'static AtomicBool {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    STOP.get_or_init(|| {
        let stop = Arc::new(AtomicBool::new(false));
        // Without a handler the order ends the process, as it would have ended before there were such orders.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGUSR1, stop.clone());
        for signal in [signal_hook::consts::SIGHUP, signal_hook::consts::SIGUSR2] {
            if !zbench_launch::is_ignored(signal) {
                let _ = signal_hook::flag::register(signal, stop.clone());
            }
        }
        stop
    })
}

/// A job is a configuration; more than this is none.
const MOST_JOB_BYTES: u64 = 16 << 20;

/// A job from standard input.
pub fn read_job<T: serde::de::DeserializeOwned>(from: &mut dyn Read) -> Result<T, String> {
    let mut text = String::new();
    from.take(MOST_JOB_BYTES).read_to_string(&mut text).map_err(|error| format!("the job cannot be read: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("the job cannot be read: {error}"))
}

/// A line on standard output. A parent that does not listen any more has ended; the death signal ends this process too.
pub fn say(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}
