//! From the TOML that people write to resolved cells: [`document`] parses and checks each value, [`resolve`] makes a
//! [`Cell`](zbench_engine::config::Cell) of a set of values, [`keys`] is the table of what there is.

pub mod document;
pub mod files;
pub mod foreign;
pub mod grid;
mod hosts;
pub mod keys;
pub mod kind;
pub mod places;
mod plain;
pub mod profile;
pub mod resolve;
pub mod shard_spec;
pub mod software;
pub mod units;

pub use document::{Axis, ConfigError, Document, Problem, Search, Setting, Settings};
pub use hosts::{Hosts, RankCores};
pub use kind::change;
pub use places::Place;
pub use plain::bare;
pub use resolve::{Context, Refusal, Resolved, Values, machine_profile, policy, precision_name, resolve};
