//! A curve as one line of text.

use crate::plot::{Axis, Line, Lines, Plot, STEP};

/// Letters of a curve at most.
const LETTERS: usize = 60;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Curves over steps, each as its name and a line of bars between its least and its greatest value; nothing for other plots.
pub fn curves(plot: &Plot) -> Vec<String> {
    let Plot::Lines(Lines { x: Axis { title, .. }, lines, .. }) = plot else { return Vec::new() };
    if title != STEP {
        return Vec::new();
    }
    let long = |line: &&Line| line.points.len() > 1;
    let widest = lines.iter().filter(long).map(|line| line.label.chars().count()).max().unwrap_or(0);
    let curve = |line: &Line| {
        let values: Vec<f64> = line.points.iter().map(|point| point.1).collect();
        let ends = (values.first().copied().unwrap_or(f64::NAN), values.last().copied().unwrap_or(f64::NAN));
        format!("{:<widest$}  {:.4} {} {:.4}", line.label, ends.0, bars(&values), ends.1)
    };
    lines.iter().filter(long).map(curve).collect()
}

/// The mean of each stretch of equal length, as the height of a bar.
pub fn bars(values: &[f64]) -> String {
    let count = values.len().min(LETTERS);
    let part = |place: usize| &values[place * values.len() / count..(place + 1) * values.len() / count];
    let means: Vec<f64> = (0..count).map(|place| part(place).iter().sum::<f64>() / part(place).len() as f64).collect();
    let (low, high) =
        means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
    let level = |value: f64| match high - low {
        span if span > 0.0 => (((value - low) / span) * 7.0).round().clamp(0.0, 7.0) as usize,
        _ => 3,
    };
    means.iter().map(|value| LEVELS[level(*value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fall_as_the_values_do() {
        assert_eq!(bars(&[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), "█▇▆▅▄▃▂▁");
        assert_eq!(bars(&[2.0, 2.0]), "▄▄");
        assert_eq!(bars(&[]), "");
        let long: Vec<f64> = (0..1000).map(|v| f64::from(1000 - v)).collect();
        assert_eq!(bars(&long).chars().count(), LETTERS);
        assert!(bars(&long).starts_with('█') && bars(&long).ends_with('▁'));
        assert_eq!(bars(&[f64::NAN, 1.0, 2.0]).chars().count(), 3);
    }
}
