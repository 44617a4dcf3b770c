//! What earlier commands measured of a batch.

use std::collections::BTreeMap;
use std::time::Duration;
use zbench_reports::record::{Record, TurnRow, Turns};

/// Seconds of a generation, unless the budget is small.
const GENERATION_SECONDS: f64 = 40.0;
/// Generations at least and at most.
const GENERATIONS: (f64, f64) = (3.0, 12.0);
/// Rounds that a generation should have at least.
const ROUNDS: f64 = 3.0;
/// The share below which cells are called equal, where a record does not say.
const EQUAL: f64 = 0.05;

/// What earlier commands measured of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Past {
    /// Wall time of its generations, starts included, without what was lost to other processes.
    pub seconds: Duration,
    /// The number of the newest; 0 without any.
    pub generations: u32,
    /// Seconds of the newest until its first turn, and of a round of it.
    start: f64,
    round: f64,
    /// The newest ended when all was decided, with differences below this share called equal.
    decided: Option<f64>,
}

impl Past {
    /// Of the batch with this number, by the records of its experiment.
    pub fn of(records: &[Record], batch: usize) -> Past {
        let mut generations: BTreeMap<u32, Vec<&Turns>> = BTreeMap::new();
        for turns in
            records.iter().filter_map(|record| record.turns.as_ref()).filter(|turns| turns.batch as usize == batch)
        {
            generations.entry(turns.generation).or_default().push(turns);
        }
        let own = |turns: &&Turns| (turns.wall_seconds() - turns.lost.unwrap_or(0.0)).max(0.0);
        let wall = |turns: &Vec<&Turns>| turns.iter().map(own).fold(0.0, f64::max);
        let seconds = Duration::try_from_secs_f64(generations.values().map(wall).sum()).unwrap_or(Duration::MAX);
        let Some((number, newest)) = generations.last_key_value() else { return Past::default() };
        let rows = || newest.iter().flat_map(|turns| &turns.rows);
        let limits = |of: fn(&TurnRow) -> f64| {
            rows()
                .map(of)
                .filter(|value| value.is_finite())
                .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)))
        };
        let ((start, _), (_, end)) = (limits(|row| row.at), limits(|row| row.at + row.seconds()));
        let (first, last) = limits(|row| f64::from(row.round));
        let equal = newest.iter().find(|turns| turns.stopped.as_deref() == Some("decided")).map(|turns| turns.equal);
        Past {
            seconds,
            generations: *number,
            start: if start.is_finite() { start } else { 0.0 },
            round: if start < end { (end - start) / (last - first + 1.0) } else { 0.0 },
            decided: equal.map(|equal| equal.unwrap_or(EQUAL)),
        }
    }

    /// Whether it was decided, at least as closely as is asked now.
    pub fn is_decided(&self, equal: f64) -> bool {
        self.decided.is_some_and(|decided| decided <= equal)
    }

    /// How many generations what is left of its share of the budget has room for; none where not even the start of one and a few rounds
    /// have.
    pub fn generations_in(&self, left: Duration, share: Duration, budget: Duration) -> Option<u32> {
        let whole = (budget.as_secs_f64() / GENERATION_SECONDS).floor().clamp(GENERATIONS.0, GENERATIONS.1);
        if self.generations == 0 {
            return Some(whole as u32);
        }
        let (left, share) = (left.as_secs_f64(), share.as_secs_f64());
        let most = (left / (self.start + ROUNDS * self.round).max(f64::MIN_POSITIVE)).floor();
        (most >= 1.0).then(|| (whole * left / share).round().clamp(1.0, most) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_reports::record::Outcome;

    /// A generation that started for two seconds and had rounds of half a second.
    fn generation(number: u32, rounds: u32, seconds: f64, stopped: &str, equal: f64) -> Record {
        let row = |round: u32| {
            let text =
                serde_json::json!({"round": round, "at": 2.0 + 0.5 * f64::from(round - 1), "tokens": 1, "ms": [500.0]});
            serde_json::from_value(text).unwrap()
        };
        let mut record = Record::new("id", "key", "name", Outcome::measured());
        record.turns = Some(Turns {
            generation: number,
            stopped: Some(stopped.into()),
            equal: Some(equal),
            seconds: Some(seconds),
            rows: (1..=rounds).map(row).collect(),
            ..Turns::default()
        });
        record
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_budget_is_that_of_all_commands_together() {
        let past =
            Past::of(&[generation(1, 16, 20.5, "budget", 0.05), generation(2, 16, 10.0, "interrupted", 0.05)], 0);
        assert_eq!((past.seconds, past.generations), (seconds(30.5), 2));
        let generations = |left: f64, budget: f64| past.generations_in(seconds(left), seconds(budget), seconds(budget));
        assert_eq!(generations(29.5, 60.0), Some(1), "an interrupted generation is no whole one");
        assert_eq!(generations(31.0, 60.0), Some(2));
        assert_eq!(generations(449.5, 480.0), Some(11), "a larger budget has more generations");
        // A start and three rounds take 3.5 s.
        assert_eq!(generations(3.5, 60.0), Some(1));
        assert_eq!(generations(3.4, 60.0), None);
        assert_eq!(generations(0.0, 60.0), None);
        assert_eq!(generations(8.0, 9.0), Some(2), "and not more than have room");
        assert_eq!(Past::default().generations_in(seconds(60.0), seconds(60.0), seconds(60.0)), Some(3));
        assert_eq!(Past::of(&[generation(1, 4, 9.0, "budget", 0.05)], 1), Past::default(), "another batch");
    }

    #[test]
    fn decided_counts_where_it_was_as_close_as_asked() {
        let past = Past::of(&[generation(1, 4, 9.0, "budget", 0.02), generation(2, 4, 9.0, "decided", 0.02)], 0);
        assert!(past.is_decided(0.02) && past.is_decided(0.05) && !past.is_decided(0.01));
        let past = Past::of(&[generation(1, 4, 9.0, "decided", 0.05), generation(2, 4, 9.0, "budget", 0.01)], 0);
        assert!(!past.is_decided(0.05), "it went on, and the newest says how it stands");
    }

    #[test]
    fn what_others_used_takes_nothing_of_the_budget() {
        let mut record = generation(1, 16, 20.5, "budget", 0.05);
        record.turns.as_mut().unwrap().lost = Some(15.0);
        assert_eq!(Past::of(&[record.clone()], 0).seconds, seconds(5.5));
        record.turns.as_mut().unwrap().lost = Some(30.0);
        assert_eq!(Past::of(&[record], 0).seconds, seconds(0.0));
    }

    #[test]
    fn without_a_stated_time_a_generation_lasts_to_its_last_turn() {
        let mut record = generation(1, 4, 0.0, "budget", 0.05);
        record.turns.as_mut().unwrap().seconds = None;
        assert_eq!(Past::of(&[record], 0).seconds, seconds(4.0));
    }
}
