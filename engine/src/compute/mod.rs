//! What layers compute with. The same code runs for real and in a dry run.

pub mod context;
pub mod error;
pub mod hardware;
pub mod recorder;
