//! A grid on one screen: the answer first, one table, what stands out, and the next command. [`super::comparison`] has everything.

use super::cells::{Cell, Grid, unmeasured_counts};
use super::labels::{Axis, STRATEGY};
use super::turns::{self, Experiment};
use super::{ranking, words};
use crate::document::cut::{LINES, cut, height};
use crate::document::{Column, Document, Entry, Table};
use crate::evidence::{Claims, Comparison, Rules, Verdict, effect, frontier};
use crate::record::{self, Record};
use crate::units;

const MORE: &str = "MORE    `zbench report --full` has everything, `zbench report -o report.html` plots";
/// Rows of the table at least, however long the rest is.
const LEAST_ROWS: usize = 3;

/// The document of a screen, at most 40 lines of 120 columns; nothing where no cell was measured, or where other suites took part:
/// their reports have no short form.
pub fn screen(records: &[Record], question: Option<&str>) -> Option<Document> {
    let is_cell =
        |record: &Record| !crate::collectives::document::is_of_suite(record) && crate::bench::suite(record).is_none();
    if records.is_empty() || !records.iter().all(is_cell) {
        return None;
    }
    let all: Vec<&Record> = records.iter().collect();
    let cells: Vec<&Record> = all.iter().copied().filter(|record| !turns::is_twin(record)).collect();
    let grid = Grid::new(&cells);
    grid.measured().next()?;
    let groups = groups(&grid, &all);
    let most = grid.cells.len().max(LEAST_ROWS);
    let build = |rows: usize| document(&grid, &groups, records, question, rows);
    let fits = |rows: &usize| height(&build(*rows)) <= LINES;
    let rows = (LEAST_ROWS..=most.min(LINES)).rev().find(fits).unwrap_or(LEAST_ROWS);
    // What no table can give way for, however many things stand out.
    Some(cut(&build(rows), LINES, MORE))
}

/// Cells that are compared with each other: those that train the same share of a model, and for which there are as many cores.
struct Group<'g, 'a> {
    name: &'static str,
    cells: Vec<&'g Cell<'a>>,
    experiment: Option<Experiment>,
}

fn groups<'g, 'a>(grid: &'g Grid<'a>, records: &[&Record]) -> Vec<Group<'g, 'a>> {
    let kind = |cell: &Cell| (cell.has_adapter(), ranking::crowding(cell).is_some());
    let names = [
        ((false, false), "full fine-tuning"),
        ((true, false), "adapters"),
        ((false, true), "more ranks than cores"),
        ((true, true), "adapters, more ranks than cores"),
    ];
    let mut groups: Vec<Group> = names
        .into_iter()
        .map(|(wanted, name)| Group {
            name,
            cells: grid.measured().filter(|cell| kind(cell) == wanted).collect(),
            experiment: Experiment::of(grid, records, |cell| !cell.used.is_empty() && kind(cell) == wanted),
        })
        .filter(|group| !group.cells.is_empty())
        .collect();
    // The largest first: the answer is about it.
    groups.sort_by_key(|group| std::cmp::Reverse(group.cells.len()));
    groups
}

fn document(grid: &Grid, groups: &[Group], records: &[Record], question: Option<&str>, rows: usize) -> Document {
    let name = records.iter().map(|record| record.name.as_str()).find(|name| !name.is_empty()).unwrap_or("comparison");
    let mut document = Document::new(match question.map(str::trim).filter(|question| !question.is_empty()) {
        Some(question) => format!("{name}: {question}"),
        None => name.to_string(),
    });
    let several = groups.len() > 1;
    let mut answer: Vec<String> = groups.iter().map(|group| group_answer(grid, group, several)).collect();
    answer[0] = format!("ANSWER  {}", answer[0]);
    document.list(answer);
    document.table(table(grid, groups, rows));
    // Stand-ins and emulated links are named first: numbers of theirs are not the target's.
    let mut notes = words::caveats(grid);
    notes.extend(machine(groups));
    notes.extend(effects(grid, groups));
    notes.extend(frontiers(grid, groups));
    notes.push(same_model(grid));
    notes.push(plan_is_measured(grid));
    notes.extend(exceptions(grid));
    notes.extend(open(groups));
    notes.extend(spent(groups, records));
    notes.push(MORE.to_string());
    document.list(notes);
    document
}

fn group_answer(grid: &Grid, group: &Group, several: bool) -> String {
    let of = if several { format!("{}: ", group.name) } else { String::new() };
    let Some(experiment) = &group.experiment else { return by_trials(group, &of) };
    let label = |cell: usize| short_label(grid, experiment.cells[cell]);
    let order = experiment.order();
    let count = experiment.cells.len();
    let decided = pairs(experiment).filter(|(a, b)| experiment.verdict(*a, *b) != Verdict::Undecided).count();
    let all = count * (count - 1) / 2;
    let surely = format!(
        "{decided} of {} decided; at most 2 % of the claims are expected to be false",
        units::plural(all, "pair", "pairs")
    );
    let may: Vec<usize> =
        order.iter().copied().filter(|cell| experiment.claims.may_be_fastest().contains(cell)).collect();
    match (experiment.claims.fastest().or(may.first().copied().filter(|_| may.len() == 1)), &may[..]) {
        (Some(fastest), _) => {
            let next = order.iter().copied().find(|cell| *cell != fastest);
            let by = next.and_then(|next| {
                let Comparison { ratio, low, high, .. } = experiment.evidence.pair(next, fastest);
                Some(format!(": {} than the next, {}", ratio_words(ratio?, low, high, "faster"), label(next)))
            });
            format!("{of}{} is the fastest{}. {surely}.", label(fastest), by.unwrap_or_default())
        }
        (None, may) if may.len() == count => format!(
            "{of}no cell is shown to be faster than another yet; the best estimate of {count} has {}. {surely}.",
            label(order[0])
        ),
        (None, may) => format!(
            "{of}the fastest is one of {} of {count} cells: {}. {} shown to be slower. {surely}.",
            may.len(),
            words::named(&may.iter().take(3).map(|cell| label(*cell)).collect::<Vec<_>>())
                + if may.len() > 3 { " …" } else { "" },
            if count - may.len() == 1 { "The other is".into() } else { format!("The other {} are", count - may.len()) }
        ),
    }
}

fn by_trials(group: &Group, of: &str) -> String {
    let ranked: Vec<&&Cell> = group.cells.iter().filter(|cell| cell.place.is_some()).collect();
    let Some(first) = ranked.first() else {
        let why = group.cells.iter().find_map(|cell| cell.unranked.as_deref()).unwrap_or("nothing was measured");
        return format!("{of}no cell can be ranked: {why}.");
    };
    let rank = first.place.map(|place| place.rank);
    let may: Vec<&&&Cell> = ranked.iter().filter(|cell| cell.place.map(|place| place.rank) == rank).collect();
    let rate = first.speed.map_or(String::new(), |speed| format!(" ({} tokens/s)", units::number(speed.mid)));
    match (may.len(), ranked.len()) {
        (_, 1) => format!("{of}{}{rate} is the only cell that can be ranked.", first.label),
        (1, _) => format!("{of}{}{rate} is the fastest of {}.", first.label, ranked.len()),
        (may, all) => format!(
            "{of}undecided: {may} of {all} cells may be the fastest, since their trials vary by more than they differ; the highest \
             median has {}{rate}.",
            first.label
        ),
    }
}

/// `5.0 % (2.1 to 7.9) faster`.
fn ratio_words(ratio: f64, low: Option<f64>, high: Option<f64>, word: &str) -> String {
    let percent = |ratio: f64| format!("{:.1}", (ratio - 1.0) * 100.0);
    match (low, high) {
        (Some(low), Some(high)) => format!("{} % ({} to {}) {word}", percent(ratio), percent(low), percent(high)),
        _ => format!("{} % {word}", percent(ratio)),
    }
}

fn pairs(experiment: &Experiment) -> impl Iterator<Item = (usize, usize)> {
    let count = experiment.cells.len();
    (0..count).flat_map(move |a| (a + 1..count).map(move |b| (a, b)))
}

fn table(grid: &Grid, groups: &[Group], rows: usize) -> Table {
    let mut table = Table::new(
        "screen",
        vec![
            Column::words("rank"),
            Column::words("tie"),
            Column::words("cell"),
            Column::words("x ref (98 %)"),
            Column::numbers("tokens/s", "tokens/s"),
            Column::numbers("peak/rank", "bytes"),
            Column::numbers("wire/step", "bytes"),
            Column::words("loss"),
        ],
    );
    let mut all: Vec<(bool, Vec<Entry>)> = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        match &group.experiment {
            Some(experiment) => all.extend(rows_by_turns(grid, experiment, number)),
            None => all.extend(group.cells.iter().map(|cell| (false, row_by_trials(cell)))),
        }
    }
    let count = all.len();
    // What is never cut: the frontier and references; then from the top.
    let mut kept: Vec<bool> = vec![false; count];
    let mut left = rows;
    for wants in [true, false] {
        for place in 0..count {
            if left > 0 && !kept[place] && (all[place].0 || !wants) && (!wants || left > rows / 3) {
                kept[place] = true;
                left -= 1;
            }
        }
    }
    if rows > 0 && count > 0 && !kept[0] {
        kept[0] = true;
    }
    let shown = all.into_iter().zip(&kept).filter(|(_, kept)| **kept).map(|((_, row), _)| row);
    shown.for_each(|row| table.row(row));
    let more = count - kept.iter().filter(|kept| **kept).count();
    if more > 0 {
        table.caption = format!("{more} of {count} cells are not shown: `zbench report --full` has all.");
    }
    table
}

fn rows_by_turns(grid: &Grid, experiment: &Experiment, number: usize) -> Vec<(bool, Vec<Entry>)> {
    let order = experiment.order();
    let ranks = experiment.claims.ranks();
    let letters = experiment.claims.letters(&order);
    let kept = frontier_of(grid, experiment, |cell| cell.peak_bytes().map(|bytes| bytes as f64));
    let marks = ["", "′", "″", "‴"];
    let row = |cell: usize| {
        let of_grid = &grid.cells[experiment.cells[cell]];
        let (best, worst) = ranks[cell];
        let rank = if best == worst { best.to_string() } else { format!("{best}-{worst}") };
        let against = match experiment.against_reference(cell) {
            None => "reference".to_string(),
            Some(Comparison { ratio: Some(ratio), low: Some(low), high: Some(high), .. }) => {
                format!("{ratio:.2} ({low:.2}-{high:.2})")
            }
            Some(Comparison { ratio: Some(ratio), .. }) => format!("{ratio:.2} (unbounded)"),
            Some(_) => "-".to_string(),
        };
        let rate = experiment.rates[cell];
        let entries = vec![
            Entry::words(rank + marks[number.min(3)]),
            Entry::words(tie(&letters[cell])),
            Entry::words(short_label(grid, experiment.cells[cell])),
            Entry::words(against),
            Entry::maybe(Some(rate).filter(|rate| rate.is_finite()), units::number),
            Entry::memory(of_grid.peak_bytes()),
            Entry::maybe(of_grid.wire_bytes(), units::traffic),
            Entry::words(loss_words(of_grid)),
        ];
        (cell == experiment.reference || kept.contains(&cell), entries)
    };
    order.iter().copied().map(row).collect()
}

/// Letters of a tie, as many as a column holds.
fn tie(letters: &[usize]) -> String {
    const MOST: usize = 4;
    let label = Claims::label(&letters[..letters.len().min(MOST)]);
    if letters.len() > MOST { label + "…" } else { label }
}

/// A cell by what it has beside the first value of each key: `zero1 accumulation=4`.
fn short_label(grid: &Grid, place: usize) -> String {
    let of_axis = |axis: &Axis| {
        let mut values = axis.distinct();
        words::sort_values(&mut values);
        let value = axis.values[place].as_str();
        match axis.path.as_str() {
            STRATEGY => Some(value.to_string()),
            _ if values.first() == Some(&value) => None,
            _ => Some(format!("{}={value}", axis.name)),
        }
    };
    let label = grid.axes.telling.iter().filter_map(of_axis).collect::<Vec<_>>().join(" ");
    if label.is_empty() { grid.cells[place].label.clone() } else { label }
}

fn row_by_trials(cell: &Cell) -> Vec<Entry> {
    let rank = cell.place.map_or("-".to_string(), |place| place.label());
    let interval = cell.interval().map_or("-".to_string(), |speed| {
        format!("{} to {} tokens/s", units::number(speed.low), units::number(speed.high))
    });
    vec![
        Entry::words(rank),
        Entry::words(""),
        Entry::words(&cell.label),
        Entry::words(interval),
        Entry::maybe(cell.speed.map(|speed| speed.mid), units::number),
        Entry::memory(cell.peak_bytes()),
        Entry::maybe(cell.wire_bytes(), units::traffic),
        Entry::words(loss_words(cell)),
    ]
}

fn loss_words(cell: &Cell) -> String {
    match cell.verdict {
        record::Verdict::Reference => "reference".into(),
        record::Verdict::Identical => "same bits".into(),
        record::Verdict::WithinTolerance => {
            words::largest_difference(cell).map_or("close".into(), |difference| format!("{difference:.0e}"))
        }
        record::Verdict::Failed => "FAILED".into(),
        record::Verdict::None => "-".into(),
    }
}

fn machine(groups: &[Group]) -> Option<String> {
    let experiment = groups.iter().find_map(|group| group.experiment.as_ref())?;
    let mut text = "MACHINE".to_string();
    if let Some((low, high)) = experiment.wander {
        text += &format!(" speed wandered {low:.2} to {high:.2} while measuring, cancelled by pairing");
    }
    if let Some(Comparison { ratio: Some(ratio), low: Some(low), high: Some(high), .. }) = experiment.twin {
        let change = |ratio: f64| format!("{:+.1}", (ratio - 1.0) * 100.0);
        text +=
            &format!("; twins of the reference differ by {} % ({} to {})", change(ratio), change(low), change(high));
    }
    if experiment.discarded > 0 {
        let rounds = units::plural(experiment.discarded, "round", "rounds");
        text += &format!("; {rounds} discarded, since other processes used the cores");
    }
    Some(text + ".")
}

/// How many effects are told.
const MOST_EFFECTS: usize = 4;

fn effects(grid: &Grid, groups: &[Group]) -> Vec<String> {
    let Some(group) = groups.iter().find(|group| group.experiment.is_some()) else { return Vec::new() };
    let Some(experiment) = &group.experiment else { return Vec::new() };
    let place_of = |cell: &Cell| experiment.cells.iter().position(|place| grid.cells[*place].key == cell.key);
    let mut items = Vec::new();
    for axis in &grid.axes.telling {
        let mut values = axis.distinct();
        words::sort_values(&mut values);
        if axis.path == STRATEGY {
            // The others are its refinements.
            values.sort_by_key(|value| *value != "ddp");
        }
        let Some((base, others)) = values.split_first() else { continue };
        let of_value = |other: &&str| {
            let pairs: Vec<Comparison> = words::pairs(grid, axis, base, other)
                .into_iter()
                .filter_map(|(a, b)| Some(experiment.evidence.pair(place_of(a)?, place_of(b)?)))
                .collect();
            let effect = effect(&Rules::default(), &pairs)?;
            let change = |ratio: f64| format!("{:+.0}", (ratio - 1.0) * 100.0);
            let (low, high) = (change(effect.low), change(effect.high));
            Some(format!("{other} {} % ({low} to {high})", change(effect.ratio)))
        };
        let told: Vec<String> = others.iter().take(8).filter_map(of_value).collect();
        if !told.is_empty() {
            let name = if axis.path == STRATEGY { "strategy" } else { &axis.name };
            items.push(format!("EFFECT  {name} against {base}: {}", told.join(", ")));
        }
    }
    items.truncate(MOST_EFFECTS);
    items
}

fn frontier_of(grid: &Grid, experiment: &Experiment, cost: impl Fn(&Cell) -> Option<f64>) -> Vec<usize> {
    let cells = experiment.cells.iter().zip(&experiment.rates);
    let points: Vec<(f64, f64)> =
        cells.map(|(place, rate)| (*rate, cost(&grid.cells[*place]).unwrap_or(f64::NAN))).collect();
    frontier(&points, |a, b| experiment.verdict(a, b))
}

fn frontiers(grid: &Grid, groups: &[Group]) -> Vec<String> {
    let Some(experiment) = groups.iter().find_map(|group| group.experiment.as_ref()) else { return Vec::new() };
    let told = |what: &str, cost: &dyn Fn(&Cell) -> Option<f64>, show: &dyn Fn(f64) -> String| {
        let kept = frontier_of(grid, experiment, cost);
        let named: Vec<String> = kept
            .iter()
            .filter_map(|cell| {
                let label = short_label(grid, experiment.cells[*cell]);
                let cell = &grid.cells[experiment.cells[*cell]];
                Some(format!("{label} ({})", show(cost(cell)?)))
            })
            .collect();
        // Where hardly anything is decided, everything is on it, and that is no news.
        let is_news = !named.is_empty() && named.len() <= 4;
        is_news.then(|| format!("FRONTIER nothing is both faster and {what} than: {}", named.join(", ")))
    };
    let memory = told("smaller", &|cell| cell.peak_bytes().map(|bytes| bytes as f64), &units::memory);
    let wire = told("lighter on the wire", &|cell| cell.wire_bytes(), &units::traffic);
    memory.into_iter().chain(wire).collect()
}

fn same_model(grid: &Grid) -> String {
    let count = |wanted: record::Verdict| grid.measured().filter(|cell| cell.verdict == wanted).count();
    let (identical, close, failed) =
        (count(record::Verdict::Identical), count(record::Verdict::WithinTolerance), count(record::Verdict::Failed));
    let all = identical + close + failed;
    if all == 0 {
        return "SAME MODEL no cell has a reference whose losses it could be compared with".into();
    }
    let largest = grid.measured().filter_map(words::largest_difference).fold(0.0, f64::max);
    let failed = match failed {
        0 => String::new(),
        count => format!("; {count} FAILED and cannot be compared"),
    };
    format!(
        "SAME MODEL {identical} of {all} cells have the losses of their reference to the bit, {close} within {largest:.1e}{failed}"
    )
}

fn plan_is_measured(grid: &Grid) -> String {
    let both: Vec<(u64, u64)> =
        grid.measured().filter_map(|cell| Some((cell.peak_bytes()?, cell.predicted_peak_bytes()?))).collect();
    let equal = both.iter().filter(|(measured, planned)| measured == planned).count();
    let wire: Vec<bool> =
        grid.measured().filter_map(|cell| Some(cell.record().predicted_wire_bytes()? == cell.wire_bytes()?)).collect();
    let wire_equal = wire.iter().filter(|equal| **equal).count();
    format!(
        "PLAN = MEASURED peak memory to the byte in {equal} of {} cells, bytes on the wire in {wire_equal} of {}",
        both.len(),
        wire.len()
    )
}

fn exceptions(grid: &Grid) -> Vec<String> {
    let mut items = Vec::new();
    for (status, count) in unmeasured_counts(grid) {
        let of = |cell: &&Cell| cell.used.is_empty() && cell.record().outcome.status == status;
        let first = grid.cells.iter().find(of).map_or(String::new(), |cell| {
            let reason: String = cell.record().outcome.reason.chars().take(150).collect();
            format!("{}: {reason}", cell.label)
        });
        items.push(format!("{} {}: {first}", status.words().to_uppercase(), units::plural(count, "cell", "cells")));
    }
    let why = grid.cells.iter().flat_map(|cell| &cell.trials).find_map(|record| turns::why_not(record));
    items.extend(why.map(|why| format!("BY TRIALS and not by turns: {why}")));
    let flagged = grid.cells.iter().filter(|cell| cell.set_aside().next().is_some()).count();
    if flagged > 0 {
        items.push(format!("FLAGGED trials of {} do not count", units::plural(flagged, "cell", "cells")));
    }
    items
}

fn open(groups: &[Group]) -> Option<String> {
    let experiment = groups.iter().find_map(|group| group.experiment.as_ref())?;
    let open: Vec<(usize, usize)> =
        pairs(experiment).filter(|(a, b)| experiment.verdict(*a, *b) == Verdict::Undecided).collect();
    let near = open.iter().filter(|(a, b)| {
        experiment.evidence.pair(*a, *b).ratio.is_some_and(|ratio| ratio.ln().abs() < Rules::default().equal)
    });
    let (open, near) = (open.len(), near.count());
    (open > 0).then(|| {
        format!(
            "OPEN    {} undecided, {near} of them closer than 5 %; a larger --budget goes on from here",
            units::plural(open, "pair is", "pairs are")
        )
    })
}

fn spent(groups: &[Group], records: &[Record]) -> Option<String> {
    let experiment = groups.iter().find_map(|group| group.experiment.as_ref())?;
    let seconds: f64 = records
        .iter()
        .filter_map(turns::turns)
        .flat_map(|turns| turns["rows"].as_array().into_iter().flatten())
        .flat_map(|row| row["ms"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_f64))
        .sum();
    Some(format!(
        "SPENT   {:.0} s of steps: {}, {} of processes, seed {}; it ended with: {}",
        seconds / 1e3,
        units::plural(experiment.rounds, "round", "rounds"),
        units::plural(experiment.generations, "generation", "generations"),
        experiment.seed,
        experiment.stopped
    ))
}
