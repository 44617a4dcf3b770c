//! The families beside Llama against transformers: tests/fixtures/make.py trained each for 20 steps (`gpt2` was given). The
//! tolerances are parity.rs's. A bias of keys is no part of the function where queries and keys are not rotated: all
//! scores of a query move alike. Its gradient is rounding, which Adam divides by its own size, so its value after training
//! says nothing and is left out. With a window of one token the same is true of queries and keys altogether, and of a router
//! whose one expert gets all the weight.

use crate::training::families::*;
use crate::training::support::*;
use zbench_engine::checkpoint::save::{SaveError, SaveOptions};
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::formats::hf;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

const KINDS: [&str; 19] = [
    "gpt2",
    "qwen2",
    "qwen2-window",
    "mistral",
    "mistral-one",
    "qwen3",
    "gemma",
    "gemma-pad",
    "gpt2-exact",
    "falcon",
    "falcon-new",
    "falcon-bias",
    "bloom",
    "mpt",
    "mixtral",
    "mixtral-one",
    "qwen3-moe",
    "qwen3-moe-step",
    "qwen3-moe-one",
];

/// Takes the part out that the function does not depend on.
fn that_matters(model: &Model, tensors: &Tensors) -> Tensors {
    let heads = model.num_attention_heads;
    let keep = |name: &str, at: usize| {
        let unmoved = model.form.positions != Positions::Rotary;
        let part = match name.rsplit('.').nth(1) {
            Some("c_attn") => at / model.hidden_size,
            Some("query_key_value") => at / (model.hidden_size / heads) % 3,
            _ => 0,
        };
        !(unmoved && name.ends_with(".bias") && part == 1)
    };
    let lone = |name: &str| model.sliding_window == Some(1) && (name.contains("q_proj") || name.contains("k_proj"));
    // One expert of a token has the whole weight, whatever the router says.
    let whole =
        model.experts.as_ref().is_some_and(|experts| experts.num_experts_per_tok == 1 && experts.norm_topk_prob);
    let idle = |name: &str| whole && name.ends_with("block_sparse_moe.gate.weight");
    let kept = |(name, values): &(String, Vec<f32>)| {
        let values = values.iter().enumerate().filter(|(at, _)| keep(name, *at)).map(|(_, value)| *value).collect();
        (name.clone(), values)
    };
    tensors.iter().filter(|(name, _)| !lone(name) && !idle(name)).map(kept).collect()
}

fn assert_like(oracle: &Oracle, model: &Model, file: &str, ours: &Tensors, tolerance: f64, what: &str) {
    let theirs = single(&oracle.dir.join(file));
    let (mut ours_names, mut names): (Vec<_>, Vec<_>) =
        (ours.iter().map(|(name, _)| name).collect(), theirs.iter().map(|(name, _)| name).collect());
    ours_names.sort();
    names.sort();
    assert_eq!(ours_names, names, "{what}: {file}");
    let (ours, theirs) = (that_matters(model, ours), that_matters(model, &theirs));
    for (name, wanted) in &theirs {
        let got = &ours.iter().find(|(own, _)| own == name).unwrap().1;
        let distance = distance(got, wanted);
        assert!(distance <= tolerance, "{what}: {file}: {name} differs by {distance:e} of its norm");
    }
}

fn assert_parity(oracle: &Oracle, cell: &Cell, what: &str) {
    let ran = run(cell);
    assert_eq!(ran.steps.len(), 20, "{what}");
    oracle.assert_steps(&ran, what);
    assert_like(oracle, &cell.model, "grads0.safetensors", &ran.gradients, GRADIENTS, what);
    assert_like(oracle, &cell.model, "final.safetensors", &ran.weights, WEIGHTS, what);
}

#[test]
fn one_rank_matches_transformers_with_either_attention() {
    for [name, attention] in tiers::combinations("training::kinds::one_rank_matches_transformers", [KINDS.len(), 2]) {
        let (name, attention) = (KINDS[name], [AttentionKind::Flash, AttentionKind::Naive][attention]);
        let oracle = Oracle::open(name);
        let mut cell = oracle.cell();
        cell.memory.attention = attention;
        assert_parity(&oracle, &cell, &format!("{name}, {attention:?}"));
    }
}

#[test]
fn every_strategy_matches_transformers_on_two_and_four_ranks() {
    let test = "training::kinds::every_strategy_matches_transformers";
    for [name, strategy, ranks] in tiers::combinations(test, [KINDS.len(), Strategy::ALL.len(), 2]) {
        let (name, strategy, ranks) = (KINDS[name], Strategy::ALL[strategy], [2, 4][ranks]);
        let oracle = Oracle::open(name);
        let cell = shared_out(oracle.cell(), strategy, ranks);
        assert_parity(&oracle, &cell, &format!("{name}: {} on {ranks} ranks", strategy.name()));
    }
}

#[test]
fn recomputing_matches_transformers_too() {
    let policies = [Checkpointing::Full, Checkpointing::Selective, Checkpointing::Every(2)];
    let all = (0..KINDS.len()).flat_map(|name| (0..policies.len()).map(move |policy| (name, policy)));
    for (name, policy) in tiers::some("training::kinds::recomputing_matches_transformers_too", all, [8, 25]) {
        let oracle = Oracle::open(KINDS[name]);
        let mut cell = shared_out(oracle.cell(), Strategy::Zero3, 2);
        cell.memory.checkpointing = policies[policy].clone();
        assert_parity(&oracle, &cell, &format!("{} with {:?}", KINDS[name], policies[policy]));
    }
}

/// What the references are worth: each notices when what it is there for is left out.
#[test]
fn the_references_notice_what_they_are_there_for() {
    type Change = fn(&mut Model);
    fn experts_of(model: &mut Model) -> &mut Experts {
        model.experts.as_mut().expect("experts")
    }
    let changes: [(&str, Change); 9] = [
        ("mistral", |model| model.sliding_window = None),
        ("mistral", |model| model.sliding_window = Some(8)),
        ("qwen2-window", |model| model.max_window_layers = 0),
        ("gpt2-exact", |model| model.form.mlp = Mlp::GeluTanh),
        ("gemma", |model| model.form.embedding_scale = false),
        ("gemma-pad", |model| model.pad_token_id = None),
        ("mixtral", |model| experts_of(model).num_experts_per_tok = 1),
        ("qwen3-moe", |model| experts_of(model).norm_topk_prob = false),
        ("qwen3-moe-step", |model| experts_of(model).norm_topk_prob = true),
    ];
    for (name, change) in changes {
        let oracle = Oracle::open(name);
        let mut cell = oracle.cell();
        change(&mut cell.model);
        cell.train.steps = 1;
        let distances = oracle.distances("grads0.safetensors", &run(&cell).gradients);
        let most = distances.iter().map(|(_, distance)| *distance).fold(0.0, f64::max);
        assert!(most > 10.0 * GRADIENTS, "{name}: the gradients differ by only {most:e}");
    }
}

/// A window at least as wide as the sequence is none.
#[test]
fn a_wide_window_changes_nothing() {
    let oracle = Oracle::open("mistral");
    let with = |window| {
        let mut cell = oracle.cell();
        (cell.model.sliding_window, cell.train.steps) = (window, 3);
        let ran = run(&cell);
        ran.steps.iter().map(|step| step.loss.to_bits()).collect::<Vec<_>>()
    };
    let none = with(None);
    assert_eq!(none, with(Some(24)));
    assert_eq!(none, with(Some(usize::MAX)));
    assert_ne!(none, with(Some(23)));
}

/// Writes a model that starts as the fixture and has been trained for two steps.
fn save(cell: &Cell, dir: &std::path::Path, options: SaveOptions) {
    let plan = plan(cell);
    let saved = with_ranks(cell, &plan, cpus(cell), |rank| {
        for _ in 0..2 {
            rank.step()?;
        }
        rank.executor.save_model(dir, options).map_err(|error| match error {
            SaveError::Step(error) => error,
            other => StepError::Input(other.to_string()),
        })
    });
    saved.unwrap_or_else(|failure| panic!("{}", failure.cause));
}

/// What is written is the model that was read, and reads back to the bit: the losses that follow are those of a run that
/// was not interrupted. (Gemma's norms are stored less one, which rounds.)
#[test]
fn what_is_written_reads_back_under_every_strategy() {
    let ways = [(Strategy::Ddp, 1, u64::MAX), (Strategy::Zero3, 2, 4_000), (Strategy::Hsdp, 4, 1)];
    for [name, way] in tiers::combinations("training::kinds::what_is_written_reads_back", [KINDS.len(), ways.len()]) {
        let (name, (strategy, ranks, shard_bytes)) = (KINDS[name], ways[way]);
        let oracle = Oracle::open(name);
        let mut cell = oracle.cell();
        (cell.train.steps, cell.train.lr) = (3, 1e-3);
        let whole: Vec<f64> = run(&cell).steps.iter().map(|step| step.loss).collect();
        let what = format!("{name}: {} on {ranks} ranks", strategy.name());
        let dir = tempfile::tempdir().unwrap();
        save(&shared_out(cell.clone(), strategy, ranks), dir.path(), SaveOptions { dtype: DType::F32, shard_bytes });
        assert_eq!(dir.path().join("model.safetensors.index.json").exists(), ranks > 1, "{what}");
        let text = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
        let model = hf::model_from_hf(&text, "config.json").unwrap();
        let [source, written]: [serde_json::Value; 2] =
            [std::fs::read_to_string(oracle.dir.join("config.json")).unwrap(), text]
                .map(|text| serde_json::from_str(&text).unwrap());
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            assert_eq!(source[key], written[key], "{what}: {key}");
        }
        assert_eq!(Model { weights: cell.model.weights.clone(), ..model.clone() }, cell.model, "{what}");
        let mut again = cell.clone();
        again.model = Model { weights: Some(dir.path().into()), ..model };
        // The third step's tokens, with weights that are not moved before its loss is taken.
        again.train.lr = 0.0;
        let loss = run(&again).steps[2].loss;
        let off = (loss - whole[2]).abs() / whole[2];
        assert!(off < if ranks == 1 && name != "gemma" { 1e-15 } else { 1e-6 }, "{what}: {loss} for {}", whole[2]);
    }
}

/// Published GPT-2 and BLOOM files leave out the first part of all names and store masks.
#[test]
fn names_without_their_first_part_and_masks_are_read() {
    let oracle = Oracle::open("gpt2");
    let dir = tempfile::tempdir().unwrap();
    let tensors = single(&oracle.dir.join("model.safetensors"));
    let checkpoint = zbench_engine::checkpoint::weights::Checkpoint::open(&oracle.dir).unwrap();
    let mut renamed: Vec<(String, Vec<usize>, &[f32])> = Vec::new();
    for (name, values) in &tensors {
        let shape = checkpoint.tensor(name).unwrap().shape.clone();
        renamed.push((name.trim_start_matches("transformer.").into(), shape, values));
    }
    renamed.push(("h.0.attn.bias".into(), vec![1, 1, 2, 2], &[1.0, 0.0, 1.0, 1.0]));
    let file = dir.path().join("model.safetensors");
    zbench_engine::checkpoint::weights::write_safetensors(&file, &renamed, DType::F32).unwrap();
    let mut cell = oracle.cell();
    cell.train.steps = 1;
    let plain = run(&cell).steps[0].loss;
    cell.model.weights = Some(dir.path().into());
    assert_eq!(run(&cell).steps[0].loss.to_bits(), plain.to_bits());
}

/// Transformers 5 may write the experts of a block as two tensors, and then calls Mixtral's modules otherwise too.
#[test]
fn stacked_experts_are_read() {
    for name in ["mixtral", "qwen3-moe"] {
        let oracle = Oracle::open(name);
        let checkpoint = zbench_engine::checkpoint::weights::Checkpoint::open(&oracle.dir).unwrap();
        let [gate, up, down] =
            if name == "mixtral" { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
        let read = |name: &str| {
            let info = checkpoint.tensor(name).unwrap();
            let mut values = vec![0f32; info.elements()];
            checkpoint.read(name, 0..values.len(), &mut values, &mut Vec::new()).unwrap();
            (info.shape.clone(), values)
        };
        let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
        for stored in checkpoint.names() {
            let plain = stored.replace("block_sparse_moe", "mlp");
            let Some((block, rest)) = plain.split_once(".experts.") else {
                let (shape, values) = read(stored);
                tensors.push((plain, shape, values));
                continue;
            };
            // The first of a block's experts brings all.
            if rest != format!("0.{down}.weight") {
                continue;
            }
            let from = stored.split_once(".experts.").unwrap().0;
            let count = (0..).take_while(|e| checkpoint.tensor(&format!("{from}.experts.{e}.{up}.weight")).is_some());
            let (mut gate_up, mut downs, mut shapes) = (Vec::new(), Vec::new(), [vec![], vec![]]);
            for e in count.clone() {
                let one = |which: &str| read(&format!("{from}.experts.{e}.{which}.weight"));
                gate_up.extend(one(gate).1);
                gate_up.extend(one(up).1);
                downs.extend(one(down).1);
                shapes = [one(gate).0, one(down).0];
            }
            let count = count.count();
            tensors.push((
                format!("{block}.experts.gate_up_proj"),
                vec![count, 2 * shapes[0][0], shapes[0][1]],
                gate_up,
            ));
            tensors.push((format!("{block}.experts.down_proj"), vec![count, shapes[1][0], shapes[1][1]], downs));
        }
        let dir = tempfile::tempdir().unwrap();
        let views: Vec<_> =
            tensors.iter().map(|(name, shape, values)| (name.clone(), shape.clone(), &values[..])).collect();
        zbench_engine::checkpoint::weights::write_safetensors(
            &dir.path().join("model.safetensors"),
            &views,
            DType::F32,
        )
        .unwrap();
        let mut cell = oracle.cell();
        cell.train.steps = 1;
        let apart = run(&cell).steps[0].loss;
        cell.model.weights = Some(dir.path().into());
        assert_eq!(run(&cell).steps[0].loss.to_bits(), apart.to_bits(), "{name}");
    }
}

#[test]
fn a_run_writes_its_model_where_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = shared_out(Oracle::open("bloom").cell(), Strategy::Fsdp, 2);
    (cell.train.steps, cell.model.save) = (2, Some(dir.path().join("new/folder")));
    let plan = plan(&cell);
    let steps = zbench_engine::run::launch_ranks::train(&cell, &plan, &|_| {})
        .unwrap_or_else(|failure| panic!("{}", failure.cause));
    assert_eq!(steps.steps.len(), 2);
    let written = zbench_engine::checkpoint::weights::Checkpoint::open(&dir.path().join("new/folder")).unwrap();
    written.check(&plan.layout.checkpoint_tensors()).unwrap();
    // A place that cannot be is named, before the first step.
    std::fs::write(dir.path().join("file"), "x").unwrap();
    cell.model.save = Some(dir.path().join("file/folder"));
    let failure = zbench_engine::run::launch_ranks::train(&cell, &plan, &|_| {}).expect_err("a file is no folder");
    assert!(failure.cause.to_string().contains("file/folder") && failure.steps.is_empty(), "{}", failure.cause);
    // Adapters have no place in it.
    cell.lora = Lora { rank: 2, alpha: 1.0, dropout: 0.0, targets: vec![Linear::UpProj], ..Lora::default() };
    let kernels = zbench_kernels::Cpu::new(1);
    let refused = zbench_engine::plan::Plan::new(&cell, &kernels).unwrap_err();
    assert_eq!(refused.key, "model.save");
    // Nor have adapters on a part of a fused tensor.
    (cell.lora.targets, cell.model.save) = (vec![Linear::OProj, Linear::VProj], None);
    let refused = zbench_engine::plan::Plan::new(&cell, &kernels).unwrap_err();
    assert!(refused.key == "lora.targets" && refused.reason.contains("query_key_value"), "{refused}");
    // IA3 puts the factors of one tensor on one side, and DoRA knows the norms of whole matrices alone.
    cell.lora =
        Lora { method: Method::Ia3, targets: Linear::ALL.into(), feedforward: vec![Linear::KProj], ..Lora::default() };
    assert_eq!(zbench_engine::plan::Plan::new(&cell, &kernels).unwrap_err().key, "lora.feedforward");
    let dora = Lora { rank: 2, alpha: 1.0, use_dora: true, targets: Linear::ALL.into(), ..Lora::default() };
    cell.lora = dora.clone();
    assert_eq!(zbench_engine::plan::Plan::new(&cell, &kernels).unwrap_err().key, "lora.use_dora");
    cell.lora = Lora { dropout: 0.1, targets: vec![Linear::OProj], ..dora };
    assert_eq!(zbench_engine::plan::Plan::new(&cell, &kernels).unwrap_err().key, "lora.dropout");
}
