//! Rows of speed: the first of tokens per second, seconds per step and FLOP/s that a row states, in its unit and by its
//! way of counting FLOPs.

use super::guess::{Guess, machine_of};
use super::job::{Expressed, Refused, express};
use super::row::Row;
use super::suppose::suppose;
use super::words::any;
use crate::job::{Job, Recompute};
use crate::machine::Machine;
use crate::time::{Time, time_with};
use crate::tuning::Tuning;

/// A row that can be predicted.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The row as a job.
    pub expressed: Expressed,
    /// The machine that it ran on.
    pub machine: Machine,
    /// What it states.
    pub stated: Option<f64>,
    quantity: Quantity,
    counting: Counting,
    one_sided: bool,
    rated: f64,
    /// The run asked for tensor parallel collectives beside products.
    asked: bool,
}

/// What PyTorch's asynchronous tensor parallelism hides, where a run asks for it: it splits products in as many parts as
/// ranks and sends each part while the next is computed; the first is exposed, and parts are less efficient. Set by hand on
/// seven rows of torchtitan, both halves seen.
const ASKED: f64 = 0.3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Tokens,
    Step,
    Flops,
    Utilisation,
}

impl Quantity {
    const fn name(self) -> &'static str {
        match self {
            Quantity::Tokens => "tokens_per_s_per_gpu",
            Quantity::Step => "step_time_s",
            Quantity::Flops => "tflops_per_gpu",
            Quantity::Utilisation => "mfu_pct",
        }
    }
}

/// Ways of counting FLOPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    /// 6 N + 12 L h s per token.
    Full,
    /// Megatron's 72 B s L h^2 (1 + s/6h + V/12Lh).
    Megatron,
    /// The same with the forward that is made again, whether it is or not.
    MegatronAgain,
    /// 8 N per token.
    Eight,
    /// 6 N per token.
    Six,
    /// What is computed, with what is made again.
    Hardware,
}

fn counting(text: &str, job: &Job) -> Counting {
    let text: String = text.to_lowercase().chars().filter(|c| !c.is_whitespace()).collect();
    let has = |words: &[&str]| any(&text, words);
    if has(&["8*n", "4*2*", "size*4*2", "8n"]) {
        return Counting::Eight;
    }
    if has(&["x3/4", "*3/4", "72b", "72*b"]) {
        return Counting::Megatron;
    }
    if has(&["96*b", "96b", "megatronformula"]) {
        return Counting::MegatronAgain;
    }
    if has(&["12*l", "12l", "palm"]) {
        return Counting::Full;
    }
    if has(&["hardware", "hfu", "incl.recompute"]) {
        return Counting::Hardware;
    }
    if has(&["6*n", "6n"]) {
        return Counting::Six;
    }
    if text.is_empty() && matches!(job.recompute, Recompute::Full { .. }) {
        return Counting::Hardware;
    }
    Counting::Full
}

/// FLOPs of a step by a way of counting.
fn flops(job: &Job, time: &Time, tokens: f64, counting: Counting) -> f64 {
    let model = &job.model;
    let (l, h, s) = (model.layers as f64, model.hidden as f64, job.batch.seq as f64);
    let n = if model.stated_parameters > 0 && model.layers == 0 {
        model.stated_parameters as f64
    } else {
        model.active_parameters() as f64
    };
    let megatron = || {
        if model.layers == 0 || model.hidden == 0 {
            return 6.0 * n * tokens;
        }
        let logits = model.vocab as f64 / (16.0 * l * h);
        72.0 * tokens * l * h * h * (1.0 + s / (6.0 * h) + logits)
    };
    match counting {
        Counting::Full => tokens * (6.0 * n + 12.0 * l * h * s),
        Counting::Megatron => megatron(),
        Counting::MegatronAgain => megatron() * 4.0 / 3.0,
        Counting::Eight => 8.0 * n * tokens,
        Counting::Six => 6.0 * n * tokens,
        Counting::Hardware => time.hardware_flops,
    }
}

/// A row as what can be predicted.
///
/// # Errors
/// What of it cannot be expressed.
pub fn prepare(row: &Row) -> Result<Prepared, Refused> {
    let mut expressed = express(row)?;
    let of = |column: &str| row.number(column).filter(|n| *n > 0.0);
    let bound = row.words("bound");
    let (quantity, stated) = match (of("tokens_per_s_per_gpu"), of("step_time_s"), of("tflops_per_gpu"), of("mfu_pct"))
    {
        (Some(stated), ..) => (Quantity::Tokens, Some(stated)),
        (_, Some(stated), ..) => (Quantity::Step, Some(stated)),
        (_, _, Some(stated), _) => (Quantity::Flops, Some(stated)),
        (_, _, _, Some(stated)) => (Quantity::Utilisation, Some(stated)),
        _ if !bound.is_empty() => (Quantity::Step, None),
        _ => return Err(Refused("the row states no speed".into())),
    };
    if any(&row.words("model"), &["optimizer step only"]) {
        return Err(Refused("an optimizer's step alone is no training step".into()));
    }
    let machine = machine_of(&expressed, &row.words("gpu"), &row.words("inter_link"))?;
    if expressed.devices == 0 && expressed.job.degrees.data == 1 && expressed.job.batch.accumulation == 1 {
        // Neither devices nor a batch: nothing says how the work was split.
        if of("global_batch").is_none() && of("micro_batch").is_none() && bound.is_empty() {
            return Err(Refused("the row states neither devices nor a batch".into()));
        }
    }
    suppose(row, &mut expressed, &machine);
    let counting = counting(row.text("flops_convention"), &expressed.job);
    let rated = of("peak_tflops_used").unwrap_or_else(|| {
        let form = expressed.job.precision.products;
        machine.device.compute.get(&form).map_or(1.0, |rate| rate.peak / 1e12)
    });
    let asked = any(&row.words("notes"), &["async tp", "async-tp", "async tensor"]);
    Ok(Prepared { expressed, machine, stated, quantity, counting, one_sided: !bound.is_empty(), rated, asked })
}

impl Prepared {
    /// The step's time with some constants.
    pub fn time(&self, tuning: &Tuning) -> Time {
        if self.asked {
            let tuning = Tuning { tensor_asked: ASKED, ..tuning.clone() };
            return time_with(&self.expressed.job, &self.machine, &tuning);
        }
        time_with(&self.expressed.job, &self.machine, tuning)
    }

    /// What the row states, predicted.
    pub fn value(&self, tuning: &Tuning) -> f64 {
        let job = &self.expressed.job;
        let time = self.time(tuning);
        let per_rank = time.tokens_per_second_per_device;
        let devices = ranks(job);
        let tera = || {
            let tokens = per_rank * time.step * devices;
            flops(job, &time, tokens, self.counting) / time.step / devices / 1e12
        };
        match self.quantity {
            Quantity::Tokens => per_rank,
            Quantity::Step => time.step,
            Quantity::Flops => tera(),
            Quantity::Utilisation => 100.0 * tera() / self.rated,
        }
    }

    /// The prediction.
    pub fn guess(&self, tuning: &Tuning) -> Guess {
        Guess {
            quantity: self.quantity.name(),
            stated: self.stated,
            predicted: self.value(tuning),
            one_sided: self.one_sided,
        }
    }

    /// Whether more is faster in the stated unit.
    pub fn rate(&self) -> bool {
        self.quantity != Quantity::Step
    }
}

fn ranks(job: &Job) -> f64 {
    let d = &job.degrees;
    (d.data.max(1) * d.tensor.max(1) * d.pipeline.max(1) * d.context.max(1)) as f64
}

/// The prediction of a row.
///
/// # Errors
/// What of it cannot be expressed.
pub fn predict(row: &Row) -> Result<Guess, Refused> {
    prepare(row)?.guess(&Tuning::DEFAULT).checked()
}
