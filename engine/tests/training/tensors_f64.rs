//! Tensor and sequence parallelism in f64 on the reference kernels: what differs from one rank is rounding of sums, and here next to
//! nothing.

use crate::training::support::*;
use crate::training::tensors::{base, shared};
use std::collections::BTreeMap;
use std::sync::Arc;
use zbench_engine::config::*;
use zbench_engine::model::FlatKind;
use zbench_engine::observe::meter::Meter;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{DType, Kernels};
use zbench_kernels_testing::Reference;
use zbench_test_tiers as tiers;

/// Relative difference at most.
const NEAR: f64 = 1e-12;

/// Losses and norms of all steps, and the gradients of the first one as whole tensors.
struct Doubles {
    numbers: Vec<f64>,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// Runs a cell of one data rank.
fn run_in_f64(cell: &Cell) -> Doubles {
    let plan = Plan::new(cell, &Reference).unwrap();
    let kernels = (0..cell.parallel.ranks).map(|_| Arc::new(Reference) as Arc<dyn Kernels>).collect();
    let ran = with_ranks(cell, &plan, kernels, |rank| {
        let mut meter = Meter::start(rank.kernels().clone());
        rank.gradients(&mut meter)?;
        let mut parts = Vec::new();
        for (unit, spec) in rank.executor.context.stage_plan.layout.units.iter().enumerate() {
            let Some(flat_shard) = rank.executor.state.trainable(unit) else { continue };
            let Some(view) = rank.executor.gradients.view(&rank.executor.state, unit, &flat_shard.gradients) else {
                continue;
            };
            let values = view.as_slice::<f64>()?;
            for tensor in spec.tensors_of(FlatKind::Trainable) {
                let own = &values[tensor.place.range()];
                let of = tensor
                    .parts(&rank.executor.state.place, 0..own.len())
                    .map(|part| (part.whole, own[part.ours..][..part.len].to_vec()));
                parts.push((tensor.name.clone(), tensor.whole_elements(), of.collect::<Vec<_>>()));
            }
        }
        let first = rank.update(&mut meter)?;
        let mut numbers = vec![first.stats.loss, first.stats.norm];
        for _ in 1..cell.train.steps {
            let step = rank.step()?;
            numbers.extend([step.loss, step.grad_norm]);
        }
        Ok((numbers, parts))
    });
    let ran = ran.unwrap_or_else(|failure| panic!("{}", failure.cause));
    let mut gradients: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, len, parts) in ran.iter().flat_map(|(_, parts)| parts) {
        let whole = gradients.entry(name.clone()).or_insert_with(|| vec![f64::NAN; *len]);
        for (at, values) in parts {
            whole[*at..*at + values.len()].copy_from_slice(values);
        }
    }
    Doubles { numbers: ran.into_iter().next().unwrap().0, gradients }
}

#[test]
fn every_family_is_near_one_rank_in_f64() {
    let mut cells: Vec<(String, Cell)> = ["qwen2 with a window", "qwen3", "gpt2", "falcon", "new falcon"]
        .into_iter()
        .map(|name| (name.to_string(), formed(base(), forms().into_iter().find(|(of, ..)| *of == name).unwrap())))
        .collect();
    cells.push(("llama".into(), base()));
    cells.extend(expert_cells(base()).into_iter().take(1).map(|(name, cell)| (name.to_string(), cell)));
    let ways = [(2, false), (2, true), (4, false), (4, true)];
    let sizes = [cells.len(), ways.len()];
    for [number, way] in tiers::combinations("training::tensors_f64::every_family_is_near_one_rank", sizes) {
        let ((name, mut cell), (tensor, sequence)) = (cells[number].clone(), ways[way]);
        cell.precision = Precision::all(DType::F64);
        (cell.train.lr, cell.train.steps) = (1e-3, 3);
        let reference = run_in_f64(&on(cell.clone(), Strategy::Ddp, 1, 1));
        let all = reference.gradients.values().flatten().map(|value| value * value).sum::<f64>().sqrt();
        let what = format!("{name} over {tensor}, sequence parallelism {sequence}");
        let ran = run_in_f64(&shared(&cell, Strategy::Ddp, [1, tensor], 1, sequence));
        for (ours, theirs) in ran.numbers.iter().zip(&reference.numbers) {
            assert!((ours - theirs).abs() <= NEAR * theirs.abs(), "{what}: {ours} for {theirs}");
        }
        assert_eq!(ran.gradients.len(), reference.gradients.len(), "{what}");
        for (name, theirs) in &reference.gradients {
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
            let size = norm(&mut theirs.iter().copied());
            let far = norm(&mut ran.gradients[name].iter().zip(theirs).map(|(a, b)| a - b));
            // The gradient of keys' biases is 0 but for rounding.
            assert!(
                far <= NEAR * size.max(f64::EPSILON * all / NEAR),
                "{what}: the gradient of {name} is {far:e} of {size:e} off"
            );
        }
    }
}
