//! The table of precision policies: which numbers stand in it, and when it is not there.

use serde_json::{Value, json};
use zbench_reports::Record;
use zbench_reports::document::Document;
use zbench_reports::grid_report::comparison;
use zbench_reports::record::*;

use super::comparison::{column, table};
use super::grid::{self, Spec};

const PARAMETERS: u64 = 1 << 20;

fn types(parameters: &str, compute: &str, master: Option<&str>) -> Value {
    let mut types = json!({
        "parameters": parameters, "compute": compute, "gradients": compute, "reduce": compute, "optimizer": compute,
    });
    if let Some(master) = master {
        types["master"] = master.into();
        types["optimizer"] = master.into();
    }
    types
}

/// A cell of 4 ranks, 2 to a shard group, whose losses are `off` nats from 5.5, 5.4, ….
fn cell(strategy: &'static str, precision: Value, off: f64, bytes: [u64; 3]) -> Record {
    let spec = Spec {
        strategy,
        checkpointing: "none",
        accumulation: 1,
        ms: [100.0; 3],
        peak_mib: 64,
        wire_mb: 1.0,
        verdict: Verdict::None,
    };
    let mut record = grid::trial(&spec, 1);
    record.key = format!("{strategy} {precision}");
    record.id = format!("{:.12}", blake(&record.key));
    record.cell["precision"] = precision;
    record.cell["model"]["num_hidden_layers"] = 2.into();
    record.cell["parallel"]["shard"] = 2.into();
    record.extra.insert("parameters".into(), PARAMETERS.into());
    for step in &mut record.steps {
        step.loss += off * (1.0 - 0.1 * step.step as f64);
    }
    for (category, bytes) in [Category::Parameters, Category::Gradients, Category::Optimizer].into_iter().zip(bytes) {
        let bytes = Bytes { peak_bytes: Some(bytes * PARAMETERS), ..Bytes::default() };
        record.memory.set(category, bytes);
    }
    record
}

/// Some text of twelve digits that differs where keys do.
fn blake(text: &str) -> String {
    let sum =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{sum:016x}")
}

fn f32_cell(strategy: &'static str) -> Record {
    cell(strategy, types("f32", "f32", None), 0.0, [4, 4, 8])
}

fn of(document: &Document, title: &str, policy: &str) -> String {
    let place = column(document, "precision", "policy").iter().position(|name| name == policy).expect(policy);
    column(document, "precision", title)[place].clone()
}

#[test]
fn it_is_there_where_cells_differ_in_precision_alone_or_too() {
    let document = comparison(&[f32_cell("ddp"), f32_cell("zero3")], None);
    assert!(table(&document, "precision").is_none());
    let document = comparison(&grid::records(), None);
    assert!(table(&document, "precision").is_none(), "records without precision");
    let document = comparison(&[f32_cell("ddp"), cell("ddp", types("bf16", "bf16", None), 0.0, [2, 2, 4])], None);
    assert_eq!(table(&document, "precision").unwrap().rows.len(), 2);
}

/// Two blocks: 8 units of 2^-8 of the first loss in mixed precision, 4 more where 16-bit weights are updated.
#[test]
fn losses_are_held_against_the_band() {
    let mixed = types("bf16", "bf16", Some("f32"));
    let pure = types("bf16", "bf16", None);
    let band = |units: f64| (20f64.sqrt() + units) / 256.0 * 5.5;
    for (precision, band, policy) in [(mixed, band(3.5), "bf16"), (pure, band(7.5), "bf16")] {
        for (off, within) in [
            (band * 0.99, "yes"),
            (-band * 0.99, "yes"),
            (band * 1.01, "no"),
            (f64::NAN, "no f32 cell of the same, finite steps"),
        ] {
            let document = comparison(&[f32_cell("ddp"), cell("ddp", precision.clone(), off, [2, 2, 12])], None);
            assert_eq!(of(&document, "within", policy), within, "{off}");
            if !off.is_nan() {
                assert_eq!(of(&document, "largest loss difference", policy), format!("{:.4}", off.abs()));
                assert_eq!(of(&document, "last", policy), format!("{:.4}", off.abs() * 0.5));
                assert_eq!(of(&document, "band", policy), format!("{band:.4}"));
            }
            assert_eq!(of(&document, "within", "f32"), "the reference");
        }
    }
}

#[test]
fn the_reference_is_alike_in_all_else_and_has_the_same_steps() {
    let low = || cell("zero3", types("bf16", "bf16", None), 0.0, [2, 2, 4]);
    let document = comparison(&[f32_cell("ddp"), low()], None);
    assert_eq!(of(&document, "within", "bf16"), "no f32 cell of the same, finite steps");
    let mut shorter = f32_cell("zero3");
    shorter.steps.pop();
    let document = comparison(&[shorter, low()], None);
    assert_eq!(of(&document, "within", "bf16"), "no f32 cell of the same, finite steps");
    let document = comparison(&[f32_cell("zero3"), low()], None);
    assert_eq!(of(&document, "within", "bf16"), "yes");
}

/// A largest rank's peaks, times the ranks that share what the category holds: 4 ranks, shard groups of 2.
#[test]
fn measured_bytes_are_added_up_over_the_ranks_that_share_them() {
    for (strategy, bytes) in [
        ("ddp", 1 + 2 + 4),
        ("zero1", 1 + 2 + 16),
        ("zero2", 1 + 8 + 16),
        ("zero3", 4 + 8 + 16),
        ("fsdp-grad-op", 4 + 8 + 16),
        ("hsdp", 2 + 4 + 8),
        ("hsdp-full-optimizer", 2 + 4 + 16),
    ] {
        let low = cell(strategy, types("bf16", "bf16", Some("f32")), 0.0, [1, 2, 4]);
        let document = comparison(&[f32_cell(strategy), low], None);
        assert_eq!(of(&document, "measured", "bf16"), format!("{bytes}.00"), "{strategy}");
        assert_eq!(of(&document, "bytes per parameter", "bf16"), "16", "{strategy}");
    }
}

#[test]
fn skipped_steps_and_names_are_told_and_adapters_have_no_stated_bytes() {
    let mut low = cell("ddp", types("f16", "f16", Some("f32")), 0.0, [2, 2, 12]);
    low.cell["precision"]["scaling"] = json!({"static": 128.0});
    low.cell["precision"]["load"] = "f16".into();
    low.extra.insert("precision_policy".into(), "mine".into());
    low.state("skipped_steps", 3.0);
    low.state("loss_scale_last", 128.0);
    let mut reference = f32_cell("ddp");
    let document = comparison(&[reference.clone(), low.clone()], None);
    let told = |title: &str| of(&document, title, "mine");
    let types = ["loading", "mixed precision", "preparation", "training", "optimizer"].map(told);
    assert_eq!(types, ["f16", "f16", "f32", "f16", "f32"]);
    assert_eq!((told("skipped steps"), told("last loss scale")), ("3".into(), "128".into()));
    assert_eq!(of(&document, "skipped steps", "f32"), "-");
    low.steps.iter_mut().for_each(|step| step.loss += 0.5);
    let document = comparison(&[reference.clone(), low.clone()], None);
    assert_eq!(of(&document, "within", "mine"), "no: 3 steps skipped");
    for record in [&mut reference, &mut low] {
        record.cell["lora"] = json!({"rank": 4});
    }
    let document = comparison(&[reference, low], None);
    assert_eq!(of(&document, "bytes per parameter", "mine"), "-");
}
