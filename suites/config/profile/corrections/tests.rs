use super::*;

fn residual(name: &str, factor: f64, records: usize) -> Residual {
    Residual { name: name.into(), factor, low: factor * 0.9, high: factor * 1.1, records }
}

#[test]
fn what_is_saved_is_read_back_and_nothing_else_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.toml");
    let mine = "# mine\nabout = \"x\"\ndevice = \"cpu\"\n\n[operations]\ncores = 2\n";
    std::fs::write(&path, mine).unwrap();
    for factor in [1.25, 0.75] {
        let spans = vec![residual("backward", factor, 8), residual("optimizer", 1.5, 4)];
        let corrections = Corrections { made: "today".into(), spans };
        save(&path, &corrections).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(of_value(&table["corrections"]).unwrap(), corrections);
        assert!(text.starts_with(mine) && text.matches("[corrections]").count() == 1, "{text}");
    }
}

#[test]
fn what_is_written_otherwise_is_told() {
    for text in [
        "spans = []",
        "made = \"x\"",
        "made = \"x\"\nspans = [{ of = \"forward\" }]",
        "made = \"x\"\nspans = [{ of = \"sleeping\", factor = 1.0, low = 1.0, high = 1.0, records = 3 }]",
        "made = \"x\"\nspans = [{ of = \"forward\", factor = -1.0, low = 1.0, high = 1.0, records = 3 }]",
    ] {
        let value = toml::Value::Table(text.parse().unwrap());
        assert!(of_value(&value).unwrap_err().contains("--from-notebook"), "{text}");
    }
}
