//! Evaluations: the loss on sequences that are not trained on, by forward alone. It is no part of a step: its time, its
//! collectives and its operations are counted nowhere, and training does not see it.

use crate::action::EvaluationActions;
use crate::action::span::Span;
use crate::action::span::Spans;
use crate::compute::error::{Result, StepError};
use crate::config::Evaluation;
use crate::data::NO_TARGET;
use crate::exec::Executor;
use crate::mesh::Axes;
use crate::model::layers::prepacked::Prepacked;
use crate::observe::meter::Meter;
use crate::observe::outcome::Evaluated;
use crate::observe::trace::{StepTrace, What};
use crate::run::rank::Rank;
use std::time::Instant;
use zbench_collectives::Communicator;
use zbench_kernels::{Category, DType, View, ViewMut};

impl Rank<'_> {
    /// The loss of held-out sequences, the same ones every time; nothing where the cell has no evaluations. Collective: all
    /// ranks come to the same loss, to the bit.
    pub fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        let Some(evaluation) = self.inputs.cell.evaluation() else { return Ok(None) };
        let begin = Instant::now();
        let counted = self.executor.context.comms.totals();
        // The weights have changed since a step has made forms of them.
        self.executor.prepacked.iter_mut().for_each(Prepacked::forget);
        self.executor.step_state.evaluates = true;
        let mut meter = Meter::recorded(self.kernels().clone(), self.recording(self.executor.progress.steps.max(1)));
        let tiers = self.executor.context.tiers.clone();
        let sums = tiers.uncounted(|| self.look(evaluation, &mut meter));
        self.executor.step_state.evaluates = false;
        self.executor.unload();
        meter.enter(Span::ExposedAgree);
        let agreed = sums.and_then(|sums| self.agree(&sums));
        let (ns, recording) = meter.broken();
        let of =
            StepTrace { ns, broken: agreed.is_err(), ..self.account(What::Evaluation, self.executor.progress.steps) };
        self.traced(recording, of);
        let (loss, tokens) = agreed?;
        self.executor.context.comms.restore(counted);
        if tokens == 0 {
            let reason = "no token of the held-out sequences has a loss; raise train.eval_share or train.eval_batches";
            return Err(StepError::Input(reason.into()));
        }
        if !loss.is_finite() {
            return Err(StepError::Diverged {
                step: self.executor.progress.steps,
                what: "evaluation loss",
                value: loss,
            });
        }
        Ok(Some(Evaluated {
            step: self.executor.progress.steps,
            loss,
            tokens,
            ms: begin.elapsed().as_nanos() as f64 / 1e6,
        }))
    }

    /// For each micro-batch, the sum of its tokens' losses and the number of tokens that have one.
    fn look(&mut self, evaluation: Evaluation, meter: &mut Meter) -> Result<Vec<f64>> {
        let EvaluationActions { first, next, end } = &self.executor.context.stage_plan.evaluation;
        let mut sums = Vec::with_capacity(2 * evaluation.batches);
        let mut known = Vec::new();
        for micro in 0..evaluation.batches {
            self.executor.step_state.losses.clear();
            for action in if micro == 0 { first } else { next } {
                self.act(action.at(micro), meter)?;
            }
            known.resize(self.executor.step_state.losses.sums.len(), 0.0);
            self.kernels().read_scalars(&self.executor.step_state.losses.sums, &mut known)?;
            sums.extend([self.executor.step_state.losses.value(&known), self.tokens_with_loss(micro)? as f64]);
        }
        for action in end {
            self.act(*action, meter)?;
        }
        self.executor.wait_all(meter)?;
        Ok(sums)
    }

    fn tokens_with_loss(&self, micro: usize) -> Result<usize> {
        let Some(tokens) = &self.executor.step_state.of(micro).tokens else { return Ok(0) };
        let mut targets = vec![0u32; tokens.targets.len()];
        self.kernels().download(tokens.targets.view(), ViewMut::of(&mut targets))?;
        Ok(targets.iter().filter(|target| **target != NO_TARGET).count())
    }

    /// The mean over all tokens of all ranks. Micro-batches are added in the order of their sequences, so that it does not
    /// matter how they are shared out.
    fn agree(&self, sums: &[f64]) -> Result<(f64, u64)> {
        let width = sums.len();
        let all = self.executor.share_sums(sums.len(), sums)?;
        let (mut loss, mut tokens) = (0.0, 0.0);
        for micro in (0..width).step_by(2) {
            for rank in all.chunks_exact(width) {
                (loss, tokens) = (loss + rank[micro], tokens + rank[micro + 1]);
            }
        }
        // Of a pipeline the last stage has looked at the losses.
        let own = [loss, tokens];
        let [loss, tokens] = match self.executor.context.comms.over(Axes::PIPELINE) {
            Some(stages) => {
                let mut all = vec![0.0; 2 * stages.size()];
                stages.unmetered().all_gather(View::of(&own), ViewMut::of(&mut all))?;
                [all[all.len() - 2], all[all.len() - 1]]
            }
            None => own,
        };
        Ok((loss / tokens, tokens as u64))
    }
}

impl Executor<'_> {
    /// The sums of all ranks, `width` of each, one rank's behind another's. A dry run has none, and gets none.
    pub(crate) fn share_sums(&self, width: usize, sums: &[f64]) -> Result<Vec<f64>> {
        let (device, world) = (self.context.device(), self.context.comms.data().size());
        let mut send = device.alloc(Category::Communication, DType::F64, width)?;
        if device.recorder.is_none() {
            device.kernels.upload(View::of(sums), send.view_mut())?;
        }
        let mut recv = device.alloc(Category::Communication, DType::F64, width * world)?;
        self.context.comms.data().all_gather(send.view(), recv.view_mut())?;
        let mut all = Vec::new();
        if device.recorder.is_none() {
            all.resize(recv.len(), 0f64);
            device.kernels.download(recv.view(), ViewMut::of(&mut all))?;
        }
        Ok(all)
    }
}
