//! The first weights. A rank fills the part it owns and nothing else: drawn from (seed, tensor, element), or read from the
//! slices of a checkpoint, so that the result depends neither on the strategy nor on the number of ranks.

mod packed;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::layers::StepError;
use crate::mesh::within;
use crate::model::{Init, Part, Tensor, Unit};
use crate::peft::tensor_name;
use crate::plan::home_dtype;
use crate::rank::Inputs;
use crate::shard::{Desk, Optimizer, Params, State};
use std::ops::Range;
use zbench_kernels::{DType, Normal, View, ViewMut};

type Result<T, E = StepError> = std::result::Result<T, E>;

/// Elements of a checkpoint read at a time.
const READ: usize = 1 << 18;

/// Fills this rank's part of every flat.
pub fn fill(
    inputs: &Inputs<'_>,
    state: &State,
    desk: Desk<'_>,
    params: &mut Params,
    optimizer: &mut Optimizer,
) -> Result<()> {
    for (unit, spec) in inputs.plan.layout.units.iter().enumerate() {
        for part in Part::ALL {
            // What trains comes from the training checkpoint, if the run goes on from one.
            if part == Part::Trainable && inputs.resume.is_some() {
                continue;
            }
            let Some(holding) = &state.holdings[unit][part as usize] else { continue };
            let Some(home) = params.home_mut(unit, part) else { continue };
            let at_home = within(&holding.owned, &holding.home);
            let master = if part == Part::Trainable { optimizer.master_mut(unit) } else { None };
            let mut target = match master {
                Some(master) => master.view_mut(),
                None => home.slice_mut(at_home.clone()),
            };
            if part == Part::Quantised {
                fill_packed(inputs, desk, spec, &holding.owned, target.as_slice_mut()?)?;
                continue;
            }
            desk.kernels.fill(target.reborrow(), 0.0)?;
            for tensor in spec.tensors_of(part) {
                let span = tensor.place.range();
                let cut = span.start.max(holding.owned.start)..span.end.min(holding.owned.end);
                if !cut.is_empty() {
                    let dst = target.slice_mut(within(&cut, &holding.owned));
                    fill_tensor(inputs, desk, spec, tensor, within(&cut, &span), dst)?;
                }
            }
            if let (Part::Trainable, Some(master)) = (part, optimizer.master_mut(unit)) {
                desk.kernels.cast(master.view(), home.slice_mut(at_home))?;
            }
        }
    }
    Ok(())
}

/// Fills the owned bytes of a unit's matrices in few bits.
fn fill_packed(
    inputs: &Inputs<'_>,
    desk: Desk<'_>,
    unit: &Unit,
    owned: &Range<usize>,
    target: &mut [i8],
) -> Result<()> {
    target.fill(0);
    for tensor in unit.tensors_of(Part::Quantised) {
        let span = tensor.place.range();
        let cut = span.start.max(owned.start)..span.end.min(owned.end);
        if let (false, Some(matrix)) = (cut.is_empty(), tensor.packed) {
            let dst = &mut target[within(&cut, owned)];
            packed::fill(inputs, desk, unit, tensor, matrix, within(&cut, &span), dst)?;
        }
    }
    Ok(())
}

/// Fills elements `range` of a tensor.
fn fill_tensor(
    inputs: &Inputs<'_>,
    desk: Desk<'_>,
    unit: &Unit,
    tensor: &Tensor,
    range: Range<usize>,
    mut dst: ViewMut<'_>,
) -> Result<()> {
    // Adapters are no part of what is loaded.
    let load = inputs.cell.precision.load.filter(|_| tensor.in_checkpoint);
    let source = match tensor.in_checkpoint {
        true => inputs.checkpoint.map(|checkpoint| (checkpoint, tensor.stored_name().to_string())),
        false => inputs.adapters.map(|adapters| (adapters, tensor_name(tensor.stored_name()))),
    };
    if source.is_none() && load.is_none() {
        return draw(inputs, desk, unit, tensor, range, dst);
    }
    let mut values = vec![0f32; READ.min(range.len())];
    for start in range.clone().step_by(READ) {
        let piece = start..(start + READ).min(range.end);
        let values = &mut values[..piece.len()];
        match &source {
            Some((checkpoint, name)) => read_stored(checkpoint, name, tensor, piece.clone(), values)
                .map_err(|error| StepError::Input(error.to_string()))?,
            None => draw(inputs, desk, unit, tensor, piece.clone(), ViewMut::of(values))?,
        }
        round_to(load, values);
        desk.kernels.cast(View::of(values), dst.slice_mut(within(&piece, &range)))?;
    }
    Ok(())
}

/// Elements `range` of a tensor's first values, drawn.
fn draw(
    inputs: &Inputs<'_>,
    desk: Desk<'_>,
    unit: &Unit,
    tensor: &Tensor,
    range: Range<usize>,
    dst: ViewMut<'_>,
) -> Result<()> {
    match tensor.init {
        Init::Constant(value) => Ok(desk.kernels.fill(dst, value)?),
        Init::Normal(std) => {
            let (len, dtype) = (dst.len(), dst.dtype());
            let seed = inputs.cell.train.seed ^ tensor.stream.rotate_left(40);
            let op = Normal { len, std, seed, first: range.start as u64, dtype };
            Ok(desk.kernels.normal(&op, dst)?)
        }
        Init::NormsOf(place) => {
            let matrix = unit.tensors.iter().find(|tensor| tensor.place == place);
            let matrix = matrix.ok_or_else(|| StepError::Input("norms of a tensor that is not there; a bug".into()))?;
            norms_of(inputs, desk, unit, matrix, range, dst)
        }
    }
}

/// The norms of rows `range` of a matrix as its home holds it. Whoever owns the norms need not own the matrix, so its rows
/// are drawn or read again.
fn norms_of(
    inputs: &Inputs<'_>,
    desk: Desk<'_>,
    unit: &Unit,
    matrix: &Tensor,
    range: Range<usize>,
    mut dst: ViewMut<'_>,
) -> Result<()> {
    let (cols, home) = (matrix.shape[1], home_dtype(inputs.cell, matrix.place.part));
    for row in range.clone() {
        let mut values = vec![0f32; cols];
        fill_tensor(inputs, desk, unit, matrix, row * cols..(row + 1) * cols, ViewMut::of(&mut values))?;
        round_to(Some(home), &mut values);
        let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        desk.kernels.fill(dst.slice_mut(within(&(row..row + 1), &range)), norm)?;
    }
    Ok(())
}

/// Rounds values to the type they are loaded in.
fn round_to(load: Option<DType>, values: &mut [f32]) {
    match load {
        Some(DType::Bf16) => values.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32()),
        Some(DType::F16) => values.iter_mut().for_each(|value| *value = half::f16::from_f32(*value).to_f32()),
        _ => {}
    }
}

/// Elements `range` of a tensor, from wherever the checkpoint has them under `name`.
fn read_stored(
    checkpoint: &Checkpoint,
    name: &str,
    tensor: &Tensor,
    range: Range<usize>,
    values: &mut [f32],
) -> Result<(), CheckpointError> {
    let mut together = Vec::new();
    for run in tensor.runs(range.clone()) {
        let (first, there) = (run.ours - range.start, run.stored..run.stored + run.len);
        if run.step == 1 {
            checkpoint.read(name, there, &mut values[first..first + run.len])?;
            continue;
        }
        together.resize(run.len, 0.0);
        checkpoint.read(name, there, &mut together)?;
        values[first..].iter_mut().step_by(run.step).zip(&together).for_each(|(to, from)| *to = *from);
    }
    let shift = tensor.shift();
    if shift != 0.0 {
        values.iter_mut().for_each(|value| *value += shift);
    }
    Ok(())
}
