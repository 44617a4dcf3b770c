//! Rows that state memory, predicted.

use super::formulas::{attention_factor, formula};
use super::job::{Expressed, Refused, express};
use super::limits::{capacity, micro_batch, parameters, sequence};
use super::row::Row;
use super::score::Outcome;
use super::words::any;
use crate::memory::{Memory, memory};

/// Bytes of a unit; 1 for what is no amount of bytes.
fn unit(text: &str) -> f64 {
    let text = text.to_lowercase();
    let starts = |name: &str| text.starts_with(name);
    match () {
        () if starts("tib") => 1_099_511_627_776.0,
        () if starts("gib") => super::limits::GIB,
        () if starts("mib") => 1_048_576.0,
        () if starts("tb") => 1e12,
        // Tools that say GB without saying which count in powers of two: torch, nvidia-smi.
        () if starts("gb (source") || starts("gb (nvidia") => super::limits::GIB,
        () if starts("gb") => 1e9,
        () if starts("mb") => 1e6,
        () => 1.0,
    }
}

/// What a measure's words mean.
fn measured(of: &Memory, measure: &str, notes: &str) -> f64 {
    let last = any(measure, &["last pipeline"]) || any(notes, &["last pipeline", "last rank"]);
    let stage = if last && !any(measure, &["first"]) { of.last() } else { of.worst() };
    if any(measure, &["nvidia", "smi", "max over first", "first/last"]) {
        return of.habits.reserved(stage) + of.habits.context;
    }
    if any(measure, &["allocated"]) && !any(measure, &["reserved,"]) {
        return stage.peak();
    }
    if any(measure, &["reserved", "torchtitan", "peak (printed"]) {
        return of.habits.reserved(stage);
    }
    stage.peak()
}

/// The outcome of a row of memory.csv.
pub fn predict(row: &Row) -> Outcome {
    let mut outcome = Outcome::of(row, row.text("quantity"), row.text("unit"), row.text("value"));
    match value(row, &mut outcome) {
        Ok(value) if value.is_finite() => outcome.predicted = Some(value),
        Ok(_) => outcome.reason = "the prediction is no number".into(),
        Err(why) => outcome.reason = why.to_string(),
    }
    judge(row, &mut outcome);
    outcome
}

/// Whether an outcome counts, and why not.
fn judge(row: &Row, outcome: &mut Outcome) {
    if outcome.predicted.is_none() {
        return;
    }
    let why = if row.words("suspect").starts_with('y') {
        "suspect"
    } else if !row.trusted() {
        "recalled from memory"
    } else if !outcome.bound.is_empty() {
        "one-sided, or no value"
    } else if outcome.published.is_none() {
        "no value is published"
    } else {
        outcome.scored = true;
        return;
    };
    outcome.reason = why.into();
}

fn value(row: &Row, outcome: &mut Outcome) -> Result<f64, Refused> {
    let quantity = row.words("quantity");
    match quantity.as_str() {
        "attention_memory_reduction_factor" => return attention_factor(row),
        "max_params_that_fit" => return parameters(row),
        "comm_volume_per_step_per_gpu" => return volume_of(row),
        _ => {}
    }
    let expressed = express(row)?;
    if quantity == "max_micro_batch" {
        let capacity = capacity(row, &expressed).ok_or("the row gives neither a device nor its memory")?;
        let most = micro_batch(&expressed, capacity);
        if any(&row.words("bound"), &["oom"]) || outcome.published == Some(0.0) {
            outcome.fits = Some((false, most >= 1.0));
        }
        return Ok(most);
    }
    if any(&quantity, &["max_seq", "max_context"]) {
        let capacity = capacity(row, &expressed).ok_or("the row gives neither a device nor its memory")?;
        return Ok(sequence(&expressed, capacity));
    }
    let of = memory(&expressed.job);
    fitting(row, &expressed, &of, outcome);
    if quantity == "fits" {
        let capacity = capacity(row, &expressed).ok_or("the row gives neither a device nor its memory")?;
        return Ok(f64::from(u8::from(of.needs() <= capacity)));
    }
    let bytes = match formula(row, &expressed) {
        Some(bytes) => bytes?,
        None if any(&quantity, &["allocated_after", "after_step"]) => {
            let last = any(&row.words("notes"), &["last pipeline", "last rank"]);
            if last { of.last().after_step } else { of.worst().after_step }
        }
        None if any(&quantity, &["avg_reserved"]) => {
            return Err("an average over batches of many lengths, which the row does not give".into());
        }
        None if any(&quantity, &["peak", "memory_per_gpu", "max_memory"]) => {
            measured(&of, &row.words("measure"), &row.words("notes"))
        }
        None if any(&quantity, &["host", "cpu_memory"]) => of.host,
        None => return Err(Refused(format!("the quantity `{quantity}` is not known"))),
    };
    Ok(bytes / unit(row.text("unit")))
}

/// A volume needs no model.
fn volume_of(row: &Row) -> Result<f64, Refused> {
    let text = row.words("sharding");
    Ok(if any(&text, &["++", "hpz"]) {
        2.0
    } else if any(&text, &["zero3", "zero-3", "full", "fsdp"]) && !any(&text, &["grad_op"]) {
        3.0
    } else {
        2.0
    })
}

/// Whether a run that is known to have fitted, or not, is predicted to.
fn fitting(row: &Row, expressed: &Expressed, of: &Memory, outcome: &mut Outcome) {
    let measured = outcome.published.is_some() && row.words("kind").starts_with("measured");
    let stated = match (row.words("bound").as_str(), row.words("quantity").as_str()) {
        (bound, _) if bound.contains("oom") => Some(false),
        (_, "fits") => outcome.published.map(|value| value > 0.0),
        _ if measured => Some(true),
        _ => None,
    };
    if let (Some(stated), Some(capacity)) = (stated, capacity(row, expressed)) {
        outcome.fits = Some((stated, of.needs() <= capacity));
    }
}

/// The outcome of a throughput row's memory: its value, or that it fits. Rows that state neither give none.
pub fn beside_throughput(row: &Row) -> Option<Outcome> {
    let has = !row.text("mem_value").is_empty();
    let oom = row.words("bound").contains("oom");
    let ran =
        ["tokens_per_s_per_gpu", "step_time_s", "tflops_per_gpu"].iter().any(|column| row.number(column).is_some());
    if !has && !oom && !ran {
        return None;
    }
    let mut outcome = Outcome::of(row, "mem_value", row.text("mem_unit"), row.text("mem_value"));
    let of_row = || -> Result<(f64, Option<bool>), Refused> {
        let expressed = express(row)?;
        let of = memory(&expressed.job);
        let fits = capacity(row, &expressed).map(|capacity| of.needs() <= capacity);
        let bytes = measured(&of, &row.words("mem_measure"), &row.words("notes"));
        Ok((bytes / unit(row.text("mem_unit")), fits))
    };
    match of_row() {
        Ok((value, fits)) => {
            outcome.predicted = Some(value);
            // What was kept of activations decides; rows that do not say are no witnesses.
            let certain = (row.positive("micro_batch").is_some() && !row.text("recompute").is_empty()) || oom;
            outcome.fits = fits.filter(|_| certain).map(|fits| (!oom, fits));
            judge(row, &mut outcome);
        }
        Err(why) => outcome.reason = why.to_string(),
    }
    Some(outcome)
}
