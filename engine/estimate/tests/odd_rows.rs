//! Rows of any text are predicted or refused, and never end the program.

use zbench_estimate::published::row::{Row, read};
use zbench_estimate::published::{collectives, kernels, throughput};

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../tests/published/{name}.csv", env!("CARGO_MANIFEST_DIR"))).expect(name)
}

/// A generator of numbers without a crate: the constants of Numerical Recipes.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides.max(1)
    }
}

const ODD: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "7",
    "1e15",
    "1e300",
    "NaN",
    "inf",
    "-inf",
    "0.0001",
    "n/a",
    "24+24",
    "0+0",
    "full",
    "none",
    "\u{fffd}\u{1f600}",
    "A100",
    "H100-SXM",
    "GB200",
    "zero3",
    "fsdp",
    "cpu",
    "nvme",
    "lora r0",
    "qlora",
    "fp8",
    "3,000",
    "100000000000",
    "999999999",
    "hardware",
    "8*N",
    "all_reduce",
    "gen9",
    "gen",
    "PCIe Gen",
    "yes",
];

fn odd(text: &str, predict: impl Fn(&Row) -> Option<f64>) {
    let mut lines = text.lines();
    let header = lines.next().expect("a header");
    let columns = header.split(',').count();
    let rows = read(text).expect("CSV");
    let names: Vec<&str> = header.split(',').collect();
    let mut dice = Dice(7);
    for round in 0..4000 {
        let row = &rows[dice.roll(rows.len())];
        let mut cells: Vec<String> = names.iter().map(|name| row.text(name).replace('"', "")).collect();
        for _ in 0..=round % 6 {
            let column = dice.roll(columns);
            cells[column] = ODD[dice.roll(ODD.len())].into();
        }
        let line: Vec<String> = cells.iter().map(|cell| format!("\"{cell}\"")).collect();
        let changed = format!("{header}\n{}\n", line.join(","));
        for row in read(&changed).expect("CSV") {
            if let Some(predicted) = predict(&row) {
                assert!(!predicted.is_nan() && predicted >= 0.0, "{predicted} of {changed}");
            }
        }
    }
}

#[test]
fn of_throughput() {
    odd(&file("throughput"), |row| throughput::predict(row).ok().map(|guess| guess.predicted));
}

#[test]
fn of_kernels() {
    odd(&file("kernels"), |row| kernels::predict(row).ok().map(|guess| guess.predicted));
}

#[test]
fn of_collectives() {
    odd(&file("collectives"), |row| collectives::predict(row).ok().map(|guess| guess.predicted));
}
