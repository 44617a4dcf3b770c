//! The tables of a comparison.

use super::{screen, words};
use crate::document::{Entry, Table, Tone};
use crate::figures;
use crate::gather::{distinct, grouped};
use crate::grid::{Cell, Grid};
use crate::record::{Category, Communication, Record, Status, Verdict};
use crate::stats::Interval;
use crate::table::TableBuilder;
use crate::units;

/// The main table: one row for each cell with at least one measured trial and without a parity failure. The most important
/// columns come first, so that a terminal that must break the table keeps them together.
pub fn speed(grid: &Grid) -> Table {
    let is_shown = |cell: &Cell| !cell.used.is_empty() && cell.verdict != Verdict::Failed;
    let cells: Vec<(usize, &Cell)> = grid.cells.iter().enumerate().filter(|(_, cell)| is_shown(cell)).collect();
    let tone = |cell: &Cell| match &cell.unranked {
        _ if cell.place.is_some_and(|place| place.rank == 1) => Tone::Good,
        Some(_) => Tone::Warning,
        None => Tone::Plain,
    };
    let ms = |ms: f64| format!("{} ms", units::number(ms));
    let metric = |cell: &Cell, name: &str, show: fn(f64) -> String| Entry::maybe(cell.metric(name), show);
    // Without a speed that counts there are no other figures of it, either.
    let of_speed = |cell: &Cell, name: &str, show: fn(f64) -> String| match cell.speed {
        Some(_) => metric(cell, name, show),
        None => Entry::nothing(),
    };
    let mut table = Table::of("cells", &cells);
    table.words("cell", |(_, cell)| &cell.label);
    let rank = |cell: &Cell| cell.place.map(|_| screen::rank(grid, cell));
    table.words("place", |(_, cell)| Entry::from(rank(cell)).toned(tone(cell)));
    table.numbers("tokens/s", "tokens/s", |(_, cell)| {
        Entry::maybe(cell.speed.map(|speed| speed.mid), units::number).toned(tone(cell))
    });
    // Trials have an interval of the speed, turns one of the ratio.
    match &grid.turned {
        None => {
            let limit =
                |cell: &Cell, value: fn(Interval) -> f64| Entry::maybe(cell.interval().map(value), units::number);
            let interval = |speed: Interval| format!("{}–{}", units::number(speed.low), units::number(speed.high));
            table.words("95 % interval", |(_, cell)| cell.interval().map(interval));
            table.numbers("low", "tokens/s", |(_, cell)| limit(cell, |speed| speed.low)).for_machines = true;
            table.numbers("high", "tokens/s", |(_, cell)| limit(cell, |speed| speed.high)).for_machines = true;
            add_ratio(&mut table, grid);
        }
        Some(turned) => {
            let pair = |cell: &Cell| {
                let pair = turned.against_reference(cell.key).filter(|pair| cell.place.is_some() && pair.rounds > 0);
                pair.cloned()
            };
            let limits = |cell: &Cell| pair(cell).and_then(|pair| pair.low.zip(pair.high));
            let multiple = |value: f64| format!("{value:.3}");
            let verdict = |cell: &Cell| {
                let base = grid.base().filter(|_| pair(cell).is_some())?;
                Some(Entry::json(&serde_json::to_value(grid.verdict(base, cell)).ok()?))
            };
            add_ratio(&mut table, grid);
            table.words("98 % interval of it", |(_, cell)| {
                limits(cell).map(|(low, high)| format!("{low:.2}–{high:.2}"))
            });
            let low = |cell: &Cell| limits(cell).map(|(low, _)| low);
            table.numbers("× low", "", |(_, cell)| Entry::maybe(low(cell), multiple)).for_machines = true;
            let high = |cell: &Cell| limits(cell).map(|(_, high)| high);
            table.numbers("× high", "", |(_, cell)| Entry::maybe(high(cell), multiple)).for_machines = true;
            table.words("against the reference", |(_, cell)| verdict(cell)).for_machines = true;
            table.words("tie", |(_, cell)| cell.place.map(|_| turned.tie(cell.key)));
            table.numbers("rounds", "", |(_, cell)| pair(cell).map(|pair| pair.rounds)).for_machines = true;
        }
    }
    table.numbers("peak memory", "bytes", |(_, cell)| beside_plan(cell.predicted_peak_bytes(), cell.peak_bytes()));
    table.memory("peak memory, plan", |(_, cell)| cell.predicted_peak_bytes()).for_machines = true;
    table.numbers("wire per step", "bytes", |(_, cell)| {
        Entry::measured(cell.wire_bytes(), cell.record().wire_is_planned(), units::traffic)
    });
    let planned_wire = |cell: &Cell| Entry::maybe(cell.record().predicted_wire_bytes(), units::traffic);
    table.numbers("wire per step, plan", "bytes", |(_, cell)| planned_wire(cell)).for_machines = true;
    table.words("loss parity", |(_, cell)| cell.verdict.words());
    let all_ranked = cells.iter().all(|(_, cell)| cell.unranked.is_none());
    let why = |cell: &Cell| Entry::from(cell.unranked.as_ref()).toned(tone(cell));
    table.words("not ranked for", |(_, cell)| why(cell)).for_machines = all_ranked;
    table.numbers("MFU", "fraction", |(_, cell)| of_speed(cell, "mfu", units::percent));
    table.numbers("MFU, PaLM", "fraction", |(_, cell)| of_speed(cell, "mfu_palm", units::percent)).for_machines = true;
    table.numbers("HFU", "fraction", |(_, cell)| of_speed(cell, "hfu", units::percent)).for_machines = true;
    table.numbers("step p50", "ms", |(_, cell)| of_speed(cell, "step_ms_p50", ms)).for_machines = true;
    table.numbers("exposed", "ms", |(_, cell)| of_speed(cell, "exposed_communication_ms", ms));
    if cells.iter().any(|(_, cell)| cell.metric("bubble").is_some()) {
        table.numbers("bubble", "fraction", |(_, cell)| metric(cell, "bubble", units::percent));
    }
    let difference = |cell: &Cell| Entry::maybe(words::largest_difference(cell), units::number);
    table.numbers("largest loss difference", "relative", |(_, cell)| difference(cell)).for_machines = true;
    table.numbers("last loss", "nats", |(_, cell)| metric(cell, "loss_last", |loss| format!("{loss:.4}")));
    table.words("trials", |(_, cell)| cell.trial_count());
    table.words("record", |(_, cell)| grid.short_id(&cell.record().id));
    table.words("repeat", |(_, cell)| repeat_command(grid, cell.record()));
    table.words("record id", |(_, cell)| &cell.record().id).for_machines = true;
    table.words("key", |(_, cell)| cell.key).for_machines = true;
    table.words("strategy", |(_, cell)| cell.strategy()).for_machines = true;
    // Of interest where cells train different parts of the model.
    let shares: Vec<Option<f64>> = cells.iter().map(|(_, cell)| cell.trainable_share()).collect();
    if shares.windows(2).any(|pair| pair[0] != pair[1]) {
        let percent = |share: f64| format!("{} %", units::number(share * 100.0));
        table.numbers("trainable", "fraction", |(_, cell)| Entry::maybe(cell.trainable_share(), percent));
    }
    for axis in &grid.axes.main {
        table.words(&axis.path, |(place, _)| &axis.values[*place]).for_machines = true;
    }
    let speeds = match grid.turned {
        Some(_) => "the median over turns, and the ratio to the reference over common rounds with its 98 % interval",
        None => "with the 95 % interval over trials",
    };
    table.build().caption(
        format!("Tokens per second of all ranks together, {speeds} (docs/statistics.md); MFU by the \
         record's default convention (model FLOPs: exact matrix products, the causal half of attention, no recomputation; docs/flops.md); \
         peak memory and bytes on the wire of the largest rank (MiB = 2^20, MB = 10^6 bytes); exposed communication per step; last \
         loss in nats. The record is the one that stands for the cell; all of them are listed at the end."),
    )
}

fn add_ratio(table: &mut TableBuilder<(usize, &Cell)>, grid: &Grid) {
    table.numbers("× reference", "", |(_, cell)| Entry::maybe(grid.speed_ratio(cell), |ratio| format!("{ratio:.2}")));
}

/// Cells whose losses are not the reference's: shown, struck out, not ranked.
pub fn failed_parity(grid: &Grid) -> Table {
    let cells: Vec<&Cell> = grid.measured().filter(|cell| cell.verdict == Verdict::Failed).collect();
    let mut table = Table::of("failed parity", &cells);
    table.words("cell", |cell| &cell.label);
    table.numbers("tokens/s", "tokens/s", |cell| {
        Entry::maybe(cell.speed.map(|speed| speed.mid), units::number).toned(Tone::Struck)
    });
    table.numbers("largest loss difference", "relative", |cell| {
        Entry::maybe(words::largest_difference(cell), units::number).toned(Tone::Warning)
    });
    table.words("reference", |cell| {
        let reference = cell.used.iter().find_map(|record| record.parity.reference.as_deref());
        reference.map(|id| grid.short_id(id))
    });
    table.words("record", |cell| grid.short_id(&cell.record().id));
    table.words("repeat", |cell| repeat_command(grid, cell.record()));
    table.build()
}

/// Peak memory by category, measured against the plan; cells that did not run show the plan.
pub fn memory(grid: &Grid) -> Option<Table> {
    let planned = |cell: &Cell, part: Option<Category>| match part {
        Some(category) => cell.category_prediction(category),
        None => cell.predicted_peak_bytes(),
    };
    let measured = |cell: &Cell, part: Option<Category>| match part {
        Some(category) => cell.category_peak(category),
        None => cell.peak_bytes(),
    };
    let parts = || std::iter::once(None).chain(Category::ALL.map(Some));
    let is_known = |cell: &&Cell| parts().any(|part| planned(cell, part).or(measured(cell, part)).is_some());
    let cells: Vec<&Cell> = grid.cells.iter().filter(is_known).collect();
    let mut table = Table::of("memory", &cells);
    table.words("cell", |cell| &cell.label);
    for part in parts() {
        let title = part.map_or("all together", Category::name);
        table.numbers(title, "bytes", |cell| beside_plan(planned(cell, part), measured(cell, part)));
        table.memory(format!("{title}, plan"), |cell| planned(cell, part)).for_machines = true;
    }
    table.words("record", |cell| grid.short_id(&cell.record().id));
    table.words("repeat", |cell| repeat_command(grid, cell.record())).for_machines = true;
    table
        .build()
        .caption(
            "Peak of the largest rank. Categories peak at different moments, so they may add up to more than all together. \
             The plan stands beside a number where it differs, and alone where nothing ran.",
        )
        .non_empty()
}

fn beside_plan(predicted: Option<u64>, measured: Option<u64>) -> Entry {
    let show = |bytes: u64| units::memory(bytes as f64);
    match (predicted, measured) {
        (Some(predicted), Some(measured)) if predicted != measured => {
            Entry::whole(measured, format!("{} (plan {})", show(measured), show(predicted))).toned(Tone::Warning)
        }
        (Some(predicted), None) => Entry { text: format!("plan {}", show(predicted)), ..Entry::nothing() },
        (_, measured) => Entry::memory(measured),
    }
}

/// Where the step's time goes: spans that add up to the step.
pub fn time(grid: &Grid) -> Option<Table> {
    let (used, empty) = figures::spans(grid);
    let total = |cell: &Cell| used.iter().filter_map(|span| cell.span_ms(span)).reduce(|sum, ms| sum + ms);
    let cells: Vec<&Cell> = grid.measured().filter(|cell| total(cell).is_some()).collect();
    let show = |ms: f64| format!("{} ms", units::number(ms));
    let mut table = Table::of("time", &cells);
    table.words("cell", |cell| &cell.label);
    table.numbers("step", "ms", |cell| Entry::maybe(total(cell), show));
    for span in &used {
        table.numbers(span.replace('_', " "), "ms", |cell| Entry::maybe(cell.span_ms(span), show));
    }
    table.words("record", |cell| grid.short_id(&cell.record().id));
    table.words("repeat", |cell| repeat_command(grid, cell.record())).for_machines = true;
    let mut caption =
        "Milliseconds per step of the slowest rank, mean over the trials; the spans add up to the step.".to_string();
    if !empty.is_empty() {
        caption += &format!(" No cell spends time in: {}.", empty.join(", "));
    }
    (!used.is_empty()).then(|| table.build().caption(caption))
}

/// What travels, by mesh axis and collective.
pub fn communication(grid: &Grid) -> Option<Table> {
    let of_cell = |cell: &'_ Cell| -> Vec<(String, String)> {
        let entries = cell.used.iter().flat_map(|record| &record.communication);
        distinct(entries.map(|entry| (entry.axis.clone(), entry.kind.clone())))
    };
    let mut rows: Vec<(&Cell, String, String)> = Vec::new();
    for cell in grid.measured() {
        rows.extend(of_cell(cell).into_iter().map(|(axis, kind)| (cell, axis, kind)));
    }
    let of = |(cell, axis, kind): &(&Cell, String, String), value: fn(&Communication) -> Option<f64>| {
        cell.communication(axis, kind, value)
    };
    let ms = |ms: f64| format!("{} ms", units::number(ms));
    let bandwidth = |rate: f64| format!("{} GB/s", units::number(rate));
    let mut table = Table::of("communication", &rows);
    table.words("cell", |(cell, ..)| &cell.label);
    table.words("axis", |(_, axis, _)| axis);
    table.words("collective", |(.., kind)| kind);
    table.numbers("calls", "per step", |row| Entry::maybe(of(row, |entry| Some(entry.calls)), units::quantity));
    table.numbers("payload", "bytes", |row| Entry::maybe(of(row, |entry| Some(entry.payload_bytes)), units::traffic));
    table.numbers("wire", "bytes", |row| {
        Entry::measured(of(row, |entry| Some(entry.wire_bytes)), row.0.record().wire_is_planned(), units::traffic)
    });
    table.numbers("wire, plan", "bytes", |row| {
        Entry::maybe(of(row, |entry| entry.predicted_wire_bytes), units::traffic)
    });
    table.numbers("time", "ms", |row| Entry::maybe(of(row, |entry| Some(entry.ms)), ms));
    table.numbers("exposed", "ms", |row| Entry::maybe(of(row, |entry| Some(entry.exposed_ms)), ms));
    table.numbers("algbw", "GB/s", |row| Entry::maybe(of(row, |entry| entry.algbw_gb_s), bandwidth));
    table.numbers("busbw", "GB/s", |row| Entry::maybe(of(row, |entry| entry.busbw_gb_s), bandwidth));
    table.words("record", |(cell, ..)| grid.short_id(&cell.record().id));
    table.words("repeat", |(cell, ..)| repeat_command(grid, cell.record())).for_machines = true;
    table
        .build()
        .caption(
            "Per step: bytes of the largest rank, times of the slowest. algbw = nccl-tests' size / time, where the size of \
             an all-reduce is half its payload; busbw = algbw × nccl-tests' factor; GB = 10^9 bytes.",
        )
        .non_empty()
}

/// Every trial that was not measured, those of a cell with the same outcome together.
pub fn unmeasured(grid: &Grid) -> Option<Table> {
    let mut groups: Vec<(&Cell, Vec<&Record>)> = Vec::new();
    for cell in &grid.cells {
        let first = groups.len();
        for record in cell.trials.iter().filter(|record| !record.is_measured()) {
            match groups[first..].iter_mut().find(|(_, group)| group[0].outcome == record.outcome) {
                Some((_, group)) => group.push(record),
                None => groups.push((cell, vec![record])),
            }
        }
    }
    let mut table = Table::of("not measured", &groups);
    table.words("cell", |(cell, _)| &cell.label);
    table.words("outcome", |(_, group)| Entry::words(group[0].outcome.status.name()).toned(Tone::Warning));
    table.words("found by", |(_, group)| group[0].outcome.source.map(|source| source.name()));
    table.words("reason", |(_, group)| match group[0].outcome.reason.as_str() {
        "" => "no reason was recorded",
        reason => reason,
    });
    table.numbers("trials", "", |(_, group)| group.len());
    table.words("record", |(_, group)| grid.short_id(&group[0].id));
    table.words("repeat", |(_, group)| repeat_command(grid, group[0]));
    table.build().non_empty()
}

/// Measured trials with validity flags: those of a cell with the same flags in one row.
pub fn flagged(grid: &Grid) -> Table {
    let mut rows: Vec<(&Cell, Vec<&str>, Vec<&Record>)> = Vec::new();
    for cell in grid.measured() {
        let measured = cell.trials.iter().copied().filter(|record| record.is_measured());
        let groups = grouped(measured.map(|record| (record.excluding_flags().collect::<Vec<&str>>(), record)));
        let flagged = groups.into_iter().filter(|(flags, _)| !flags.is_empty());
        rows.extend(flagged.map(|(flags, records)| (cell, flags, records)));
    }
    let joined = |records: &[&Record], text: &dyn Fn(&Record) -> String| {
        records.iter().map(|record| text(record)).collect::<Vec<_>>().join(" ")
    };
    let is_used = |cell: &Cell, record: &Record| cell.used.iter().any(|used| std::ptr::eq(*used, record));
    let mut table = Table::of("flagged trials", &rows);
    table.words("cell", |(cell, ..)| &cell.label);
    table.words("trials", |(.., records)| joined(records, &|record| record.trial.to_string()));
    table.words("records", |(.., records)| joined(records, &|record| grid.short_id(&record.id).to_string()));
    table.words("flags", |(_, flags, _)| flags.join(", "));
    table.words("so", |(cell, _, records)| if is_used(cell, records[0]) { "cell not ranked" } else { "set aside" });
    table.build()
}

/// Where every row comes from and how to run it again.
pub fn repeat(grid: &Grid) -> Table {
    let ids = |cell: &Cell| {
        let ids: Vec<&str> = cell.trials.iter().chain(&cell.twins).map(|record| record.id.as_str()).collect();
        let short_ids: Vec<&str> = ids.iter().map(|id| grid.short_id(id)).collect();
        Entry::shortened(&ids.join(" "), &short_ids.join(" "))
    };
    let mut table = Table::of("repeat", &grid.cells);
    table.words("cell", |cell| &cell.label);
    table.words("configuration key", |cell| Entry::shortened(cell.key, grid.short_key(cell.key)));
    table.words("records", ids);
    table.words("repeat a trial", |cell| repeat_command(grid, cell.record()));
    let command = |cell: &Cell| Some(cell.record().command.clone()).filter(|command| !command.is_empty());
    table.words("made by", command).for_machines = true;
    table.build()
}

/// The commands that made the records, with the records of each.
pub fn made_by(commands: &[(&str, Vec<&Record>)], grid: &Grid) -> Table {
    let ids =
        |records: &[&Record]| records.iter().map(|record| grid.short_id(&record.id)).collect::<Vec<_>>().join(" ");
    let mut table = Table::of("made by", commands);
    table.words("made by", |(command, _)| if command.is_empty() { "not recorded" } else { command });
    table.numbers("records", "", |(_, records)| records.len());
    table.words("record ids", |(_, records)| ids(records));
    table.build()
}

/// The command that runs a record's cell again; where nothing ran, the one that asked for it.
pub fn repeat_command(grid: &Grid, record: &Record) -> String {
    match record.outcome.status {
        Status::Skipped if record.command.is_empty() => "the command is not recorded".to_string(),
        Status::Skipped => record.command.clone(),
        _ => format!("zbench repro {}", grid.short_id(&record.id)),
    }
}
