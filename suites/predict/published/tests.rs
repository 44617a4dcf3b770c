//! The published results of tests/published: what `--validate` says is what `plan` says, and how good it is.

use super::calibrate::Residual;
use super::score::{Kind, Outcome, directions_right, fits, score};
use super::*;
use crate::band::{Bands, PUBLISHED};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::LazyLock;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/published")
}

static OUTCOMES: LazyLock<Vec<Outcome>> = LazyLock::new(|| {
    let planner = Planner::default();
    read(&folder()).unwrap().iter().map(|row| row.outcome(&planner)).collect()
});

fn of_kind(kind: Kind) -> Vec<&'static Outcome> {
    OUTCOMES.iter().filter(|outcome| outcome.kind == kind).collect()
}

/// Every file is planned as a user's own: the cells that `plan FILE` expands, by what their settings say of them.
#[test]
fn validate_says_what_plan_says_of_every_cell() {
    let planner = Planner::default();
    let rows = read(&folder()).unwrap();
    let mut compared = 0;
    for file in std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let document = Document::read(&file, &[]).unwrap();
        let context = Context::new(document.folder().into(), 2);
        if document.base.contains_key("suite") {
            continue;
        }
        for cell in grid::expand(&document, &[], grid::MOST_CELLS, &context, &mut Files::default()).unwrap() {
            let id = cell.settings["published.id"].value.as_str().unwrap().to_string();
            let row = rows.iter().find(|row| row.id == id).unwrap();
            let planned = planned::plan(&planner, cell, None).row();
            let said = row.predicted(&planner).0.unwrap_or_else(|why| panic!("{id}: {why}"));
            let ranks = planned.tokens_per_second.zip(planned.tokens_per_second_per_rank).map(|(all, one)| all / one);
            let plan = match row.quantity {
                Quantity::Tokens => planned.tokens_per_second_per_rank.unwrap(),
                Quantity::Step => planned.step_ms.unwrap() / 1e3,
                Quantity::Fits => f64::from(u8::from(planned.fits.unwrap())),
                Quantity::Memory => {
                    let stage = if row.is_of_last_stage { &planned.memory_last_stage } else { &planned.memory_figures };
                    let name = match row.size {
                        Size::Allocated => "allocated",
                        Size::Reserved => "reserved",
                        Size::Device => "device",
                        Size::AfterStep => "after_step",
                    };
                    stage.get(name).unwrap() / bytes(&row.unit)
                }
                Quantity::Flops => *planned.tflops_by_convention.get(row.convention.name()).unwrap(),
                Quantity::Utilization => {
                    let peak = row.peak.unwrap_or_else(|| planned.tflops_per_rank.unwrap() / planned.mfu.unwrap());
                    100.0 * planned.tflops_by_convention.get(row.convention.name()).unwrap() / peak
                }
                other => panic!("{id}: {other:?}"),
            };
            assert!(ranks.is_none_or(|ranks| ranks >= 0.9), "{id}");
            if row.is_search() {
                // The best of what the source may have measured, which the cell as written is one of.
                let is_no_slower = if row.quantity == Quantity::Step { said <= plan } else { said >= plan };
                assert!(is_no_slower || planned.fits == Some(false), "{id}: best {said}, as written {plan}");
            } else {
                assert!((said - plan).abs() <= 1e-12 * plan.abs(), "{id}: validate {said}, plan {plan}");
            }
            compared += 1;
        }
    }
    // Results of one cell are one cell to `plan`.
    assert!(compared > 400, "{compared}");
}

/// Predictions are sums of a few hundred numbers: this is above what another order of them does.
const TOLERANCE: f64 = 1e-6;

/// Every prediction as it was when it was last looked at: a change of the estimator shows which rows it moves. `ZBENCH_BLESS=1 cargo
/// test -p zbench-predict stored` stores them anew.
#[test]
fn predictions_are_those_that_were_stored() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("published/expected.txt");
    let value = |outcome: &Outcome| match outcome.row.predicted {
        Some(value) => format!("{} {value:.9e}", outcome.row.quantity),
        None => format!("- {}", outcome.row.reason.replace('\n', " ")),
    };
    let found: BTreeMap<&str, String> =
        OUTCOMES.iter().map(|outcome| (outcome.row.id.as_str(), value(outcome))).collect();
    if std::env::var_os("ZBENCH_BLESS").is_some() {
        let mut text = String::new();
        for (id, value) in &found {
            writeln!(text, "{id} {value}").unwrap();
        }
        std::fs::write(stored, text).unwrap();
        return;
    }
    let text = std::fs::read_to_string(stored).unwrap();
    let expected: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(expected.len(), found.len(), "rows came or went");
    let number = |text: &str| text.split(' ').nth(1).and_then(|number| number.parse::<f64>().ok());
    let has_moved = |(id, value): &(&&str, &String)| {
        let before = expected.get(**id).copied().unwrap_or("nothing");
        match (number(before), number(value)) {
            (Some(a), Some(b)) => (a - b).abs() > TOLERANCE * a.abs().max(b.abs()),
            _ => before != value.as_str(),
        }
    };
    let moved: Vec<String> =
        found.iter().filter(has_moved).map(|(id, value)| format!("{id}: {:?} -> {value}", expected.get(id))).collect();
    assert!(moved.is_empty(), "{} rows are predicted otherwise:\n{}", moved.len(), moved.join("\n"));
}

/// The table that sets other estimators beside this one has every scored row of memory and speed, with today's prediction.
#[test]
fn peers_stand_beside_what_is_predicted_today() {
    let text = include_str!("../../../tests/interop/peer_estimates.csv");
    let written: BTreeMap<&str, f64> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .skip(1)
        .map(|line| (line.split(',').next().unwrap(), line.split(',').nth(5).unwrap().parse().unwrap()))
        .collect();
    let found: BTreeMap<&str, f64> = OUTCOMES
        .iter()
        .filter(|outcome| outcome.row.scored && outcome.kind != Kind::Collectives)
        .map(|outcome| (outcome.row.id.as_str(), outcome.row.predicted.unwrap()))
        .collect();
    let is_same =
        |(id, now): (&&str, &f64)| written.get(id).is_some_and(|then| (then - now).abs() <= TOLERANCE * now.abs());
    let moved: Vec<&str> = found.iter().filter(|row| !is_same(*row)).map(|(id, _)| *id).collect();
    assert!(
        moved.is_empty() && written.len() == found.len(),
        "{} rows in the table, {} scored; {} differ, as {:?}: run python3 tests/interop/peer_estimates.py target/debug/zbench",
        written.len(),
        found.len(),
        moved.len(),
        moved.first()
    );
}

/// Four digits are written down.
const WRITTEN: f64 = 0.0006;

/// What `plan` has of bands is what the rows give. `ZBENCH_BLESS=1 cargo test -p zbench-predict the_bands_of_the_program` writes it anew.
#[test]
fn the_bands_of_the_program_are_those_of_the_published_rows() {
    let residuals: Vec<Residual> = OUTCOMES.iter().filter_map(Residual::of).collect();
    let all: Vec<&Residual> = residuals.iter().collect();
    let mut found = calibrate::bands(&all);
    if std::env::var_os("ZBENCH_BLESS").is_some() {
        let round = |value: &mut f64| *value = (*value * 1e4).round() / 1e4;
        [&mut found.like, &mut found.unlike, &mut found.adapters].into_iter().for_each(round);
        found.groups.values_mut().flat_map(|of| [&mut of.spread, &mut of.left_out]).for_each(round);
        let head = "# Derived from tests/published (docs/estimator.md, \"Bands\"); written by\n\
                    # ZBENCH_BLESS=1 cargo test -p zbench-predict the_bands_of_the_program\n";
        let text = format!("{head}{}", toml::to_string_pretty(&found).unwrap());
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("published/bands.toml"), text).unwrap();
        return;
    }
    let near = |a: f64, b: f64| assert!((a - b).abs() < WRITTEN, "bands.toml has {a}, the rows give {b}: {found:#?}");
    near(PUBLISHED.like, found.like);
    near(PUBLISHED.unlike, found.unlike);
    near(PUBLISHED.adapters, found.adapters);
    for (name, of) in &found.groups {
        let written = PUBLISHED.groups[name];
        near(written.spread, of.spread);
        near(written.left_out, of.left_out);
        assert_eq!((written.rows, written.families), (of.rows, of.families), "{name}");
    }
    assert_eq!(PUBLISHED.compared, found.compared);
    // What was asked for: of a family left out 70 to 90 % lie in bands at most 1.6 times as wide as those of the 10th to the 90th
    // percentile of all rows once were.
    for (kind, width_then) in [(Kind::Memory, 0.205), (Kind::Speed, 0.338), (Kind::Collectives, 0.122)] {
        let (share, width) = calibrate::held(&calibrate::left_out(&all, kind)).unwrap();
        assert!((0.7..=0.9).contains(&share) && width <= 1.6 * width_then, "{kind:?}: {share}, {width}");
    }
}

/// What was asked for before anything was scored: medians of 5, 8 and 5 % and 90th percentiles of 15, 20 and 15 % of memory, speed
/// and collectives.
#[test]
fn predictions_are_as_good_as_asked() {
    for (kind, rows, median, p90) in
        [(Kind::Memory, 150, 0.05, 0.15), (Kind::Speed, 340, 0.08, 0.20), (Kind::Collectives, 40, 0.05, 0.15)]
    {
        let all = score(of_kind(kind));
        assert!(all.scored > rows && all.median <= median && all.p90 <= p90, "{kind:?}: {all:?}");
    }
    let (right, pairs) = directions_right(of_kind(Kind::Speed));
    assert!(pairs > 10_000 && right as f64 >= 0.9 * pairs as f64, "{right} of {pairs}");
}

/// The decision is better than those of whoever says "fits" of every run, as far as that can be: it finds runs out of memory.
#[test]
fn runs_out_of_memory_are_found() {
    let found = fits("zbench", OUTCOMES.iter());
    assert!(found.runs() > 200 && found.recall().unwrap() >= 0.9, "{found:?}");
    assert!(found.right() as f64 >= 0.9 * found.runs() as f64, "{found:?}");
    let four = [(true, true), (true, true), (true, false), (false, false), (false, true), (false, true)];
    let of = |fits: &(bool, bool)| Outcome { fits: Some(*fits), ..OUTCOMES[0].clone() };
    let by_hand = fits("by hand", &four.iter().map(of).collect::<Vec<_>>());
    assert_eq!((by_hand.right(), by_hand.runs(), by_hand.false_alarms), (3, 6, 1));
    assert_eq!((by_hand.recall(), by_hand.precision()), (Some(1.0 / 3.0), Some(0.5)));
}

/// A scored result of speed on a usual device.
fn scored(family: &str, program: &str, quantity: &str, published: f64) -> Outcome {
    let row = PublishedRow {
        family: family.into(),
        quantity: quantity.into(),
        published: Some(published),
        predicted: Some(1.0),
        scored: true,
        ..PublishedRow::default()
    };
    let traits = Traits { program: program.into(), ..Traits::default() };
    Outcome { row, banded: Some((Group::Speed, traits)), ..OUTCOMES[0].clone() }
}

fn bands_of(outcomes: &[Outcome]) -> Bands {
    let residuals: Vec<Residual> = outcomes.iter().filter_map(Residual::of).collect();
    calibrate::bands(&residuals.iter().collect::<Vec<_>>())
}

/// By hand: four families whose results are off by 0.1, 0.2, 0.3 and 0.4. Four fifths of four are more than three: the spread is 0.4, and
/// 0.3 without the last family, which is off by 4/3 of that, the others by at most 3/4 of 0.4. Four fifths of four families and the
/// new one are all four.
#[test]
fn a_band_reaches_as_far_as_families_left_out() {
    let mut rows: Vec<Outcome> =
        (1..5).map(|n| scored(&n.to_string(), "a", "tokens_per_s_per_gpu", (f64::from(n) / 10.0).exp())).collect();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
    let found = bands_of(&rows);
    near(found.groups[Group::Speed.name()].spread, 0.4);
    near(found.like, 4.0 / 3.0);
    near(found.band(Group::Speed, true).high, (0.4f64 * 4.0 / 3.0).exp());
    // Three families give no such multiple, so nothing can be left out of four.
    assert!(bands_of(&rows[..3]).like.is_infinite());
    assert_eq!(found.groups[Group::Speed.name()].left_out, 0.0);
    // However many results it has, a family counts once; and a step that took as long again as predicted was as much slower.
    for _ in 0..9 {
        rows.push(scored("1", "a", "step_time_s", (-0.1f64).exp()));
    }
    assert_eq!(bands_of(&rows).like, found.like);
    // What no other family has is unlike, whose band is never narrower.
    rows.push(scored("5", "b", "tokens_per_s_per_gpu", 1.0));
    let found = bands_of(&rows);
    let of = |program: &str| found.of(Group::Speed, &Traits { program: program.into(), ..Traits::default() });
    assert_eq!((of("b").1.as_str(), of("c").1.as_str()), ("", "of c"));
    assert!(found.unlike >= found.like && of("c").0.low <= of("b").0.low);
}

fn refused(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("one.toml"), text).unwrap();
    read(folder.path()).unwrap_err().to_string()
}

const CELL: &str = "hardware.profile = \"a100-80gb\"\npublished.quantity = \"memory\"\npublished.value = 3\n";

#[test]
fn rows_that_say_too_little_are_refused_with_what_to_write() {
    let refusals = [
        (refused(CELL), "cell 1: has no published.id; write its name"),
        (refused("published.id = \"a\""), "a: has no published.quantity; write what was measured"),
        (refused("published.id = \"a\"\npublished.quantity = \"weight\""), "\"weight\" is none of"),
        (
            refused("published.id = \"a\"\npublished.unknown = [\"train.micro_bach\"]"),
            "did you mean train.micro_batch?",
        ),
        (refused("published.idd = \"a\""), "did you mean published.id?"),
        (refused("train.steps = 3"), "has no grid file with published results"),
        (
            refused(&format!("{CELL}[grid]\npublished.id = [\"a\", \"a\"]\n")),
            "is the name of two results; give each its own published.id",
        ),
    ];
    for (refusal, words) in refusals {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(read(Path::new("/nowhere")).unwrap_err().to_string().contains("cannot be read"));
}

/// A row of a cell that cannot be is one row without a prediction, with its reason, and the others have theirs.
#[test]
fn a_row_that_cannot_be_priced_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{CELL}parallel.ranks = 8\n[grid]\ninclude = [\n{{ published.id = \"odd\", parallel.tensor = 3 }},\n\
         {{ published.id = \"unset\", published.unknown = [\"train.seq_len\"] }},\n\
         {{ published.id = \"even\", published.size = \"reserved\" }}]\n"
    );
    std::fs::write(folder.path().join("one.toml"), text).unwrap();
    let planner = Planner::default();
    let rows: Vec<Outcome> = read(folder.path()).unwrap().iter().map(|row| row.outcome(&planner)).collect();
    assert!(rows[0].row.predicted.is_none() && rows[0].row.reason.contains("parallel.tensor"), "{:?}", rows[0]);
    assert!(!rows[1].row.scored && rows[1].row.reason == "the source does not state train.seq_len", "{:?}", rows[1]);
    assert!(rows[2].row.scored && rows[2].row.predicted.unwrap() > 0.0 && rows[2].row.family == "one", "{:?}", rows[2]);
}
