//! What a cell's run has to equal: the run of a reference, in which all is left out that must not change a number; and what it has to be
//! near to, where only the order of sums may be another.

use super::cells::{Case, Meeting};
use super::sections::Trained;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::Step;
use zbench_kernels::DType;

/// The cell whose losses, norms, evaluations and last weights another one must have, to the bit. `None` where it is the cell itself.
///
/// It keeps everything that backward reads, gathers nothing ahead, reduces all units in one call, has its state on the device, one
/// stage, ranks of one thread that meet in memory, and the first strategy of those that add in the same order. Kept is what has an order
/// of sums of its own: ranks, tensor and sequence degree, precision, the two ends of a pipeline that share a matrix.
pub fn reference(case: &Case) -> Option<Cell> {
    let mut cell = case.cell.clone();
    let memory = &case.cell.memory;
    cell.memory = Memory { attention: memory.attention, ..Memory::default() };
    cell.model.loading = Loading::Everywhere;
    cell.hardware.threads_per_rank = 1;
    let parallel = &mut cell.parallel;
    (parallel.strategy, parallel.backend) = (first_alike(&case.cell), Backend::Local);
    (parallel.prefetch, parallel.tensor_chunks, parallel.bucket_mb) = (0, 1, BUCKET_MB);
    let degrees = &mut parallel.degrees;
    if degrees.pipeline > 1 && shares_ends(&case.cell) {
        (degrees.pipeline_schedule, degrees.virtual_stages) = (PipelineSchedule::GPipe, 1);
    } else {
        parallel.ranks /= degrees.pipeline;
        let Degrees { tensor, sequence, .. } = *degrees;
        *degrees = Degrees { tensor, sequence, ..Degrees::default() };
    }
    let is_same =
        case.meeting == Meeting::Threads && Cell { parallel: as_given(&cell, case), ..cell.clone() } == case.cell;
    (!is_same).then_some(cell)
}

/// The cell to whose losses and norms those of another one must be near: ranks that have whole matrices and all blocks. `None` where a
/// cell has neither tensor ranks nor a matrix that two stages share, and where tensor ranks drop columns of their own at random.
pub fn near(case: &Case) -> Option<Cell> {
    let Degrees { tensor, pipeline, .. } = case.cell.parallel.degrees;
    let sums_otherwise = tensor > 1 || pipeline > 1 && shares_ends(&case.cell);
    if !sums_otherwise || case.cell.lora.on() && case.cell.lora.dropout > 0.0 {
        return None;
    }
    let mut cell = reference(case).unwrap_or_else(|| case.cell.clone());
    cell.parallel.ranks = case.cell.parallel.ranks / (tensor * pipeline);
    cell.parallel.degrees = Degrees::default();
    Some(cell)
}

/// How far losses and norms may be off where sums are in another order, relative: 1e-5 in f32. With less, a share of the compute type's unit
/// roundoff u for losses, which are means over many roundings, and some of it for norms; the cells of the golden dump have half of that.
fn tolerances(compute: DType) -> [f64; 2] {
    let roundoff: f64 = match compute {
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => return [1e-5; 2],
    };
    [roundoff / 8.0, 4.0 * roundoff]
}

/// The first step that is further off than it may be.
pub fn distance(cell: &Cell, ours: &Trained, theirs: &Trained) -> Option<String> {
    let [of_losses, of_norms] = tolerances(cell.precision.compute);
    let far = |a: f64, b: f64, tolerance: f64| (a - b).abs() > tolerance * b.abs();
    let is_far = |(a, b): &(&Step, &Step)| far(a.loss, b.loss, of_losses) || far(a.grad_norm, b.grad_norm, of_norms);
    let step = ours.steps.iter().zip(&theirs.steps).find(is_far);
    step.map(|(a, b)| {
        format!("step {}: loss {} for {}, norm {} for {}", a.step, a.loss, b.loss, a.grad_norm, b.grad_norm)
    })
}

/// Whether both ends of a pipeline sum gradients of one matrix.
fn shares_ends(cell: &Cell) -> bool {
    cell.model.tie_word_embeddings && !cell.lora.on()
}

/// With the size of buckets of the case, which is no difference by itself.
fn as_given(cell: &Cell, case: &Case) -> Parallel {
    Parallel { bucket_mb: case.cell.parallel.bucket_mb, ..cell.parallel.clone() }
}

/// The first strategy whose sums are in the order of this cell's. With one micro-batch all strategies have one order; with more it depends
/// on whether micro-batches or ranks are added first. What is rounded for the wire, or kept in 16 bits, is rounded once more between the
/// levels of a hybrid mesh; what is rounded for the wire also on the way back from an all-reduce.
fn first_alike(cell: &Cell) -> Strategy {
    let Parallel { strategy: own, ranks, shard, degrees, .. } = &cell.parallel;
    let data = ranks / (degrees.tensor * degrees.pipeline);
    let has_two_levels = own.is_hybrid() && *shard > 1 && *shard < data;
    let Precision { gradients, reduce, .. } = cell.precision;
    let is_rounded = reduce.size() < gradients.size();
    let accumulates = cell.train.accumulation > 1;
    match own {
        _ if has_two_levels && (reduce != DType::F32 || gradients != DType::F32) => *own,
        Strategy::Hsdp | Strategy::HsdpFullOptimizer if is_rounded => *own,
        Strategy::Hsdp | Strategy::HsdpFullOptimizer if accumulates => Strategy::Hsdp,
        Strategy::Ddp | Strategy::Zero1 if is_rounded => *own,
        Strategy::Ddp | Strategy::Zero1 => Strategy::Ddp,
        _ if accumulates => Strategy::Zero2,
        _ if is_rounded => Strategy::Zero1,
        _ => Strategy::Ddp,
    }
}

/// The first difference between what training gave and what it gave of the reference.
pub fn difference(ours: &Trained, theirs: &Trained) -> Option<String> {
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits();
    for (a, b) in ours.steps.iter().zip(&theirs.steps) {
        let step = a.step;
        if !(a.loss.is_finite() && same(a.loss, b.loss)) {
            return Some(format!("step {step}: loss {} for {}", a.loss, b.loss));
        }
        // Gradients that overflowed have a norm that is no number, and no certain bits; such a step is skipped.
        let is_alike = same(a.grad_norm, b.grad_norm) || a.skipped && a.grad_norm.is_nan() && b.grad_norm.is_nan();
        if !is_alike {
            return Some(format!("step {step}: norm {} for {}", a.grad_norm, b.grad_norm));
        }
        let rest = |step: &Step| (step.lr.to_bits(), step.tokens, step.loss_scale, step.skipped);
        if rest(a) != rest(b) {
            return Some(format!("step {step}: {:?} for {:?}", rest(a), rest(b)));
        }
    }
    for (a, b) in ours.evaluations.iter().zip(&theirs.evaluations) {
        if !same(a.loss, b.loss) || (a.step, a.tokens) != (b.step, b.tokens) {
            return Some(format!("evaluation after step {}: {} for {}", a.step, a.loss, b.loss));
        }
    }
    for (name, _, values) in &ours.weights {
        let Some((_, _, others)) = theirs.weights.iter().find(|(other, ..)| other == name) else {
            return Some(format!("the reference has no weights {name}"));
        };
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        if bits(values) != bits(others) {
            return Some(format!("weights {name}"));
        }
    }
    let counts = |of: &Trained| [of.steps.len(), of.evaluations.len(), of.weights.len()];
    (counts(ours) != counts(theirs))
        .then(|| format!("{:?} steps, evaluations and tensors for {:?}", counts(ours), counts(theirs)))
}
