//! Checkpoints as slices of tensors: any ranks load what any ranks wrote, whatever form the slices have; what files say of them
//! is checked before it is used.

use crate::training::resume::{
    below, course, files, forged, rewritten, saved, saving, six_steps, try_course, try_loaded,
};
use crate::training::support::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zbench_engine::checkpoint::training::{Digest, step_dir};
use zbench_engine::config::*;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

/// A run of two steps that wrote its state after the last: the folder, and the checksum of the state.
fn written(dir: &Path, cell: &Cell) -> (PathBuf, Digest) {
    let mut cell = saved(cell.clone(), Saving { every: 0, ..saving(dir) });
    cell.train.steps = 2;
    (step_dir(dir, 2), course(&cell).digest)
}

/// The cell that continues from a checkpoint with its own folder for what it writes.
fn from(cell: &Cell, checkpoint: &Path, own: &Path) -> Cell {
    let resume = Resume::From(checkpoint.into());
    saved(cell.clone(), Saving { every: 0, resume, ..saving(own) })
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(std::fs::read_to_string(path).unwrap().lines().nth(1).unwrap()).unwrap()
}

/// Changes what a rank's file says, and the index with it.
fn forge_rank(dir: &Path, rank: usize, change: impl FnOnce(&mut Value)) {
    let sum = forged(&dir.join(format!("rank-{rank:05}.json")), change);
    forged(&dir.join("index.json"), |index| index["ranks"][rank][1] = sum.into());
}

#[test]
fn four_ranks_write_and_one_two_three_and_six_load_equal_tensors() {
    let mixed = Cell { precision: Precision::mixed(DType::Bf16), ..six_steps() };
    let (cells, writers) = ([six_steps(), mixed], [(Strategy::Ddp, 1), (Strategy::Zero3, 1), (Strategy::Hsdp, 2)]);
    let (readers, mut checkpoints) = ([Strategy::Ddp, Strategy::Zero1, Strategy::Fsdp], BTreeMap::new());
    let sizes = [cells.len(), writers.len(), readers.len(), 4];
    for [number, writer, reader, ranks] in tiers::combinations("training::slices::four_ranks_write", sizes) {
        let (cell, (strategy, shard), ranks) = (&cells[number], writers[writer], [1, 2, 3, 6][ranks]);
        let (_, checkpoint, digest) = checkpoints.entry((number, writer)).or_insert_with(|| {
            let dir = tempfile::tempdir().unwrap();
            let (checkpoint, digest) = written(&dir.path().join("four"), &on(cell.clone(), strategy, 4, shard));
            (dir, checkpoint, digest)
        });
        let own = tempfile::tempdir().unwrap();
        let loaded = rewritten(&from(&on(cell.clone(), readers[reader], ranks, 1), checkpoint, own.path()));
        assert_eq!(loaded, *digest, "{} on {ranks}", readers[reader].name());
    }
}

/// Every matrix is stored as its left and its right columns, as two ranks of tensor parallelism have them.
#[test]
fn regions_of_tensors_load_into_equal_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let cell = on(six_steps(), Strategy::Ddp, 1, 1);
    let (checkpoint, digest) = written(&dir.path().join("whole"), &cell);
    let (data, index) = (checkpoint.join("rank-00000.safetensors"), json_of(&checkpoint.join("index.json")));
    let mut bytes = std::fs::read(&data).unwrap();
    let mut cut = 0;
    forge_rank(&checkpoint, 0, |rank| {
        let mut pieces = Vec::new();
        for piece in rank["pieces"].as_array().unwrap() {
            let number = |value: &Value| value.as_u64().unwrap() as usize;
            let shape = &index["identity"]["tensors"][number(&piece["tensor"])][1];
            let (1, 2) = (
                piece["dtype"].as_str().map_or(0, |dtype| usize::from(dtype == "f32")),
                shape.as_array().unwrap().len(),
            ) else {
                pieces.push(piece.clone());
                continue;
            };
            let (rows, cols) = (number(&shape[0]), number(&shape[1]));
            assert_eq!(number(&piece["len"]), rows * cols);
            let (at, left) = (number(&piece["at"]), cols / 3);
            let whole = bytes[at..at + 4 * rows * cols].to_vec();
            let mut to = at;
            for columns in [0..left, left..cols] {
                // Two pieces of each region, the first of which ends within a row.
                let (len, middle) = (rows * columns.len(), rows * columns.len() / 2 + 1);
                for part in [0..middle, middle..len] {
                    let mut slice = piece.clone();
                    let at = to + 4 * part.start;
                    slice["region"] = json!({ "offsets": [0, columns.start], "sizes": [rows, columns.len()] });
                    (slice["start"], slice["len"], slice["at"]) = (part.start.into(), part.len().into(), at.into());
                    pieces.push(slice);
                }
                for row in whole.chunks_exact(4 * cols) {
                    let row = &row[4 * columns.start..4 * columns.end];
                    bytes[to..to + row.len()].copy_from_slice(row);
                    to += row.len();
                }
            }
            cut += 1;
        }
        rank["pieces"] = pieces.into();
        let sums: Vec<u32> = bytes.chunks(1 << 20).map(crc32fast::hash).collect();
        rank["files"][0]["crc32"] = json!(sums);
    });
    std::fs::write(&data, &bytes).unwrap();
    assert!(cut >= 3 * 20, "{cut} matrices are cut");
    for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 4), (Strategy::Fsdp, 3)] {
        let own = tempfile::tempdir().unwrap();
        let loaded = rewritten(&from(&on(six_steps(), strategy, ranks, 1), &checkpoint, own.path()));
        assert_eq!(loaded, digest, "{} on {ranks}", strategy.name());
    }
}

/// What files say may be anything, with checksums that are right.
#[test]
fn pieces_that_cannot_be_are_refused_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = on(six_steps(), Strategy::Zero3, 2, 1);
    let (checkpoint, _) = written(&dir.path().join("two"), &cell);
    cell.train.steps = 3;
    let all: Vec<_> = files(&checkpoint).into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    let own = tempfile::tempdir().unwrap();
    let reason = |change: &dyn Fn(&mut Value)| {
        forge_rank(&checkpoint, 0, |rank| change(&mut rank["pieces"]));
        let reason = try_course(&from(&cell, &checkpoint, own.path()), None).err();
        all.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        reason.unwrap_or_else(|| panic!("accepted"))
    };
    let add = |value: &mut Value, more: i64| *value = (value.as_i64().unwrap() + more).into();
    // One element too few here and the same one twice there: their number is right.
    let moved = reason(&|pieces| {
        add(&mut pieces[0]["len"], -1);
        let again = pieces[0].clone();
        pieces.as_array_mut().unwrap().push(again);
        let last = pieces.as_array().unwrap().len() - 1;
        (pieces[last]["start"], pieces[last]["len"]) = (0.into(), 1.into());
    });
    assert!(moved.contains("the weights of model.embed_tokens.weight, element 0 is in its files twice"), "{moved}");
    let short = reason(&|pieces| add(&mut pieces[0]["len"], -1));
    assert!(short.contains("is in none of its files"), "{short}");
    let gone = reason(&|pieces| drop(pieces.as_array_mut().unwrap().remove(4)));
    assert!(gone.contains("is in none of its files"), "{gone}");
    let beyond = reason(&|pieces| pieces[0]["tensor"] = 10_000.into());
    assert!(beyond.contains("it names the tensor 10000 of"), "{beyond}");
    let outside = reason(&|pieces| add(&mut pieces[0]["start"], 1 << 40));
    assert!(outside.contains("are not inside of [61, 24]"), "{outside}");
    let late = reason(&|pieces| pieces[0]["at"] = (u64::MAX - 3).into());
    assert!(late.contains("elements at byte 18446744073709551612 of"), "{late}");
    let odd = reason(&|pieces| add(&mut pieces[0]["at"], 1));
    assert!(odd.contains("elements at byte 4097 of"), "{odd}");
    let region = reason(&|pieces| pieces[0]["region"] = json!({ "offsets": [0, 1], "sizes": [61, 24] }));
    assert!(region.contains("the region of [61, 24] at [0, 1] is not inside of [61, 24]"), "{region}");
}

/// Any number, text or list of any JSON file is replaced, left out or doubled, with checksums that are right.
#[test]
fn whatever_files_say_no_run_panics_or_loads_other_elements() {
    let mut next = below(0x2545_F491_4F6C_DD1D);
    for layout in [SaveLayout::Sharded, SaveLayout::Full] {
        let dir = tempfile::tempdir().unwrap();
        let cell = on(six_steps(), Strategy::Zero3, 2, 1);
        let mut first = saved(cell.clone(), Saving { every: 0, layout, ..saving(dir.path()) });
        first.train.steps = 2;
        let digest = course(&first).digest;
        assert_trusts_nothing(&step_dir(dir.path(), 2), &cell, digest, &mut next);
    }
}

fn assert_trusts_nothing(checkpoint: &Path, cell: &Cell, digest: Digest, next: &mut impl FnMut(usize) -> usize) {
    let all: Vec<_> = files(checkpoint).into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    let (mut refused, mut accepted) = (0, 0);
    let rounds = tiers::cases("training::slices::whatever_files_say", [40, 120, 250]) as usize;
    for round in 0..rounds {
        let mut path = String::new();
        let mut change = |value: &mut Value| path = mutate(value, next);
        match round % 4 {
            0 => drop(forged(&checkpoint.join("index.json"), &mut change)),
            1 => {
                let sum = forged(&checkpoint.join("steps.json"), &mut change);
                forged(&checkpoint.join("index.json"), |index| index["history"][1] = sum.into());
            }
            rank => forge_rank(checkpoint, rank - 2, &mut change),
        }
        let own = tempfile::tempdir().unwrap();
        let resumed = from(cell, checkpoint, own.path());
        let tried = std::panic::catch_unwind(|| try_loaded(&resumed));
        all.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        match tried.unwrap_or_else(|_| panic!("round {round}, {path}: a panic")) {
            Ok(loaded) => {
                // The bytes of a piece are what its file says they are, if they lie within the file.
                let trusted = path.ends_with("/at") || path.ends_with("/dtype");
                assert!(loaded == digest || trusted, "round {round}, {path}: other elements were loaded");
                accepted += 1;
            }
            Err(reason) => {
                assert!(!reason.contains("panicked"), "round {round}, {path}: {reason}");
                refused += 1;
            }
        }
    }
    assert!(refused > rounds / 5 && accepted > rounds / 50, "{refused} were refused and {accepted} accepted");
}

/// Changes one value somewhere in a document. Returns where.
fn mutate(value: &mut Value, next: &mut impl FnMut(usize) -> usize) -> String {
    let inner: Vec<String> = match &*value {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(list) => (0..list.len()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    };
    if !inner.is_empty() && next(8) > 0 {
        let key = &inner[next(inner.len())];
        let child = match value {
            Value::Array(list) => &mut list[key.parse::<usize>().unwrap()],
            other => &mut other[key],
        };
        return format!("/{key}{}", mutate(child, next));
    }
    let numbers = [0, 1, 3, 1 << 20, u32::MAX.into(), 1 << 53, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    *value = match (&*value, next(6)) {
        (Value::Array(list), 0 | 1) if !list.is_empty() => [&list[..], &list[..1]].concat().into(),
        (Value::Array(list), 2 | 3) if !list.is_empty() => list[1..].to_vec().into(),
        (Value::Number(number), 0) => number.as_u64().unwrap_or(0).wrapping_add(1).into(),
        (Value::Number(number), 1) => number.as_u64().unwrap_or(0).wrapping_sub(1).into(),
        (_, 2) => Value::Null,
        (_, 3) => json!([]),
        (_, 4) => json!("bf16"),
        _ => numbers[next(numbers.len())].into(),
    };
    String::new()
}
