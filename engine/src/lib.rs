//! Many ranks, one model, one step.
//!
//! A [`config::Cell`] becomes a [`plan::Plan`]: units, what is split, and the actions of one step. [`run::launch_ranks::train`] starts
//! the ranks, and the [`exec::Executor`] of each performs the actions over [`model::layers`], [`state`] and [`zbench_collectives`].
//!
//! A module may use those above it in this list:
//!
//! | module | subject |
//! | --- | --- |
//! | [`config`] | one resolved configuration |
//! | [`action`] | what a rank does in a step, and the spans that its time is booked under |
//! | [`mesh`] | axes, groups of ranks, the table of strategies |
//! | [`memory`] | device, host and disk; transfers between them |
//! | [`formats`] | Hugging Face's and PEFT's descriptions of models |
//! | [`data`] | where tokens come from |
//! | [`observe`] | times, traces and results of a run |
//! | [`compute`] | what layers compute with, for real and in a dry run |
//! | [`model`] | units, tensors and layers |
//! | [`plan`] | the list of actions of each stage |
//! | [`state`] | sharded parameters, gradients and optimizer state |
//! | [`exec`] | what each action does |
//! | [`planner`] | makes plans, by a dry run |
//! | [`checkpoint`] | weights and training state on disk |
//! | [`run`] | ranks, the training loop, evaluations |

pub mod action;
pub mod checkpoint;
pub mod compute;
pub mod config;
pub mod data;
pub mod exec;
pub mod formats;
pub mod memory;
pub mod mesh;
pub mod model;
pub mod observe;
pub mod plan;
pub mod planner;
pub mod run;
pub mod state;
