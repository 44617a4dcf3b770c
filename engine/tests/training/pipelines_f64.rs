//! Pipelines in f64 on the reference kernels: what differs from a run without one is rounding of sums, and here next to nothing.

use crate::training::identity::odd;
use crate::training::pipelines::{SCHEDULES, staged};
use crate::training::support::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use zbench_engine::config::*;
use zbench_engine::model::FlatKind;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{DType, Kernels};
use zbench_kernels_testing::Reference;
use zbench_test_tiers as tiers;

/// Whether the head's matrix is the embedding's.
const TIED: &[bool] = &[false, true];

/// Relative difference at most.
const NEAR: f64 = 1e-12;

/// What a run in f64 gives.
struct Doubles {
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// A rank's part of the weights at the end, by data rank and by unit of the model. A tied matrix is on both end stages.
    weights: Vec<([usize; 2], Vec<f64>)>,
}

fn run_in_f64(cell: &Cell) -> Doubles {
    let plan = Plan::unrunnable(cell, &Reference).unwrap();
    let ranks = cell.parallel.ranks;
    let of_stage = ranks / cell.parallel.degrees.pipeline;
    let kernels = (0..ranks).map(|_| Arc::new(Reference) as Arc<dyn Kernels>).collect();
    let ran = with_ranks(cell, &plan, kernels, |rank| {
        let steps = (0..cell.train.steps).map(|_| rank.step()).collect::<Result<Vec<_>, _>>()?;
        let (data, numbers) = (rank.number() % of_stage, rank.executor.context.stage_plan.layout.numbers.clone());
        let mut weights = Vec::new();
        for (unit, number) in numbers.into_iter().enumerate() {
            if let Some(home) = rank.executor.params.shard_mut(unit, FlatKind::Trainable) {
                weights.push(([data, number], home.view().as_slice::<f64>()?.to_vec()));
            }
        }
        Ok((steps, weights))
    });
    let ran = ran.unwrap_or_else(|failure| panic!("{}", failure.cause));
    let (losses, norms) = ran[0].0.iter().map(|step| (step.loss, step.grad_norm)).unzip();
    Doubles { losses, norms, weights: ran.into_iter().flat_map(|(_, weights)| weights).collect() }
}

fn assert_near(ours: &[f64], theirs: &[f64], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    let size = norm(&mut theirs.iter().copied());
    assert!(size > 0.0 && difference <= NEAR * size, "{what}: {difference:e} of {size}");
}

#[test]
fn every_schedule_is_near_no_pipeline_in_f64() {
    let cases = [(Strategy::Ddp, 1), (Strategy::Zero1, 2), (Strategy::Zero3, 2)];
    let sizes = [TIED.len(), cases.len(), SCHEDULES.len()];
    let mut references = BTreeMap::new();
    for [tied, case, schedule] in tiers::combinations("training::pipelines_f64::every_schedule", sizes) {
        let (at, (strategy, data), schedule, tied) = ((tied, case), cases[case], SCHEDULES[schedule], TIED[tied]);
        let mut base = odd();
        (base.model.num_hidden_layers, base.model.tie_word_embeddings) = (4, tied);
        (base.train.accumulation, base.train.micro_batch) = (4, 1);
        base.precision = Precision::all(DType::F64);
        let reference = references.entry(at).or_insert_with(|| run_in_f64(&on(base.clone(), strategy, data, 1)));
        let known: BTreeMap<[usize; 2], &Vec<f64>> = reference.weights.iter().map(|(at, of)| (*at, of)).collect();
        let ran = run_in_f64(&staged(&base, strategy, [data, 2], 1, schedule));
        let what = format!("tied: {tied}, {} on {data}, {schedule:?}", strategy.name());
        for (ours, theirs) in ran.losses.iter().zip(&reference.losses).chain(ran.norms.iter().zip(&reference.norms)) {
            assert_near(&[*ours], &[*theirs], &format!("{what}: losses and norms"));
        }
        for (at, weights) in &ran.weights {
            assert_near(weights, known[at], &format!("{what}: weights of data rank and unit {at:?}"));
        }
        let mut found: Vec<_> = ran.weights.iter().map(|(at, _)| *at).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, known.keys().copied().collect::<Vec<_>>(), "{what}: all units are on some stage");
    }
}
