//! Which cells must have the losses of their reference to the bit: those in f32 that add the same numbers in the same order.

use crate::grid::labels::first_labels;
use crate::grid::{Cell, Grid};
use crate::record::{Record, Verdict};
use crate::units;
use serde_json::Value;

/// Whether a record must agree with its reference to the bit; `None` where the records do not say enough.
///
/// The reference is a ddp cell of the same global batch. If it divides the batch in another way, it adds in another order. With
/// one micro-batch every strategy adds in the order of ddp; the hybrid ones do if their two levels are powers of two. With
/// several micro-batches only zero1 adds over ranks last, as ddp does.
fn has_to_agree(record: &Record, reference: &Record) -> Option<bool> {
    let text = |path: &str| record.setting(path).and_then(Value::as_str);
    let number = |path: &str| record.setting(path).and_then(Value::as_u64);
    let kinds = ["parameters", "compute", "gradients", "reduce", "master", "optimizer"];
    let rounds = kinds.iter().any(|kind| text(&format!("precision.{kind}")).is_some_and(|dtype| dtype != "f32"));
    text("precision.compute")?;
    let alike = |paths: [&str; 3]| paths.iter().all(|path| record.setting(path) == reference.setting(path));
    let same_kernels = alike(["memory.attention", "hardware.threads_per_rank", "hardware.device"]);
    let same_division = alike(["parallel.ranks", "train.micro_batch", "train.accumulation"]);
    // These libraries add in an order of their own.
    let is_library =
        |of: &Record| matches!(of.setting("parallel.backend").and_then(Value::as_str), Some("mpi" | "nccl"));
    let by_library = is_library(record) || is_library(reference);
    let (strategy, ranks) = (text("parallel.strategy")?, number("parallel.ranks")?);
    let same_order = match number("train.accumulation")? {
        1 => !strategy.starts_with("hsdp") || ranks.is_power_of_two(),
        _ => matches!(strategy, "ddp" | "zero1"),
    };
    Some(!rounds && same_kernels && same_division && !by_library && same_order)
}

/// Which of the compared cells must agree to the bit, and whether they do; `None` where no record says enough.
pub(super) fn expected(grid: &Grid) -> Option<String> {
    let (mut bound, mut broken, mut free, mut by_chance) = (0, Vec::new(), Vec::new(), 0);
    let compared = |cell: &&Cell| !matches!(cell.verdict, Verdict::Reference | Verdict::None);
    for cell in grid.measured().filter(compared) {
        let Some(reference) = grid.reference(cell) else { continue };
        let is_same = cell.verdict == Verdict::Identical;
        match has_to_agree(cell.record(), reference.record()) {
            None => {}
            Some(true) => {
                bound += 1;
                broken.extend((!is_same).then_some(cell));
            }
            Some(false) => {
                free.push(cell);
                by_chance += usize::from(is_same);
            }
        }
    }
    let mut sentences = Vec::new();
    match (bound, &broken[..]) {
        (0, _) => {}
        (1, []) => sentences.push("The cell that has to agree to the bit does.".to_string()),
        (2, []) => sentences.push("Both cells that have to agree to the bit do.".to_string()),
        (_, []) => sentences.push(format!("All {bound} cells that have to agree to the bit do.")),
        (_, broken) => sentences.push(format!(
            "Of {} that {} to agree to the bit, {} not ({}): an error of the program or of the machine.",
            units::plural(bound, "cell", "cells"),
            if bound == 1 { "has" } else { "have" },
            units::plural(broken.len(), "does", "do"),
            first_labels(broken.iter().copied())
        )),
    }
    if !free.is_empty() {
        let agree = if by_chance == 1 { "agrees" } else { "agree" };
        let chance = if by_chance > 0 { format!("; {by_chance} of them {agree}") } else { String::new() };
        let their = if free.len() == 1 { "its" } else { "their" };
        sentences.push(format!(
            "{} need not agree to the bit, because {their} sums have another order or fewer bits than f32 ({}){chance}.",
            units::plural(free.len(), "cell", "cells"),
            first_labels(free.iter().copied())
        ));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}
