//! The course of a run on one rank: its steps, what happens between them, and what is written at the end.

use crate::checkpoint::save::{SaveError, SaveOptions, try_folder};
use crate::checkpoint::training::StateError;
use crate::compute::error::StepError;
use crate::config::Cell;
use crate::observe::outcome::{Evaluated, Happening, LoadPhase, Report, Saved, Step};
use crate::observe::trace::{Tracer, Tracing};
use crate::run::guard::Guard;
use crate::run::rank::Rank;
use crate::run::saver::Saver;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a run is told to stop, and whom it tells of itself.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Set when the run is to stop. A cell with checkpoints ends after a step, with one; others do not look.
    pub stop: &'a AtomicBool,
    /// Is told, by rank 0, of every step and of what happens between them.
    pub tell: &'a (dyn Fn(&Happening) + Sync),
    /// What is to be traced; every rank tells of that.
    pub trace: Option<Tracing>,
    /// Says when steps may begin, where runs take turns. Such a run trains on behind its last step, for timings alone.
    pub pace: Option<&'a dyn Pace>,
}

/// Says when a rank may begin a step, so that runs that share a machine can take turns. A rank waits outside of collectives,
/// and outside of what is timed.
pub trait Pace: Sync {
    /// Every rank calls this before each step. Returns when it may begin, or false when the run is to end before that step; all
    /// ranks of a run get the same answer.
    fn may_begin(&self, rank: usize) -> bool;
    /// A step of this rank has ended.
    fn ended(&self, rank: usize, step: &Step);
    /// A rank has failed: no rank begins another step, and those that wait for one return.
    fn abandon(&self);
}

impl Control<'_> {
    fn may_begin(&self, rank: &Rank<'_>) -> bool {
        self.pace.is_none_or(|pace| pace.may_begin(rank.number()))
    }

    fn ended(&self, rank: &Rank<'_>, step: &Step) {
        self.pace.iter().for_each(|pace| pace.ended(rank.number(), step));
    }
}

/// All steps of a run, and what is written behind them.
pub fn run(rank: &mut Rank<'_>, control: Control<'_>) -> Result<Report, StepError> {
    rank.tracer =
        control.trace.map(|tracing| Tracer::new(tracing, rank.executor.context.arena(), rank.executor.progress.steps));
    let result = all(rank, control);
    // Of a step that has failed, too, what it did until then.
    trace(rank, control, true);
    result
}

/// Tells what has been traced and not been told, if it is time to.
fn trace(rank: &mut Rank<'_>, control: Control<'_>, is_end: bool) {
    if let Some(tracer) = &mut rank.tracer {
        tracer.tell(is_end, |traced| (control.tell)(&Happening::Traced(Box::new(traced))));
    }
}

fn all(rank: &mut Rank<'_>, control: Control<'_>) -> Result<Report, StepError> {
    let Cell { model, lora, train, watch, .. } = rank.inputs.cell;
    let speaks = rank.number() == 0;
    if speaks {
        for dir in [&model.save, &lora.save, &lora.merge].into_iter().flatten() {
            try_folder(dir).map_err(|error| StepError::Input(error.to_string()))?;
        }
    }
    let last = (train.untimed_steps + train.steps) as u64;
    let mut saver = Saver::new(rank).map_err(said)?;
    let mut voice = Rank0Reporter { speaks, tell: control.tell, peak: 0 };
    begin(rank, &voice, last)?;
    let watch = watch.unwrap_or_default();
    let before = rank.resumed.as_ref().map_or(&[][..], |resumed| &resumed.history.steps);
    let mut guard = Guard::new(watch.divergence, before);
    let due = |steps: u64| watch.evaluation.is_some_and(|e| steps == last || steps.is_multiple_of(e.every.max(1)));
    // What the run goes on from has done those that were due.
    if rank.resumed.is_none() && due(0) {
        let evaluated = evaluate(rank, &voice)?;
        trace(rank, control, false);
        saver.iter_mut().for_each(|saver| saver.evaluated(evaluated));
    }
    let mut stopped = false;
    while rank.executor.progress.steps < last && !stopped {
        if !control.may_begin(rank) {
            stopped = true;
            break;
        }
        rank.executor.local_flags.stop = control.stop.load(Ordering::Relaxed);
        let mut after = |rank: &mut Rank<'_>, step: &Step| {
            if let Some(probe) = rank.inputs.probe {
                probe(LoadPhase::StepEnds { timed: step.timed });
            }
            voice.step(rank, step);
            control.ended(rank, step);
            trace(rank, control, false);
            if let Some(worse) = guard.see(step) {
                return Err(StepError::Worse(worse));
            }
            let evaluated = if due(rank.executor.progress.steps) { evaluate(rank, &voice)? } else { None };
            trace(rank, control, false);
            Ok(evaluated)
        };
        let saved = match &mut saver {
            Some(saver) => match saver.step(rank, &mut after) {
                Err(StateError::Step(error @ StepError::Worse(_))) => {
                    // All ranks come here in the same step; what was saved before is to be had.
                    voice.saved(saver.finish(rank).map_err(said)?);
                    return Err(error);
                }
                other => other.map_err(said)?,
            },
            None => {
                let step = rank.step()?;
                after(rank, &step)?;
                Vec::new()
            }
        };
        stopped = rank.executor.global_flags.stop && rank.executor.progress.steps < last;
        voice.saved(saved);
    }
    if let Some(saver) = &mut saver {
        // The last state, whatever the interval.
        voice.saved(saver.save(rank).map_err(said)?);
        voice.saved(saver.finish(rank).map_err(said)?);
    }
    let mut report = rank.report();
    report.stopped = stopped;
    if !stopped {
        write_results(rank)?;
        // What was trained is written, and what the run has to report is known: these steps are for their times alone.
        while control.pace.is_some() && control.may_begin(rank) {
            let step = rank.step()?;
            control.ended(rank, &step);
        }
    }
    Ok((report, rank.executor.context.kernels.name()))
}

/// Says what the run goes on from, if it does.
fn begin(rank: &Rank<'_>, voice: &Rank0Reporter<'_>, last: u64) -> Result<(), StepError> {
    let Some(resumed) = &rank.resumed else { return Ok(()) };
    voice.say(&Happening::Resumed(resumed.clone()));
    if resumed.step >= last {
        let dir = resumed.dir.display();
        return Err(StepError::Input(format!(
            "{dir}: is of step {}, and the run has {last} steps: raise train.steps to train on, or write \
             checkpoint.resume = \"never\" to start anew",
            resumed.step
        )));
    }
    Ok(())
}

fn evaluate(rank: &mut Rank<'_>, voice: &Rank0Reporter<'_>) -> Result<Option<Evaluated>, StepError> {
    let evaluated = rank.evaluate()?;
    evaluated.iter().for_each(|evaluated| voice.say(&Happening::Evaluated(*evaluated)));
    Ok(evaluated)
}

fn said(error: StateError) -> StepError {
    match error {
        StateError::Step(error) => error,
        other => StepError::Input(other.to_string()),
    }
}

/// What a rank says: but for its memory, rank 0 alone.
struct Rank0Reporter<'a> {
    speaks: bool,
    tell: &'a (dyn Fn(&Happening) + Sync),
    /// The peak of the arena that was told last.
    peak: u64,
}

impl Rank0Reporter<'_> {
    fn say(&self, happening: &Happening) {
        if self.speaks {
            (self.tell)(happening);
        }
    }

    /// A step, behind the memory it took if that is more than before. Other ranks may take more than rank 0, and say so.
    fn step(&mut self, rank: &Rank<'_>, step: &Step) {
        let peak = rank.executor.context.arena().ledger().total_peak();
        if std::mem::replace(&mut self.peak, peak) < peak {
            (self.tell)(&Happening::Peak(peak));
        }
        self.say(&Happening::Step(step.clone()));
    }

    fn saved(&self, saved: Vec<Saved>) {
        saved.into_iter().for_each(|saved| self.say(&Happening::Saved(saved)));
    }
}

/// What a finished run leaves behind. What writing takes is no part of training's report.
fn write_results(rank: &mut Rank<'_>) -> Result<(), StepError> {
    let Cell { model, lora, .. } = rank.inputs.cell;
    let options = SaveOptions::default();
    let saved = model.save.as_ref().map_or(Ok(()), |dir| rank.executor.save_model(dir, options));
    let saved = saved.and_then(|()| lora.save.as_ref().map_or(Ok(()), |dir| rank.executor.save_adapters(dir)));
    let saved = saved.and_then(|()| lora.merge.as_ref().map_or(Ok(()), |dir| rank.executor.save_merged(dir, options)));
    saved.map_err(|error| match error {
        SaveError::Step(error) => error,
        other => StepError::Input(other.to_string()),
    })
}
