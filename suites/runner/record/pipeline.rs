//! What the stages of a pipeline took, and whether their speed was emulated, in a record.

use crate::protocol::{End, RankEnd};
use zbench_engine::config::{Cell, MemoryTier, Pace};
use zbench_engine::memory::tiers::ByTier;
use zbench_engine::observe::outcome;
use zbench_engine::observe::outcome::{Estimate, PipelineTime};
use zbench_kernels::{Category, Ledger};
use zbench_reports::record::{Bytes, PassKind, Record, Stage, StagePass, label_flags};
use zbench_reports::{stats, units};

/// Passes of all stages that a record has at most: more cannot be told apart in a plot.
const MOST_PASSES: usize = 2048;

/// What the plan says of each stage, where there are several.
pub(super) fn planned(record: &mut Record, estimate: &Estimate) {
    let stage = |(stage, ledgers): (usize, &ByTier<Ledger>)| Stage {
        stage: stage as u64,
        activations: Bytes {
            predicted_bytes: Some(ledgers[MemoryTier::Device].peak(Category::Activations)),
            ..Bytes::default()
        },
        ..Stage::default()
    };
    record.stages = match &estimate.stages[..] {
        [] | [_] => Vec::new(),
        stages => stages.iter().enumerate().map(stage).collect(),
    };
}

/// What the ranks of each stage measured. Stages are of as many ranks each, in the order of ranks.
fn stages(record: &mut Record, ranks: &[RankEnd], [stages, all]: [usize; 2]) {
    let of_each = (all / stages).max(1);
    for rank in &mut record.ranks {
        rank.extra.insert("stage".into(), (rank.rank / of_each as u64).into());
    }
    let zero = ranks.iter().filter_map(|rank| rank.passes.first()).map(|first| first.from).min().unwrap_or(0);
    let passes: usize = ranks.iter().step_by(of_each).map(|rank| rank.passes.len()).sum();
    if passes > MOST_PASSES {
        record
            .notes
            .push(format!("Its timeline has {passes} passes, and records have {MOST_PASSES} at most: it is left out."));
    }
    record.stages.resize_with(stages, Stage::default);
    for (number, stage) in record.stages.iter_mut().enumerate() {
        let own = || ranks.iter().filter(|rank| rank.rank / of_each == number);
        stage.stage = number as u64;
        stage.activations.peak_bytes = own().filter_map(|rank| rank.peak.get(&Category::Activations).copied()).max();
        let largest = own().max_by_key(|rank| rank.total_peak);
        stage.activations.at_peak_bytes = largest.and_then(|rank| rank.at_peak.get(&Category::Activations).copied());
        let first = own().next().filter(|_| passes <= MOST_PASSES);
        stage.passes = first.iter().flat_map(|rank| &rank.passes).map(|pass| in_record(pass, zero)).collect();
    }
}

/// A pass in milliseconds since `zero`, to the microsecond.
fn in_record(pass: &outcome::PassTime, zero: u64) -> StagePass {
    let kind = match pass.kind {
        outcome::PassKind::Forward => PassKind::Forward,
        outcome::PassKind::Backward => PassKind::Backward,
        outcome::PassKind::BackwardInput => PassKind::BackwardInput,
        outcome::PassKind::BackwardWeight => PassKind::BackwardWeight,
    };
    let ms = |moment: u64| (moment.saturating_sub(zero) as f64 / 1e3).round() / 1e3;
    StagePass(kind, pass.micro as u64, ms(pass.from), ms(pass.until))
}

/// How long the stages take from the first forward to the last backward, and how much of that they wait, where there are any.
pub(super) fn add(record: &mut Record, end: &End, [stages, ranks]: [usize; 2]) {
    if stages <= 1 {
        return;
    }
    self::stages(record, &end.ranks, [stages, ranks]);
    let steps = end.ranks.iter().map(|rank| rank.pipeline_ms.len()).min().unwrap_or(0);
    let slowest = |step: usize| end.ranks.iter().map(|rank| rank.pipeline_ms[step]).fold(0.0, f64::max);
    let work = |rank: &RankEnd| rank.spans_ms.iter().filter(|(span, _)| span.is_work()).map(|(_, ms)| ms).sum::<f64>();
    let of_rank = |rank: &RankEnd| [stats::mean(&rank.pipeline_ms).unwrap_or(0.0), work(rank)];
    match (stats::median(&(0..steps).map(slowest).collect::<Vec<_>>()), PipelineTime::of(end.ranks.iter().map(of_rank)))
    {
        (Some(ms), Some(of_all)) => {
            record.state("pipeline_ms", ms);
            record.state("bubble", of_all.bubble);
        }
        _ => ["pipeline_ms", "bubble"].iter().for_each(|metric| record.leave_unstated(metric, "no timed step ended")),
    }
}

/// Says that the speed of blocks was emulated.
pub(super) fn paced(record: &mut Record, cell: &Cell) {
    let Some(Pace { forward, backward }) = cell.pace else { return };
    record.validity.push(label_flags::EMULATED_PACE.into());
    record.notes.push(format!("Emulated pace: {}.", units::pace([forward, backward])));
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_engine::action::span::Span;
    use zbench_engine::observe::outcome::PassTime;

    /// Two stages: 10, 12 and 14 ms of the one that takes longer, in which the ranks compute for 9 and 6.
    #[test]
    fn the_bubble_is_what_all_stages_do_not_compute() {
        let rank = |pipeline_ms: &[f64], busy: [f64; 3]| RankEnd {
            pipeline_ms: pipeline_ms.to_vec(),
            spans_ms: [Span::Forward, Span::Backward, Span::Recompute, Span::ExposedPipeline]
                .into_iter()
                .zip([busy[0], busy[1], busy[2], 1.0])
                .collect(),
            ..RankEnd::default()
        };
        let ranks = vec![rank(&[14.0, 10.0, 12.0], [3.0, 5.0, 1.0]), rank(&[8.0, 7.0, 9.0], [2.0, 4.0, 0.0])];
        let mut end = End { ranks, ..End::default() };
        let mut record = Record::default();
        add(&mut record, &end, [1, 2]);
        assert!(record.metrics.number("pipeline_ms").is_none(), "there are no stages");
        add(&mut record, &end, [2, 2]);
        assert_eq!(record.metrics.number("pipeline_ms"), Some(12.0));
        assert_eq!(record.metrics.number("bubble"), Some(1.0 - 15.0 / 24.0));
        assert_eq!(super::super::rank_of(&end.ranks[0], "here").extra["pipeline_ms_p50"], 12.0);
        end.ranks.iter_mut().for_each(|rank| rank.pipeline_ms.clear());
        add(&mut record, &end, [2, 2]);
        assert_eq!(record.unstated.get("bubble").map(String::as_str), Some("no timed step ended"));
    }
    /// Two stages of two ranks each, of which the second's first forward begins 3 ms after the first's.
    #[test]
    fn stages_have_what_their_ranks_measured() {
        let pass = |kind, from, until| PassTime { kind, micro: 0, from, until };
        let rank = |rank: usize, bytes: u64, from: u64| RankEnd {
            rank,
            peak: [(Category::Activations, bytes)].into(),
            at_peak: [(Category::Activations, bytes - 1)].into(),
            total_peak: bytes + 10,
            passes: vec![
                pass(outcome::PassKind::Forward, from, from + 2_000_400),
                pass(outcome::PassKind::BackwardInput, from + 4_000_000, from + 5_000_000),
            ],
            ..RankEnd::default()
        };
        let begin = 1_790_000_000_000_000_000;
        let ranks = vec![
            rank(0, 40, begin),
            rank(1, 50, begin + 7),
            rank(2, 30, begin + 3_000_000),
            rank(3, 20, begin + 3_000_000),
        ];
        let end = End { ranks, ..End::default() };
        let planned = Bytes { predicted_bytes: Some(50), ..Bytes::default() };
        let mut record = Record {
            stages: vec![Stage { activations: planned, ..Stage::default() }],
            ranks: end.ranks.iter().map(|rank| super::super::rank_of(rank, "here")).collect(),
            ..Record::default()
        };
        add(&mut record, &end, [2, 4]);
        let stages: Vec<Option<u64>> = record.ranks.iter().map(|rank| rank.extra["stage"].as_u64()).collect();
        assert_eq!(stages, [Some(0), Some(0), Some(1), Some(1)]);
        let written = serde_json::to_value(&record.stages).unwrap();
        let expected = serde_json::json!([
            {
                "stage": 0, "activations": { "predicted_bytes": 50, "peak_bytes": 50, "at_peak_bytes": 49 },
                "passes": [["F", 0, 0.0, 2.0], ["I", 0, 4.0, 5.0]],
            },
            {
                "stage": 1, "activations": { "predicted_bytes": null, "peak_bytes": 30, "at_peak_bytes": 29 },
                "passes": [["F", 0, 3.0, 5.0], ["I", 0, 7.0, 8.0]],
            },
        ]);
        assert_eq!(written, expected);
        let mut end = end;
        end.ranks[0].passes = vec![pass(outcome::PassKind::Forward, begin, begin + 1); MOST_PASSES];
        add(&mut record, &end, [2, 4]);
        assert!(record.stages.iter().all(|stage| stage.passes.is_empty()), "a record stays small");
        assert!(record.notes.iter().any(|note| note.contains("2050 passes")), "{:?}", record.notes);
    }
}
