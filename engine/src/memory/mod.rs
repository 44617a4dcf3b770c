//! The memory of a rank: device, host and disk, and what moves between them.

pub mod host_link;
pub mod moves;
pub mod tiers;
