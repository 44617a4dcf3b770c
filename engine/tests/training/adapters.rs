//! Adapters against PEFT's own runs, which start from a folder that PEFT wrote (tests/fixtures/make.py), and folders of our
//! own: what is written reads back to the bit, and a model with adapters merged computes what the two computed apart.
//! The tolerances are parity.rs's.

use crate::training::families::*;
use crate::training::support::*;
use std::path::Path;
use zbench_engine::checkpoint::save::{SaveError, SaveOptions};
use zbench_engine::checkpoint::weights::Checkpoint;
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::formats::{hf, peft};
use zbench_engine::model::is_adapter;
use zbench_engine::run::launch_ranks::{train, with_ranks};
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

const ADAPTERS: [&str; 5] = ["rslora-gpt2", "lora-falcon", "dora-llama", "ia3-llama", "ia3-bloom"];

/// The cell of a fixture whose adapters start from a folder.
fn cell_of(name: &str) -> (Oracle, Cell) {
    let oracle = Oracle::open(name);
    let mut cell = oracle.cell();
    cell.lora = from_folder(&oracle.dir.join("start"), &cell.model);
    (oracle, cell)
}

/// Adapters as a folder has them.
fn from_folder(dir: &Path, model: &Model) -> Lora {
    peft::read_config(dir, model).unwrap()
}

fn adapters_of(weights: Tensors) -> Tensors {
    weights.into_iter().filter(|(name, _)| is_adapter(name)).collect()
}

fn assert_like_peft(oracle: &Oracle, cell: &Cell, what: &str) {
    let ran = run(cell);
    assert_eq!(ran.steps.len(), 20, "{what}");
    oracle.assert_steps(&ran, what);
    oracle.assert_tensors("grads0.safetensors", &ran.gradients, GRADIENTS, what);
    oracle.assert_tensors("final.safetensors", &adapters_of(ran.weights), WEIGHTS, what);
}

#[test]
fn adapters_from_a_folder_match_peft_under_every_strategy() {
    let test = "training::adapters::adapters_from_a_folder_match_peft";
    for [name, naive] in tiers::combinations(&format!("{test} (one rank)"), [ADAPTERS.len(), 2]) {
        let (oracle, mut cell) = cell_of(ADAPTERS[name]);
        cell.memory.attention = [AttentionKind::Flash, AttentionKind::Naive][naive];
        assert_like_peft(&oracle, &cell, &format!("{}, {:?}", ADAPTERS[name], cell.memory.attention));
    }
    for [name, strategy, ranks] in tiers::combinations(test, [ADAPTERS.len(), Strategy::ALL.len(), 2]) {
        let (strategy, ranks) = (Strategy::ALL[strategy], [2, 4][ranks]);
        let (oracle, cell) = cell_of(ADAPTERS[name]);
        let mut cell = shared_out(cell, strategy, ranks);
        cell.memory.checkpointing = if ranks == 4 { Checkpointing::Full } else { Checkpointing::None };
        assert_like_peft(&oracle, &cell, &format!("{}: {} on {ranks} ranks", ADAPTERS[name], strategy.name()));
    }
}

/// What the references are worth: each notices when what it is there for is otherwise.
#[test]
fn the_references_notice_a_wrong_scale() {
    let off = |name: &str, change: fn(&mut Lora)| {
        let (oracle, mut cell) = cell_of(name);
        change(&mut cell.lora);
        cell.train.steps = 1;
        let distances = oracle.distances("grads0.safetensors", &run(&cell).gradients);
        distances.iter().map(|(_, distance)| *distance).fold(0.0, f64::max)
    };
    assert!(off("rslora-gpt2", |lora| lora.use_rslora = false) > 1e-2);
    assert!(off("lora-falcon", |lora| lora.use_rslora = true) > 1e-2);
    assert!(off("dora-llama", |lora| lora.alpha = 5.0) > 1e-2);
}

/// Trains for some steps, writes by `save`, and hands over what the weights are then.
fn trained<E: Into<SaveError>>(
    cell: &Cell,
    steps: usize,
    save: impl Fn(&mut zbench_engine::run::rank::Rank<'_>) -> Result<(), E> + Sync,
) -> Tensors {
    let plan = plan(cell);
    let ran = with_ranks(cell, &plan, cpus(cell), |rank| {
        for _ in 0..steps {
            rank.step()?;
        }
        save(rank).map_err(|error| StepError::Input(error.into().to_string()))?;
        let mut weights = Vec::new();
        rank.executor.export_weights(|name, _, values| weights.push((name.to_string(), values.to_vec())))?;
        Ok(weights)
    });
    ran.unwrap_or_else(|failure| panic!("{}", failure.cause)).remove(0)
}

/// The weights and the loss of the step after `steps` more that change nothing.
fn still(cell: &Cell, steps: usize) -> (Tensors, f64) {
    let mut cell = cell.clone();
    (cell.train.lr, cell.train.steps) = (0.0, steps + 1);
    let ran = run(&cell);
    (ran.weights, ran.steps[steps].loss)
}

fn assert_bits(ours: &Tensors, theirs: &Tensors, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for ((name, values), (other, wanted)) in ours.iter().zip(theirs) {
        assert_eq!(name, other, "{what}");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(values), bits(wanted), "{what}: {name}");
    }
}

#[test]
fn what_is_written_reads_back_to_the_bit_under_every_strategy() {
    const STEPS: usize = 2;
    let names: Vec<_> = ADAPTERS.into_iter().chain(["lora"]).collect();
    let test = "training::adapters::what_is_written_reads_back";
    for [name, strategy, ranks] in tiers::combinations(test, [names.len(), Strategy::ALL.len(), 3]) {
        let (name, strategy, ranks) = (names[name], Strategy::ALL[strategy], [1, 2, 4][ranks]);
        let what = format!("{name}: {} on {ranks} ranks", strategy.name());
        let mut cell = if name == "lora" { Oracle::open(name).cell() } else { cell_of(name).1 };
        cell.train.steps = STEPS + 1;
        if ranks == 2 {
            cell.precision = Precision::mixed(DType::Bf16);
        }
        let one = cell.clone();
        let mut cell = shared_out(cell, strategy, ranks);
        cell.parallel.shard = cell.parallel.shard.min(ranks);
        let whole = run(&cell);
        let dir = tempfile::tempdir().unwrap();
        let written = trained(&cell, STEPS, |rank| rank.executor.save_adapters(dir.path()));
        let mut again = cell.clone();
        again.lora = from_folder(dir.path(), &cell.model);
        assert_eq!(Lora { path: cell.lora.path.clone(), ..again.lora.clone() }, cell.lora, "{what}");
        let (read, loss) = still(&again, STEPS);
        // The base is read anew, the adapters from the folder: every tensor is as it was.
        assert_bits(&read, &written, &what);
        assert_eq!(loss.to_bits(), whole.steps[STEPS].loss.to_bits(), "{what}");
        // Whoever reads it: other strategies and other numbers of ranks.
        let mut other = one;
        other.lora = again.lora.clone();
        let (read, loss) = still(&other, STEPS);
        assert_bits(&adapters_of(read), &adapters_of(written), &what);
        let off = (loss - whole.steps[STEPS].loss).abs() / loss;
        let tolerance = if ranks == 2 { 1e-3 } else { 1e-6 };
        assert!(off <= tolerance, "{what}: {loss} for {}", whole.steps[STEPS].loss);
    }
}

#[test]
fn merged_models_compute_what_base_and_adapters_do() {
    const STEPS: usize = 2;
    let names: Vec<_> = ADAPTERS.into_iter().chain(["lora"]).collect();
    let ways = [(Strategy::Ddp, 1, u64::MAX), (Strategy::Zero3, 2, 4_000), (Strategy::HsdpFullOptimizer, 4, 1)];
    for [name, way] in tiers::combinations("training::adapters::merged_models", [names.len(), ways.len()]) {
        let (name, (strategy, ranks, shard_bytes)) = (names[name], ways[way]);
        let mut cell = if name == "lora" { Oracle::open(name).cell() } else { cell_of(name).1 };
        (cell.train.steps, cell.train.lr) = (STEPS + 1, 1e-2);
        let start = still(&cell, STEPS).1;
        let what = format!("{name}: {} on {ranks} ranks", strategy.name());
        let cell = shared_out(cell.clone(), strategy, ranks);
        let wanted = run(&cell).steps[STEPS].loss;
        let dir = tempfile::tempdir().unwrap();
        let options = SaveOptions { dtype: DType::F32, shard_bytes };
        trained(&cell, STEPS, |rank| rank.executor.save_merged(dir.path(), options));
        let text = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
        let model = hf::model_from_hf(&text, "config.json").unwrap();
        assert_eq!(Model { weights: cell.model.weights.clone(), ..model.clone() }, cell.model, "{what}");
        let mut merged = cell.clone();
        (merged.model, merged.lora) = (Model { weights: Some(dir.path().into()), ..model }, Lora::default());
        let loss = still(&merged, STEPS).1;
        assert!((loss - wanted).abs() <= 1e-6 * wanted, "{what}: {loss} for {wanted}");
        assert!((start - wanted).abs() > 1e-4 * wanted, "{what}: training changed nothing");
    }
}

#[test]
fn a_run_writes_adapters_and_the_merged_model_where_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (_, cell) = cell_of("ia3-bloom");
    let mut cell = shared_out(cell, Strategy::Zero2, 2);
    cell.train.steps = 1;
    (cell.lora.save, cell.lora.merge) = (Some(dir.path().join("a/b")), Some(dir.path().join("merged")));
    let plan = plan(&cell);
    train(&cell, &plan, &|_| {}).unwrap_or_else(|failure| panic!("{}", failure.cause));
    Checkpoint::open_adapters(&dir.path().join("a/b")).unwrap().check(&plan.layout.adapter_tensors()).unwrap();
    Checkpoint::open(&dir.path().join("merged")).unwrap().check(&plan.layout.checkpoint_tensors()).unwrap();
    // A place that cannot be is named, before the first step.
    std::fs::write(dir.path().join("file"), "x").unwrap();
    cell.lora.save = Some(dir.path().join("file/folder"));
    let failure = train(&cell, &plan, &|_| {}).expect_err("a file is no folder");
    assert!(failure.cause.to_string().contains("file/folder") && failure.steps.is_empty(), "{}", failure.cause);
}

/// Magnitudes start at the norms of the rows, whoever owns which, so that fresh adapters change nothing.
#[test]
fn fresh_adapters_leave_the_base_as_it_is() {
    for base in ["bf16-sharded", "falcon-new"] {
        let mut cell = Oracle::open(base).cell();
        cell.train.steps = 1;
        let plain = run(&cell).steps[0].loss;
        let own = vec![Linear::OProj, Linear::GateProj, Linear::UpProj, Linear::DownProj];
        let lora = Lora { rank: 2, alpha: 3.0, targets: own.clone(), ..Lora::default() };
        let ia3 = Lora { method: Method::Ia3, targets: own.clone(), feedforward: own, ..Lora::default() };
        for lora in [Lora { use_dora: true, ..lora.clone() }, lora, ia3] {
            for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 4), (Strategy::Zero1, 2)] {
                let mut cell = shared_out(cell.clone(), strategy, ranks);
                cell.lora = lora.clone();
                let loss = run(&cell).steps[0].loss;
                assert!((loss - plain).abs() <= 1e-6 * plain, "{base} {lora:?}: {loss} for {plain}");
            }
        }
    }
    // Norms of drawn weights: merged with what is fresh, a model is what it was.
    let mut cell = synthetic();
    cell.model.num_hidden_layers = 1;
    cell.lora = Lora { rank: 2, alpha: 3.0, use_dora: true, targets: vec![Linear::QProj], ..Lora::default() };
    let dir = tempfile::tempdir().unwrap();
    let weights = trained(&on(cell, Strategy::Zero3, 2, 2), 0, |rank| {
        rank.executor.save_merged(dir.path(), SaveOptions::default())
    });
    let query = "model.layers.0.self_attn.q_proj.weight";
    let merged = single(&dir.path().join("model.safetensors"));
    let [before, after] = [&weights, &merged].map(|all| &all.iter().find(|(name, _)| name == query).unwrap().1);
    assert!(distance(after, before) <= 1e-6);
}

/// PEFT takes the names of feedforward modules only where they stand among the targets letter by letter.
#[test]
fn feedforward_modules_stand_among_the_targets() {
    for base in ["gpt2-exact", "bloom", "falcon", "mpt", "bf16-sharded"] {
        for feedforward in [vec![Linear::DownProj], vec![Linear::OProj], vec![]] {
            let mut cell = Oracle::open(base).cell();
            let targets = peft::all_linear(&cell.model);
            cell.lora = Lora { method: Method::Ia3, targets, feedforward, ..Lora::default() };
            let text = peft::config_json(&cell);
            let config: serde_json::Value = serde_json::from_str(&text).unwrap();
            let names = |key: &str| config[key].as_array().unwrap().clone();
            let (targets, inputs) = (names("target_modules"), names("feedforward_modules"));
            assert!(inputs.iter().all(|name| targets.contains(name)), "{base}: {text}");
            let read = peft::parse_config(&text, "written", &cell.model).unwrap();
            assert_eq!((read.targets, read.feedforward), (cell.lora.targets, cell.lora.feedforward), "{base}");
        }
    }
}

#[test]
fn folders_that_do_not_fit_are_refused_by_name() {
    let (oracle, cell) = cell_of("rslora-gpt2");
    let refused = |cell: &Cell| {
        let plan = plan(cell);
        train(cell, &plan, &|_| {}).expect_err("the folder does not fit").cause.to_string()
    };
    let mut other = cell.clone();
    other.lora.rank = 2;
    let said = refused(&other);
    assert!(said.contains("c_attn.lora_A.weight is [3, 27] and should be [2, 27]"), "{said}");
    let mut fewer = cell.clone();
    fewer.lora.targets.retain(|layer| *layer != Linear::DownProj);
    let said = refused(&fewer);
    assert!(said.contains("unexpected (4)") && said.contains("mlp.c_proj.lora_A.weight"), "{said}");
    let mut more = cell.clone();
    more.lora.targets.push(Linear::UpProj);
    assert!(refused(&more).contains("missing (4)"));
    let empty = tempfile::tempdir().unwrap();
    let mut absent = cell;
    absent.lora.path = Some(empty.path().into());
    assert!(refused(&absent).contains("adapter_model.safetensors"));
    // A file that was cut off.
    let whole = std::fs::read(oracle.dir.join("start").join(peft::WEIGHTS)).unwrap();
    std::fs::write(empty.path().join(peft::WEIGHTS), &whole[..whole.len() - 1]).unwrap();
    assert!(refused(&absent).contains("truncated"));
}
