//! What a training run takes on a machine nobody has at hand: memory, traffic and time.

mod catalogue;
pub mod collective;
pub mod convention;
pub mod deepspeed;
pub mod framework;
pub mod group;
pub mod job;
pub mod layout;
pub mod machine;
pub mod memory;
pub mod profile;
pub mod roofline;
pub mod rules;
pub mod shape;
pub mod spelling;
pub mod time;
pub mod topology;
pub mod tuning;
pub mod units;
