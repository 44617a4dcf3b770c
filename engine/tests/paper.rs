//! Cells that the engine does not run yet, planned by the dry executor: docs/mesh.md shows them. Every number is counted by hand.

use crate::training::support::*;
use zbench_collectives::GroupName;
use zbench_collectives::{CollectiveKind, Traffic};
use zbench_engine::action::stream::Stream;
use zbench_engine::config::*;
use zbench_engine::mesh::Axis;
use zbench_engine::model::LayerKind;
use zbench_engine::model::layers::{Gradient, TensorSplit};
use zbench_engine::plan::{Plan, PlanError};
use zbench_kernels::{Category, Cpu};

/// 64 tokens of width 32 in f32: 4 heads of 16 with 2 of keys and values, an MLP of width 96.
fn dense(blocks: usize, degrees: Degrees, ranks: usize) -> Cell {
    let mut cell = synthetic();
    let model = &mut cell.model;
    (model.hidden_size, model.intermediate_size, model.num_hidden_layers, model.vocab_size) = (32, 96, blocks, 80);
    (model.num_attention_heads, model.num_key_value_heads, model.head_dim) = (4, 2, 16);
    (cell.train.seq_len, cell.train.micro_batch) = (32, 2);
    (cell.parallel.ranks, cell.parallel.degrees) = (ranks, degrees);
    cell
}

fn on_paper(cell: &Cell) -> Plan {
    let plan = try_on_paper(cell).unwrap_or_else(|error| panic!("{error}"));
    for stage in 0..plan.stage_plans.len() {
        let rank = stage * (cell.parallel.ranks / plan.stage_plans.len());
        let whole = plan.estimate_block_by_block(cell, &Cpu::new(1), rank);
        assert_eq!(plan.stage_plan_of(rank).estimate, whole, "stage {stage}: counted and performed");
    }
    plan
}

fn try_on_paper(cell: &Cell) -> Result<Plan, PlanError> {
    let planned = Plan::new(cell, &Cpu::new(1));
    match &planned {
        Err(error) if cell.is_priced() => {
            assert!(error.reason.contains("is priced by `zbench plan` and not run"), "{error}");
            Plan::unrunnable(cell, &Cpu::new(1))
        }
        _ => {
            assert!(!cell.is_priced(), "what is priced is not run");
            planned
        }
    }
}

/// Calls, payload and wire of a kind of collective in a group; zeros where there is none.
fn traffic(rows: &[Traffic], group: GroupName, kind: CollectiveKind) -> [f64; 3] {
    let row = rows.iter().find(|row| (row.axis, row.kind) == (group, kind));
    row.map_or([0.0; 3], |row| [row.calls, row.payload_bytes, row.wire_bytes])
}

const TENSOR: Degrees = Degrees {
    tensor: 2,
    sequence: 1,
    pipeline: 1,
    virtual_stages: 1,
    pipeline_schedule: PipelineSchedule::OneFOneB,
    context: 1,
    expert: 1,
    expert_tensor: 1,
};

#[test]
fn a_dense_block_under_tensor_parallelism() {
    let plans = [2, 3].map(|blocks| on_paper(&dense(blocks, TENSOR, 4)));
    let [few, more] = plans.each_ref().map(|plan| &plan.stage_plan_of(0).estimate);
    // Of a rank: q 32 x 32, k and v 16 x 32 each, o 32 x 32, gate, up and down 48 x 32 each, two norms of 32.
    let block = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32 + 2 * 32;
    assert_eq!(block, 7744);
    // Both ranks have the norms.
    assert_eq!(more.parameters - few.parameters, 2 * 7744 - 2 * 32);
    let grows = |category| more.memory().peak(category) - few.memory().peak(category);
    assert_eq!([grows(Category::Parameters), grows(Category::Gradients)], [4 * 7744; 2]);
    assert_eq!(grows(Category::Optimizer), 2 * 4 * 7744);
    // A block keeps of a token: its input, two norms and the residual, 32 wide; q and attention's output, 32; k and v, 16; gate, up
    // and activation, 48. And two statistics of norms and two log-sum-exps. A whole rank would keep 64, 32 and 96.
    let kept = 64 * 4 * (4 * 32 + 2 * 32 + 2 * 16 + 3 * 48 + 2 + 2);
    assert_eq!((kept, grows(Category::Activations)), (95_232, 95_232));
    // Two sums of 64 x 32 forward and two backward; each counts twice: 8 n h c, as Korthikanti et al. (2022), section 4.2.
    for (plan, blocks) in plans.iter().zip([2.0, 3.0]) {
        let rows = &plan.stage_plan_of(0).estimate.traffic;
        let sums = traffic(rows, GroupName::Tensor, CollectiveKind::AllReduce);
        // The look-up of the embedding and the gradient of the head's input are two more.
        assert_eq!(sums, [4.0 * blocks + 2.0, blocks * 65_536.0 + 32_768.0, blocks * 32_768.0 + 16_384.0]);
    }
    let rows = &few.traffic;
    assert!(rows.iter().all(|row| matches!(row.axis, GroupName::Tensor | GroupName::Data)), "{rows:?}");
    assert!(rows.iter().all(|row| row.ranks == 2), "{rows:?}");
}

#[test]
fn a_dense_blocks_tensors_have_their_cuts() {
    let plan = on_paper(&dense(1, TENSOR, 2));
    let [rows, columns] = [TensorSplit::ColumnParallel(Axis::Tensor), TensorSplit::RowParallel(Axis::Tensor)];
    let cuts: Vec<_> = plan.layout.units[1].tensors.iter().map(|tensor| (tensor.cut, &tensor.shape[..])).collect();
    let (square, narrow, wide): (&[usize], &[usize], &[usize]) = (&[32, 32], &[16, 32], &[48, 32]);
    let expected = [
        (TensorSplit::Replicated, &[32][..]),
        (rows, square),
        (rows, narrow),
        (rows, narrow),
        (columns, square),
        (rows, wide),
        (rows, wide),
        (columns, &[32, 48]),
        (TensorSplit::Replicated, &[32]),
    ];
    assert_eq!(cuts, expected);
    assert!(plan.layout.units.iter().flat_map(|unit| &unit.tensors).all(|t| t.gradient == Gradient::Complete));
}

#[test]
fn stages_take_turns() {
    let (stages, micros) = (4usize, 8usize);
    let degrees = Degrees { pipeline: stages, ..Degrees::default() };
    let mut cell = dense(24, degrees, 8);
    cell.memory.checkpointing = Checkpointing::Full;
    cell.train.accumulation = micros;
    let plan = on_paper(&cell);
    let estimates: Vec<_> = plan.stage_plans.iter().map(|stage_plan| &stage_plan.estimate).collect();
    // Every block lies on one stage; the embedding on the first, norm and head on the last.
    let block = 32 * 64 + 2 * 32 * 32 + 64 * 32 + 3 * 96 * 32 + 2 * 32;
    let expected = [6 * block + 80 * 32, 6 * block, 6 * block, 6 * block + 80 * 32 + 32];
    assert_eq!(estimates.iter().map(|estimate| estimate.parameters).collect::<Vec<_>>(), expected);
    let whole: u64 = expected.iter().sum();
    let data_parallel = Plan::new(&dense(24, Degrees::default(), 2), &Cpu::new(1)).unwrap();
    assert_eq!(data_parallel.stage_plan_of(0).estimate.parameters, whole);
    // A stream of 64 x 32 f32 crosses each boundary once in each direction for every micro-batch.
    let stream = 64.0 * 32.0 * 4.0;
    for (stage, estimate) in estimates.iter().enumerate() {
        let neighbours = if stage == 0 || stage + 1 == stages { 1.0 } else { 2.0 };
        let calls = neighbours * micros as f64;
        let sends = traffic(&estimate.traffic, GroupName::Pipeline, CollectiveKind::Send);
        let receives = traffic(&estimate.traffic, GroupName::Pipeline, CollectiveKind::Recv);
        assert_eq!((sends, receives), ([calls, calls * stream, 0.0], [calls, calls * stream, calls * stream]));
    }
    // 1F1B: stage i has p - i micro-batches in flight, each with the inputs of its 6 blocks. Stages in the middle differ in that alone.
    assert_eq!(plan.stage_plans.iter().map(|stage_plan| stage_plan.in_flight).collect::<Vec<_>>(), [4, 3, 2, 1]);
    let peak = |stage: usize| estimates[stage].memory().peak(Category::Activations);
    assert_eq!(peak(1) - peak(2), 6 * 64 * 32 * 4);
    // Gradients are reduced among the two ranks of a stage once a step.
    for estimate in &estimates {
        let [calls, ..] = traffic(&estimate.traffic, GroupName::Data, CollectiveKind::AllReduce);
        assert_eq!(calls, units_of(estimate.parameters, block));
    }
    cell.parallel.degrees.pipeline_schedule = PipelineSchedule::GPipe;
    let all_forward = on_paper(&cell);
    assert_eq!(all_forward.stage_plans.iter().map(|stage_plan| stage_plan.in_flight).collect::<Vec<_>>(), [micros; 4]);
}

/// Units of a stage of six blocks.
fn units_of(parameters: u64, block: u64) -> f64 {
    if parameters == 6 * block { 6.0 } else { 7.0 }
}

#[test]
fn sharded_stages_gather_within_a_stage() {
    for strategy in [Strategy::Zero1, Strategy::Zero2, Strategy::Fsdp, Strategy::FsdpGradOp, Strategy::Hsdp] {
        for degrees in [Degrees { pipeline: 2, ..Degrees::default() }, Degrees { pipeline: 2, ..TENSOR }] {
            let ranks = 4 * degrees.ranks_per_replica();
            let mut cell = dense(10, degrees, ranks);
            (cell.parallel.strategy, cell.parallel.shard, cell.train.accumulation) = (strategy, 2, 6);
            let plan = on_paper(&cell);
            for stage_plan in &plan.stage_plans {
                let rows = &stage_plan.estimate.traffic;
                let names: Vec<_> = rows.iter().map(|row| row.axis).collect();
                let shard = if strategy == Strategy::Hsdp { GroupName::Inner } else { GroupName::Data };
                assert!(names.contains(&shard) && names.contains(&GroupName::Pipeline), "{strategy:?}: {names:?}");
                let ranks = rows.iter().find(|row| row.axis == shard).unwrap().ranks;
                assert_eq!(ranks, if strategy == Strategy::Hsdp { 2 } else { 4 });
            }
        }
    }
}

#[test]
fn a_stage_begins_with_a_block_or_with_the_embedding() {
    let plan = on_paper(&dense(6, Degrees { pipeline: 4, ..Degrees::default() }, 4));
    let kinds = |stage: usize| {
        let layers = plan.stage_plans[stage].layout.layers.iter();
        layers.map(|layer| match layer.kind {
            LayerKind::Embedding(_) => 'e',
            LayerKind::Block(_) => 'b',
            LayerKind::Norm(_) => 'n',
            LayerKind::Head(_) => 'h',
        })
    };
    // The first stages have one block more.
    assert_eq!((0..4).map(|stage| kinds(stage).collect::<String>()).collect::<Vec<_>>(), ["ebb", "bb", "b", "bh"]);
    let first: Vec<_> = plan.stage_plans.iter().map(|stage_plan| stage_plan.layout.numbers[0]).collect();
    assert_eq!(first, [0, 3, 5, 6]);
}

/// Blocks with 4 experts of width 48, of which a token goes to 2; two ranks share them.
fn sparse(blocks: usize, ranks: usize) -> Cell {
    let mut cell = dense(blocks, Degrees { expert: 2, ..Degrees::default() }, ranks);
    cell.model.experts = Some(Experts {
        num_experts: 4,
        num_experts_per_tok: 2,
        moe_intermediate_size: 48,
        norm_topk_prob: true,
        decoder_sparse_step: 1,
        mlp_only_layers: Vec::new(),
    });
    cell
}

#[test]
fn a_block_of_shared_experts() {
    let plans = [2, 3].map(|blocks| on_paper(&sparse(blocks, 2)));
    let [few, more] = plans.each_ref().map(|plan| &plan.stage_plan_of(0).estimate);
    // Of a rank: attention, two norms and the router are whole; of four experts it has two.
    let dense = 2 * 64 * 32 + 2 * 32 * 32 + 2 * 32 + 4 * 32;
    let experts = 2 * 3 * 48 * 32;
    assert_eq!((dense, experts, more.parameters - few.parameters), (12_480 - 6_144, 9_216, dense + experts));
    let grows = |category| more.memory().peak(category) - few.memory().peak(category);
    assert_eq!([grows(Category::Parameters), grows(Category::Gradients)], [4 * (dense + experts); 2]);
    // A row for each choice: 128 rows. Kept as of a dense block, with gate, up and activation of 128 x 48; the router's logits and
    // weights, where tokens went, and the same of the rows that came here: three numbers a row and where each expert begins.
    let attention = 64 * 4 * (4 * 32 + 2 * 64 + 2 * 32 + 2 + 4);
    let mlp = 128 * 4 * 3 * 48;
    let rounded = |numbers: u64| (4 * numbers).next_multiple_of(64);
    let routing = 4 * (64 * 4 + 128) + rounded(3 * 128 + 4 + 1) + rounded(3 * 128 + 2 + 1) + 4 * 128;
    assert_eq!((attention + mlp + routing, grows(Category::Activations)), (162_432, 162_432));
    for (plan, blocks) in plans.iter().zip([2.0, 3.0]) {
        let rows = &plan.stage_plan_of(0).estimate.traffic;
        // Rows of width 32 there and back forward; backward those of the output's gradient there, the input's once more, and the
        // gradients back. Beside them how many rows go to which expert, their weights, and the gradients of these.
        let bytes = 5.0 * 128.0 * 32.0 * 4.0 + 4.0 * 4.0 + 2.0 * 128.0 * 4.0;
        let exchanged = traffic(rows, GroupName::Expert, CollectiveKind::AllToAll);
        assert_eq!(exchanged, [8.0 * blocks, blocks * bytes, blocks * bytes / 2.0]);
        // The experts have no replica; the rest is summed over both ranks.
        assert_eq!(traffic(rows, GroupName::Data, CollectiveKind::AllReduce)[0], blocks + 2.0);
        assert_eq!(traffic(rows, GroupName::ExpertData, CollectiveKind::AllReduce)[0], 0.0);
    }
    let four = on_paper(&sparse(2, 4));
    let rows = &four.stage_plan_of(0).estimate.traffic;
    let sums = traffic(rows, GroupName::ExpertData, CollectiveKind::AllReduce);
    assert_eq!(sums[..2], [2.0, 2.0 * 2.0 * 4.0 * experts as f64]);
    assert!(rows.iter().any(|row| row.axis == GroupName::ExpertData && row.ranks == 2));
}

/// An encoder of `blocks` on 32 tokens, a decoder of as many on 16, 2 sequences each.
fn encoder_decoder([encoder, decoder]: [usize; 2]) -> Cell {
    let mut cell = dense(encoder, Degrees::default(), 1);
    let model = PricedModel::EncoderDecoder { num_decoder_layers: decoder, decoder_seq_len: 16, gated: true };
    cell.priced = Some(Box::new(Priced { model: Some(model), ..Priced::default() }));
    cell
}

#[test]
fn an_encoder_and_a_decoder() {
    let plan = on_paper(&encoder_decoder([2, 2]));
    let layout = &plan.stage_plan_of(0).layout;
    // Both embeddings look up one table.
    let units: Vec<_> = layout.layers.iter().map(|layer| layer.unit).collect();
    assert_eq!(units, [0, 1, 2, 3, 0, 4, 5, 6]);
    let streams: Vec<_> = layout.layers.iter().map(|layer| (layer.reads, layer.memory, layer.writes)).collect();
    let [encoder, decoder] = [Stream::Encoder, Stream::Decoder];
    let over = (decoder, Some(encoder), decoder);
    let alone = |stream| (stream, None, stream);
    let of_encoder = [alone(encoder); 4];
    assert_eq!(streams, [&of_encoder[..], &[alone(decoder), over, over, alone(decoder)]].concat());

    let peak = |blocks, category| on_paper(&encoder_decoder(blocks)).stage_plan_of(0).estimate.memory().peak(category);
    let grows = |category| {
        let few = peak([2, 2], category);
        [peak([3, 2], category) - few, peak([2, 3], category) - few]
    };
    // Of an encoder's block: q 64 x 32, k and v 32 x 32, o 32 x 64, gate, up and down 96 x 32, two norms of 32. A decoder's has
    // cross-attention beside them: q, k, v, o and a norm.
    let attention = 2 * 64 * 32 + 2 * 32 * 32;
    let of_encoder = attention + 3 * 96 * 32 + 2 * 32;
    let of_decoder = of_encoder + attention + 32;
    assert_eq!((of_encoder, of_decoder), (15_424, 21_600));
    assert_eq!(grows(Category::Parameters), [4 * of_encoder, 4 * of_decoder]);
    assert_eq!(grows(Category::Optimizer), [8 * of_encoder, 8 * of_decoder]);
    // Kept of each of the encoder's 64 tokens, as of a dense block: input, two norms and residual, 32 wide; q and attention's output,
    // 64; k and v, 32; gate, up and activation, 96; statistics of two norms and four heads.
    let self_attention = |n: u64| n * 4 * (4 * 32 + 2 * 64 + 2 * 32 + 3 * 96 + 2 + 4);
    // Of each of the decoder's 32 the same, and of cross-attention input and norm, q, output, a statistic and four log-sum-exps; k
    // and v of the encoder's 64.
    let cross = 32 * 4 * (2 * 32 + 2 * 64 + 1 + 4) + 64 * 4 * 2 * 32;
    let kept = [self_attention(64), self_attention(32) + cross];
    assert_eq!(kept, [157_184, 120_192]);
    assert_eq!(grows(Category::Activations), kept);
    let mut shared = encoder_decoder([2, 2]);
    shared.parallel.ranks = 2;
    for strategy in [Strategy::Ddp, Strategy::Zero2, Strategy::Fsdp] {
        shared.parallel.strategy = strategy;
        for checkpointing in [Checkpointing::None, Checkpointing::Full, Checkpointing::Selective] {
            shared.memory.checkpointing = checkpointing;
            let plan = on_paper(&shared);
            let rows = &plan.stage_plan_of(0).estimate.traffic;
            let kind =
                if strategy == Strategy::Ddp { CollectiveKind::AllReduce } else { CollectiveKind::ReduceScatter };
            // Seven units, the table once.
            assert_eq!(traffic(rows, GroupName::Data, kind)[0], 7.0, "{strategy:?}");
        }
    }
}

#[test]
fn what_cannot_be_planned_says_why() {
    let refused = |cell: &Cell, key: &str, words: &[&str]| {
        let error = Plan::unrunnable(cell, &Cpu::new(1)).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        words.iter().for_each(|word| assert!(error.reason.contains(word), "{error}"));
    };
    let tensor = |tensor: usize| Degrees { tensor, ..Degrees::default() };
    refused(&dense(2, tensor(2), 3), "parallel.ranks", &["3 is not a multiple", "= 2", "2 or 4"]);
    refused(&dense(2, tensor(3), 3), "parallel.tensor", &["num_attention_heads = 4", "2 or 4"]);
    refused(&dense(2, tensor(4), 4), "parallel.tensor", &["num_key_value_heads = 2"]);
    refused(
        &dense(3, Degrees { pipeline: 4, ..tensor(1) }, 4),
        "parallel.pipeline",
        &["3 blocks (model.num_hidden_layers)", "3 or fewer"],
    );
}
