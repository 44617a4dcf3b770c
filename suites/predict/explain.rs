//! `plan --explain`: the sums behind a cell's estimate, term by term, and the field's rules of thumb beside them.

use crate::forecast;
use crate::job::job;
use crate::planned::gib;
use zbench_config::Resolved;
use zbench_engine::observe::outcome::Estimate;
use zbench_engine::planner::Planner;
use zbench_estimate::deepspeed::{self, Formula, Line, Offloaded};
use zbench_estimate::job::{Job, Kind};
use zbench_estimate::machine::Machine;
use zbench_estimate::memory::memory;
use zbench_estimate::rules::{self, Check};
use zbench_reports::estimate_report::{Sum, Term};
use zbench_reports::units;

/// The sums of a cell.
pub fn sums(resolved: &Resolved, estimate: Option<&Estimate>) -> Vec<Sum> {
    let job = job(resolved);
    let mut list = Vec::new();
    if let Some(estimate) = estimate {
        list.push(planned(estimate));
        list.push(flops(estimate));
    }
    let machine = resolved.profile.as_ref().and_then(|profile| profile.machine.as_ref());
    list.push(priced(&job, machine));
    if let Ok((timing, traffic)) = forecast::timing(&Planner::default(), resolved, estimate) {
        list.push(time(&timing));
        let term = |t: &zbench_reports::estimate_report::EstimateTraffic| {
            let how = format!("{} calls, payload {}", units::number(t.calls), units::traffic(t.payload_bytes));
            bytes(format!("{} {}", t.axis, t.kind), how, t.wire_bytes, units::traffic)
        };
        list.push(Sum {
            title: "Bytes on the wire per step and rank".into(),
            unit: "bytes".into(),
            terms: traffic.iter().map(term).collect(),
            ..Sum::default()
        });
    }
    list.extend(rules::all(&job, machine).iter().map(rule));
    list
}

fn bytes(name: String, formula: String, value: f64, text: fn(f64) -> String) -> Term {
    Term { name, formula, value, text: text(value) }
}

fn total(terms: &[Term], text: fn(f64) -> String) -> Option<Term> {
    let sum = terms.iter().map(|term| term.value).sum();
    Some(Term { name: "sum".into(), formula: String::new(), value: sum, text: text(sum) })
}

/// What the engine's plan holds at its peak.
fn planned(estimate: &Estimate) -> Sum {
    let footprint = forecast::Footprint::of_plan(estimate, 1);
    let term = |(name, value): (&str, &u64)| {
        bytes(name.to_string(), "the plan's allocations at the moment of the peak".into(), *value as f64, units::memory)
    };
    let terms: Vec<Term> = footprint.at_peak.iter().map(term).collect();
    Sum {
        title: "Memory of the largest rank, as the engine allocates it".into(),
        unit: "bytes".into(),
        total: total(&terms, units::memory),
        terms,
        source: "The engine's own plan: measured arenas equal it to the byte (docs/memory-accounting.md).".into(),
    }
}

fn flops(estimate: &Estimate) -> Sum {
    let term = |(name, value): &(String, f64)| bytes(name.clone(), "all ranks, executed".into(), *value, units::flops);
    let terms: Vec<Term> = estimate.flops.ledger.iter().map(term).collect();
    Sum {
        title: "FLOPs of a step".into(),
        unit: "FLOP".into(),
        total: total(&terms, units::flops),
        terms,
        source: "Exact products of the plan, causal half of attention (docs/flops.md).".into(),
    }
}

fn priced(job: &Job, machine: Option<&Machine>) -> Sum {
    let (memory, footprint) = (memory(job), forecast::Footprint::priced(job, machine, 1));
    let stage = memory.worst();
    let term = |term: &zbench_estimate::memory::Term| {
        bytes(
            format!("{:?}: {}", term.category, term.name).to_lowercase(),
            term.formula.into(),
            term.bytes,
            units::memory,
        )
    };
    let mut terms: Vec<Term> = stage.terms.iter().filter(|term| term.bytes > 0.0).map(term).collect();
    let held = memory.needs() - stage.peak();
    if held > 0.0 {
        let how = "the allocator's blocks that do not fit again, the device's context, the communication library";
        terms.push(bytes("workspace: beside tensors".into(), how.into(), held, units::memory));
    }
    let place = if job.degrees.pipeline > 1 {
        format!(" (stage {} of {}, {:?})", stage.index, job.degrees.pipeline, stage.moment)
    } else {
        format!(" ({:?})", stage.moment)
    };
    Sum {
        title: format!("Memory of the largest rank as {} holds it{place}", job.framework.name),
        unit: "bytes".into(),
        total: total(&terms, units::memory),
        terms,
        source: format!(
            "Tensors {}, with what the allocator holds {}, on the device {}. {}.",
            gib(memory.allocated() as u64),
            gib(memory.reserved() as u64),
            gib(memory.device() as u64),
            footprint.band.map(|band| band.source()).unwrap_or_default()
        ),
    }
}

fn time(timing: &crate::Timing) -> Sum {
    let duration = |ms: f64| units::duration(ms / 1e3);
    let term = |(name, ms): (&str, &f64)| bytes(name.replace('_', " "), String::new(), *ms, duration);
    let terms: Vec<Term> = timing.spans.iter().map(term).collect();
    Sum {
        title: "Time of a step".into(),
        unit: "ms".into(),
        total: total(&terms, duration),
        terms,
        source: match timing.band {
            Some(band) => format!("{}; {}.", timing.source, band.source()),
            None => format!("{}.", timing.source),
        },
    }
}

fn rule(check: &Check) -> Sum {
    let term = |term: &rules::Term| Term {
        name: term.name.clone(),
        formula: term.how.clone(),
        value: term.value,
        text: rules::digits(term.value),
    };
    let sum = Term { name: "sum".into(), formula: String::new(), value: check.sum(), text: rules::digits(check.sum()) };
    Sum {
        title: format!("Rule of thumb: {}", check.name),
        unit: check.unit.into(),
        terms: check.terms.iter().map(term).collect(),
        total: (check.terms.len() > 1).then_some(sum),
        source: format!("{} [{}], {}.", check.says, check.source, check.unit),
    }
}

/// DeepSpeed's estimators for a cell's parameters, largest layer, GPUs and nodes: its tables as it prints them.
pub fn deepspeed(resolved: &Resolved, formula: Formula) -> Vec<Sum> {
    let job = job(resolved);
    let (parameters, largest) = match job.model.kind {
        Kind::Count { largest_layer } => (job.model.stated_parameters as f64, largest_layer as f64),
        _ => (job.model.parameters() as f64, job.model.largest_module() as f64),
    };
    let ranks = resolved.cell.parallel.ranks;
    let per_node = forecast::ranks_per_node(resolved).min(ranks).max(1);
    let nodes = (ranks / per_node).max(1) as f64;
    let of = format!(
        "{} parameters, largest layer {}, {nodes} x {per_node} GPUs",
        units::count(parameters as u64),
        units::count(largest as u64)
    );
    let words = match formula {
        Formula::Current => "current formula",
        Formula::Documented => "formula of older documentation",
    };
    let sum = |title: &str, lines: Vec<Line>| {
        let place = |line: &Line| match (title.contains("ZeRO-3"), line.offloaded) {
            (true, Offloaded::ParametersAndOptimizer) => "offload_param=cpu, offload_optimizer=cpu",
            (true, Offloaded::Optimizer) => "offload_param=none, offload_optimizer=cpu",
            (true, Offloaded::Nothing) => "offload_param=none, offload_optimizer=none",
            (false, Offloaded::Nothing) => "offload_optimizer=none",
            (false, _) => "offload_optimizer=cpu",
        };
        let term = |line: &Line| {
            let init = line.zero_init.map(|init| format!(", zero_init={}", u8::from(init))).unwrap_or_default();
            Term {
                name: format!("{}{init}", place(line)),
                formula: format!("{:.2}GB per CPU | {:.2}GB per GPU", line.host_gib, line.gpu_gib),
                value: line.gpu_gib,
                text: format!("{:.2}", line.gpu_gib),
            }
        };
        Sum {
            title: format!("{title}: {of}"),
            unit: "GiB per GPU".into(),
            terms: lines.iter().map(term).collect(),
            total: None,
            source: format!("DeepSpeed's estimator, {words}; what it calls GB is GiB; per CPU means per node."),
        }
    };
    vec![
        sum("DeepSpeed ZeRO-2", deepspeed::zero2(parameters, per_node as f64, nodes, formula)),
        sum("DeepSpeed ZeRO-3", deepspeed::zero3(parameters, largest, per_node as f64, nodes)),
    ]
}
