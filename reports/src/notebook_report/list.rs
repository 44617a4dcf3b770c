//! The list of a notebook's records, made of what its index has of them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::document::{Document, Entry, Table, Tone};
use crate::grid::labels::{first_letters, labels_of, telling_length};
use crate::store::{Index, IndexEntry};
use crate::units;

/// One row for each of these records, in the order given.
pub struct List<'r> {
    records: &'r [&'r IndexEntry],
    labels: Vec<String>,
    tags: HashMap<&'r str, String>,
    remarks: HashMap<&'r str, usize>,
    /// Letters of ids and keys that are shown.
    id_length: usize,
    key_length: usize,
    of: Option<usize>,
}

impl<'r> List<'r> {
    /// A list with the tags and remarks of the index. `of` is the number of all records, where these are only some of them.
    pub fn new(records: &'r [&'r IndexEntry], index: &'r Index, of: Option<usize>) -> Self {
        let tags = index.tags().into_iter().map(|(id, tags)| (id, joined(&tags))).collect();
        let mut remarks = HashMap::new();
        for remark in index.remarks().filter(|remark| !remark.is_tagging()) {
            *remarks.entry(remark.note_for.as_str()).or_default() += 1;
        }
        List {
            records,
            labels: labels_of(records),
            tags,
            remarks,
            id_length: telling_length(records.iter().map(|record| record.id.as_str())),
            key_length: telling_length(records.iter().map(|record| record.key.as_str())),
            of,
        }
    }

    /// The whole list.
    pub fn document(&self) -> Document {
        let mut document = Document::new(self.title());
        if !self.records.is_empty() {
            document.table(self.table(0..self.records.len()));
        }
        document.paragraph(self.last_line());
        document
    }

    /// The heading above the rows.
    pub fn title(&self) -> &'static str {
        "Records"
    }

    /// The count of the records, or a sentence in place of a table without rows.
    pub fn last_line(&self) -> String {
        let of = self.of.map_or(String::new(), |all| format!(" of {all}"));
        match (self.records, self.of) {
            ([], None | Some(0)) => "The notebook is empty; zbench grid FILE or zbench run FILE fills it.".into(),
            ([], Some(all)) => format!("None of {}.", units::plural(all, "record", "records")),
            (records, _) => format!("{}{of}.", units::plural(records.len(), "record", "records")),
        }
    }

    /// Some of its rows.
    pub fn table(&self, places: Range<usize>) -> Table {
        let rows: Vec<(&IndexEntry, &str)> =
            places.map(|place| (self.records[place], self.labels[place].as_str())).collect();
        let mut table = Table::of("records", &rows);
        let (id, key) = (self.id_length, self.key_length);
        table.words("record", |(record, _)| Entry::shortened(&record.id, first_letters(&record.id, id)));
        table.words("started", |(record, _)| &record.started);
        table.words("name", |(record, _)| &record.name);
        table.words("cell", |(_, label)| *label);
        table.words("strategy", |(record, _)| record.setting("parallel.strategy")).for_machines = true;
        table.numbers("ranks", "", |(record, _)| record.setting("parallel.ranks"));
        table.words("key", |(record, _)| Entry::shortened(&record.key, first_letters(&record.key, key)));
        table.numbers("trial", "", |(record, _)| u64::from(record.trial));
        table.words("outcome", |(record, _)| {
            let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
            Entry::words(record.status.name()).toned(tone)
        });
        // Turns of which none counts have no speed.
        let speed = |record: &IndexEntry| {
            let counts = !record.has_turns || record.excluding_flags().next().is_none();
            record.tokens_per_second.filter(|_| counts)
        };
        table.numbers("tokens/s", "tokens/s", |(record, _)| Entry::maybe(speed(record), units::number));
        table.numbers("peak memory", "bytes", |(record, _)| Entry::maybe(record.peak_memory_bytes, units::memory));
        table.words("loss parity", |(record, _)| record.parity.words());
        table.words("flags", |(record, _)| record.flags.join(", "));
        table.words("tags", |(record, _)| self.tags.get(record.id.as_str()).map_or("", String::as_str));
        table.numbers("remarks", "", |(record, _)| self.remarks.get(record.id.as_str()).copied());
        table.words("reason", |(record, _)| &record.reason).for_machines = true;
        table.build()
    }
}

pub(super) fn joined(tags: &BTreeSet<&str>) -> String {
    tags.iter().copied().collect::<Vec<_>>().join(", ")
}
