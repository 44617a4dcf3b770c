//! The estimate: the plan's actions walked with a sketch in place of a device.

use super::blocks::{Blocks, Turn};
use super::{Action, Looks, Plan, batch, flops, home_dtype};
use crate::config::{Cell, Evaluation};
use crate::evaluate;
use crate::layers::prepacked::{self, Prepacked};
use crate::layers::{Phase, Piece, Saved, Sketch, Stated};
use crate::model::Part;
use crate::outcome::Estimate;
use crate::rope;
use crate::shard::{Collective, Gradients, Optimizer, Params, State, Tally};
use zbench_kernels::{Category, DType, Kernels};

/// What an action of a plan will do.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionStated {
    /// Which.
    pub action: Action,
    /// Its operations, in order.
    pub operations: Vec<Stated>,
    /// Its collectives, in order.
    pub collectives: Vec<Collective>,
}

/// The actions of one step of a rank with all they do, one after the other: a long step's do not fit memory at once.
pub fn stated<'a>(
    cell: &'a Cell,
    kernels: &'a dyn Kernels,
    plan: &'a Plan,
    rank: usize,
) -> impl Iterator<Item = ActionStated> + 'a {
    let mut walk = started(cell, kernels, plan, rank, true);
    plan.actions.iter().map(move |action| {
        walk.act(*action);
        let operations = walk.s.ops.as_mut().map(std::mem::take).unwrap_or_default();
        ActionStated { action: *action, operations, collectives: walk.tally.take_calls() }
    })
}

/// Memory, traffic and operations of one step of a rank, and the list of operations if `keep` is set.
pub fn price(cell: &Cell, kernels: &dyn Kernels, plan: &Plan, rank: usize, keep: bool) -> (Estimate, Vec<Stated>) {
    let mut walk = started(cell, kernels, plan, rank, keep);
    plan.actions.iter().for_each(|action| walk.act(*action));
    walk.finish()
}

fn started<'a>(cell: &'a Cell, kernels: &'a dyn Kernels, plan: &'a Plan, rank: usize, keep: bool) -> Walk<'a> {
    let p = &cell.precision;
    let mut sketch = Sketch::new(kernels, batch(cell, 0), p.compute, p.gradients);
    sketch.ops = keep.then(Vec::new);
    let state = State::new(cell, &plan.layout, plan.sharding, plan.mesh.place(rank));
    let units = plan.layout.units.len();
    let mut walk = Walk {
        cell,
        plan,
        state,
        s: sketch,
        tally: Tally::new(cell),
        held: Vec::new(),
        slots: (0..units).map(|_| Vec::new()).collect(),
        wires: (0..units).map(|_| Vec::new()).collect(),
        opened: (0..units).map(|_| None).collect(),
        saved: (0..units).map(|_| Saved::default()).collect(),
        tokens: Vec::new(),
        stream: None,
        blocks: Blocks::default(),
    };
    walk.start();
    walk
}

struct Walk<'a> {
    cell: &'a Cell,
    plan: &'a Plan,
    state: State,
    s: Sketch<'a>,
    tally: Tally,
    /// Homes, moments, tables: they stay.
    held: Vec<Piece>,
    slots: Vec<Vec<Piece>>,
    wires: Vec<Vec<Piece>>,
    opened: Vec<Option<Option<Piece>>>,
    saved: Vec<Saved<Piece>>,
    /// Ids and targets of the micro-batch.
    tokens: Vec<Piece>,
    /// The residual stream, or its gradient.
    stream: Option<Piece>,
    /// What turns of blocks have done.
    blocks: Blocks,
}

impl Walk<'_> {
    /// What a rank allocates before its first step, in the order in which it does.
    fn start(&mut self) {
        let table = rope::table_len(&self.cell.model, self.cell.train.seq_len);
        for _ in 0..2 {
            let piece = self.s.alloc(Category::Workspace, self.s.compute.accumulator(), table);
            self.held.push(piece);
        }
        self.held.extend(Params::new_stated(&self.state, &mut self.s));
        self.held.extend(Gradients::new_stated(&self.state, &mut self.s));
        self.held.extend(Optimizer::new_stated(&self.state, &mut self.s));
        let units = if self.cell.memory.prepack { self.slots.len() } else { 0 };
        for unit in 0..units {
            let forms = prepacked::forms(&self.plan.layout, unit, self.s.kernels(), self.s.compute);
            self.held.extend(Prepacked::new_stated(&mut self.s, unit, &forms));
        }
    }

    fn act(&mut self, action: Action) {
        let (plan, s) = (self.plan, &mut self.s);
        let head = plan.layout.head_unit();
        if let Action::Forward { unit } | Action::Restore { unit, .. } | Action::Backward { unit } = action {
            s.unit = if unit == head && plan.layout.head.tied { 0 } else { unit };
        }
        s.phase = match action {
            Action::Forward { .. } => Phase::Forward,
            Action::Backward { .. } => Phase::Backward,
            Action::Restore { .. } => Phase::Recompute,
            _ => Phase::Update,
        };
        match action {
            Action::Load { .. } => {
                s.free_all(self.tokens.drain(..));
                let tokens = s.batch.tokens();
                self.tokens = (0..super::token_buffers(self.cell))
                    .map(|_| s.alloc(Category::Workspace, DType::U32, tokens))
                    .collect();
            }
            Action::Gather { unit, refresh, slot } => {
                if refresh {
                    Params::refresh_stated(&self.state, &mut self.tally, unit);
                }
                if slot {
                    let (slots, wires) = Params::gather_stated(&self.state, s, &mut self.tally, unit);
                    (self.slots[unit], self.wires[unit]) = (slots, wires);
                }
            }
            Action::Release { unit } => s.free_all(self.slots[unit].drain(..)),
            Action::Forward { unit } => {
                s.free_all(self.wires[unit].drain(..));
                if unit == 0 {
                    self.stream = Some(plan.layout.embedding.forward_stated(s));
                } else if unit == head {
                    self.loss();
                } else if let Some(input) = self.stream.take() {
                    let keeps = plan.policy.keeps_input(plan.layout.blocks[unit - 1].index);
                    let turn = if s.evaluates { Turn::Look } else { Turn::Forward { keeps } };
                    self.stream = self.block(unit, turn, Some(input));
                }
            }
            Action::Restore { unit, output } => {
                s.free_all(self.wires[unit].drain(..));
                if let Some(output) = self.block(unit, Turn::Restore { output }, None) {
                    self.saved[unit + 1].input = Some(output);
                }
            }
            Action::Backward { unit } => {
                s.free_all(self.wires[unit].drain(..));
                Gradients::open_stated(&self.state, s, &mut self.opened, unit);
                let Some(gradient) = self.stream.take() else { return };
                if unit == 0 {
                    plan.layout.embedding.backward_stated(s, gradient);
                    return;
                }
                let gradient = self.block(unit, Turn::Backward, Some(gradient));
                if unit == 1 && plan.layout.units[0].trainable.len == 0 {
                    self.s.free_all(gradient);
                } else {
                    self.stream = gradient;
                }
            }
            Action::Reduce { unit, last, .. } => {
                Gradients::reduce_stated(&self.state, s, &mut self.tally, &mut self.opened, unit, last);
            }
            Action::Update => {
                s.free_all(self.tokens.drain(..));
                Optimizer::agree_stated(&self.state, s, &mut self.tally);
                Optimizer::update_stated(self.cell, &plan.layout, &self.state, s);
            }
        }
    }

    /// A block's turn, from the residual stream or its gradient to what it makes of it.
    fn block(&mut self, unit: usize, turn: Turn, stream: Option<Piece>) -> Option<Piece> {
        let saved = std::mem::take(&mut self.saved[unit]);
        let (made, saved) = self.blocks.turn(self.plan, &mut self.s, unit - 1, turn, stream, saved);
        self.saved[unit] = saved;
        made
    }

    fn loss(&mut self) {
        let (layout, s) = (&self.plan.layout, &mut self.s);
        let head = layout.head_unit();
        if layout.head.tied {
            s.free_all(self.wires[0].drain(..));
        }
        if s.evaluates {
            self.stream.take().into_iter().for_each(|x| layout.head.score_stated(s, x));
            return;
        }
        Gradients::open_stated(&self.state, s, &mut self.opened, head);
        if layout.head.tied {
            Gradients::open_stated(&self.state, s, &mut self.opened, 0);
        }
        if let Some(x) = self.stream.take() {
            // The loss scale of the first step; later ones may differ.
            let loss_scale = self.cell.precision.scaling.map_or(1.0, |scaling| scaling.initial());
            let scale = 1.0 / s.batch.tokens() as f64 * loss_scale;
            self.stream = Some(layout.head.loss_stated(s, x, scale));
        }
    }

    /// The memory of an evaluation; nothing else of it is in an estimate, which is of a step.
    fn look(&mut self, evaluation: Evaluation) {
        let Looks { first, next, end } = &self.plan.looks;
        let next = if evaluation.batches > 1 { &next[..] } else { &[] };
        (self.s.evaluates, self.s.ops) = (true, None);
        self.s.prepacked.values_mut().for_each(|is_made| *is_made = false);
        first.iter().chain(next).chain(end).for_each(|action| self.act(*action));
        self.s.free_all(self.tokens.drain(..));
        let pieces = evaluate::agree_stated(&mut self.s, evaluation, self.plan.mesh.world());
        self.s.free_all(pieces);
    }

    fn finish(mut self) -> (Estimate, Vec<Stated>) {
        let layout = &self.plan.layout;
        let flops = flops::flops(self.cell, layout, &self.s.flops());
        let (tally, operations) = (std::mem::take(&mut self.tally), self.s.ops.take());
        if let Some(evaluation) = self.cell.evaluation() {
            self.look(evaluation);
        }
        let trainable = layout.parameters(Part::Trainable);
        let parameters = trainable + layout.frozen_parameters();
        let traffic = tally.into_rows();
        let active_parameters = parameters - Part::ALL.iter().map(|part| layout.idle(*part)).sum::<u64>();
        let kept =
            |part| layout.units.iter().map(|u| u.flat(part).len).sum::<usize>() * home_dtype(self.cell, part).size();
        let base_bytes = (kept(Part::Frozen) + kept(Part::Quantised)) as u64;
        let estimate = Estimate {
            memory: self.s.ledger,
            traffic,
            flops,
            trainable_parameters: trainable,
            parameters,
            active_parameters,
            base_bytes,
        };
        (estimate, operations.unwrap_or_default())
    }
}
