//! Records gathered into cells: what is used, what is ranked, and why something is not.

use std::collections::HashMap;

use serde_json::Value;

use super::labels::{self, Axes};
use crate::evidence;
use crate::limits;
use crate::record::{Category, Communication, Record, Status, Verdict, label_flags};
use crate::stats::{self, Interval, Place};
use crate::turned::Turned;
use crate::units;

/// Why a cell of one valid trial has no rank.
const ONE_TRIAL: &str = "one valid trial only: how trials differ is unknown";
/// Why a cell of trials has no rank among cells that took turns.
const NO_TURNS: &str = "measured by trials, and not by turns as others";

/// All trials of one configuration.
#[derive(Debug)]
pub struct Cell<'a> {
    /// Hash of the configuration.
    pub key: &'a str,
    /// Name made from the keys in which the cells differ.
    pub label: String,
    /// The same without what is switched off, for sentences.
    pub short: String,
    /// Every trial, or every generation of one that took turns.
    pub trials: Vec<&'a Record>,
    /// Records of a second set of processes, with which the reference alone is compared.
    pub twins: Vec<&'a Record>,
    /// The trials whose numbers are used: measured and, if there are such, without validity flags.
    pub used: Vec<&'a Record>,
    /// Tokens per second of all ranks: median over trials with its interval, which one trial leaves without an upper limit. Of a
    /// cell that took turns the median over them, without limits: those of its ratio to others say how sure it is.
    pub speed: Option<Interval>,
    /// The worst verdict of the used trials.
    pub verdict: Verdict,
    /// Rank among the ranked cells.
    pub place: Option<Place>,
    /// Why there is no rank.
    pub unranked: Option<String>,
}

/// The cells of a report and in what they differ.
#[derive(Debug)]
pub struct Grid<'a> {
    /// The ranked by their medians, the fastest first; then the unranked in the order of their records.
    pub cells: Vec<Cell<'a>>,
    /// The axes; their values are in the order of `cells`.
    pub axes: Axes,
    /// What the turns say, where cells took some.
    pub turned: Option<Turned<'a>>,
    /// Keys whose values a search has found, where they tell no cells apart.
    pub searched: Vec<String>,
    /// Places of cells, by their key and by the id of each of their records.
    index: HashMap<&'a str, usize>,
    id_length: usize,
    key_length: usize,
}

impl<'a> Grid<'a> {
    /// Gathers records by key, in the order in which keys first occur, and ranks the cells.
    pub fn new(records: &[&'a Record]) -> Self {
        let mut index: HashMap<&str, usize> = HashMap::new();
        let mut trials: Vec<Vec<&Record>> = Vec::new();
        for &record in records {
            let place = *index.entry(&record.key).or_insert(trials.len());
            if place == trials.len() {
                trials.push(Vec::new());
            }
            trials[place].push(record);
        }
        let mut cells: Vec<Cell> = trials.into_iter().map(Cell::new).collect();
        let turned = turned(records, &cells);
        match &turned {
            Some(turned) => rank_by_turns(&mut cells, turned),
            None => rank_by_trials(&mut cells),
        }

        let settings: Vec<&Value> = cells.iter().map(|cell| &cell.trials[0].cell).collect();
        let mut searched = limits::keys(records);
        let axes = labels::axes_but(&settings, &searched);
        searched.retain(|key| axes.following.iter().any(|axis| axis.path == *key));
        let keys: Vec<&str> = cells.iter().map(|cell| cell.key).collect();
        let fallback = cells.first().map_or("", |cell| match cell.strategy() {
            "" => cell.trials[0].name.as_str(),
            strategy => strategy,
        });
        let labels = labels::labels(&axes, &settings, &keys, fallback);
        for ((cell, short), label) in cells.iter_mut().zip(labels::short(&axes, &labels)).zip(&labels) {
            cell.label = format!("{label}{}", cell.marks());
            cell.short = short;
        }
        let id_length = labels::telling_length(records.iter().map(|record| record.id.as_str()));
        let key_length = labels::telling_length(keys.iter().copied());
        let mut index: HashMap<&str, usize> = HashMap::new();
        for (place, cell) in cells.iter().enumerate() {
            for trial in cell.trials.iter().chain(&cell.twins) {
                index.entry(&trial.id).or_insert(place);
            }
        }
        // A key says more than an id: it wins where both are equal.
        index.extend(cells.iter().enumerate().map(|(place, cell)| (cell.key, place)));
        Self { cells, axes, turned, searched, index, id_length, key_length }
    }

    /// Enough of a record's id to tell it from the others here.
    pub fn short_id<'i>(&self, id: &'i str) -> &'i str {
        labels::first_letters(id, self.id_length)
    }

    /// Enough of a cell's key to tell it from the others here.
    pub fn short_key<'i>(&self, key: &'i str) -> &'i str {
        labels::first_letters(key, self.key_length)
    }

    /// The cells that have a rank, the best first.
    pub fn ranked(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.cells.iter().filter(|cell| cell.place.is_some())
    }

    /// The cells with at least one measured trial.
    pub fn measured(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.cells.iter().filter(|cell| !cell.used.is_empty())
    }

    /// The cell whose losses this one was compared with.
    pub fn reference(&self, cell: &Cell) -> Option<&Cell<'a>> {
        let of_record = |record: &&Record| match (&record.parity.reference, record.parity.verdict) {
            (_, Verdict::Reference) => self.index.get(cell.key),
            (Some(id), _) => self.index.get(id.as_str()),
            (None, _) => None,
        };
        cell.used.iter().find_map(of_record).map(|&place| &self.cells[place])
    }

    /// The speed as a multiple of the reference's; `None` where either is not ranked.
    pub fn speed_ratio(&self, cell: &Cell) -> Option<f64> {
        let reference = if self.turned.is_some() { self.base() } else { self.reference(cell) };
        self.ratio(reference?, cell)
    }

    /// The speed of b as a multiple of that of a: over common rounds, or of medians over trials. `None` where either is not
    /// ranked.
    pub fn ratio(&self, a: &Cell, b: &Cell) -> Option<f64> {
        let (speed_a, speed_b) = (a.place.and(a.speed)?.mid, b.place.and(b.speed)?.mid);
        match &self.turned {
            Some(_) if a.key == b.key => Some(1.0),
            Some(turned) if turned.reference == a.key => turned.against_reference(b.key)?.ratio,
            Some(turned) => turned.pair(a.key, b.key)?.ratio,
            None => Some(speed_b / speed_a),
        }
    }

    /// What is shown of b against a: by turns, or by whether the intervals of trials overlap.
    pub fn verdict(&self, a: &Cell, b: &Cell) -> evidence::Verdict {
        use evidence::Verdict::{Faster, Slower, Undecided};
        if let Some(turned) = &self.turned {
            return turned.verdict(a.key, b.key);
        }
        match (a.place.and(a.interval()), b.place.and(b.interval())) {
            (Some(of_a), Some(of_b)) if of_b.low > of_a.high => Faster,
            (Some(of_a), Some(of_b)) if of_b.high < of_a.low => Slower,
            _ => Undecided,
        }
    }

    /// The one cell that all are compared with: the reference of the turns, or else the one that most losses were compared with.
    pub fn base(&self) -> Option<&Cell<'a>> {
        if let Some(turned) = &self.turned {
            return self.index.get(turned.reference).map(|&place| &self.cells[place]);
        }
        let mut uses: Vec<usize> = vec![0; self.cells.len()];
        for cell in self.ranked() {
            let reference = self.reference(cell).and_then(|reference| self.index.get(reference.key));
            reference.into_iter().for_each(|&place| uses[place] += 1);
        }
        let most = (0..uses.len()).rev().max_by_key(|&place| uses[place]).filter(|&place| uses[place] > 0);
        most.map(|place| &self.cells[place]).filter(|cell| cell.place.is_some())
    }
}

/// Which cells are ranked with each other: those that do the same kind of work, and have a core for each thread or have not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Adapters are trained beside frozen weights.
    pub has_adapter: bool,
    /// A host has more threads of ranks than cores.
    pub is_crowded: bool,
}

impl Kind {
    /// The kind of a record's cell on the machine of the record.
    pub fn of(record: &Record) -> Self {
        let is_crowded = super::ranking::crowding(record).is_some();
        Self { has_adapter: labels::has_adapter(&record.cell), is_crowded }
    }
}

/// The kinds that there are, that of most cells first; those with a core for each thread before the others.
pub fn groups<'c, 'a: 'c>(cells: impl Iterator<Item = &'c Cell<'a>>) -> Vec<Kind> {
    let mut kinds: Vec<(Kind, usize)> = Vec::new();
    for kind in cells.map(Cell::kind) {
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    kinds.sort_by_key(|(kind, count)| (kind.is_crowded, kind.has_adapter, std::cmp::Reverse(*count)));
    kinds.into_iter().map(|(kind, _)| kind).collect()
}

/// The turns of the cells that may be ranked.
fn turned<'a>(records: &[&'a Record], cells: &[Cell]) -> Option<Turned<'a>> {
    let failed: Vec<&str> = cells.iter().filter(|cell| cell.verdict == Verdict::Failed).map(|cell| cell.key).collect();
    let counts = |record: &Record| record.excluding_flags().next().is_none() && !failed.contains(&record.key.as_str());
    let groups = groups(cells.iter().filter(|cell| !cell.used.is_empty()));
    let group = |key: &str| {
        let cell = cells.iter().find(|cell| cell.key == key);
        cell.and_then(|cell| groups.iter().position(|kind| *kind == cell.kind())).unwrap_or(groups.len())
    };
    Turned::new(records, counts, group)
}

/// Ranks from what turns show, the fastest first; then the cells without.
fn rank_by_turns(cells: &mut [Cell], turned: &Turned) {
    for cell in cells.iter_mut() {
        match turned.rank(cell.key).filter(|_| cell.verdict != Verdict::Failed) {
            Some((best, worst)) => {
                cell.place = Some(Place { rank: best, tied: best < worst });
                let mid = turned.speed(cell.key).unwrap_or(f64::NAN);
                cell.speed = Some(Interval { low: 0.0, mid, high: f64::INFINITY });
                cell.unranked = None;
            }
            None if cell.unranked.is_none() => {
                let has_turns = cell.used.iter().any(|record| record.taken_turns().is_some());
                let why = if has_turns { "no turn that counts" } else { NO_TURNS };
                cell.unranked = Some(why.to_string());
            }
            None => {}
        }
    }
    let order: HashMap<&str, usize> = turned.in_order().enumerate().map(|(place, key)| (key, place)).collect();
    let place = |cell: &Cell| cell.place.and_then(|_| order.get(cell.key).copied()).unwrap_or(usize::MAX);
    cells.sort_by_key(place);
}

fn rank_by_trials(cells: &mut [Cell]) {
    let ranked: Vec<usize> = (0..cells.len()).filter(|&cell| cells[cell].unranked.is_none()).collect();
    let speeds: Vec<Interval> = ranked.iter().filter_map(|&cell| cells[cell].speed).collect();
    for (&cell, place) in ranked.iter().zip(stats::places(&speeds)) {
        cells[cell].place = Some(place);
    }
    // By median and not by rank: a cell of a wide interval may share the rank of cells far above it.
    let median = |cell: &Cell| cell.place.and(cell.speed).map_or(f64::NEG_INFINITY, |speed| speed.mid);
    cells.sort_by(|a, b| median(b).total_cmp(&median(a)));
}

impl<'a> Cell<'a> {
    fn new(trials: Vec<&'a Record>) -> Self {
        let key = trials[0].key.as_str();
        let (twins, own): (Vec<&Record>, Vec<&Record>) = trials.iter().partition(|record| record.is_twin());
        // A cell of which the second set alone is left stands for itself.
        let (twins, trials) = if own.is_empty() { (Vec::new(), twins) } else { (twins, own) };
        let measured: Vec<&Record> = trials.iter().copied().filter(|record| record.is_measured()).collect();
        // Trials beside turns are of another experiment, and say less.
        let turned: Vec<&Record> = measured.iter().copied().filter(|record| record.taken_turns().is_some()).collect();
        let measured = if turned.is_empty() { measured } else { turned };
        let clean: Vec<&Record> =
            measured.iter().copied().filter(|record| record.excluding_flags().next().is_none()).collect();
        let has_clean = !clean.is_empty();
        let used = if has_clean { clean } else { measured };
        let speed = speed(&used);
        // A generation that was stopped before its last step has no losses to compare; the others have.
        let verdicts = || used.iter().map(|record| record.parity.verdict);
        let is_of_turns = used.iter().any(|record| record.taken_turns().is_some());
        let skips_none = is_of_turns && verdicts().any(|verdict| verdict != Verdict::None);
        let compared = verdicts().filter(|&verdict| !(skips_none && verdict == Verdict::None));
        let verdict = compared.max_by_key(|&verdict| severity(verdict)).unwrap_or_default();

        let unranked = if used.is_empty() {
            Some(trials.last().map_or("not measured", |record| record.outcome.status.words()).to_string())
        } else if verdict == Verdict::Failed {
            Some("loss parity failed".to_string())
        } else if !has_clean {
            let mut flags: Vec<&str> = used.iter().flat_map(|record| record.excluding_flags()).collect();
            flags.sort_unstable();
            flags.dedup();
            Some(flags.join(", "))
        } else if speed.is_none() {
            Some("no timed steps with tokens".to_string())
        } else if speed.is_some_and(|speed| !speed.is_bounded()) {
            Some(ONE_TRIAL.to_string())
        } else {
            None
        };
        Self {
            key,
            label: String::new(),
            short: String::new(),
            trials,
            twins,
            used,
            speed,
            verdict,
            place: None,
            unranked,
        }
    }

    /// Tokens per second with an interval: where two trials or more say how trials differ.
    pub fn interval(&self) -> Option<Interval> {
        self.speed.filter(Interval::is_bounded)
    }

    /// The record that stands for the cell: its last used trial, or else its last.
    pub fn record(&self) -> &'a Record {
        self.used.last().or(self.trials.last()).expect("a cell is made from at least one record")
    }

    /// The strategy, or nothing.
    pub fn strategy(&self) -> &'a str {
        self.record().setting(labels::STRATEGY).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether it trains adapters beside frozen weights.
    pub fn has_adapter(&self) -> bool {
        labels::has_adapter(&self.record().cell)
    }

    /// Which cells it is ranked with.
    pub fn kind(&self) -> Kind {
        Kind::of(self.record())
    }

    /// The share of the parameters that train.
    pub fn trainable_share(&self) -> Option<f64> {
        let number = |name: &str| self.record().extra.get(name).and_then(Value::as_f64);
        number("parameters").filter(|all| *all > 0.0).and_then(|all| Some(number("trainable_parameters")? / all))
    }

    /// Measured trials whose numbers are not used, for their validity flags.
    pub fn set_aside(&self) -> impl Iterator<Item = &'a Record> {
        // Where one trial without flags is used, all those are, and none with a flag.
        let uses_clean = self.used.first().is_some_and(|used| used.excluding_flags().next().is_none());
        let is_flagged = |record: &&Record| record.is_measured() && record.excluding_flags().next().is_some();
        self.trials.iter().copied().filter(move |record| uses_clean && is_flagged(record))
    }

    /// How often it was measured and used, out of all trials: `3`, `2 of 3`.
    pub fn trial_count(&self) -> String {
        match (self.used.len(), self.trials.len()) {
            (used, all) if used == all => all.to_string(),
            (used, all) => format!("{used} of {all}"),
        }
    }

    /// What must be said wherever the cell is named.
    fn marks(&self) -> &'static str {
        match (is_proxy(self.record()), emulated_link(self.record()).is_some()) {
            (true, true) => " [proxy, emulated link]",
            (true, false) => " [proxy]",
            (false, true) => " [emulated link]",
            (false, false) => "",
        }
    }

    /// Median over the used trials of a metric.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.median_of(|record| record.metrics.number(name))
    }

    fn median_of(&self, value: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
        stats::median(&self.used.iter().filter_map(|record| value(record)).collect::<Vec<_>>())
    }

    /// Measured peak of the largest rank over all categories, of the trial that needed most.
    pub fn peak_bytes(&self) -> Option<u64> {
        let peak = |record: &&Record| {
            let total = record.memory.total.as_ref().and_then(|total| total.peak_bytes);
            total.or(record.metrics.number("peak_memory_bytes").map(|bytes| bytes as u64))
        };
        self.used.iter().filter_map(peak).max()
    }

    /// Predicted peak over all categories.
    pub fn predicted_peak_bytes(&self) -> Option<u64> {
        let record = self.record();
        let total = record.memory.total.as_ref().and_then(|total| total.predicted_bytes);
        total.or_else(|| {
            let estimate = record.estimate.get("peak_memory_bytes").or(record.estimate.get("total_bytes"));
            estimate.and_then(Value::as_u64)
        })
    }

    /// Measured peak of a category, of the trial that needed most.
    pub fn category_peak(&self, category: Category) -> Option<u64> {
        self.used.iter().filter_map(|record| record.memory.get(category)?.peak_bytes).max()
    }

    /// Predicted peak of a category.
    pub fn category_prediction(&self, category: Category) -> Option<u64> {
        self.record().memory.get(category)?.predicted_bytes
    }

    /// Bytes on the wire in one step, of the largest rank.
    pub fn wire_bytes(&self) -> Option<f64> {
        self.median_of(|record| Some(record.wire_bytes()).filter(|bytes| bytes.is_finite()))
    }

    /// Exposed communication as a share of the step.
    pub fn exposed_share(&self) -> Option<f64> {
        let step = self.metric("step_ms_mean").or(self.metric("step_ms_p50")).filter(|&ms| ms > 0.0)?;
        Some(self.metric("exposed_communication_ms")? / step)
    }

    /// Mean over the used trials of a span of the step, so that the spans still add up.
    pub fn span_ms(&self, span: &str) -> Option<f64> {
        stats::mean(&self.used.iter().filter_map(|record| record.time.number(span)).collect::<Vec<_>>())
    }

    /// Mean over the used trials of a number of the collective with this axis and kind.
    pub fn communication(&self, axis: &str, kind: &str, value: impl Fn(&Communication) -> Option<f64>) -> Option<f64> {
        let entries = self.used.iter().flat_map(|record| &record.communication);
        let same = entries.filter(|entry| entry.axis == axis && entry.kind == kind);
        stats::mean(&same.filter_map(value).filter(|value| value.is_finite()).collect::<Vec<_>>())
    }
}

/// Tokens per second: the tokens of the timed steps over their time ([`stats::rate`]). A record without steps
/// counts as one step of the rate that its metric states.
fn speed(used: &[&Record]) -> Option<Interval> {
    let trials: Vec<Vec<(f64, f64)>> = used
        .iter()
        .map(|record| {
            let steps: Vec<(f64, f64)> = record.timed_steps().map(|step| (step.tokens as f64 * 1e3, step.ms)).collect();
            match record.metrics.number("tokens_per_second") {
                Some(rate) if steps.is_empty() => vec![(rate, 1.0)],
                _ => steps,
            }
        })
        .collect();
    stats::rate(&trials)
}

fn severity(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Reference => 0,
        Verdict::Identical => 1,
        Verdict::WithinTolerance => 2,
        Verdict::None => 3,
        Verdict::Failed => 4,
    }
}

/// Whether a record is a scaled-down stand-in: by its cell, by a key beside it, by a flag or by a note that begins so.
pub fn is_proxy(record: &Record) -> bool {
    let is_set = |value: Option<&Value>| !matches!(value, None | Some(Value::Null | Value::Bool(false)));
    is_set(record.setting("proxy"))
        || is_set(record.extra.get("proxy"))
        || is_labelled(record, label_flags::PROXY, "proxy")
}

/// The emulated link of a record, described.
pub fn emulated_link(record: &Record) -> Option<String> {
    let is_empty =
        |link: &Value| link.is_null() || link.as_object().is_some_and(|link| link.values().all(Value::is_null));
    let number = |key: &str| record.setting(key).and_then(Value::as_f64);
    match record.setting("link").filter(|link| !is_empty(link)) {
        Some(link) => Some(match (number("link.node.bandwidth"), number("parallel.ranks_per_node")) {
            (Some(bandwidth), Some(ranks)) => {
                let link = units::link(bandwidth, number("link.node.latency").unwrap_or(0.0));
                format!("{link} between nodes of {}", units::plural(ranks as usize, "rank", "ranks"))
            }
            _ => link.to_string(),
        }),
        None if is_labelled(record, label_flags::EMULATED_LINK, "emulated") => Some("see the notes".to_string()),
        None => None,
    }
}

fn is_labelled(record: &Record, flag: &str, note: &str) -> bool {
    let begins = |text: &String| text.get(..note.len()).is_some_and(|start| start.eq_ignore_ascii_case(note));
    record.validity.iter().any(|other| other == flag) || record.notes.iter().any(begins)
}

/// Statuses of trials that were not measured, with how often each occurs.
pub fn unmeasured_counts(grid: &Grid) -> Vec<(Status, usize)> {
    let mut counts: Vec<(Status, usize)> = Vec::new();
    for cell in grid.cells.iter().filter(|cell| cell.used.is_empty()) {
        let status = cell.record().outcome.status;
        match counts.iter_mut().find(|(other, _)| *other == status) {
            Some((_, count)) => *count += 1,
            None => counts.push((status, 1)),
        }
    }
    counts
}
