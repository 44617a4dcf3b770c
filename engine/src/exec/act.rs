//! What each action of a plan does.

use super::{Executor, TokenSource, Tokens};
use crate::action::span::{Span, Spans, Waits, Within};
use crate::action::stream::{ByStream, Stream};
use crate::action::{Action, Moved};
use crate::compute::error::{Result, StepError};
use crate::config::{Checkpointing, MemoryTier};
use crate::exec::pace::Paced;
use crate::exec::{MicroBatchState, StepState};
use crate::mesh::{Axes, Axis};
use crate::model::layers::{Batch, Deferred, Grads, Head, HeadGrads, HeadWeights, LayerContext, Memory};
use crate::model::{Layer, LayerKind, Weights};
use crate::state::learning_rate::learning_rate;
use crate::state::loss_scale::LossScaler;
use crate::state::{Delayed, Due, Update};
use std::time::Instant;
use zbench_collectives::{Communicator, Metered, OwnedCall};
use zbench_kernels::{Buffer, Category};

impl<'a> Executor<'a> {
    /// Before the first action of a step: nothing of the last one counts any more.
    pub fn begin_step(&mut self) {
        self.step_state.losses.clear();
        self.prepacked.iter_mut().for_each(|forms| forms.forget());
        self.step_state.loss_scale = self.scaler.as_ref().map_or(1.0, LossScaler::scale);
        self.step_state.due = self.delayed.take().map(|factors| self.due(factors));
    }

    pub fn act(&mut self, action: Action, source: &mut dyn TokenSource, spans: &mut dyn Spans) -> Result<()> {
        spans.during(Some(action));
        let span = action.span();
        if let Some(recorder) = &self.context.recorder {
            recorder.enter(span.into());
        }
        let res = self.context.resources();
        match action {
            Action::Load { micro } => {
                spans.enter(span);
                self.load(micro, source)?;
            }
            Action::Receive { micro, stream, gradient, .. } => {
                spans.enter(span);
                self.receive(micro, stream, gradient)?;
            }
            Action::Send { micro, stream, gradient, .. } => {
                spans.enter(span);
                self.send(micro, stream, gradient)?;
            }
            Action::Gather { unit, refresh, slot } => {
                spans.enter(span);
                if refresh {
                    self.params.refresh(&self.state, res.comms, unit)?;
                }
                if slot {
                    spans.enter(Span::Offload);
                    self.params.land(res, unit)?;
                    spans.enter(span);
                    self.params.gather(&self.state, res, unit)?;
                }
            }
            Action::Release { unit } => self.params.release(unit),
            Action::Forward { micro, layer } => {
                let found = self.layer(layer, spans)?;
                let waits = Within::enter(spans, span);
                let paced = self.paced(action);
                self.forward(micro, layer, found, &waits)?;
                paced.end();
            }
            Action::Evict { micro, layer, tensor } => self.step_state.of_mut(micro).saved[layer].evict(tensor),
            Action::Recompute { micro, layer, output } => {
                self.move_saved(action, spans)?;
                let found = self.layer(layer, spans)?;
                let waits = Within::enter(spans, span);
                self.recompute(micro, layer, found, output, &waits)?;
            }
            Action::Backward { micro, layer } => {
                self.move_saved(action, spans)?;
                let found = self.layer(layer, spans)?;
                let waits = Within::enter(spans, span);
                let paced = self.paced(action);
                for unit in [Some(found.unit), found.second].into_iter().flatten() {
                    self.gradients.open(&self.state, self.context.resources(), unit)?;
                }
                self.backward(micro, layer, found, &waits)?;
                paced.end();
            }
            Action::BackwardInput { micro, layer } => {
                self.move_saved(action, spans)?;
                let found = self.layer(layer, spans)?;
                let waits = Within::enter(spans, span);
                let paced = self.paced(action);
                self.backward_input(micro, layer, found, &waits)?;
                paced.end();
            }
            Action::BackwardWeight { micro, layer } => {
                let waits = Within::enter(spans, span);
                let paced = self.paced(action);
                self.backward_weight(micro, layer, &waits)?;
                paced.end();
            }
            Action::Reduce { unit, first, last } => {
                spans.enter(span);
                self.gradients.reduce(&self.state, res, (unit, first, last), spans)?;
            }
            Action::ReduceTied { unit } => {
                spans.enter(Span::ExposedReduce);
                self.wait_all(spans)?;
                spans.enter(span);
                self.gradients.reduce_tied(&self.state, self.context.resources(), unit)?;
            }
            Action::Update => self.step_state.update = Some(self.update(spans)?),
            Action::StoreSaved { .. } | Action::WaitStoreSaved { .. } | Action::FetchSaved { .. } => {
                self.move_saved(action, spans)?;
            }
            Action::Fetch { unit, what: Moved::Weights } => {
                spans.enter(span);
                self.params.fetch(res, unit)?;
            }
            Action::Fetch { .. } | Action::UpdateUnit { .. } | Action::Store { .. } | Action::WaitStore { .. } => {
                self.update_unit(action, spans)?;
            }
        }
        spans.during(None);
        spans.enter(Span::Other);
        Ok(())
    }

    /// Begins the least time of an action, where the cell has a pace. A dry run takes no time.
    fn paced(&self, action: Action) -> Paced {
        let pace = self.context.cell.pace.filter(|_| self.context.recorder.is_none());
        Paced::begin(pace.and_then(|pace| pace.share(&self.context.stage_plan.layout, action)))
    }

    /// Takes a stream from the neighbouring stage that makes it: values from the one before, gradients from the one behind.
    fn receive(&mut self, micro: usize, stream: Stream, gradient: bool) -> Result<()> {
        let (group, [before, behind]) = self.pipeline()?;
        let tokens = self.batch(micro, stream).tokens() / self.context.cell.parallel.degrees.sequence;
        let len = tokens * self.context.cell.model.hidden_size;
        let mut buffer =
            self.context.device().alloc(Category::Activations, self.context.cell.precision.compute, len)?;
        group.recv(buffer.view_mut(), if gradient { behind } else { before })?;
        *self.step_state.of_mut(micro).stream(stream, gradient) = Some(buffer);
        Ok(())
    }

    /// Gives a stream to the neighbouring stage that reads it. The message is on its way while this stage goes on. The
    /// previous message in the same direction is waited for first.
    fn send(&mut self, micro: usize, stream: Stream, gradient: bool) -> Result<()> {
        let buffer = taken(
            self.step_state.of_mut(micro).stream(stream, gradient).take(),
            "the plan uses a stream that is sent before making it",
        )?;
        let previous = self.step_state.sent[usize::from(gradient)].take();
        let (group, [before, behind]) = self.pipeline()?;
        if let Some(ticket) = previous {
            group.wait(ticket)?;
        }
        let ticket = group.start(OwnedCall::send(buffer, if gradient { before } else { behind }))?;
        self.step_state.sent[usize::from(gradient)] = Some(ticket);
        Ok(())
    }

    /// The stages with this rank's place in them, and those before and behind this rank's: before the first chunk of the first
    /// stage's next chunk lies the last stage.
    fn pipeline(&self) -> Result<(&Metered, [usize; 2])> {
        let none = || StepError::Bug("a stream crosses stages where there is one");
        let group = self.context.comms.over(Axes::PIPELINE).ok_or_else(none)?;
        let (stage, stages) = (self.state.place.at(Axis::Pipeline), group.size());
        Ok((group, [(stage + stages - 1) % stages, (stage + 1) % stages]))
    }

    /// A layer whose weights are here.
    fn layer(&mut self, number: usize, spans: &mut dyn Spans) -> Result<&'a Layer> {
        let layer = &self.context.stage_plan.layout.layers[number];
        spans.enter(Span::ExposedGather);
        for unit in layer.units() {
            self.params.wait(&self.context.comms, unit)?;
        }
        Ok(layer)
    }

    fn forward(&mut self, micro: usize, number: usize, layer: &Layer, waits: &dyn Waits) -> Result<()> {
        let (batch, evaluates) = (self.batch(micro, layer.writes), self.step_state.evaluates);
        let memory = layer.memory.map(|stream| (stream, self.batch(micro, stream)));
        let state = self.step_state.of_mut(micro);
        let ex = self.context.layer_context(batch, evaluates, &state.tokens, waits);
        let second = layer.second.map(|unit| self.params.weights(unit, self.prepacked.get(unit)));
        let weights = self.params.weights(layer.unit, self.prepacked.get(layer.unit));
        let weights = Weights { second: second.as_ref(), ..weights };
        let block = match &layer.kind {
            LayerKind::Head(head) => return self.loss(micro, layer, head, waits),
            LayerKind::Embedding(embedding) => {
                let made = embedding.forward(&ex, &weights, present(&state.tokens)?.ids_of(layer.writes))?;
                state.values[layer.writes] = Some(made);
                return Ok(());
            }
            LayerKind::Norm(norm) => {
                let input =
                    taken(state.values[layer.reads].take(), "the plan uses the residual stream before making it")?;
                let [output, _] = norm.forward(&ex, &weights, batch.tokens(), input.view())?;
                state.values[layer.writes] = Some(output);
                state.saved[number].input = Some(input).filter(|_| !evaluates);
                return Ok(());
            }
            LayerKind::Block(block) => block,
        };
        // What is only looked at has no backward.
        let (keeps, keep) = match ex.evaluates {
            true => (false, &[][..]),
            false => (self.context.stage_plan.keeps_input[number], &self.context.plan.policy.keep[..]),
        };
        let input = taken(state.values[layer.reads].take(), "the plan uses the residual stream before making it")?;
        let ex = LayerContext { memory: memory_of(&state.values, memory), ..ex };
        let (output, mut saved) = block.forward(&ex, &weights, input, keeps, keep)?;
        if self.context.cell.memory.partition_activations {
            saved.share_input(&ex)?;
        }
        (state.values[layer.writes], state.saved[number]) = (Some(output), saved);
        Ok(())
    }

    fn loss(&mut self, micro: usize, layer: &Layer, head: &Head, waits: &dyn Waits) -> Result<()> {
        let (own_unit, unit_of_matrix) = (layer.unit, layer.shares.unwrap_or(layer.unit));
        let (batch, evaluates) = (self.batch(micro, layer.reads), self.step_state.evaluates);
        let x = taken(
            self.step_state.of_mut(micro).values[layer.reads].take(),
            "the plan uses the residual stream before making it",
        )?;
        if !evaluates {
            self.gradients.open(&self.state, self.context.resources(), own_unit)?;
            self.gradients.open(&self.state, self.context.resources(), unit_of_matrix)?;
        }
        let StepState { micros, losses, mean, loss_scale, .. } = &mut self.step_state;
        let in_flight = micros.len();
        let state = &mut micros[micro % in_flight];
        let ex = self.context.layer_context(batch, evaluates, &state.tokens, waits);
        let own = self.params.weights(own_unit, self.prepacked.get(own_unit));
        let matrix = self.params.weights(unit_of_matrix, self.prepacked.get(unit_of_matrix));
        let weights = HeadWeights { own: &own, of_matrix: &matrix };
        let targets = present(&state.tokens)?.targets.view();
        if evaluates {
            head.score(&ex, weights, x, targets, &mut losses.sums)?;
            losses.close(1.0);
            return Ok(());
        }
        let scale = *mean * *loss_scale;
        let gradient = if let Some(shared) = layer.shares {
            let (mut table, mut own) = self.gradients.grads_of_two(shared, own_unit);
            let grads = HeadGrads { own: &mut own, tied: Some(&mut table) };
            head.loss(&ex, weights, grads, x, (targets, scale), &mut losses.sums)?
        } else {
            let grads = HeadGrads { own: &mut self.gradients.grads(own_unit), tied: None };
            head.loss(&ex, weights, grads, x, (targets, scale), &mut losses.sums)?
        };
        losses.close(*mean);
        state.gradients[layer.reads] = Some(gradient);
        Ok(())
    }

    fn recompute(&mut self, micro: usize, number: usize, layer: &Layer, output: bool, waits: &dyn Waits) -> Result<()> {
        let Some(block) = layer.block() else { return Ok(()) };
        let batch = self.batch(micro, layer.writes);
        let memory = layer.memory.map(|stream| (stream, self.batch(micro, stream)));
        let state = self.step_state.of_mut(micro);
        let ex = self.context.layer_context(batch, false, &state.tokens, waits);
        let second = layer.second.map(|unit| self.params.weights(unit, self.prepacked.get(unit)));
        let weights = self.params.weights(layer.unit, self.prepacked.get(layer.unit));
        let weights = Weights { second: second.as_ref(), ..weights };
        let ex = LayerContext { memory: memory_of(&state.values, memory), ..ex };
        state.saved[number].restore_input(&ex, block.dims.hidden)?;
        let output = block.recompute(&ex, &weights, &mut state.saved[number], output)?;
        if output.is_some() {
            state.saved[number + 1].input = output;
        }
        Ok(())
    }

    fn backward(&mut self, micro: usize, number: usize, layer: &Layer, waits: &dyn Waits) -> Result<()> {
        let batch = self.batch(micro, layer.writes);
        let memory = layer.memory.map(|stream| (stream, self.batch(micro, stream)));
        let stage_plan = self.context.stage_plan;
        let state = self.step_state.of_mut(micro);
        let gradient = taken(state.gradients[layer.writes].take(), "the plan uses the gradient before making it")?;
        let ex = self.context.layer_context(batch, false, &state.tokens, waits);
        let mut grads = match layer.second {
            None => self.gradients.grads(layer.unit),
            Some(second) => {
                let (own, second) = self.gradients.grads_of_two(layer.unit, second);
                own.beside(second)
            }
        };
        // The embedding's weights are there only where its backward reads them.
        let second = layer.second.map(|unit| self.params.weights(unit, self.prepacked.get(unit)));
        let weights = self.params.weights(layer.unit, self.prepacked.get(layer.unit));
        let weights = Weights { second: second.as_ref(), ..weights };
        match &layer.kind {
            LayerKind::Embedding(embedding) => {
                let ids = present(&state.tokens)?.ids_of(layer.writes);
                embedding.backward(&ex, &weights, &mut grads, ids, gradient)
            }
            LayerKind::Block(block) => {
                let mut saved = std::mem::take(&mut state.saved[number]);
                saved.restore_input(&ex, block.dims.hidden)?;
                let mut of_memory = layer.memory.and_then(|stream| state.gradients[stream].take());
                let ex = LayerContext { memory: memory_of(&state.values, memory), ..ex };
                let gradient = block.backward(&ex, &weights, &mut grads, saved, gradient, &mut of_memory)?;
                if let Some(stream) = layer.memory {
                    state.gradients[stream] = of_memory;
                }
                state.gradients[layer.reads] = stage_plan.wants_gradient[number].then_some(gradient);
                Ok(())
            }
            LayerKind::Norm(norm) => {
                // Nothing looks at its output any more.
                state.values[layer.writes] = None;
                let input = taken(state.saved[number].input.take(), "the plan uses a norm's input before making it")?;
                let rows = batch.tokens();
                let [_, statistics] = ex.again(|| norm.forward(&ex, &weights, rows, input.view()))?;
                let gradient =
                    norm.backward_alone(&ex, &weights, &mut grads, rows, [&input, &statistics, &gradient])?;
                state.gradients[layer.reads] = Some(gradient);
                Ok(())
            }
            LayerKind::Head(_) => Ok(()),
        }
    }

    /// Backward of a block that is its own unit and reads one stream, without the gradients of its weights.
    fn backward_input(&mut self, micro: usize, number: usize, layer: &Layer, waits: &dyn Waits) -> Result<()> {
        let Some(block) = layer.block() else { return Ok(()) };
        let (batch, stage_plan) = (self.batch(micro, layer.writes), self.context.stage_plan);
        let state = self.step_state.of_mut(micro);
        let gradient = taken(state.gradients[layer.writes].take(), "the plan uses the gradient before making it")?;
        let (mut saved, mut deferred) = (std::mem::take(&mut state.saved[number]), Deferred::default());
        let ex = self.context.layer_context(batch, false, &state.tokens, waits);
        saved.restore_input(&ex, block.dims.hidden)?;
        let weights = self.params.weights(layer.unit, self.prepacked.get(layer.unit));
        let gradient = block.backward(&ex, &weights, &mut Grads::later(&mut deferred), saved, gradient, &mut None)?;
        state.gradients[layer.reads] = stage_plan.wants_gradient[number].then_some(gradient);
        state.deferred.push_back(deferred);
        Ok(())
    }

    /// The gradients of a block's weights.
    fn backward_weight(&mut self, micro: usize, number: usize, waits: &dyn Waits) -> Result<()> {
        let layer = &self.context.stage_plan.layout.layers[number];
        let Some(block) = layer.block() else { return Ok(()) };
        self.gradients.open(&self.state, self.context.resources(), layer.unit)?;
        let batch = self.batch(micro, layer.writes);
        let state = self.step_state.of_mut(micro);
        let none = || StepError::Bug("the plan computes gradients of weights before that of the input");
        let deferred = state.deferred.pop_front().ok_or_else(none)?;
        let ex = self.context.layer_context(batch, false, &state.tokens, waits);
        block.weight_gradients(&ex, &mut self.gradients.grads(layer.unit), deferred)
    }

    /// Moves of what forward keeps of a layer; an action that reads it waits until it is on the device.
    fn move_saved(&mut self, action: Action, spans: &mut dyn Spans) -> Result<()> {
        let (res, tier) = (self.context.resources(), self.state.tiers.activations);
        if tier == MemoryTier::Device {
            return Ok(());
        }
        spans.enter(Span::Offload);
        let (Some(micro), Some(layer)) = (action.micro(), action.place()) else { return Ok(()) };
        let evicts = self.context.cell.memory.checkpointing == Checkpointing::Evict;
        let MicroBatchState { saved, offloaded, .. } = self.step_state.of_mut(micro);
        let (saved, offloaded) = (&mut saved[layer], &mut offloaded[layer]);
        match action {
            Action::StoreSaved { what, .. } => offloaded.store(res, tier, saved, what),
            Action::WaitStoreSaved { .. } => offloaded.wait_store(res),
            Action::FetchSaved { .. } => {
                offloaded.fetch(res, tier, saved)?;
                // Evictions are decided by what is on the device behind each action.
                if evicts { offloaded.land(res, saved) } else { Ok(()) }
            }
            _ => offloaded.land(res, saved),
        }
    }

    /// The update of a unit whose state is offloaded; nothing in a step that is skipped.
    fn update_unit(&mut self, action: Action, spans: &mut dyn Spans) -> Result<()> {
        let tiers = self.state.tiers;
        if let Action::Fetch { unit, .. } = action
            && self.state.precision.master.is_none()
            && (tiers.parameters, tiers.update()) == (MemoryTier::Device, MemoryTier::Host)
        {
            // A gather may have the weights that are copied. In a step without an update, too: all steps take the same memory.
            spans.enter(Span::ExposedGather);
            self.params.wait(&self.context.comms, unit)?;
        }
        let Some(due) = self.step_state.due else { return Ok(()) };
        spans.enter(Span::Offload);
        self.recall()?;
        let (res, state, params) = (self.context.resources(), &self.state, &mut self.params);
        let (optimizer, gradients) = (&mut self.optimizer, &self.gradients);
        match action {
            Action::Fetch { unit, .. } => optimizer.fetch(state, res, params, gradients, unit),
            Action::UpdateUnit { unit } => {
                optimizer.land(state, res, params, unit)?;
                spans.enter(Span::Optimizer);
                let model = (self.context.cell, &*self.context.stage_plan.layout);
                optimizer.update_unit(model, state, res, params, gradients, (unit, due))
            }
            Action::Store { unit } => optimizer.store(state, res, params, unit),
            Action::WaitStore { unit } => optimizer.wait_store(res, params, unit),
            _ => Ok(()),
        }
    }

    /// Waits for what is under way: then all gradients are accumulated, and all messages have arrived.
    pub fn wait_all(&mut self, spans: &mut dyn Spans) -> Result<()> {
        let sent = std::mem::take(&mut self.step_state.sent);
        if sent.iter().any(Option::is_some) {
            spans.enter(Span::ExposedPipeline);
            for ticket in sent.into_iter().flatten() {
                self.pipeline()?.0.wait(ticket)?;
            }
            spans.enter(Span::ExposedReduce);
        }
        self.gradients.finish(&self.state, self.context.resources(), spans)?;
        self.gradients.check_reduced()
    }

    /// Agrees on loss and norm, and updates the weights. Where the loss is scaled and a gradient is not finite, weights,
    /// moments, the optimizer's step count and the learning rate's schedule stay as they are, on all ranks.
    fn update(&mut self, spans: &mut dyn Spans) -> Result<Update> {
        self.unload();
        let (cell, stage_plan, step) = (self.context.cell, self.context.stage_plan, self.progress.steps + 1);
        spans.enter(Span::ExposedReduce);
        self.wait_all(spans)?;
        spans.enter(Span::Offload);
        self.recall()?;
        spans.enter(Span::ExposedAgree);
        let (res, losses) = (self.context.resources(), (&self.step_state.losses, self.step_state.loss_scale));
        let (state, flags) = (&self.state, (self.local_flags, &self.context.plan.squares));
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
        let factors = stats.factors(&cell.train, self.state.gradient_ranks());
        if !self.state.delayed {
            self.step_state.due = (!skipped).then(|| self.due(factors));
        }
        if let Some(due) = self.step_state.due {
            // Else other actions of the plan update unit by unit.
            if self.state.tiers.updates_in_place() {
                let (params, gradients) = (&mut self.params, &self.gradients);
                self.optimizer.update((cell, &stage_plan.layout), &self.state, res, params, gradients, due)?;
            }
            self.progress.updates = due.number;
        }
        if self.state.delayed && !skipped {
            spans.enter(Span::Offload);
            self.optimizer.delay(&self.state, res, &self.gradients)?;
            self.delayed = Some(factors);
        }
        let of_gradients = self.progress.updates + u64::from(self.state.delayed || skipped);
        let update = Update { stats, lr: learning_rate(&cell.train, of_gradients), skipped };
        self.progress.steps = step;
        self.progress.samples += (self.state.sample_ranks() * cell.train.accumulation * cell.train.micro_batch) as u64;
        if let Some(scaler) = &mut self.scaler
            && let Err(error) = scaler.update(skipped)
        {
            return diverged("loss_scale", error.scale);
        }
        Ok(update)
    }
}

impl Executor<'_> {
    /// The next update, with gradients of these factors.
    fn due(&self, factors: Delayed) -> Due {
        let number = self.progress.updates + 1;
        Due { lr: learning_rate(&self.context.cell.train, number), number, factors }
    }

    /// Waits for state that was lent to a checkpoint.
    fn recall(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.optimizer.recall()?;
        self.stall += begin.elapsed();
        Ok(())
    }
}

/// What cross-attention looks at.
fn memory_of(values: &ByStream<Option<Buffer>>, memory: Option<(Stream, Batch)>) -> Option<Memory<'_>> {
    let (stream, batch) = memory?;
    Some(Memory { values: values[stream].as_ref()?.view(), batch })
}

/// What an earlier action of a well-formed plan has left.
fn taken(slot: Option<Buffer>, missing: &'static str) -> Result<Buffer> {
    slot.ok_or(StepError::Bug(missing))
}

fn present(tokens: &Option<Tokens>) -> Result<&Tokens> {
    let reason = || StepError::Bug("the plan uses tokens before fetching them");
    tokens.as_ref().ok_or_else(reason)
}
