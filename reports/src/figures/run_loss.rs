//! The loss of one run step by step, and on held-out data where it was evaluated.

use crate::plot::{Axis, Figure, Line, Lines, MOST_POINTS, Plot, STEP, Unit, drawable};
use crate::record::Record;
use crate::units;

/// The losses of a record, if it has two steps or more.
pub fn run_loss(record: &Record) -> Option<Figure> {
    let steps: Vec<(f64, f64)> =
        record.steps.iter().filter_map(|step| Some((step.step as f64, drawable(step.loss)?))).collect();
    let (first, last) = (*steps.first()?, *steps.last()?);
    if steps.len() < 2 {
        return None;
    }
    let least = steps.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let mut caption = format!(
        "From {} in step {} to {} in step {}, {} the least. Mean cross-entropy over the tokens of the global batch before the \
         update, in nats; untimed steps included.",
        loss(first.1),
        first.0,
        loss(last.1),
        last.0,
        match least == last {
            true => "which is".to_string(),
            false => format!("with {} in step {}", loss(least.1), least.0),
        }
    );
    if steps.len() > MOST_POINTS {
        caption += &format!(
            " Of {} steps the least and the greatest of each of {} stretches are drawn.",
            units::count(steps.len() as u64),
            MOST_POINTS / 2
        );
    }
    let line = |label: &str, points| Line { label: label.into(), points, records: vec![record.id.clone()] };
    let mut lines = vec![line("trained on", thin(steps))];
    let held_out = evaluations(record);
    if let (Some(first), Some(last)) = (held_out.first(), held_out.last()) {
        caption += &format!(
            " On held-out data: {} after {} steps, {} after {}.",
            loss(first.1),
            first.0,
            loss(last.1),
            last.0
        );
        lines.push(line("held out", thin(held_out)));
    }
    if let Some(from) = record.extra.get("resumed").and_then(|resumed| resumed.get("step")?.as_u64()) {
        caption += &format!(" The run went on from a checkpoint of step {from}.");
    }
    let (x, y) = (Axis::linear(STEP, Unit::Plain), Axis::linear("loss", Unit::Nats));
    let plot = Plot::Lines(Lines { x, y, lines });
    Some(Figure::new("loss", "Loss", caption, plot, vec![record.id.clone()]))
}

fn loss(value: f64) -> String {
    format!("{value:.4}")
}

/// The loss on held-out data after a number of steps. A record may have anything under this name.
pub fn evaluations(record: &Record) -> Vec<(f64, f64)> {
    let all = record.extra.get("evaluations").and_then(|all| all.as_array());
    let one = |of: &serde_json::Value| Some((of.get("step")?.as_u64()? as f64, drawable(of.get("loss")?.as_f64()?)?));
    let mut points: Vec<(f64, f64)> = all.into_iter().flatten().filter_map(one).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Long curves without most of their points: the least and the greatest of each stretch stay, in their order, and so do peaks.
pub(super) fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let ends = |part: &[(f64, f64)]| {
        let least = part.iter().enumerate().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(place, _)| place);
        let most = part.iter().enumerate().max_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(place, _)| place);
        let (first, second) = (least.min(most), least.max(most));
        if first == second { vec![part[first]] } else { vec![part[first], part[second]] }
    };
    points.chunks(stretch).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Outcome, Step};
    use serde_json::json;

    fn record(losses: &[f64]) -> Record {
        let mut record = Record::new("abc", "key", "name", Outcome::measured());
        let step = |(at, loss): (usize, &f64)| Step {
            step: at as u64 + 1,
            timed: true,
            loss: *loss,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 1.0,
            tokens: 1,
            extra: Default::default(),
        };
        record.steps = losses.iter().enumerate().map(step).collect();
        record
    }

    #[test]
    fn a_run_is_a_curve_and_its_evaluations_another() {
        assert!(run_loss(&record(&[])).is_none() && run_loss(&record(&[1.0])).is_none());
        let mut record = record(&[4.0, 2.0, 3.0, f64::NAN]);
        let figure = run_loss(&record).unwrap();
        assert!(
            figure.caption.starts_with("From 4.0000 in step 1 to 3.0000 in step 3, with 2.0000 in step 2 the least")
        );
        let Plot::Lines(plot) = &figure.plot else { panic!("no curve") };
        assert_eq!(plot.lines.len(), 1);
        record.extra.insert(
            "evaluations".into(),
            json!([{ "step": 4, "loss": 2.5 }, { "step": 0, "loss": 4.5 }, { "step": "x" }, 3, { "step": 1, "loss": null }]),
        );
        let figure = run_loss(&record).unwrap();
        assert!(
            figure.caption.contains("On held-out data: 4.5000 after 0 steps, 2.5000 after 4."),
            "{}",
            figure.caption
        );
        let Plot::Lines(plot) = &figure.plot else { panic!("no curve") };
        assert_eq!(plot.lines[1].points, [(0.0, 4.5), (4.0, 2.5)]);
        record.extra.insert("evaluations".into(), json!("anything"));
        assert!(evaluations(&record).is_empty());
    }
}
