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

/// The same of ZB-H1, with forward and each of the two parts of backward a third of the time.
pub fn bubble_zero(stages: f64, micro_batches: f64) -> Check {
    Check::new("bubble-zero", "(p - 1) / (3 m) of the ideal time", "Qi et al. 2023, section 2.2", "of the ideal time")
        .term(
            "idle",
            format!("({} - 1) / (3 × {})", digits(stages), digits(micro_batches)),
            (stages - 1.0) / (3.0 * micro_batches),
        )
}

/// Seconds in which a stage stands still, of stages whose micro-batches take so many seconds forward, in backward until the gradient of
/// the input, and in the rest of it. `own`: what a micro-batch takes on that stage.
///
/// Naive: the others work one after the other for every micro-batch. 1F1B and GPipe: Narayanan et al. 2021, section 2.2.
pub fn idle(order: Order, chunks: f64, micro_batches: f64, stages: &[[f64; 3]], own: f64) -> f64 {
    let of_others = (stages.iter().flatten().sum::<f64>() - own).max(0.0);
    match order {
        Order::Naive => micro_batches * of_others,
        Order::GPipe | Order::OneFOneB => of_others / chunks,
        Order::ZeroBubble => (zero_bubble(stages, micro_batches) - micro_batches * own).max(0.0),
    }
}

/// Seconds from the first forward to the last gradient of weights under ZB-H1, of stages as in [`idle`]. Messages take no time.
///
/// How much of the bubble is filled depends on how the three compare (Qi et al. 2023, section 2.2). So the stages are followed pass by
/// pass until what they do repeats; each further micro-batch takes as long as the last ones did.
fn zero_bubble(stages: &[[f64; 3]], micro_batches: f64) -> f64 {
    let (few, many) = (8 * stages.len(), 16 * stages.len());
    if micro_batches <= many as f64 {
        return followed(stages, micro_batches as usize);
    }
    let (of_few, of_many) = (followed(stages, few), followed(stages, many));
    of_many + (micro_batches - many as f64) * (of_many - of_few) / (many - few) as f64
}

/// The same of so few micro-batches that each pass can be followed.
fn followed(stages: &[[f64; 3]], micro_batches: usize) -> f64 {
    let last = stages.len().saturating_sub(1);
    // When each stage is free, and when it has made the values and the gradients of each micro-batch.
    let mut free = vec![0.0f64; stages.len()];
    let [mut values, mut gradients] = [(); 2].map(|()| vec![vec![0.0f64; micro_batches]; stages.len()]);
    let mut spend = |stage: usize, part: usize, begin: f64| {
        free[stage] = free[stage].max(begin) + stages[stage][part];
        free[stage]
    };
    // How many passes of each kind a stage has behind it: forward, input, weights.
    let mut done = vec![[0usize; 3]; stages.len()];
    let mut goes_on = micro_batches > 0;
    while std::mem::take(&mut goes_on) {
        for stage in 0..stages.len() {
            let ahead = micro_batches.min(stages.len() - stage);
            loop {
                let [forward, input, weights] = done[stage];
                // 1F1B, with the gradients of weights `stage` micro-batches behind those of inputs.
                let part = match () {
                    () if forward < micro_batches && forward < ahead + input && weights + stage >= input => 0,
                    () if weights + stage < input || (input == micro_batches && weights < input) => 2,
                    () if input < micro_batches => 1,
                    () => break,
                };
                let is_there = match part {
                    0 => stage == 0 || done[stage - 1][0] > forward,
                    1 => stage == last || done[stage + 1][1] > input,
                    _ => true,
                };
                if !is_there {
                    break;
                }
                match part {
                    0 => {
                        let begin = if stage == 0 { 0.0 } else { values[stage - 1][forward] };
                        values[stage][forward] = spend(stage, 0, begin);
                    }
                    1 => {
                        let begin = if stage == last { values[last][input] } else { gradients[stage + 1][input] };
                        gradients[stage][input] = spend(stage, 1, begin);
                    }
                    _ => drop(spend(stage, 2, 0.0)),
                }
                done[stage][part] += 1;
                goes_on = true;
            }
        }
    }
    free.into_iter().fold(0.0, f64::max)
}

/// Micro-batches whose activations the stage `stage` (from 0) of `stages` holds at most.
pub fn in_flight(order: Order, stages: f64, micro_batches: f64, stage: f64) -> Check {
    let (says, how, value) = match order {
        Order::GPipe => ("all of them", digits(micro_batches), micro_batches),
        Order::Naive => ("one", "1".into(), micro_batches.min(1.0)),
        Order::OneFOneB | Order::ZeroBubble => (
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
    match schedule {
        Order::Naive => {}
        Order::ZeroBubble => list.insert(0, bubble_zero(stages, micro_batches)),
        _ => list.insert(0, bubble(stages, chunks, micro_batches)),
    }
    if job.degrees.schedule == Order::OneFOneB && job.batch.accumulation >= job.degrees.pipeline {
        list.push(layers_kept(job.model.layers as f64, stages, chunks));
    }
    list
}
