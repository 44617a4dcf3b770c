//! Many ranks, one model, one step.
//!
//! A [`config::Cell`] becomes a [`plan::Plan`]: units, what is split, and the actions of one step. [`train::train`] starts
//! the ranks, and each [`rank::Rank`] performs the actions over [`layers`], [`shard`] and [`comm`].

pub mod actions;
pub mod checkpoint;
pub mod comm;
pub mod config;
pub mod course;
pub mod data;
pub mod device;
pub mod error;
mod evaluate;
pub mod executor;
mod export;
pub mod files;
mod guard;
pub mod hardware;
pub mod hf;
pub mod homes;
pub mod host_link;
mod init;
mod inputs;
pub mod layers;
mod learning_rate;
pub mod loss_scale;
pub mod mesh;
pub mod meter;
pub mod model;
pub mod moves;
pub mod numerics;
pub mod offload;
pub mod outcome;
pub mod pace;
pub mod parity;
mod pass_times;
pub mod peft;
pub mod pipeline;
pub mod plan;
pub mod planner;
pub mod rank;
pub mod recorder;
pub mod rope;
pub mod save;
pub mod saver;
pub mod schedule;
pub mod shard;
pub mod span;
pub mod strategy;
pub mod stream;
pub mod threads;
pub mod trace;
pub mod train;
pub mod training_state;
