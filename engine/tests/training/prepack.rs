//! Weights kept in the form that products read: the same bits, as planned to the byte and to the operation.

use crate::training::accounting::{assert_as_planned, assert_stated, small};
use crate::training::identity::{assert_same, odd};
use crate::training::support::*;
use zbench_engine::config::*;
use zbench_engine::plan::Plan;
use zbench_kernels::{Category, Cpu, DType};
use zbench_test_tiers as tiers;

fn kept(mut cell: Cell) -> Cell {
    cell.memory.prepack = true;
    cell
}

fn in_bf16(mut cell: Cell) -> Cell {
    cell.precision = Precision::mixed(DType::Bf16);
    cell
}

/// Strategies whose weights are whole at home, micro-batches, policies, tied heads and both types.
fn cells(base: fn() -> Cell) -> Vec<(String, Cell)> {
    let mut cells = Vec::new();
    for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero2] {
        for (accumulation, policy, tied, bf16) in [
            (1, Checkpointing::None, false, true),
            (3, Checkpointing::Full, false, false),
            (2, Checkpointing::Selective, true, true),
            (1, Checkpointing::Every(2), true, false),
        ] {
            let what = format!("{} accumulation {accumulation} {policy:?} tied {tied} bf16 {bf16}", strategy.name());
            let mut cell = on(base(), strategy, 2, 1);
            cell.train.accumulation = accumulation;
            cell.memory.checkpointing = policy;
            cell.model.tie_word_embeddings = tied;
            cells.push((what, if bf16 { in_bf16(cell) } else { cell }));
        }
    }
    cells
}

#[test]
fn plans_hold_and_operations_are_the_stated_ones() {
    let mut cells = cells(small);
    for form in forms() {
        cells.push((form.0.into(), formed(small(), form)));
    }
    cells.extend(expert_cells(small()).into_iter().map(|(name, cell)| (name.into(), cell)));
    for (name, change) in adapters().into_iter().chain([dora()]) {
        let mut cell = small();
        change(&mut cell);
        cells.push((name.into(), cell));
    }
    for (what, cell) in tiers::some("training::prepack::plans_hold", cells, [13, 31]) {
        // A base in few bits, or one of another type, has its own test of what is refused.
        if Plan::new(&kept(cell.clone()), &Cpu::new(1)).is_err() {
            assert!(cell.lora.base.is_some(), "{what}");
            continue;
        }
        assert_as_planned(&kept(cell.clone()), &what);
        assert_stated(&kept(cell), &what);
    }
}

#[test]
fn kept_forms_change_no_bit() {
    for (what, cell) in tiers::some("training::prepack::kept_forms_change_no_bit", cells(odd), [5, 12]) {
        assert_same(&run(&cell), &kept(cell.clone()), &what);
    }
}

#[test]
fn kept_forms_cost_what_they_say() {
    // All sides are multiples of the tiles' (32 columns, 16 words along the sum), so nothing is padded.
    let mut cell = in_bf16(small());
    let model = &mut cell.model;
    (model.hidden_size, model.intermediate_size, model.vocab_size, model.head_dim) = (64, 96, 128, 64);
    (model.num_attention_heads, model.num_key_value_heads) = (2, 1);
    let parameters = |cell: &Cell| plan(cell).stage_plan_of(0).estimate.memory().peak(Category::Parameters);
    let matrices = 3 * (64 * 128 + 2 * 64 * 64 + 128 * 64 + 3 * 64 * 96) + 128 * 64;
    assert_eq!(parameters(&kept(cell.clone())) - parameters(&cell), 2 * 2 * matrices);
}

#[test]
fn weights_that_are_split_or_of_another_type_are_refused_by_name() {
    let mut other = small();
    other.precision.compute = DType::Bf16;
    let split = [Strategy::Zero3, Strategy::Fsdp, Strategy::Hsdp].map(|strategy| on(small(), strategy, 4, 2));
    for cell in split.into_iter().chain([other]) {
        let error = Plan::new(&kept(cell.clone()), &Cpu::new(1)).unwrap_err();
        assert_eq!(error.key, "memory.prepack");
        assert!(error.reason.contains("ddp"), "{error}");
        Plan::new(&cell, &Cpu::new(1)).unwrap();
    }
}
