//! Checkpoints that earlier versions of the format hold. They were written with portable instructions, so that every machine
//! continues from them with the same bits.

use crate::training::resume::{bits, course, rewritten, saved, saving, six_steps};
use crate::training::support::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zbench_engine::checkpoint::training::{Digest, Resumable, step_dir};
use zbench_engine::config::*;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/checkpoints").join(name)
}

/// Name of the fixture, and the cell that wrote it.
fn cells() -> Vec<(&'static str, Cell)> {
    let portable = |mut cell: Cell| {
        cell.hardware.instructions = Some("portable".into());
        cell
    };
    // Vectors of 41 elements: flats of an odd length, with weights of two bytes and moments of four.
    let mut ia3 = six_steps();
    ia3.model.intermediate_size = 41;
    let targets = vec![Linear::KProj, Linear::VProj, Linear::DownProj];
    ia3.lora = Lora { method: Method::Ia3, targets, feedforward: vec![Linear::DownProj], ..Lora::default() };
    ia3.precision = Precision { optimizer: DType::F32, ..Precision::all(DType::Bf16) };
    ia3.train.clip_norm = 0.05;
    vec![
        ("v1-f32", portable(on(six_steps(), Strategy::Zero3, 4, 1))),
        ("v1-ia3", portable(on(ia3, Strategy::Zero1, 3, 1))),
    ]
}

/// The cell that wrote `v1-f32`, and the checksum of its state in the checkpoint.
pub fn version_1() -> (Cell, Digest) {
    let (name, cell) = cells().swap_remove(0);
    let [weights, exp_avg, exp_avg_sq] = serde_json::from_value(expected(name)["loaded"].clone()).unwrap();
    (cell, Digest { weights, exp_avg, exp_avg_sq, delayed_gradient: 0 })
}

fn expected(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("expected.json")).unwrap()).unwrap()
}

fn words(digest: Digest) -> Value {
    json!([digest.weights, digest.exp_avg, digest.exp_avg_sq])
}

/// Also by other ranks and strategies: what they load are the same tensors, of which they write the checkpoint anew.
#[test]
fn runs_continue_from_version_1_with_the_same_bits() {
    for (name, cell) in cells() {
        let from = fixture(name).join("step-00000002");
        let expected = expected(name);
        let own = tempfile::tempdir().unwrap();
        let resumed = |cell: Cell, name: &str, from: &Path| {
            saved(cell, Saving { every: 0, resume: Resume::From(from.into()), ..saving(&own.path().join(name)) })
        };
        let rest = course(&resumed(cell.clone(), "rest", &from));
        assert_eq!(json!(bits(&rest.steps)), expected["steps"], "{name}");
        assert_eq!(words(rest.digest), expected["last"], "{name}");
        let others = [(Strategy::Hsdp, 4, 2), (Strategy::Ddp, 1, 1), (Strategy::Fsdp, 6, 1)];
        for (strategy, ranks, shard) in tiers::some("training::old_checkpoints::version_1", others, [1, 3]) {
            let other = on(cell.clone(), strategy, ranks, shard);
            let what = format!("{name} by {} on {ranks}", strategy.name());
            assert_eq!(words(rewritten(&resumed(other.clone(), &what, &from))), expected["loaded"], "{what}");
            let copy = step_dir(&own.path().join(&what), 2);
            let rest = course(&resumed(cell.clone(), &format!("after {what}"), &copy));
            assert_eq!(json!(bits(&rest.steps)), expected["steps"], "{what}");
            assert_eq!(words(rest.digest), expected["last"], "{what}");
        }
    }
}

/// A checkpoint without `lr_steps` has the rates of from-one, and a cell with other rates is refused.
#[test]
fn a_run_of_other_rates_does_not_go_on() {
    let (cell, _) = version_1();
    let dir = fixture("v1-f32").join("step-00000002");
    let own = tempfile::tempdir().unwrap();
    let opened = |change: &dyn Fn(&mut Train)| {
        let mut cell = saved(cell.clone(), Saving { resume: Resume::From(dir.clone()), ..saving(own.path()) });
        change(&mut cell.train);
        Resumable::find(&cell, &plan(&cell).layout).map(|found| found.is_some()).map_err(|error| error.to_string())
    };
    assert_eq!(opened(&|_| {}), Ok(true));
    assert_eq!(opened(&|train| (train.lr_schedule, train.lr_warmup_steps) = (Schedule::Constant, 0)), Ok(true));
    let refused = opened(&|train| train.lr_steps = CourseSteps::Transformers).unwrap_err();
    assert!(refused.contains("train.lr_steps = \"from-one\""), "{refused}");
}
