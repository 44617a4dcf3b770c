//! What the stages of a pipeline took, and whether their speed was emulated, in a record.

use crate::protocol::{End, RankEnd};
use zbench_engine::config::{Cell, Pace};
use zbench_engine::outcome::PipelineTime;
use zbench_reports::record::{Record, label_flags};
use zbench_reports::{stats, units};

/// How long the stages take from the first forward to the last backward, and how much of that they wait, where there are any.
pub(super) fn add(record: &mut Record, end: &End, stages: usize) {
    if stages <= 1 {
        return;
    }
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
    use zbench_engine::outcome::Span;

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
        add(&mut record, &end, 1);
        assert!(record.metrics.number("pipeline_ms").is_none(), "there are no stages");
        add(&mut record, &end, 2);
        assert_eq!(record.metrics.number("pipeline_ms"), Some(12.0));
        assert_eq!(record.metrics.number("bubble"), Some(1.0 - 15.0 / 24.0));
        assert_eq!(super::super::rank_of(&end.ranks[0], "here").extra["pipeline_ms_p50"], 12.0);
        end.ranks.iter_mut().for_each(|rank| rank.pipeline_ms.clear());
        add(&mut record, &end, 2);
        assert_eq!(record.unstated.get("bubble").map(String::as_str), Some("no timed step ended"));
    }
}
