use super::*;
use serde_json::json;
use zbench_reports::record::Outcome;

/// A record of transfers of so many bytes that read 2 and wrote 1 GB/s, times `factor`.
fn record(folder: &str, started: &str, bytes: u64, way: (bool, &str, u64), factor: f64) -> Record {
    let (direct, engine, depth) = way;
    let mut record = Record::new("id", "key", "x", Outcome::measured());
    record.environment.insert("host".into(), "here".into());
    record.started = started.into();
    record.cell = json!({"suite": "io", "io": {"link": "disk", "size": bytes, "depth": depth}});
    let pass = |pattern: &str, direction: &str, rate: f64| {
        let bytes = (1e9 * rate * factor) as u64;
        json!({"pattern": pattern, "direction": direction, "bytes": bytes, "seconds": 1.0})
    };
    let passes = [pass("random", "read", 9.0), pass("sequential", "write", 1.0), pass("sequential", "read", 2.0)];
    record.extra.insert("io".into(), json!({"folder": folder, "engine": engine, "direct": direct, "passes": passes}));
    record
}

const LIKE: (bool, &str, u64) = (true, "io_uring", 8);

#[test]
fn each_size_has_the_newest_record_of_the_way_that_training_goes() {
    let mut elsewhere = record("/a", "2026-09", 1 << 20, LIKE, 7.0);
    elsewhere.environment.insert("host".into(), "elsewhere".into());
    let mut failed = record("/a", "2026-09", 1 << 20, LIKE, 7.0);
    failed.outcome = Outcome::ended(zbench_reports::record::Status::Failed, "full", None);
    let mut in_memory = record("/shm", "2026-09", 1 << 20, LIKE, 7.0);
    in_memory.extra["io"]["is_memory"] = true.into();
    let records = [
        record("/a", "2026-01", 1 << 20, LIKE, 1.0),
        record("/a", "2026-03", 1 << 20, LIKE, 3.0),
        record("/a", "2026-02", 1 << 16, LIKE, 2.0),
        // Newer, but less like training: through the page cache, by threads, one at a time.
        record("/a", "2026-05", 1 << 20, (false, "io_uring", 8), 7.0),
        record("/a", "2026-05", 1 << 20, (true, "threads", 8), 7.0),
        record("/a", "2026-05", 1 << 24, (true, "io_uring", 1), 7.0),
        record("/b", "2026-06", 1 << 20, (false, "threads", 4), 5.0),
        elsewhere,
        failed,
        in_memory,
    ];
    let rate = |bytes, factor: f64| DriveRate { bytes, read: 2e9 * factor, write: 1e9 * factor };
    let a = DriveRates {
        folder: "/a".into(),
        measured: "2026-03".into(),
        rates: vec![rate(1 << 16, 2.0), rate(1 << 20, 3.0)],
    };
    let b = DriveRates { folder: "/b".into(), measured: "2026-06".into(), rates: vec![rate(1 << 20, 5.0)] };
    assert_eq!(of_records(&records, "here"), [b, a.clone()]);
    let said = a.to_string();
    assert!(said.contains("/a") && said.contains("6.00 GB/s read and 3.00 written by 1.00 MiB"), "{said}");
    assert_eq!(of_records(&records, "nowhere"), []);
}

#[test]
fn what_is_saved_is_read_back_and_nothing_else_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.toml");
    let mine = "# mine\nabout = \"x\"\ndevice = \"cpu\"\n\n[operations]\ncores = 2\n";
    std::fs::write(&path, mine).unwrap();
    for factor in [1.25, 0.75] {
        let drives = of_records(&[record("/a \"b\"", "today", 4096, LIKE, factor)], "here");
        save(&path, &drives).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(of_value(&table["drives"]).unwrap(), drives);
        assert!(text.starts_with(mine) && text.matches("[drives]").count() == 1, "{text}");
    }
}

#[test]
fn what_is_written_otherwise_is_told() {
    for text in [
        "",
        "measured = 3",
        "measured = [{ folder = \"/a\", rates = [] }]",
        "measured = [{ folder = \"/a\", newest = \"x\", rates = [{ bytes = 4096, read = 1e9 }] }]",
        "measured = [{ folder = \"/a\", newest = \"x\", rates = [{ bytes = 0, read = 1e9, write = 1e9 }] }]",
        "measured = [{ folder = \"/a\", newest = \"x\", rates = [{ bytes = 4096, read = -1e9, write = 1e9 }] }]",
    ] {
        let value = Value::Table(text.parse().unwrap());
        assert!(of_value(&value).unwrap_err().contains("--from-notebook"), "{text}");
    }
}
