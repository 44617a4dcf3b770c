//! PyTorch, transformers and PEFT over more of Llama than tests/fixtures/llama has: scaled rotary embeddings, a tied head,
//! head sizes apart from the hidden size, one key and value head, clipping under a schedule, a sharded bf16 checkpoint,
//! adapters. tests/fixtures/make.py made the references and says what each holds. The tolerances are parity.rs's.

use crate::training::support::*;
use std::path::{Path, PathBuf};
use zbench_engine::checkpoint::weights::Checkpoint;
use zbench_engine::config::*;
use zbench_engine::formats::hf;
use zbench_engine::model::rope;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

pub const LOSS: f64 = 1e-4;
pub const NORM: f64 = 1e-3;
pub const GRADIENTS: f64 = 1e-5;
pub const WEIGHTS: f64 = 1e-3;
/// Gradients at weights that have been trained are as far off as the weights are.
const LATER_GRADIENTS: f64 = 1e-3;
/// Transformers computes frequencies in f32.
const ROUNDING: f64 = 1e-6;
/// bf16 has 8 bits of precision, 4e-3; a loss is the mean over many tokens of errors of about that size, of either sign.
const BF16_LOSS: f64 = 2e-2;

const FAMILIES: [&str; 3] = ["llama3-rope", "linear-rope", "bf16-sharded"];

/// The runs of models and the run of adapters.
fn references() -> Vec<&'static str> {
    FAMILIES.into_iter().chain(["lora"]).collect()
}

/// A reference run in a folder of tests/fixtures.
pub struct Oracle {
    pub dir: PathBuf,
    pub reference: serde_json::Value,
}

impl Oracle {
    pub fn open(name: &str) -> Oracle {
        let dir = fixture("..").join(name);
        let text = std::fs::read_to_string(dir.join("reference.json")).unwrap();
        Oracle { dir, reference: serde_json::from_str(&text).unwrap() }
    }

    pub fn numbers(&self, key: &str) -> Vec<f64> {
        self.reference[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    }

    pub fn model(&self, file: &str) -> Model {
        hf::model_from_hf(&std::fs::read_to_string(self.dir.join(file)).unwrap(), file).unwrap()
    }

    /// The run on one rank.
    pub fn cell(&self) -> Cell {
        let mut cell = llama_fixture();
        // The run that was given to this project is llama_fixture's, with tokens of four bytes.
        let given = self.reference["train"].is_null();
        if !given {
            cell.train = serde_json::from_value(self.reference["train"].clone()).unwrap();
        }
        let dtype = if given { TokenType::U32 } else { TokenType::U16 };
        cell.data = Data::Tokens { path: self.dir.join("tokens.bin"), dtype, shuffle: false };
        let of_model = match self.reference["base"].as_str() {
            Some(base) => Oracle::open(base),
            None => Oracle { dir: self.dir.clone(), reference: self.reference.clone() },
        };
        cell.model = Model { weights: Some(of_model.dir.clone()), ..of_model.model("config.json") };
        let lora = &self.reference["lora"];
        if !lora.is_null() {
            cell.lora = serde_json::from_value(lora.clone()).unwrap();
            cell.lora.path = Some(self.dir.join(self.reference["adapters"].as_str().unwrap()));
        }
        cell
    }

    pub fn assert_steps(&self, ran: &Ran, what: &str) {
        let (losses, norms) = (self.numbers("loss"), self.numbers("grad_norm"));
        let constant = self.reference["optimizer"]["lr"].as_f64();
        let rates = constant.map_or_else(|| self.numbers("lr"), |lr| vec![lr; losses.len()]);
        assert_eq!(ran.steps.len(), losses.len(), "{what}: number of steps");
        for (i, step) in ran.steps.iter().enumerate() {
            let (loss, norm, lr) = (losses[i], norms[i], rates[i]);
            assert!((step.lr - lr).abs() <= 1e-12 * lr, "{what}: step {i}: learning rate {} for {lr}", step.lr);
            assert!((step.loss - loss).abs() <= LOSS * loss, "{what}: step {i}: loss {} for {loss}", step.loss);
            let got = step.grad_norm;
            assert!((got - norm).abs() <= NORM * norm, "{what}: step {i}: gradient norm {got} for {norm}");
        }
    }

    /// Every tensor of `file` is in `ours`, and the other way round, within `tolerance` of its norm.
    pub fn assert_tensors(&self, file: &str, ours: &Tensors, tolerance: f64, what: &str) {
        for (name, distance) in self.distances(file, ours) {
            assert!(distance <= tolerance, "{what}: {file}: {name} differs by {distance:e} of its norm");
        }
    }

    pub fn distances(&self, file: &str, ours: &Tensors) -> Vec<(String, f64)> {
        let theirs = single(&self.dir.join(file));
        let names = |tensors: &Tensors| {
            let mut names: Vec<_> = tensors.iter().map(|(name, _)| name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(ours), names(&theirs), "{file}: names");
        let of = |name: &str| &ours.iter().find(|(own, _)| own == name).unwrap().1;
        theirs.iter().map(|(name, wanted)| (name.clone(), distance(of(name), wanted))).collect()
    }

    pub fn assert_parity(&self, cell: &Cell, what: &str) {
        let ran = run(cell);
        self.assert_steps(&ran, what);
        self.assert_tensors("grads0.safetensors", &ran.gradients, GRADIENTS, what);
        self.assert_tensors("final.safetensors", &trained(ran.weights, cell), WEIGHTS, what);
    }
}

/// All tensors of one file.
pub fn single(file: &Path) -> Tensors {
    // The reader wants a folder with model.safetensors.
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(file, dir.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let read = |name: &str| {
        let mut values = vec![0f32; checkpoint.tensor(name).unwrap().elements()];
        checkpoint.read(name, 0..values.len(), &mut values, &mut Vec::new()).unwrap();
        (name.to_string(), values)
    };
    checkpoint.names().map(read).collect()
}

/// The tensors that a cell trains.
pub fn trained(weights: Tensors, cell: &Cell) -> Tensors {
    weights.into_iter().filter(|(name, _)| cell.lora.rank == 0 || name.contains(".lora_")).collect()
}

/// A one-rank cell's sequences over more ranks.
pub fn shared_out(mut cell: Cell, strategy: Strategy, ranks: usize) -> Cell {
    cell.train.micro_batch /= ranks;
    let shard = if strategy.is_hybrid() { 2 } else { ranks };
    on(cell, strategy, ranks, shard)
}

#[test]
fn one_rank_matches_pytorch() {
    for name in FAMILIES {
        let oracle = Oracle::open(name);
        oracle.assert_parity(&oracle.cell(), name);
    }
}

#[test]
fn two_and_four_ranks_match_pytorch() {
    let (names, strategies) = (references(), [Strategy::Zero3, Strategy::Hsdp, Strategy::FsdpGradOp]);
    let sizes = [names.len(), strategies.len(), 2];
    for [name, strategy, ranks] in tiers::combinations("training::families::two_and_four_ranks", sizes) {
        let (oracle, strategy, ranks) = (Oracle::open(names[name]), strategies[strategy], [2, 4][ranks]);
        let cell = shared_out(oracle.cell(), strategy, ranks);
        oracle.assert_parity(&cell, &format!("{}: {} on {ranks} ranks", names[name], strategy.name()));
    }
}

#[test]
fn frequencies_are_those_of_transformers() {
    for name in FAMILIES {
        let oracle = Oracle::open(name);
        let (ours, theirs) = (rope::frequencies(&oracle.model("config.json")), oracle.numbers("inv_freq"));
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert!((ours - theirs).abs() <= ROUNDING * theirs, "{name}: frequency {i}: {ours} for {theirs}");
        }
    }
}

#[test]
fn both_spellings_of_a_configuration_are_one_model() {
    let oracle = Oracle::open("llama3-rope");
    let model = oracle.model("config.json");
    assert_eq!(model, oracle.model("config.v4.json"));
    assert!(model.tie_word_embeddings && model.head_dim * model.num_attention_heads != model.hidden_size);
    assert_eq!(
        model.rope_scaling,
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 32
        })
    );
}

/// What the references are worth: mistakes they are there for are far outside the tolerances.
#[test]
fn the_references_notice_a_wrong_rotation_and_a_missing_clip() {
    for name in ["llama3-rope", "linear-rope"] {
        let oracle = Oracle::open(name);
        let mut cell = oracle.cell();
        cell.model.rope_scaling = None;
        cell.train.steps = 1;
        let distances = oracle.distances("grads0.safetensors", &run(&cell).gradients);
        let queries = distances.iter().filter(|(tensor, _)| tensor.ends_with("q_proj.weight"));
        for (tensor, distance) in queries {
            assert!(*distance > 1e-2, "{name}: {tensor} differs by only {distance:e}");
        }
    }
    let oracle = Oracle::open("linear-rope");
    let mut cell = oracle.cell();
    cell.train.clip_norm = 0.0;
    let distances = oracle.distances("final.safetensors", &run(&cell).weights);
    let most = distances.iter().map(|(_, distance)| *distance).fold(0.0, f64::max);
    assert!(most > 10.0 * WEIGHTS, "without clipping the weights differ by only {most:e}");
}

/// Both start from the adapters in `start`. With B at zero the gradients of A are zero in step 0; those of step 4 are
/// compared as well.
#[test]
fn adapters_match_peft() {
    let oracle = Oracle::open("lora");
    oracle.assert_parity(&oracle.cell(), "adapters");
    let ways = [(Strategy::Zero3, 2), (Strategy::Ddp, 1), (Strategy::Hsdp, 4)];
    for (strategy, ranks) in tiers::some("training::families::adapters_match_peft", ways, [1, 3]) {
        let cell = shared_out(oracle.cell(), strategy, ranks);
        let ran = try_run_seeing(&cell, 4).unwrap_or_else(|failure| panic!("{}", failure.cause));
        let what = format!("adapters, step 4, {} on {ranks} ranks", strategy.name());
        oracle.assert_steps(&ran, &what);
        oracle.assert_tensors("grads4.safetensors", &ran.gradients, LATER_GRADIENTS, &what);
    }
}

#[test]
fn bf16_mixed_stays_near_f32() {
    let (names, ways) = (references(), [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::Hsdp, 4)]);
    for [name, way] in tiers::combinations("training::families::bf16_mixed", [names.len(), ways.len()]) {
        let (oracle, (strategy, ranks)) = (Oracle::open(names[name]), ways[way]);
        let cell = Cell { precision: Precision::mixed(DType::Bf16), ..oracle.cell() };
        let (ran, losses) = (run(&shared_out(cell, strategy, ranks)), oracle.numbers("loss"));
        assert_eq!(ran.steps.len(), losses.len());
        for (i, (step, loss)) in ran.steps.iter().zip(losses).enumerate() {
            let off = (step.loss - loss).abs() / loss;
            let what = format!("{}: {} on {ranks} ranks: step {i}", names[name], strategy.name());
            assert!(off <= BF16_LOSS, "{what}: loss {} for {loss}", step.loss);
            // f32 repeats the reference to about 1e-7; bf16 cannot.
            assert!(off > 0.0, "{what}: the very loss of f32");
        }
    }
}
