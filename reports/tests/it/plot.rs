//! Scales, ticks, and figures of records whose numbers a reader can check by hand.

use proptest::prelude::*;
use zbench_reports::document::{Block, Document, Tone};
use zbench_reports::grid_report::comparison;
use zbench_reports::plot::scale::{Range, Scale, step_for};
use zbench_reports::plot::{Axis, Figure, MOST_LINES, MOST_POINTS, MOST_ROWS, Plot, Unit, svg};
use zbench_reports::record::*;
use zbench_reports::render::csv;

use super::any::number;
use super::{grid, xml};

fn texts(scale: &Scale) -> Vec<&str> {
    scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
}

fn scale(axis: &Axis, values: &[f64], range: Range) -> Scale {
    Scale::new(axis, values.iter().copied(), range, 5, 0.0, 100.0)
}

#[test]
fn steps_are_one_two_or_five_times_a_power_of_ten() {
    let steps = [(0.0, 10.0, 5), (0.0, 7.0, 5), (0.0, 1.0, 5), (-3.0, 12.0, 5), (0.0, 0.013, 4), (0.0, 26_000.0, 6)];
    assert_eq!(steps.map(|(low, high, most)| step_for(low, high, most)), [2.0, 2.0, 0.2, 5.0, 0.005, 5000.0]);
}

#[test]
fn ticks_share_the_unit_of_the_largest_number() {
    let speed = scale(&Axis::linear("speed", Unit::TokensPerSecond), &[13_000.0, 22_505.0], Range::FromZero);
    assert_eq!(texts(&speed), ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]);
    assert_eq!(speed.title, "speed (tokens/s)");
    let memory = scale(&Axis::linear("memory", Unit::Memory), &[20.0 * 1048576.0], Range::FromZero);
    assert_eq!((texts(&memory), memory.title.as_str()), (vec!["0", "5", "10", "15", "20"], "memory (MiB)"));
    assert_eq!(memory.place(10.0 * 1048576.0), 50.0);
    let share = scale(&Axis::linear("MFU", Unit::Fraction), &[0.31, 0.44], Range::Around);
    assert_eq!((texts(&share), share.title.as_str()), (vec!["30", "35", "40", "45"], "MFU (%)"));
    let small = scale(&Axis::linear("t", Unit::Milliseconds), &[0.012], Range::FromZero);
    assert_eq!(texts(&small), ["0.000", "0.005", "0.010", "0.015"]);
}

#[test]
fn a_range_begins_at_zero_where_values_come_near_it() {
    let axis = Axis::linear("x", Unit::Plain);
    assert_eq!(scale(&axis, &[40.0, 100.0], Range::Around).low, 0.0);
    assert_eq!(scale(&axis, &[90.0, 100.0], Range::Around).low, 90.0);
    assert_eq!(scale(&axis, &[90.0, 100.0], Range::FromZero).low, 0.0);
    assert_eq!(scale(&axis, &[2.0, 9.0], Range::Close).low, 2.0);
    // One value gets room on both sides.
    let lone = scale(&axis, &[100.0], Range::Close);
    assert!(lone.low < 100.0 && lone.high > 100.0);
    assert_eq!(texts(&scale(&axis, &[], Range::Around)).len(), 6, "nothing has the range of one");
}

#[test]
fn logarithmic_ticks_are_powers() {
    let sizes = Axis::logarithmic("size", Unit::Memory);
    let scale = Scale::new(&sizes, [8.0, 134_217_728.0].into_iter(), Range::Around, 8, 0.0, 100.0);
    assert_eq!(texts(&scale), ["32 B", "1 KiB", "32 KiB", "1 MiB", "32 MiB"]);
    let traffic = Axis::logarithmic("wire", Unit::Traffic);
    let scale = Scale::new(&traffic, [200.0, 6e6].into_iter(), Range::Around, 8, 0.0, 100.0);
    assert_eq!(texts(&scale), ["1 kB", "10 kB", "100 kB", "1 MB", "10 MB"]);
    let middle = scale.place((scale.low * scale.high).sqrt());
    assert!((middle - 50.0).abs() < 1e-9, "equal ratios are equal distances: {middle}");
    // What is not positive has no place and is at the lower end.
    assert_eq!(scale.place(0.0), 0.0);
    let narrow = Scale::new(&traffic, [2e6, 3e6].into_iter(), Range::Around, 5, 0.0, 100.0);
    assert!(narrow.ticks.len() >= 2, "{:?}", narrow.ticks);
}

proptest! {
    #[test]
    fn a_scale_holds_its_values(values in proptest::collection::vec(number(), 0..20), log in any::<bool>(), most in 1usize..12) {
        let axis = Axis { title: "x".into(), unit: Unit::Memory, log };
        let values: Vec<f64> = values.into_iter().filter_map(zbench_reports::plot::drawable).collect();
        for range in [Range::FromZero, Range::Around, Range::Close] {
            let scale = Scale::new(&axis, values.iter().copied(), range, most, 10.0, 110.0);
            prop_assert!(scale.low < scale.high && scale.low.is_finite() && scale.high.is_finite(), "{} {}", scale.low, scale.high);
            prop_assert!(scale.ticks.len() <= 4 * most + 12, "{} ticks", scale.ticks.len());
            for value in &values {
                let place = scale.place(*value);
                prop_assert!((10.0..=110.0).contains(&place), "{place}");
                if !log || *value > 0.0 {
                    let slack = 1e-9 * (scale.high - scale.low).abs();
                    prop_assert!(*value >= scale.low - slack && *value <= scale.high + slack, "{value} {} {}", scale.low, scale.high);
                }
            }
        }
    }
}

fn figure<'d>(document: &'d Document, name: &str) -> &'d Figure {
    document.figures().find(|figure| figure.name == name).unwrap_or_else(|| panic!("no figure {name}"))
}

#[test]
fn a_grid_has_the_figures_its_records_have_data_for() {
    let document = comparison(&grid::records(), None);
    let names: Vec<&str> = document.figures().map(|figure| figure.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "answer",
            "speed",
            "mfu",
            "pareto",
            "memory",
            "time",
            "waterfall",
            "steps",
            "losses",
            "memory-plan",
            "wire-plan"
        ]
    );
    for figure in document.figures() {
        assert!(!figure.caption.is_empty() && !figure.records.is_empty(), "{}", figure.name);
        xml::read(&svg::file(figure)).unwrap_or_else(|error| panic!("{}: {error}", figure.name));
    }
    // Nothing ran: only the plan's memory can be drawn, and here it has no categories.
    let none = [grid::ended("zero1", Status::Skipped, Source::Host, "no GPU")];
    assert_eq!(comparison(&none, None).figures().count(), 0);
}

#[test]
fn speed_has_the_numbers_of_the_table() {
    let document = comparison(&grid::records(), None);
    let Plot::Intervals(plot) = &figure(&document, "speed").plot else { panic!() };
    assert_eq!(plot.rows.len(), 7);
    assert_eq!(plot.rows[0].label, "ddp, accumulation=4, checkpointing=none");
    assert_eq!((plot.rows[0].mid * 10.0).round(), 225_055.0, "2048 tokens in 91 ms");
    assert_eq!(plot.rows[0].tone, Tone::Good);
    assert!(plot.rows[0].low <= plot.rows[0].mid && plot.rows[0].mid <= plot.rows[0].high);
    let failed = plot.rows.iter().find(|row| row.label.starts_with("zero2")).unwrap();
    assert_eq!(failed.tone, Tone::Struck);
    assert!(figure(&document, "speed").caption.starts_with("May be the fastest: ddp, accumulation=4"));
}

#[test]
fn spans_and_categories_add_up() {
    let document = comparison(&grid::records(), None);
    let Plot::Stacks(time) = &figure(&document, "time").plot else { panic!() };
    assert_eq!(time.series, ["forward", "backward", "exposed gather"], "offload takes no time anywhere");
    for row in &time.rows {
        assert!((row.parts[0] / row.sum() - 0.3).abs() < 1e-9);
    }
    assert!(
        figure(&document, "time").caption.contains("Exposed communication takes"),
        "{}",
        figure(&document, "time").caption
    );
    let Plot::Waterfalls(falls) = &figure(&document, "waterfall").plot else { panic!() };
    assert_eq!(falls.panels.len(), 3, "one for each strategy that was measured");
    let sum: f64 = falls.panels[0].spans.iter().map(|(_, ms)| ms).sum();
    assert!((sum - 91.0).abs() < 1e-9, "mean of 90, 91 and 92: {sum}");
    let Plot::Stacks(memory) = &figure(&document, "memory").plot else { panic!() };
    assert_eq!(memory.rows[0].sum(), 300.0 * 1048576.0, "the synthetic cell states two categories: 200 and 100 MiB");
}

#[test]
fn a_capacity_is_drawn_where_it_is_near() {
    let mut records = grid::records();
    for record in &mut records {
        record.cell["memory"]["capacity"] = (512u64 << 20).into();
    }
    let document = comparison(&records, None);
    let memory = figure(&document, "memory");
    assert!(
        memory.caption.contains("Capacity of a rank (black line): 512 MiB; every bar ends below"),
        "{}",
        memory.caption
    );
    let lines = |document: &Document| svg::file(figure(document, "memory")).matches("class=\"k w\"").count();
    assert_eq!(lines(&document), 8, "seven rows and the legend");
    for record in &mut records {
        record.cell["memory"]["capacity"] = (512u64 << 30).into();
    }
    let document = comparison(&records, None);
    assert!(figure(&document, "memory").caption.contains("512 GiB, far right of the drawing"));
    assert_eq!(lines(&document), 0);
}

#[test]
fn cells_of_equal_losses_are_one_curve() {
    let mut records = grid::records();
    for record in records.iter_mut().filter(|record| record.cell["train"]["accumulation"] == 4) {
        record.steps.iter_mut().for_each(|step| step.loss += 0.25);
    }
    let document = comparison(&records, None);
    let Plot::Lines(plot) = &figure(&document, "losses").plot else { panic!() };
    let labels: Vec<&str> = plot.lines.iter().map(|line| line.label.as_str()).collect();
    // The failing cell is of the second group, and groups that fail come first.
    assert_eq!(labels, ["accumulation=4, checkpointing=none (3 cells)", "accumulation=1 (4 cells)"]);
    assert_eq!(plot.lines[1].points[0], (0.0, 5.5));
    assert_eq!(plot.lines[1].records.len(), 4);
}

#[test]
fn what_is_beaten_is_said_in_words() {
    let document = comparison(&grid::records(), None);
    let Plot::Scatter(plot) = &figure(&document, "pareto").plot else { panic!() };
    // 100 MiB: zero3 full; 200 MiB: zero3 none with 4; 400 MiB: ddp none with 4. ddp full needs 300 MiB and is slower.
    let corners: Vec<f64> = plot.front.iter().map(|(bytes, _)| bytes / 1048576.0).collect();
    assert_eq!(corners, [100.0, 200.0, 400.0]);
    let table = document.tables().find(|table| table.name == "beaten in speed and memory").unwrap();
    let row = table.rows.iter().find(|row| row[0].text.starts_with("ddp, accumulation=1, checkpointing=full")).unwrap();
    assert_eq!(row[1].text, "zero3, accumulation=4, checkpointing=none");
    assert_eq!(row[2].text, "-30 %"); // 92 / 131
    assert_eq!(row[3].text, "+50 %"); // 300 / 200
    assert_eq!(row[4].text, "slower and more memory");
    assert_eq!(table.rows.len(), 3);
}

#[test]
fn the_plan_is_told_apart_from_what_was_measured() {
    let document = comparison(&grid::records(), None);
    assert!(
        figure(&document, "memory-plan").caption.starts_with("All 14 peaks of categories"),
        "{}",
        figure(&document, "memory-plan").caption
    );
    let mut records = grid::records();
    let parameters = records[0].memory.parameters.as_mut().unwrap();
    parameters.predicted_bytes = parameters.peak_bytes.map(|bytes| bytes / 2);
    let key = records[0].key.clone();
    records.retain(|record| record.key != key || record.trial == 1);
    let document = comparison(&records, None);
    let caption = &figure(&document, "memory-plan").caption;
    assert!(
        caption.contains("13 of 14")
            && caption.contains("parameters of ddp, accumulation=1, checkpointing=none, +100 %"),
        "{caption}"
    );
}

#[test]
fn too_many_cells_are_chosen_from_and_the_caption_says_which() {
    let mut records = Vec::new();
    for cell in 0..100u64 {
        let mut record = grid::trial(&grid::specs()[0], 1);
        (record.id, record.key) = (format!("id{cell}"), format!("key{cell}"));
        record.cell["train"]["accumulation"] = cell.into();
        record.steps.iter_mut().for_each(|step| {
            step.ms *= 1.0 + cell as f64 / 50.0;
            step.loss += cell as f64;
        });
        records.push(record);
    }
    let document = comparison(&records, None);
    let speed = figure(&document, "speed");
    let Plot::Intervals(plot) = &speed.plot else { panic!() };
    assert_eq!(plot.rows.len(), MOST_ROWS);
    assert!(
        speed.caption.contains("Shown are 32 of 100 cells, the first in the order of the tables"),
        "{}",
        speed.caption
    );
    let losses = figure(&document, "losses");
    let Plot::Lines(plot) = &losses.plot else { panic!() };
    assert_eq!(plot.lines.len(), MOST_LINES);
    assert!(losses.caption.contains(&format!("Shown are {MOST_LINES} of 100 curves")), "{}", losses.caption);
}

#[test]
fn a_long_run_is_thinned_and_its_peaks_stay() {
    let mut record = grid::trial(&grid::specs()[0], 1);
    let first = record.steps[1].clone();
    record.steps = (1..=10_000)
        .map(|step| Step {
            step,
            loss: if step == 7777 { 9.0 } else { 5.0 - step as f64 * 1e-4 },
            ms: 100.0 + (step % 7) as f64,
            ..first.clone()
        })
        .collect();
    let document = comparison(&[record], None);
    let Plot::Lines(plot) = &figure(&document, "losses").plot else { panic!() };
    let points = &plot.lines[0].points;
    assert!(points.len() <= MOST_POINTS && points.contains(&(7777.0, 9.0)), "{}", points.len());
    assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(
        figure(&document, "losses").caption.contains("here up to 10000"),
        "{}",
        figure(&document, "losses").caption
    );
    let Plot::Spreads(plot) = &figure(&document, "steps").plot else { panic!() };
    assert_eq!((plot.rows[0].count, plot.rows[0].values.len()), (10_000, 200));
    assert_eq!((plot.rows[0].values[0], plot.rows[0].values[199]), (100.0, 106.0));
    assert_eq!(plot.rows[0].percentiles[2], 103.0);
}

#[test]
fn csv_has_the_data_of_every_plot() {
    let document = comparison(&grid::records(), None);
    let text = csv::render(&document);
    for figure in document.figures() {
        assert!(text.contains(&format!("\nfigure {},", figure.name)), "{}", figure.name);
        assert!(!figure.data().rows.is_empty());
    }
    let json: serde_json::Value = serde_json::from_str(&zbench_reports::render::json::render(&document)).unwrap();
    let figures = json["blocks"].as_array().unwrap().iter().filter(|block| block["kind"] == "figure");
    assert_eq!(figures.count() + 1, document.figures().count(), "one stands on the screen");
    assert!(json["screen"]["figures"][0].is_object());
    assert!(document.blocks.iter().any(|block| matches!(block, Block::Figure(_))));
}
