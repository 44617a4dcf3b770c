//! What a cell takes on its machine, without running it.

pub mod band;
pub mod collectives;
pub mod drive;
pub mod explain;
pub mod forecast;
mod here;
mod job;
mod likeness;
mod offload;
pub mod planned;
pub mod proxy;
pub mod published;
pub mod residuals;
pub mod search;
pub mod time;
mod timing;
pub mod validate;

#[cfg(test)]
mod reachable;
#[cfg(test)]
mod tests;

pub use job::job;
pub use timing::Timing;
