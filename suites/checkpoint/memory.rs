//! Host memory of this process around a piece of work.

use crate::runner::loading::{Resident, Watch};
use zbench_engine::outcome::Moment;

/// Begins to look.
pub fn begin() -> Watch {
    let watch = Watch::default();
    watch.tell(Moment::LoadingBegins);
    watch
}

/// Stops looking; nothing where the system does not say.
pub fn end(watch: &Watch) -> Option<Resident> {
    watch.tell(Moment::LoadingEnds);
    watch.resident()
}
