//! The golden dump: plans and runs of many small cells, as they were. It holds a refactoring to what the engine did before it, to
//! the bit: the list of actions, bytes, traffic, FLOPs, operations, losses and weights.
//!
//! `hashes.txt` has a short hash of each section of each cell, by level of instructions. Without ZBENCH_TESTS=full a choice of
//! [`SHORT`] cells runs that has every value of every dimension; on every level that the machine has. Values
//! depend on the level alone, but for logarithms, which go through the C library.
//!
//! Commands (`T` is `cargo test -p zbench-engine --test engine --`):
//! - `T golden::` compares; `ZBENCH_TESTS=full T golden::` compares all cells.
//! - `T --ignored golden::bless` writes `hashes.txt` anew, on purpose; values of levels that the machine lacks are kept.
//! - `ZBENCH_DUMP=new.txt T --ignored golden::dump` writes all sections of all cells as text.
//! - `ZBENCH_DUMP_OLD=old.txt ZBENCH_DUMP=new.txt T --ignored golden::compare` says the first difference of each section in
//!   words; the old dump is made in a checkout of the old commit.

mod cells;
mod sections;
mod values;
mod words;

use crate::scope;
use cells::{Case, Cells};
use sections::{Section, Taken, take};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use values::{Check, Level, Stored, first_differences, hashes, in_full};
use zbench_kernels::{Cpu, INSTRUCTIONS};

/// Cells of the short form.
const SHORT: usize = 40;

fn file() -> PathBuf {
    crate::device::source("engine/tests/golden/hashes.txt")
}

fn stored() -> Stored {
    Stored::parse(&std::fs::read_to_string(file()).unwrap_or_default())
}

/// What runs CUDA here.
fn cuda_level() -> Level {
    let gpu = std::env::var_os("ZBENCH_TEST_GPU").is_some_and(|value| value == "1");
    Level::named(if gpu { "cuda-on-a-gpu" } else { "cuda-on-the-processor" })
}

fn cpu_levels() -> Vec<Level> {
    let here = INSTRUCTIONS.into_iter().filter(|name| Cpu::with_instructions(1, name).is_some());
    here.map(Level::named).collect()
}

fn levels_here() -> BTreeSet<Level> {
    cpu_levels().into_iter().chain([cuda_level()]).collect()
}

/// Runs each cell on each of its levels, some at a time, and gives what `work` makes of it, in the order of the cells.
fn visit<T: Send>(cases: &[Case], work: impl Fn(&Case, Vec<(Level, Taken)>) -> T + Sync) -> Vec<T> {
    let (next, made) = (Mutex::new(0..cases.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |threads| threads.get().min(8)) {
            scope.spawn(|| {
                loop {
                    let Some(at) = next.lock().unwrap().next() else { return };
                    let on_levels = on_levels(&cases[at]);
                    let result = work(&cases[at], on_levels);
                    made.lock().unwrap().push((at, result));
                }
            });
        }
    });
    let mut made = made.into_inner().unwrap();
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, result)| result).collect()
}

fn on_levels(case: &Case) -> Vec<(Level, Taken)> {
    if case.is_cuda() {
        return vec![(cuda_level(), take(case))];
    }
    let on = |level: Level| {
        let mut case = case.clone();
        case.cell.hardware.instructions = Some(level.name().into());
        (level, take(&case))
    };
    cpu_levels().into_iter().map(on).collect()
}

/// Writes past the test harness, which shows nothing of tests that pass.
fn say(lines: &[String]) {
    let _ = std::io::stderr().write_all(format!("\n{}\n", lines.join("\n")).as_bytes());
}

#[test]
fn the_engine_does_what_it_did() {
    let cells = Cells::new();
    let all = cells.cases.len();
    let count = scope::cases("golden::the_engine_does_what_it_did", SHORT as u32, all as u32) as usize;
    let cases = if count == all { cells.cases.clone() } else { cells.some(count) };
    let (stored, mut check) = (stored(), Check::default());
    let seen = visit(&cases, |_, on_levels| {
        on_levels.iter().map(|(level, taken)| (*level, hashes(taken))).collect::<Vec<_>>()
    });
    for (case, levels) in cases.iter().zip(&seen) {
        levels.iter().for_each(|(level, hashes)| check.see(&stored, &case.name, *level, hashes));
    }
    let checked: Vec<_> = check.checked.iter().map(|level| level.name()).collect();
    let mut said = vec![format!("golden dump: {} of {all} cells on the levels {}", cases.len(), checked.join(", "))];
    said.extend(check.not_checked(&levels_here()));
    say(&said);
    check.assert();
}

#[test]
fn every_cell_has_a_name_of_its_own_and_stored_values() {
    let cells = Cells::new();
    assert!(cells.cases.len() >= 300, "{} cells", cells.cases.len());
    let names: BTreeSet<&str> = cells.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cells.cases.len(), "two cells have one name");
    let stored = stored();
    let differ: Vec<_> = names.symmetric_difference(&stored.cells()).copied().collect();
    assert!(differ.is_empty(), "{} cells are in hashes.txt or in the code, not in both: {differ:#?}", differ.len());
    assert_eq!(cells.some(SHORT).len(), SHORT);
    assert!(cells.some(SHORT).iter().any(Case::is_cuda));
}

/// The file that is stored, read and written, is the file.
#[test]
fn stored_values_read_back() {
    let (cells, text) = (Cells::new(), std::fs::read_to_string(file()).unwrap());
    assert!(Stored::parse(&text).write(cells.cases.iter().map(|case| case.name.as_str())) == text);
}

type Change = fn(&mut Taken);

/// Changed values, each as small as can be, with the section that shows it.
fn changes() -> Vec<(Section, Change)> {
    use zbench_kernels::{Category, Op};
    vec![
        (Section::Actions, |taken| taken.actions.swap(1, 2)),
        (Section::Memory, |taken| taken.memory.add(Category::Workspace, 1 << 30)),
        (Section::Memory, |taken| taken.measured[1].0.add(Category::Gradients, 1 << 30)),
        (Section::Wire, |taken| taken.traffic[0].wire_bytes += 1.0),
        (Section::Wire, |taken| taken.measured[1].1[0].calls += 1.0),
        (Section::Flops, |taken| taken.flops.hardware += 2.0),
        (Section::Flops, |taken| taken.flops.ledger[0].1 += 2.0),
        (Section::Operations, |taken| {
            let gemm = taken.operations[1].iter_mut().find_map(|stated| match &mut stated.op {
                Op::Gemm(gemm) => Some(gemm),
                _ => None,
            });
            gemm.unwrap().k += 1;
        }),
        (Section::Operations, |taken| taken.operations[0].truncate(10)),
        (Section::Losses, |taken| taken.steps[3].loss = taken.steps[3].loss.next_up()),
        (Section::Losses, |taken| taken.steps[0].grad_norm = taken.steps[0].grad_norm.next_down()),
        (Section::Weights, |taken| taken.weights[0].2[7] = taken.weights[0].2[7].next_up()),
    ]
}

#[test]
fn a_changed_value_of_every_section_is_found_and_named() {
    let cells = Cells::new();
    let wanted = |case: &&Case| !case.is_cuda() && case.cell.parallel.ranks == 2;
    let case = cells.cases.iter().find(wanted).unwrap();
    let (level, taken) = on_levels(case).remove(0);
    let mut stored = Stored::default();
    hashes(&taken).into_iter().for_each(|(section, hash)| stored.put(&case.name, section, level, hash));
    let check = |taken: &Taken| {
        let mut check = Check::default();
        check.see(&stored, &case.name, level, &hashes(taken));
        check
    };
    assert!(check(&taken).differences.is_empty());
    let old = in_full(case, &[(level, taken.clone())]);
    assert!(first_differences(&old, &old).is_empty());
    let mut sections = BTreeSet::new();
    for (section, change) in changes() {
        let mut changed = taken.clone();
        change(&mut changed);
        let named = format!("cell \"{}\", section {}, level {}", case.name, section.word(), level.name());
        let found = check(&changed);
        assert!(found.differences.len() == 1 && found.differences[0].starts_with(&named), "{:?}", found.differences);
        assert!(std::panic::catch_unwind(|| found.assert()).is_err());
        let words = first_differences(&old, &in_full(case, &[(level, changed)]));
        let [said] = &words[..] else { panic!("{words:?}") };
        assert!(said.contains(&format!("{named}, line ")) && said.contains("was ") && said.contains("is "), "{said}");
        sections.insert(section);
    }
    assert_eq!(sections.len(), Section::ALL.len(), "every section has a change");
}

#[test]
fn what_is_not_checked_is_named() {
    let (portable, amx) = (Level::named("portable"), Level::named("amx-bf16"));
    let values = vec![(Section::Losses, "0".to_string())];
    let (mut stored, mut check) = (Stored::default(), Check::default());
    stored.put("a", Section::Losses, portable, "0".into());
    check.see(&stored, "a", portable, &values);
    let lines = check.not_checked(&BTreeSet::from([portable]));
    assert!(lines.contains(&"not checked: level amx-bf16 (this machine lacks it)".to_string()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("portable")), "{lines:?}");
    check.see(&stored, "a", amx, &values);
    let lines = check.not_checked(&BTreeSet::from([portable, amx]));
    assert!(
        lines.contains(&"not checked: level amx-bf16 (1 cells have no stored value of it)".to_string()),
        "{lines:?}"
    );
    assert!(check.differences.is_empty());
    check.see(&stored, "b", portable, &values);
    assert_eq!(check.differences, ["cell \"b\" is not stored"]);
}

#[test]
#[ignore = "writes hashes.txt anew: only after an intended change"]
fn bless() {
    let (cells, mut stored) = (Cells::new(), stored());
    let seen = visit(&cells.cases, |case, on_levels| {
        on_levels.iter().map(|(level, taken)| (case.name.clone(), *level, hashes(taken))).collect::<Vec<_>>()
    });
    for (cell, level, hashes) in seen.into_iter().flatten() {
        hashes.into_iter().for_each(|(section, hash)| stored.put(&cell, section, level, hash));
    }
    let kept = Level::all().filter(|level| !levels_here().contains(level));
    say(&kept.map(|level| format!("kept as they were: values of level {}", level.name())).collect::<Vec<_>>());
    std::fs::write(file(), stored.write(cells.cases.iter().map(|case| case.name.as_str()))).unwrap();
}

fn named_file(variable: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no file")))
}

#[test]
#[ignore = "writes all cells in full to the file that ZBENCH_DUMP names"]
fn dump() {
    let (cells, path) = (Cells::new(), named_file("ZBENCH_DUMP"));
    let texts = visit(&cells.cases, |case, on_levels| in_full(case, &on_levels));
    std::fs::write(path, texts.concat()).unwrap();
}

#[test]
#[ignore = "compares the dumps that ZBENCH_DUMP_OLD and ZBENCH_DUMP name"]
fn compare() {
    let read = |variable| std::fs::read_to_string(named_file(variable)).unwrap();
    let differences = first_differences(&read("ZBENCH_DUMP_OLD"), &read("ZBENCH_DUMP"));
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
    say(&["the dumps are equal".into()]);
}
