//! What a gate must not leave behind, however it is aborted: its folder for temporary files, and the program it runs.

use super::measure::Running;
use crate::bench::private_folder;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use zbench_host::exit;

/// The folder. It goes with this value.
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes one among the system's.
    ///
    /// # Errors
    /// The folder for temporary files cannot be written.
    pub fn new() -> Result<Scratch> {
        let made = private_folder("zbench-gate-");
        made.map(Scratch).with_context(|| format!("no folder can be made in {}", std::env::temp_dir().display()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The flag that the first SIGINT, SIGTERM, SIGHUP (unless ignored, as under nohup), SIGUSR1 or SIGUSR2 sets: the gate then ends and cleans up by itself. A second signal ends it
/// at once, after the program that runs and the folder are gone.
///
/// # Errors
/// Signals cannot be listened to.
pub fn stop_flag(scratch: &Scratch, running: &Running) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let others = [SIGHUP, SIGUSR1, SIGUSR2].into_iter().filter(|signal| !zbench_launch::is_ignored(*signal));
    let all = [SIGINT, SIGTERM].into_iter().chain(others);
    let mut signals = Signals::new(all).context("signals cannot be listened to")?;
    let (asked, folder, running) = (stop.clone(), scratch.path().to_path_buf(), running.clone());
    let listen = move || {
        for _ in signals.forever() {
            if !asked.swap(true, Ordering::Relaxed) {
                continue;
            }
            // Held to the end, so that no other program is started.
            let _held = running.kill();
            let _ = std::fs::remove_dir_all(&folder);
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).context("no thread for signals can be started")?;
    Ok(stop)
}
