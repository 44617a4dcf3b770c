//! Ten thousand records: the page stays small enough to be sent, and nothing takes time that grows with the square.

use serde_json::json;
use std::sync::LazyLock;
use zbench_reports::Record;
use zbench_reports::grid_report::comparison;
use zbench_reports::record::*;
use zbench_reports::render::html;
use zbench_test_tiers as tiers;

use super::grid;

/// Records of a page: ten thousand in the full tier.
static MANY: LazyLock<usize> =
    LazyLock::new(|| tiers::cases("large (records of a page)", [1000, 2000, 10_000]) as usize);
/// What a page of so many records may take.
const LIMIT: usize = 5_000_000;

/// Trial number `trial` of cell number `cell`: all that a record of the quickstart holds, with numbers that differ.
fn record(cell: usize, trial: usize) -> Record {
    let specs = grid::specs();
    let mut record = grid::trial(&specs[cell % specs.len()], 1 + (trial % 3) as u32);
    let noise = 1.0 + ((cell * 7919 + trial * 104_729) % 1000) as f64 / 5000.0;
    record.id = format!("{:012x}", (cell * 100_000 + trial) as u64 * 0x9e37_79b9 % 0xffff_ffff_ffff);
    record.key = format!("{:016x}", (cell as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    record.trial = trial as u32 + 1;
    record.cell["train"]["accumulation"] = (1 + cell / 7 % 16).into();
    record.cell["train"]["seq_len"] = (128 * (1 + cell / 112 % 16)).into();
    record.cell["train"]["seed"] = (cell / 1792).into();
    record.environment.insert("load_average".into(), json!(noise));
    for (place, step) in record.steps.iter_mut().enumerate() {
        step.ms *= noise + (place * 31 % 7) as f64 / 200.0;
        step.loss += (cell / 7) as f64 * 1e-3;
    }
    let plan = |mib: u64| Bytes {
        predicted_bytes: Some(mib << 20),
        peak_bytes: Some((mib << 20) + cell as u64 % 3),
        at_peak_bytes: Some(mib << 20),
        extra: Extra::new(),
    };
    for (place, category) in Category::ALL.into_iter().enumerate() {
        record.memory.set(category, plan(20 + ((cell + place) % 50) as u64));
    }
    for span in ["recompute", "exposed_reduce", "exposed_agree", "optimizer", "data", "other"] {
        record.time.set(span, noise);
    }
    for kind in ["reduce_scatter", "all_reduce"] {
        let like = record.communication[0].clone();
        record.communication.push(Communication { kind: kind.into(), ..like });
    }
    record.parity.reference = Some(format!("{:012x}", (cell % 7 * 100_000) as u64));
    record.notes = vec![format!("The peak of the cores moved from {noise:.1} to 2.0 GFLOP/s.")];
    record
}

/// Cells of so many trials each, in the order in which a grid measures them.
pub fn many(trials: usize) -> Vec<Record> {
    let cells = *MANY / trials;
    (0..trials).flat_map(|trial| (0..cells).map(move |cell| record(cell, trial))).collect()
}

/// One record of so many steps.
pub fn long() -> Record {
    let mut record = record(0, 0);
    let first = record.steps[1].clone();
    let step = |step: u64| Step {
        step,
        ms: first.ms + (step * 31 % 17) as f64,
        loss: 7.0 - (step as f64).ln() / 3.0,
        ..first.clone()
    };
    record.steps = (1..=*MANY as u64).map(step).collect();
    record
}

#[test]
fn a_page_of_ten_thousand_records_is_below_five_megabytes() {
    for (what, records) in [
        ("cells of 3 trials", many(3)),
        ("cells of one trial", many(1)),
        ("one cell", many(*MANY)),
        ("one record of many steps", vec![long()]),
    ] {
        let page = html::render(&comparison(&records, Some("How large?")));
        assert!(page.len() < LIMIT, "{what}: {} bytes", page.len());
        assert!(page.contains("<figure") && page.len() > 20_000, "{what}: {} bytes", page.len());
        super::xml::read(&page).unwrap();
    }
}
