//! What a reader is told: plans of cells that did not run, labels, trials set aside, shared cores, order of rows.

use serde_json::json;
use zbench_reports::document::Block;
use zbench_reports::grid_report::comparison;
use zbench_reports::record::*;
use zbench_reports::render::{markdown, terminal};
use zbench_reports::{Document, Record};

use super::comparison::{column, table, text};
use super::grid;

const GIB: u64 = 1 << 30;

/// A skipped cell with a plan: GiB of parameters, gradients, optimizer and activations of a rank, and a capacity of 80.
fn planned(strategy: &str, gradients: &str, checkpointing: &str, parts: [u64; 4], advice: &str) -> Record {
    let name = format!("{strategy}-{gradients}-{checkpointing}");
    let outcome = Outcome::ended(Status::Skipped, "needs 16 GPUs", Some(Source::Host));
    let mut record = Record::new(format!("{name}-id-of-the-trial"), format!("{name}-key"), "plan", outcome);
    record.cell = json!({
        "parallel": {"strategy": strategy, "ranks": 16, "shard": (strategy == "hsdp").then_some(8)},
        "precision": {"gradients": gradients},
        "memory": {"checkpointing": checkpointing, "capacity": 80 * GIB},
    });
    let categories = [Category::Parameters, Category::Gradients, Category::Optimizer, Category::Activations];
    for (category, gib) in categories.into_iter().zip(parts) {
        record.memory.set(category, Bytes { predicted_bytes: Some(gib * GIB), ..Bytes::default() });
    }
    let total = parts.iter().sum::<u64>() * GIB;
    record.memory.total = Some(Bytes { predicted_bytes: Some(total), ..Bytes::default() });
    record.estimate = json!({
        "label": "", "key": "", "status": "skipped", "total_bytes": total, "capacity_bytes": 80 * GIB, "advice": advice,
    });
    // As many parameters as 8 GiB hold at 2 bytes, on each of 16 ranks.
    for name in ["parameters", "trainable_parameters"] {
        record.extra.insert(name.into(), (8 * GIB / 2 * 16).into());
    }
    if !advice.is_empty() {
        record.notes.push(format!("Cheapest change that makes it fit: {advice}."));
    }
    record
}

fn plans() -> Vec<Record> {
    vec![
        planned("fsdp", "bf16", "full", [8, 8, 48, 6], ""),
        planned("fsdp", "f32", "full", [8, 16, 48, 6], ""),
        planned("fsdp", "f32", "none", [8, 16, 48, 30], "memory.checkpointing = \"full\""),
        planned("hsdp", "f32", "full", [16, 32, 96, 6], "parallel.strategy = \"fsdp\""),
        planned("ddp", "f32", "full", [70, 70, 70, 6], ""),
    ]
}

fn answer_of(document: &Document) -> String {
    let is_heading = |block: &&Block| matches!(block, Block::Heading { text, .. } if text != "Answer");
    let end = document.blocks.iter().position(|block| is_heading(&block)).unwrap();
    markdown::render(&Document { blocks: document.blocks[..end].to_vec(), ..Document::default() })
}

#[test]
fn a_grid_that_did_not_run_is_answered_for_by_its_plan() {
    let document = comparison(&plans(), Some("Which fits?"));
    let said = answer_of(&document);
    for part in [
        "Nothing was measured. By the plan, 2 of 5 cells fit into the 80.0 GiB of a rank: ",
        "fsdp, gradients=bf16, checkpointing=full (70.0 GiB, 87.5 % of it); ",
        "Only barely, above 95 %: fsdp, gradients=f32, checkpointing=full.",
        "fsdp fits in 2 of 3 cells, hsdp fits in none of 1 cell and ddp fits in none of 1 cell.",
        // (8 + 8 + 48) GiB over 4 Gi parameters of a rank.
        "fsdp, sharded over 16 ranks: 64.0 GiB with gradients=bf16 (16.0 bytes for each parameter); \
         72.0 GiB with gradients=f32 (18.0 bytes for each parameter).",
        "hsdp, sharded over 8 ranks: 144 GiB (18.0 bytes for each parameter), more than a rank has.",
        "fsdp, gradients=f32, checkpointing=none: 22.0 GiB too much (102 GiB of 80.0 GiB). Against fsdp, gradients=f32, \
         checkpointing=full: activations 30.0 GiB (+24.0 GiB). Cheapest change: memory.checkpointing = \"full\".",
        "Its optimizer alone takes 96.0 GiB. Cheapest change: parallel.strategy = \"fsdp\".",
        "Model state alone takes 210 GiB, 70.0 GiB of it parameters.",
    ] {
        assert!(said.replace('\\', "").contains(part), "{part}\n\n{said}");
    }
    assert_eq!(column(&document, "plan", "fits"), ["yes", "barely", "no", "no", "no"]);
    assert_eq!(column(&document, "plan", "spare or too much")[0], "10.0 GiB to spare");
    assert!(!text(&document).contains("Notes of the records"), "advice is said once");
}

#[test]
fn bytes_per_parameter_are_not_said_of_adapters_or_partial_shards() {
    let mut records = plans();
    records.truncate(2);
    records[0].cell["parallel"]["strategy"] = "zero2".into();
    records[1].extra.insert("trainable_parameters".into(), 1.into());
    let said = answer_of(&comparison(&records, None));
    assert!(said.contains("zero2: 64.0 GiB.") && said.contains("fsdp, sharded over 16 ranks: 72.0 GiB."), "{said}");
}

#[test]
fn a_plan_beside_measured_cells_is_shown_where_its_capacity_is_known() {
    let mut records = grid::records();
    assert!(table(&comparison(&records, None), "plan").is_none(), "no capacity is stated");
    for record in records.iter_mut().filter(|record| !record.is_measured()) {
        record.cell["memory"]["capacity"] = (512u64 << 20).into();
    }
    let said = text(&comparison(&records, None));
    assert!(
        said.contains("By the plan of the cells that did not run, none of 2 cells fits into the 512 MiB"),
        "{said}"
    );
    assert!(said.contains("128 MiB too much (640 MiB of 512 MiB)"), "{said}");
}

fn with_lora(records: &mut [Record], ranks: &[u64]) {
    for (record, &rank) in records.iter_mut().zip(ranks) {
        record.cell["lora"] = json!({"rank": rank, "targets": if rank > 0 { json!(["q_proj"]) } else { json!([]) }});
    }
}

#[test]
fn labels_name_lora_in_full_and_only_where_there_is_an_adapter() {
    let mut records: Vec<Record> = [0, 0, 3].iter().map(|&spec| grid::trial(&grid::specs()[spec], 1)).collect();
    records[1].key = "another".into();
    with_lora(&mut records, &[0, 8, 0]);
    let mut labels = column(&comparison(&records, None), "repeat", "cell");
    labels.sort();
    assert_eq!(labels, ["ddp", "ddp, lora.rank=8", "zero3"]);

    // Two cells that differ in a key of an adapter that neither has are still told apart.
    with_lora(&mut records, &[0, 0, 0]);
    records[1].cell["lora"]["alpha"] = 16.into();
    let mut labels = column(&comparison(&records, None), "repeat", "cell");
    labels.sort();
    assert_eq!(labels, ["ddp, lora.alpha=16", "ddp, lora.alpha=unset", "zero3"]);
}

#[test]
fn a_name_that_two_keys_share_is_given_in_full() {
    let mut records: Vec<Record> = [0, 0].iter().map(|&spec| grid::trial(&grid::specs()[spec], 1)).collect();
    records[1].key = "another".into();
    for (record, optimizer) in records.iter_mut().zip(["f32", "bf16"]) {
        record.cell["precision"] = json!({"optimizer": optimizer});
        record.cell["train"]["optimizer"] = "adamw".into();
    }
    let mut labels = column(&comparison(&records, None), "repeat", "cell");
    labels.sort();
    assert_eq!(labels, ["precision.optimizer=bf16", "precision.optimizer=f32"]);
}

#[test]
fn full_fine_tunes_and_adapter_runs_are_answered_for_apart() {
    let cells = [0, 1, 3, 4, 0, 1, 3, 4];
    let mut records: Vec<Record> = Vec::new();
    for (place, &spec) in cells.iter().enumerate() {
        let mut specs = grid::specs();
        specs[spec].ms[1] = specs[spec].ms[0];
        records.push(grid::trial(&specs[spec], 1 + place as u32 / 4));
    }
    with_lora(&mut records, &[0, 0, 8, 8, 0, 0, 8, 8]);
    let said = answer_of(&comparison(&records, None));
    assert!(said.contains("ddp, checkpointing=none is the fastest of 2 full fine-tunes: 20,480 tokens/s"), "{said}");
    assert!(said.contains("zero3, checkpointing=none is the fastest of 2 adapter runs: 17,067"), "{said}");
    assert!(said.contains("What each strategy costs in full fine-tuning") && !said.contains("- zero3:"), "{said}");
}

#[test]
fn the_share_that_trains_is_shown_where_cells_differ_in_it() {
    let mut records: Vec<Record> = [0, 1, 3].iter().map(|&spec| grid::trial(&grid::specs()[spec], 1)).collect();
    let shown = |records: &[Record]| {
        let document = comparison(records, None);
        let cells = table(&document, "cells").unwrap();
        cells.columns.iter().any(|column| column.title == "trainable").then(|| column(&document, "cells", "trainable"))
    };
    assert_eq!(shown(&records), None);
    for (record, trains) in records.iter_mut().zip([2000, 2000, 25]) {
        record.extra.insert("parameters".into(), 2000.into());
        record.extra.insert("trainable_parameters".into(), trains.into());
    }
    with_lora(&mut records, &[0, 0, 8]);
    let mut shares = shown(&records).unwrap();
    shares.sort();
    assert_eq!(shares, ["1.25 %", "100 %", "100 %"]);
    // Nothing to tell where all train the same share.
    records.iter_mut().for_each(|record| drop(record.extra.insert("trainable_parameters".into(), 25.into())));
    assert_eq!(shown(&records), None);
}

#[test]
fn trials_set_aside_are_counted_with_their_reason() {
    let mut records = grid::records();
    for record in records.iter_mut().filter(|record| record.key.starts_with("ddpnone1") && record.trial > 1) {
        record.validity.push("busy_machine".into());
    }
    let said = answer_of(&comparison(&records, None)).replace('\\', "");
    assert!(
        said.contains(
            "The numbers rest on 19 of 21 measured trials; 2 were set aside: other processes used the cores \
             (busy_machine) in 2 trials. 1 of 7 measured cells has only one valid trial and is not ranked: "
        ),
        "{said}"
    );
    let lone: Vec<Record> = grid::specs()[..2].iter().map(|spec| grid::trial(spec, 1)).collect();
    let said = answer_of(&comparison(&lone, None));
    assert!(said.contains("2 of 2 measured cells have only one valid trial and are not ranked: "), "{said}");
    assert!(said.contains("No cell is ranked"), "{said}");
    assert!(!answer_of(&comparison(&grid::records(), None)).contains("one valid trial"), "three trials each");
}

#[test]
fn rows_follow_the_medians_and_wide_intervals_are_named() {
    let mut specs = grid::specs();
    specs.truncate(4);
    specs[0].ms = [100.0, 100.5, 101.0];
    specs[1].ms = [110.0, 110.5, 111.0];
    // One trial as fast as the best, the others slower than all.
    specs[2].ms = [99.0, 150.0, 151.0];
    // Slower than the second, but one trial is as fast.
    specs[3].ms = [110.4, 112.0, 113.0];
    let records: Vec<Record> = specs.iter().flat_map(|spec| (1..=3).map(|number| grid::trial(spec, number))).collect();
    let document = comparison(&records, None);
    assert_eq!(column(&document, "cells", "place"), ["1=", "3=", "3=", "1="]);
    assert!(column(&document, "cells", "cell")[3].starts_with("ddp, accumulation=4"));
    let said = text(&document);
    assert!(said.contains("Rows are in the order of the medians."), "{said}");
    assert!(said.contains("1 cell has its rank from a wide interval"), "{said}");
    assert!(!said.contains("Intervals that reach the median"), "{said}");

    // The middle of three groups reaches the median of a cell in the first that is not its best.
    let mut specs = grid::specs();
    specs.truncate(3);
    specs[0].ms = [100.0, 100.1, 100.2];
    specs[1].ms = [101.4, 101.9, 102.4];
    specs[2].ms = [102.6, 103.0, 103.4];
    let records: Vec<Record> = specs.iter().flat_map(|spec| (1..=3).map(|number| grid::trial(spec, number))).collect();
    let document = comparison(&records, None);
    assert_eq!(column(&document, "cells", "place"), ["1=", "1=", "3"]);
    let said = text(&document);
    assert!(said.contains("in a better rank, so that this order is not shown either: accumulation=4"), "{said}");
    assert!(said.contains("(rank 3, into 1=)"), "{said}");
}

#[test]
fn ranks_that_share_cores_are_said_once() {
    let mut records = grid::records();
    let said = text(&comparison(&records, None));
    assert!(!said.contains("share cores"), "the number of cores is not stated: {said}");
    for record in &mut records {
        record.environment.insert("cores".into(), 4.into());
    }
    assert!(!text(&comparison(&records, None)).contains("share cores"), "one core for each of 4 ranks");
    for record in &mut records {
        record.cell["hardware"] = json!({"device": "cpu", "threads_per_rank": 2});
    }
    let said = text(&comparison(&records, None));
    assert_eq!(said.matches("Ranks share cores (up to 4 ranks of 2 threads on 4 cores)").count(), 1, "{said}");
    // Two hosts with two ranks each have enough.
    for record in &mut records {
        record.ranks = (0..4)
            .map(|rank| {
                serde_json::from_value(json!({"rank": rank, "host": if rank < 2 { "a" } else { "b" }})).unwrap()
            })
            .collect();
    }
    assert!(!text(&comparison(&records, None)).contains("share cores"));
}

#[test]
fn one_command_is_said_once_and_several_are_grouped() {
    let mut records = grid::records();
    let document = comparison(&records, None);
    assert!(table(&document, "made by").is_none());
    assert!(document.blocks.contains(&Block::Code("zbench grid configs/synthetic.toml".into())));
    records[0].command = "zbench run a.toml".into();
    records[1].command = String::new();
    let document = comparison(&records, None);
    assert_eq!(
        column(&document, "made by", "made by"),
        ["zbench run a.toml", "not recorded", "zbench grid configs/synthetic.toml"]
    );
    assert_eq!(column(&document, "made by", "records"), ["1", "1", "21"]);
}

#[test]
fn remarks_that_differ_in_numbers_alone_are_told_once() {
    let mut records = grid::records();
    for (number, record) in records.iter_mut().enumerate().take(3) {
        record.notes.push(format!("Others used {}.5 % of the cores.", 40 + number));
    }
    let said = text(&comparison(&records, None));
    assert_eq!(said.matches("Others used").count(), 1, "{said}");
    assert!(said.contains("% of the cores. (3 records, their numbers differ)"), "{said}");
}

#[test]
fn the_essentials_stand_together_on_a_terminal_of_120_columns() {
    // Some hundred thousand tokens per second: wider numbers than most.
    let mut records = grid::records();
    for step in records.iter_mut().flat_map(|record| &mut record.steps) {
        step.tokens *= 10;
    }
    let document = comparison(&records, None);
    let shown = terminal::render(&document, terminal::Terminal { width: 120, color: false });
    let from = shown.find("Cells\n").unwrap();
    let head: String = shown[from..].split('╞').next().unwrap().to_string();
    let words = ["cell", "place", "tokens/s", "95 % interval", "reference", "memory", "wire", "loss parity"];
    assert!(words.iter().all(|word| head.contains(word)), "{head}");
    assert!(shown.lines().all(|line| line.chars().count() <= 120), "{shown}");
}
