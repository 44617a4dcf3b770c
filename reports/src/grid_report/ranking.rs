//! Who is fastest, how sure that is, and how to read ranks, in sentences.

use std::collections::BTreeSet;

use crate::batch::{self, Batch};
use crate::gather::counted;
use crate::grid::cell::crowding;
use crate::grid::labels::Axis;
use crate::grid::{Cell, Grid};
use crate::phrase::names_or_count;
use crate::record::Verdict;
use crate::stats::{self, Interval};
use crate::turns_analysis::TurnsAnalysis;
use crate::units;

/// Cells that are named in a sentence at most.
const NAMED: usize = 4;
/// With fewer trials, a remark says that intervals are wide because trials are few.
const ENOUGH_TRIALS: usize = 8;

/// Which cells are fastest, and which cannot be distinguished from them. Full fine-tunes and adapter runs are separate, because a
/// step of theirs is not the same work.
pub fn fastest(grid: &Grid) -> Vec<String> {
    let ranked: Vec<&Cell> = grid.ranked().collect();
    let (adapters, full): (Vec<&Cell>, Vec<&Cell>) = ranked.iter().partition(|cell| cell.has_adapter());
    match (full.is_empty(), adapters.is_empty()) {
        (true, true) => vec!["No cell is ranked; the tables below say why.".to_string()],
        (false, false) => vec![
            fastest_of(grid, &full, "full fine-tune", "full fine-tunes"),
            fastest_of(grid, &adapters, "adapter run", "adapter runs"),
        ],
        _ => vec![fastest_of(grid, &ranked, "cell", "ranked cells")],
    }
}

/// The fastest of these cells, which are in the order of their medians; at least one.
fn fastest_of(grid: &Grid, cells: &[&Cell], one: &str, many: &str) -> String {
    let rate = |cell: &Cell| cell.speed.map_or(String::new(), |speed| format!("{} tokens/s", units::number(speed.mid)));
    let best = cells[0];
    let [_, next, ..] = cells else {
        return format!(
            "One {one} is ranked, so there is nothing to compare it with: {} at {}.",
            best.label,
            rate(best)
        );
    };
    let speeds: Vec<Interval> = cells.iter().filter_map(|cell| cell.speed).collect();
    let places = stats::places(&speeds);
    let first: Vec<&Cell> =
        cells.iter().zip(&places).filter(|(_, place)| place.rank == 1).map(|(cell, _)| *cell).collect();
    if first.len() == 1 {
        return format!(
            "{} is the fastest of {} {many}: {}{}. The next is {} at {}; their 95 % intervals do not overlap.",
            best.label,
            cells.len(),
            rate(best),
            against_reference(grid, best),
            next.label,
            rate(next)
        );
    }
    let names: Vec<String> = first.iter().map(|cell| format!("{} ({})", cell.label, rate(cell))).collect();
    let names = names_or_count(&names, NAMED);
    let how = match first.len() {
        2 => "their 95 % intervals overlap".to_string(),
        _ => format!("the 95 % interval of each overlaps that of {}, which has the highest median", best.label),
    };
    let who = match (first.len(), cells.len()) {
        (2, 2) => format!("Both {many}"),
        (some, all) if some == all => format!("All {all} {many}"),
        (some, all) => format!("{some} of {all} {many}"),
    };
    format!("{who} may be the fastest: {names}; {how}, so the data do not say which is faster.")
}

fn against_reference(grid: &Grid, cell: &Cell) -> String {
    match (grid.reference(cell), grid.speed_ratio(cell)) {
        (Some(reference), Some(ratio)) if reference.key != cell.key => {
            format!(", {:.2} times its reference {}", ratio, reference.label)
        }
        _ => String::new(),
    }
}

/// The number of trials that are used, and of those that were set aside and why.
pub fn trials(grid: &Grid) -> Option<String> {
    let set_aside: Vec<_> = grid.measured().flat_map(Cell::set_aside).collect();
    let is_lone = |cell: &&Cell| match cell.used[..] {
        _ if grid.turned.is_some() => false,
        [record] => cell.verdict != Verdict::Failed && record.excluding_flags().next().is_none(),
        _ => false,
    };
    let lone = grid.measured().filter(is_lone).count();
    let mut sentences = Vec::new();
    if !set_aside.is_empty() {
        let flags = counted(set_aside.iter().flat_map(|record| record.excluding_flags()));
        let reason = |(flag, count): &(&str, usize)| {
            format!("{} in {}", flag_words(flag), units::plural(*count, "trial", "trials"))
        };
        let reasons: Vec<String> = flags.iter().map(reason).collect();
        let measured = grid.measured().map(|cell| cell.used.len()).sum::<usize>() + set_aside.len();
        sentences.push(format!(
            "The numbers rest on {} of {measured} measured trials; {} set aside: {}.",
            measured - set_aside.len(),
            units::plural(set_aside.len(), "was", "were"),
            units::list(&reasons)
        ));
    }
    let is_flagged = |cell: &&Cell| cell.used.iter().all(|record| record.excluding_flags().next().is_some());
    let flagged: Vec<&Cell> = grid.measured().filter(is_flagged).collect();
    if !flagged.is_empty() {
        let flags = flagged.iter().flat_map(|cell| &cell.used).flat_map(|record| record.excluding_flags());
        let flags: BTreeSet<&str> = flags.collect();
        sentences.push(format!(
            "{} of {} no valid trial and cannot be ranked: {}.",
            flagged.len(),
            match grid.measured().count() {
                1 => "1 measured cell has".to_string(),
                all => format!("{all} measured cells {}", if flagged.len() == 1 { "has" } else { "have" }),
            },
            units::list(&flags.into_iter().map(flag_words).collect::<Vec<_>>())
        ));
    }
    if lone > 0 {
        let (subject, is) = match (lone, grid.measured().count()) {
            (1, 1) => ("The measured cell has".to_string(), "is"),
            (1, all) => (format!("1 of {all} measured cells has"), "is"),
            (some, all) => (format!("{some} of {all} measured cells have"), "are"),
        };
        sentences.push(format!(
            "{subject} only one valid trial and {is} not ranked: how runs differ is seen from two trials on. \
             `zbench grid` measures what is missing (--trials 2 or more)."
        ));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// The meaning of a validity flag, with its name.
pub fn flag_words(flag: &str) -> String {
    let words = match flag {
        "busy_machine" => "other processes used the cores",
        "swap_used" => "memory was swapped out",
        "throttled" => "the processor was slowed for heat",
        "stolen" => "the hypervisor gave the cores to others",
        "contended" => "other processes used the cores that zbench may use",
        "swapped" => "the machine was swapping",
        "paged" => "pages came from a disk",
        "memory_pressure" => "tasks waited for memory",
        "cpu_quota" => "a processor quota held the cell back",
        "emulated_device" => "kernels for GPUs ran on the processor",
        "unsteady_peak" => "the peak of the cores moved",
        other => return other.to_string(),
    };
    format!("{words} ({flag})")
}

/// How to read ranks, letters and intervals of cells that took turns.
pub fn of_turns(turned: &TurnsAnalysis) -> String {
    format!(
        "Rows are in the order of the speed against the reference. It is compared within rounds, so that the machine's own course \
         cancels; the 98 % interval holds at whatever moment the measurement ended. A rank is the range of places that a cell \
         may have; cells that share a letter are not shown to differ, which does not make them equal: cells are called equal \
         where a difference of {} or more is excluded. Tokens per second are medians over turns, and say less: cells had \
         their turns at different moments (docs/statistics.md).",
        units::percent(turned.equal()).replace(".0 %", " %")
    )
}

/// How to read ranks and intervals.
pub fn intervals(grid: &Grid) -> String {
    let mut text = "Rows are in the order of the medians.".to_string();
    text += if grid.ranked().any(|cell| cell.place.is_some_and(|place| place.tied)) {
        " Cells that share a rank (=) are those whose interval overlaps that of the fastest among them, so the data do \
         not say which of them is faster; the fastest of the rest opens the next rank. Only the overlap \
         with the fastest of a rank counts: cells of different ranks may overlap each other."
    } else {
        " No rank is shared: no two intervals overlap."
    };
    let counts = || grid.ranked().map(|cell| cell.used.len());
    if let (Some(fewest), Some(most)) = (counts().min(), counts().max())
        && fewest < ENOUGH_TRIALS
    {
        let trials =
            if fewest == most { units::plural(most, "trial", "trials") } else { format!("{fewest} to {most} trials") };
        text += &format!(
            " The intervals are wide because there are few trials: {trials} for each cell, and Student's t is large for few."
        );
    }
    text
}

/// Where ranks and medians seem to disagree: ranks due to a wide interval, and intervals that reach the median of a faster cell in
/// a better rank.
pub fn wide(grid: &Grid) -> Vec<String> {
    let ranked: Vec<(&Cell, stats::Place, Interval)> =
        grid.ranked().filter_map(|cell| Some((cell, cell.place?, cell.speed?))).collect();
    let best_of = BestRank::new(ranked.iter().map(|(_, place, _)| *place).collect());
    let mut by_width = Vec::new();
    let mut reaching = Vec::new();
    let mut lowest_above = 0;
    for (cell, place, speed) in &ranked {
        if place.rank < lowest_above {
            by_width.push(format!("{} (rank {})", cell.label, place.label()));
        }
        lowest_above = lowest_above.max(place.rank);
        // Rows are in the order of the medians: those with a median from its own to the end of its interval are neighbours.
        let first = ranked.partition_point(|(_, _, other)| other.mid > speed.high);
        let last = ranked.partition_point(|(_, _, other)| other.mid >= speed.mid);
        if let Some(best) = best_of.among(first, last).filter(|best| best.rank < place.rank) {
            reaching.push(format!("{} (rank {}, into {})", cell.label, place.label(), best.label()));
        }
    }
    let mut items = Vec::new();
    if !by_width.is_empty() {
        let (have, their) =
            if by_width.len() == 1 { ("1 cell has its", "its") } else { ("Some cells have their", "their") };
        items.push(format!(
            "{have} rank from a wide interval, not from the median: {their} interval reaches the fastest of that rank though \
             cells of a worse rank have a higher median: {}.",
            names_or_count(&by_width, NAMED)
        ));
    }
    if !reaching.is_empty() {
        items.push(format!(
            "Intervals that reach the median of a faster cell in a better rank, so that this order is not shown either: {}.",
            names_or_count(&reaching, NAMED)
        ));
    }
    items
}

/// Finds the best rank in a range of neighbours in constant time (a sparse table): level k has the best of every 2^k neighbours.
struct BestRank(Vec<Vec<stats::Place>>);

impl BestRank {
    fn new(places: Vec<stats::Place>) -> Self {
        let mut levels = vec![places];
        for level in 0.. {
            let (below, width) = (&levels[level], 1 << level);
            if below.len() <= width {
                break;
            }
            let next = (0..below.len() - width).map(|at| better(below[at], below[at + width])).collect();
            levels.push(next);
        }
        Self(levels)
    }

    fn among(&self, first: usize, last: usize) -> Option<stats::Place> {
        let level = last.checked_sub(first)?.checked_ilog2()? as usize;
        Some(better(self.0[level][first], self.0[level][last - (1 << level)]))
    }
}

fn better(a: stats::Place, b: stats::Place) -> stats::Place {
    if b.rank < a.rank { b } else { a }
}

/// Keys that differ between measured cells and change the work of a token.
pub fn differing_work(grid: &Grid) -> Vec<String> {
    let (token, step) = work(grid);
    [token, step].concat()
}

/// Keys that change the work of a token, and those that change the work of a step.
fn work(grid: &Grid) -> (Vec<String>, Vec<String>) {
    let is_of = |path: &str, parts: &[&str]| {
        parts.iter().any(|part| path == *part || (part.ends_with('.') && path.starts_with(part)))
    };
    let measured: Vec<usize> = (0..grid.cells.len()).filter(|&cell| !grid.cells[cell].used.is_empty()).collect();
    let differs = |axis: &&Axis| measured.windows(2).any(|pair| axis.values[pair[0]] != axis.values[pair[1]]);
    let paths = |parts: &[&str]| -> Vec<String> {
        let paths = grid.axes.main.iter().filter(differs).map(|axis| axis.path.clone());
        paths.filter(|path| is_of(path, parts)).collect()
    };
    (paths(&["model", "model.", "lora", "lora.", "train.seq_len"]), paths(&["train.accumulation", "train.micro_batch"]))
}

/// A warning when ranks compare different work.
pub fn different_work(grid: &Grid) -> Option<String> {
    let differ =
        |paths: &[String]| format!("{} {}", units::list(paths), if paths.len() == 1 { "differs" } else { "differ" });
    let (token, step) = work(grid);
    let mut sentences = Vec::new();
    if !token.is_empty() {
        sentences.push(format!("{} between cells: a token does not cost the same work everywhere.", differ(&token)));
    }
    if !step.is_empty() {
        sentences.push(format!(
            "{} between cells: a step with more tokens spreads its optimizer update over more of them.",
            differ(&step)
        ));
    }
    (!sentences.is_empty()).then(|| sentences.join(" ") + " The ranks still compare tokens per second.")
}

/// A warning when losses are those of different trainings.
pub fn batches(grid: &Grid) -> Option<String> {
    batch::advice(&grid.measured().filter_map(|cell| Batch::of(cell.record())).collect::<Vec<_>>())
}

/// Where the ranks of a host have more threads than it has cores: ranks, threads of each and cores of the fullest host, and the
/// number of such cells.
pub fn crowded(grid: &Grid) -> Option<(u64, u64, u64, usize)> {
    let sharing: Vec<(u64, u64, u64)> = grid.measured().filter_map(|cell| crowding(cell.record())).collect();
    let (ranks, threads, cores) = *sharing.iter().max_by_key(|(ranks, threads, _)| ranks.saturating_mul(*threads))?;
    Some((ranks, threads, cores, sharing.len()))
}

/// The same in words.
pub fn shared_cores(grid: &Grid) -> Option<String> {
    let (ranks, threads, cores, some) = crowded(grid)?;
    let all = grid.measured().count();
    let where_ = if some == all { String::new() } else { format!(" in {some} of {all} measured cells") };
    Some(format!(
        "Ranks share cores{where_} (up to {} of {} on {}): while a rank waits for a core the others wait for it, and that time \
         is counted as exposed communication.",
        units::plural(ranks as usize, "rank", "ranks"),
        units::plural(threads as usize, "thread", "threads"),
        units::plural(cores as usize, "core", "cores")
    ))
}
