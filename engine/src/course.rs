//! The course of a run on one rank: its steps, what happens between them, and what is written at the end.

use crate::config::Cell;
use crate::layers::StepError;
use crate::outcome::{Happening, Saved};
use crate::rank::Rank;
use crate::save::{SaveError, SaveOptions, try_folder};
use crate::train::Report;
use crate::training_state::{Saver, StateError};
use std::sync::atomic::{AtomicBool, Ordering};

/// How a run is told to stop, and whom it tells of itself.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Set when the run is to stop. A cell with checkpoints ends after a step, with one; others do not look.
    pub stop: &'a AtomicBool,
    /// Is told, by rank 0, of every step and of what happens between them.
    pub tell: &'a (dyn Fn(&Happening) + Sync),
}

/// All steps of a run, and what is written behind them.
pub fn run(rank: &mut Rank<'_>, control: Control<'_>) -> Result<Report, StepError> {
    let Cell { model, lora, train, .. } = rank.inputs.cell;
    let speaks = rank.number() == 0;
    if speaks {
        for dir in [&model.save, &lora.save, &lora.merge].into_iter().flatten() {
            try_folder(dir).map_err(|error| StepError::Input(error.to_string()))?;
        }
    }
    let last = (train.untimed_steps + train.steps) as u64;
    let mut saver = Saver::new(rank).map_err(said)?;
    begin(rank, control, last)?;
    let mut stopped = false;
    while rank.steps < last && !stopped {
        rank.wants_stop = control.stop.load(Ordering::Relaxed);
        let (step, saved) = match &mut saver {
            Some(saver) => saver.step(rank).map_err(said)?,
            None => (rank.step()?, Vec::new()),
        };
        stopped = rank.stop_agreed && rank.steps < last;
        if speaks {
            (control.tell)(&Happening::Step(step));
        }
        tell(control, saved);
    }
    if let Some(saver) = &mut saver {
        // The last state, whatever the interval.
        tell(control, saver.save(rank).map_err(said)?);
        tell(control, saver.finish(rank).map_err(said)?);
    }
    let mut report = rank.report();
    report.stopped = stopped;
    if !stopped {
        write_results(rank)?;
    }
    Ok((report, rank.kernels.name()))
}

/// Says what the run goes on from, if it does.
fn begin(rank: &Rank<'_>, control: Control<'_>, last: u64) -> Result<(), StepError> {
    let Some(resumed) = &rank.resumed else { return Ok(()) };
    if rank.number() == 0 {
        (control.tell)(&Happening::Resumed(resumed.clone()));
    }
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

fn tell(control: Control<'_>, saved: Vec<Saved>) {
    saved.into_iter().for_each(|saved| (control.tell)(&Happening::Saved(saved)));
}

fn said(error: StateError) -> StepError {
    match error {
        StateError::Step(error) => error,
        other => StepError::Input(other.to_string()),
    }
}

/// What a finished run leaves behind. What writing takes is no part of training's report.
fn write_results(rank: &mut Rank<'_>) -> Result<(), StepError> {
    let Cell { model, lora, .. } = rank.inputs.cell;
    let options = SaveOptions::default();
    let saved = model.save.as_ref().map_or(Ok(()), |dir| rank.save_model(dir, options));
    let saved = saved.and_then(|()| lora.save.as_ref().map_or(Ok(()), |dir| rank.save_adapters(dir)));
    let saved = saved.and_then(|()| lora.merge.as_ref().map_or(Ok(()), |dir| rank.save_merged(dir, options)));
    saved.map_err(|error| match error {
        SaveError::Step(error) => error,
        other => StepError::Input(other.to_string()),
    })
}
