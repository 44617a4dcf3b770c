//! Training over emulated links: the same run to the bit and to the byte, and the right bytes on the links.

use crate::training::offload::{assert_as_planned as assert_homes_as_planned, offloaded, with_activations};
use crate::training::support::*;
use zbench_collectives::Traffic;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{RankReport, Transfer};
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_test_tiers as tiers;

fn cell(strategy: Strategy, linked: bool) -> Cell {
    let mut cell = on(synthetic(), strategy, 4, 2);
    (cell.train.seq_len, cell.train.micro_batch, cell.train.accumulation) = (13, 1, 2);
    (cell.train.steps, cell.train.untimed_steps, cell.train.clip_norm) = (2, 1, 0.5);
    cell.parallel.ranks_per_node = Some(2);
    let node = Some(LinkRate { bandwidth: 1e9, latency: 20e-6 });
    cell.link = linked.then_some(Link { node, host: None });
    cell
}

const STRATEGIES: [Strategy; 5] =
    [Strategy::Ddp, Strategy::Zero1, Strategy::Zero3, Strategy::Hsdp, Strategy::HsdpFullOptimizer];

fn reports(cell: &Cell) -> Vec<RankReport> {
    let ran = with_ranks(cell, &plan(cell), cpus(cell), |rank| {
        for _ in 0..cell.train.steps + cell.train.untimed_steps {
            rank.step()?;
        }
        Ok(rank.report())
    });
    ran.unwrap_or_else(|failure| panic!("{}", failure.cause))
}

#[test]
fn a_link_changes_no_bit() {
    for strategy in tiers::some("training::link::a_link_changes_no_bit", STRATEGIES, [3, 5]) {
        let (bare, linked) = (run(&cell(strategy, false)), run(&cell(strategy, true)));
        let bits = |ran: &Ran| -> (Vec<(u64, u64)>, Vec<Vec<u32>>) {
            let steps = ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect();
            (steps, ran.weights.iter().map(|(_, v)| v.iter().map(|x| x.to_bits()).collect()).collect())
        };
        assert_eq!(bits(&bare), bits(&linked), "{}", strategy.name());
    }
}

#[test]
fn plans_hold_over_links_and_the_right_bytes_cross() {
    for strategy in STRATEGIES {
        let cell = cell(strategy, true);
        let planned: Vec<_> = estimate(&cell).traffic.iter().map(plain).collect();
        for report in reports(&cell) {
            assert_eq!(report.traffic.iter().map(plain).collect::<Vec<_>>(), planned, "{}", strategy.name());
            for row in &report.traffic {
                // Worked out by hand for 2 nodes of 2 ranks: a group of all 4 puts 3/4 of an all-gather or reduce-scatter on a
                // node's link, for 2 ranks; an outer group of 2 puts half of it there, for one.
                let share = match (row.axis.name(), row.kind.name()) {
                    ("inner", _) => 0.0,
                    ("outer", "all_reduce" | "all_gather" | "reduce_scatter") => 0.5,
                    ("data", "all_reduce" | "all_gather" | "reduce_scatter") => 0.375,
                    other => panic!("{other:?} is not in this test"),
                };
                let steps = cell.train.steps as f64;
                let crossing = row.link.crossing_bytes as f64 / steps;
                let (exact, calls) = (share * row.payload_bytes, row.calls);
                // Each call rounds up by a byte or two at most.
                assert!((crossing - exact).abs() <= 2.0 * calls, "{:?} {:?}: {crossing}, {exact}", row.axis, row.kind);
                let crossed = if share > 0.0 { row.calls } else { 0.0 };
                assert_eq!(row.link.calls as f64 / steps, crossed, "{:?} {:?}", row.axis, row.kind);
            }
        }
    }
}

fn plain(t: &Traffic) -> (&'static str, &'static str, [f64; 3], usize) {
    (t.axis.name(), t.kind.name(), [t.calls, t.payload_bytes, t.wire_bytes], t.ranks)
}

#[test]
fn hybrid_shards_keep_their_gathers_off_the_link() {
    let crossing = |strategy| -> u64 {
        let of = |report: &RankReport| report.traffic.iter().map(|row| row.link.crossing_bytes).sum();
        reports(&cell(strategy, true)).iter().map(of).max().unwrap_or(0)
    };
    // zero3 gathers twice and reduces once in each of 2 micro-batches: 6 x 3/8; hsdp all-reduces half of the gradients: 1/2.
    let (zero3, hsdp) = (crossing(Strategy::Zero3), crossing(Strategy::Hsdp));
    assert!(zero3 > 3 * hsdp && hsdp > 0, "{zero3} and {hsdp}");
}

#[test]
fn a_link_costs_what_it_says_in_a_step() {
    // 1 MB/s: the bytes of a step take far longer than everything else.
    let mut slow = cell(Strategy::Ddp, true);
    (slow.train.steps, slow.train.accumulation) = (1, 1);
    let all: f64 = estimate(&slow).traffic.iter().map(|row| 0.75 * row.payload_bytes).sum();
    slow.link = Some(Link { node: Some(LinkRate { bandwidth: all / 0.5, latency: 0.0 }), host: None });
    for report in reports(&slow) {
        assert!(report.step_ms[0] >= 500.0, "half a second of link in {} ms", report.step_ms[0]);
    }
}

/// Moves of every kind: weights and activations both ways, gradients down.
fn offloading(link: Option<LinkRate>, prefetch: usize) -> Cell {
    let mut cell = cell(Strategy::Zero3, false);
    cell.parallel.ranks_per_node = None;
    cell =
        with_activations(offloaded(cell, [MemoryTier::Host, MemoryTier::Host], prefetch), MemoryTier::Host, prefetch);
    cell.link = link.map(|host| Link { node: None, host: Some(host) });
    cell
}

#[test]
fn a_link_to_the_host_changes_no_bit_and_no_byte() {
    for prefetch in tiers::some("training::link::a_link_to_the_host", [1, 0, 3], [1, 3]) {
        let link = LinkRate { bandwidth: 1e9, latency: 20e-6 };
        let (bare, linked) = (offloading(None, prefetch), offloading(Some(link), prefetch));
        let bits = |ran: &Ran| -> Vec<(u64, u64)> {
            ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect()
        };
        let [here, there] = [run(&bare), run(&linked)];
        assert_eq!(bits(&here), bits(&there), "{prefetch}");
        assert!(here.weights == there.weights, "{prefetch}");
        let (planned, over) = (estimate(&bare), estimate(&linked));
        assert_eq!((planned.ledgers, planned.moves), (over.ledgers, over.moves), "{prefetch}");
        assert_homes_as_planned(&linked, &format!("over a link, {prefetch} layers ahead"));
    }
}

/// Moves of a direction take turns, and all of a step's are over when it ends.
#[test]
fn a_step_is_no_shorter_than_its_moves_over_the_link() {
    let link = LinkRate { bandwidth: 20e6, latency: 1e-3 };
    let cell = offloading(Some(link), 1);
    for report in reports(&cell) {
        let of = |from, to| report.moves.iter().filter(move |row| (row.from, row.to) == (from, to));
        for (from, to) in [(MemoryTier::Device, MemoryTier::Host), (MemoryTier::Host, MemoryTier::Device)] {
            let bytes: f64 = of(from, to).map(|row| row.bytes).sum();
            let least = (bytes / link.bandwidth + link.latency) * 1e3;
            assert!(bytes > 0.0 && report.step_ms.iter().all(|ms| *ms >= least), "{:?}, {least} ms", report.step_ms);
        }
        let usage = report.host_link.unwrap();
        let steps = cell.train.steps as f64;
        let moved = |of: fn(&Transfer) -> f64| (report.moves.iter().map(of).sum::<f64>() * steps) as u64;
        assert_eq!((usage.calls, usage.crossing_bytes), (moved(|row| row.moves), moved(|row| row.bytes)));
    }
}
