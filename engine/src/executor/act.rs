//! What each action of a plan does.

use super::{Executor, TokenSource, Tokens};
use crate::actions::Action;
use crate::error::{Result, StepError};
use crate::layers::{HeadGrads, HeadWeights};
use crate::loss_scale::LossScaler;
use crate::model::Weights;
use crate::recorder::Phase;
use crate::schedule::learning_rate;
use crate::shard::Update;
use crate::span::{Span, Spans};
use std::time::Instant;
use zbench_kernels::Buffer;

impl Executor<'_> {
    /// Before the first action of a step: nothing of the last one counts any more.
    pub fn begin_step(&mut self) {
        self.flow.losses.clear();
        self.prepacked.iter_mut().for_each(|forms| forms.forget());
        self.flow.loss_scale = self.scaler.as_ref().map_or(1.0, LossScaler::scale);
    }

    pub fn act(&mut self, action: Action, source: &mut dyn TokenSource, spans: &mut dyn Spans) -> Result<()> {
        spans.during(Some(action));
        if let Some(recorder) = &self.context.recorder {
            recorder.enter(match action {
                Action::Forward { .. } => Phase::Forward,
                Action::Backward { .. } => Phase::Backward,
                Action::Recompute { .. } => Phase::Recompute,
                _ => Phase::Update,
            });
        }
        let res = self.context.resources();
        match action {
            Action::Load { micro } => {
                spans.enter(Span::Data);
                self.flow.micro = micro;
                self.load(source)?;
            }
            Action::Gather { unit, refresh, slot } => {
                spans.enter(Span::ExposedGather);
                if refresh {
                    self.params.refresh(&self.state, res.comms, unit)?;
                }
                if slot {
                    self.params.gather(&self.state, res, unit)?;
                }
            }
            Action::Release { unit } => self.params.release(unit),
            Action::Forward { unit } => {
                self.wait(unit, spans)?;
                spans.enter(Span::Forward);
                if unit == self.plan.layout.head_unit() {
                    self.loss(spans)?;
                } else {
                    self.forward(unit)?;
                }
            }
            Action::Recompute { unit, output } => {
                self.wait(unit, spans)?;
                spans.enter(Span::Recompute);
                self.recompute(unit, output)?;
            }
            Action::Backward { unit } => {
                self.wait(unit, spans)?;
                spans.enter(Span::Backward);
                self.gradients.open(&self.state, self.context.resources(), unit)?;
                self.backward(unit)?;
            }
            Action::Reduce { unit, first, last } => {
                spans.enter(Span::ExposedReduce);
                self.gradients.reduce(&self.state, res, unit, first, last)?;
            }
            Action::Update => self.flow.update = Some(self.update(spans)?),
        }
        spans.during(None);
        spans.enter(Span::Other);
        Ok(())
    }

    fn wait(&mut self, unit: usize, spans: &mut dyn Spans) -> Result<()> {
        spans.enter(Span::ExposedGather);
        self.params.wait(&self.context.comms, unit)
    }

    fn weights(&self, unit: usize) -> Weights<'_> {
        self.params.weights(unit, self.prepacked.get(unit))
    }

    fn forward(&mut self, unit: usize) -> Result<()> {
        let (layout, policy) = (&self.context.plan.layout, &self.context.plan.policy);
        let stream = self.flow.stream.take();
        let ex = self.context.exec(self.batch(), self.flow.evaluates, &self.flow.tokens);
        let weights = self.weights(unit);
        if unit == 0 {
            let made = layout.embedding.forward(&ex, &weights, present(&self.flow.tokens)?.ids.view())?;
            self.flow.stream = Some(made);
            return Ok(());
        }
        let block = &layout.blocks[unit - 1];
        // What is only looked at has no backward.
        let (keeps, keep) = match ex.evaluates {
            true => (false, &[][..]),
            false => (policy.keeps_input(block.index), &policy.keep[..]),
        };
        let (output, saved) = block.forward(&ex, &weights, taken(stream, "the residual stream")?, keeps, keep)?;
        (self.flow.stream, self.flow.saved[unit]) = (Some(output), saved);
        Ok(())
    }

    fn loss(&mut self, spans: &mut dyn Spans) -> Result<()> {
        let layout = &self.context.plan.layout;
        let head = layout.head_unit();
        let of_matrix = if layout.head.tied { 0 } else { head };
        if layout.head.tied {
            self.wait(0, spans)?;
            spans.enter(Span::Forward);
        }
        let x = taken(self.flow.stream.take(), "the residual stream")?;
        let (batch, evaluates) = (self.batch(), self.flow.evaluates);
        if !evaluates {
            self.gradients.open(&self.state, self.context.resources(), head)?;
            self.gradients.open(&self.state, self.context.resources(), of_matrix)?;
        }
        let ex = self.context.exec(batch, evaluates, &self.flow.tokens);
        let own = self.params.weights(head, self.prepacked.get(head));
        let matrix = self.params.weights(of_matrix, self.prepacked.get(of_matrix));
        let weights = HeadWeights { own: &own, of_matrix: &matrix };
        let targets = present(&self.flow.tokens)?.targets.view();
        let losses = &mut self.flow.losses;
        if evaluates {
            layout.head.score(&ex, weights, x, targets, &mut losses.sums)?;
            losses.close(1.0);
            return Ok(());
        }
        let (mean, scale) = (self.flow.mean, self.flow.mean * self.flow.loss_scale);
        let gradient = if layout.head.tied {
            let (mut table, mut own) = self.gradients.grads_of_two(0, head);
            let grads = HeadGrads { own: &mut own, tied: Some(&mut table) };
            layout.head.loss(&ex, weights, grads, x, (targets, scale), &mut losses.sums)?
        } else {
            let grads = HeadGrads { own: &mut self.gradients.grads(head), tied: None };
            layout.head.loss(&ex, weights, grads, x, (targets, scale), &mut losses.sums)?
        };
        losses.close(mean);
        self.flow.stream = Some(gradient);
        Ok(())
    }

    fn recompute(&mut self, unit: usize, output: bool) -> Result<()> {
        let block = &self.context.plan.layout.blocks[unit - 1];
        let ex = self.context.exec(self.batch(), self.flow.evaluates, &self.flow.tokens);
        let weights = self.params.weights(unit, self.prepacked.get(unit));
        let output = block.recompute(&ex, &weights, &mut self.flow.saved[unit], output)?;
        if output.is_some() {
            self.flow.saved[unit + 1].input = output;
        }
        Ok(())
    }

    fn backward(&mut self, unit: usize) -> Result<()> {
        let layout = &self.context.plan.layout;
        let gradient = taken(self.flow.stream.take(), "the gradient")?;
        let ex = self.context.exec(self.batch(), self.flow.evaluates, &self.flow.tokens);
        let mut grads = self.gradients.grads(unit);
        // The embedding's weights are there only where its backward reads them.
        let weights = self.params.weights(unit, self.prepacked.get(unit));
        if unit == 0 {
            let ids = present(&self.flow.tokens)?.ids.view();
            return layout.embedding.backward(&ex, &weights, &mut grads, ids, gradient);
        }
        let saved = std::mem::take(&mut self.flow.saved[unit]);
        let gradient = layout.blocks[unit - 1].backward(&ex, &weights, &mut grads, saved, gradient)?;
        let wanted = unit > 1 || layout.units[0].trainable().len > 0;
        self.flow.stream = wanted.then_some(gradient);
        Ok(())
    }

    /// Agrees on loss and norm, and updates the weights. Where the loss is scaled and a gradient is not finite, weights,
    /// moments, the optimizer's step count and the learning rate's schedule stay as they are, on all ranks.
    fn update(&mut self, spans: &mut dyn Spans) -> Result<Update> {
        self.unload();
        let (cell, plan, step) = (self.cell, self.plan, self.progress.steps + 1);
        spans.enter(Span::Offload);
        let begin = Instant::now();
        self.optimizer.recall()?;
        self.stall += begin.elapsed();
        spans.enter(Span::ExposedAgree);
        let (res, losses) = (self.context.resources(), (&self.flow.losses, self.flow.loss_scale));
        let (state, flags) = (&self.state, self.local_flags);
        let stats = self.optimizer.reduce_loss_and_norm(state, res, &self.gradients, &cell.train, losses, flags)?;
        self.global_flags = stats.flags;
        let skipped = self.scaler.is_some() && !stats.norm.is_finite();
        let diverged = |what, value| Err(StepError::Diverged { step, what, value });
        // A smaller loss scale would not mend the loss: it is not scaled.
        if !stats.loss.is_finite() {
            return diverged("loss", stats.loss);
        }
        if !stats.norm.is_finite() && !skipped {
            return diverged("grad_norm", stats.norm);
        }
        spans.enter(Span::Optimizer);
        let number = self.progress.updates + 1;
        let update = Update { stats, lr: learning_rate(&cell.train, number), number, skipped };
        if !skipped {
            let (params, gradients) = (&mut self.params, &self.gradients);
            self.optimizer.update((cell, &plan.layout), &self.state, res, params, gradients, update)?;
            self.progress.updates = number;
        }
        self.progress.steps = step;
        self.progress.samples += (cell.parallel.ranks * cell.train.accumulation * cell.train.micro_batch) as u64;
        if let Some(scaler) = &mut self.scaler
            && let Err(error) = scaler.update(skipped)
        {
            return diverged("loss_scale", error.scale);
        }
        Ok(update)
    }
}

/// What an earlier action of a well-formed plan has left.
fn taken(slot: Option<Buffer>, what: &str) -> Result<Buffer> {
    slot.ok_or_else(|| StepError::Input(format!("the plan uses {what} before making it; this is a bug")))
}

fn present(tokens: &Option<Tokens>) -> Result<&Tokens> {
    let reason = || StepError::Input("the plan uses tokens before fetching them; this is a bug".into());
    tokens.as_ref().ok_or_else(reason)
}
