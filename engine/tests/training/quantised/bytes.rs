//! Bytes and operations: plans against measurements and against the formulas of docs/lora.md.

use super::{BASES, adapters};
use crate::training::accounting::{assert_as_planned, assert_stated, measure, policies, small};
use crate::training::support::*;
use zbench_engine::config::*;
use zbench_engine::model::FlatKind;
use zbench_kernels::*;
use zbench_test_tiers as tiers;

#[test]
fn plans_hold_for_every_quantised_base() {
    let wide = Precision { parameters: DType::F32, master: None, ..Precision::mixed(DType::Bf16) };
    let ways = [
        (1, Precision::F32, Checkpointing::None),
        (2, Precision::mixed(DType::Bf16), Checkpointing::Full),
        (4, Precision::F32, Checkpointing::Every(2)),
        (4, wide, Checkpointing::Selective),
    ];
    let sizes = [BASES.len(), Strategy::ALL.len(), ways.len()];
    for [base, strategy, way] in tiers::combinations("training::quantised::plans_hold_for_every_base", sizes) {
        let (base, strategy, (ranks, precision, policy)) = (BASES[base], Strategy::ALL[strategy], ways[way].clone());
        let mut cell = on(small(), strategy, ranks, 2.min(ranks));
        (cell.lora, cell.precision, cell.memory.checkpointing) = (adapters(base), precision, policy);
        cell.train.accumulation = 2;
        assert_as_planned(&cell, &format!("{base:?}: {} on {ranks}, {precision:?}", strategy.name()));
    }
}

#[test]
fn stated_operations_over_a_quantised_base_are_the_ones_issued() {
    let (policies, ways) = (policies(), [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::HsdpFullOptimizer, 4)]);
    let sizes = [BASES.len(), ways.len(), policies.len()];
    for [base, way, policy] in tiers::combinations("training::quantised::stated_operations", sizes) {
        let (base, (strategy, ranks), policy) = (BASES[base], ways[way], policies[policy].clone());
        let mut cell = on(small(), strategy, ranks, 2.min(ranks));
        (cell.lora, cell.memory.checkpointing) = (adapters(base), policy.clone());
        assert_stated(&cell, &format!("{base:?}: {} {policy:?}", strategy.name()));
    }
}

#[test]
fn plans_and_operations_hold_for_every_form_of_block_over_a_quantised_base() {
    let cells: Vec<_> = forms().into_iter().zip(BASES.into_iter().cycle()).collect();
    let ways = [(Strategy::Zero3, Checkpointing::Full), (Strategy::Hsdp, Checkpointing::None)];
    for [cell, way] in tiers::combinations("training::quantised::every_form_of_block", [cells.len(), ways.len()]) {
        let ((form, base), (strategy, policy)) = (cells[cell], &ways[way]);
        let mut cell = on(formed(small(), form), *strategy, 2, 1);
        (cell.lora, cell.memory.checkpointing) = (adapters(base), policy.clone());
        assert_as_planned(&cell, form.0);
        assert_stated(&cell, form.0);
    }
}

/// Bytes of a matrix of `rows` by `cols`, from docs/lora.md: each term at a multiple of 64.
fn bytes_of(base: Base, rows: usize, cols: usize) -> usize {
    let up = |bytes: usize| bytes.div_ceil(64) * 64;
    let (n, blocks) = (rows * cols, (rows * cols).div_ceil(64));
    match base {
        Base::Nf4 => up(n.div_ceil(2)) + up(blocks) + up(4 * blocks.div_ceil(256) + 4),
        Base::Nf4Single => up(n.div_ceil(2)) + up(4 * blocks),
        _ => up(n) + up(4 * rows),
    }
}

/// To the byte on the arena, whatever the strategy and the number of ranks.
#[test]
fn the_base_takes_the_bytes_that_the_formula_says() {
    let sizes = [BASES.len(), Strategy::ALL.len(), 3];
    for [base, strategy, ranks] in tiers::combinations("training::quantised::bytes_that_the_formula_says", sizes) {
        let (base, strategy, ranks) = (BASES[base], Strategy::ALL[strategy], [1usize, 2, 4][ranks]);
        let mut cell = on(small(), strategy, ranks, 2.min(ranks));
        cell.lora = adapters(base);
        let model = &cell.model;
        let (hidden, wide) = (model.hidden_size, model.intermediate_size);
        let keys = model.num_key_value_heads * model.head_dim;
        let matrices = [
            (hidden, hidden),
            (keys, hidden),
            (keys, hidden),
            (hidden, hidden),
            (wide, hidden),
            (wide, hidden),
            (hidden, wide),
        ];
        let block: usize = matrices.iter().map(|(rows, cols)| bytes_of(base, *rows, *cols)).sum();
        let padded = block.div_ceil(64 * ranks) * 64 * ranks * model.num_hidden_layers;
        let plan = plan(&cell);
        let floats: usize =
            plan.layout.units.iter().map(|u| 4 * (u.trainable().padded + u.flat(FlatKind::Frozen).padded)).sum();
        let whole = matches!(strategy, Strategy::Ddp | Strategy::Zero1 | Strategy::Zero2);
        let split = if whole {
            1
        } else if strategy.is_hybrid() {
            2.min(ranks)
        } else {
            ranks
        };
        for report in measure(&cell, &plan) {
            let measured = report.memory().peak(Category::Parameters);
            assert_eq!(measured, ((floats + padded) / split) as u64, "{base:?}: {} on {ranks}", strategy.name());
        }
        let counted = plan.layout.parameters(FlatKind::Quantised) as usize;
        assert_eq!(counted, matrices.iter().map(|(r, c)| r * c).sum::<usize>() * model.num_hidden_layers);
    }
}

/// QLoRA, section 3: double quantisation takes 8/64 + 32/(64 * 256) = 0.127 bits a parameter for scales, not 0.5.
#[test]
fn bits_per_parameter_are_those_of_the_paper() {
    let preset: zbench_engine::formats::hf::PartialModel =
        toml::from_str(zbench_engine::formats::hf::preset("llama2-70b").unwrap()).unwrap();
    let model = preset.resolve("llama2-70b").unwrap();
    for (base, bits) in
        [(Base::Nf4, 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0)), (Base::Nf4Single, 4.5), (Base::Int8, 8.0)]
    {
        let mut cell = synthetic();
        (cell.model, cell.lora) = (model.clone(), adapters(base));
        let layout = zbench_engine::model::Layout::new(&cell, 8);
        let bytes: usize = layout.units.iter().map(|unit| unit.flat(FlatKind::Quantised).len).sum();
        let got = 8.0 * bytes as f64 / layout.parameters(FlatKind::Quantised) as f64;
        // int8: a scale of 32 bits for each row of 8192 at least.
        assert!(got >= bits && got <= bits + 32.0 / 8192.0 + 1e-4, "{base:?}: {got} bits for {bits}");
        assert_eq!(layout.parameters(FlatKind::Quantised), 80 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 8192 * 28672));
    }
}

#[test]
fn unpacking_is_no_flop_of_the_model() {
    for base in BASES {
        let mut cell = small();
        cell.lora = Lora { base: None, ..adapters(base) };
        let plain = estimate(&cell).flops;
        cell.lora = adapters(base);
        let flops = estimate(&cell).flops;
        assert_eq!((plain.model, plain.palm, plain.hardware), (flops.model, flops.palm, flops.hardware));
        assert_eq!(plain.ledger, flops.ledger);
    }
}
