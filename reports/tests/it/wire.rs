//! Bytes that a library moves are planned, and nowhere shown as if they were measured.

use super::grid::{specs, trial};
use zbench_reports::Record;
use zbench_reports::collectives::Row;
use zbench_reports::document::{Block, Entry, Table};
use zbench_reports::grid_report::comparison;
use zbench_reports::notebook_report::show;
use zbench_reports::render::terminal::{Terminal, render};

/// A record over a backend: as this version writes it, or as earlier ones did, with a number that was worked out.
fn over(backend: &str, old: bool) -> Record {
    let mut record = trial(&specs()[0], 1);
    record.cell["parallel"]["backend"] = backend.into();
    if !old {
        record.communication[0].wire_bytes = f64::NAN;
        record.communication[0].extra.insert("source".into(), "planned".into());
    }
    record
}

/// What is said of a record, and its entries for measured bytes on the wire.
fn words(record: &Record) -> (String, Vec<Entry>) {
    let wide = Terminal { width: 10_000, color: false };
    let documents = [comparison(std::slice::from_ref(record), None), show(record, &[])];
    let tables = documents.iter().flat_map(|document| &document.blocks).filter_map(|block| match block {
        Block::Table(table) if ["cells", "communication"].contains(&table.name.as_str()) => Some(table),
        _ => None,
    });
    let of_wire = |table: &Table| {
        let place = table
            .columns
            .iter()
            .position(|column| ["wire", "wire per step"].contains(&&*column.title))
            .expect("a column of measured bytes");
        table.rows.iter().map(|row| row[place].clone()).collect::<Vec<_>>()
    };
    let entries = tables.flat_map(of_wire).collect();
    (documents.iter().map(|document| render(document, wide)).collect(), entries)
}

#[test]
fn what_mpi_and_nccl_move_is_planned_in_records_of_every_age() {
    for backend in ["mpi", "nccl"] {
        for old in [true, false] {
            let record = over(backend, old);
            let line = serde_json::to_string(&record).unwrap();
            let back: Record = serde_json::from_str(&line).unwrap();
            assert_eq!(serde_json::to_string(&back).unwrap(), line, "nothing is lost");
            assert!(back.wire_bytes().is_nan() && back.predicted_wire_bytes().is_some());
            let (text, entries) = words(&back);
            assert!(text.contains("Bytes on the wire of 1 cell are planned and not measured"), "{text}");
            assert!(!text.contains("bytes on the wire equal to the byte") && !text.contains("on the wire;"), "{text}");
            assert_eq!(entries.len(), 3, "of the cells, of the grid's collectives, of the record's");
            for entry in entries {
                assert_eq!(
                    (entry.text.as_str(), &entry.value),
                    ("planned", &serde_json::Value::Null),
                    "{backend} {old}"
                );
            }
        }
    }
}

#[test]
fn what_is_counted_is_measured() {
    let record = over("tcp", true);
    assert_eq!(record.wire_bytes(), record.communication[0].wire_bytes);
    let (text, _) = words(&record);
    assert!(text.contains("bytes on the wire equal to the byte in the one cell"), "{text}");
    assert!(!text.contains("planned and not measured"), "{text}");
}

#[test]
fn a_row_of_the_interconnect_test_without_counted_bytes_reads_back() {
    let row = Row {
        size: 8,
        count: 2,
        dtype: "float".into(),
        redop: "sum".into(),
        root: -1,
        out_of_place: None,
        in_place: None,
        algorithm: "library".into(),
        wire_bytes_rank: f64::NAN,
        wire_bytes_link: f64::NAN,
        iterations: 1,
        timestamp: String::new(),
    };
    let line = serde_json::to_string(&row).unwrap();
    assert!(line.contains("\"wire_bytes_rank\":null"), "{line}");
    let back: Row = serde_json::from_str(&line).unwrap();
    assert!(back.wire_bytes_rank.is_nan() && back.wire_bytes_link.is_nan());
}
