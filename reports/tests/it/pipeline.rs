//! What reports say of the stages of pipelines.

use super::grid::{Spec, trial};
use super::xml;
use serde_json::json;
use zbench_reports::Record;
use zbench_reports::document::Document;
use zbench_reports::grid_report::comparison;
use zbench_reports::plot::{Figure, Plot, svg};
use zbench_reports::record::*;
use zbench_reports::render::{csv, markdown};

/// Two stages whose passes of one micro-batch take 2 ms forward and 4 ms backward; with `"zb-h1"` half of that for the input.
fn staged(schedule: &str, ms: f64) -> Vec<Record> {
    let spec = Spec {
        strategy: "ddp",
        checkpointing: "none",
        accumulation: 1,
        ms: [ms, ms + 1.0, ms + 2.0],
        peak_mib: 100,
        wire_mb: 1.0,
        verdict: Verdict::Identical,
    };
    let passes = match schedule {
        "zb-h1" => [
            json!([["F", 0, 0.0, 2.0], ["I", 0, 6.0, 8.0], ["W", 0, 8.0, 10.0]]),
            json!([["F", 0, 2.0, 4.0], ["I", 0, 4.0, 6.0], ["W", 0, 6.0, 8.0]]),
        ],
        _ => [json!([["F", 0, 0.0, 2.0], ["B", 0, 8.0, 12.0]]), json!([["F", 0, 2.0, 4.0], ["B", 0, 4.0, 8.0]])],
    };
    let record = |number: u32| {
        let mut record = trial(&spec, number);
        record.key += schedule;
        record.id += schedule;
        record.cell["parallel"]["pipeline"] = 2.into();
        record.cell["parallel"]["pipeline_schedule"] = schedule.into();
        record.cell["parallel"]["virtual_stages"] = 1.into();
        record.estimate = json!({ "bubble": 0.25, "pipeline_ms": 11.5 });
        record.state("bubble", 0.3);
        record.state("pipeline_ms", 12.0);
        let stage = |stage: usize| {
            json!({
                "stage": stage, "passes": passes[stage],
                "activations": { "predicted_bytes": (4 - stage) << 20, "peak_bytes": 4 << 20, "at_peak_bytes": 4 << 20 },
            })
        };
        record.stages = [0, 1].map(|number| serde_json::from_value(stage(number)).unwrap()).to_vec();
        record
    };
    (1..=3).map(record).collect()
}

fn report() -> Document {
    comparison(&[staged("1f1b", 12.0), staged("zb-h1", 10.0)].concat(), None)
}

fn timelines(document: &Document) -> Option<&Figure> {
    document.figures().find(|figure| figure.name == "timelines")
}

#[test]
fn every_schedule_has_a_timeline_of_its_stages() {
    let document = report();
    let figure = timelines(&document).unwrap();
    let Plot::Timelines(plot) = &figure.plot else { panic!() };
    assert_eq!(plot.kinds, ["forward", "backward", "backward, input", "backward, weights"]);
    let ends: Vec<f64> = plot.panels.iter().map(|panel| panel.end()).collect();
    assert_eq!(ends, [10.0, 12.0], "the fastest first");
    assert!(figure.caption.starts_with("zb-h1 is done after 10.0 ms, 1f1b after 12.0 ms."), "{}", figure.caption);
    let lanes: Vec<&str> = plot.panels[0].lanes.iter().map(|lane| lane.label.as_str()).collect();
    assert_eq!(lanes, ["stage 0", "stage 1"]);
    let drawn = svg::file(figure);
    xml::read(&drawn).unwrap();
    // Ten passes, beside four in the legend: two forward and two backward, two forward and two of each part.
    let count = |class: &str| drawn.matches(&format!("<rect class=\"{class}")).count();
    assert_eq!([count("f0 e"), count("f1 e"), count("f4 e"), count("f2 e")], [4, 2, 2, 2]);
    assert!(drawn.contains("50.0 % idle"), "6 of 12 ms: {drawn}");
    let table = figure.data();
    assert_eq!(table.rows.len(), 10);
    // A record of a run without stages has none.
    assert!(timelines(&comparison(&super::grid::records(), None)).is_none());
}

#[test]
fn the_table_of_stages_has_bubble_and_activations_beside_the_plan() {
    let document = report();
    let text = markdown::render(&document);
    for words in ["30.0 %", "25.0 %", "12.0 ms", "11.5 ms", "4.00 MiB, 4.00 MiB (plan 4.00 MiB, 3.00 MiB)"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = csv::render(&document);
    for title in ["bubble (fraction)", "\"activations, stage 1, plan (bytes)\""] {
        assert!(text.contains(title), "{title}: {text}");
    }
    let cells = document.tables().find(|table| table.name == "cells").unwrap();
    let place = cells.columns.iter().position(|column| column.title == "bubble").unwrap();
    assert_eq!(cells.rows[0][place].value, json!(0.3));
    let plain = comparison(&super::grid::records(), None);
    assert!(plain.tables().all(|table| table.columns.iter().all(|column| column.title != "bubble")));
}

#[test]
fn stages_come_back_from_a_file_as_they_were() {
    let record = staged("zb-h1", 10.0).remove(0);
    let back: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    assert_eq!(back, record);
    assert_eq!(back.stages[1].passes[2], StagePass(PassKind::BackwardWeight, 0, 6.0, 8.0));
}
