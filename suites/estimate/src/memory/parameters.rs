//! Parameters on one rank, by how they are split.

use super::stages::Part;
use crate::job::{Job, Kind, Peft, Shape, Targets};
use crate::shape::{BlockKind, Matrix, Role};

/// Parameters on one tensor (and expert) rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// Split over the data axes as a whole model is.
    pub common: f64,
    /// Experts: split over what of the data axes the expert axis leaves.
    pub experts: f64,
}

impl Split {
    /// Both.
    pub fn all(&self) -> f64 {
        self.common + self.experts
    }

    fn times(self, count: f64) -> Split {
        Split { common: self.common * count, experts: self.experts * count }
    }

    fn plus(self, other: Split) -> Split {
        Split { common: self.common + other.common, experts: self.experts + other.experts }
    }
}

/// Parameters of each kind of block and of the ends, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// A block with an MLP.
    pub dense: Split,
    /// A block with experts.
    pub sparse: Split,
    /// A decoder's block beside an encoder.
    pub cross: Split,
    /// The embedding and positions.
    pub embedding: f64,
    /// The head's own matrix and last norm.
    pub head: f64,
    /// The whole of a plain count, on one rank.
    pub counted: f64,
    /// The largest unit that is gathered at once.
    pub unit: f64,
    /// The largest matrix, on one rank.
    pub matrix: f64,
    /// Trainable parameters of adapters, on one rank, over the whole model.
    pub adapters: f64,
    /// All parameters of the model, on one tensor rank of a pipeline of one.
    pub model: f64,
}

impl Counts {
    /// Those of a job.
    pub fn of(job: &Job) -> Counts {
        let (model, degrees) = (&job.model, &job.degrees);
        let tensor = degrees.tensor.max(1) as f64;
        let mut counts = Counts::default();
        if let Kind::Count { largest_layer } = model.kind {
            let ranks = tensor * degrees.pipeline.max(1) as f64;
            counts.counted = model.stated_parameters as f64 / ranks;
            counts.unit = largest_layer as f64 / tensor;
            counts.matrix = counts.unit;
            counts.model = counts.counted;
            return counts;
        }
        let mut all = 0.0;
        for block in model.blocks() {
            let part = per_rank(job, &block);
            all += part.all() * block.count as f64;
            let largest =
                block.matrices.iter().map(|m| m.inputs as f64 * m.outputs as f64 / tensor).fold(0.0, f64::max);
            counts.matrix = counts.matrix.max(largest);
            match (block.cross, block.sparse) {
                (true, _) => counts.cross = part,
                (_, true) => counts.sparse = part,
                _ => counts.dense = part,
            }
        }
        let hidden = model.hidden as f64;
        counts.embedding = model.vocab as f64 * hidden / tensor + model.position_parameters() as f64;
        let head = model.head_parameters() as f64;
        counts.head = if model.tied { head } else { (head - model.norm() as f64) / tensor + model.norm() as f64 };
        counts.model = all + counts.embedding + counts.head;
        // What is gathered at once is a block; the ends stay gathered (see `Habits::root`).
        counts.unit = counts.dense.all().max(counts.sparse.all()).max(counts.cross.all());
        counts.adapters = match job.peft {
            Peft::None => 0.0,
            Peft::Adapters { trainable, .. } if trainable > 0 => trainable as f64,
            Peft::Adapters { rank, targets, .. } => adapters(&job.model, rank as f64, targets),
        };
        counts
    }

    /// Those of a stage.
    pub fn stage(&self, job: &Job, part: &Part) -> Split {
        let mut sum =
            self.dense.times(part.dense).plus(self.sparse.times(part.sparse)).plus(self.cross.times(part.cross));
        sum.common += self.counted;
        if self.counted > 0.0 {
            return sum;
        }
        if part.first() {
            sum.common += self.embedding;
        }
        if part.last() {
            sum.common += self.head;
            let again = job.model.vocab as f64 * job.model.hidden as f64 / job.degrees.tensor.max(1) as f64;
            if part.of > 1 && (job.model.tied || job.model.ahead > 0) {
                // A tied head's matrix stands on both ends; a block that looks ahead reads the embedding, too.
                sum.common += again;
            }
            let ahead = job.model.ahead as f64;
            let block = if job.model.experts.is_some() { self.sparse } else { self.dense };
            let joint = 2.0 * (job.model.hidden as f64).powi(2) / job.degrees.tensor.max(1) as f64;
            sum = sum.plus(block.times(ahead)).plus(Split { common: ahead * joint, experts: 0.0 });
        }
        sum
    }
}

fn per_rank(job: &Job, block: &BlockKind) -> Split {
    let tensor = job.degrees.tensor.max(1) as f64;
    let expert_ranks = (job.degrees.expert.max(1) * job.degrees.expert_tensor.max(1)) as f64;
    let (mut common, mut experts) = (0.0, 0.0);
    let mut biases = 0.0;
    for matrix in &block.matrices {
        let elements = matrix.parameters() as f64;
        let bias = (matrix.outputs * matrix.copies) as f64;
        match matrix.role {
            Role::Whole => common += elements,
            Role::Qkv | Role::Up | Role::Head => {
                common += elements / tensor;
                biases += bias / tensor;
            }
            Role::Output | Role::Down => {
                common += elements / tensor;
                biases += bias;
            }
            Role::ExpertUp | Role::ExpertDown => experts += elements / expert_ranks,
        }
    }
    let norms = job.model.norm() as f64 * if block.cross { 3.0 } else { 2.0 };
    common += norms + if job.model.bias { biases } else { 0.0 };
    Split { common, experts }
}

/// Parameters of adapters of a rank on the targets of all blocks. Factors (rank 0) scale what a matrix writes, and what the MLP's last
/// one reads.
fn adapters(model: &Shape, rank: f64, targets: Targets) -> f64 {
    let of = |matrix: &Matrix| {
        let (count, outputs) = model.adapted(targets, matrix);
        let inputs = count * matrix.inputs as f64;
        let each = match matrix.role {
            Role::Down | Role::ExpertDown if rank == 0.0 => inputs,
            _ if rank == 0.0 => outputs,
            _ => rank * (inputs + outputs),
        };
        each * matrix.copies as f64
    };
    let of_block = |block: &BlockKind| block.count as f64 * block.matrices.iter().map(of).sum::<f64>();
    model.blocks().iter().map(of_block).sum()
}
