//! What a training run takes on a machine nobody has at hand: memory, traffic and time.

pub mod job;
pub mod machine;
pub mod published;
pub mod shape;
