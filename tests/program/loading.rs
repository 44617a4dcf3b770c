//! What loading a model takes of host memory, as the system sees it in the ranks' processes.

use crate::support::{is_full_tier, run, stderr, stdout, write};
use serde_json::Value;
use std::path::Path;
use zbench_engine::checkpoint::save::{SaveOptions, save_fresh};
use zbench_engine::formats::hf::PartialModel;
use zbench_kernels::{Cpu, DType};
use zbench_test_tiers as tiers;

const MIB: u64 = 1 << 20;

/// Writes a fresh model of these sizes, in several files; bytes of all tensors.
fn generate(dir: &Path, sizes: &str) -> u64 {
    let model: PartialModel = toml::from_str(sizes).unwrap();
    let options = SaveOptions { dtype: DType::F32, shard_bytes: 64 * MIB };
    save_fresh(&model.resolve("model").unwrap(), 7, &Cpu::new(2), dir, options).unwrap();
    let checkpoint = zbench_engine::checkpoint::weights::Checkpoint::open(dir).unwrap();
    checkpoint.names().map(|name| checkpoint.tensor(name).unwrap().bytes() as u64).sum()
}

fn document(folder: &Path, model: &Path, more: &str) -> std::path::PathBuf {
    write(
        folder,
        &format!(
            r#"
            name = "loading"
            [model]
            path = "{}"
            [train]
            seq_len = 8
            micro_batch = 1
            steps = 1
            untimed_steps = 0
            [parallel]
            ranks = 4
            strategy = "zero3"
            backend = "shm"
            {more}
            "#,
            model.display()
        ),
    )
}

fn record(notebook: &Path, file: &Path, set: &[&str]) -> Value {
    let mut arguments = vec!["run", file.to_str().unwrap(), "--format", "json"];
    set.iter().for_each(|term| arguments.extend(["--set", term]));
    let output = run(notebook, &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(stdout(&output).lines().next().expect("a record")).unwrap()
}

/// A number of each rank's loading.
fn of_ranks(record: &Value, key: &str) -> Vec<u64> {
    let ranks = record["ranks"].as_array().unwrap();
    ranks.iter().map(|rank| rank["loading"][key].as_u64().unwrap_or_else(|| panic!("{key}: {rank}"))).collect()
}

/// Four processes, a checkpoint of a quarter of a gigabyte. A rank's share is a quarter of it (f32, no master weights), a unit
/// at most one block's 7.1 million weights. 48 MiB are for what else a process touches meanwhile: the program's pages, stacks,
/// stand-ins in shared memory, buffers.
#[test]
fn a_rank_takes_its_share_and_a_unit_where_nobody_reads_everything() {
    if !is_full_tier() {
        return;
    }
    const SLACK: u64 = 48 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let whole = generate(
        &model,
        r#"
        family = "llama"
        hidden_size = 768
        intermediate_size = 2048
        num_hidden_layers = 8
        num_attention_heads = 12
        num_key_value_heads = 12
        vocab_size = 4096
        max_position_embeddings = 64
        "#,
    );
    assert!((200 * MIB..300 * MIB).contains(&whole), "{whole}");
    let (share, unit) = (whole / 4, 4 * (4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768));
    let file = document(folder.path(), &model, "");
    let by = |way: &str| record(&folder.path().join("nb"), &file, &[&format!("model.loading={way}")]);
    let [sliced, broadcast, everywhere] = ["sliced", "broadcast", "everywhere"].map(by);
    for record in [&sliced, &broadcast, &everywhere] {
        let sources = record["ranks"].as_array().unwrap().iter().map(|rank| rank["loading"]["source"].as_str());
        assert!(sources.clone().all(|source| source == Some("process")), "{record}");
        let (before, peak) = (of_ranks(record, "before_bytes"), of_ranks(record, "peak_bytes"));
        let total: Vec<u64> = before.iter().zip(&peak).map(|(before, peak)| before + peak).collect();
        assert_eq!(total, of_ranks(record, "total_peak_bytes"));
        assert!(record["metrics"]["loading_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(record["metrics"]["loading_peak_bytes"].as_f64(), peak.iter().max().map(|most| *most as f64));
        // What is held beside the share has been given back.
        for consumed in of_ranks(record, "consumed_bytes") {
            assert!(consumed <= share + SLACK, "{consumed} stay of a share of {share}");
        }
    }
    for peak in of_ranks(&sliced, "peak_bytes").iter().chain(&of_ranks(&broadcast, "peak_bytes")[1..]) {
        assert!(*peak <= share + unit + SLACK, "{peak} for a share of {share} and a unit of {unit}");
    }
    for peak in of_ranks(&everywhere, "peak_bytes").iter().chain(&of_ranks(&broadcast, "peak_bytes")[..1]) {
        assert!(*peak >= whole, "{peak} of {whole}");
    }
    assert_eq!(of_ranks(&everywhere, "read_bytes"), [whole; 4]);
    assert_eq!(of_ranks(&broadcast, "read_bytes"), [whole, 0, 0, 0]);
    assert_eq!(of_ranks(&broadcast, "received_bytes"), [0, whole, whole, whole]);
    assert_eq!(of_ranks(&sliced, "read_bytes").iter().sum::<u64>(), whole);
    let losses = [&sliced, &broadcast, &everywhere].map(|record| record["steps"][0]["loss"].as_f64().unwrap());
    assert_eq!(losses, [losses[0]; 3]);
}

const SMALL: &str = r#"
    family = "gpt2"
    hidden_size = 32
    intermediate_size = 128
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 4
    vocab_size = 64
    max_position_embeddings = 64
"#;

/// Every backend, a hybrid mesh too: the same losses; ranks that are threads have an account each.
#[test]
fn the_ways_train_alike_over_every_backend() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    generate(&model, SMALL);
    let file = document(folder.path(), &model, "");
    let mut losses = Vec::new();
    for [backend, way, strategy] in tiers::combinations("loading::the_ways_train_alike_over_every_backend", [3, 3, 2]) {
        let backend = ["local", "shm", "tcp"][backend];
        let way = ["sliced", "broadcast", "everywhere"][way];
        let strategy = [&["parallel.strategy=zero3"][..], &["parallel.strategy=hsdp", "parallel.shard=2"]][strategy];
        let set = [&[&*format!("model.loading={way}"), &format!("parallel.backend={backend}")], strategy];
        let record = record(&folder.path().join("nb"), &file, &set.concat());
        let source = if backend == "local" { "account" } else { "process" };
        assert_eq!(record["ranks"][3]["loading"]["source"], source, "{set:?}");
        losses.push(record["steps"][0]["loss"].as_f64().unwrap());
    }
    assert!(losses.iter().all(|loss| loss.to_bits() == losses[0].to_bits()), "{losses:?}");
}

/// The table of a grid, and the words of a folder that is not there.
#[test]
fn a_grid_has_a_table_of_loading_and_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let text = format!("[grid]\n{}", r#""model.loading" = ["sliced", "broadcast", "everywhere"]"#);
    let grid = |file: &Path, format: &str| {
        run(&folder.path().join("nb"), &["grid", file.to_str().unwrap(), "--trials", "1", "--format", format])
    };
    let output = grid(&document(folder.path(), &model, &text), "json");
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("config.json") && said.contains("docs/loading.md"), "{said}");
    generate(&model, SMALL);
    let output = grid(&document(folder.path(), &model, &text), "markdown");
    assert!(output.status.success(), "{}", stderr(&output));
    let report = stdout(&output);
    let section = report.split("Loading\n").nth(1).unwrap_or_else(|| panic!("no section: {report}"));
    for way in ["sliced", "broadcast", "everywhere"] {
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with(&format!("| {way} "))).collect();
        assert_eq!(rows.len(), 2, "{way}: {section}");
        assert!(rows[0].contains("| 0 ") && rows[1].contains("| 1 to 3 "), "{rows:?}");
    }
    // A grid that loads nothing has none.
    let plain = write(folder.path(), crate::support::TINY);
    let output = grid(&plain, "markdown");
    assert!(output.status.success() && !stdout(&output).contains("Loading\n"), "{}", stdout(&output));
}
