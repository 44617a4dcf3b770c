//! A trial as its ranks have told of it.

use super::PREDICTED;
use super::lanes::{self, COLLECTIVES, COMPUTE, HOST, Names};
use super::predicted::{self, Predicted};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use zbench_collectives::GroupName;
use zbench_engine::observe::outcome::Saved;
use zbench_engine::observe::trace::{Flight, Segment, StepTrace, What};
use zbench_predict::planned::Planned;
use zbench_reports::record::Record;

/// Lanes that an axis may have.
const PER_AXIS: u64 = 1000;

/// The lanes of an axis: as many as collectives were ever under way together.
struct Lanes {
    /// Which axis it is, in order of first use.
    axis: u64,
    /// Until when each is taken.
    until: Vec<u64>,
}

/// A trial under way.
pub struct Trial {
    label: String,
    base: u64,
    names: Names,
    predicted: Result<Predicted, String>,
    /// The prediction stands behind this moment.
    predicted_until: Option<u64>,
    /// Ranks that have spoken, with the lanes of their collectives by axis.
    ranks: BTreeMap<usize, BTreeMap<GroupName, Lanes>>,
    /// Steps that rank 0 has told of.
    steps: u64,
    is_device: bool,
}

impl Trial {
    /// A trial that begins; its processes have numbers from `base` on.
    pub fn new(planned: &Planned, label: String, base: u64) -> Trial {
        Trial {
            label,
            base,
            names: Names::of(planned),
            predicted: predicted::of(planned),
            predicted_until: None,
            ranks: BTreeMap::new(),
            steps: 0,
            is_device: planned
                .cell()
                .is_some_and(|cell| cell.hardware.device != zbench_engine::config::DeviceKind::Cpu),
        }
    }

    fn pid(&self, rank: usize) -> u64 {
        self.base + rank as u64
    }

    /// A step of a rank, or an evaluation.
    pub fn events(&mut self, traced: &StepTrace, arrows: &mut u64) -> Vec<Value> {
        let pid = self.pid(traced.rank);
        let mut events = Vec::new();
        if let Entry::Vacant(rank) = self.ranks.entry(traced.rank) {
            rank.insert(BTreeMap::new());
            let of_stage = self.names.stage_in_title(traced.rank);
            events.extend(lanes::process(pid, &format!("rank {}{of_stage} · {}", traced.rank, self.label), pid));
            let compute = if self.is_device { "device queue" } else { "compute" };
            events.push(lanes::thread(pid, COMPUTE, compute));
            if self.is_device {
                events.push(lanes::thread(pid, HOST, "host asks"));
            }
        }
        let title = match traced.what {
            What::Step => format!("step {}", traced.step),
            What::Evaluation => format!("evaluation after step {}", traced.step),
        };
        let args = json!({
            "step": traced.step, "timed": traced.timed, "broken": traced.broken, "recording_ns": traced.cost_ns,
        });
        let category = match traced.what {
            What::Step => "step",
            What::Evaluation => "evaluation",
        };
        // Evaluations of a device, and steps that failed there, are by the host's clock alone.
        let by_host = self.is_device && traced.asked.is_empty();
        let lane = if by_host { HOST } else { COMPUTE };
        events.push(lanes::slice(pid, lane, category, &title, traced.from, traced.ns, args));
        self.stretches(&mut events, traced.rank, lane, &traced.segments);
        self.stretches(&mut events, traced.rank, HOST, &traced.asked);
        let host = if self.is_device { HOST } else { COMPUTE };
        for flight in &traced.flights {
            self.flight(&mut events, traced.rank, host, flight, arrows);
        }
        for (at, category, bytes) in &traced.memory {
            let counter = format!("memory {}", category.name());
            events.push(json!({ "ph": "C", "name": counter, "pid": pid, "at": at, "args": { "bytes": bytes } }));
        }
        if traced.rank == 0 && traced.what == What::Step {
            self.steps += u64::from(!traced.broken);
            events.extend(self.beside(traced));
        }
        events
    }

    /// Actions, and in them the spans that the time is booked under.
    fn stretches(&self, events: &mut Vec<Value>, rank: usize, tid: u64, segments: &[Segment]) {
        let (pid, stage, mut micro) = (self.pid(rank), self.names.stage_of(rank), 0);
        for of_action in segments.chunk_by(|a, b| a.action == b.action) {
            let [first, ..] = of_action else { continue };
            if let Some(action) = first.action {
                micro = action.micro().unwrap_or(micro);
                let lasts = of_action.iter().map(|segment| segment.ns).sum();
                let args = json!({ "micro_batch": micro });
                let name = self.names.action(stage, action);
                events.push(lanes::slice(pid, tid, "action", &name, first.from, lasts, args));
            }
            for segment in of_action {
                events.push(lanes::slice(pid, tid, "span", segment.span.name(), segment.from, segment.ns, json!({})));
            }
        }
    }

    /// A collective in a lane of its own, with an arrow from its start to where it is waited for.
    fn flight(&mut self, events: &mut Vec<Value>, rank: usize, host: u64, flight: &Flight, arrows: &mut u64) {
        let pid = self.pid(rank);
        let axes = self.ranks.entry(rank).or_default();
        let next = axes.len() as u64;
        let Lanes { axis, until } = axes.entry(flight.axis).or_insert(Lanes { axis: next, until: Vec::new() });
        let free = until.iter().position(|until| *until <= flight.from);
        let lane = free.unwrap_or(until.len());
        if free.is_none() {
            until.push(0);
        }
        until[lane] = flight.until;
        let tid = COLLECTIVES + PER_AXIS * *axis + lane as u64;
        if free.is_none() {
            let more = if lane == 0 { String::new() } else { format!(" {}", lane + 1) };
            events.push(lanes::thread(pid, tid, &format!("collectives {}{more}", flight.axis.name())));
        }
        let args = json!({
            "axis": flight.axis, "ranks": flight.ranks, "payload_bytes": flight.payload_bytes,
            "wire_bytes": flight.wire_bytes, "start_us": (flight.begun - flight.from) as f64 / 1e3,
            "wait_us": (flight.until - flight.awaited) as f64 / 1e3, "is_started": flight.is_started,
        });
        let lasts = flight.until - flight.from;
        events.push(lanes::slice(pid, tid, "collective", flight.kind.name(), flight.from, lasts, args));
        if flight.is_started {
            *arrows += 1;
            let arrow = |ph: &str, at: u64| json!({ "ph": ph, "cat": "collective", "name": flight.kind, "id": *arrows, "pid": pid, "tid": host, "at": at });
            let mut end = arrow("f", flight.awaited);
            end["bp"] = "e".into();
            events.extend([arrow("s", flight.from), end]);
        }
    }

    /// The predicted step beside one that was measured, where the one before it is over.
    fn beside(&mut self, traced: &StepTrace) -> Vec<Value> {
        let pid = self.base + PREDICTED;
        let Ok(predicted) = &self.predicted else { return Vec::new() };
        let mut events = Vec::new();
        if self.predicted_until.is_none() {
            events.extend(lanes::process(pid, &format!("predicted · {}", self.label), pid));
            events.extend(predicted.lanes(pid));
            events.extend(predicted.memory(pid, traced.from));
        }
        if self.predicted_until.is_none_or(|until| until <= traced.from) {
            events.extend(predicted.events(pid, traced.from, traced.step, &self.names));
            self.predicted_until = Some(traced.from + predicted.step_ns());
        }
        events
    }

    /// A checkpoint is complete.
    pub fn saved(&self, saved: &Saved) -> Value {
        json!({
            "ph": "i", "s": "p", "cat": "checkpoint", "name": format!("checkpoint of step {}", saved.step),
            "pid": self.pid(0), "tid": COMPUTE, "at": lanes::now_ns(),
            "args": { "bytes": saved.bytes, "ms": saved.ms, "stall_ms": saved.stall_ms },
        })
    }

    /// Processes say of which record they are.
    pub fn labels(&self, record: &Record) -> Vec<Value> {
        let labels = format!("record {}", record.id);
        let label = |rank: &usize| {
            json!({
                "ph": "M", "name": "process_labels", "pid": self.pid(*rank), "tid": 0, "args": { "labels": labels },
            })
        };
        self.ranks.keys().map(label).collect()
    }

    /// What stands beside the events of a trial that has no record: it was stopped.
    pub fn unfinished(&self) -> Value {
        json!({ "cell": self.label, "record": null, "status": "stopped", "traced_steps": self.steps })
    }

    /// What stands beside the events of this trial.
    pub fn summary(&self, record: &Record) -> Value {
        let mut summary = json!({
            "cell": self.label, "record": record.id, "key": record.key, "status": record.outcome.status.name(),
            "traced_steps": self.steps, "steps": record.steps.len(), "trace": record.extra.get("trace"),
        });
        match &self.predicted {
            Ok(predicted) => {
                summary["predicted_step_ms"] = (predicted.step_ns() as f64 / 1e6).into();
                summary["predicted_from"] = predicted.source().into();
            }
            Err(reason) => summary["not_predicted"] = reason.clone().into(),
        }
        summary
    }
}
