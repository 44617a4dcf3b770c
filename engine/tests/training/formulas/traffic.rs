//! Collectives of a step: calls, what they are about, bytes on the wire, by axis and kind.
//!
//! Rajbhandari et al. (2020), section 7: data parallelism moves 2 Psi (a reduce-scatter and an all-gather make an all-reduce), stages 1 and
//! 2 the same, stage 3 moves 3 Psi; with A micro-batches each reduction and gather that is not left to the last one happens A times. Zhao
//! et al. (2023), section 3.2: a hybrid does so inside a group, and all-reduces the group's parts once. In a ring or any other schedule
//! without waste, (n - 1)/n of a buffer cross the wire for a gather or a reduce-scatter: Thakur et al. (2005), section 4.

use super::*;
use crate::training::accounting::small;
use zbench_test_tiers as tiers;

/// Axis, kind, calls, payload, bytes on the wire, ranks.
type Row = (&'static str, &'static str, f64, f64, f64, usize);

/// Bytes up to which every rank reads every other's whole buffer in one round: docs/communication.md.
const ONE_ROUND: u64 = 8 << 10;

/// Calls of one kind on one axis; each is about a buffer of so many bytes.
fn row(axis: &'static str, kind: &'static str, n: usize, buffers: &[u64]) -> Option<Row> {
    let (mut payload, mut wire, others) = (0, 0, n as u64 - 1);
    for whole in buffers {
        let part = whole / n as u64;
        match kind {
            // Its parts travel twice, to where they are added and back, if that is worth it.
            "all_reduce" => {
                payload += 2 * whole;
                wire += if *whole <= ONE_ROUND { others * whole } else { 2 * others * part };
            }
            _ => {
                payload += whole;
                wire += others * part;
            }
        }
    }
    (!buffers.is_empty()).then_some((axis, kind, buffers.len() as f64, payload as f64, wire as f64, n))
}

/// How often a step gathers each unit where weights are given back after forward. `1 + prefetch` units are there at a time (two at
/// least where the head reads the embedding's table), and the next ones to be read are fetched first.
///
/// Forward and backward read a block each; embedding and head are read once, and the embedding once more by a tied head. Of the blocks
/// the last ones are still there when backward begins, and the first ones when the next micro-batch does.
fn gathers(cell: &Cell, micro_batches: usize) -> Vec<usize> {
    let (layers, prefetch) = (cell.model.num_hidden_layers, cell.parallel.prefetch);
    let (at_the_turn, at_the_start) = match cell.model.tie_word_embeddings {
        false => (prefetch, prefetch),
        true => {
            assert!(prefetch + 1 < layers, "the formula is for models that are deeper");
            // The head needs two places.
            (prefetch.saturating_sub(1), prefetch.max(1))
        }
    };
    let embedding = if cell.model.tie_word_embeddings { 2 } else { 1 };
    let mut counts = vec![embedding * micro_batches];
    for block in 0..layers {
        // A segment of k blocks is made again from below, then run backward from above: of its blocks all but the last once more.
        let in_backward = match cell.memory.checkpointing {
            Checkpointing::Every(k) => {
                assert_eq!(prefetch, 0, "the formula is without prefetching");
                if block % k == k - 1 || block == layers - 1 { 1 } else { 2 }
            }
            _ => 1,
        };
        let turned = usize::from(block + at_the_turn >= layers);
        let started = usize::from(block < at_the_start);
        counts.push(micro_batches * (1 + in_backward - turned) - (micro_batches - 1) * started);
    }
    counts.push(micro_batches);
    counts
}

fn repeated(times: usize, buffers: &[u64]) -> Vec<u64> {
    buffers.repeat(times)
}

/// The rows of a step, sorted.
fn rows(cell: &Cell) -> Vec<Row> {
    let (p, n, group) = (cell.precision, cell.parallel.ranks, cell.parallel.shard);
    let (strategy, micro_batches) = (cell.parallel.strategy, cell.train.accumulation);
    let psi = padded_units(cell);
    let base = if cell.lora.base == Some(Base::Bf16) { DType::Bf16 } else { p.parameters };
    assert!(base == p.compute || cell.lora.rank == 0 || p.parameters == p.compute);
    // Only what trains is reduced.
    let trained = || psi.iter().map(|unit| unit.trains as u64).filter(|elements| *elements > 0);
    let reduced: Vec<u64> = trained().map(|elements| elements * p.reduce.size() as u64).collect();
    let updated: Vec<u64> = trained().map(|elements| elements * p.parameters.size() as u64).collect();
    // A unit is gathered in the type that layers read, what trains and what is frozen apart.
    let gathered = |counts: &[usize]| -> Vec<u64> {
        let flats = |unit: &Unit| [unit.trains, unit.frozen].map(|elements| (elements * p.compute.size()) as u64);
        let each = psi.iter().zip(counts).flat_map(|(unit, count)| flats(unit).repeat(*count));
        each.filter(|bytes| *bytes > 0).collect()
    };
    let parts = |buffers: &[u64]| -> Vec<u64> { buffers.iter().map(|whole| whole / group as u64).collect() };
    let agreement = 8 * (1 + reduced.len()) as u64 * n as u64;
    let with = |mut buffers: Vec<u64>| {
        buffers.push(agreement);
        buffers
    };
    let each = repeated(micro_batches, &reduced);
    let (data, inner, outer) = ("data", "inner", "outer");
    let found = match strategy {
        Strategy::Ddp => {
            vec![row(data, "all_gather", n, &[agreement]), row(data, "all_reduce", n, &reduced)]
        }
        Strategy::Zero1 => vec![row(data, "all_gather", n, &with(updated)), row(data, "reduce_scatter", n, &reduced)],
        Strategy::Zero2 => vec![row(data, "all_gather", n, &with(updated)), row(data, "reduce_scatter", n, &each)],
        Strategy::FsdpGradOp => {
            let once = vec![micro_batches; psi.len()];
            vec![row(data, "all_gather", n, &with(gathered(&once))), row(data, "reduce_scatter", n, &each)]
        }
        Strategy::Zero3 | Strategy::Fsdp => {
            let gathered = gathered(&gathers(cell, micro_batches));
            vec![row(data, "all_gather", n, &with(gathered)), row(data, "reduce_scatter", n, &each)]
        }
        Strategy::Hsdp | Strategy::HsdpFullOptimizer => {
            let gathered = gathered(&gathers(cell, micro_batches));
            let mut rows = vec![
                row(data, "all_gather", n, &[agreement]),
                row(inner, "all_gather", group, &gathered),
                row(inner, "reduce_scatter", group, &each),
            ];
            match strategy {
                Strategy::Hsdp => rows.push(row(outer, "all_reduce", n / group, &parts(&reduced))),
                _ => rows.extend([
                    row(outer, "all_gather", n / group, &parts(&updated)),
                    row(outer, "reduce_scatter", n / group, &parts(&reduced)),
                ]),
            }
            rows
        }
    };
    found.into_iter().flatten().collect()
}

fn assert_traffic(cell: &Cell, what: &str) {
    let expected = rows(cell);
    for (who, _, traffic) in accounts(cell) {
        let plain = |t: &Traffic| (t.axis.name(), t.kind.name(), t.calls, t.payload_bytes, t.wire_bytes, t.ranks);
        assert_eq!(traffic.iter().map(plain).collect::<Vec<Row>>(), expected, "{what}: {who}");
    }
}

/// Blocks of 18 KB in f32 and 9 KB in bf16, embedding and head of 6 and 3 KB: on both sides of what goes in one round.
#[test]
fn payloads_and_wire_bytes_are_the_published_ones() {
    let precisions = precisions();
    let sizes = [Strategy::ALL.len(), 3, precisions.len()];
    for [strategy, micro_batches, precision] in tiers::combinations("training::formulas::payloads", sizes) {
        let (strategy, micro_batches) = (Strategy::ALL[strategy], [1, 2, 5][micro_batches]);
        let (name, precision) = precisions[precision];
        let mut cell = on(small(), strategy, 4, 2);
        (cell.train.accumulation, cell.precision) = (micro_batches, precision);
        assert_traffic(&cell, &format!("{} {name} accumulation {micro_batches}", strategy.name()));
    }
}

#[test]
fn every_rank_count_has_its_share() {
    let meshes = [(1, 1), (2, 2), (3, 1), (6, 2), (6, 3)];
    let sizes = [Strategy::ALL.len(), meshes.len()];
    for [strategy, mesh] in tiers::combinations("training::formulas::every_rank_count_has_its_share", sizes) {
        let (strategy, (ranks, shard)) = (Strategy::ALL[strategy], meshes[mesh]);
        let mut cell = on(small(), strategy, ranks, shard);
        cell.train.accumulation = 2;
        assert_traffic(&cell, &format!("{} on {ranks} by {shard}", strategy.name()));
    }
}

#[test]
fn gathers_are_two_for_each_block_less_those_still_there() {
    let strategies = [Strategy::Zero3, Strategy::FsdpGradOp, Strategy::HsdpFullOptimizer];
    let ways = [
        (0, false, Checkpointing::None),
        (1, false, Checkpointing::Full),
        (2, false, Checkpointing::Selective),
        (3, false, Checkpointing::None),
        (0, true, Checkpointing::None),
        (1, true, Checkpointing::Selective),
        (0, false, Checkpointing::Every(2)),
        (0, false, Checkpointing::Every(3)),
    ];
    // How often a unit is gathered under fsdp-grad-op does not depend on what is made again.
    let sizes = [strategies.len(), ways.len(), 2];
    for [strategy, way, micro_batches] in tiers::combinations("training::formulas::gathers", sizes) {
        let (strategy, micro_batches) = (strategies[strategy], [1, 3][micro_batches]);
        let (prefetch, tied, policy) = ways[way].clone();
        let mut cell = on(small(), strategy, 4, 2);
        (cell.train.accumulation, cell.parallel.prefetch) = (micro_batches, prefetch);
        (cell.model.tie_word_embeddings, cell.memory.checkpointing) = (tied, policy.clone());
        (cell.model.num_hidden_layers, cell.train.steps) = (4, 1);
        let what = format!("{} prefetch {prefetch} tied {tied} {policy:?}", strategy.name());
        assert_traffic(&cell, &what);
    }
}

/// What does not train is gathered and not reduced.
#[test]
fn adapters_alone_are_reduced() {
    for [strategy, precision] in tiers::combinations("training::formulas::adapters_alone", [Strategy::ALL.len(), 2]) {
        let (strategy, precision) =
            (Strategy::ALL[strategy], [Precision::F32, Precision::mixed(DType::Bf16)][precision]);
        let mut cell = on(small(), strategy, 4, 2);
        (cell.train.accumulation, cell.precision) = (2, precision);
        adapted(&mut cell);
        assert_traffic(&cell, &format!("{} {precision:?}", strategy.name()));
    }
}
