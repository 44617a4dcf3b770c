//! Generated grids whose cells took turns, with known speeds, on a machine whose speed wanders.

use serde_json::json;
use zbench_reports::Record;
use zbench_reports::record::*;

use super::grid;
use super::samples::Dice;

/// How a grid is measured.
#[derive(Clone, Copy)]
pub struct How {
    pub cells: usize,
    pub generations: u32,
    pub rounds: u32,
    /// Standard deviation of the logarithm of a turn.
    pub noise: f64,
}

pub const STRATEGIES: [&str; 7] = ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp"];
const CHECKPOINTING: [&str; 2] = ["none", "full"];

/// The place of a cell in the product of its keys: strategy, checkpointing, accumulation, micro-batch.
fn keys(cell: usize) -> (usize, usize, u64, u64) {
    (cell % 7, cell / 7 % 2, [1, 4][cell / 14 % 2], 1 + (cell / 28) as u64)
}

/// Milliseconds of a step of a cell where the machine has its usual speed.
pub fn true_ms(cell: usize) -> f64 {
    let (strategy, checkpointing, accumulation, micro_batch) = keys(cell);
    let per_token = 1.0 + 0.08 * strategy as f64 + 0.25 * checkpointing as f64 - 0.02 * (accumulation - 1) as f64;
    100.0 * per_token * (1.0 - 0.01 * (micro_batch - 1) as f64)
}

/// A record of a cell without turns: the first trial of one that ran.
pub fn cell(number: usize, trial: u32) -> Record {
    let (strategy, checkpointing, accumulation, micro_batch) = keys(number);
    let ms = true_ms(number);
    let spec = grid::Spec {
        strategy: STRATEGIES[strategy],
        checkpointing: CHECKPOINTING[checkpointing],
        accumulation,
        ms: [ms, ms * 1.02, ms * 0.98],
        peak_mib: 400 / (strategy as u64 + 1) / (1 + checkpointing as u64) + 10 * micro_batch,
        wire_mb: 60.0 + 15.0 * strategy as f64,
        verdict: if number == 0 { Verdict::Reference } else { Verdict::Identical },
    };
    let mut record = grid::trial(&spec, 1 + (trial - 1) % 3);
    record.trial = trial;
    record.key = format!("{number:03}-key-of-the-cell");
    record.id = format!("{number:03}{trial}-id-of-the-record");
    record.cell["train"]["micro_batch"] = micro_batch.into();
    record.cell["train"]["steps"] = 4.into();
    record.cell["train"]["untimed_steps"] = 1.into();
    record.parity.reference = (number > 0).then(|| "0001-id-of-the-record".to_string());
    record.environment = json!({"cpu": "Synthetic 3000", "cores": 8}).as_object().unwrap().clone();
    record
}

/// All records of a grid whose cells took turns; the last of each generation is the twin of the first cell.
pub fn records(how: How) -> Vec<Record> {
    let mut dice = Dice(11);
    let mut records = Vec::new();
    let mut round = 0;
    for generation in 1..=how.generations {
        let mut rows: Vec<Vec<TurnRow>> = vec![Vec::new(); how.cells + 1];
        let mut at = 1.0;
        for _ in 0..how.rounds {
            round += 1;
            let mut order: Vec<usize> = (0..=how.cells).collect();
            for place in (1..order.len()).rev() {
                order.swap(place, (dice.uniform() * (place + 1) as f64) as usize);
            }
            let machine = (0.2 * dice.normal()).exp();
            for (place, &player) in order.iter().enumerate() {
                let cell = player % how.cells;
                let tokens = 2048;
                let ms = true_ms(cell) * machine * (how.noise * dice.normal()).exp();
                rows[player].push(TurnRow {
                    round,
                    order: place as u32,
                    at,
                    tokens,
                    ms: vec![ms],
                    others: 0.0,
                    stolen: 0.0,
                    machine: None,
                    counted: round % 7 != 0,
                    extra: Extra::new(),
                });
                at += ms / 1e3;
            }
        }
        for (player, rows) in rows.into_iter().enumerate() {
            let twin = player == how.cells;
            let mut record = cell(player % how.cells, generation);
            if twin {
                record.id = format!("twin{generation}-id-of-the-record");
            }
            record.turns = Some(Turns {
                experiment: "synthetic-1".into(),
                seed: 7,
                generation,
                twin,
                reference: player == 0,
                stopped: Some("budget".into()),
                rows,
                ..Turns::default()
            });
            records.push(record);
        }
    }
    records
}

/// The same cells by three trials each.
pub fn trials(cells: usize) -> Vec<Record> {
    (1..=3).flat_map(|trial| (0..cells).map(move |number| cell(number, trial))).collect()
}

/// The record of a cell that ended otherwise.
pub fn ended(number: usize, status: Status, source: Option<Source>, reason: &str) -> Record {
    let whole = cell(number, 1);
    let mut record = Record::new(whole.id, whole.key, whole.name, Outcome::ended(status, reason, source));
    record.trial = 1;
    record.cell = whole.cell;
    record.environment = whole.environment;
    record.command = whole.command;
    record.memory.total = whole.memory.total.map(|plan| Bytes { peak_bytes: None, at_peak_bytes: None, ..plan });
    record
}
