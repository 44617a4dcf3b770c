//! Training checkpoints: what goes on from one is the run that never stopped, under any strategy; what is damaged is found.

use crate::training::identity::{odd, strategies};
use crate::training::support::*;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zbench_engine::checkpoint::training::{Digest, Resumable, StateError, checkpoints, newest, step_dir};
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Happening, Step};
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_engine::run::rank::Rank;
use zbench_engine::run::saver::Saver;
use zbench_engine::run::train_loop;
use zbench_engine::run::train_loop::Control;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

/// What came of a run: its steps, what it said between them, the checksum of its state at the end.
pub struct Course {
    pub steps: Vec<Step>,
    pub said: Vec<Happening>,
    pub digest: Digest,
    pub stopped: bool,
}

/// Runs a cell; it is told to stop after `stop` steps, if at all.
pub fn try_course(cell: &Cell, stop: Option<u64>) -> Result<Course, String> {
    let said = Mutex::new(Vec::new());
    let flag = AtomicBool::new(stop == Some(0));
    let tell = |happening: &Happening| {
        if let (Happening::Step(step), Some(stop)) = (happening, stop) {
            // Between the steps: the ranks learn of it in the next one.
            flag.store(step.step + 1 >= stop, Ordering::Relaxed);
        }
        said.lock().unwrap().push(happening.clone());
    };
    let plan = plan(cell);
    let ran = with_ranks(cell, &plan, cpus(cell), |rank| {
        let (report, _) = train_loop::run(rank, Control { stop: &flag, tell: &tell, trace: None, pace: None })?;
        Ok((report.stopped, rank.executor.digest().map_err(step_error)?))
    });
    let ran = ran.map_err(|failure| failure.cause.to_string())?;
    assert!(ran.iter().all(|of| *of == ran[0]), "ranks disagree");
    let said = said.into_inner().unwrap();
    let steps = said.iter().filter_map(|what| if let Happening::Step(step) = what { Some(step.clone()) } else { None });
    Ok(Course { steps: steps.collect(), digest: ran[0].1, stopped: ran[0].0, said })
}

pub fn course(cell: &Cell) -> Course {
    try_course(cell, None).unwrap_or_else(|reason| panic!("{reason}"))
}

pub fn saving(dir: &Path) -> Saving {
    Saving {
        dir: dir.into(),
        every: 2,
        keep: 0,
        layout: SaveLayout::Sharded,
        asynchronous: false,
        direct: true,
        resume: Resume::Auto,
    }
}

pub fn saved(mut cell: Cell, saving: Saving) -> Cell {
    cell.checkpoint = Some(Box::new(saving));
    cell
}

/// Six steps, so that three checkpoints are in it.
pub fn six_steps() -> Cell {
    let mut cell = odd();
    (cell.train.steps, cell.train.lr_schedule, cell.train.lr_warmup_steps) = (6, Schedule::Cosine, 2);
    cell
}

pub fn bits(steps: &[Step]) -> Vec<(u64, u64, u64, u64)> {
    steps.iter().map(|s| (s.step, s.loss.to_bits(), s.grad_norm.to_bits(), s.lr.to_bits())).collect()
}

/// Goes on from the checkpoint of step `from`, which was written by `whole`, and checks that nothing differs.
pub fn assert_goes_on(whole: &Course, cell: &Cell, dir: &Path, from: u64, what: &str) {
    let mut resumed = cell.clone();
    let own = tempfile::tempdir().unwrap();
    let place = Saving { dir: own.path().into(), resume: Resume::From(step_dir(dir, from)), ..saving(dir) };
    resumed.checkpoint = Some(Box::new(Saving { layout: cell.checkpoint.as_ref().unwrap().layout, ..place }));
    let rest = course(&resumed);
    assert_eq!(bits(&rest.steps), bits(&whole.steps[from as usize..]), "{what} from {from}: steps");
    assert_eq!(rest.digest, whole.digest, "{what} from {from}: weights and moments");
}

pub fn layouts() -> [(SaveLayout, bool); 4] {
    [(SaveLayout::Sharded, false), (SaveLayout::Sharded, true), (SaveLayout::Full, false), (SaveLayout::Full, true)]
}

#[test]
fn what_goes_on_is_the_run_that_never_stopped_under_every_strategy() {
    let reference = course(&on(six_steps(), Strategy::Ddp, 2, 1));
    let strategies = strategies(2);
    let test = "training::resume::what_goes_on_is_the_run_that_never_stopped";
    for [strategy, layout] in tiers::combinations(test, [strategies.len(), layouts().len()]) {
        let ((strategy, shard), (layout, asynchronous)) = (strategies[strategy], layouts()[layout]);
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let cell = saved(on(six_steps(), strategy, 2, shard), saving);
        let what = format!("{} by {shard}, {layout:?}, async {asynchronous}", strategy.name());
        let whole = course(&cell);
        assert_eq!(bits(&whole.steps), bits(&reference.steps), "{what}: saving changes the run");
        assert_eq!(whole.digest, reference.digest, "{what}");
        let there: Vec<u64> = checkpoints(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(there, [2, 4, 6], "{what}");
        let told = whole.said.iter().filter(|what| matches!(what, Happening::Saved(_))).count();
        assert_eq!(told, 3, "{what}");
        assert_goes_on(&whole, &cell, dir.path(), 2, &what);
        assert_goes_on(&whole, &cell, dir.path(), 4, &what);
    }
}

#[test]
fn every_precision_and_adapter_goes_on_to_the_bit() {
    let one = |cell: &Cell| on(cell.clone(), Strategy::Ddp, 1, 1);
    let mixed = Precision::mixed(DType::Bf16);
    let stochastic = Precision { rounding: WeightRounding::Stochastic, ..Precision::all(DType::Bf16) };
    let scaled = Precision {
        scaling: Some(LossScaling::Dynamic(DynamicScaling { loss_scale_window: 2, ..DynamicScaling::DEFAULT })),
        ..Precision::mixed(DType::F16)
    };
    let lora = Lora { rank: 2, alpha: 3.0, dropout: 0.25, targets: Linear::ALL.to_vec(), ..Lora::default() };
    let cells: Vec<(&str, Cell)> = vec![
        ("bf16-mixed", Cell { precision: mixed, ..six_steps() }),
        ("bf16 with stochastic rounding", Cell { precision: stochastic, ..six_steps() }),
        ("f16 with a loss scale that overflows at first", Cell { precision: scaled, ..six_steps() }),
        ("LoRA with dropout", Cell { lora: lora.clone(), ..six_steps() }),
        ("QLoRA", Cell { lora: Lora { base: Some(Base::Nf4), ..lora }, precision: mixed, ..six_steps() }),
    ];
    let formed = forms().into_iter().map(|form| (form.0, formed(six_steps(), form)));
    let test = "training::resume::every_precision_and_adapter_goes_on_to_the_bit";
    let cells = cells.into_iter().chain(formed).enumerate();
    for (at, (what, mut cell)) in tiers::some(&format!("{test} (cells)"), cells, [7, 14]) {
        (cell.train.clip_norm, cell.train.lr) = (0.05, 1e-3);
        cell.train.accumulation = 2;
        // On one rank nobody but the writing thread knows when it is done, in steps that are shorter than a write.
        let dir = tempfile::tempdir().unwrap();
        let alone = saved(one(&cell), Saving { asynchronous: true, every: 1, ..saving(dir.path()) });
        assert_goes_on(&course(&alone), &alone, dir.path(), 3, what);
        let ways = [(Strategy::Zero3, 2, 1), (Strategy::Zero1, 2, 1), (Strategy::Hsdp, 4, 2)];
        let layouts = [(SaveLayout::Sharded, true), (SaveLayout::Full, false)];
        let mut all: Vec<_> = ways.into_iter().flat_map(|way| layouts.map(|layout| (way, layout))).collect();
        all.rotate_left(at % 6);
        for ((strategy, ranks, shard), (layout, asynchronous)) in tiers::some(test, all, [1, 2]) {
            let dir = tempfile::tempdir().unwrap();
            let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
            let cell = saved(on(cell.clone(), strategy, ranks, shard), saving);
            let whole = course(&cell);
            assert_goes_on(&whole, &cell, dir.path(), 4, &format!("{what}, {}, {layout:?}", strategy.name()));
        }
    }
}

/// Loads a cell's checkpoint and writes it again before any step. Returns the checksum of what was loaded.
pub fn rewritten(cell: &Cell) -> Digest {
    let digests = of_ranks(cell, |rank| {
        let digest = rank.executor.digest().map_err(step_error)?;
        let mut saver = Saver::new(rank).map_err(step_error)?.unwrap();
        saver.forget();
        saver.save(rank).map_err(step_error)?;
        saver.finish(rank).map_err(step_error)?;
        Ok(digest)
    });
    digests.unwrap_or_else(|reason| panic!("{reason}"))
}

/// The checksum of what a cell's ranks load.
pub fn try_loaded(cell: &Cell) -> Result<Digest, String> {
    of_ranks(cell, |rank| {
        // Rank 0 reads the steps so far, too.
        Saver::new(rank).map_err(step_error)?;
        rank.executor.digest().map_err(step_error)
    })
}

fn step_error(error: StateError) -> StepError {
    StepError::Input(error.to_string())
}

fn of_ranks(
    cell: &Cell,
    of: impl Fn(&mut Rank<'_>) -> Result<Digest, StepError> + Send + Sync,
) -> Result<Digest, String> {
    let digests = with_ranks(cell, &plan(cell), cpus(cell), of).map_err(|failure| failure.cause.to_string())?;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "ranks disagree");
    Ok(digests[0])
}

#[test]
fn other_ranks_and_strategies_load_equal_tensors_and_back() {
    let test = "training::resume::other_ranks_and_strategies_load_equal_tensors";
    for (layout, asynchronous) in tiers::some(test, layouts(), [2, 4]) {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| Saving { layout, asynchronous, ..saving(&dir.path().join(name)) };
        let mut cell = six_steps();
        cell.train.steps = 2;
        let whole = course(&saved(on(cell.clone(), Strategy::Zero3, 4, 1), place("zero3")));
        let mut last = step_dir(&dir.path().join("zero3"), 2);
        let chain = [
            ("ddp", Strategy::Ddp, 1, 1),
            ("hsdp", Strategy::Hsdp, 4, 2),
            ("three", Strategy::Fsdp, 3, 1),
            ("one", Strategy::HsdpFullOptimizer, 4, 2),
            ("back", Strategy::Zero3, 4, 1),
        ];
        for (name, strategy, ranks, shard) in chain {
            let saving = Saving { resume: Resume::From(last), every: 0, ..place(name) };
            let mut here = saved(on(cell.clone(), strategy, ranks, shard), saving);
            here.train.steps = 6;
            assert!(rewritten(&here) == whole.digest, "{layout:?} {name}");
            last = step_dir(&dir.path().join(name), 2);
        }
    }
}

#[test]
fn another_precision_loads_what_it_can_hold() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = six_steps();
    cell.train.steps = 2;
    let mixed = Cell { precision: Precision::mixed(DType::Bf16), ..cell.clone() };
    let whole = course(&saved(on(mixed, Strategy::Zero3, 2, 1), saving(dir.path())));
    let from = Resume::From(step_dir(dir.path(), 2));
    let load = |precision: Precision| {
        let own = tempfile::tempdir().unwrap();
        let mut here =
            saved(on(cell.clone(), Strategy::Zero1, 4, 1), Saving { resume: from.clone(), ..saving(own.path()) });
        (here.precision, here.train.steps) = (precision, 6);
        let plan = plan(&here);
        with_ranks(&here, &plan, cpus(&here), |rank| Ok(rank.executor.digest().unwrap())).unwrap()[0]
    };
    // The master's f32 weights and f32 moments are what f32 needs; bf16 rounds them, and so has other checksums.
    assert_eq!(load(Precision::F32), whole.digest);
    let rounded = load(Precision::all(DType::Bf16));
    assert!(rounded != whole.digest && rounded == load(Precision::all(DType::Bf16)));
}

#[test]
fn a_stopped_run_saves_and_goes_on() {
    for strategy in [Strategy::Ddp, Strategy::Zero3] {
        let dir = tempfile::tempdir().unwrap();
        let cell = on(six_steps(), strategy, 2, 1);
        let reference = course(&cell);
        let cell = saved(cell, Saving { every: 0, ..saving(dir.path()) });
        let begun = try_course(&cell, Some(3)).unwrap();
        assert!(begun.stopped);
        assert_eq!(begun.steps.len(), 3);
        assert_eq!(newest(dir.path()).unwrap().unwrap().0, 3);
        let rest = course(&cell);
        assert!(!rest.stopped);
        assert_eq!([bits(&begun.steps), bits(&rest.steps)].concat(), bits(&reference.steps));
        assert_eq!(rest.digest, reference.digest);
        let again = try_course(&cell, None).err().unwrap();
        assert!(again.contains("is of step 6, and the run has 6 steps: raise train.steps"), "{again}");
    }
}

#[test]
fn only_the_newest_are_kept_and_old_runs_are_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let cell = saved(on(six_steps(), Strategy::Zero2, 2, 1), Saving { keep: 2, ..saving(dir.path()) });
    course(&cell);
    let steps = || checkpoints(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert_eq!(steps(), [4, 6]);
    std::fs::create_dir(dir.path().join(".step-00000005.part")).unwrap();
    std::fs::write(dir.path().join(".step-00000005.part/rank-00000.safetensors"), "torn").unwrap();
    let back = Saving { resume: Resume::From(step_dir(dir.path(), 4)), keep: 0, ..saving(dir.path()) };
    let mut again = saved(cell.clone(), back);
    again.train.steps = 7;
    again.checkpoint.as_mut().unwrap().every = 0;
    course(&again);
    assert_eq!(steps(), [4, 7]);
    assert!(dir.path().join("earlier-1/step-00000006/index.json").exists());
    assert!(!dir.path().join(".step-00000005.part").exists());
    let anew = saved(cell, Saving { resume: Resume::Never, keep: 0, every: 0, ..saving(dir.path()) });
    course(&anew);
    assert_eq!(steps(), [6]);
    assert!(dir.path().join("earlier-2/step-00000004").exists() && dir.path().join("earlier-2/step-00000007").exists());
}

/// Files of a checkpoint, without those of other checkpoints.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_is_damaged_missing_or_of_another_model_is_refused() {
    for layout in [SaveLayout::Sharded, SaveLayout::Full] {
        let dir = tempfile::tempdir().unwrap();
        let cell = saved(on(six_steps(), Strategy::Zero3, 2, 1), Saving { layout, ..saving(dir.path()) });
        course(&cell);
        let last = step_dir(dir.path(), 6);
        let mut here = cell.clone();
        here.train.steps = 8;
        let refused = |cell: &Cell, words: &[&str]| {
            let reason = try_course(cell, None).err().unwrap_or_else(|| panic!("accepted, in spite of {words:?}"));
            words.iter().for_each(|word| assert!(reason.contains(word), "{reason}"));
            reason
        };
        for file in files(&last) {
            let good = std::fs::read(&file).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap().to_string();
            // transformers reads it; going on does not.
            if name == "config.json" || name == "model.safetensors.index.json" {
                continue;
            }
            for at in [0, 1, good.len() / 3, good.len() / 2, good.len() - 2] {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                std::fs::write(&file, &bad).unwrap();
                let reason = refused(&here, &[]);
                assert!(reason.contains("damaged") || reason.contains("newer"), "{name} at {at}: {reason}");
                assert!(reason.contains("step-00000006"), "{reason}");
            }
            std::fs::write(&file, &good[..good.len() / 2]).unwrap();
            refused(&here, &["damaged"]);
            std::fs::remove_file(&file).unwrap();
            refused(&here, &["step-00000006"]);
            std::fs::write(&file, &good).unwrap();
        }
        let mut other = here.clone();
        other.model.num_hidden_layers = 2;
        refused(&other, &["another model", "model.num_hidden_layers is 3 there and 2 here"]);
        let mut other = here.clone();
        other.lora = Lora { rank: 2, alpha: 3.0, targets: vec![Linear::QProj], ..Lora::default() };
        refused(&other, &["another model", "it trains"]);
        let mut absent = here.clone();
        absent.checkpoint.as_mut().unwrap().resume = Resume::From(dir.path().join("nothing"));
        refused(&absent, &["is no training checkpoint", "there is no such folder"]);
        // The checkpoint before is still good, and so is this one as it was.
        let before = Resume::From(step_dir(dir.path(), 4));
        for resume in [before, Resume::From(last)] {
            let own = tempfile::tempdir().unwrap();
            let saving = Saving { dir: own.path().into(), resume, layout, ..saving(dir.path()) };
            assert!(try_course(&saved(here.clone(), saving), None).is_ok());
        }
    }
}

/// Random numbers below a limit, by a xorshift generator with a seed that is not 0.
pub fn below(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = seed;
    move |limit| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit as u64) as usize
    }
}

/// Bytes changed, left out, put in and doubled anywhere in any file.
#[test]
fn no_damage_is_accepted_and_none_panics() {
    let mut next = below(0x9E37_79B9_7F4A_7C15);
    for layout in [SaveLayout::Sharded, SaveLayout::Full] {
        let dir = tempfile::tempdir().unwrap();
        let mut cell = saved(on(six_steps(), Strategy::Zero3, 2, 1), Saving { layout, ..saving(dir.path()) });
        course(&cell);
        cell.train.steps = 8;
        let all = files(&step_dir(dir.path(), 6));
        let read: Vec<_> = all.iter().filter(|path| !path.ends_with("config.json")).collect();
        for _ in 0..tiers::cases("training::resume::no_damage_is_accepted", [30, 60, 120]) {
            let file = read[next(read.len())];
            let good = std::fs::read(file).unwrap();
            let mut bad = good.clone();
            let at = next(bad.len());
            match next(5) {
                0 => bad[at] = bad[at].wrapping_add(1 + next(255) as u8),
                1 => drop(bad.remove(at)),
                2 => bad.insert(at, next(256) as u8),
                3 => bad.truncate(at),
                _ => bad.extend_from_slice(&good[at..]),
            }
            std::fs::write(file, &bad).unwrap();
            let reason = try_course(&cell, None).err();
            std::fs::write(file, &good).unwrap();
            let reason = reason.unwrap_or_else(|| panic!("{} was accepted with a change at {at}", file.display()));
            assert!(!reason.contains("panicked"), "{reason}");
        }
    }
}

/// Changes what a file of a checkpoint says, with a checksum that is right. Returns it.
pub fn forged(path: &Path, change: impl FnOnce(&mut serde_json::Value)) -> u32 {
    let text = std::fs::read_to_string(path).unwrap();
    let mut value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    change(&mut value);
    let of = value.to_string();
    let sum = crc32fast::hash(of.as_bytes());
    std::fs::write(path, format!("{{\"crc32\": {sum}, \"of\":\n{of}\n}}\n")).unwrap();
    sum
}

#[test]
fn another_version_of_the_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = saved(on(six_steps(), Strategy::Ddp, 1, 1), saving(dir.path()));
    course(&cell);
    cell.train.steps = 8;
    for version in [0, 1, 3] {
        forged(&step_dir(dir.path(), 6).join("index.json"), |index| index["version"] = version.into());
        let reason = try_course(&cell, None).err().unwrap();
        assert!(reason.contains(&format!("in version {version} of the format, and this zbench reads 2")), "{reason}");
        assert!(reason.contains("version 1: commit 1282bac3"), "{reason}");
    }
}

/// A checkpoint without `lr_steps` has the rates of from-one, and a cell with other rates is refused.
#[test]
fn a_run_of_other_rates_does_not_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = saved(on(six_steps(), Strategy::Ddp, 1, 1), saving(dir.path()));
    cell.train.lr_steps = CourseSteps::FromOne;
    course(&cell);
    let without =
        |index: &mut serde_json::Value| drop(index["cell"]["train"].as_object_mut().unwrap().remove("lr_steps"));
    forged(&step_dir(dir.path(), 6).join("index.json"), without);
    let opened = |change: &dyn Fn(&mut Train)| {
        let mut cell = cell.clone();
        change(&mut cell.train);
        Resumable::find(&cell, &plan(&cell).layout).map(|found| found.is_some()).map_err(|error| error.to_string())
    };
    assert_eq!(opened(&|_| {}), Ok(true));
    assert_eq!(opened(&|train| (train.lr_schedule, train.lr_warmup_steps) = (Schedule::Constant, 0)), Ok(true));
    let refused = opened(&|train| train.lr_steps = CourseSteps::Transformers).unwrap_err();
    assert!(refused.contains("train.lr_steps = \"from-one\""), "{refused}");
}

#[test]
fn names_of_files_stay_in_the_checkpoints_folder() {
    for layout in [SaveLayout::Sharded, SaveLayout::Full] {
        let dir = tempfile::tempdir().unwrap();
        let mut cell = saved(on(six_steps(), Strategy::Zero3, 2, 1), Saving { layout, ..saving(dir.path()) });
        course(&cell);
        cell.train.steps = 8;
        let last = step_dir(dir.path(), 6);
        // What the names lead to is whole, and would be read.
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        for path in files(&last) {
            std::fs::copy(&path, outside.join(path.file_name().unwrap())).unwrap();
        }
        let all: Vec<(PathBuf, Vec<u8>)> =
            files(&last).into_iter().map(|p| (p.clone(), std::fs::read(p).unwrap())).collect();
        let (index, rank) = (last.join("index.json"), last.join("rank-00000.json"));
        let elsewhere = |name: &serde_json::Value| {
            let name = name.as_str().unwrap();
            let absolute = outside.join(name).display().to_string();
            [
                format!("../outside/{name}"),
                absolute,
                format!("{name}/"),
                format!("./{name}"),
                "..".into(),
                String::new(),
                "a\0b".into(),
            ]
        };
        for which in tiers::some("training::resume::names_of_files", 0..7, [4, 7]) {
            let to = |name: &mut serde_json::Value| *name = elsewhere(name)[which].clone().into();
            for what in ["rank", "history", "file"] {
                let sum = if what == "file" { Some(forged(&rank, |of| to(&mut of["files"][0]["name"]))) } else { None };
                forged(&index, |of| match (what, sum) {
                    ("rank", _) => to(&mut of["ranks"][0][0]),
                    ("history", _) => to(&mut of["history"][0]),
                    (_, sum) => of["ranks"][0][1] = sum.into(),
                });
                let reason = try_course(&cell, None).err();
                all.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
                let reason = reason.unwrap_or_else(|| panic!("{what}: name {which} was read outside of its folder"));
                assert!(reason.contains("which is not the plain name of a file"), "{what} {which}: {reason}");
            }
        }
        assert!(try_course(&cell, None).is_ok(), "as it was it is still good");
    }
}

#[test]
fn the_base_of_adapters_must_be_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = six_steps();
    cell.lora = Lora { rank: 2, alpha: 3.0, targets: vec![Linear::QProj], ..Lora::default() };
    let cell = saved(on(cell, Strategy::Zero3, 2, 1), saving(dir.path()));
    course(&cell);
    let mut other = cell.clone();
    (other.train.steps, other.train.seed) = (8, cell.train.seed + 1);
    let reason = try_course(&other, None).err().unwrap();
    assert!(reason.contains("the weights that do not train are others"), "{reason}");
}

/// Of a model whose weights are in files nothing is read again, however they are loaded; the frozen base of adapters is.
#[test]
fn a_run_that_goes_on_reads_of_the_model_what_does_not_train() {
    let test = "training::resume::a_run_that_goes_on_reads_what_does_not_train";
    for [loading, rank] in tiers::combinations(test, [Loading::ALL.len(), 2]) {
        let (loading, rank) = (Loading::ALL[loading], [0, 2][rank]);
        let dir = tempfile::tempdir().unwrap();
        let mut cell = saved(on(llama_fixture(), Strategy::Zero3, 2, 1), saving(dir.path()));
        (cell.train.steps, cell.train.micro_batch, cell.model.loading) = (2, 2, loading);
        cell.lora = Lora { rank, alpha: 3.0, targets: vec![Linear::QProj], ..Lora::default() };
        course(&cell);
        cell.train.steps = 3;
        let (plan, flag) = (plan(&cell), AtomicBool::new(false));
        let control = Control { stop: &flag, tell: &|_| {}, trace: None, pace: None };
        let ran = with_ranks(&cell, &plan, cpus(&cell), |rank| train_loop::run(rank, control)).unwrap();
        let read: u64 = ran.iter().map(|(report, _)| report.loaded.unwrap().read_bytes).sum();
        assert_eq!(read > 0, rank > 0, "{} with adapters of rank {rank}: {read} bytes", loading.name());
    }
}

#[test]
fn one_run_at_a_time_writes_into_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let cell = saved(on(six_steps(), Strategy::Ddp, 1, 1), saving(dir.path()));
    std::fs::create_dir_all(dir.path()).unwrap();
    let lock = std::fs::File::create(dir.path().join(".lock")).unwrap();
    lock.lock().unwrap();
    let reason = try_course(&cell, None).err().unwrap();
    assert!(reason.contains("another run writes its checkpoints there"), "{reason}");
    drop(lock);
    course(&cell);
}

#[test]
fn bytes_and_calls_of_a_step_are_those_of_the_plan_with_checkpoints_too() {
    for (strategy, ranks, shard) in [(Strategy::Zero3, 2, 1), (Strategy::Ddp, 2, 1), (Strategy::Hsdp, 4, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { asynchronous: true, ..saving(dir.path()) };
        let cell = saved(on(six_steps(), strategy, ranks, shard), saving);
        let plan = plan(&cell);
        let flag = AtomicBool::new(false);
        let reports = with_ranks(&cell, &plan, cpus(&cell), |rank| {
            train_loop::run(rank, Control { stop: &flag, tell: &|_| {}, trace: None, pace: None })
        });
        for (report, _) in reports.unwrap() {
            assert_eq!(
                report.memory().total_peak(),
                plan.stage_plan_of(0).estimate.memory().total_peak(),
                "{}",
                strategy.name()
            );
            for row in &report.traffic {
                let planned = plan
                    .stage_plan_of(0)
                    .estimate
                    .traffic
                    .iter()
                    .find(|p| (p.axis, p.kind) == (row.axis, row.kind))
                    .unwrap();
                assert_eq!((row.calls, row.wire_bytes), (planned.calls, planned.wire_bytes), "{}", row.kind.name());
            }
        }
    }
}
