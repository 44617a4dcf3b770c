//! Model states: weights, gradients, optimizer; and what is on its way between ranks.
//!
//! Rajbhandari et al. (2020), "ZeRO", section 3.1 and figure 1: P + G + K bytes a parameter (2 + 2 + 12 with mixed Adam), each divided
//! by the ranks where the stage partitions it.

use super::*;
use crate::training::accounting::small;
use zbench_kernels::Category;
use zbench_test_tiers as tiers;

/// The three categories of a rank: each buffer is a part of a padded flat, so that its bytes are exact.
fn states(cell: &Cell) -> [u64; 3] {
    let (p, [of_weights, of_gradients, of_optimizer]) = (cell.precision, parts(cell));
    let base = if cell.lora.base == Some(Base::Bf16) { DType::Bf16 } else { p.parameters };
    let mut sum = [0; 3];
    for unit in padded_units(cell) {
        let (trains, frozen) = (unit.trains as u64, unit.frozen as u64);
        let size = |dtype: DType| dtype.size() as u64;
        sum[0] += (size(p.parameters) * trains + size(base) * frozen) / of_weights as u64;
        // Weights that are whole but of another type than layers read stay a second time, in that type.
        if matches!(cell.parallel.strategy, Strategy::Ddp | Strategy::Zero1 | Strategy::Zero2) {
            sum[0] += if p.parameters == p.compute { 0 } else { size(p.compute) * trains };
            sum[0] += if base == p.compute { 0 } else { size(p.compute) * frozen };
        }
        sum[1] += size(p.gradients) * trains / of_gradients as u64;
        sum[2] += (p.master.map_or(0, size) + 2 * size(p.optimizer)) * trains / of_optimizer as u64;
    }
    sum
}

fn assert_states(cell: &Cell, what: &str) {
    let expected = states(cell);
    for (who, ledger, _) in accounts(cell) {
        let found = [Category::Parameters, Category::Gradients, Category::Optimizer].map(|c| ledger.peak(c));
        assert_eq!(found, expected, "{what}: {who}: parameters, gradients, optimizer");
    }
}

#[test]
fn model_states_are_those_of_the_zero_paper() {
    let (meshes, precisions) = ([(1, 1), (2, 1), (4, 2), (6, 3)], precisions());
    let sizes = [Strategy::ALL.len(), meshes.len(), precisions.len()];
    for [strategy, mesh, precision] in tiers::combinations("training::formulas::model_states", sizes) {
        let (strategy, (ranks, shard)) = (Strategy::ALL[strategy], meshes[mesh]);
        let (name, precision) = precisions[precision];
        let mut cell = on(small(), strategy, ranks, shard);
        cell.precision = precision;
        assert_states(&cell, &format!("{} on {ranks} by {shard}, {name}", strategy.name()));
        adapted(&mut cell);
        assert_states(&cell, &format!("{} on {ranks} by {shard}, {name}, adapters", strategy.name()));
    }
}

#[test]
fn model_states_of_every_form_are_sums_of_tensors() {
    let tied = |mut cell: Cell| {
        cell.model.tie_word_embeddings = true;
        cell
    };
    let formed = forms().into_iter().map(|form| (form.0, formed(small(), form)));
    let experts = expert_cells(small()).into_iter().filter(|(name, _)| !name.contains("a dense block"));
    let all = formed.chain(experts).flat_map(|(name, cell)| [(name, cell.clone()), (name, tied(cell))]);
    for (name, cell) in tiers::some("training::formulas::model_states_of_every_form", all, [9, 22]) {
        let psi: usize = units(&cell).iter().map(|unit| unit.trains).sum();
        assert_eq!(estimate(&cell).parameters, psi as u64, "{name}");
        for strategy in [Strategy::Ddp, Strategy::HsdpFullOptimizer] {
            assert_states(&on(cell.clone(), strategy, 4, 2), &format!("{name}: {}", strategy.name()));
        }
    }
}

/// 16 bytes a parameter in mixed precision with gradients in bf16, as in the paper's figure 1, to the padding: 16 Psi, 4 Psi + 12 Psi/N,
/// 2 Psi + 14 Psi/N, 16 Psi/N.
#[test]
fn a_parameter_takes_the_sixteen_bytes_of_the_paper() {
    for n in [1.0, 4.0] {
        for (strategy, bytes) in [
            (Strategy::Ddp, 16.0),
            (Strategy::Zero1, 4.0 + 12.0 / n),
            (Strategy::Zero2, 2.0 + 14.0 / n),
            (Strategy::Zero3, 16.0 / n),
        ] {
            let mut cell = on(small(), strategy, n as usize, 1);
            cell.precision = Precision { gradients: DType::Bf16, ..Precision::mixed(DType::Bf16) };
            let (h, f, q, kv, v, layers) = (24, 40, 24, 8, 61, 3);
            let psi = (2 * v * h + h + layers * (2 * h + h * (2 * q + 2 * kv) + 3 * h * f)) as f64;
            for (who, ledger, _) in accounts(&cell) {
                let categories = [Category::Parameters, Category::Gradients, Category::Optimizer];
                let each = categories.map(|c| ledger.peak(c)).iter().sum::<u64>() as f64 / psi;
                // Five flats with less than ranks times 32 elements of padding each.
                let most = bytes * (1.0 + 5.0 * 32.0 * n / psi);
                assert!(each >= bytes && each <= most, "{}: {who}: {each} for {bytes}", strategy.name());
            }
        }
    }
}

/// What is on its way, without prefetching and in one micro-batch: the widest of these moments (docs/sharding.md, memory per rank).
/// A unit's gradients are reduced while the next one's are made.
fn on_the_way(cell: &Cell) -> u64 {
    let (p, n, psi) = (cell.precision, cell.parallel.ranks, padded_units(cell));
    let of = |dtype: DType, unit: Unit| bytes(dtype, unit.trains);
    let copy = |unit: Unit| if p.reduce == p.gradients { 0 } else { of(p.reduce, unit) };
    // A loss and a sum of squares of each unit from every rank, in f64.
    let words = 1 + psi.len();
    let agreement = bytes(DType::F64, words) + bytes(DType::F64, words * n);
    let most = |bytes: &mut dyn Iterator<Item = u64>| bytes.max().unwrap();
    // Gradients in scratch, beside what `held` says of a unit while they are made and when they are reduced: first beside what
    // still travels of the unit before, then, once that is there, beside a copy if they travel in another type.
    let scratch = |held: &mut dyn FnMut(usize) -> [u64; 2]| {
        let mut moments = Vec::new();
        for (at, unit) in psi.iter().enumerate().rev() {
            let offloaded = psi.get(at + 1).map_or(0, |before| of(p.reduce, *before));
            let [made, reduced] = held(at);
            moments.push(made + of(p.gradients, *unit) + offloaded);
            moments.push(reduced + of(p.gradients, *unit) + copy(*unit));
        }
        moments
    };
    let moments = match cell.parallel.strategy {
        // A unit's gradients are reduced where they are, through a copy if they travel in another type.
        Strategy::Ddp | Strategy::Zero1 => most(&mut psi.iter().map(|unit| copy(*unit))),
        Strategy::Zero2 => most(&mut scratch(&mut |_| [0; 2]).into_iter()),
        // All but the embedding are gathered when the head's gradients are made. A unit is given back before they are reduced.
        Strategy::FsdpGradOp => {
            let mut slots: u64 = psi[1..].iter().map(|unit| of(p.compute, *unit)).sum();
            let moments = scratch(&mut |at| {
                let made = slots;
                slots = slots.saturating_sub(of(p.compute, psi[at]));
                [made, slots]
            });
            most(&mut moments.into_iter().chain([of(p.compute, psi[0])]))
        }
        // One unit is gathered at a time: a unit's weights beside its gradients, or the first block's beside the embedding's.
        _ => most(&mut scratch(&mut |at| [of(p.compute, psi[at.max(1)]); 2]).into_iter()),
    };
    moments.max(agreement)
}

#[test]
fn what_is_on_its_way_is_one_unit() {
    let precisions: Vec<_> = precisions().into_iter().filter(|(_, p)| p.parameters == p.compute).collect();
    let sizes = [Strategy::ALL.len(), precisions.len()];
    for [strategy, precision] in tiers::combinations("training::formulas::what_is_on_its_way", sizes) {
        let (strategy, (name, precision)) = (Strategy::ALL[strategy], precisions[precision]);
        let mut cell = on(small(), strategy, 4, 2);
        (cell.precision, cell.parallel.prefetch) = (precision, 0);
        let expected = on_the_way(&cell);
        for (who, ledger, _) in accounts(&cell) {
            let found = ledger.peak(Category::Communication);
            assert_eq!(found, expected, "{} {name}: {who}", strategy.name());
        }
    }
}
