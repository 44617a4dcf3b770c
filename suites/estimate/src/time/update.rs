//! The optimizer's step: on the device, or on the host with what goes there and back.

use super::block::Context;
use crate::job::{Peft, Place};

/// Seconds of the update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Update {
    /// On the device.
    pub device: f64,
    /// On the host, over its link and NVMe.
    pub host: f64,
}

/// The update of `owned` parameters by this rank, out of `whole` that it computes with.
pub(super) fn update(context: &Context<'_>, owned: f64, whole: f64) -> Update {
    let (job, machine) = (context.job, context.machine);
    let precision = &job.precision;
    let gradient = if precision.gradients > 0.0 { precision.gradients } else { 2.0 };
    let weight = match job.peft {
        Peft::Adapters { weight_bytes, .. } => weight_bytes,
        Peft::None => precision.weights.bytes(),
    };
    // Read the gradient (twice: its norm is taken first), read and write moments and master, write the weight.
    let touched = 2.0 * gradient + 2.0 * (precision.master + precision.moments) + 2.0 * weight;
    if job.offload.optimizer == Place::Device {
        let norm = whole.min(owned * 8.0) * gradient;
        let seconds = context.roof.pass(owned * touched * context.drive.optimizer_passes + norm);
        return Update { device: seconds, host: 0.0 };
    }
    let sharers = machine.node_devices.min(context.layout.world).max(1) as f64;
    let link = (machine.host.bandwidth * machine.host.reached).max(1.0);
    // All gradients of this rank live there, which are more than its share of the state where they are not split.
    let gradients = owned.max(whole / job.sharding.gradients.max(1) as f64);
    let ways = (gradients * gradient + owned * weight) / link;
    let rate = if machine.host_bandwidth > 0.0 { machine.host_bandwidth } else { 100e9 };
    let rate = rate * context.tuning.host_update;
    // Launchers give one process all cores, and each of several one: then that core and not the rank's share of the memory is what the
    // update waits for.
    let core = context.drive.host_core;
    let rate = if core > 0.0 && sharers > 1.0 { rate.min(sharers * core) } else { rate };
    let add = owned * sharers * (touched + context.drive.host_bytes) / rate;
    let mut host = ways + add;
    if job.offload.optimizer == Place::Disk {
        let state = owned * sharers * (precision.master + precision.moments);
        let per = |rate: f64| if rate > 0.0 { state / rate } else { 0.0 };
        host += per(machine.disk_read) + per(machine.disk_write);
    }
    Update { device: 0.0, host }
}
