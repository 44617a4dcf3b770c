//! The published results of tests/published: what `--validate` says is what `plan` says, and how good it is.

use super::score::{Kind, Outcome, Residuals, directions_right, fits, score};
use super::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::LazyLock;
use zbench_estimate::band::{Band, COLLECTIVES, MEMORY, SPEED, SPEED_ELSEWHERE};

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

/// Three digits are written down.
const WRITTEN: f64 = 0.0006;

/// Whether a band is derived from these results, and how much of a family that it has not seen it holds.
fn left_out(band: Band, kind: Kind, is_in: impl Fn(&Outcome) -> bool) -> f64 {
    let residuals = Residuals::of(of_kind(kind).into_iter().filter(|outcome| is_in(outcome)));
    let (low, high) = residuals.band(0.8).unwrap();
    let left_out = residuals.left_out(0.8).unwrap();
    let found =
        format!("{low:.3} to {high:.3}, left out {left_out:.3}, {} rows of {}", residuals.rows(), residuals.families());
    assert!((low - band.low).abs() < WRITTEN && (high - band.high).abs() < WRITTEN, "{}: {found}", band.of);
    assert_eq!((residuals.rows(), residuals.families()), (band.rows, band.families), "{}: {found}", band.of);
    // An 80 % band of these rows holds 80 % of them, families counted once; of few families one row is much.
    let held = residuals.held(low, high);
    assert!(held >= 0.8 && (held < 0.9 || residuals.families() < 5) && band.share == 0.8, "{}: {held}", band.of);
    assert!((left_out - band.left_out).abs() < WRITTEN, "{}: {found}", band.of);
    left_out
}

#[test]
fn the_bands_of_the_program_are_those_of_the_published_rows() {
    let memory = left_out(MEMORY, Kind::Memory, |outcome| outcome.row.quantity != "memory_after_step");
    let speed = left_out(SPEED, Kind::Speed, |outcome| outcome.usual);
    let collectives = left_out(COLLECTIVES, Kind::Collectives, |_| true);
    // What was asked for of families that a band has not seen.
    for share in [memory, speed, collectives] {
        assert!((0.7..=0.9).contains(&share), "{share}");
    }
    // Four families are too few, and the program says so beside the band.
    assert!(left_out(SPEED_ELSEWHERE, Kind::Speed, |outcome| !outcome.usual) < 0.7);
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

/// By hand: two families, one of four rows and one of one. Each weighs one half, so the single row is beyond the band's edge
/// only where half of all weight may be.
#[test]
fn a_family_counts_once_however_many_rows_it_has() {
    let row = |family: &str, quantity: &str, published: f64, predicted: f64, scored: bool| {
        let (family, quantity, published, predicted) =
            (family.into(), quantity.into(), Some(published), Some(predicted));
        let row = PublishedRow { family, quantity, published, predicted, scored, ..PublishedRow::default() };
        Outcome { row, ..OUTCOMES[0].clone() }
    };
    let mut rows: Vec<Outcome> = [1.0, 1.1, 1.2, 1.3].map(|x| row("many", "tokens_per_s_per_gpu", x, 1.0, true)).into();
    // A step that took twice as long as predicted was half as fast.
    rows.push(row("one", "step_time_s", 2.0, 1.0, true));
    rows.push(row("one", "step_time_s", 9.0, 1.0, false));
    let residuals = Residuals::of(&rows);
    assert_eq!((residuals.rows(), residuals.families()), (5, 2));
    let (low, high) = residuals.band(0.8).expect("rows");
    assert!((low - 0.5).abs() < 1e-12 && (high - 1.3).abs() < 1e-12, "{low} {high}");
    assert!((residuals.held(0.9, 1.15) - 0.25).abs() < 1e-12, "two of four rows of one of two families");
    // Each family outside the other's band.
    assert_eq!(residuals.left_out(0.8), Some(0.0));
    assert_eq!(Residuals::of(&[]).band(0.8), None);
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
