//! `zbench plan`: prices of cells that nobody ran, term by term, on changed machines, searched, and beside what others
//! published.

use crate::support::{LARGE, TINY, close, large, number, plan, root, run, stderr, stdout, write};
use serde_json::Value;
use std::path::PathBuf;

fn sum(value: &Value) -> f64 {
    value.as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum()
}

#[test]
fn every_estimate_adds_up() {
    let claims = root().join("configs/claims");
    let mut files: Vec<PathBuf> = std::fs::read_dir(claims).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.extend(["configs/llama70b.toml", "configs/qlora70b.toml"].map(|name| root().join(name)));
    let mut timed = 0;
    for file in files {
        for row in plan(&[file.to_str().unwrap()]) {
            let name = format!("{} {}", file.display(), row["label"]);
            assert_eq!(sum(&row["at_peak"]), number(&row, "total_bytes"), "{name}: categories at the peak");
            if row["step_ms"].is_null() {
                assert!(!row["time_source"].as_str().unwrap().is_empty(), "{name}: a time or a reason");
                continue;
            }
            timed += 1;
            assert!(close(sum(&row["time"]), number(&row, "step_ms"), 1e-9), "{name}: spans");
            let (mfu, hfu) = (number(&row, "mfu"), number(&row, "hfu"));
            assert!(mfu > 0.0 && mfu <= hfu && hfu < 1.0, "{name}: {mfu} {hfu}");
            assert!(row["traffic"].as_array().is_some_and(|list| !list.is_empty()), "{name}: traffic");
        }
    }
    assert!(timed >= 20, "{timed} cells have a time");
}

#[test]
fn what_the_engine_runs_has_the_engines_bytes_and_the_rest_is_priced_near_them() {
    let exact = large(&[]);
    assert_eq!(exact["memory_source"], "plan");
    // Degrees of 2 make it a cell that is priced: half of the parameters on half as many data-parallel ranks.
    let priced = large(&["parallel.tensor=2", "parallel.sequence=2"]);
    assert_eq!(priced["memory_source"], "priced");
    let state =
        |row: &Value| ["parameters", "gradients", "optimizer"].map(|name| number(&row["at_peak"], name)).iter().sum();
    let (a, b): (f64, f64) = (state(&exact), state(&priced));
    assert!(close(a, b, 0.01), "state is 18 bytes per parameter over 16 ranks either way: {a} {b}");
}

#[test]
fn eviction_is_planned_within_the_capacity_or_says_what_is_missing() {
    let total = |row: &Value| number(row, "total_bytes");
    let (all, full) = (total(&large(&["memory.checkpointing=none"])), total(&large(&[])));
    let evicting = |capacity: f64| large(&["memory.checkpointing=evict", &format!("memory.capacity={capacity:.0}")]);
    for capacity in [full, (full + all) / 2.0, all] {
        let row = evicting(capacity);
        assert_eq!((&row["memory_source"], &row["fits"]), (&"plan".into(), &true.into()), "{row}");
        assert!(total(&row) <= capacity && total(&row) > 0.9 * capacity, "{} of {capacity}", total(&row));
    }
    let row = evicting(full / 2.0);
    assert!(row["fits"] == false && total(&row) > full / 2.0 && total(&row) <= full, "{row}");

    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let tiny = |settings: &[&str]| {
        let mut arguments =
            vec![path.to_str().unwrap(), "--only", "parallel.strategy=zero3", "--set", "memory.checkpointing=evict"];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        plan(&arguments).remove(0)
    };
    let reason = |row: &Value| row["reason"].as_str().unwrap_or_default().to_string();
    let unstated = tiny(&[]);
    assert!(reason(&unstated).contains("write memory.capacity, as \"16GiB\""), "{unstated}");
    let missing = tiny(&["memory.capacity=220000"]);
    assert_eq!(missing["status"], "out_of_memory", "{missing}");
    assert!(
        reason(&missing).contains("\"evict\" reaches is") && reason(&missing).contains("above memory.capacity"),
        "{missing}"
    );
}

#[test]
fn axes_split_what_they_should() {
    let of = |settings: &[&str]| large(&[&["parallel.strategy=ddp", "train.micro_batch=1"], settings].concat());
    let weights = |row: &Value| number(&row["at_peak"], "parameters");
    let whole = weights(&of(&[]));
    let tensor = weights(&of(&["parallel.tensor=8", "parallel.sequence=8"]));
    assert!(close(tensor, whole / 8.0, 0.02), "tensor parallel splits every matrix: {tensor} of {whole}");
    let staged = of(&["parallel.pipeline=4"]);
    assert!(close(weights(&staged), whole / 4.0, 0.1), "a stage has a quarter of the blocks");
    assert_eq!(staged["peak_stage"][1], 4);
    assert!(number(&staged["time"], "bubble") > 0.0);
    // More micro-batches make the bubble a smaller part.
    let share = |row: &Value| number(&row["time"], "bubble") / number(row, "step_ms");
    let many = of(&["parallel.pipeline=4", "train.global_batch=512"]);
    assert!(share(&many) < share(&staged));
    let interleaved = of(&["parallel.pipeline=4", "parallel.pipeline_schedule=interleaved"]);
    assert!(share(&interleaved) < share(&staged));
    // Gradients of weights fill what was a bubble, and what they are made of waits for them.
    let split = of(&["parallel.pipeline=4", "parallel.pipeline_schedule=zb-h1"]);
    assert!(share(&split) < share(&staged));
    assert!(number(&split, "total_bytes") >= number(&staged, "total_bytes"));
    // A stage with most of the blocks takes most of the memory, and all micro-batches' time.
    let uneven = of(&["parallel.pipeline=4", "parallel.pipeline_split=[0, 1, 2, 3]"]);
    assert_eq!(uneven["peak_stage"], serde_json::json!([3, 4]));
    assert!(number(&uneven, "step_ms") > 2.0 * number(&staged, "step_ms"));
    let offloaded = large(&["memory.offload_optimizer=host"]);
    assert!(number(&offloaded, "host_bytes") > 0.0 && number(&offloaded["at_peak"], "optimizer") == 0.0);
    assert!(number(&offloaded, "step_ms") > number(&large(&[]), "step_ms"));
    let activations = |row: &Value| number(&row["at_peak"], "activations");
    let context = of(&["parallel.context=4", "memory.checkpointing=none"]);
    assert!(activations(&context) < 0.4 * activations(&of(&["parallel.tensor=1", "memory.checkpointing=none"])));
}

#[test]
fn what_lies_outside_the_device_must_fit_there() {
    let host = |memory: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), LARGE);
        let change = format!("node.host_memory={memory}");
        let arguments = ["--set", "memory.offload_optimizer=host", "--what-if", &change];
        plan(&[&[path.to_str().unwrap()], &arguments[..]].concat()).remove(0)
    };
    let (roomy, narrow) = (host("2TiB"), host("16GiB"));
    assert_eq!((&roomy["fits"], &narrow["fits"]), (&Value::Bool(true), &Value::Bool(false)));
    assert!(number(&narrow, "host_bytes") > number(&narrow, "host_capacity_bytes"));
    // A profile without NVMe has no time for what lies there.
    let disk = large(&["memory.offload_optimizer=disk"]);
    assert!(disk["step_ms"].is_null() && disk["time_source"].as_str().unwrap().contains("NVMe"), "{disk}");
    let drives = large(&["memory.offload_optimizer=disk", "hardware.profile=dgx-h100"]);
    let memory = large(&["memory.offload_optimizer=host", "hardware.profile=dgx-h100"]);
    assert!(number(&drives, "step_ms") > number(&memory, "step_ms"));
}

#[test]
fn one_account_holds_cells_that_run_and_cells_that_are_priced() {
    // A wire of the type that weights have changes nothing, though it makes the cell one that is priced.
    let (plan, priced) = (large(&[]), large(&["parallel.gather_wire=bf16"]));
    assert_eq!((&plan["memory_source"], &priced["memory_source"]), (&"plan".into(), &"priced".into()));
    let (a, b) = (number(&plan, "total_bytes"), number(&priced, "total_bytes"));
    assert!(close(a, b, 0.15), "{a} {b}");
    assert!(number(&large(&["memory.offload_optimizer=host"]), "total_bytes") < a);
    // Software that is named is counted with its habits, whatever the engine would take.
    let named = large(&["hardware.software=fsdp2"]);
    assert_eq!(named["memory_source"], "priced");
}

/// Memory and time of a row are of one program, which the row names: what is stated, else zbench's own engine.
#[test]
fn a_row_is_of_one_program() {
    for (settings, program) in [
        (&[][..], "zbench"),
        (&["parallel.tensor=8", "parallel.sequence=8"], "zbench"),
        (&["hardware.software=fsdp2"], "fsdp2"),
        (&["hardware.software=megatron-core", "parallel.pipeline=4"], "megatron-core"),
    ] {
        let row = large(settings);
        assert_eq!(row["software"], program, "{settings:?}");
        let by = row["time_source"].as_str().unwrap();
        assert!(by.ends_with(&format!("as driven by {program}")), "{settings:?}: {by}");
        // The same settings with the program stated change neither of the two.
        let stated = large(&[settings, &[&format!("hardware.software={program}")]].concat());
        for name in ["total_bytes", "step_ms"] {
            assert_eq!(row[name], stated[name], "{settings:?}: {name}");
        }
    }
}

/// What a program does not have is refused, or skipped by a grid, with what it has; a search does not recommend it.
#[test]
fn pairs_of_software_and_strategy_that_do_not_exist_are_not_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    for (software, strategy, said) in [
        ("fsdp2", "zero2", "the nearest is \"fsdp-grad-op\", which FSDP calls SHARD_GRAD_OP"),
        ("fsdp1-compiled", "zero1", "SHARD_GRAD_OP"),
        ("deepspeed", "fsdp-grad-op", "the nearest is \"zero2\""),
        ("torch", "fsdp", "it has \"ddp\", \"zero1\""),
        ("megatron-core", "zero++", "\"zero++\" is DeepSpeed's"),
    ] {
        let (one, two) = (format!("hardware.software={software}"), format!("parallel.strategy={strategy}"));
        let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--set", &one, "--set", &two]);
        assert_eq!(output.status.code(), Some(1), "{software} {strategy}: {}", stdout(&output));
        let text = stderr(&output);
        assert!(text.contains("parallel.strategy") && text.contains(said), "{software} {strategy}: {text}");
    }
    let grid = "[grid]\n\"parallel.strategy\" = [\"zero2\", \"fsdp-grad-op\"]\n";
    let text = LARGE.replace("strategy = \"fsdp\"\n", "").replace("[hardware]", "[hardware]\nsoftware = \"fsdp2\"");
    let path = write(folder.path(), &format!("{text}{grid}"));
    let rows = plan(&[path.to_str().unwrap()]);
    assert_eq!((&rows[0]["status"], &rows[0]["step_ms"]), (&"skipped".into(), &Value::Null), "{}", rows[0]);
    assert!(rows[0]["reason"].as_str().unwrap().contains("SHARD_GRAD_OP") && rows[0]["total_bytes"].is_null());
    assert!(number(&rows[1], "step_ms") > 0.0);
    let path = write(folder.path(), &LARGE.replace("[hardware]", "[hardware]\nsoftware = \"fsdp2\""));
    for one in plan(&[path.to_str().unwrap(), "--search"]).remove(0)["best"].as_array().unwrap() {
        let strategy = one["settings"]["parallel.strategy"].as_str().unwrap();
        assert!(["ddp", "fsdp", "fsdp-grad-op", "hsdp"].contains(&strategy), "{strategy}");
    }
}

/// A band beside each figure that is not exact, with its source; the engine's plan has none, as it is held to the byte.
#[test]
fn figures_have_a_band_with_its_source() {
    use zbench_predict::band::{Group, PUBLISHED};
    let [memory, usual] = [Group::Memory, Group::Speed].map(|group| PUBLISHED.band(group, true));
    let row = large(&["hardware.software=fsdp2"]);
    let band = |name: &str| -> Vec<f64> {
        row[name]
            .as_array()
            .unwrap_or_else(|| panic!("{name} of {row}"))
            .iter()
            .map(|end| end.as_f64().unwrap())
            .collect()
    };
    let (step, speed, bytes) =
        (number(&row, "step_ms"), number(&row, "tokens_per_second"), number(&row, "total_bytes"));
    let near = |found: Vec<f64>, low: f64, high: f64| {
        assert!(close(found[0], low, 1e-6) && close(found[1], high, 1e-6), "{found:?} {low} {high}");
    };
    near(band("step_ms_band"), step / usual.high, step / usual.low);
    near(band("tokens_per_second_band"), speed * usual.low, speed * usual.high);
    near(band("total_bytes_band"), bytes * memory.low, bytes * memory.high);
    let source = row["band_source"].as_str().unwrap();
    assert!(source.contains("published results") && source.contains("each family counted once"), "{source}");
    // Both devices and the split of weights were compared with published speeds of this program; Blackwell's band is another one.
    assert!(row["not_compared"].is_null() && !source.contains("wider"), "{source}");
    let newer = large(&["hardware.software=fsdp2", "hardware.profile=b200"]);
    assert!(newer["band_source"].as_str().unwrap().contains("speeds on newer and other devices"), "{newer}");
    let unlike = large(&["hardware.software=torch", "parallel.strategy=ddp", "hardware.profile=h20", "lora.rank=8"]);
    let why = "no published peak of memory is on NVIDIA H20, and no speed is of torch with adapters, and none is on NVIDIA H20, so its \
               band is wider";
    assert_eq!(unlike["not_compared"], why, "{unlike}");
    let own = large(&[]);
    assert!(own["total_bytes_band"].is_null() && !own["step_ms_band"].is_null(), "{own}");
    assert_eq!(own["not_compared"], "no published speed is of zbench, so its band is wider", "{own}");
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let text =
        stdout(&run(folder.path(), &["plan", path.to_str().unwrap(), "--full", "--set", "hardware.software=fsdp2"]));
    assert!(text.contains("80 % band") && text.contains(&format!("{} published results", usual.spread.rows)), "{text}");
}

#[test]
fn experts_that_are_unbalanced_make_no_more_of_the_models_work() {
    let of = |imbalance: &str| {
        large(&[
            "model.preset=mixtral-8x7b",
            "parallel.strategy=zero1",
            "parallel.expert=8",
            &format!("parallel.expert_imbalance={imbalance}"),
        ])
    };
    let (even, busy) = (of("1"), of("2"));
    assert!(number(&busy, "step_ms") > number(&even, "step_ms"));
    assert!(number(&busy, "mfu") < number(&even, "mfu"));
    assert!(close(number(&busy, "model_flops"), number(&even, "model_flops"), 0.01));
}

#[test]
fn degrees_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    for (settings, key) in [
        (&["parallel.tensor=3", "parallel.ranks=24", "train.global_batch=64"][..], "parallel.tensor"),
        (&["parallel.expert=2"], "parallel.expert"),
        (&["model.preset=mixtral-8x7b", "parallel.expert=16"], "parallel.expert"),
        (&["parallel.pipeline=16", "parallel.virtual_stages=8"], "parallel.pipeline"),
        (&["parallel.context=16", "train.seq_len=100"], "parallel.context"),
    ] {
        let mut arguments = vec!["plan", path.to_str().unwrap()];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        let output = run(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{settings:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(key), "{settings:?}: {}", stderr(&output));
    }
    let wide = large(&["parallel.ranks_per_node=16"]);
    assert!(wide["step_ms"].is_null() && wide["time_source"].as_str().unwrap().contains("ranks_per_node"), "{wide}");
}

#[test]
fn zeropp_moves_fewer_bytes_between_nodes() {
    let wire = |strategy: &str| {
        let row = large(&[&format!("parallel.strategy={strategy}")]);
        row["traffic"].as_array().unwrap().iter().map(|entry| number(entry, "wire_bytes")).sum::<f64>()
    };
    assert!(wire("zero++") < 0.6 * wire("zero3"));
}

#[test]
fn a_search_finds_cells_that_plan_prices_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let found = plan(&[path.to_str().unwrap(), "--search"]).remove(0);
    let best = found["best"].as_array().unwrap();
    assert!(best.len() > 1 && number(&found, "fitting") > 10.0);
    let speeds: Vec<f64> = best.iter().map(|one| number(one, "tokens_per_second")).collect();
    assert!(speeds.windows(2).all(|pair| pair[0] >= pair[1]), "{speeds:?}");
    for one in best.iter().chain(found["pareto"].as_array().unwrap()) {
        let settings = one["settings"].as_object().unwrap();
        let mut arguments = vec![path.to_str().unwrap().to_string()];
        // The file states the global batch; a search states how it is made.
        let text = LARGE.replace("global_batch = 64\n", "");
        std::fs::write(folder.path().join("again.toml"), text).unwrap();
        arguments[0] = folder.path().join("again.toml").to_str().unwrap().to_string();
        for (key, value) in settings {
            arguments.extend(["--set".to_string(), format!("{key}={}", value.as_str().unwrap())]);
        }
        let row = plan(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).remove(0);
        assert!(close(number(&row, "step_ms"), number(one, "step_ms"), 1e-9), "{settings:?}");
        assert_eq!(number(&row, "total_bytes"), number(one, "memory_bytes"), "{settings:?}");
        assert_eq!(row["fits"], true);
    }
    let pareto: Vec<(f64, f64)> = found["pareto"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (number(one, "tokens_per_second"), number(one, "memory_bytes")))
        .collect();
    assert!(pareto.windows(2).all(|pair| pair[0].0 >= pair[1].0 && pair[0].1 > pair[1].1), "{pareto:?}");
}

/// A recommendation leaves headroom: 5 % where nothing else is asked for.
#[test]
fn a_search_leaves_headroom() {
    let folder = tempfile::tempdir().unwrap();
    // So that the fastest ways need nearly all of the memory.
    let path = write(folder.path(), &LARGE.replace("global_batch = 64", "global_batch = 512"));
    let search = |more: &[&str]| plan(&[&[path.to_str().unwrap(), "--search"], more].concat()).remove(0);
    let most = |found: &Value| {
        let all = ["best", "pareto"].into_iter().flat_map(|name| found[name].as_array().unwrap().clone());
        all.map(|one| number(&one, "memory_bytes")).fold(0.0, f64::max)
    };
    let (usual, none, half) = (search(&[]), search(&["--headroom", "0%"]), search(&["--headroom", "50 %"]));
    let capacity = number(&usual, "capacity_bytes");
    assert!((number(&usual, "headroom"), number(&half, "headroom")) == (0.05, 0.5));
    assert!(close(number(&usual, "limit_bytes"), 0.95 * capacity, 1e-9));
    assert!(most(&usual) <= 0.95 * capacity && most(&half) <= 0.5 * capacity, "{} {}", most(&usual), most(&half));
    assert!(most(&none) <= capacity && number(&none, "fitting") > number(&usual, "fitting"));
    let text = stdout(&run(folder.path(), &["plan", path.to_str().unwrap(), "--search"]));
    assert!(text.contains("less 5.0 % of headroom") && text.contains("BANDS    80 % band"), "{text}");
    for bad in ["5", "100%", "-1%", "nan%", "much"] {
        let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--search", &format!("--headroom={bad}")]);
        assert_eq!(output.status.code(), Some(1), "{bad}");
        assert!(stderr(&output).contains("as 5%"), "{bad}: {}", stderr(&output));
    }
}

/// A number alone is no rate, size or time: 100 was once taken as 100 bytes per second.
#[test]
fn changes_of_the_machine_need_units() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let path = path.to_str().unwrap();
    for (change, example) in [
        ("network.rate=100", "\"100 Gbit/s\" or \"12.5 GB/s\""),
        ("network.rate=\"100\"", "12.5 GB/s"),
        ("hbm.bandwidth=3.35e12", "12.5 GB/s"),
        ("node.link.latency=3", "5 us"),
        ("compute.bf16.peak=312e12", "312 TFLOP/s"),
        ("memory=80", "80 GiB"),
        ("node.host_memory=1_000", "80 GiB"),
    ] {
        let output = run(folder.path(), &["plan", path, "--what-if", change]);
        assert_eq!(output.status.code(), Some(1), "{change}: {}", stdout(&output));
        let (text, key) = (stderr(&output), change.split('=').next().unwrap());
        assert!(text.contains(&format!("{key} = ")) && text.contains(example), "{change}: {text}");
    }
    let without = write(folder.path(), "[model]\npreset = \"llama-tiny\"\n");
    let output = run(folder.path(), &["plan", without.to_str().unwrap(), "--what-if", "network.rate=100"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("no cell states one; add --set hardware.profile=NAME"), "{}", stderr(&output));
    let path = &write(folder.path(), LARGE);
    let path = path.to_str().unwrap();
    // With units, in the ways that the message names; counts and shares have none.
    let step = |change: &str| number(&plan(&[path, "--what-if", change])[0], "step_ms");
    assert!(close(step("network.rate=100 Gbit/s"), step("network.rate=12.5 GB/s"), 1e-12));
    assert!(step("network.nics=1") > 0.0 && step("network.reached=0.5") > 0.0);
}

#[test]
fn a_search_without_a_machine_says_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &LARGE.replace("profile = \"a100-80gb\"", "device = \"cuda\""));
    let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--search"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("hardware.profile"), "{}", stderr(&output));
}

/// Three context ranks do not divide the sequence. The other cell is searched, and what was assumed of the folder's model is told.
#[test]
fn a_search_passes_over_cells_that_cannot_be_and_says_what_it_assumes() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "phi3", "hidden_size": 640, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 40, "vocab_size": 128}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let text = LARGE.replace("preset = \"llama2-7b\"", "path = \".\"");
    let path = write(folder.path(), &format!("{text}[grid]\n\"parallel.context\" = [1, 3]\n"));
    let path = path.to_str().unwrap();
    for arguments in [&["plan", path, "--search"][..], &["plan", path, "--advise"], &["advise", path]] {
        let output = run(folder.path(), arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        assert!(
            said.contains("not searched: ") && said.contains("phi3 is priced by its sizes"),
            "{arguments:?}: {said}"
        );
    }
    let output = run(folder.path(), &["plan", path, "--search", "--only", "parallel.context=3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("parallel.context"), "{}", stderr(&output));
}

#[test]
fn a_changed_machine_is_priced_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let path = path.to_str().unwrap();
    let before = number(&plan(&[path])[0], "step_ms");
    let faster = number(&plan(&[path, "--what-if", "compute.bf16.peak=624TFLOP/s"])[0], "step_ms");
    assert!(faster < 0.8 * before, "{faster} {before}");
    let slower =
        number(&plan(&[path, "--what-if", "network.nics=1", "--what-if", "network.rate=10Gb/s"])[0], "step_ms");
    assert!(slower > 2.0 * before, "{slower} {before}");
    let bad = run(folder.path(), &["plan", path, "--what-if", "netwrk.rate=10Gb/s"]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(stderr(&bad).contains("network"), "{}", stderr(&bad));
    let words = run(folder.path(), &["plan", path, "--what-if", "network.rate"]);
    assert_eq!(words.status.code(), Some(1));
}

#[test]
fn sums_are_the_sums_of_their_terms() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let sums = plan(&[path.to_str().unwrap(), "--explain"]).remove(0)["sums"].as_array().unwrap().clone();
    assert!(sums.len() > 10);
    for one in &sums {
        let terms: f64 = one["terms"].as_array().unwrap().iter().map(|term| number(term, "value")).sum();
        if !one["total"].is_null() {
            assert!(close(terms, number(&one["total"], "value"), 1e-9), "{}", one["title"]);
        }
    }
    // The rule of thumb is in its place: 6N of 6,738,415,616 parameters.
    let six = sums.iter().find(|one| one["title"] == "Rule of thumb: flops-6n").unwrap();
    assert_eq!(number(&six["terms"][0], "value"), 6.0 * 6_738_415_616.0);
}

#[test]
fn deepspeeds_tables_are_printed_by_both_formulas() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(
        folder.path(),
        "[model]\nfamily = \"count\"\nparameters = 2851000000\nlargest_layer = 32000000\n[parallel]\nranks = 8\nranks_per_node = 8\n",
    );
    for (formula, gib) in [("current", "11.28GB"), ("documented", "15.93GB")] {
        let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--deepspeed-estimator", formula]);
        let text = stdout(&output);
        assert!(
            text.contains(gib) && text.contains("0.12GB per GPU") && text.contains("127.45GB"),
            "{formula}: {text}"
        );
    }
}

#[test]
fn what_is_priced_is_skipped_by_a_grid_and_refused_by_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &LARGE.replace("[precision]", "tensor = 8\nsequence = 8\n[precision]"));
    let path = path.to_str().unwrap();
    let notebook = folder.path().join("nb");
    let grid = run(&notebook, &["grid", path, "--format", "json"]);
    assert_eq!(grid.status.code(), Some(4), "{}", stderr(&grid));
    let record: Value = serde_json::from_str(stdout(&grid).lines().next().unwrap()).unwrap();
    assert_eq!(record["outcome"]["status"], "skipped");
    assert!(record["outcome"]["reason"].as_str().unwrap().contains("parallel.tensor"));
    assert_eq!(record["cell"]["parallel"]["tensor"], 8);
    assert!(number(&record["estimate"], "step_ms") > 0.0);
    assert!(number(&record["memory"]["parameters"], "predicted_bytes") > 0.0);
    let report = run(&notebook, &["report", "--full"]);
    assert!(stdout(&report).contains("predicted"), "{}", stdout(&report));
    let alone = run(&notebook, &["run", path]);
    assert_eq!(alone.status.code(), Some(1));
    assert!(stderr(&alone).contains("priced"), "{}", stderr(&alone));
}

#[test]
fn a_plan_without_cells_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let path = path.to_str().unwrap();
    for (only, fragment) in [
        ("dead", "--only asks for cells whose key begins with \"dead\", and no key does"),
        ("ranks=8", "--only asks for parallel.ranks = 8, and cells have parallel.ranks = 2"),
        ("lora.rank=unset", "--only asks for lora.rank = \"unset\", and cells have"),
    ] {
        for search in [&[][..], &["--search"]] {
            let output = run(folder.path(), &[&["plan", path, "--only", only], search].concat());
            assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), ""), "{only}");
            assert!(stderr(&output).contains(fragment), "{only}: {}", stderr(&output));
        }
    }
}

#[test]
fn the_next_step_of_a_plan_keeps_the_proxy_and_is_no_grid_where_nothing_fits() {
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = run(folder.path(), &[&["plan"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let large = root().join("configs/strategy13b.toml");
    let only = "parallel.strategy=ddp,train.micro_batch=1,memory.checkpointing=selective";
    let text = said(&[large.to_str().unwrap(), "--proxy", "--only", only]).replace("\n", "");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("strategy13b.toml --proxy measures them; zbench plan"), "{words}");
    let path = write(folder.path(), TINY);
    let path = path.to_str().unwrap();
    let only = "ddp,checkpointing=none";
    let json: Value = serde_json::from_str(&said(&[path, "--only", only, "--format", "json"])).unwrap();
    assert!(said(&[path, "--only", only]).contains("zbench grid"));
    let capacity = format!("memory.capacity={}KiB", (number(&json, "total_bytes") as u64 - 1) / 1024);
    let text = said(&[path, "--only", only, "--set", &capacity]);
    assert!(text.contains("--search") && !text.contains("zbench grid"), "{text}");
}
