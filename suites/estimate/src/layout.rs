//! Which ranks talk to which: groups along each axis, and how many of each share a node.

use crate::collective::Group;
use crate::job::{Degrees, Job, Placement};
use crate::machine::Machine;

/// Groups of a job's ranks on a machine. Tensor ranks lie next to each other, then context, then data or stages as the job's
/// placement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks that share matrices.
    pub tensor: Group,
    /// Ranks that share sequences.
    pub context: Group,
    /// Ranks with the same dense weights: data and context together.
    pub data: Group,
    /// Ranks that share parameters (a part of `data` under hybrid sharding).
    pub shard: Group,
    /// Ranks of the same shard in different groups.
    pub replicas: Group,
    /// Ranks that gradients are scattered over, as far as they are.
    pub parked: Group,
    /// Ranks that share the experts.
    pub expert: Group,
    /// Ranks with the same experts.
    pub expert_data: Group,
    /// Stages, of which each sends to the next.
    pub neighbours: Group,
    /// All ranks.
    pub world: usize,
}

impl Layout {
    /// Of a job.
    pub fn of(job: &Job, machine: &Machine) -> Layout {
        let d = &job.degrees;
        let at_least = |x: usize| x.max(1);
        let (tensor, context, data) = (at_least(d.tensor), at_least(d.context), at_least(d.data));
        let (pipeline, expert) = (at_least(d.pipeline), at_least(d.expert));
        let devices = at_least(machine.node_devices);
        let dense = data.saturating_mul(context);
        let shards = job.sharding.parameters.clamp(1, dense);
        // Experts' ranks take over those of tensor, too, where each expert is whole.
        let etp = expert_tensor(d);
        let all = dense.saturating_mul(tensor);
        let expert = expert.min(all);
        let stage = all;
        let expert_data = at_least(all / expert.saturating_mul(etp).max(1));
        let run = match d.placement {
            Placement::DataInside => stage,
            Placement::PipelineInside => tensor.saturating_mul(context),
        };
        // Where stages are on several nodes some hop crosses, and the slowest decides.
        let near = pipeline > 1 && run.saturating_mul(pipeline) <= devices;
        let numbering = Numbering { run, stages: pipeline, devices };
        let group = |ranks, stride| numbering.group(ranks, stride);
        Layout {
            tensor: group(tensor, 1),
            context: group(context, tensor),
            data: group(dense, tensor),
            shard: group(shards, tensor),
            replicas: group(dense / shards, tensor.saturating_mul(shards)),
            parked: group(job.sharding.parked.clamp(1, dense), tensor),
            expert: group(expert, etp),
            expert_data: group(expert_data, expert.saturating_mul(etp)),
            neighbours: if near {
                Group::new(2, 2)
            } else {
                Group { ranks: pipeline.max(2), per_node: 1, apart: run.div_ceil(devices) }
            },
            world: all.saturating_mul(pipeline),
        }
    }
}

/// Where the ranks of a stage are among all: runs of neighbours, with the same run of the other stages between two.
struct Numbering {
    /// Ranks of a stage that are neighbours.
    run: usize,
    /// Stages.
    stages: usize,
    /// Devices of a node.
    devices: usize,
}

impl Numbering {
    /// `ranks` of a stage that lie `stride` apart in the stage's own numbers.
    fn group(&self, ranks: usize, stride: usize) -> Group {
        let Numbering { run, stages, devices } = *self;
        // From the first rank of one run to that of the next.
        let apart = |stride: usize| stride.saturating_mul(stages);
        if stride >= run {
            return Group::strided(ranks, apart(stride), devices);
        }
        let within = Group::strided(ranks.min(run / stride.max(1)), stride, devices);
        let runs = Group::strided(ranks.div_ceil(within.ranks), apart(run), devices);
        if runs.ranks == 1 {
            return within;
        }
        let per_node = (within.per_node * runs.per_node).clamp(1, ranks.max(1));
        Group { ranks: ranks.max(1), per_node, apart: runs.apart }
    }
}

/// Ranks that share each expert's matrices: as stated, or one where there are no ranks for more.
pub(super) fn expert_tensor(d: &Degrees) -> usize {
    let tensor = d.tensor.max(1);
    let etp = d.expert_tensor.clamp(1, tensor);
    let ranks = d.data.max(1).saturating_mul(d.context.max(1)).saturating_mul(tensor);
    if d.expert.max(1).saturating_mul(etp) > ranks { 1 } else { etp }
}
