//! Weights and training state on disk.

mod blocks;
pub(crate) mod export;
pub(crate) mod init;
pub mod inputs;
pub mod save;
mod tensor_files;
pub mod training;
pub mod weights;

use std::ops::Range;

/// What two ranges have in common; `None` if that is nothing.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    (start < end).then_some(start..end)
}
