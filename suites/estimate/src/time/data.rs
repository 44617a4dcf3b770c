//! What ranks with the same weights move beside compute: gathers of shards, reductions of gradients.

use super::plan::Plan;
use super::queue::{self, Waited};
use super::{Axis, SpanKind};
use crate::collective::{Collective, Group, seconds};
use crate::job::{Peft, Place, Recompute};

/// A unit's collectives along the data axes.
struct Move {
    queue: queue::Unit,
    gather_bytes: f64,
    reduce_bytes: f64,
    /// Of gathers in forward, and of scattered gradients.
    group: Group,
    /// Of gathers in backward: smaller where a second copy waits for it.
    again: Group,
    /// Bytes that replicas of a shard group sum up, of weights that are no experts.
    shared_bytes: f64,
}

/// Units of a kind that are put on the queues one by one.
const MOST_UNITS: f64 = 2048.0;

impl Plan<'_> {
    /// Gathers and reductions along the data axes.
    pub(super) fn data(&mut self, micros: f64) {
        let c = self.context;
        let sharding = &c.job.sharding;
        let sharded = sharding.parameters > 1;
        // Split gradients are reduced each time they are made; stages add them up first, unless they gather weights each time.
        let staged = c.job.degrees.pipeline > 1 && (!sharded || c.job.framework.memory.gathered.stages);
        let each = !staged && (sharded || sharding.gradients > 1);
        let moves = self.moves();
        let ahead = if c.drive.prefetch { sharding.prefetch.max(1) } else { 1 };
        let queue = |gather: bool, reduce: bool| -> (Waited, f64) {
            let units: Vec<queue::Unit> = moves
                .iter()
                .map(|m| queue::Unit {
                    gather_forward: if gather { m.queue.gather_forward } else { 0.0 },
                    gather_backward: if gather && !staged { m.queue.gather_backward } else { 0.0 },
                    reduce: if reduce { m.queue.reduce } else { 0.0 },
                    ..m.queue
                })
                .collect();
            let total = units.iter().map(|u| u.count as f64 * (u.gather_forward + u.gather_backward + u.reduce)).sum();
            (queue::run(&units, ahead), total)
        };
        let mut exposed = 0.0;
        let mut settle = |(waited, total): (Waited, f64), overlapped: bool, times: f64| {
            let overlapped = overlapped && c.drive.overlap_data;
            let alone = if overlapped { waited.exposed } else { total };
            let beside = if overlapped { waited.hidden } else { 0.0 };
            let more = c.drive.exposed * beside;
            exposed += times * (alone + more + c.tuning.contention * (beside - more));
        };
        if each {
            settle(queue(sharded, true), true, micros);
        } else {
            settle(queue(false, true), c.drive.overlap_reduce, 1.0);
        }
        if !each && sharding.optimizer > 1 {
            settle(queue(true, false), c.drive.overlap_gather, 1.0);
        }
        if staged && sharded {
            let moved: f64 =
                self.stages[self.slowest].units.iter().map(|(n, u)| n * (u.dense + u.sparse + u.trained)).sum();
            exposed += c.roof.pass(moved * c.drive.copy_bytes);
        }
        self.span(SpanKind::Exposed(Axis::Data), exposed);
        let times = if each { micros } else { 1.0 };
        let replicas = self.context.layout.replicas.ranks;
        let sums = if self.context.drive.replicas_once { 1.0 } else { times };
        let third = self.third_gathers();
        for m in &moves {
            let count = m.queue.count as f64;
            let often = count * if sharded && each { micros } else { 1.0 };
            if m.queue.gather_forward > 0.0 {
                self.row(Axis::Data, Collective::AllGather, often, m.gather_bytes, m.group.ranks);
            }
            // Stages keep what they gathered from the first micro-batch to the last.
            if m.queue.gather_backward > 0.0 && !(staged && m.queue.gather_forward > 0.0) {
                self.row(Axis::Data, Collective::AllGather, often * (1.0 + third), m.gather_bytes, m.again.ranks);
            }
            let kind = if sharding.optimizer > 1 || each { Collective::ReduceScatter } else { Collective::AllReduce };
            self.row(Axis::Data, kind, times * count, m.reduce_bytes, m.group.ranks);
            if sharded {
                self.row(Axis::Data, Collective::AllReduce, sums * count, m.shared_bytes, replicas);
            }
        }
    }

    /// Share of blocks that are gathered a third time: groups of several are made again upwards and then run backward, when all but
    /// the last are gone.
    fn third_gathers(&self) -> f64 {
        let job = self.context.job;
        let is_gone = job.sharding.reshard_after_forward && job.sharding.parked <= 1;
        match job.recompute {
            Recompute::Full { every, .. } if is_gone && every > 1 => {
                (every as f64 - job.framework.memory.gathered.units).max(0.0) / every as f64
            }
            _ => 0.0,
        }
    }

    /// What each unit of the slowest stage gathers and reduces.
    fn moves(&self) -> Vec<Move> {
        let c = &self.context;
        let (job, layout, machine) = (c.job, c.layout, c.machine);
        let sharding = &job.sharding;
        let sharded = sharding.parameters > 1;
        let slow = if sharded && layout.data.nodes() > 1 { 1.0 / c.drive.network } else { 1.0 };
        // Bytes per gathered element, and those of experts.
        let (element, of_experts) = match job.peft {
            _ if sharding.gather_bytes > 0.0 => (sharding.gather_bytes, sharding.gather_bytes),
            Peft::Adapters { base, .. } => (base.bytes(), job.frozen_expert_bytes()),
            Peft::None => (job.precision.compute.bytes(), job.precision.compute.bytes()),
        };
        let wire = if sharding.reduce_bytes > 0.0 { sharding.reduce_bytes } else { job.precision.reduce };
        let link = (machine.host.bandwidth * machine.host.reached).max(1.0);
        let sharers = machine.node_devices.min(layout.world).max(1) as f64;
        let link = match job.offload.parameters {
            Place::Disk if machine.disk_read > 0.0 => link.min(machine.disk_read / sharers),
            _ => link,
        };
        let group = if sharded { layout.shard } else { layout.data };
        let mut list = Vec::new();
        for (count, unit) in &self.stages[self.slowest].units {
            // More units than any model has are taken together.
            if *count <= 0.0 {
                continue;
            }
            let number = count.round().clamp(1.0, MOST_UNITS) as usize;
            // Kinds that are mixed over stages: whole units, each with its share of the time.
            let scale = count / number as f64;
            let price = |what, dense: f64, sparse: f64, group: Group| {
                scale
                    * slow
                    * (seconds(what, dense, group, machine) + seconds(what, sparse, layout.expert_data, machine))
            };
            let share = if unit.dense + unit.sparse > 0.0 { unit.trained / (unit.dense + unit.sparse) } else { 0.0 };
            // Where weights stay whole, those that the update has changed are gathered, and no frozen base.
            let whole = share * job.precision.compute.bytes();
            let (dense, sparse) = if sharded { (element, of_experts) } else { (whole, whole) };
            let gather_bytes = unit.dense * dense + unit.sparse * sparse;
            let mut gather = price(Collective::AllGather, unit.dense * dense, unit.sparse * sparse, group);
            if sharded && job.offload.parameters != Place::Device {
                gather += scale * gather_bytes / group.ranks as f64 / link;
            }
            let mut again = match sharding.parked {
                parked if parked > 1 => {
                    price(Collective::AllGather, unit.dense * element, unit.sparse * of_experts, layout.parked)
                }
                _ if sharded && sharding.reshard_after_forward => gather * (1.0 + self.third_gathers()),
                _ => 0.0,
            };
            if !sharded {
                again = 0.0;
            }
            let (dense, sparse) = (unit.dense * share * wire, unit.sparse * share * wire);
            let scattered = sharded || sharding.gradients > 1 || sharding.optimizer > 1;
            let what = if scattered { Collective::ReduceScatter } else { Collective::AllReduce };
            let mut reduce = price(what, dense, sparse, group);
            if sharded && layout.replicas.ranks > 1 {
                // Once in a step is a part of each micro-batch's.
                let part = if c.drive.replicas_once { 1.0 / job.batch.accumulation.max(1) as f64 } else { 1.0 };
                let share = dense / group.ranks as f64;
                reduce += part * scale * seconds(Collective::AllReduce, share, layout.replicas, machine);
            }
            let gathers = sharded || sharding.optimizer > 1;
            let (forward, backward) = (unit.forward, unit.backward);
            list.push(Move {
                queue: queue::Unit {
                    count: number,
                    forward: scale * (c.busy(&forward, false) + forward.waits()),
                    backward: scale
                        * (c.busy(&backward, true)
                            + backward.waits()
                            + c.busy(&unit.recompute, false)
                            + unit.recompute.waits()),
                    gather_forward: if gathers { gather } else { 0.0 },
                    gather_backward: again,
                    reduce,
                },
                gather_bytes,
                reduce_bytes: dense + sparse,
                group,
                shared_bytes: dense / group.ranks as f64,
                again: if sharding.parked > 1 { layout.parked } else { group },
            });
        }
        list
    }
}
