//! One suite that every communicator has to pass: what it computes, what it moves, and how it ends when a rank fails.

mod collectives;
mod compose;
mod conformance_device;
mod conformance_local;
mod failures;
pub mod harness;
mod in_flight;
mod link;
mod meter;
mod program;
mod programs;
mod random;
mod rendezvous;
mod started;
mod tcp;
mod tcp_conformance;
mod tcp_faults;
mod tcp_kinds;
mod tcp_started;
mod tree;
