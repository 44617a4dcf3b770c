//! Descriptions of models and adapters that other programs read and write.

pub mod files;
pub mod hf;
pub mod peft;
