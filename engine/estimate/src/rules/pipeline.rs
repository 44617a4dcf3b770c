//! Pipelines: the bubble, and how many micro-batches wait for their backward.

use super::{Check, digits};
use crate::job::{Job, Order};

/// Share of the ideal time that stages stand still: (p-1)/m, and (p-1)/(v m) with v chunks a stage.
pub fn bubble(stages: f64, chunks: f64, micro_batches: f64) -> Check {
    let (name, says) = if chunks > 1.0 {
        ("bubble-interleaved", "(p - 1) / (v m) of the ideal time")
    } else {
        ("bubble", "(p - 1) / m of the ideal time")
    };
    let how = if chunks > 1.0 {
        format!("({} - 1) / ({} × {})", digits(stages), digits(chunks), digits(micro_batches))
    } else {
        format!("({} - 1) / {}", digits(stages), digits(micro_batches))
    };
    Check::new(name, says, "Narayanan et al. 2021, section 2.2", "of the ideal time").term(
        "idle",
        how,
        (stages - 1.0) / (chunks * micro_batches),
    )
}

/// Seconds in which the slowest stage stands still, of stages whose micro-batches take so many seconds on all of them together,
/// and on the slowest.
///
/// Naive: the others work one after the other for every micro-batch. The others: Narayanan et al. 2021, section 2.2.
pub fn idle(order: Order, chunks: f64, micro_batches: f64, [all, slowest]: [f64; 2]) -> f64 {
    let of_others = (all - slowest).max(0.0);
    match order {
        Order::Naive => micro_batches * of_others,
        Order::GPipe | Order::OneFOneB => of_others / chunks,
    }
}

/// Micro-batches whose activations the stage `stage` (from 0) of `stages` holds at most.
pub fn in_flight(order: Order, stages: f64, micro_batches: f64, stage: f64) -> Check {
    let (says, how, value) = match order {
        Order::GPipe => ("all of them", digits(micro_batches), micro_batches),
        Order::Naive => ("one", "1".into(), micro_batches.min(1.0)),
        Order::OneFOneB => (
            "those that are on their way to the last stage and back: p - stage, at most m",
            format!("min({} - {}, {})", digits(stages), digits(stage), digits(micro_batches)),
            (stages - stage).min(micro_batches),
        ),
    };
    Check::new("in-flight", says, "Narayanan et al. 2021, section 2.2", "micro-batches").term("first stage", how, value)
}

/// Layers' worth of activations of one micro-batch on the first stage under 1F1B: p micro-batches of L/p layers, and
/// 1 + (p-1)/(p v) times that with v chunks.
pub fn layers_kept(layers: f64, stages: f64, chunks: f64) -> Check {
    let extra = if chunks > 1.0 { (stages - 1.0) / (stages * chunks) } else { 0.0 };
    let check = Check::new(
        "layers-kept",
        "first stage of 1F1B: p micro-batches of L/p layers, times 1 + (p - 1)/(p v) when interleaved",
        "Korthikanti et al. 2022, section 4.2.3",
        "layers of one micro-batch",
    )
    .term("1F1B", format!("{} × {} / {}", digits(stages), digits(layers), digits(stages)), layers);
    if chunks > 1.0 {
        let how = format!("{} × ({} - 1) / ({} × {})", digits(layers), digits(stages), digits(stages), digits(chunks));
        return check.term("interleaved", how, layers * extra);
    }
    check
}

/// Those that say something about a job: it has to have a pipeline.
pub(super) fn all(job: &Job) -> Vec<Check> {
    let (stages, micro_batches) = (job.degrees.pipeline as f64, job.batch.accumulation.max(1) as f64);
    if job.degrees.pipeline < 2 {
        return Vec::new();
    }
    let chunks = job.degrees.chunks.max(1) as f64;
    let schedule = job.degrees.schedule;
    let mut list = vec![in_flight(schedule, stages, micro_batches, 0.0)];
    if schedule != Order::Naive {
        list.insert(0, bubble(stages, chunks, micro_batches));
    }
    if job.degrees.schedule == Order::OneFOneB && job.batch.accumulation >= job.degrees.pipeline {
        list.push(layers_kept(job.model.layers as f64, stages, chunks));
    }
    list
}
