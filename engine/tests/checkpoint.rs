//! Checkpoints on disk: slices of every type, shards, and files that are cut, damaged or lie.

use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use zbench_engine::checkpoint::weights::{Checkpoint, CheckpointError, StoredType, write_safetensors};
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/llama");

type Tensors<'a> = Vec<(String, Vec<usize>, &'a [f32])>;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A file with a stated header, whatever it claims, and so many bytes of data.
fn raw(path: &Path, header: &str, data_bytes: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data_bytes).map(|place| place as u8));
    std::fs::write(path, bytes).expect("a file in a temporary folder");
}

fn single(dir: &TempDir) -> PathBuf {
    dir.path().join("model.safetensors")
}

/// The error's text must hold all of `parts`.
fn says(error: &CheckpointError, parts: &[&str]) {
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

fn refused(dir: &Path, parts: &[&str]) {
    says(&Checkpoint::open(dir).map(|_| ()).expect_err("to be refused"), parts);
}

fn read_all(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let elements = checkpoint.tensor(name).expect("a tensor").elements();
    let mut values = vec![0.0; elements];
    checkpoint.read(name, 0..elements, &mut values, &mut Vec::new()).expect("readable");
    values
}

#[test]
fn the_fixture_reads_as_the_safetensors_crate_reads_it() {
    let file = std::fs::read(Path::new(FIXTURE).join("model.safetensors")).expect("the fixture");
    let reference = SafeTensors::deserialize(&file).expect("a whole file");
    let checkpoint = Checkpoint::open(Path::new(FIXTURE)).expect("the fixture");
    assert_eq!(checkpoint.names().count(), reference.len());
    let mut elements = 0;
    for (name, view) in reference.tensors() {
        let info = checkpoint.tensor(&name).expect("the same names");
        assert_eq!((info.shape.as_slice(), info.dtype), (view.shape(), StoredType::F32));
        assert_eq!(info.file, Path::new(FIXTURE).join("model.safetensors"));
        let expected: Vec<f32> = view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(read_all(&checkpoint, &name), expected, "{name}");
        let slice = expected.len() / 3..expected.len() / 2;
        let mut part = vec![0.0; slice.len()];
        checkpoint.read(&name, slice.clone(), &mut part, &mut Vec::new()).expect("a slice");
        assert_eq!(part, expected[slice], "{name}");
        elements += expected.len();
    }
    assert_eq!(elements, 125_248);
}

proptest! {
    // Each case flushes a file to the disk.
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("checkpoint::what_is_written_is_read", [24, 96, 96])))]

    #[test]
    fn what_is_written_is_read_in_any_slice(
        shapes in prop::collection::vec(prop::collection::vec(0usize..9, 0..4), 0..6),
        dtype in prop_oneof![Just(DType::F32), Just(DType::Bf16), Just(DType::F16)],
        bits in any::<u32>(),
        ends in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let value = |place: usize| f32::from_bits(bits.wrapping_add(place as u32).wrapping_mul(2_654_435_761));
        let data: Vec<Vec<f32>> =
            shapes.iter().map(|shape| (0..shape.iter().product()).map(value).collect()).collect();
        let tensors: Tensors = shapes.iter().zip(&data).enumerate()
            .map(|(index, (shape, data))| (format!("layers.{index}.é\"weight"), shape.clone(), data.as_slice()))
            .collect();
        let dir = folder();
        write_safetensors(&single(&dir), &tensors, dtype).expect("written");

        let file = std::fs::read(single(&dir)).expect("the file");
        SafeTensors::deserialize(&file).expect("the safetensors crate takes it");
        let checkpoint = Checkpoint::open(dir.path()).expect("our own file");
        let expected: Vec<_> = tensors.iter().map(|(name, shape, _)| (name.clone(), shape.clone())).collect();
        checkpoint.check(&expected).expect("what was written");
        for (name, _, data) in &tensors {
            let (a, b) = (ends.0.index(data.len() + 1), ends.1.index(data.len() + 1));
            let slice = a.min(b)..a.max(b);
            let mut values = vec![0.0f32; slice.len()];
            checkpoint.read(name, slice.clone(), &mut values, &mut Vec::new()).expect("a slice");
            for (got, put) in values.iter().zip(&data[slice]) {
                let want = match dtype {
                    DType::Bf16 => half::bf16::from_f32(*put).to_f32(),
                    DType::F16 => half::f16::from_f32(*put).to_f32(),
                    _ => *put,
                };
                prop_assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{} {}", got, want);
            }
        }
    }
}

#[test]
fn slices_longer_than_the_buffer_and_slices_that_cannot_be() {
    let dir = folder();
    let data: Vec<f32> = (0..600_000).map(|place| place as f32).collect();
    write_safetensors(&single(&dir), &[("w".into(), vec![600, 1000], &data)], DType::F32).expect("written");
    let checkpoint = Checkpoint::open(dir.path()).expect("a file");
    let mut part = vec![0.0; 500_001];
    checkpoint.read("w", 7..500_008, &mut part, &mut Vec::new()).expect("a long slice");
    assert_eq!(part, data[7..500_008]);
    let read = |name: &str, range: std::ops::Range<usize>, room: usize| {
        checkpoint.read(name, range, &mut vec![0.0; room], &mut Vec::new()).expect_err("cannot be")
    };
    says(&read("v", 0..1, 1), &["tensor v", "no such tensor"]);
    says(&read("w", 0..600_001, 600_001), &["tensor w", "600001", "600000"]);
    says(&read("w", 0..2, 3), &["tensor w", "2", "3"]);
    #[expect(clippy::reversed_empty_ranges, reason = "a caller's mistake that must not panic")]
    let reversed = read("w", 3..2, 0);
    says(&reversed, &["tensor w"]);
    // A file that shrinks while it is open is an error, where a memory map would raise a signal.
    std::fs::write(single(&dir), "gone").expect("overwritten in place");
    says(&read("w", 0..4, 4), &["model.safetensors", "has become shorter since it was opened"]);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let dir = folder();
    let data = [1.5f32; 12];
    let tensors: Tensors = vec![("a".into(), vec![4], &data[..4]), ("b".into(), vec![2, 4], &data[4..])];
    write_safetensors(&single(&dir), &tensors, DType::F32).expect("written");
    let whole = std::fs::read(single(&dir)).expect("the file");
    for length in 0..whole.len() {
        std::fs::write(single(&dir), &whole[..length]).expect("a shorter file");
        refused(dir.path(), &["model.safetensors"]);
    }
    std::fs::write(single(&dir), [&whole[..], &[0]].concat()).expect("a longer file");
    refused(dir.path(), &["1 bytes after its last tensor"]);
}

#[test]
fn every_damaged_header_byte_is_refused_or_harmless() {
    let dir = folder();
    let data = [1.5f32; 12];
    let tensors: Tensors = vec![("a".into(), vec![4], &data[..4]), ("b".into(), vec![2, 4], &data[4..])];
    write_safetensors(&single(&dir), &tensors, DType::F32).expect("written");
    let whole = std::fs::read(single(&dir)).expect("the file");
    let header = whole.len() - 48;
    let mut refusals = 0;
    let places = tiers::some("checkpoint::every_damaged_header_byte_is_refused_or_harmless", 0..header, [50, header]);
    let tried = places.len();
    for place in places {
        for byte in [0, b' ', b'"', b'0', b'9', b'-', b'}', b']', b',', 0x7F, 0xFF, whole[place] ^ 1] {
            let mut damaged = whole.clone();
            damaged[place] = byte;
            std::fs::write(single(&dir), &damaged).expect("a damaged file");
            match Checkpoint::open(dir.path()) {
                // A changed name, or a shape of the same size: what it promises can be read.
                Ok(checkpoint) => {
                    for name in checkpoint.names() {
                        if checkpoint.tensor(name).is_some_and(|info| info.dtype == StoredType::F32) {
                            read_all(&checkpoint, name);
                        }
                    }
                }
                Err(error) => {
                    says(&error, &["model.safetensors"]);
                    refusals += 1;
                }
            }
        }
    }
    assert!(refusals > 6 * tried, "{refusals} refusals of {} damages", 12 * tried);
}

#[test]
fn headers_that_lie_name_the_tensor() {
    let cases: &[(&str, usize, &[&str])] = &[
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4, &["tensor a", "truncated"]),
        (r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8, &["tensor a", "[3]", "12 bytes", "has 8"]),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8, &["tensor a", "before it begins"]),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#, 12, &["tensor a", "belong to no tensor"]),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
            12,
            &["tensor b", "inside another"],
        ),
        (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, 0, &["tensor a", "64 bits"]),
        (r#"{"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}}"#, 4, &["tensor a", "64 bits"]),
        (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, &["tensor a", "-1"]),
        (r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#, 1, &["tensor a", "whole number of bytes"]),
        (r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#, 4, &["tensor a", "F31"]),
        (r#"{"a":{"shape":[1],"data_offsets":[0,4]}}"#, 4, &["tensor a", "dtype"]),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#, 4, &["tensor a"]),
        (r#"{"a":7}"#, 0, &["tensor a"]),
        (r#"{"__metadata__":{"n":1}}"#, 0, &["__metadata__"]),
        (r#"[1]"#, 0, &["not JSON"]),
        (r#"{"a""#, 0, &["not JSON"]),
        ("", 0, &["not JSON"]),
    ];
    for (header, data_bytes, parts) in cases {
        let dir = folder();
        raw(&single(&dir), header, *data_bytes);
        refused(dir.path(), &[&["model.safetensors"], *parts].concat());
    }
    let dir = folder();
    for length in [100_000_001, u64::MAX, u64::MAX - 7] {
        std::fs::write(single(&dir), [&length.to_le_bytes()[..], b"{}"].concat()).expect("a file");
        refused(dir.path(), &["claims a header", &length.to_string()]);
    }
    std::fs::write(single(&dir), "version https://git-lfs.github.com/spec/v1\noid sha256:1\n").expect("a pointer");
    refused(dir.path(), &["git lfs pull"]);
    raw(&single(&dir), &format!("{}{}", "[".repeat(50_000), "]".repeat(50_000)), 0);
    refused(dir.path(), &["not JSON"]);
    // Nothing at all is a whole file.
    raw(&single(&dir), "{}", 0);
    assert_eq!(Checkpoint::open(dir.path()).expect("an empty file").names().count(), 0);
}

proptest! {
    #[test]
    fn any_entries_are_refused_or_can_be_read(
        entries in prop::collection::vec(
            (prop_oneof![Just("F32"), Just("BF16"), Just("F16"), Just("I64"), Just("F8_E4M3")],
             prop::collection::vec(0usize..5, 0..3), 0usize..40, 0usize..40), 0..4),
        data_bytes in 0usize..60,
    ) {
        let header = Value::from_iter(entries.iter().enumerate().map(|(index, (dtype, shape, begin, end))| {
            (format!("t{index}"), json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}))
        }));
        let dir = folder();
        let header = header.to_string();
        raw(&single(&dir), &header, data_bytes);
        let file = std::fs::read(single(&dir)).expect("the file");
        let reference = SafeTensors::deserialize(&file);
        match Checkpoint::open(dir.path()) {
            Ok(checkpoint) => {
                prop_assert!(reference.is_ok());
                for name in checkpoint.names() {
                    let info = checkpoint.tensor(name).expect("a name of its own");
                    let mut values = vec![0.0; info.elements()];
                    let readable = matches!(info.dtype, StoredType::F32 | StoredType::BF16 | StoredType::F16);
                    prop_assert_eq!(checkpoint.read(name, 0..values.len(), &mut values, &mut Vec::new()).is_ok(), readable);
                }
            }
            Err(error) => prop_assert!(reference.is_err(), "{} but the safetensors crate takes it", error),
        }
    }
}

// ------------------------------------------------------------------------------------------------ folders and shards

/// Two shards and an index over them.
fn sharded(weight_map: Value) -> TempDir {
    let dir = folder();
    let data = [0.5f32, 1.5, 2.5, 3.5];
    for (file, tensor, data) in [("one.safetensors", "a", &data[..2]), ("two.safetensors", "b", &data[2..])] {
        write_safetensors(&dir.path().join(file), &[(tensor.into(), vec![2], data)], DType::Bf16).expect("written");
    }
    let index = json!({"metadata": {"total_size": 999}, "weight_map": weight_map});
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
    dir
}

#[test]
fn shards_read_as_one() {
    let dir = sharded(json!({"a": "one.safetensors", "b": "two.safetensors"}));
    let checkpoint = Checkpoint::open(dir.path()).expect("two shards");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(read_all(&checkpoint, "a"), [0.5, 1.5]);
    assert_eq!(read_all(&checkpoint, "b"), [2.5, 3.5]);
    assert_eq!(checkpoint.tensor("b").map(|info| info.file.clone()), Some(dir.path().join("two.safetensors")));
}

#[test]
fn an_index_that_lies_is_refused() {
    let index = "model.safetensors.index.json";
    let lies: &[(Value, &[&str])] = &[
        (
            json!({"a": "one.safetensors", "b": "three.safetensors", "c": "four.safetensors"}),
            &[index, "three.safetensors", "four.safetensors", "not there"],
        ),
        (json!({"a": "one.safetensors", "b": "one.safetensors"}), &[index, "b is in", "one.safetensors"]),
        (json!({"a": "../one.safetensors"}), &[index, "../one.safetensors", "plain name"]),
        (json!({"a": "/etc/hostname"}), &[index, "plain name"]),
        (json!({"a": ""}), &[index, "plain name"]),
        (json!({"a": ".."}), &[index, "plain name"]),
        (json!({"a": index}), &[index, "header"]),
        (json!({"a": 3}), &[index, "line 1"]),
        (json!({}), &[index, "empty"]),
        (json!(null), &[index]),
    ];
    for (weight_map, parts) in lies {
        refused(sharded(weight_map.clone()).path(), parts);
    }
    let dir = sharded(json!({"a": "one.safetensors"}));
    for text in ["", "{", "[]", "{}", "\u{7}", "{\"weight_map\": []}"] {
        std::fs::write(dir.path().join(index), text).expect("written");
        refused(dir.path(), &[index]);
    }
}

#[test]
fn folders_without_weights_say_what_they_need() {
    let dir = folder();
    refused(&dir.path().join("absent"), &["absent", "cannot open the folder"]);
    refused(dir.path(), &["model.safetensors", "pytorch_model.bin", "converted"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("written");
    refused(&file, &["it is a file"]);
    std::fs::create_dir(single(&dir)).expect("a folder of that name");
    refused(dir.path(), &["model.safetensors", "not a regular file"]);
}

#[test]
fn check_lists_everything_at_once() {
    let dir = folder();
    let data = [0.0f32; 8];
    let tensor = |name: &str, shape: Vec<usize>| (name.to_string(), shape.clone(), &data[..shape.iter().product()]);
    let tensors: Tensors = vec![
        tensor("model.embed_tokens.weight", vec![4, 2]),
        tensor("model.norm.weight", vec![2]),
        tensor("lm_head.weight", vec![4, 2]),
        tensor("model.layers.0.self_attn.rotary_emb.inv_freq", vec![1]),
    ];
    write_safetensors(&single(&dir), &tensors, DType::F32).expect("written");
    let checkpoint = Checkpoint::open(dir.path()).expect("a file");
    let names = |list: &[(&str, &[usize])]| -> Vec<(String, Vec<usize>)> {
        list.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect()
    };
    // Tied: the stored head is a copy that nobody needs.
    checkpoint.check(&names(&[("model.embed_tokens.weight", &[4, 2]), ("model.norm.weight", &[2])])).expect("tied");
    let wanted = [("model.embed_tokens.weight", &[2, 4][..]), ("lm_head.weight", &[4, 2]), ("model.new.weight", &[1])];
    let error = checkpoint.check(&names(&wanted)).expect_err("all wrong");
    says(
        &error,
        &["missing (1): model.new.weight", "wrong (1)", "[4, 2]", "[2, 4]", "unexpected (1): model.norm.weight"],
    );
    let many: Vec<_> = (0..300).map(|index| (format!("t{index}"), vec![1])).collect();
    says(&checkpoint.check(&many).expect_err("all missing"), &["missing (300)", "and 294 more"]);
    let dir = folder();
    raw(&single(&dir), r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#, 8);
    let checkpoint = Checkpoint::open(dir.path()).expect("a file");
    says(&checkpoint.check(&names(&[("a", &[1])])).expect_err("integers"), &["a: it is stored as I64", "BF16"]);
    says(&checkpoint.read("a", 0..1, &mut [0.0], &mut Vec::new()).expect_err("integers"), &["tensor a", "I64"]);
}

// ------------------------------------------------------------------------------------------------ writing

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_write_that_fails_leaves_what_was_there() {
    let dir = folder();
    write_safetensors(&single(&dir), &[("a".into(), vec![1], &[7.0])], DType::F32).expect("written");
    let before = std::fs::read(single(&dir)).expect("the file");
    let cases: [(Tensors, DType, &str); 5] = [
        (vec![("a".into(), vec![2], &[1.0])], DType::F32, "a: 1 elements"),
        (vec![("a".into(), vec![usize::MAX, 2], &[1.0])], DType::F32, "a: 1 elements"),
        (vec![("a".into(), vec![1], &[1.0]), ("a".into(), vec![1], &[1.0])], DType::F32, "a: its name is taken"),
        (vec![("__metadata__".into(), vec![1], &[1.0])], DType::F32, "name is taken"),
        (vec![("a".into(), vec![1], &[1.0])], DType::U32, "u32"),
    ];
    for (tensors, dtype, part) in cases {
        says(&write_safetensors(&single(&dir), &tensors, dtype).expect_err("cannot be"), &["model.safetensors", part]);
        assert_eq!(std::fs::read(single(&dir)).expect("the file"), before);
    }
    assert_eq!(files(dir.path()), ["model.safetensors"]);
    // The last step, the rename, is refused: what was written beside is gone again.
    let taken = dir.path().join("taken");
    std::fs::create_dir(&taken).expect("a folder");
    let one: Tensors = vec![("a".into(), vec![1], &[1.0])];
    says(&write_safetensors(&taken, &one, DType::F32).expect_err("a folder is there"), &["taken", "cannot write"]);
    assert_eq!(files(dir.path()), ["model.safetensors", "taken"]);
    let nowhere = dir.path().join("no/such/folder.safetensors");
    says(&write_safetensors(&nowhere, &one, DType::F32).expect_err("nowhere"), &["folder.safetensors"]);
    assert!(write_safetensors(Path::new("/"), &one, DType::F32).is_err());
    write_safetensors(&single(&dir), &one, DType::F32).expect("replaced");
    assert_eq!(read_all(&Checkpoint::open(dir.path()).expect("a file"), "a"), [1.0]);
}

#[test]
fn many_threads_may_write_the_same_place_and_one_wins_whole() {
    let dir = folder();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = single(&dir);
            scope.spawn(move || {
                let data = vec![thread as f32; 20_000];
                write_safetensors(&path, &[("a".into(), vec![20_000], &data)], DType::F32).expect("written");
            });
        }
    });
    let values = read_all(&Checkpoint::open(dir.path()).expect("a whole file"), "a");
    assert!(values.iter().all(|value| *value == values[0]));
    assert_eq!(files(dir.path()), ["model.safetensors"]);
}
