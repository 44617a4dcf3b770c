//! Host memory of this process around a piece of work.

use zbench_engine::observe::outcome::LoadPhase;
use zbench_runner::loading::{Resident, Watch};

/// Begins to look.
pub fn begin() -> Watch {
    let watch = Watch::default();
    watch.tell(LoadPhase::LoadingBegins);
    watch
}

/// Stops looking; nothing where the system does not say.
pub fn end(watch: &Watch) -> Option<Resident> {
    watch.tell(LoadPhase::LoadingEnds);
    watch.resident()
}
