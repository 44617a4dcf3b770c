//! The tables of a comparison.

use super::{screen, words};
use crate::document::{Column, Entry, Table, Tone};
use crate::grid::{Cell, Grid};
use crate::record::{Category, Record, Status, Verdict};
use crate::units;

/// The main table: one row for each cell with at least one measured trial and without a parity failure. The columns
/// that matter most come first, so that a terminal that must break the table keeps them together.
pub fn speed(grid: &Grid) -> Table {
    let mut columns = vec![
        Column::words("cell"),
        Column::words("place"),
        Column::numbers("tokens/s", "tokens/s"),
        Column::words("95 % interval"),
        Column::numbers("low", "tokens/s").for_machines(),
        Column::numbers("high", "tokens/s").for_machines(),
        Column::numbers("× reference", ""),
        Column::words("98 % interval of it"),
        Column::numbers("× low", "").for_machines(),
        Column::numbers("× high", "").for_machines(),
        Column::words("against the reference").for_machines(),
        Column::words("tie"),
        Column::numbers("rounds", "").for_machines(),
        Column::numbers("peak memory", "bytes"),
        Column::numbers("peak memory, plan", "bytes").for_machines(),
        Column::numbers("wire per step", "bytes"),
        Column::numbers("wire per step, plan", "bytes").for_machines(),
        Column::words("loss parity"),
        Column::words("not ranked for"),
        Column::numbers("MFU", "fraction"),
        Column::numbers("MFU, PaLM", "fraction").for_machines(),
        Column::numbers("HFU", "fraction").for_machines(),
        Column::numbers("step p50", "ms").for_machines(),
        Column::numbers("exposed", "ms"),
        Column::numbers("largest loss difference", "relative").for_machines(),
        Column::numbers("last loss", "nats"),
        Column::words("trials"),
        Column::words("record"),
        Column::words("repeat"),
        Column::words("record id").for_machines(),
        Column::words("key").for_machines(),
        Column::words("strategy").for_machines(),
    ];
    // Trials have an interval of the speed, turns one of the ratio.
    let by_turns = grid.turned.is_some();
    let is_of_the_other = |column: &Column| match by_turns {
        true => ["95 % interval", "low", "high"].contains(&column.title.as_str()),
        false => OF_TURNS.contains(&column.title.as_str()),
    };
    let kept: Vec<bool> = columns.iter().map(|column| !is_of_the_other(column)).collect();
    let mut places = kept.iter();
    columns.retain(|_| places.next() == Some(&true));
    if grid.cells.iter().all(|cell| !is_shown(cell) || cell.unranked.is_none())
        && let Some(reason) = columns.iter_mut().find(|column| column.title == "not ranked for")
    {
        reason.for_machines = true;
    }
    // Of interest where cells train different parts of the model.
    let shares: Vec<Option<f64>> = grid.cells.iter().filter(|cell| is_shown(cell)).map(Cell::trainable_share).collect();
    let shares_differ = shares.windows(2).any(|pair| pair[0] != pair[1]);
    if shares_differ {
        columns.push(Column::numbers("trainable", "fraction"));
    }
    columns.extend(grid.axes.telling.iter().map(|axis| Column::words(&axis.path).for_machines()));
    let speeds = match by_turns {
        true => "the median over turns, and the ratio to the reference over common rounds with its 98 % interval",
        false => "with the 95 % interval over trials",
    };
    let mut table = Table::new("cells", columns).caption(
        format!("Tokens per second of all ranks together, {speeds} (docs/statistics.md); MFU by the \
         record's default convention (model FLOPs: exact matrix products, the causal half of attention, no recomputation; docs/flops.md); \
         peak memory and bytes on the wire of the largest rank (MiB = 2^20, MB = 10^6 bytes); exposed communication per step; last \
         loss in nats. The record is the one that stands for the cell; all of them are listed at the end."),
    );
    for (place, cell) in grid.cells.iter().enumerate() {
        if !is_shown(cell) {
            continue;
        }
        let mut places = kept.iter();
        let mut row = speed_row(grid, cell);
        row.retain(|_| places.next() == Some(&true));
        if shares_differ {
            row.push(Entry::maybe(cell.trainable_share(), |share| format!("{} %", units::number(share * 100.0))));
        }
        row.extend(grid.axes.telling.iter().map(|axis| Entry::words(&axis.values[place])));
        table.row(row);
    }
    table
}

/// Columns of cells that took turns.
const OF_TURNS: [&str; 6] = ["98 % interval of it", "× low", "× high", "against the reference", "tie", "rounds"];

fn is_shown(cell: &Cell) -> bool {
    !cell.used.is_empty() && cell.verdict != Verdict::Failed
}

fn speed_row(grid: &Grid, cell: &Cell) -> Vec<Entry> {
    let record = cell.record();
    let is_first = cell.place.is_some_and(|place| place.rank == 1);
    let tone = match (is_first, &cell.unranked) {
        (true, _) => Tone::Good,
        (false, Some(_)) => Tone::Warning,
        (false, None) => Tone::Plain,
    };
    let rank = cell.place.map_or_else(Entry::nothing, |_| Entry::words(screen::rank(grid, cell)));
    let turned = grid.turned.as_ref().filter(|_| cell.place.is_some());
    let pair = turned.and_then(|turned| turned.against_reference(cell.key)).filter(|pair| pair.rounds > 0);
    let limits = pair.and_then(|pair| pair.low.zip(pair.high));
    let multiple = |value: f64| format!("{value:.3}");
    let verdict = grid.base().filter(|_| pair.is_some()).map(|base| grid.verdict(base, cell));
    let verdict = verdict.and_then(|verdict| serde_json::to_value(verdict).ok());
    let ms = |ms: f64| format!("{} ms", units::number(ms));
    let limit = |value: fn(crate::stats::Interval) -> f64| Entry::maybe(cell.interval().map(value), units::number);
    let interval = cell.interval().map_or_else(Entry::nothing, |speed| {
        Entry::words(format!("{}–{}", units::number(speed.low), units::number(speed.high)))
    });
    vec![
        Entry::words(&cell.label),
        rank.toned(tone),
        Entry::maybe(cell.speed.map(|speed| speed.mid), units::number).toned(tone),
        interval,
        limit(|speed| speed.low),
        limit(|speed| speed.high),
        Entry::maybe(grid.speed_ratio(cell), |ratio| format!("{ratio:.2}")),
        limits.map_or_else(Entry::nothing, |(low, high)| Entry::words(format!("{low:.2}–{high:.2}"))),
        Entry::maybe(limits.map(|limits| limits.0), multiple),
        Entry::maybe(limits.map(|limits| limits.1), multiple),
        verdict.map_or_else(Entry::nothing, |verdict| Entry::json(&verdict)),
        turned.map_or_else(Entry::nothing, |turned| Entry::words(turned.tie(cell.key))),
        pair.map_or_else(Entry::nothing, |pair| Entry::whole(pair.rounds as u64, pair.rounds.to_string())),
        beside_plan(cell.predicted_peak_bytes(), cell.peak_bytes()),
        Entry::memory(cell.predicted_peak_bytes()),
        Entry::measured(cell.wire_bytes(), record.wire_is_planned(), units::traffic),
        Entry::maybe(record.predicted_wire_bytes(), units::traffic),
        Entry::words(cell.verdict.words()),
        cell.unranked.as_ref().map_or_else(Entry::nothing, Entry::words).toned(tone),
        Entry::maybe(cell.metric("mfu"), units::percent),
        Entry::maybe(cell.metric("mfu_palm"), units::percent),
        Entry::maybe(cell.metric("hfu"), units::percent),
        Entry::maybe(cell.metric("step_ms_p50"), ms),
        Entry::maybe(cell.metric("exposed_communication_ms"), ms),
        Entry::maybe(words::largest_difference(cell), units::number),
        Entry::maybe(cell.metric("loss_last"), |loss| format!("{loss:.4}")),
        Entry::words(cell.trial_count()),
        Entry::words(grid.short_id(&record.id)),
        Entry::words(repeat_command(grid, record)),
        Entry::words(&record.id),
        Entry::words(cell.key),
        Entry::words(cell.strategy()),
    ]
}

/// Cells whose losses are not the reference's: shown, struck out, not ranked.
pub fn failed_parity(grid: &Grid) -> Option<Table> {
    let columns = vec![
        Column::words("cell"),
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("largest loss difference", "relative"),
        Column::words("reference"),
        Column::words("record"),
        Column::words("repeat"),
    ];
    let mut table = Table::new("failed parity", columns);
    for cell in grid.measured().filter(|cell| cell.verdict == Verdict::Failed) {
        let reference = cell.used.iter().find_map(|record| record.parity.reference.as_deref());
        table.row(vec![
            Entry::words(&cell.label),
            Entry::maybe(cell.speed.map(|speed| speed.mid), units::number).toned(Tone::Struck),
            Entry::maybe(words::largest_difference(cell), units::number).toned(Tone::Warning),
            reference.map_or_else(Entry::nothing, |id| Entry::words(grid.short_id(id))),
            Entry::words(grid.short_id(&cell.record().id)),
            Entry::words(repeat_command(grid, cell.record())),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Peak memory by category, measured against the plan; cells that did not run show the plan.
pub fn memory(grid: &Grid) -> Option<Table> {
    let mut columns = vec![Column::words("cell"), Column::numbers("all together", "bytes")];
    columns.push(Column::numbers("all together, plan", "bytes").for_machines());
    for category in Category::ALL {
        columns.push(Column::numbers(category.name(), "bytes"));
        columns.push(Column::numbers(format!("{}, plan", category.name()), "bytes").for_machines());
    }
    columns.push(Column::words("record"));
    columns.push(Column::words("repeat").for_machines());
    let mut table = Table::new("memory", columns).caption(
        "Peak of the largest rank. Categories peak at different moments, so they may add up to more than all together. \
         The plan stands beside a number where it differs, and alone where nothing ran.",
    );
    for cell in &grid.cells {
        let total = (cell.predicted_peak_bytes(), cell.peak_bytes());
        let parts = Category::ALL.map(|category| (cell.category_prediction(category), cell.category_peak(category)));
        if std::iter::once(&total).chain(&parts).all(|pair| *pair == (None, None)) {
            continue;
        }
        let mut row = vec![Entry::words(&cell.label)];
        for (predicted, measured) in std::iter::once(total).chain(parts) {
            row.push(beside_plan(predicted, measured));
            row.push(Entry::memory(predicted));
        }
        row.push(Entry::words(grid.short_id(&cell.record().id)));
        row.push(Entry::words(repeat_command(grid, cell.record())));
        table.row(row);
    }
    (!table.rows.is_empty()).then_some(table)
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
    let mut spans: Vec<&str> = Vec::new();
    for record in grid.measured().flat_map(|cell| &cell.used) {
        for span in record.time.names() {
            if !spans.contains(&span) {
                spans.push(span);
            }
        }
    }
    let has_time = |span: &str| grid.measured().any(|cell| cell.span_ms(span).is_some_and(|ms| ms != 0.0));
    let (used, empty): (Vec<&str>, Vec<&str>) = spans.into_iter().partition(|span| has_time(span));
    if used.is_empty() {
        return None;
    }
    let mut columns = vec![Column::words("cell"), Column::numbers("step", "ms")];
    columns.extend(used.iter().map(|span| Column::numbers(span.replace('_', " "), "ms")));
    columns.push(Column::words("record"));
    columns.push(Column::words("repeat").for_machines());
    let mut caption =
        "Milliseconds per step of the slowest rank, mean over the trials; the spans add up to the step.".to_string();
    if !empty.is_empty() {
        caption += &format!(" No cell spends time in: {}.", empty.join(", "));
    }
    let mut table = Table::new("time", columns).caption(caption);
    for cell in grid.measured() {
        let times: Vec<Option<f64>> = used.iter().map(|span| cell.span_ms(span)).collect();
        if times.iter().all(Option::is_none) {
            continue;
        }
        let show = |ms: f64| format!("{} ms", units::number(ms));
        let mut row = vec![Entry::words(&cell.label), Entry::number(times.iter().flatten().sum(), "")];
        row[1].text = row[1].value.as_f64().map_or_else(String::new, show);
        row.extend(times.into_iter().map(|ms| Entry::maybe(ms, show)));
        row.push(Entry::words(grid.short_id(&cell.record().id)));
        row.push(Entry::words(repeat_command(grid, cell.record())));
        table.row(row);
    }
    Some(table)
}

/// What travels, by mesh axis and collective.
pub fn communication(grid: &Grid) -> Option<Table> {
    let columns = vec![
        Column::words("cell"),
        Column::words("axis"),
        Column::words("collective"),
        Column::numbers("calls", "per step"),
        Column::numbers("payload", "bytes"),
        Column::numbers("wire", "bytes"),
        Column::numbers("wire, plan", "bytes"),
        Column::numbers("time", "ms"),
        Column::numbers("exposed", "ms"),
        Column::numbers("algbw", "GB/s"),
        Column::numbers("busbw", "GB/s"),
        Column::words("record"),
        Column::words("repeat").for_machines(),
    ];
    let mut table = Table::new("communication", columns).caption(
        "Per step: bytes of the largest rank, times of the slowest. algbw = nccl-tests' size / time, where the size of \
         an all-reduce is half its payload; busbw = algbw × nccl-tests' factor; GB = 10^9 bytes.",
    );
    for cell in grid.measured() {
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for entry in cell.used.iter().flat_map(|record| &record.communication) {
            let id = (entry.axis.as_str(), entry.kind.as_str());
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            let of = |value: fn(&crate::record::Communication) -> Option<f64>| cell.communication(id.0, id.1, value);
            let ms = |ms: f64| format!("{} ms", units::number(ms));
            let bandwidth = |rate: f64| format!("{} GB/s", units::number(rate));
            table.row(vec![
                Entry::words(&cell.label),
                Entry::words(id.0),
                Entry::words(id.1),
                Entry::maybe(of(|entry| Some(entry.calls)), units::quantity),
                Entry::maybe(of(|entry| Some(entry.payload_bytes)), units::traffic),
                Entry::measured(of(|entry| Some(entry.wire_bytes)), cell.record().wire_is_planned(), units::traffic),
                Entry::maybe(of(|entry| entry.predicted_wire_bytes), units::traffic),
                Entry::maybe(of(|entry| Some(entry.ms)), ms),
                Entry::maybe(of(|entry| Some(entry.exposed_ms)), ms),
                Entry::maybe(of(|entry| entry.algbw_gb_s), bandwidth),
                Entry::maybe(of(|entry| entry.busbw_gb_s), bandwidth),
                Entry::words(grid.short_id(&cell.record().id)),
                Entry::words(repeat_command(grid, cell.record())),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Every trial that was not measured, equal ones of a cell together.
pub fn unmeasured(grid: &Grid) -> Option<Table> {
    let columns = vec![
        Column::words("cell"),
        Column::words("outcome"),
        Column::words("found by"),
        Column::words("reason"),
        Column::numbers("trials", ""),
        Column::words("record"),
        Column::words("repeat"),
    ];
    let mut table = Table::new("not measured", columns);
    for cell in &grid.cells {
        let mut groups: Vec<Vec<&Record>> = Vec::new();
        for record in cell.trials.iter().filter(|record| !record.is_measured()) {
            match groups.iter_mut().find(|group| group[0].outcome == record.outcome) {
                Some(group) => group.push(record),
                None => groups.push(vec![record]),
            }
        }
        for group in groups {
            let outcome = &group[0].outcome;
            let reason = if outcome.reason.is_empty() { "no reason was recorded" } else { &outcome.reason };
            table.row(vec![
                Entry::words(&cell.label),
                Entry::words(outcome.status.name()).toned(Tone::Warning),
                outcome.source.map_or_else(Entry::nothing, |source| Entry::words(source.name())),
                Entry::words(reason),
                Entry::whole(group.len() as u64, group.len().to_string()),
                Entry::words(grid.short_id(&group[0].id)),
                Entry::words(repeat_command(grid, group[0])),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Measured trials with validity flags: those of a cell with the same flags in one row.
pub fn flagged(grid: &Grid) -> Option<Table> {
    let columns = vec![
        Column::words("cell"),
        Column::words("trials"),
        Column::words("records"),
        Column::words("flags"),
        Column::words("so"),
    ];
    let mut table = Table::new("flagged trials", columns);
    for cell in grid.measured() {
        let mut groups: Vec<(Vec<&str>, Vec<&Record>)> = Vec::new();
        for record in cell.trials.iter().copied().filter(|record| record.is_measured()) {
            let flags: Vec<&str> = record.excluding_flags().collect();
            match groups.iter_mut().find(|(other, _)| *other == flags) {
                _ if flags.is_empty() => {}
                Some((_, records)) => records.push(record),
                None => groups.push((flags, vec![record])),
            }
        }
        for (flags, records) in groups {
            let is_used = cell.used.iter().any(|used| std::ptr::eq(*used, records[0]));
            let joined = |parts: Vec<String>| Entry::words(parts.join(" "));
            table.row(vec![
                Entry::words(&cell.label),
                joined(records.iter().map(|record| record.trial.to_string()).collect()),
                joined(records.iter().map(|record| grid.short_id(&record.id).to_string()).collect()),
                Entry::words(flags.join(", ")),
                Entry::words(if is_used { "cell not ranked" } else { "set aside" }),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Where every row comes from and how to run it again.
pub fn repeat(grid: &Grid) -> Table {
    let columns = vec![
        Column::words("cell"),
        Column::words("configuration key"),
        Column::words("records"),
        Column::words("repeat a trial"),
        Column::words("made by").for_machines(),
    ];
    let mut table = Table::new("repeat", columns);
    for cell in &grid.cells {
        let ids: Vec<&str> = cell.trials.iter().chain(&cell.twins).map(|record| record.id.as_str()).collect();
        let short_ids: Vec<&str> = ids.iter().map(|id| grid.short_id(id)).collect();
        let record = cell.record();
        table.row(vec![
            Entry::words(&cell.label),
            Entry { text: grid.short_key(cell.key).to_string(), ..Entry::words(cell.key) },
            Entry { text: short_ids.join(" "), ..Entry::words(ids.join(" ")) },
            Entry::words(repeat_command(grid, record)),
            if record.command.is_empty() { Entry::nothing() } else { Entry::words(&record.command) },
        ]);
    }
    table
}

/// The commands that made the records, with the records of each.
pub fn made_by(commands: &[(&str, Vec<&Record>)], grid: &Grid) -> Table {
    let columns = vec![Column::words("made by"), Column::numbers("records", ""), Column::words("record ids")];
    let mut table = Table::new("made by", columns);
    for (command, records) in commands {
        let ids: Vec<&str> = records.iter().map(|record| grid.short_id(&record.id)).collect();
        table.row(vec![
            if command.is_empty() { Entry::words("not recorded") } else { Entry::words(*command) },
            Entry::whole(records.len() as u64, records.len().to_string()),
            Entry::words(ids.join(" ")),
        ]);
    }
    table
}

/// The command that runs a record's cell again; where nothing ran, the one that asked for it.
fn repeat_command(grid: &Grid, record: &Record) -> String {
    match record.outcome.status {
        Status::Skipped if record.command.is_empty() => "the command is not recorded".to_string(),
        Status::Skipped => record.command.clone(),
        _ => format!("zbench repro {}", grid.short_id(&record.id)),
    }
}
