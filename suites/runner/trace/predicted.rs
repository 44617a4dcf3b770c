//! The predicted step as a timeline.

use super::lanes::{self, COMPUTE, Names};
use serde_json::{Value, json};
use zbench_engine::action::Action;
use zbench_engine::planner::Planner;
use zbench_engine::planner::clock::Stretch;
use zbench_kernels::Category;
use zbench_predict::planned::Planned;
use zbench_predict::time;

/// What is predicted of a step.
pub struct Predicted {
    /// By stage of the pipeline.
    stages: Vec<Vec<Piece>>,
    /// Whether they stand in the order in which they will be: else only their lengths are known.
    is_ordered: bool,
    peaks: Vec<(&'static str, u64)>,
    source: String,
}

/// A part of it.
struct Piece {
    action: Option<Action>,
    span: String,
    ns: u64,
}

fn nanoseconds(ms: f64) -> u64 {
    (ms * 1e6).round().max(0.0) as u64
}

/// The prediction of a cell.
///
/// # Errors
/// Why there is none, in words.
pub fn of(planned: &Planned) -> Result<Predicted, String> {
    let resolved = planned.grid.resolved.as_ref().map_err(ToString::to_string)?;
    let timing = planned.timing.as_ref().map_err(String::clone)?;
    let peak = |category: Category| (category.name(), planned.estimate.as_ref().map_or(0, |e| e.peak(category)));
    let peaks = if planned.estimate.is_some() { Category::ALL.map(peak).to_vec() } else { Vec::new() };
    let source = timing.source.clone();
    // What this machine's profile says comes action by action; of others there are spans.
    let lines = time::timelines(&Planner::default(), resolved);
    let is_ordered = lines.is_ok();
    let stages: Vec<Vec<Piece>> = match lines {
        Ok(lines) => {
            let piece =
                |of: &Stretch| Piece { action: of.action, span: of.span.name().to_string(), ns: nanoseconds(of.ms) };
            lines.iter().map(|line| line.iter().map(piece).collect()).collect()
        }
        Err(_) => {
            let piece = |(span, ms): (&_, &f64)| Piece { action: None, span: String::from(span), ns: nanoseconds(*ms) };
            vec![timing.spans.iter().map(piece).collect()]
        }
    };
    if stages.iter().flatten().all(|piece| piece.ns == 0) {
        return Err("the prediction has no spans".into());
    }
    Ok(Predicted { stages, is_ordered, peaks, source })
}

fn lasts(line: &[Piece]) -> u64 {
    line.iter().map(|piece| piece.ns).sum()
}

impl Predicted {
    /// Nanoseconds of a step.
    pub fn step_ns(&self) -> u64 {
        self.stages.iter().map(|line| lasts(line)).max().unwrap_or(0)
    }

    /// The lanes of the prediction: one for each stage.
    pub fn lanes(&self, pid: u64) -> Vec<Value> {
        let name = |stage| if self.stages.len() > 1 { format!("a rank of stage {stage}") } else { "a rank".into() };
        (0..self.stages.len()).map(|stage| lanes::thread(pid, COMPUTE + stage as u64, &name(stage))).collect()
    }

    /// What it rests on.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The step from this moment on, as lanes have measured ones.
    pub fn events(&self, pid: u64, at: u64, step: u64, names: &Names) -> Vec<Value> {
        let args = json!({ "predicted_ms": self.step_ns() as f64 / 1e6, "order_is_predicted": self.is_ordered });
        let title = format!("predicted step {step}");
        let mut events = Vec::new();
        for (stage, line) in self.stages.iter().enumerate() {
            let (lane, mut from) = (COMPUTE + stage as u64, at);
            events.push(lanes::slice(pid, lane, "predicted", &title, at, lasts(line), args.clone()));
            for of_action in line.chunk_by(|a, b| a.action == b.action) {
                let ns = lasts(of_action);
                let action = of_action.first().and_then(|first| first.action);
                if let Some(action) = action.filter(|_| ns > 0) {
                    let name = names.action(stage, action);
                    events.push(lanes::slice(pid, lane, "action", &name, from, ns, json!({})));
                }
                for piece in of_action.iter().filter(|piece| piece.ns > 0) {
                    events.push(lanes::slice(pid, lane, "span", &piece.span, from, piece.ns, json!({})));
                    from += piece.ns;
                }
            }
        }
        events
    }

    /// The predicted peaks, as counters that do not move.
    pub fn memory(&self, pid: u64, at: u64) -> Vec<Value> {
        let counter = |(name, bytes): &(&str, u64)| {
            let name = format!("predicted peak {name}");
            json!({ "ph": "C", "name": name, "pid": pid, "at": at, "args": { "bytes": bytes } })
        };
        self.peaks.iter().map(counter).collect()
    }
}
