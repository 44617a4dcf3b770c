//! A comparison as a document: environment, configuration, the answer in words, then the tables.

use indexmap::IndexMap;

use super::{Comparison, Pair, tables, words};
use crate::document::Document;
use crate::environment::{Aspect, Difference};
use crate::grid::labels::{first_letters, telling_length};
use crate::units;

/// How many pairs are shown in full where people read; the rest have a row, and CSV and JSON have all.
pub const PAIRS_IN_FULL: usize = 6;

/// The document of a comparison, with at most so many pairs in full: those whose speed differs most.
pub fn document(comparison: &Comparison, in_full: usize) -> Document {
    let mut document = Document::new(format!("{} against {}", comparison.b.selector, comparison.a.selector));
    let ids = comparison.pairs.iter().flat_map(|pair| pair.a.records.iter().chain(&pair.b.records));
    let left_out = comparison.a.left_out.iter().chain(&comparison.b.left_out).map(|record| &record.record);
    let others = comparison.unpaired.iter().flat_map(|cell| &cell.records);
    let length = telling_length(ids.chain(left_out).chain(others).map(String::as_str));
    let short_id = |id: &str| first_letters(id, length).to_string();
    sides(&mut document, comparison, &short_id);
    environment(&mut document, comparison);
    configuration(&mut document, comparison);
    document.heading("Answer");
    match &comparison.pairs[..] {
        [] => document.paragraph("No two cells can be compared; the list below says why."),
        [only] => pair(&mut document, comparison, only, &short_id),
        several => {
            document.list(words::summary(comparison));
            document.table(tables::pairs(comparison));
            let chosen = chosen(several, in_full);
            if chosen.len() < several.len() {
                document.paragraph(format!(
                    "In full below: the {} pairs whose speeds differ most. --format csv and --format json have all {}.",
                    chosen.len(),
                    several.len()
                ));
            }
            for one in chosen {
                document.heading(&one.pair);
                pair(&mut document, comparison, one, &short_id);
            }
        }
    }
    if !comparison.unpaired.is_empty() {
        document.heading("Not compared");
        document.table(tables::unpaired(comparison, &short_id));
    }
    document
}

/// The pairs with the largest change of speed, in their own order.
fn chosen(pairs: &[Pair], count: usize) -> Vec<&Pair> {
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by(|a, b| pairs[*b].speed_change().total_cmp(&pairs[*a].speed_change()));
    order.truncate(count);
    order.sort_unstable();
    order.into_iter().map(|place| &pairs[place]).collect()
}

fn sides(document: &mut Document, comparison: &Comparison, short_id: &dyn Fn(&str) -> String) {
    let mut items = Vec::new();
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let mut text = format!(
            "{name} is {}: {} of {}, {} used",
            side.selector,
            units::plural(side.records, "record", "records"),
            units::plural(side.cells, "cell", "cells"),
            units::plural(side.used, "trial", "trials"),
        );
        let mut reasons: IndexMap<&str, Vec<&str>> = IndexMap::new();
        for left_out in &side.left_out {
            reasons.entry(&left_out.reason).or_default().push(&left_out.record);
        }
        for (reason, records) in reasons {
            let ids: Vec<String> = records.iter().take(6).map(|id| short_id(id)).collect();
            let more = if records.len() > ids.len() { " …" } else { "" };
            text += &format!("; {} left out: {reason} ({}{more})", records.len(), ids.join(" "));
        }
        items.push(text + ".");
    }
    document.list(items);
    if comparison.on_both_sides > 0 && comparison.pairs.len() != 1 {
        document.paragraph(format!(
            "{} on both sides: what is compared with itself shows nothing.",
            units::plural(comparison.on_both_sides, "record stands", "records stand")
        ));
    }
    if [&comparison.a, &comparison.b]
        .iter()
        .any(|side| side.left_out.iter().any(|one| one.reason.starts_with("flagged")))
    {
        document.paragraph("Flagged trials are left out; --include-flagged uses them.");
    }
}

fn environment(document: &mut Document, comparison: &Comparison) {
    document.heading("Environment");
    if comparison.environment.is_empty() {
        let text = if comparison.pairs.is_empty() {
            "Nothing to compare."
        } else {
            "A and B were measured in the same environment."
        };
        return document.paragraph(text);
    }
    let has = |aspect: Aspect| comparison.environment.iter().any(|difference| difference.aspect == aspect);
    if has(Aspect::Hardware) {
        document.paragraph(
            "The hardware differs: what takes time is compared across machines, and says nothing of the program alone.",
        );
    } else if has(Aspect::Software) {
        document.paragraph("The same hardware. The software differs in:");
    } else {
        document.paragraph("The same hardware and software; the machine's state differed:");
    }
    document.table(tables::differences("environment", "environment", &comparison.environment));
}

fn configuration(document: &mut Document, comparison: &Comparison) {
    document.heading("Configuration");
    let differs = comparison.pairs.iter().any(|pair| !pair.configuration.is_empty());
    match (&comparison.configuration[..], comparison.pairs.len()) {
        (_, 0) => document.paragraph("No pair."),
        (_, _) if !differs => document.paragraph("The cells of each pair have the same settings."),
        (shared, 1) => document.table(tables::differences("configuration", "setting", shared)),
        ([], _) => document.paragraph("No setting differs alike in every pair; each pair says its own."),
        (shared, _) => {
            document.paragraph("In every pair:");
            document.table(tables::differences("configuration", "setting", shared));
        }
    }
}

/// One pair in full.
fn pair(document: &mut Document, comparison: &Comparison, pair: &Pair, short_id: &dyn Fn(&str) -> String) {
    let own: Vec<Difference> = pair
        .configuration
        .iter()
        .filter(|difference| !comparison.configuration.contains(difference))
        .cloned()
        .collect();
    if !own.is_empty() {
        document.table(tables::differences("configuration of the pair", "setting", &own));
    }
    document.list(words::answer(pair));
    document.list(pair.notes.clone());
    let explained = words::explanation(pair);
    if !explained.is_empty() {
        document.paragraph("What explains it:");
        document.list(explained);
    }
    document.table(tables::metrics(pair));
    let tables = [tables::spans(pair), tables::communication(pair), tables::memory(pair), tables::flops(pair)];
    for table in tables.into_iter().flatten() {
        document.table(table);
    }
    warm_up(document, pair, short_id);
    let ids = |ids: &[String]| ids.iter().map(|id| short_id(id)).collect::<Vec<_>>().join(" ");
    document.paragraph(format!("Records: A {}; B {}.", ids(&pair.a.records), ids(&pair.b.records)));
}

/// What was found of warm-up, and how the speed would read without discarding.
fn warm_up(document: &mut Document, pair: &Pair, short_id: &dyn Fn(&str) -> String) {
    let count = |steady: &str| pair.warm_up.iter().filter(|trial| trial.steady == steady).count();
    let (after, never, short) = (count("after"), count("never"), count("too_short"));
    if pair.warm_up.is_empty() {
        return;
    }
    let trials = units::plural(pair.warm_up.len(), "trial", "trials");
    if short == pair.warm_up.len() {
        return document.paragraph(format!(
            "Warm-up: the timed steps are too few to look for it ({} are needed).",
            crate::warm_up::FEWEST
        ));
    }
    if after + never == 0 {
        return document.paragraph(format!("Warm-up: none was found in the timed steps of {trials}."));
    }
    let discarded: usize = pair.warm_up.iter().map(|trial| trial.discarded).sum();
    let kept = if discarded > 0 { "these steps are discarded" } else { "all steps are kept, as asked" };
    let mut text = format!("Warm-up lasts into the timed steps in {after} of {trials}");
    text += &if after > 0 { format!("; {kept}.") } else { ".".to_string() };
    if never > 0 {
        text += &format!(" {never} never became steady, and nothing of them is discarded.");
    }
    if let Some(all) = &pair.tokens_per_second_of_all_steps {
        text += &format!(" With all timed steps kept: {}.", all.words);
    }
    document.paragraph(text);
    if let Some(table) = tables::warm_up(pair, short_id) {
        document.table(table);
    }
}
