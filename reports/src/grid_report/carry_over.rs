//! Whether a turn is affected by the one before it (carry-over). Random order does not remove that, so it is tested and reported.

use std::collections::BTreeMap;

use crate::grid::Grid;
use crate::record::TurnRow;
use crate::stats;
use crate::units;

/// Smaller effects are not reported.
const LEAST: f64 = 0.01;
/// A median needs at least so many turns.
const ENOUGH: usize = 6;
/// Effects of fewer standard errors are not reported: one in a hundred exceeds this by chance.
const ERRORS: f64 = 2.6;

/// The processes of a turn: the cell, and whether they are those of its twin.
type Process<'a> = (&'a str, bool);
/// Experiment, batch, generation, round, order.
type When<'a> = (&'a str, u32, u32, u32, u32);
/// Turns in the order of time.
type Turns<'a> = BTreeMap<When<'a>, (Process<'a>, &'a TurnRow)>;

/// The effects above 1 % in sentences.
pub fn sentences(grid: &Grid) -> Vec<String> {
    let mut turns = Turns::new();
    for cell in grid.measured() {
        for record in cell.used.iter().chain(&cell.twins) {
            let Some(of) = record.taken_turns() else { continue };
            for row in of.rows.iter().filter(|row| row.counted && row.seconds_per_token() > 0.0) {
                let when = (of.experiment.as_str(), of.batch, of.generation, row.round, row.order);
                turns.insert(when, ((cell.key, of.twin), row));
            }
        }
    }
    let label = |key: &str| grid.cells.iter().find(|cell| cell.key == key).map_or("", |cell| cell.label.as_str());
    let slower: Vec<String> = wash_out(turns.values().copied())
        .into_iter()
        .map(|(key, effect)| format!("{} {}", label(key), units::change(effect.exp() - 1.0)))
        .collect();
    let mut sentences = Vec::new();
    if !slower.is_empty() {
        sentences.push(format!(
            "The first step of a turn takes another time than the second (median): {}. What cells have in common of that cancels \
             between them, the rest is part of their ratio.",
            units::list(&slower)
        ));
    }
    if let Some((effect, count)) = after_itself(&turns) {
        sentences.push(format!(
            "A turn behind one of the same processes takes {} time against one behind others (median of {}).",
            units::change(effect.exp() - 1.0),
            units::plural(count, "turn", "turns")
        ));
    }
    sentences
}

/// The cells whose first step of a turn differs from the second, with the logarithm of the ratio.
fn wash_out<'a>(turns: impl Iterator<Item = (Process<'a>, &'a TurnRow)>) -> Vec<(&'a str, f64)> {
    let mut of_cells: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((key, _), row) in turns {
        if let [first, second, ..] = row.ms[..] {
            of_cells.entry(key).or_default().extend(Some((first / second).ln()).filter(|value| value.is_finite()));
        }
    }
    let effect = |(key, values): (&'a str, Vec<f64>)| {
        let (middle, error) = middle(&values)?;
        (middle.abs() > LEAST.max(ERRORS * error)).then_some((key, middle))
    };
    of_cells.into_iter().filter_map(effect).collect()
}

/// The time of turns whose processes also had the turn before, against that of turns after other processes: the logarithm of the
/// ratio, and the number of the former. Each turn is compared with the mean of its neighbours in time, each relative to the median of
/// its processes.
fn after_itself(turns: &Turns) -> Option<(f64, usize)> {
    let time = |row: &TurnRow| row.seconds_per_token().ln();
    let mut times: BTreeMap<Process, Vec<f64>> = BTreeMap::new();
    turns.values().for_each(|(process, row)| times.entry(*process).or_default().push(time(row)));
    let levels: BTreeMap<Process, f64> =
        times.into_iter().filter_map(|(process, times)| Some((process, stats::median(&times)?))).collect();
    let rest = |(process, row): (Process, &TurnRow)| time(row) - levels.get(&process).copied().unwrap_or(0.0);
    let (mut same, mut other) = (Vec::new(), Vec::new());
    let all: Vec<_> = turns.iter().collect();
    for four in all.windows(4) {
        let generation = |place: usize| (four[place].0.0, four[place].0.1, four[place].0.2);
        // A discarded round is a gap.
        let is_whole = four.windows(2).all(|two| two[1].0.3.saturating_sub(two[0].0.3) <= 1);
        let [earlier, before, own, behind] = [0, 1, 2, 3].map(|place| *four[place].1);
        // Neighbours that follow themselves are not comparable.
        if generation(0) != generation(3) || !is_whole || earlier.0 == before.0 || own.0 == behind.0 {
            continue;
        }
        let value = rest(own) - (rest(before) + rest(behind)) / 2.0;
        if before.0 == own.0 { same.push(value) } else { other.push(value) }
    }
    let ((of_same, one), (of_other, two)) = (middle(&same)?, middle(&other)?);
    let effect = of_same - of_other;
    (effect.abs() > LEAST.max(ERRORS * one.hypot(two))).then_some((effect, same.len()))
}

/// The median of enough values, and its standard error.
fn middle(values: &[f64]) -> Option<(f64, f64)> {
    let middle = stats::median(values).filter(|_| values.len() >= ENOUGH)?;
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    // Of a normal variable the deviation is 1.4826 times the median distance, and its median varies by 1.2533 as much as its mean.
    let error = 1.2533 * 1.4826 * stats::median(&distances)? / (values.len() as f64).sqrt();
    Some((middle, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ms: &[f64]) -> TurnRow {
        serde_json::from_value(serde_json::json!({"round": 1, "tokens": ms.len(), "ms": ms})).unwrap()
    }

    #[test]
    fn a_slow_first_step_is_found_where_it_is_no_chance() {
        let scatter = [0.97, 1.0, 1.02, 0.99, 1.01, 1.03, 0.98, 1.0];
        let of = |first: f64, count: usize| -> Vec<TurnRow> {
            (0..count).map(|place| row(&[100.0 * first * scatter[place % 8], 100.0, 100.0])).collect()
        };
        let found = |first: f64, count: usize| {
            let rows = of(first, count);
            let all = wash_out(rows.iter().map(|row| (("a", false), row)));
            all.first().map(|(_, effect)| *effect)
        };
        let effect = found(1.05, 80).expect("5 % in 80 turns");
        assert!((effect - 1.05f64.ln()).abs() < 0.01, "{effect}");
        assert_eq!(found(1.004, 800), None, "below one percent");
        assert_eq!(found(1.05, 5), None, "too few");
        assert_eq!(found(1.012, 6), None, "it may be chance");
        let single = row(&[300.0]);
        assert_eq!(wash_out((0..50).map(|_| (("a", false), &single))), [], "turns of one step");
    }

    #[test]
    fn a_turn_behind_its_own_cell_is_told_from_one_behind_another() {
        // Two cells in an order that changes: a b, b a, and so on; the machine gets slower all the time.
        let found = |gain: f64| {
            let mut rows: Vec<(u32, u32, &str, TurnRow)> = Vec::new();
            let mut last = "";
            for place in 0..200u32 {
                let (round, order) = (place / 2, place % 2);
                let own = if (round % 4 < 2) == (order == 0) { "a" } else { "b" };
                let drift = 1.0 + 0.002 * f64::from(place);
                let ms = 100.0 * drift * if own == "a" { 1.3 } else { 1.0 } * if own == last { gain } else { 1.0 };
                rows.push((round, order, own, row(&[ms])));
                last = own;
            }
            let turns = rows.iter().map(|(round, order, own, row)| (("x", 0, 1, *round, *order), ((*own, false), row)));
            after_itself(&turns.collect())
        };
        let (effect, count) = found(0.95).unwrap();
        assert!((effect - 0.95f64.ln()).abs() < 0.01 && count > 40, "{effect} {count}");
        assert_eq!(found(1.0), None);
        assert_eq!(found(0.999), None);
    }
}
