//! Which cell of B belongs to which of A.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;
use serde_json::Value;

use super::cells::Cell;
use crate::environment::flatten;
use crate::units;

/// How two cells were found to belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairedBy {
    /// Each is the only cell of its side.
    OnlyCells,
    /// They are the same cell.
    Key,
    /// Their settings are equal but for those in which all cells of A differ from all of B.
    Configuration,
}

/// Two cells that belong together.
#[derive(Debug)]
pub struct Found<'c, 'a> {
    /// Of A.
    pub a: &'c Cell<'a>,
    /// Of B.
    pub b: &'c Cell<'a>,
    /// Why.
    pub by: PairedBy,
    /// What the pair is called.
    pub label: String,
}

/// A cell that is not compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unpaired {
    /// Always `unpaired`.
    pub kind: &'static str,
    /// `a`, `b`, or `both` where the two are a pair and one of them has no valid trial.
    pub side: &'static str,
    /// The cell's name.
    pub label: String,
    /// The cell's key.
    pub key: String,
    /// Why.
    pub reason: String,
    /// Ids of its records.
    pub records: Vec<String>,
}

/// All pairs, and what is left.
#[derive(Debug)]
pub struct Pairing<'c, 'a> {
    /// In the order of A's cells.
    pub pairs: Vec<Found<'c, 'a>>,
    /// Of A, then of B.
    pub unpaired: Vec<Unpaired>,
}

/// Pairs the cells of two sides: the only ones of each, else by key, else by settings.
pub fn pair<'c, 'a>(a: &'c [Cell<'a>], b: &'c [Cell<'a>]) -> Pairing<'c, 'a> {
    let mut pairing = Pairing { pairs: Vec::new(), unpaired: Vec::new() };
    if let ([only_a], [only_b]) = (a, b) {
        let by = if only_a.key == only_b.key { PairedBy::Key } else { PairedBy::OnlyCells };
        pairing.add(only_a, only_b, by, if by == PairedBy::Key { only_a.label.clone() } else { both(only_a, only_b) });
        return pairing;
    }
    let apart = apart(a, b);
    let (signatures_a, signatures_b) = (signatures(a, &apart), signatures(b, &apart));
    let by_signature = |cells: &'c [Cell<'a>], signatures: &[String]| {
        let mut index: HashMap<String, Vec<&'c Cell<'a>>> = HashMap::new();
        for (cell, signature) in cells.iter().zip(signatures) {
            index.entry(signature.clone()).or_default().push(cell);
        }
        index
    };
    let (alike_a, alike_b) = (by_signature(a, &signatures_a), by_signature(b, &signatures_b));
    let keys_a: HashMap<&str, &Cell> = a.iter().map(|cell| (cell.key, cell)).collect();
    let keys_b: HashMap<&str, &'c Cell<'a>> = b.iter().map(|cell| (cell.key, cell)).collect();
    let without_key = |cells: &Vec<&'c Cell<'a>>, keys: &dyn Fn(&str) -> bool| -> Vec<&'c Cell<'a>> {
        cells.iter().copied().filter(|cell| !keys(cell.key)).collect()
    };
    let what = words(&apart);
    let mut taken: HashSet<&str> = HashSet::new();
    for (cell, signature) in a.iter().zip(&signatures_a) {
        if let Some(same) = keys_b.get(cell.key) {
            taken.insert(same.key);
            pairing.add(cell, same, PairedBy::Key, cell.label.clone());
            continue;
        }
        let rivals = without_key(&alike_a[signature], &|key| keys_b.contains_key(key));
        let partners = alike_b.get(signature).map(|cells| without_key(cells, &|key| keys_a.contains_key(key)));
        match (&rivals[..], partners.as_deref()) {
            ([_], Some([partner])) => {
                taken.insert(partner.key);
                let label = label_without(cell, &apart).unwrap_or_else(|| both(cell, partner));
                pairing.add(cell, partner, PairedBy::Configuration, label);
            }
            (_, None | Some([])) => pairing.leave(cell, "a", format!("no cell of B has its settings{what}")),
            (rivals, Some(partners)) => {
                let reason = too_many(rivals, partners, &what);
                pairing.leave(cell, "a", reason);
            }
        }
    }
    for (cell, signature) in b.iter().zip(&signatures_b).filter(|(cell, _)| !taken.contains(cell.key)) {
        let rivals = without_key(&alike_b[signature], &|key| keys_a.contains_key(key));
        let reason = match alike_a.get(signature).map(|cells| without_key(cells, &|key| keys_b.contains_key(key))) {
            Some(partners) if !partners.is_empty() => too_many(&partners, &rivals, &what),
            _ => format!("no cell of A has its settings{what}"),
        };
        pairing.leave(cell, "b", reason);
    }
    pairing
}

fn both(a: &Cell, b: &Cell) -> String {
    if a.label == b.label { a.label.clone() } else { format!("{} / {}", a.label, b.label) }
}

/// The words behind "its settings": the settings that were ignored.
fn words(apart: &BTreeSet<String>) -> String {
    let shown: Vec<String> = apart.iter().take(6).cloned().collect();
    match apart.len() {
        0 => String::new(),
        more if more > shown.len() => format!(", {} and {} more left aside", shown.join(", "), more - shown.len()),
        _ => format!(", {} left aside", units::list(&shown)),
    }
}

fn too_many(a: &[&Cell], b: &[&Cell], what: &str) -> String {
    let names = |cells: &[&Cell]| {
        let labels: Vec<String> = cells.iter().take(4).map(|cell| cell.label.clone()).collect();
        format!("{} ({}{})", cells.len(), labels.join("; "), if cells.len() > 4 { "; …" } else { "" })
    };
    format!("{} of A and {} of B have these settings{what}; narrow the sides to one each", names(a), names(b))
}

impl<'c, 'a> Pairing<'c, 'a> {
    /// Adds two cells as a pair if both have a valid trial.
    fn add(&mut self, a: &'c Cell<'a>, b: &'c Cell<'a>, by: PairedBy, label: String) {
        let reasons = [("A", a.why_unused()), ("B", b.why_unused())];
        let reasons: Vec<String> =
            reasons.into_iter().filter_map(|(side, why)| Some(format!("{side} has {}", why?))).collect();
        if reasons.is_empty() {
            return self.pairs.push(Found { a, b, by, label });
        }
        let records = a.trials.iter().chain(&b.trials).map(|record| record.id.clone()).collect();
        let key = if a.key == b.key { a.key.to_string() } else { format!("{} / {}", a.key, b.key) };
        let reason = reasons.join("; ");
        self.unpaired.push(Unpaired { kind: "unpaired", side: "both", label, key, reason, records });
    }

    fn leave(&mut self, cell: &Cell, side: &'static str, reason: String) {
        let records = cell.trials.iter().map(|record| record.id.clone()).collect();
        let (label, key) = (cell.label.clone(), cell.key.to_string());
        self.unpaired.push(Unpaired { kind: "unpaired", side, label, key, reason, records });
    }
}

/// The settings of a cell that are not null, as text.
fn flat(cell: &Cell) -> BTreeMap<String, String> {
    let settings = cell.settings().as_object().map(flatten).unwrap_or_default();
    let stated = settings.into_iter().filter(|(_, value)| !value.is_null());
    stated.map(|(path, value)| (path, value.to_string())).collect()
}

/// The cells with a valid trial; where there are none, all. A skipped cell may lack settings.
fn stating<'c, 'a>(cells: &'c [Cell<'a>]) -> Vec<&'c Cell<'a>> {
    let used: Vec<&Cell> = cells.iter().filter(|cell| !cell.used.is_empty()).collect();
    if used.is_empty() { cells.iter().collect() } else { used }
}

/// The settings in which every cell of A differs from every cell of B: no value is on both sides. An absent setting has
/// the value "absent".
fn apart(a: &[Cell], b: &[Cell]) -> BTreeSet<String> {
    let values = |cells: &[&Cell]| {
        let mut values: BTreeMap<String, (HashSet<String>, usize)> = BTreeMap::new();
        for (path, value) in cells.iter().flat_map(|cell| flat(cell)) {
            let (seen, count) = values.entry(path).or_default();
            seen.insert(value);
            *count += 1;
        }
        values
    };
    let (a, b) = (stating(a), stating(b));
    let (of_a, of_b) = (values(&a), values(&b));
    let differs = |path: &&String| {
        let absent = (HashSet::new(), 0);
        let (seen_a, count_a) = of_a.get(*path).unwrap_or(&absent);
        let (seen_b, count_b) = of_b.get(*path).unwrap_or(&absent);
        let both_lack_it = *count_a < a.len() && *count_b < b.len();
        !both_lack_it && seen_a.is_disjoint(seen_b)
    };
    of_a.keys().chain(of_b.keys()).filter(differs).cloned().collect()
}

/// The settings without those left aside, as one text for each cell.
fn signatures(cells: &[Cell], apart: &BTreeSet<String>) -> Vec<String> {
    let signature = |cell: &Cell| {
        let mut settings = flat(cell);
        settings.retain(|path, _| !apart.contains(path));
        settings.into_iter().map(|(path, value)| format!("{path}={value}\n")).collect()
    };
    cells.iter().map(signature).collect()
}

/// A cell's name without the settings left aside; `None` if nothing remains of it.
fn label_without(cell: &Cell, apart: &BTreeSet<String>) -> Option<String> {
    let strategy = cell.trials[0].setting(crate::grid::labels::STRATEGY).and_then(Value::as_str);
    let strategy_is_apart = apart.contains(crate::grid::labels::STRATEGY);
    let is_kept = |part: &&str| match part.split_once('=') {
        Some((name, _)) => !apart.iter().any(|path| path == name || path.ends_with(&format!(".{name}"))),
        None => !(strategy_is_apart && strategy == Some(*part)),
    };
    let parts: Vec<&str> = cell.label.split(", ").filter(is_kept).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
