//! Sums over tensor ranks in chunks of tokens, each under the product of the next: the same bits, the same payload, and memory as planned.

use crate::training::accounting::measure;
use crate::training::pipelines::assert_takes_what_is_planned;
use crate::training::support::*;
use crate::training::tensors::{base, bits, cases, shared};
use std::collections::BTreeMap;
use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_engine::action::Action;
use zbench_engine::action::span::Span;
use zbench_engine::compute::recorder::{Overlap, Recorded};
use zbench_engine::config::*;
use zbench_engine::plan::Plan;
use zbench_engine::planner::RecordedAction;
use zbench_kernels::{DType, Op};
use zbench_test_tiers as tiers;

fn in_chunks(cell: &Cell, chunks: usize) -> Cell {
    let mut cell = cell.clone();
    cell.parallel.tensor_chunks = chunks;
    cell
}

/// Losses, norms and weights.
fn assert_same_bits(one: &Cell, chunks: usize, what: &str) {
    let (one, some) = (run(one), run(&in_chunks(one, chunks)));
    assert_eq!(bits(&one), bits(&some), "{what}");
    assert!(one.weights == some.weights, "{what}: weights");
}

#[test]
fn chunks_have_the_bits_of_one_sum() {
    let (cases, ways) = (cases(), [(2, false, 3), (2, true, 2), (4, false, 8), (4, true, 6)]);
    let sizes = [cases.len(), ways.len()];
    for [case, way] in tiers::combinations("training::tensor_chunks::chunks_have_the_bits_of_one_sum", sizes) {
        let ((name, cell), (tensor, sequence, chunks)) = (&cases[case], ways[way]);
        let cell = shared(cell, Strategy::Ddp, [1, tensor], 1, sequence);
        let what = format!("{name} over {tensor} in {chunks} chunks, sequence parallelism {sequence}");
        assert_same_bits(&cell, chunks, &what);
    }
}

/// Dropout is the same for a token whatever chunk it is in, and matrices in few bits are unpacked for each.
#[test]
fn chunks_have_the_bits_of_one_sum_with_adapters_and_other_types() {
    let mut cells: Vec<(String, Cell)> = vec![
        ("bf16".into(), Cell { precision: Precision::mixed(DType::Bf16), ..base() }),
        ("accumulation".into(), Cell { train: Train { accumulation: 3, ..base().train }, ..base() }),
        ("prepacked".into(), Cell { memory: Memory { prepack: true, ..base().memory }, ..base() }),
    ];
    let adapters = adapters().into_iter().filter(|(name, _)| !name.starts_with("IA3 on what"));
    cells.extend(adapters.map(|(name, change)| {
        let mut cell = base();
        change(&mut cell);
        (name.to_string(), cell)
    }));
    let mut nf4 = base();
    let model = &mut nf4.model;
    (model.hidden_size, model.intermediate_size, model.head_dim) = (64, 256, 32);
    let targets = Linear::ALL.to_vec();
    nf4.lora = Lora { rank: 2, alpha: 3.0, dropout: 0.25, base: Some(Base::Nf4Single), targets, ..Lora::default() };
    cells.push(("QLoRA".into(), nf4));
    let ways = [(Strategy::Ddp, false, 4), (Strategy::Zero1, true, 3)];
    let sizes = [cells.len(), ways.len()];
    for [number, way] in tiers::combinations("training::tensor_chunks::adapters_and_other_types", sizes) {
        let ((name, cell), (strategy, sequence, chunks)) = (&cells[number], ways[way]);
        let cell = shared(cell, strategy, [2, 2], 1, sequence);
        let what = format!("{name}, {} in {chunks} chunks", strategy.name());
        assert_same_bits(&cell, chunks, &what);
        assert_takes_what_is_planned(&in_chunks(&cell, chunks), &what);
    }
}

#[test]
fn every_rank_takes_what_is_planned() {
    let cases = cases();
    let test = "training::tensor_chunks::every_rank_takes_what_is_planned";
    for [case, way, policy] in tiers::combinations(test, [cases.len(), 2, 2]) {
        let ((name, cell), (sequence, chunks)) = (&cases[case], [(false, 3), (true, 2)][way]);
        let policy = [Checkpointing::None, Checkpointing::Full][policy].clone();
        let mut cell = shared(cell, Strategy::Zero2, [2, 2], 1, sequence);
        (cell.memory.checkpointing, cell.train.untimed_steps, cell.train.steps) = (policy, 1, 1);
        let what = format!("{name}, sequence parallelism {sequence}");
        assert_takes_what_is_planned(&in_chunks(&cell, chunks), &what);
    }
}

#[test]
fn stages_of_tensor_ranks_sum_in_chunks() {
    let mut base = base();
    (base.model.num_hidden_layers, base.train.accumulation, base.train.micro_batch) = (4, 4, 1);
    for (schedule, sequence) in [(PipelineSchedule::OneFOneB, false), (PipelineSchedule::ZbH1, true)] {
        let mut cell = shared(&base, Strategy::Zero1, [1, 2], 1, sequence);
        cell.parallel.ranks *= 2;
        (cell.parallel.degrees.pipeline, cell.parallel.degrees.pipeline_schedule) = (2, schedule);
        let what = format!("{schedule:?}, sequence parallelism {sequence}");
        assert_same_bits(&cell, 2, &what);
        cell.train.untimed_steps = 1;
        assert_takes_what_is_planned(&in_chunks(&cell, 2), &what);
    }
}

/// Two sums of a block's forward in so many calls each, of the same bytes.
#[test]
fn a_row_parallel_layer_sums_once_for_each_chunk() {
    for (sequence, kind) in [(false, CollectiveKind::AllReduce), (true, CollectiveKind::ReduceScatter)] {
        let cell = shared(&base(), Strategy::Ddp, [1, 2], 1, sequence);
        let of = |chunks: usize| {
            let estimate = estimate(&in_chunks(&cell, chunks));
            let tensor = estimate.traffic.iter().filter(|row| row.axis == GroupName::Tensor);
            tensor.map(|row| (row.kind, (row.calls, row.payload_bytes))).collect::<BTreeMap<_, _>>()
        };
        let (one, six) = (of(1), of(6));
        let blocks = cell.model.num_hidden_layers as f64;
        assert_eq!(six[&kind].0 - one[&kind].0, 2.0 * 5.0 * blocks);
        assert_eq!(six[&kind].1, one[&kind].1);
    }
}

/// Forward: while the sum of a chunk travels, the next chunk is multiplied. Backward: while the gradient of an input is summed, those of the
/// weights that have read it are computed, of gate and up, then of q, k and v.
#[test]
fn products_lie_between_the_start_of_a_sum_and_its_wait() {
    for sequence in [false, true] {
        let cell = in_chunks(&shared(&base(), Strategy::Ddp, [1, 2], 1, sequence), 3);
        let (plan, kernels) = (plan(&cell), zbench_engine::compute::hardware::planner(&cell).unwrap());
        let products = |recorded: &RecordedAction| {
            let of =
                |wanted| recorded.overlaps.iter().filter(move |(_, what)| *what == wanted).map(|(behind, _)| *behind);
            let between = of(Overlap::Starts).zip(of(Overlap::Waits)).map(|(start, wait)| start..wait);
            let is_product = |operation: &&Recorded| matches!(operation.op, Op::Gemm(_));
            between.map(|range| recorded.operations[range].iter().filter(is_product).count()).collect::<Vec<_>>()
        };
        // With sequence parallelism a chunk is multiplied in parts, one for each rank.
        let parts = if sequence { 2 } else { 1 };
        let mut blocks = [0, 0];
        for recorded in plan.recorded_stages(&cell, &*kernels).flatten() {
            let expected = match recorded.action {
                _ if recorded.overlaps.is_empty() => continue,
                Action::Forward { .. } => [parts, parts, 0].repeat(2),
                Action::Backward { .. } => vec![2, 3],
                other => panic!("{other:?}"),
            };
            blocks[usize::from(expected.len() == 2)] += 1;
            assert_eq!(products(&recorded), expected, "{:?}, sequence parallelism {sequence}", recorded.action);
        }
        assert_eq!(blocks, [cell.model.num_hidden_layers * cell.train.accumulation; 2]);
    }
}

#[test]
fn waiting_for_tensor_ranks_has_a_span_of_its_own() {
    for (tensor, sequence, chunks) in [(1, false, 1), (2, false, 1), (2, true, 1), (2, false, 3), (2, true, 3)] {
        let cell = in_chunks(&shared(&base(), Strategy::Ddp, [2, tensor], 1, sequence), chunks);
        for report in measure(&cell, &plan(&cell)) {
            let is_stated = report.spans_ms.stated().any(|(span, _)| span == Span::ExposedTensor);
            assert_eq!(is_stated, tensor > 1, "{tensor} ranks in {chunks} chunks, rank {}", report.rank);
        }
    }
}

#[test]
fn chunks_that_cannot_be_are_refused() {
    let refused = |cell: &Cell, chunks: usize| {
        let cell = in_chunks(cell, chunks);
        let kernels = zbench_engine::compute::hardware::planner(&cell).unwrap();
        let error = Plan::new(&cell, &*kernels).err().map(|error| (error.key, error.reason));
        let (key, reason) = error.unwrap_or_else(|| panic!("{chunks} chunks are planned"));
        assert_eq!(key, "parallel.tensor_chunks");
        reason
    };
    let cell = shared(&base(), Strategy::Ddp, [1, 2], 1, false);
    assert_eq!(refused(&cell, 5), "5 does not divide the 24 tokens of a micro-batch; write 4 or 6");
    assert!(refused(&cell, 0).ends_with("write 1"));
    let cell = shared(&base(), Strategy::Ddp, [1, 2], 1, true);
    assert_eq!(refused(&cell, 8), "8 does not divide the 12 tokens that each rank has of a micro-batch; write 6 or 12");
    assert!(refused(&base(), 2).contains("parallel.tensor = 1 has no sums over ranks to split; write 1"));
}
