//! Which cells have to agree with their reference to the bit is said, and whether they do.

use super::grid::{Spec, trial};
use serde_json::json;
use zbench_reports::Record;
use zbench_reports::grid_report::comparison;
use zbench_reports::record::Verdict;
use zbench_reports::render::terminal::{Terminal, render};

/// A cell of 6 ranks in f32, compared with the ddp cell of the same accumulation.
fn cell(strategy: &'static str, ranks: u64, accumulation: u64, verdict: Verdict) -> Record {
    let spec =
        Spec { strategy, checkpointing: "none", accumulation, ms: [10.0; 3], peak_mib: 8, wire_mb: 1.0, verdict };
    let mut record = trial(&spec, 1);
    record.cell["parallel"]["ranks"] = ranks.into();
    let f32s =
        ["parameters", "compute", "gradients", "reduce", "optimizer"].map(|kind| (kind.to_string(), json!("f32")));
    record.cell["precision"] = f32s.into_iter().collect::<serde_json::Map<_, _>>().into();
    record.parity.verdict = verdict;
    record.parity.reference = Some(format!("ddpn{accumulation}1-id-of-the-trial"));
    record
}

fn said(records: &[Record]) -> String {
    let text = render(&comparison(records, None), Terminal { width: 10_000, color: false });
    let line = text.lines().find(|line| line.contains("Loss parity:"));
    line.unwrap_or_else(|| panic!("no sentence in {text}")).to_string()
}

#[test]
fn an_hsdp_cell_of_six_ranks_is_named_as_one_that_need_not_agree() {
    let records = [
        cell("ddp", 6, 1, Verdict::Reference),
        cell("zero3", 6, 1, Verdict::Identical),
        cell("zero1", 6, 1, Verdict::Identical),
        cell("hsdp", 6, 1, Verdict::WithinTolerance),
    ];
    let said = said(&records);
    assert!(said.contains("Both cells that have to agree to the bit do."), "{said}");
    assert!(said.contains("1 cell need not agree to the bit, because its sums") && said.contains("(hsdp)"), "{said}");
}

#[test]
fn a_cell_that_has_to_agree_and_does_not_is_an_error() {
    let broken = [
        cell("ddp", 8, 1, Verdict::Reference),
        cell("zero3", 8, 1, Verdict::Identical),
        cell("hsdp", 8, 1, Verdict::WithinTolerance),
    ];
    let said = said(&broken);
    assert!(said.contains("Of 2 cells that have to agree to the bit, 1 does not (hsdp): an error"), "{said}");
    assert!(!said.contains("is not asked"), "{said}");
}

#[test]
fn accumulation_rounding_kernels_libraries_and_another_division_free_a_cell() {
    let with = |change: fn(&mut Record)| {
        let mut other = cell("zero3", 4, 1, Verdict::Identical);
        change(&mut other);
        said(&[cell("ddp", 4, 1, Verdict::Reference), other])
    };
    assert!(with(|_| {}).contains("The cell that has to agree to the bit does."));
    let changes: [fn(&mut Record); 6] = [
        |record| record.cell["precision"]["reduce"] = "bf16".into(),
        |record| record.cell["memory"]["attention"] = "naive".into(),
        |record| record.cell["hardware"] = json!({"threads_per_rank": 2}),
        |record| record.cell["parallel"]["backend"] = "mpi".into(),
        |record| record.cell["parallel"]["ranks"] = 8.into(),
        |record| record.cell["train"]["micro_batch"] = 16.into(),
    ];
    for change in changes {
        let said = with(change);
        assert!(
            said.contains("1 cell need not agree to the bit, because its sums") && said.contains("; 1 of them agrees"),
            "{said}"
        );
    }
    let several = [
        cell("ddp", 4, 2, Verdict::Reference),
        cell("zero1", 4, 2, Verdict::Identical),
        cell("zero2", 4, 2, Verdict::WithinTolerance),
    ];
    let said = said(&several);
    assert!(said.contains("The cell that has to agree to the bit does.") && said.contains("(zero2)"), "{said}");
}
