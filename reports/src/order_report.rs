//! Whether predicted speeds put cells in the order that was measured: pair by pair, as far as the evidence decides.

use serde::{Deserialize, Serialize};

use crate::document::{Document, Entry, Table};
use crate::evidence::Verdict;
use crate::grid::{Cell, Grid};
use crate::record::Record;
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// A way that was predicted and then measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedWay {
    /// What it is called.
    pub name: String,
    /// The key of the cell that was measured: its own, or its stand-in's.
    pub key: String,
    /// Predicted time of a step.
    pub step_ms: f64,
    /// Predicted tokens per second of all ranks, by which ways are ordered.
    pub tokens_per_second: f64,
}

/// A way in the order that was predicted, with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderedWay {
    /// What was predicted.
    #[serde(flatten)]
    pub predicted: PredictedWay,
    /// Measured time of a step: the median over steps, then over trials.
    pub measured_step_ms: Option<f64>,
    /// Measured tokens per second.
    pub measured_tokens_per_second: Option<f64>,
    /// Measured step over predicted step; nothing of a stand-in, which is another cell than was predicted.
    pub step_ratio: Option<f64>,
    /// Place in the measured order, from 1; nothing where it was not measured.
    pub place: Option<usize>,
    /// Why it was not measured, or has no place; empty where it has one.
    pub why_not: String,
}

/// What became of the order of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The one that was predicted to be faster is faster.
    Held,
    /// It is slower.
    Reversed,
    /// The two differ by less than is called equal.
    Equal,
    /// The evidence does not decide.
    Undecided,
}

/// Two ways, of which `faster` was predicted to be the faster one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderedPair {
    /// Place of the one in [`Order::ways`].
    pub faster: usize,
    /// Place of the other one.
    pub slower: usize,
    /// Predicted speed of `faster` over that of `slower`.
    pub predicted: f64,
    /// Measured.
    pub measured: Option<f64>,
    /// What became of it.
    pub held: Held,
}

/// The predicted order beside the measured one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The ways, the fastest prediction first.
    pub ways: Vec<OrderedWay>,
    /// All pairs of ways that were both measured.
    pub pairs: Vec<OrderedPair>,
    /// Pairs that the evidence decides and that have the predicted order.
    pub held: usize,
    /// Pairs that the evidence decides and that have the other order.
    pub reversed: usize,
    /// Kendall's tau over the decided pairs: (held - reversed) / (held + reversed).
    pub tau: Option<f64>,
    /// Why other cells were measured than were predicted; empty where the same were.
    pub stand_ins: String,
}

impl Order {
    /// Puts records beside predictions. `stand_ins` says why the keys are of other cells than were predicted, if they are.
    pub fn of(mut ways: Vec<PredictedWay>, records: &[Record], stand_ins: &str) -> Order {
        ways.sort_by(|one, other| other.tokens_per_second.total_cmp(&one.tokens_per_second));
        let records: Vec<&Record> =
            records.iter().filter(|record| ways.iter().any(|way| way.key == record.key)).collect();
        let grid = Grid::new(&records);
        let cell = |key: &str| grid.cells.iter().find(|cell| cell.key == key);
        let is_measured = |cell: &&Cell| cell.place.is_some();
        let mut pairs = Vec::new();
        for (slower, second) in ways.iter().enumerate() {
            for (faster, first) in ways[..slower].iter().enumerate() {
                let both = [&first.key, &second.key].map(|key| cell(key).filter(is_measured));
                let [Some(a), Some(b)] = both else { continue };
                if first.key == second.key {
                    continue;
                }
                let held = match grid.verdict(b, a) {
                    Verdict::Faster => Held::Held,
                    Verdict::Slower => Held::Reversed,
                    Verdict::Equal => Held::Equal,
                    Verdict::Undecided => Held::Undecided,
                };
                let predicted = first.tokens_per_second / second.tokens_per_second;
                pairs.push(OrderedPair { faster, slower, predicted, measured: grid.ratio(b, a), held });
            }
        }
        let count = |wanted: Held| pairs.iter().filter(|pair| pair.held == wanted).count();
        let (held, reversed) = (count(Held::Held), count(Held::Reversed));
        let decided = held + reversed;
        let tau = (decided > 0).then(|| (held as f64 - reversed as f64) / decided as f64);
        let places: Vec<&str> = grid.ranked().map(|cell| cell.key).collect();
        let ordered = |predicted: PredictedWay| {
            let found = cell(&predicted.key);
            let measured_step_ms = found.and_then(|cell| cell.metric("step_ms_p50"));
            OrderedWay {
                measured_step_ms,
                measured_tokens_per_second: found.and_then(|cell| cell.metric("tokens_per_second")),
                step_ratio: measured_step_ms.filter(|_| stand_ins.is_empty()).map(|ms| ms / predicted.step_ms),
                place: places.iter().position(|key| *key == predicted.key).map(|place| place + 1),
                why_not: match found {
                    Some(cell) if cell.used.is_empty() => cell.record().outcome.reason.clone(),
                    Some(cell) => cell.unranked.clone().unwrap_or_default(),
                    None => "it has no record".into(),
                },
                predicted,
            }
        };
        let ways = ways.into_iter().map(ordered).collect();
        Order { ways, pairs, held, reversed, tau, stand_ins: stand_ins.into() }
    }

    /// Whether the order held, in a sentence.
    pub fn verdict(&self) -> String {
        let (decided, all) = (self.held + self.reversed, self.pairs.len());
        let count = |wanted: Held| self.pairs.iter().filter(|pair| pair.held == wanted).count();
        let open = match (count(Held::Equal), count(Held::Undecided)) {
            (0, 0) => String::new(),
            (0, _) if decided == 0 => String::new(),
            (equal, 0) => format!("; {equal} are as good as equal"),
            (0, undecided) => format!("; {undecided} are undecided"),
            (equal, undecided) => format!("; {equal} are as good as equal, {undecided} undecided"),
        };
        let pairs = units::plural(all, "pair", "pairs");
        let measured = self.ways.iter().filter(|way| way.measured_step_ms.is_some()).count();
        match (decided, self.reversed) {
            (0, _) if all == 0 && measured < 2 => {
                "Fewer than two ways were measured, so no order can be compared.".into()
            }
            (0, _) if all == 0 => {
                format!(
                    "{measured} ways were measured, and fewer than two of them have a place, so no order can be compared."
                )
            }
            (0, _) => format!("The evidence decides none of {pairs}, so it does not say whether the order held{open}."),
            (_, 0) => format!("The order held in all {decided} decided of {pairs} (Kendall's tau 1){open}."),
            (_, reversed) => format!(
                "The order held in {} of {decided} decided pairs and is reversed in {reversed} (Kendall's tau {:.2}), of {pairs}{open}.",
                self.held,
                self.tau.unwrap_or_default()
            ),
        }
    }

    /// The document: a screen for this room, then every pair.
    pub fn document(&self, room: Room) -> Document {
        let mut document = Document::new("Predicted and measured order");
        let compose = |rows: usize| {
            let mut screen = Screen::default();
            screen.said("ORDER", self.verdict(), 4);
            screen.said("STAND-INS", self.stand_ins.clone(), 5);
            screen.table(self.table(rows));
            let (first, pairs) = (self.reversals(), self.pairs.len());
            screen.said("REVERSED", first, 4);
            if pairs > 0 {
                screen.said("PAIRS", "--full has all pairs, predicted and measured.", 1);
            }
            screen
        };
        document.screen = Some(fitting(room, self.ways.len(), self.ways.len().min(3), compose));
        document.paragraph(self.verdict());
        if !self.stand_ins.is_empty() {
            document.paragraph(self.stand_ins.clone());
        }
        document.table(self.table(self.ways.len()));
        document.heading("Pairs");
        document.table(self.pair_table());
        document
    }

    /// The pairs whose order is the other one, in words.
    fn reversals(&self) -> String {
        let name = |place: usize| self.ways[place].predicted.name.clone();
        let reversed = self.pairs.iter().filter(|pair| pair.held == Held::Reversed);
        let words = reversed.map(|pair| {
            format!(
                "{} was predicted {} as fast as {} and is {}",
                name(pair.faster),
                times(Some(pair.predicted)),
                name(pair.slower),
                times(pair.measured)
            )
        });
        words.collect::<Vec<_>>().join("; ")
    }

    fn table(&self, rows: usize) -> Table {
        let shown = &self.ways[..rows.min(self.ways.len())];
        let mut table = Table::of("order", shown);
        let ms = |ms: f64| Entry::number(ms, units::duration(ms / 1e3));
        table.words("way, as predicted", |way| &way.predicted.name);
        table.words("place", |way| match (way.place, way.why_not.as_str()) {
            (Some(place), _) => place.to_string(),
            (None, "") => "none".into(),
            (None, why) => why.to_string(),
        });
        table.numbers("predicted", "ms", |way| ms(way.predicted.step_ms));
        table.numbers("measured", "ms", |way| way.measured_step_ms.map_or_else(Entry::nothing, ms));
        table.numbers("ratio", "factor", |way| {
            way.step_ratio.map_or_else(Entry::nothing, |ratio| Entry::number(ratio, times(Some(ratio))))
        });
        table.build()
    }

    fn pair_table(&self) -> Table {
        let mut table = Table::of("pairs", &self.pairs);
        let ratio = |ratio: Option<f64>| ratio.map_or_else(Entry::nothing, |of| Entry::number(of, times(Some(of))));
        table.words("predicted faster", |pair| &self.ways[pair.faster].predicted.name);
        table.words("predicted slower", |pair| &self.ways[pair.slower].predicted.name);
        table.numbers("predicted speed ratio", "factor", |pair| ratio(Some(pair.predicted)));
        table.numbers("measured speed ratio", "factor", |pair| ratio(pair.measured));
        table.words("order", |pair| match pair.held {
            Held::Held => "held",
            Held::Reversed => "reversed",
            Held::Equal => "equal",
            Held::Undecided => "undecided",
        });
        table.build()
    }
}

/// `1.06 times`.
fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.3} times"))
}
