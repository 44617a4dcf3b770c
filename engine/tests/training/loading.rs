//! Who reads the weights: the three ways give the same bits, hold what they say, and fail with the same words.

use crate::training::families::{Oracle, shared_out};
use crate::training::support::*;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use zbench_collectives::{Communicator, group};
use zbench_engine::checkpoint::save::{SaveOptions, save_fresh};
use zbench_engine::checkpoint::weights::Checkpoint;
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Cause, LoadPhase, Loaded};
use zbench_engine::run::launch_ranks::{collect, train_rank, with_ranks};
use zbench_engine::run::train_loop::Control;
use zbench_kernels::{Arena, Cpu, DType};
use zbench_test_tiers as tiers;

pub type Bits = Vec<(String, Vec<u32>)>;

/// The weights at the start, and what loading took on every rank.
pub fn start(cell: &Cell) -> (Bits, Vec<Loaded>) {
    let ran = with_ranks(cell, &plan(cell), cpus(cell), |rank| {
        let mut weights = Bits::new();
        rank.executor.export_weights(|name, _, values| {
            weights.push((name.to_string(), values.iter().map(|value| value.to_bits()).collect()));
        })?;
        Ok((weights, rank.report().loaded.unwrap_or_default()))
    });
    let ran = ran.unwrap_or_else(|failure| panic!("{}", failure.cause));
    let (weights, loaded): (Vec<Bits>, _) = ran.into_iter().unzip();
    (weights.into_iter().next().unwrap(), loaded)
}

pub fn by(mut cell: Cell, loading: Loading) -> Cell {
    cell.model.loading = loading;
    cell
}

fn adapters(use_dora: bool, base: Option<Base>) -> Lora {
    Lora { rank: 3, alpha: 6.0, targets: Linear::ALL.to_vec(), use_dora, base, ..Lora::default() }
}

/// Checkpoints of every kind: f32 and bf16 in shards, a tied head, fused and turned tensors, experts.
const STORED: [&str; 8] = ["llama", "bf16-sharded", "gemma", "gpt2", "falcon-new", "bloom", "mixtral", "qwen3-moe"];

fn stored(name: &str) -> Cell {
    if name == "llama" { llama_fixture() } else { Oracle::open(name).cell() }
}

fn assert_alike(cell: &Cell, what: &str) {
    let (reference, _) = start(&shared_out(cell.clone(), Strategy::Ddp, 1));
    assert!(reference.iter().any(|(_, values)| values.iter().any(|bits| *bits != 0)), "{what}");
    let sizes = [2, Strategy::ALL.len(), Loading::ALL.len()];
    let rows = tiers::combinations(&format!("training::loading::{what}"), sizes);
    let several = rows.into_iter().map(|[ranks, strategy, loading]| ([2, 4][ranks], Strategy::ALL[strategy], loading));
    for (ranks, strategy, loading) in several.chain((0..3).map(|loading| (1, Strategy::Ddp, loading))) {
        let loading = Loading::ALL[loading];
        let (weights, _) = start(&by(shared_out(cell.clone(), strategy, ranks), loading));
        let what = format!("{what}: {} on {ranks}, {}", strategy.name(), loading.name());
        assert_eq!(weights.len(), reference.len(), "{what}");
        for (got, wanted) in weights.iter().zip(&reference) {
            assert!(got == wanted, "{what}: {} differs", wanted.0);
        }
    }
}

#[test]
fn the_three_ways_give_the_same_bits_under_every_strategy() {
    for name in STORED {
        assert_alike(&stored(name), name);
    }
}

#[test]
fn the_three_ways_give_the_same_bits_in_low_precision_and_over_a_base_in_few_bits() {
    let test = "training::loading::low_precision_and_a_base_in_few_bits";
    for name in tiers::some(test, ["llama", "gpt2", "mixtral"], [1, 3]) {
        let mut cell = stored(name);
        cell.precision = Precision {
            parameters: DType::Bf16,
            compute: DType::Bf16,
            gradients: DType::Bf16,
            reduce: DType::F32,
            master: Some(DType::F32),
            ..Precision::F32
        };
        assert_alike(&cell, &format!("{name} in bf16-mixed"));
    }
    for name in tiers::some(test, ["gpt2", "llama"], [1, 2]) {
        for lora in [
            adapters(false, None),
            adapters(true, None),
            adapters(false, Some(Base::Nf4)),
            adapters(false, Some(Base::Int8)),
        ] {
            // DoRA is refused on tensors that hold queries, keys and values together.
            if lora.use_dora && name == "gpt2" {
                continue;
            }
            let what = format!("{name} with use_dora {} over {:?}", lora.use_dora, lora.base);
            assert_alike(&Cell { lora, ..stored(name) }, &what);
        }
    }
}

/// A folder of adapters comes the same way as the model.
#[test]
fn adapters_of_a_folder_come_the_same_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut cell = llama_fixture();
    cell.lora = adapters(true, None);
    with_ranks(&cell, &plan(&cell), cpus(&cell), |rank| {
        rank.step()?;
        rank.executor.save_adapters(folder.path()).map_err(|error| StepError::Input(error.to_string()))
    })
    .unwrap();
    cell.lora.path = Some(folder.path().into());
    assert_alike(&cell, "saved adapters");
}

/// Bytes of all tensors, and of the largest one.
fn bytes(dir: &Path) -> (u64, u64) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let sizes: Vec<u64> = checkpoint.names().map(|name| checkpoint.tensor(name).unwrap().bytes() as u64).collect();
    (sizes.iter().sum(), sizes.into_iter().max().unwrap())
}

/// What an account says, way by way. What is taken beyond the share is 1 MiB of values and 1 MiB of what is read, no more than
/// the tensors have; on the wire a tensor, and as much again or 4 MiB of what travels.
#[test]
fn accounts_state_who_reads_and_what_is_held() {
    for name in STORED {
        let cell = shared_out(stored(name), Strategy::Zero3, 4);
        let (whole, largest) = bytes(cell.model.weights.as_ref().unwrap());
        let loaded = Loading::ALL.map(|loading| start(&by(cell.clone(), loading)).1);
        let [sliced, broadcast, everywhere] = &loaded;
        for rank in 0..4 {
            let kept = sliced[rank].kept_bytes;
            assert!(loaded.iter().all(|way| way[rank].kept_bytes == kept), "{name}");
            let values = 4 << 18;
            assert!(sliced[rank].peak_bytes <= kept + values + (1 << 20), "{name}: {:?}", sliced[rank]);
            assert_eq!((everywhere[rank].read_bytes, everywhere[rank].received_bytes), (whole, 0), "{name}");
            assert!(everywhere[rank].peak_bytes >= whole + kept, "{name}: {:?}", everywhere[rank]);
            assert!(everywhere[rank].peak_bytes <= whole + kept + values, "{name}: {:?}", everywhere[rank]);
            let (read, received) = (broadcast[rank].read_bytes, broadcast[rank].received_bytes);
            if rank == 0 {
                assert_eq!((read, received), (whole, 0), "{name}");
                assert!(broadcast[rank].peak_bytes >= whole + kept, "{name}: {:?}", broadcast[rank]);
                continue;
            }
            assert_eq!(read, 0, "{name}");
            assert!(received <= whole && received * 10 > whole * 9, "{name}: {received} of {whole}");
            // A unit is the most that is held at a time, a tensor as a rule.
            assert!(broadcast[rank].peak_bytes <= kept + 2 * largest + values, "{name}: {:?}", broadcast[rank]);
        }
        let read: u64 = sliced.iter().map(|rank| rank.read_bytes).sum();
        // Buffers that older files store, and a matrix stored beside the one it is tied to, are nobody's slices.
        assert!(read <= whole && read * 10 > whole * 9, "{name}: {read} of {whole} read in slices");
        assert!(sliced.iter().all(|rank| rank.received_bytes == 0 && rank.ms > 0.0), "{name}");
    }
}

/// Without weights there is nothing to load.
#[test]
fn fresh_weights_have_no_account() {
    let cell = synthetic();
    let reports = with_ranks(&cell, &plan(&cell), cpus(&cell), |rank| Ok(rank.report().loaded)).unwrap();
    assert_eq!(reports, [None]);
}

/// A copy of the fixture whose file is cut when `cut` says so.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// What each of two ranks says when the file loses its last quarter between opening and reading.
fn shrinking(loading: Loading) -> Vec<String> {
    let folder = copy();
    let mut cell = by(on(llama_fixture(), Strategy::Zero3, 2, 2), loading);
    cell.model.weights = Some(folder.path().into());
    let plan = plan(&cell);
    // Both ranks have opened it by then, and neither has read.
    let both = Barrier::new(2);
    let cut = |moment: LoadPhase| {
        if moment == LoadPhase::LoadingBegins {
            if both.wait().is_leader() {
                let file = std::fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors"));
                let bytes = std::fs::metadata(fixture("model.safetensors")).unwrap().len();
                file.unwrap().set_len(bytes * 3 / 4).unwrap();
            }
            both.wait();
        }
    };
    let stop = AtomicBool::new(false);
    let kernels = cpus(&cell);
    let comms = group("data", kernels.clone(), cell.parallel.stall).unwrap();
    let arenas: Vec<_> = kernels.iter().map(|_| Arena::host(None).unwrap()).collect();
    let regions: Vec<_> = arenas.iter().map(Arena::region).collect();
    let ended = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .into_iter()
            .zip(kernels)
            .zip(arenas)
            .map(|((comm, kernels), arena)| {
                let (cell, plan, cut, stop) = (&cell, &plan, &cut, &stop);
                scope.spawn(move || {
                    let comm: Box<dyn Communicator> = Box::new(comm);
                    let control = Control { stop, tell: &|_| {}, trace: None, pace: None };
                    train_rank(cell, plan, comm, kernels, arena, control, Some(cut))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    drop(regions);
    let said = ended.iter().map(|rank| rank.result.as_ref().map(|_| ()).unwrap_err().to_string()).collect();
    let Err(failure) = collect(ended) else { panic!("nobody noticed") };
    assert!(matches!(failure.cause, Cause::Failed { .. }), "{}", failure.cause);
    said
}

#[test]
fn a_file_that_shrinks_is_an_error_of_all_ranks_with_its_reason() {
    const REASON: &str = "the file has become shorter since it was opened";
    for loading in Loading::ALL {
        let said = shrinking(loading);
        // Whoever reads finds it; whoever receives, or had read before, hears of it.
        assert!(said.iter().all(|reason| reason.contains(REASON)), "{}: {said:?}", loading.name());
        if loading == Loading::Broadcast {
            assert!(said[1].starts_with("rank 0 of data ended the run"), "{said:?}");
        }
    }
}

/// Whatever is wrong with the files is said in the same words, whoever reads them.
#[test]
fn broken_checkpoints_are_refused_in_the_same_words() {
    type Break = fn(&Path);
    let file = |dir: &Path| dir.join("model.safetensors");
    let cut: Break = |dir| {
        let whole = std::fs::read(dir.join("model.safetensors")).unwrap();
        std::fs::write(dir.join("model.safetensors"), &whole[..whole.len() - 100]).unwrap();
    };
    let absent: Break = |dir| {
        std::fs::remove_file(dir.join("model.safetensors")).unwrap();
        let index = r#"{"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}"#;
        std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    };
    let none: Break = |dir| std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    let breaks = [(cut, "fetch or write"), (absent, "names files that are not there"), (none, "no weights to load")];
    for (spoil, wanted) in breaks {
        let said = Loading::ALL.map(|loading| {
            let folder = copy();
            assert!(file(folder.path()).exists());
            spoil(folder.path());
            let mut cell = by(on(llama_fixture(), Strategy::Zero3, 2, 2), loading);
            cell.model.weights = Some(folder.path().into());
            let failure = try_run(&cell).err().expect("to be refused").cause.to_string();
            failure.replace(&folder.path().display().to_string(), "")
        });
        assert!(said[0].contains(wanted), "{said:?}");
        assert!(said.iter().all(|words| *words == said[0]), "{said:?}");
    }
    // A shape that is another model's.
    let said = Loading::ALL.map(|loading| {
        let mut cell = by(on(llama_fixture(), Strategy::Zero3, 2, 2), loading);
        cell.model.intermediate_size += 8;
        try_run(&cell).err().expect("to be refused").cause.to_string()
    });
    assert!(said[0].contains("the weights are not those of the model"), "{said:?}");
    assert!(said.iter().all(|words| *words == said[0]), "{said:?}");
}

/// A model written without training is the one that a run draws, in one file and in several.
#[test]
fn a_fresh_model_is_what_a_run_draws() {
    for name in STORED {
        let mut cell = shared_out(stored(name), Strategy::Ddp, 1);
        cell.model.weights = None;
        for shard_bytes in [u64::MAX, 4096] {
            let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let options = SaveOptions { dtype: DType::F32, shard_bytes };
            with_ranks(&cell, &plan(&cell), cpus(&cell), |rank| {
                rank.executor
                    .save_model(folders[0].path(), options)
                    .map_err(|error| StepError::Input(error.to_string()))
            })
            .unwrap();
            save_fresh(&cell.model, cell.train.seed, &Cpu::new(2), folders[1].path(), options).unwrap();
            let [theirs, ours] = folders.each_ref().map(|folder| {
                let mut files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
                files.sort();
                let files =
                    files.iter().map(|file| (file.file_name().unwrap().to_owned(), std::fs::read(file).unwrap()));
                files.collect::<Vec<_>>()
            });
            assert!(theirs.len() >= 2, "{name}");
            for ((file, theirs), (_, ours)) in theirs.iter().zip(&ours) {
                assert!(theirs == ours, "{name}: {} differs", file.display());
            }
            assert_eq!(ours.len(), theirs.len(), "{name}");
        }
    }
}
