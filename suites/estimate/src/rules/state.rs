//! Model state: bytes of weights, gradients and the optimizer, whole and split.

use super::{Check, digits};
use crate::job::{Job, Peft};

const UNIT: &str = "bytes";

/// Bytes per parameter of each part. The paper's K is `optimizer`: the f32 copy of the weights and both moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bytes {
    /// Weights.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// The optimizer's copy of the weights and its moments.
    pub optimizer: f64,
}

impl Bytes {
    /// 16-bit weights and gradients, Adam in f32: 2 + 2 + 12.
    pub const SIXTEEN: Bytes = Bytes { weights: 2.0, gradients: 2.0, optimizer: 12.0 };
    /// Gradients kept in f32: 2 + 4 + 12.
    pub const EIGHTEEN: Bytes = Bytes { gradients: 4.0, ..Bytes::SIXTEEN };

    /// Of all three.
    pub fn sum(self) -> f64 {
        self.weights + self.gradients + self.optimizer
    }
}

/// Over how many ranks each part is split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Over {
    /// Weights.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// The optimizer.
    pub optimizer: f64,
}

impl Over {
    /// ZeRO's stages 0 to 3 over `ranks`.
    pub fn zero(stage: u8, ranks: f64) -> Over {
        let from = |first: u8| if stage >= first { ranks } else { 1.0 };
        Over { weights: from(3), gradients: from(2), optimizer: from(1) }
    }
}

/// Parts of a model's state on one rank.
pub fn state(check: Check, parameters: f64, bytes: Bytes, over: Over) -> Check {
    let part = |per: f64, ranks: f64| {
        let how = format!("{} × {}", digits(per), digits(parameters));
        (if ranks == 1.0 { how } else { format!("{how} / {}", digits(ranks)) }, per * parameters / ranks)
    };
    let (weights, gradients) = (part(bytes.weights, over.weights), part(bytes.gradients, over.gradients));
    let optimizer = part(bytes.optimizer, over.optimizer);
    check.term("weights", weights.0, weights.1).term("gradients", gradients.0, gradients.1).term(
        "optimizer",
        optimizer.0,
        optimizer.1,
    )
}

/// 16 bytes per parameter over all ranks together.
pub fn sixteen(parameters: f64) -> Check {
    let says = "16 bytes per parameter: 16-bit weights and gradients, f32 copy and two moments (2 + 2 + 12)";
    let check = Check::new("state-16-bytes", says, "ZeRO paper, section 3.1", UNIT);
    state(check, parameters, Bytes::SIXTEEN, Over::zero(0, 1.0))
}

/// 18 bytes per parameter over all ranks together.
pub fn eighteen(parameters: f64) -> Check {
    let says = "18 bytes per parameter: gradients are summed and kept in f32 (2 + 4 + 12)";
    let check = Check::new("state-18-bytes", says, "Megatron-LM; ml-engineering", UNIT);
    state(check, parameters, Bytes::EIGHTEEN, Over::zero(0, 1.0))
}

/// The ZeRO paper's formula of a stage: 16P, 4P + 12P/N, 2P + 14P/N, 16P/N.
pub fn zero(stage: u8, parameters: f64, ranks: f64) -> Check {
    const NAMES: [&str; 4] = ["state-zero-0", "state-zero-1", "state-zero-2", "state-zero-3"];
    const SAYS: [&str; 4] = ["2P + 2P + 12P", "2P + 2P + 12P/N", "2P + 2P/N + 12P/N", "2P/N + 2P/N + 12P/N"];
    let stage = stage.min(3);
    let check =
        Check::new(NAMES[usize::from(stage)], SAYS[usize::from(stage)], "ZeRO paper, figure 1 and table 1", UNIT);
    state(check, parameters, Bytes::SIXTEEN, Over::zero(stage, ranks))
}

/// Megatron's distributed optimizer: 6P + 12P/N, gradients whole in f32.
pub fn distributed_optimizer(parameters: f64, ranks: f64) -> Check {
    let says = "6P + 12P/N: weights in 16 bits and gradients in f32 whole, the optimizer split";
    let check = Check::new("state-distributed-optimizer", says, "Megatron-LM, docs on dist_optimizer", UNIT);
    state(check, parameters, Bytes::EIGHTEEN, Over::zero(1, ranks))
}

/// Those that say something about a job.
pub(super) fn all(job: &Job) -> Vec<Check> {
    let parameters = job.model.parameters() as f64;
    let mut list = vec![sixteen(parameters), eighteen(parameters)];
    // Of a rank: tensor and pipeline degrees split the model evenly, as the rules have it.
    let of_rank = parameters / (job.degrees.tensor as f64 * job.degrees.pipeline as f64).max(1.0);
    let data = (job.degrees.data as f64 * job.degrees.context as f64).max(1.0);
    list.extend((0..4).map(|stage| zero(stage, of_rank, data)));
    list.push(distributed_optimizer(of_rank, data));
    let p = &job.precision;
    let bytes = Bytes { weights: p.weights.bytes(), gradients: p.gradients, optimizer: p.master + p.moments };
    let s = &job.sharding;
    let over = Over { weights: s.parameters as f64, gradients: s.gradients as f64, optimizer: s.optimizer as f64 };
    let ours = "this job's bytes per parameter over its groups";
    match job.peft {
        Peft::None => {
            list.push(state(Check::new("state-of-this-job", ours, "arithmetic", UNIT), of_rank, bytes, over));
        }
        Peft::Adapters { trainable, base, weight_bytes, .. } => {
            let says = "a frozen base without gradients or optimizer, and this job's bytes for the adapters";
            let frozen = base.bytes() * of_rank / over.weights;
            let how = format!("{} × {} / {}", digits(base.bytes()), digits(of_rank), digits(over.weights));
            let check = Check::new("state-of-this-job", says, "arithmetic", UNIT).term("frozen base", how, frozen);
            let bytes = Bytes { weights: weight_bytes, ..bytes };
            list.push(state(check, trainable as f64, bytes, over));
        }
    }
    list
}
