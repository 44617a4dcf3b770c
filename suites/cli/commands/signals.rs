//! The flag that signals set, so that a command stops with everything measured kept.

use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use zbench_host::exit;
use zbench_runner::launched::StopFlags;

/// Set by Ctrl-C, a termination, a lost terminal (SIGHUP) and the warnings of batch systems (SIGUSR1, SIGUSR2). The second
/// Ctrl-C or termination ends the process at once; the others, which may come several times and before a termination, do not.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    Ok(stop_flags()?.any)
}

/// The same, and whether it was the user or a batch system that wanted it.
pub fn stop_flags() -> Result<StopFlags> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    let flags = StopFlags::default();
    let StopFlags { any: stop, user } = &flags;
    let armed = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The flag is registered first, so that a signal between these lines is not lost. The last line arms the shutdown, so that
        // only a second signal ends the process.
        signal_hook::flag::register(signal, stop.clone())?;
        if signal == SIGINT {
            signal_hook::flag::register(signal, user.clone())?;
        }
        signal_hook::flag::register_conditional_shutdown(signal, i32::from(exit::INTERRUPTED), armed.clone())?;
        signal_hook::flag::register(signal, armed.clone())?;
    }
    for signal in [SIGHUP, SIGUSR1, SIGUSR2].into_iter().filter(|signal| !zbench_launch::is_ignored(*signal)) {
        signal_hook::flag::register(signal, stop.clone())?;
        signal_hook::flag::register(signal, user.clone())?;
    }
    Ok(flags)
}
