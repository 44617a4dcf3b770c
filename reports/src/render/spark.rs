//! A curve as one line of text (a sparkline).

use crate::gather::extent;
use crate::plot::{Line, Plot, STEP};

/// Characters of a curve at most.
const LETTERS: usize = 60;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Curves over steps, each as its name, its first value, bars, and its last value. Empty for other plots.
pub fn curves(plot: &Plot) -> Vec<String> {
    let Plot::Lines(plot) = plot else { return Vec::new() };
    let lines = || plot.lines.iter().filter(|line| plot.x.title == STEP && line.points.len() > 1);
    let widest = lines().map(|line| line.label.chars().count()).max().unwrap_or(0);
    let curve = |line: &Line| {
        let values: Vec<f64> = line.points.iter().map(|point| point.1).collect();
        format!("{:<widest$}  {:.4} {} {:.4}", line.label, values[0], bars(&values), values[values.len() - 1])
    };
    lines().map(curve).collect()
}

/// Bars of the means of stretches of equal length.
pub fn bars(values: &[f64]) -> String {
    let count = values.len().min(LETTERS);
    let part = |place: usize| &values[place * values.len() / count..(place + 1) * values.len() / count];
    let means: Vec<f64> = (0..count).map(|place| part(place).iter().sum::<f64>() / part(place).len() as f64).collect();
    let (low, high) = extent(means.iter().copied()).unwrap_or((0.0, 0.0));
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
