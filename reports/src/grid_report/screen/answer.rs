//! Which cell is fastest and how sure that is, in two or three sentences.

use super::signed;
use crate::evidence::Verdict;
use crate::grid::{Cell, Grid, Kind, groups};
use crate::phrase::names_or_count;
use crate::record::TurnRow;
use crate::record::others::{MOST_OTHERS, cores, sentence};
use crate::stats::{self, Interval};
use crate::turns_analysis::TurnsAnalysis;
use crate::units;

/// Cells that are named at most.
const NAMED: usize = 3;

/// The answer for cells of which at least one was measured.
pub fn sentences(grid: &Grid) -> String {
    if let Some(words) = nothing_counts(grid) {
        return words;
    }
    match &grid.turned {
        Some(turned) => by_turns(grid, turned).join(" "),
        None => by_trials(grid).join(" "),
    }
}

/// Why no turn of any cell counts, where others used the cores in all rounds.
pub fn nothing_counts(grid: &Grid) -> Option<String> {
    let turns = || grid.cells.iter().flat_map(|cell| &cell.trials).filter_map(|record| record.taken_turns());
    let rows = || turns().flat_map(|turns| &turns.rows);
    let mean =
        |of: fn(&TurnRow) -> f64| stats::mean(&rows().map(of).filter(|share| share.is_finite()).collect::<Vec<_>>());
    let (others, stolen) = (mean(|row| row.others)?, mean(|row| row.stolen).unwrap_or(0.0));
    // Trials without turns may count all the same.
    let is_measured = grid.cells.iter().any(|cell| cell.speed.is_some());
    if is_measured || rows().any(|row| row.counted) || others.max(stolen) <= MOST_OTHERS {
        return None;
    }
    let busiest = turns().max_by(|a, b| cores(&a.busy).total_cmp(&cores(&b.busy)));
    let who = sentence(others, stolen, busiest.map_or(&[], |turns| &turns.busy));
    Some(format!(
        "Nothing was measured: {who}. Run the same command again once these have ended, or with --allow-load, which counts rounds \
         beside other processes."
    ))
}

/// The ranked cells of each kind, and the name of the kind.
pub fn kinds<'g, 'a>(grid: &'g Grid<'a>) -> Vec<(Vec<&'g Cell<'a>>, String)> {
    let kinds = groups(grid.ranked());
    let work_differs = kinds.iter().any(|kind| kind.has_adapter != kinds[0].has_adapter);
    let crowding_differs = kinds.iter().any(|kind| kind.is_crowded != kinds[0].is_crowded);
    let pace_differs = kinds.iter().any(|kind| kind.pace() != kinds[0].pace());
    let name = |kind: &Kind| {
        let work = match (work_differs, kind.has_adapter) {
            (false, _) => "cell",
            (true, false) => "full fine-tune",
            (true, true) => "adapter run",
        };
        let crowded = if crowding_differs && kind.is_crowded { " with more ranks than cores" } else { "" };
        let pace = kind.pace().filter(|_| pace_differs);
        let paced = pace.map_or(String::new(), |pace| format!(" with an emulated pace of {}", units::pace(pace)));
        format!("{work}{crowded}{paced}")
    };
    let of = |kind: &Kind| (grid.ranked().filter(|cell| cell.kind() == *kind).collect(), name(kind));
    kinds.iter().map(of).collect()
}

/// The plural of a kind's name.
pub fn plural(kind: &str) -> String {
    match kind.split_once(" with ") {
        Some((one, rest)) => format!("{one}s with {rest}"),
        None => format!("{kind}s"),
    }
}

/// The answer of turns.
pub fn by_turns(grid: &Grid, turned: &TurnsAnalysis) -> Vec<String> {
    let kinds = kinds(grid);
    if kinds.is_empty() {
        return vec!["No cell is ranked; what is left out is listed below.".to_string()];
    }
    let mut sentences: Vec<String> =
        kinds.iter().map(|(cells, kind)| fastest_by_turns(grid, turned, cells, kind)).collect();
    let pairs = turned.pairs();
    if pairs > 1 {
        let decided = pairs - turned.open_pairs().len().min(pairs);
        let tiers = match turned.tiers() {
            1 => String::new(),
            count => format!("{count} tiers; "),
        };
        sentences.push(format!(
            "{tiers}{decided} of {pairs} pairs decided; of the claims here at most {} are expected to be false.",
            units::percent(turned.false_share()).replace(".0 %", " %")
        ));
    }
    sentences
}

/// The fastest of these cells, which are in the order of their speed; at least one.
fn fastest_by_turns(grid: &Grid, turned: &TurnsAnalysis, cells: &[&Cell], kind: &str) -> String {
    let best = cells[0];
    let [_, next, ..] = cells else {
        return format!("One {kind} took turns, so there is nothing to compare it with: {}.", best.short);
    };
    let is_beaten = |cell: &&&Cell| cells.iter().any(|other| turned.verdict(cell.key, other.key) == Verdict::Faster);
    let first: Vec<&&Cell> = cells.iter().filter(|cell| !is_beaten(cell)).collect();
    let of_kind = if kind == "cell" { String::new() } else { format!(" {kind}") };
    let kinds = plural(kind);
    if let [only] = &first[..] {
        let ahead = turned.pair(next.key, only.key).and_then(|pair| {
            let limits = pair.low.zip(pair.high);
            let limits = limits.map_or(String::new(), |(low, high)| format!(" ({} to {})", plain(low), plain(high)));
            Some(format!(": {} %{limits} faster than the next, {}", plain(pair.ratio?), next.short))
        });
        let ahead = ahead.unwrap_or_default();
        return format!("{} is the fastest{of_kind}{ahead}{}.", only.short, beside(grid, only, next));
    }
    let all_equal = first
        .iter()
        .enumerate()
        .all(|(place, a)| first[place + 1..].iter().all(|b| turned.verdict(a.key, b.key) == Verdict::Equal));
    let names = names_or_count(&first.iter().map(|cell| &cell.short).collect::<Vec<_>>(), NAMED);
    if all_equal {
        return format!(
            "{} {kinds} are the fastest and equal within {}: {names}.",
            first.len(),
            units::percent(turned.equal()).replace(".0 %", " %")
        );
    }
    let which = match (first.len(), cells.len()) {
        (some, all) if some == all && all > 2 => format!("each of {all} may be"),
        (some, all) => format!("{some} of {all} may be: {names}"),
    };
    format!("Undecided which{of_kind} is the fastest: {which}.")
}

/// `5` for a ratio of 1.05.
fn plain(ratio: f64) -> String {
    signed(ratio).trim_start_matches('+').to_string()
}

/// The speed against the reference, unless the reference is one of these two cells.
fn beside(grid: &Grid, cell: &Cell, next: &Cell) -> String {
    let Some(base) = grid.base().filter(|base| base.key != cell.key && base.key != next.key) else {
        return String::new();
    };
    grid.ratio(base, cell).map_or(String::new(), |ratio| format!("; {ratio:.2} times the reference {}", base.short))
}

fn by_trials(grid: &Grid) -> Vec<String> {
    let kinds = kinds(grid);
    if kinds.is_empty() {
        let lone = grid.measured().filter(|cell| cell.used.len() == 1).count();
        return vec![match (lone, grid.measured().count()) {
            (1, 1) => "One trial says nothing of how runs differ, so its cell has no rank.".to_string(),
            (some, all) if some == all => "No cell is ranked: each has only one valid trial.".to_string(),
            _ => "No cell is ranked; what is left out is listed below.".to_string(),
        }];
    }
    kinds.iter().map(|(cells, kind)| fastest_by_trials(grid, cells, kind)).collect()
}

fn fastest_by_trials(grid: &Grid, cells: &[&Cell], kind: &str) -> String {
    let rate = |cell: &Cell| cell.speed.map_or(String::new(), |speed| format!("{} tokens/s", units::number(speed.mid)));
    let best = cells[0];
    let [_, next, ..] = cells else {
        return format!(
            "One {kind} is ranked, so there is nothing to compare it with: {} at {}.",
            best.short,
            rate(best)
        );
    };
    let speeds: Vec<Interval> = cells.iter().filter_map(|cell| cell.speed).collect();
    let first = stats::places(&speeds).iter().filter(|place| place.rank == 1).count();
    if first == 1 {
        return format!(
            "{} is the fastest of {} {}: {}{}; the next is {} at {}.",
            best.short,
            cells.len(),
            plural(kind),
            rate(best),
            beside(grid, best, next),
            next.short,
            rate(next)
        );
    }
    format!(
        "Undecided which {kind} is the fastest: the 95 % intervals of {first} of {} overlap that of {}, which has the highest \
         median, {}.",
        cells.len(),
        best.short,
        rate(best)
    )
}
