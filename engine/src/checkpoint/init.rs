//! The first weights. A rank fills the part it owns and nothing else: drawn from (seed, the tensor's name, element), or read from a
//! checkpoint, so that the result depends neither on the strategy nor on the number of ranks, nor on who reads the files.

mod account;
mod packed;
mod stock;

use crate::checkpoint::inputs::Inputs;
use crate::checkpoint::overlap;
use crate::checkpoint::weights::CheckpointError;
use crate::compute::error::{Result, StepError};
use crate::exec::Executor;
use crate::formats::peft::tensor_name;
use crate::mesh::{Coords, within};
use crate::model::{FlatKind, Init, Layout, Part, Tensor, Unit};
use crate::observe::outcome::{LoadPhase, Loaded};
use crate::plan::placement::shard_dtype;
use crate::state::{Optimizer, Params, Resources, State};
use account::Account;
use std::ops::Range;
use stock::{Stock, refused};
use tracing::info;
use zbench_collectives::Communicator;
use zbench_kernels::{DType, KernelError, Kernels, Normal, Op, View, ViewMut, no_scratch};

/// Elements filled at a time.
const PIECE: usize = 1 << 18;

/// Fills this rank's part of every flat, and says what it took. A collective call where rank 0 reads for all: when one rank
/// fails, the others hear why.
pub fn fill(inputs: &Inputs<'_>, executor: &mut Executor<'_>) -> Result<Loaded> {
    let Executor { context, state, params, optimizer, .. } = executor;
    let res = context.resources();
    let told = inputs.probe.filter(|_| inputs.checkpoint.is_some());
    let tell = |moment| told.into_iter().for_each(|probe| probe(moment));
    tell(LoadPhase::LoadingBegins);
    let account = Account::new();
    let layout = &context.stage_plan.layout;
    let filled = Filler::new(inputs, (layout, state.place), res, &account)
        .and_then(|mut filler| filler.all(state, params, optimizer));
    tell(LoadPhase::LoadingEnds);
    if let Err(error) = filled {
        res.comms.world().abort(&error.to_string());
        return Err(error);
    }
    let loaded = account.close();
    if inputs.checkpoint.is_some() {
        let Loaded { read_bytes, received_bytes, ms, .. } = loaded;
        info!(target: "zbench::loading", read_bytes, received_bytes, seconds = ms / 1e3, "weights are loaded");
    }
    Ok(loaded)
}

struct Filler<'a> {
    inputs: &'a Inputs<'a>,
    /// Of the rank's stage.
    layout: &'a Layout,
    /// Where the rank stands in the mesh.
    place: Coords,
    res: Resources<'a>,
    account: &'a Account,
    model: Option<Stock<'a>>,
    adapters: Option<Stock<'a>>,
}

impl<'a> Filler<'a> {
    fn new(
        inputs: &'a Inputs<'a>,
        (layout, place): (&'a Layout, Coords),
        res: Resources<'a>,
        account: &'a Account,
    ) -> Result<Filler<'a>> {
        let (loading, comm) = (inputs.cell.model.loading, res.comms.data());
        let stock = |checkpoint| Stock::open(checkpoint, loading, comm, account);
        // A run that goes on has what trains from its training checkpoint: adapters, and the model where nothing is frozen.
        let fresh = inputs.resume.is_none();
        let frozen = layout.frozen_parameters() > 0;
        let model = inputs.checkpoint.filter(|_| fresh || frozen).map(stock).transpose()?;
        let adapters = inputs.adapters.filter(|_| fresh).map(stock).transpose()?;
        Ok(Filler { inputs, layout, place, res, account, model, adapters })
    }

    fn all(&mut self, state: &State, params: &mut Params, optimizer: &mut Optimizer) -> Result<()> {
        for (unit, spec) in self.layout.units.iter().enumerate() {
            params.open(self.res, unit)?;
            optimizer.open(self.res, unit)?;
            let (mut wanted, comm) = (self.wanted(spec).into_iter(), self.res.comms.data());
            for part in FlatKind::ALL {
                // What trains comes from the training checkpoint, if the run goes on from one.
                if !self.fills(part) {
                    continue;
                }
                let Some(flat_shard) = &state.shards[unit][part as usize] else { continue };
                let Some(shard) = params.shard_mut(unit, part) else { continue };
                let at_shard = within(&flat_shard.owned, &flat_shard.shard);
                let master = if part == FlatKind::Trainable { optimizer.master_mut(unit) } else { None };
                let mut target = match master {
                    Some(master) => master.view_mut(),
                    None => shard.slice_mut(at_shard.clone()),
                };
                match part {
                    FlatKind::Quantised => clear(self.res.kernels, target.reborrow())?,
                    _ => self.res.kernels.fill(target.reborrow(), 0.0)?,
                }
                let bytes = target.len() * target.dtype().size();
                for tensor in spec.tensors_of(part) {
                    let source = wanted.next().flatten();
                    if let Some((stock, name)) = source.as_ref().and_then(|source| self.stock(source)) {
                        stock.bring(name, comm)?;
                    }
                    let span = tensor.place.range();
                    if let Some(cut) = overlap(&span, &flat_shard.owned) {
                        let dst = target.slice_mut(within(&cut, &flat_shard.owned));
                        let range = within(&cut, &span);
                        match tensor.packed {
                            Some(matrix) => packed::put(self, spec, tensor, matrix, range, dst)?,
                            None => self.tensor(spec, tensor, range, dst)?,
                        }
                    }
                    // It is kept where another tensor is read from it, too.
                    let last = source.filter(|last| !wanted.as_slice().iter().flatten().any(|next| next == last));
                    if let Some((stock, name)) = last.as_ref().and_then(|source| self.stock(source)) {
                        stock.give_back(name);
                    }
                }
                self.account.keeps(bytes);
                if let (FlatKind::Trainable, Some(master)) = (part, optimizer.master_mut(unit)) {
                    let shard = shard.slice_mut(at_shard);
                    self.account.keeps(shard.len() * shard.dtype().size());
                    self.res.kernels.cast(master.view(), shard)?;
                }
            }
            params.close(self.res, unit, true)?;
            optimizer.close(self.res, unit, true)?;
        }
        Ok(())
    }

    fn fills(&self, part: FlatKind) -> bool {
        part != FlatKind::Trainable || self.inputs.resume.is_none()
    }

    /// What each of a unit's tensors, in the order of filling, is read from, where that comes from rank 0.
    fn wanted(&self, unit: &Unit) -> Vec<Option<Wanted>> {
        let wire = |stock: &Option<Stock<'_>>| stock.as_ref().is_some_and(Stock::is_wire);
        if !wire(&self.model) && !wire(&self.adapters) {
            return Vec::new();
        }
        let tensors = FlatKind::ALL.into_iter().filter(|part| self.fills(*part)).flat_map(|part| unit.tensors_of(part));
        let wanted = tensors.map(|tensor| {
            let source = match (self.source(tensor), tensor.init) {
                (None, Init::NormsOf(place)) => unit.tensors.iter().find(|of| of.place == place)?,
                _ => tensor,
            };
            let (_, name) = self.source(source)?;
            Some(Wanted { in_checkpoint: source.in_checkpoint, name })
        });
        wanted.collect()
    }

    fn stock<'n>(&mut self, of: &'n Wanted) -> Option<(&mut Stock<'a>, &'n str)> {
        let stock = if of.in_checkpoint { self.model.as_mut() } else { self.adapters.as_mut() };
        Some((stock?, &of.name))
    }

    /// Where a tensor's elements are stored; `None` if they are drawn.
    fn source(&self, tensor: &Tensor) -> Option<(&Stock<'a>, String)> {
        match tensor.in_checkpoint {
            true => Some((self.model.as_ref()?, tensor.stored_name().to_string())),
            false => Some((self.adapters.as_ref()?, tensor_name(tensor.stored_name()))),
        }
    }

    /// Elements `range` of what this rank has of a tensor; its padding stays as it is.
    fn tensor(&self, unit: &Unit, tensor: &Tensor, range: Range<usize>, mut dst: ViewMut<'_>) -> Result<()> {
        if let (Some(source), Some(columns)) = (self.source(tensor), tensor.columns_of_transposed(&self.place)) {
            return self.columns(tensor, source, columns, range, dst);
        }
        for Part { ours, whole, len } in tensor.parts(&self.place, range.clone()) {
            let to = dst.slice_mut(within(&(ours..ours + len), &range));
            self.elements(unit, tensor, whole..whole + len, to)?;
        }
        Ok(())
    }

    /// Elements `range` of what this rank has of a tensor that is cut by columns and stored transposed: there a column's rows lie together,
    /// so rows are read for many columns at a time.
    fn columns(
        &self,
        tensor: &Tensor,
        (stock, name): (&Stock<'a>, String),
        columns: Range<usize>,
        range: Range<usize>,
        mut dst: ViewMut<'_>,
    ) -> Result<()> {
        let load = self.inputs.cell.precision.load.filter(|_| tensor.in_checkpoint);
        let (cols, whole) = (tensor.shape[1], tensor.whole[1]);
        let (first, last) = (range.start / cols, range.end.div_ceil(cols));
        let at_once = (PIECE / cols).max(1);
        let (mut values, mut together) = (vec![0f32; at_once.min(last - first) * cols], Vec::new());
        let _held = self.account.holds::<f32>(values.len());
        for row in (first..last).step_by(at_once) {
            let rows = row..(row + at_once).min(last);
            values.fill(0.0);
            for run in tensor.runs(rows.start * whole..rows.end * whole) {
                let column = run.ours % whole;
                if !columns.contains(&column) {
                    continue;
                }
                together.resize(run.len, 0.0);
                stock.read(&name, run.stored..run.stored + run.len, &mut together).map_err(refused)?;
                let to = (run.ours / whole - rows.start) * cols + column - columns.start;
                values[to..].iter_mut().step_by(cols).zip(&together).for_each(|(to, from)| *to = *from);
            }
            round_to(load, &mut values);
            let piece = (rows.start * cols).max(range.start)..(rows.end * cols).min(range.end);
            let own = &values[piece.start - rows.start * cols..piece.end - rows.start * cols];
            self.res.kernels.cast(View::of(own), dst.slice_mut(within(&piece, &range)))?;
        }
        Ok(())
    }

    /// Elements `range` of a whole tensor.
    fn elements(&self, unit: &Unit, tensor: &Tensor, range: Range<usize>, mut dst: ViewMut<'_>) -> Result<()> {
        // Adapters are no part of what is loaded.
        let load = self.inputs.cell.precision.load.filter(|_| tensor.in_checkpoint);
        let source = self.source(tensor);
        if source.is_none() && load.is_none() {
            return self.draw(unit, tensor, range, dst);
        }
        let mut values = vec![0f32; PIECE.min(range.len())];
        let _held = self.account.holds::<f32>(values.len());
        for start in range.clone().step_by(PIECE) {
            let piece = start..(start + PIECE).min(range.end);
            let values = &mut values[..piece.len()];
            match &source {
                Some((stock, name)) => read_stored(stock, name, tensor, piece.clone(), values).map_err(refused)?,
                None => self.draw(unit, tensor, piece.clone(), ViewMut::of(values))?,
            }
            round_to(load, values);
            self.res.kernels.cast(View::of(values), dst.slice_mut(within(&piece, &range)))?;
        }
        Ok(())
    }

    /// Elements `range` of a whole tensor's first values, drawn.
    fn draw(&self, unit: &Unit, tensor: &Tensor, range: Range<usize>, dst: ViewMut<'_>) -> Result<()> {
        match tensor.init {
            Init::NormsOf(place) => {
                let matrix = unit.tensors.iter().find(|tensor| tensor.place == place);
                let matrix = matrix.ok_or(StepError::Bug("norms of a tensor that is not there"))?;
                self.norms_of(unit, matrix, range, dst)
            }
            _ => Ok(draw(self.res.kernels, self.inputs.cell.train.seed, tensor, range, dst)?),
        }
    }

    /// The norms of rows `range` of a matrix as its shard holds it. Whoever owns the norms need not own the matrix, so its
    /// rows are drawn or read again.
    fn norms_of(&self, unit: &Unit, matrix: &Tensor, range: Range<usize>, mut dst: ViewMut<'_>) -> Result<()> {
        let (cols, shard) = (matrix.whole[1], shard_dtype(self.inputs.cell, matrix.place.part));
        for row in range.clone() {
            let mut values = vec![0f32; cols];
            let _held = self.account.holds::<f32>(cols);
            self.elements(unit, matrix, row * cols..(row + 1) * cols, ViewMut::of(&mut values))?;
            round_to(Some(shard), &mut values);
            let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            self.res.kernels.fill(dst.slice_mut(within(&(row..row + 1), &range)), norm)?;
        }
        Ok(())
    }
}

/// A tensor of a checkpoint that comes from rank 0.
#[derive(PartialEq)]
struct Wanted {
    /// Whether it is the model's, not the adapters'.
    in_checkpoint: bool,
    name: String,
}

/// Elements `range` of a whole tensor's first values, drawn. What follows from another tensor is nothing here.
pub(crate) fn draw(
    kernels: &dyn Kernels,
    seed: u64,
    tensor: &Tensor,
    range: Range<usize>,
    dst: ViewMut<'_>,
) -> Result<(), KernelError> {
    match tensor.init {
        Init::Constant(value) => kernels.fill(dst, value),
        Init::Normal(std) => {
            let (len, dtype) = (dst.len(), dst.dtype());
            let seed = seed ^ tensor.stream();
            let op = Op::Normal(Normal { len, std, seed, first: range.start as u64, dtype });
            kernels.run(&op, &[], &mut [dst], no_scratch())
        }
        Init::NormsOf(_) => kernels.fill(dst, 0.0),
    }
}

fn clear(kernels: &dyn Kernels, mut dst: ViewMut<'_>) -> Result<(), KernelError> {
    let zeros = vec![0i8; PIECE.min(dst.len())];
    for start in (0..dst.len()).step_by(PIECE) {
        let end = dst.len().min(start + PIECE);
        kernels.upload(View::of(&zeros[..end - start]), dst.slice_mut(start..end))?;
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

/// Elements `range` of a whole tensor, from wherever the stock has them under `name`.
fn read_stored(
    stock: &Stock<'_>,
    name: &str,
    tensor: &Tensor,
    range: Range<usize>,
    values: &mut [f32],
) -> Result<(), CheckpointError> {
    let mut together = Vec::new();
    for run in tensor.runs(range.clone()) {
        let (first, there) = (run.ours - range.start, run.stored..run.stored + run.len);
        if run.step == 1 {
            stock.read(name, there, &mut values[first..first + run.len])?;
            continue;
        }
        together.resize(run.len, 0.0);
        stock.read(name, there, &mut together)?;
        values[first..].iter_mut().step_by(run.step).zip(&together).for_each(|(to, from)| *to = *from);
    }
    let shift = tensor.shift();
    if shift != 0.0 {
        values.iter_mut().for_each(|value| *value += shift);
    }
    Ok(())
}
