//! The field's rules of thumb as named checks: each is a sum whose terms can be printed. They are what people reckon
//! with, right or wrong; what the estimator itself reckons with stands beside them in `zbench plan --explain`.

use crate::job::{Job, Kind, Peft, Recompute};
use crate::machine::Machine;
use std::fmt;

pub mod activations;
pub mod flops;
pub mod pipeline;
pub mod state;
#[cfg(test)]
pub(crate) mod tests;
pub mod traffic;

/// A term of a sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// What it stands for.
    pub name: String,
    /// The product, with its numbers.
    pub how: String,
    /// What it comes to.
    pub value: f64,
}

/// A rule of thumb, worked out.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Its name, by which reports refer to it.
    pub name: &'static str,
    /// The formula in words.
    pub says: String,
    /// Who says so.
    pub source: &'static str,
    /// What its terms and their sum are in.
    pub unit: &'static str,
    /// The terms.
    pub terms: Vec<Term>,
}

impl Check {
    /// A rule without terms yet.
    pub fn new(name: &'static str, says: impl Into<String>, source: &'static str, unit: &'static str) -> Check {
        Check { name, says: says.into(), source, unit, terms: Vec::new() }
    }

    /// With another term.
    #[must_use]
    pub fn term(mut self, name: impl Into<String>, how: impl Into<String>, value: f64) -> Check {
        self.terms.push(Term { name: name.into(), how: how.into(), value });
        self
    }

    /// The sum of the terms.
    pub fn sum(&self) -> f64 {
        self.terms.iter().map(|term| term.value).sum()
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} [{}]", self.name, self.says, self.source)?;
        let wide = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let names = wide(&mut self.terms.iter().map(|term| term.name.chars().count()));
        let hows = wide(&mut self.terms.iter().map(|term| term.how.chars().count()));
        for term in &self.terms {
            let (name, how, value) = (&term.name, &term.how, digits(term.value));
            writeln!(f, "    {name:names$}  {how:hows$} = {value} {}", self.unit)?;
        }
        if self.terms.len() > 1 {
            writeln!(f, "    {:names$}  {:hows$} = {} {}", "sum", "", digits(self.sum()), self.unit)?;
        }
        Ok(())
    }
}

/// A number as people read it: whole ones in groups of three, others with four digits that count.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    if value.abs() < 1000.0 {
        let text = format!("{value:.4}");
        return text.trim_end_matches('0').trim_end_matches('.').to_string();
    }
    let whole = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// All rules that say something about a job, and with a machine those that need one.
pub fn all(job: &Job, machine: Option<&Machine>) -> Vec<Check> {
    let mut list = flops::all(job);
    list.extend(state::all(job));
    if !matches!(job.model.kind, Kind::Count { .. }) {
        list.extend(activations::all(job));
    }
    list.extend(pipeline::all(job));
    list.extend(traffic::all(job, machine));
    if let Some(machine) = machine {
        list.extend(traffic::congestion(job, machine));
        list.extend(rates(job, machine));
    }
    list
}

/// Ranks of a job.
fn world(job: &Job) -> f64 {
    [job.degrees.data, job.degrees.tensor, job.degrees.pipeline, job.degrees.context].map(|d| d as f64).iter().product()
}

/// Tokens of a step on all ranks.
fn tokens_per_step(job: &Job) -> f64 {
    let batch = &job.batch;
    batch.seq as f64 * batch.micro as f64 * batch.accumulation as f64 * job.degrees.data as f64
}

/// Model (or hardware) FLOPs utilisation: FLOPs a token × tokens a second over all ranks, of what all ranks could do. The
/// ranks stand in the divisor: without them it is the share of one device.
pub fn utilisation(flops_per_token: f64, tokens_per_second: f64, ranks: f64, peak: f64) -> Check {
    let says = "FLOPs a token × tokens a second / (ranks × dense peak)";
    let (flops, tokens) = (digits(flops_per_token), digits(tokens_per_second));
    Check::new("utilisation", says, "PaLM paper, appendix B", "of the peak").term(
        "share",
        format!("{flops} × {tokens} / ({} × {})", digits(ranks), digits(peak)),
        flops_per_token * tokens_per_second / (ranks * peak),
    )
}

/// What the dense peak allows, and 40 % of it, which is a good run.
fn rates(job: &Job, machine: &Machine) -> Vec<Check> {
    let number = job.precision.products;
    let Some(rate) = machine.device.compute.get(&number) else { return Vec::new() };
    // Tokens of two stacks are not tokens of one.
    if matches!(job.model.kind, Kind::EncoderDecoder { .. }) {
        return Vec::new();
    }
    let parameters = job.model.active_parameters() as f64;
    let trained = if job.peft == Peft::None { 6.0 } else { 4.0 };
    let factor = if matches!(job.recompute, Recompute::Full { .. }) { trained + 2.0 } else { trained };
    let (step, hour) = (tokens_per_step(job), 3600.0 * rate.peak / (factor * parameters));
    let peak = digits(rate.peak);
    vec![
        Check::new(
            "tokens-per-gpu-hour",
            "3600 × dense peak / FLOPs a token (6N, frozen 4N, 2N more with full recomputation): nobody is faster",
            "arithmetic",
            "tokens/h",
        )
        .term("at the peak", format!("3600 × {peak} / ({factor} × {})", digits(parameters)), hour),
        Check::new("tokens-per-gpu-hour-40", "40 % of the peak, which a good run reaches", "arithmetic", "tokens/h")
            .term("at 40 %", format!("0.4 × {}", digits(hour)), 0.4 * hour),
        Check::new("step-at-peak", "FLOPs of a step / (ranks × dense peak)", "arithmetic", "s").term(
            "step",
            format!("{} × {factor} × {} / ({} × {peak})", digits(step), digits(parameters), digits(world(job))),
            step * factor * parameters / (world(job) * rate.peak),
        ),
    ]
}
