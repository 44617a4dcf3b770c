//! The turns of all records, gathered into rounds, and their statistical evidence.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::evidence::{Claims, Comparison, Effect, Grid, Pair, Rules, Turn, Verdict, effect, least_difference, stray};
use crate::record::Record;
use crate::record::others::{self, OtherProgram};
use crate::stats;

/// The results of cells that took turns. A key names each cell.
#[derive(Debug)]
pub(crate) struct TurnsAnalysis<'a> {
    cells: HashMap<&'a str, usize>,
    keys: Vec<&'a str>,
    evidence: Grid,
    rules: Rules,
    equal: f64,
    claims: Claims,
    open: HashSet<(usize, usize)>,
    against_reference: Vec<Comparison>,
    order: Vec<usize>,
    groups: Vec<usize>,
    letters: Vec<Vec<usize>>,
    ranks: Vec<(usize, usize)>,
    speeds: Vec<Option<f64>>,
    /// The cell that all others are compared with.
    pub reference: &'a str,
    /// The reference compared with its own second set of processes.
    pub twin: Option<Comparison>,
    /// How the turns were measured.
    pub course: MeasurementSummary,
}

/// How turns were measured.
#[derive(Debug, Default)]
pub(crate) struct MeasurementSummary {
    /// Rounds that have a counted turn.
    pub rounds: usize,
    /// Rounds that were discarded since other processes used the cores.
    pub discarded: usize,
    /// The programs that did, in the newest generation that had such rounds.
    pub busy: Vec<OtherProgram>,
    /// Rounds that the user interrupted.
    pub unfinished: usize,
    /// Batches: sets of cells that were resident together, each with the reference.
    pub batches: usize,
    /// Generations of processes.
    pub generations: usize,
    /// Wall time of the generations including the start of their processes, seconds.
    pub seconds: f64,
    /// Budget of wall time, where the records state it.
    pub budget: Option<f64>,
    /// Seeds of the order of turns.
    pub seeds: Vec<u64>,
    /// Why the last generation of each batch ended, each reason once.
    pub stopped: Vec<String>,
    /// The speed of the machine in each round relative to its median, sorted.
    pub speeds: Vec<f64>,
    /// Mean share of the cores that the hypervisor gave to other guests.
    pub stolen: f64,
}

/// A turn, and whether a twin took it.
struct Taken {
    turn: Turn,
    is_twin: bool,
}

impl<'a> TurnsAnalysis<'a> {
    /// Gathers the turns of measured records for which `counts` holds. Cells of one `group` are ranked with each other. `None` if no
    /// record has turns that count.
    pub fn new(
        records: &[&'a Record],
        counts: impl Fn(&Record) -> bool,
        group: impl Fn(&str) -> usize,
    ) -> Option<Self> {
        let taken: Vec<&Record> = records.iter().copied().filter(|record| record.taken_turns().is_some()).collect();
        let mut cells: HashMap<&str, usize> = HashMap::new();
        let mut keys: Vec<&str> = Vec::new();
        for record in taken.iter().filter(|record| counts(record) && !record.is_twin()) {
            cells.entry(record.key.as_str()).or_insert_with(|| {
                keys.push(&record.key);
                keys.len() - 1
            });
        }
        if keys.is_empty() {
            return None;
        }
        let mut course = MeasurementSummary::default();
        let rounds = rounds(&taken, &cells, &counts, &mut course);
        let equal = equal(&taken);
        let rules = Rules { equal: equal.ln_1p(), ..Rules::default() };
        let mut twin = Pair::new(rules);
        let reference = reference(&taken, &cells).unwrap_or(0);
        rounds.iter().for_each(|round| push_twin(&mut twin, round));
        let twin = Some(twin.comparison()).filter(|twin| twin.rounds > 0);
        let rules = Rules { least: twin.map_or(rules.least, |twin| least_difference(&rules, &twin)), ..rules };
        let mut evidence = Grid::new(keys.len(), rules);
        for round in &rounds {
            let turns: Vec<Turn> = round.iter().filter(|taken| !taken.is_twin).map(|taken| taken.turn).collect();
            evidence.round(&turns);
        }
        let speeds = speeds(&rounds, keys.len());
        course.set_machine_speeds(&rounds, &speeds);
        let against_reference: Vec<Comparison> = (0..keys.len()).map(|cell| evidence.pair(reference, cell)).collect();
        // A cell without a common round with the reference is ordered by its own speed.
        let speed = |cell: usize| speeds[cell].unwrap_or(0.0);
        let base = speed(reference).max(f64::MIN_POSITIVE);
        let ratio = |cell: usize| match cell == reference {
            true => 1.0,
            false => against_reference[cell].ratio.unwrap_or(speed(cell) / base),
        };
        let mut order: Vec<usize> = (0..keys.len()).filter(|&cell| speeds[cell].is_some()).collect();
        let claims = evidence.claims();
        let groups: Vec<usize> = keys.iter().map(|key| group(key)).collect();
        let rank =
            |cell: usize| claims.rank(cell, order.iter().copied().filter(|&other| groups[other] == groups[cell]));
        let ranks: Vec<(usize, usize)> = (0..keys.len()).map(rank).collect();
        // Ranks come before ratios: the ratio of a cell with few turns may be far off.
        let middle = |cell: usize| (groups[cell], ranks[cell].0 + ranks[cell].1);
        order.sort_by(|&a, &b| middle(a).cmp(&middle(b)).then(ratio(b).total_cmp(&ratio(a))));
        let mut letters = vec![Vec::new(); keys.len()];
        for group in order.chunk_by(|&a, &b| groups[a] == groups[b]) {
            let of_group = claims.letters(group);
            group.iter().for_each(|&cell| letters[cell].clone_from(&of_group[cell]));
        }
        let open = evidence.undecided().into_iter().collect();
        let reference = keys[reference];
        Some(Self {
            cells,
            keys,
            evidence,
            rules,
            equal,
            claims,
            open,
            against_reference,
            order,
            groups,
            letters,
            ranks,
            speeds,
            reference,
            twin,
            course,
        })
    }

    /// Whether this cell has a turn that counts.
    pub fn has(&self, key: &str) -> bool {
        self.cells.get(key).is_some_and(|&cell| self.speeds[cell].is_some())
    }

    /// The cells with turns that count, the fastest first.
    pub fn in_order(&self) -> impl Iterator<Item = &'a str> {
        self.order.iter().map(|&cell| self.keys[cell])
    }

    /// Tokens per second: the median over the turns of a cell.
    pub fn speed(&self, key: &str) -> Option<f64> {
        self.speeds[*self.cells.get(key)?]
    }

    /// The comparison of a cell with the reference.
    pub fn against_reference(&self, key: &str) -> Option<&Comparison> {
        self.against_reference.get(*self.cells.get(key)?)
    }

    /// The comparison of cell b with cell a, from these two alone.
    pub fn pair(&self, a: &str, b: &str) -> Option<Comparison> {
        Some(self.evidence.pair(*self.cells.get(a)?, *self.cells.get(b)?))
    }

    /// The verdict on cell b against cell a. Faster and slower are claims among all pairs together; equal is a claim of this pair
    /// alone.
    pub fn verdict(&self, a: &str, b: &str) -> Verdict {
        let (Some(&a), Some(&b)) = (self.cells.get(a), self.cells.get(b)) else { return Verdict::Undecided };
        if self.claims.is_faster(a, b) {
            Verdict::Faster
        } else if self.claims.is_faster(b, a) {
            Verdict::Slower
        } else if a == b || self.open.contains(&(a.min(b), a.max(b))) {
            Verdict::Undecided
        } else {
            // The pair by itself is decided and is not among the claims: it is equal, or too weak for so many claims.
            match self.evidence.pair(a, b).verdict {
                Verdict::Equal => Verdict::Equal,
                _ => Verdict::Undecided,
            }
        }
    }

    /// The first and the last rank that a cell may have in its group, from 1.
    pub fn rank(&self, key: &str) -> Option<(usize, usize)> {
        self.has(key).then(|| self.ranks[self.cells[key]])
    }

    /// The letters of a cell (compact letter display): cells that share a letter are not shown to differ. A run of letters is `a-f`.
    pub fn tie(&self, key: &str) -> String {
        let Some(&cell) = self.cells.get(key) else { return String::new() };
        let name = |letter: usize| Claims::label(&[letter]);
        match &self.letters[cell][..] {
            [first, _, .., last] => format!("{}-{}", name(*first), name(*last)),
            letters => Claims::label(letters),
        }
    }

    /// The number of tiers in the first group: every cell of a tier is shown to be faster than every cell of later tiers.
    pub fn tiers(&self) -> usize {
        let first = self.groups_in_order().next().unwrap_or_default();
        let is_cut = |&place: &usize| {
            let (before, behind) = first.split_at(place);
            before.iter().all(|&fast| behind.iter().all(|&slow| self.claims.is_faster(slow, fast)))
        };
        1 + (1..first.len()).filter(is_cut).count()
    }

    /// The cells in order, group by group.
    fn groups_in_order(&self) -> impl Iterator<Item = &[usize]> {
        self.order.chunk_by(|&a, &b| self.groups[a] == self.groups[b])
    }

    /// The number of pairs within groups.
    pub fn pairs(&self) -> usize {
        self.groups_in_order().map(|group| group.len() * (group.len() - 1) / 2).sum()
    }

    /// The pairs within groups that are still undecided.
    pub fn open_pairs(&self) -> Vec<(&'a str, &'a str)> {
        let mut open = Vec::new();
        for group in self.groups_in_order() {
            for (place, &a) in group.iter().enumerate() {
                let names = group[place + 1..].iter().map(|&b| (self.keys[a], self.keys[b]));
                open.extend(names.filter(|(a, b)| self.verdict(a, b) == Verdict::Undecided));
            }
        }
        open
    }

    /// How far the reference may stray from its twin, a logarithm; none where they took no turns or too few to bound it.
    pub fn stray(&self) -> Option<f64> {
        stray(self.twin.as_ref()?)
    }

    /// The effect of a factor over matched pairs: the second cell of each pair against the first. None without the reference's
    /// comparison with its twin, which an effect has to exceed.
    pub fn effect(&self, pairs: &[(&str, &str)]) -> Option<Effect> {
        let stray = self.stray()?;
        let comparisons: Vec<Comparison> = pairs.iter().filter_map(|(a, b)| self.pair(a, b)).collect();
        effect(&self.rules, &comparisons, stray)
    }

    /// Cells whose speeds differ by less than this share are called equal.
    pub fn equal(&self) -> f64 {
        self.equal
    }

    /// The smallest difference that may be claimed, as a share.
    pub fn least(&self) -> f64 {
        self.rules.least.exp() - 1.0
    }

    /// The largest expected share of false claims (false discovery rate).
    pub fn false_share(&self) -> f64 {
        self.rules.alpha
    }
}

/// The share below which cells are called equal: the last one that a record states, or else 5 %.
fn equal(records: &[&Record]) -> f64 {
    let stated = records.iter().rev().find_map(|record| record.turns.as_ref()?.equal);
    stated.filter(|share| share.is_finite() && *share > 0.0).unwrap_or(0.05)
}

/// All turns by round, in order of time. Generations are numbered over all experiments.
fn rounds(
    records: &[&Record],
    cells: &HashMap<&str, usize>,
    counts: &impl Fn(&Record) -> bool,
    course: &mut MeasurementSummary,
) -> Vec<Vec<Taken>> {
    let mut experiments: Vec<&str> = Vec::new();
    let mut found: BTreeMap<(usize, u32, u32, u32), Vec<Taken>> = BTreeMap::new();
    let mut ends: BTreeMap<(usize, u32, u32), f64> = BTreeMap::new();
    let mut stops: BTreeMap<(usize, u32), BTreeMap<u32, &str>> = BTreeMap::new();
    let (mut stolen, mut rows) = (0.0, 0usize);
    let mut budgets: BTreeMap<usize, f64> = BTreeMap::new();
    for record in records {
        let (Some(turns), Some(&cell)) = (record.taken_turns(), cells.get(record.key.as_str())) else { continue };
        let experiment = experiments.iter().position(|name| *name == turns.experiment).unwrap_or_else(|| {
            experiments.push(&turns.experiment);
            experiments.len() - 1
        });
        let counts = counts(record);
        for row in &turns.rows {
            let turn = Turn {
                cell,
                generation: 0,
                round: row.round,
                order: row.order,
                seconds_per_token: row.seconds_per_token(),
                counted: row.counted && counts,
            };
            let round = found.entry((experiment, turns.batch, turns.generation, row.round)).or_default();
            round.push(Taken { turn, is_twin: turns.twin });
            if row.stolen.is_finite() {
                (stolen, rows) = (stolen + row.stolen, rows + 1);
            }
        }
        let last = ends.entry((experiment, turns.batch, turns.generation)).or_insert(0.0);
        *last = last.max(turns.wall_seconds());
        if !course.seeds.contains(&turns.seed) {
            course.seeds.push(turns.seed);
        }
        if let Some(stopped) = &turns.stopped {
            stops.entry((experiment, turns.batch)).or_default().insert(turns.generation, stopped);
        }
        if others::cores(&turns.busy) > others::cores(&course.busy) {
            course.busy.clone_from(&turns.busy);
        }
        budgets.extend(turns.budget.map(|budget| (experiment, budget)));
    }
    course.seconds = ends.values().sum();
    course.generations = ends.len();
    course.batches = stops.keys().map(|(_, batch)| batch).collect::<HashSet<_>>().len();
    // Where a later command continued a batch, earlier generations state why an earlier command ended.
    for stopped in stops.values().filter_map(|generations| generations.values().next_back()) {
        if !course.stopped.iter().any(|other| other == stopped) {
            course.stopped.push(stopped.to_string());
        }
    }
    course.stolen = if rows == 0 { 0.0 } else { stolen / rows as f64 };
    course.budget = (!budgets.is_empty()).then(|| budgets.values().sum());
    let mut numbers: HashMap<(usize, u32, u32), u32> = HashMap::new();
    let mut rounds = Vec::with_capacity(found.len());
    let mut found = found.into_iter().peekable();
    while let Some(((experiment, batch, generation, _), mut round)) = found.next() {
        let is_last = found.peek().is_none_or(|(next, _)| (next.0, next.1, next.2) != (experiment, batch, generation));
        let stopped = stops.get(&(experiment, batch)).and_then(|generations| generations.get(&generation));
        let next = numbers.len() as u32;
        let number = *numbers.entry((experiment, batch, generation)).or_insert(next);
        round.iter_mut().for_each(|taken| taken.turn.generation = number);
        round.sort_by_key(|taken| taken.turn.order);
        match round.iter().any(|taken| is_usable(&taken.turn)) {
            true => course.rounds += 1,
            false if is_last && stopped == Some(&"interrupted") => course.unfinished += 1,
            false => course.discarded += 1,
        }
        rounds.push(round);
    }
    rounds
}

fn is_usable(turn: &Turn) -> bool {
    turn.counted && turn.seconds_per_token.is_finite() && turn.seconds_per_token > 0.0
}

/// The cell that is the reference in most rounds.
fn reference(records: &[&Record], cells: &HashMap<&str, usize>) -> Option<usize> {
    let mut rows = vec![0usize; cells.len()];
    for record in records {
        let turns = record.taken_turns().filter(|turns| turns.reference && !turns.twin);
        if let (Some(turns), Some(&cell)) = (turns, cells.get(record.key.as_str())) {
            rows[cell] += turns.rows.len();
        }
    }
    (0..rows.len()).rev().max_by_key(|&cell| rows[cell]).filter(|&cell| rows[cell] > 0)
}

/// Adds the comparison of the twin with its cell in one round.
fn push_twin(pair: &mut Pair, round: &[Taken]) {
    for twin in round.iter().filter(|taken| taken.is_twin && is_usable(&taken.turn)) {
        let own =
            round.iter().find(|other| !other.is_twin && other.turn.cell == twin.turn.cell && is_usable(&other.turn));
        if let Some(own) = own {
            pair.push(own.turn.generation, twin.turn.seconds_per_token.ln() - own.turn.seconds_per_token.ln());
        }
    }
}

/// The median tokens per second of each cell.
fn speeds(rounds: &[Vec<Taken>], cells: usize) -> Vec<Option<f64>> {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); cells];
    for taken in rounds.iter().flatten().filter(|taken| !taken.is_twin && is_usable(&taken.turn)) {
        rates[taken.turn.cell].push(1.0 / taken.turn.seconds_per_token);
    }
    rates.iter().map(|rates| stats::median(rates)).collect()
}

impl MeasurementSummary {
    /// Sets how fast the machine was: the median over the turns of a round of their speed relative to the median of their cell.
    fn set_machine_speeds(&mut self, rounds: &[Vec<Taken>], speeds: &[Option<f64>]) {
        for round in rounds {
            let of_turn = |taken: &Taken| Some(1.0 / taken.turn.seconds_per_token / speeds[taken.turn.cell]?);
            let ratios: Vec<f64> = round.iter().filter(|taken| is_usable(&taken.turn)).filter_map(of_turn).collect();
            self.speeds.extend(stats::median(&ratios).filter(|ratio| ratio.is_finite()));
        }
        self.speeds.sort_by(f64::total_cmp);
    }
}
