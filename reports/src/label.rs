//! Labels of cells, as `zero3, checkpointing=full`. One module writes them and reads them, so that a label that is printed anywhere
//! can be typed anywhere.

use serde_json::Value;

use crate::units;

/// The key whose value comes first in a label, without the name of the key.
pub const STRATEGY: &str = "parallel.strategy";
/// The value of a key that a cell does not have.
pub const UNSET: &str = "unset";
/// Keys that cells leave out at their usual value, with that value.
const USUAL: [(&str, &str); 21] = [
    ("memory.offload_optimizer", "none"),
    ("memory.offload_parameters", "none"),
    ("memory.offload_activations", "none"),
    ("memory.offload_prefetch", "1"),
    ("train.lr_steps", "from-one"),
    ("train.delayed_update", "0"),
    ("parallel.bucket_mb", "25.0"),
    ("memory.partition_activations", "false"),
    ("parallel.tensor", "1"),
    ("parallel.sequence", "1"),
    ("parallel.tensor_chunks", "1"),
    ("parallel.pipeline", "1"),
    ("parallel.pipeline_schedule", "1f1b"),
    ("parallel.virtual_stages", "1"),
    ("parallel.placement", "data-inside"),
    ("parallel.context", "1"),
    ("parallel.expert", "1"),
    ("parallel.expert_tensor", "1"),
    ("parallel.expert_imbalance", "1.0"),
    ("parallel.parked", "1"),
    ("memory.loss", "fused"),
];
/// Sections whose keys are named in full: `lora.rank` is not a rank of the mesh, and `data.path` is not any path.
const NAMED_IN_FULL: [&str; 2] = ["lora.", "data."];
/// A longer value is cut and ends in `…`.
const LONGEST_VALUE: usize = 40;
/// Remarks in brackets behind a label, which are no part of it.
const MARKS: [&str; 3] = ["proxy", "emulated link", "emulated pace"];
/// Another one, of estimates.
const MUST_NOT_FIT: &str = " (must not fit)";

/// Fields of cells whose name differs from the configuration key that sets them.
const FIELDS: [(&str, &str); 3] = [
    ("maximum_bytes", "collectives.max_bytes"),
    ("minimum_bytes", "collectives.min_bytes"),
    ("warmup_iterations", "collectives.warmup"),
];

/// The key of the configuration that sets a field of a cell.
fn key_of(field: &str) -> &str {
    FIELDS.iter().find(|(name, _)| *name == field).map_or(field, |(_, key)| key)
}

/// The last part of a key: `train.micro_batch` is `micro_batch`.
pub fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The name of a key in labels: its last part, or the whole key where the last part would mislead. `is_shared` says whether another
/// key has the same last part.
pub fn name(path: &str, is_shared: bool) -> &str {
    let path = key_of(path);
    let misleads = is_shared || NAMED_IN_FULL.iter().any(|section| path.starts_with(section));
    if misleads { path } else { last_part(path) }
}

/// The value of a key as labels show it.
pub fn value(path: &str, value: &Value) -> String {
    let number = value.as_f64();
    let text = match number {
        Some(bytes) if path.ends_with(".bandwidth") => units::traffic(bytes) + "/s",
        Some(seconds) if path.ends_with(".latency") => units::duration(seconds),
        Some(bytes) if key_of(path).starts_with("collectives.") && path.ends_with("_bytes") => {
            units::exact_bytes(bytes)
        }
        _ if value.is_null() => usual(path).to_string(),
        _ => plain(value),
    };
    if text.chars().count() <= LONGEST_VALUE {
        return text;
    }
    text.chars().take(LONGEST_VALUE - 1).chain(['…']).collect()
}

/// Whether cells leave out a key at its usual value.
pub fn has_usual(path: &str) -> bool {
    USUAL.iter().any(|(key, _)| *key == path)
}

fn usual(path: &str) -> &'static str {
    USUAL.iter().find(|(key, _)| *key == path).map_or(UNSET, |(_, value)| value)
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => UNSET.to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether a value means that a feature is off.
pub fn is_off(value: &str) -> bool {
    matches!(value, "none" | "false" | "off" | UNSET)
}

/// Whether a value says nothing of a cell: it is off, or what cells leave out.
pub fn is_usual(path: &str, value: &str) -> bool {
    is_off(value) || USUAL.contains(&(path, value))
}

/// A term of a label: the value of the strategy alone, every other key with its name.
pub fn term(path: &str, name: &str, value: &str) -> String {
    if path == STRATEGY { value.to_string() } else { format!("{name}={value}") }
}

/// The label that these terms make.
pub fn of_terms<T: AsRef<str>>(terms: impl IntoIterator<Item = T>) -> String {
    let terms: Vec<String> = terms.into_iter().map(|term| term.as_ref().to_string()).collect();
    terms.join(", ")
}

/// A label without the marks behind it.
fn without_marks(label: &str) -> &str {
    if let Some(rest) = label.strip_suffix(MUST_NOT_FIT) {
        return without_marks(rest.trim_end());
    }
    match label.strip_suffix(']').and_then(|label| label.rsplit_once(" [")) {
        Some((rest, marks)) if marks.split(", ").all(|mark| MARKS.contains(&mark)) => without_marks(rest.trim_end()),
        _ => label,
    }
}

/// The terms of a label: the parts between commas. Commas within brackets, braces and quotes do not separate terms. Marks behind the
/// label are removed.
pub fn split(label: &str) -> Vec<&str> {
    let label = without_marks(label.trim());
    let (mut terms, mut begin, mut depth, mut is_quoted) = (Vec::new(), 0, 0usize, false);
    for (place, symbol) in label.char_indices() {
        match symbol {
            '"' => is_quoted = !is_quoted,
            // A value that was cut ends here, whatever was open in it.
            '…' => (depth, is_quoted) = (0, false),
            '[' | '{' if !is_quoted => depth += 1,
            ']' | '}' if !is_quoted => depth = depth.saturating_sub(1),
            ',' if !is_quoted && depth == 0 => {
                terms.push(label[begin..place].trim());
                begin = place + 1;
            }
            _ => {}
        }
    }
    terms.push(label[begin..].trim());
    terms
}

/// Whether two texts are the same label: the same terms in any order.
pub fn is_same(a: &str, b: &str) -> bool {
    let sorted = |label| {
        let mut terms = split(label);
        terms.sort_unstable();
        terms
    };
    sorted(a) == sorted(b)
}

/// A parsed term of a label or a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term<'t> {
    /// A key, whole or its last parts, and a value.
    Pair(&'t str, &'t str),
    /// A strategy, a name, or the beginning of an id or a key.
    Word(&'t str),
}

/// Parses a label or a filter. A beginning of the cell's key in brackets, which distinguishes cells with the same label, is a term
/// of its own.
pub fn read(label: &str) -> Vec<Term<'_>> {
    let mut terms = Vec::new();
    for text in split(label).into_iter().filter(|text| !text.is_empty()) {
        let (text, key) = match text.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) {
            Some((text, key)) if !key.is_empty() && key.chars().all(|c| c.is_ascii_hexdigit()) => (text, Some(key)),
            _ => (text, None),
        };
        terms.push(match text.split_once('=') {
            Some((key, value)) => Term::Pair(key.trim(), value.trim()),
            None => Term::Word(text.trim()),
        });
        terms.extend(key.map(Term::Word));
    }
    terms
}

/// Whether a key is the one that was typed, which may be the whole key or its last parts.
pub fn is_key(path: &str, typed: &str) -> bool {
    let is = |path: &str| path.strip_suffix(typed).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    is(path) || is(key_of(path))
}

/// Whether a value is the one that was typed: the value itself, its form in labels, or a beginning that ends in `…`. Blanks are
/// ignored, and numbers are compared as numbers.
pub fn is_value(path: &str, value: &Value, typed: &str) -> bool {
    let dense = |text: &str| text.chars().filter(|symbol| !symbol.is_whitespace()).collect::<String>();
    let typed = dense(typed);
    let is_same = |text: String| {
        let text = dense(&text);
        match typed.strip_suffix('…') {
            Some(beginning) => text.starts_with(beginning),
            None => text == typed,
        }
    };
    let numbers = value.as_f64().zip(typed.parse::<f64>().ok());
    numbers.is_some_and(|(a, b)| a == b) || is_same(plain(value)) || is_same(self::value(path, value))
}

/// Labels for a table: without terms that all of them have, without terms that distinguish the same cells as another term, and, where
/// labels stay different without them, without lists and features that are off.
pub fn shortened(labels: &[&str]) -> Vec<String> {
    if let [only] = labels {
        return vec![only.to_string()];
    }
    let terms: Vec<Vec<&str>> = labels.iter().map(|label| split(label)).collect();
    let mut kept: Vec<(&str, Vec<usize>)> = Vec::new();
    for term in terms.iter().flatten().copied() {
        if kept.iter().any(|(other, _)| *other == term) {
            continue;
        }
        let own: Vec<usize> = (0..terms.len()).filter(|row| terms[*row].contains(&term)).collect();
        let is_common = own.len() == terms.len();
        if !is_common && !kept.iter().any(|(_, others)| *others == own) {
            kept.push((term, own));
        }
    }
    let is_kept = |term: &str| kept.iter().any(|(other, _)| *other == term);
    let says = |term: &str, what: &dyn Fn(&str) -> bool| term.split_once('=').is_some_and(|(_, value)| what(value));
    let is_list = |term: &str| says(term, &|value| value.starts_with(['[', '{']));
    let is_off = |term: &str| says(term, &is_off);
    let by = |keep: &dyn Fn(&str) -> bool| -> Vec<String> {
        terms.iter().map(|terms| of_terms(terms.iter().filter(|term| keep(term)))).collect()
    };
    let ways = [
        by(&|term| is_kept(term) && !is_list(term) && !is_off(term)),
        by(&|term| is_kept(term) && !is_list(term)),
        by(&is_kept),
    ];
    let is_unique = |way: &[String], row: usize| {
        !way[row].is_empty() && way.iter().enumerate().all(|(other, label)| other == row || *label != way[row])
    };
    let short = |(row, label): (usize, &&str)| {
        let way = ways.iter().find(|way| is_unique(way, row));
        way.map_or_else(|| label.to_string(), |way| way[row].clone())
    };
    labels.iter().enumerate().map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cells_leave_out_has_its_usual_value() {
        assert_eq!(value("memory.offload_prefetch", &Value::Null), "1");
        assert_eq!(value("memory.offload_optimizer", &Value::Null), "none");
        assert_eq!(value("lora.alpha", &Value::Null), UNSET);
        assert_eq!(value("memory.offload_prefetch", &serde_json::json!(2)), "2");
    }
    use serde_json::json;

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let label = of_terms([
            term(STRATEGY, "strategy", "zero3"),
            term("train.betas", "betas", "[0.9,0.95]"),
            term("memory.checkpointing", "checkpointing", "{\"every\":2}"),
        ]);
        assert_eq!(label, "zero3, betas=[0.9,0.95], checkpointing={\"every\":2}");
        let read_back =
            [Term::Word("zero3"), Term::Pair("betas", "[0.9,0.95]"), Term::Pair("checkpointing", "{\"every\":2}")];
        assert_eq!(read(&label), read_back);
        assert_eq!(read(&format!("{label} [proxy]")), read_back);
        let cut = "zero3, lora.targets=[\"q_proj\",\"k_p…, lora.base=nf4";
        assert_eq!(split(cut), ["zero3", "lora.targets=[\"q_proj\",\"k_p…", "lora.base=nf4"]);
        assert_eq!(read("ddp (3f2a77c0)"), [Term::Word("ddp"), Term::Word("3f2a77c0")]);
        assert_eq!(read("ddp , lr = 1e-3,"), [Term::Word("ddp"), Term::Pair("lr", "1e-3")]);
    }

    #[test]
    fn values_are_compared_as_they_are_and_as_they_are_shown() {
        let bytes = json!(12_500_000_000.0);
        let shown = value("link.node.bandwidth", &bytes);
        for typed in [shown.as_str(), "12500000000", "1.25e10", "12.5GB/s"] {
            assert!(is_value("link.node.bandwidth", &bytes, typed), "{typed}");
        }
        assert!(!is_value("link.node.bandwidth", &bytes, "12.5"));
        let long = json!("a value that has more than forty letters in all, so that it is cut");
        let cut = value("data.path", &long);
        assert!(cut.ends_with('…') && is_value("data.path", &long, &cut), "{cut}");
        assert!(is_value("lora.rank", &Value::Null, UNSET) && is_value("train.lr", &json!(1e-3), "0.001"));
        assert!(is_key("train.micro_batch", "micro_batch") && is_key("link.node.latency", "node.latency"));
        assert!(!is_key("train.micro_batch", "batch") && !is_key("train.lr", "x.train.lr"));
    }

    #[test]
    fn labels_of_a_table_leave_out_what_tells_nothing_apart() {
        let labels = ["ddp, checkpointing=none, accumulation=1", "zero3, checkpointing=none, accumulation=1"];
        assert_eq!(shortened(&labels), ["ddp", "zero3"]);
        assert_eq!(shortened(&labels[..1]), labels[..1]);
        assert_eq!(shortened(&["ddp, a=1", "ddp, a=1"]), ["ddp, a=1", "ddp, a=1"]);
        let labels = [
            "ddp, checkpointing=none",
            "ddp, checkpointing=full",
            "ddp, checkpointing=full, lora.rank=8, lora.targets=[\"q\"]",
            "ddp, checkpointing=full, lora.rank=4, lora.targets=[\"q\"]",
        ];
        let short = [
            "checkpointing=none",
            "checkpointing=full",
            "checkpointing=full, lora.rank=8",
            "checkpointing=full, lora.rank=4",
        ];
        assert_eq!(shortened(&labels), short);
    }
}
