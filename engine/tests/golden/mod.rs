//! The golden dump: plans and runs of many small cells, as they were. It holds a refactoring to what the engine did before it, to
//! the bit: the list of actions, bytes, traffic, FLOPs, operations, losses and weights.
//!
//! `hashes.txt` has a short hash of each section of each cell, by level of instructions. Values depend on the level alone, but for
//! logarithms, which go through the C library. That nothing moved does not show that strategies agree, so each cell's reference is trained
//! too, and both must be the same to the bit ([`reference`]); and what a rank takes must be what its plan says ([`planned`]).
//!
//! Without ZBENCH_TESTS=full a choice of cells runs that has every value of every dimension; each on the best level of the machine and on
//! another one, in turn.
//!
//! Commands (`T` is `cargo test -p zbench-engine-tests --test engine --`):
//! - `T golden::` compares; `ZBENCH_TESTS=full T golden::` compares all cells.
//! - `T --ignored golden::bless` writes `hashes.txt` anew, on purpose; values of levels that the machine lacks are kept.
//! - `ZBENCH_DUMP=new.txt T --ignored golden::dump` writes all sections of all cells as text.
//! - `ZBENCH_DUMP_OLD=old.txt ZBENCH_DUMP=new.txt T --ignored golden::compare` says the first difference of each section in
//!   words; the old dump is made in a checkout of the old commit.

mod array;
mod cells;
mod meshes;
mod planned;
mod reference;
mod sections;
mod values;
mod words;

use cells::{Case, Cells};
use sections::{Section, Taken, take, trained};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use tiers::Tier;
use values::{Check, Level, Stored, first_differences, hashes, in_full};
use zbench_engine::config::MemoryTier;
use zbench_engine::memory::tiers::ByTier;
use zbench_kernels::{Category, Cpu, INSTRUCTIONS, Ledger, Op};
use zbench_test_tiers as tiers;

/// Cells of each array beyond those that have every value, by tier.
const MORE: [[usize; 2]; 2] = [[0, 0], [20, 10]];

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

/// Gives what `work` makes of each cell and its number, in the order of the cells; some at a time.
fn visit<T: Send>(cases: &[&Case], work: impl Fn(usize, &Case) -> T + Sync) -> Vec<T> {
    let (next, made) = (Mutex::new(0..cases.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |threads| threads.get().min(8)) {
            scope.spawn(|| {
                loop {
                    let Some(at) = next.lock().unwrap().next() else { return };
                    let result = work(at, cases[at]);
                    made.lock().unwrap().push((at, result));
                }
            });
        }
    });
    let mut made = made.into_inner().unwrap();
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, result)| result).collect()
}

fn levels_of(case: &Case) -> Vec<Level> {
    if case.is_cuda() { vec![cuda_level()] } else { cpu_levels() }
}

/// The levels on which a cell runs in a tier: all in the full one, the best that has stored values and one of the others, in turn, in
/// CI, and in the fast one the best or one of the others, in turn.
fn levels_in(tier: Tier, number: usize, case: &Case, stored: &Stored) -> Vec<Level> {
    let all = levels_of(case);
    if tier == Tier::Full {
        return all;
    }
    let mut left: Vec<Level> = all.iter().copied().filter(|level| stored.has(&case.name, *level)).collect();
    let best = left.pop().unwrap_or(all[all.len() - 1]);
    let other = (!left.is_empty()).then(|| left[number / 2 % left.len()]);
    match other {
        Some(other) if tier == Tier::Fast => vec![if number.is_multiple_of(2) { best } else { other }],
        other => other.into_iter().chain([best]).collect(),
    }
}

fn on_level(case: &Case, level: Level) -> Case {
    let mut case = case.clone();
    if !case.is_cuda() {
        case.cell.hardware.instructions = Some(level.name().into());
    }
    case
}

fn on_levels(case: &Case, levels: Vec<Level>) -> Vec<(Level, Taken)> {
    levels.into_iter().map(|level| (level, take(&on_level(case, level)))).collect()
}

/// What a cell on one of these levels, in turn, was compared with, and how it differs.
struct Compared {
    is_own: bool,
    is_near: bool,
    differences: Vec<String>,
}

fn compared(number: usize, case: &Case, on_levels: &[(Level, Taken)]) -> Compared {
    let (level, taken) = &on_levels[number % on_levels.len()];
    let case = on_level(case, *level);
    let place = format!("cell \"{}\", level {}", case.name, level.name());
    let (reference, near) = (reference::reference(&case), reference::near(&case));
    let (is_own, is_near) = (reference.is_none(), near.is_some());
    let differs = reference.and_then(|cell| reference::difference(&taken.ran, &trained(&cell)));
    let is_far = near.and_then(|cell| reference::distance(&case.cell, &taken.ran, &trained(&cell)));
    let mut differences: Vec<String> =
        differs.map(|what| format!("{place}: not its reference: {what}")).into_iter().collect();
    differences.extend(is_far.map(|what| format!("{place}: far from ranks with the whole model: {what}")));
    let unplanned = on_levels.iter().find_map(|(_, taken)| planned::difference(taken));
    differences.extend(unplanned.map(|what| format!("{place}: not its plan: {what}")));
    Compared { is_own, is_near, differences }
}

/// Writes past the test harness, which shows nothing of tests that pass.
fn say(lines: &[String]) {
    let _ = std::io::stderr().write_all(format!("\n{}\n", lines.join("\n")).as_bytes());
}

/// The cells of a tier.
fn chosen(cells: &Cells, tier: Tier) -> Vec<Case> {
    match tier {
        Tier::Fast => cells.some(MORE[0]),
        Tier::Ci => cells.some(MORE[1]),
        Tier::Full => cells.all().cloned().collect(),
    }
}

/// Hashes are the stored ones, and losses, norms, evaluations and weights those of the cell's reference.
#[test]
fn cells_do_what_they_did_and_what_their_references_do() {
    let (cells, tier) = (Cells::get(), tiers::tier());
    let cases = chosen(&cells, tier);
    let all = cells.all().count();
    let count = cases.len() as u32;
    tiers::cases("golden::cells_do_what_they_did_and_what_their_references_do", [count, count, all as u32]);
    let (stored, mut check) = (stored(), Check::default());
    let cases: Vec<&Case> = cases.iter().collect();
    let seen = visit(&cases, |number, case| {
        let on_levels = on_levels(case, levels_in(tier, number, case, &stored));
        let hashes = on_levels.iter().map(|(level, taken)| (*level, hashes(taken))).collect::<Vec<_>>();
        (hashes, compared(number, case, &on_levels))
    });
    let (mut differences, mut own, mut near) = (Vec::new(), 0, 0);
    for (case, (levels, compared)) in cases.iter().zip(seen) {
        levels.iter().for_each(|(level, hashes)| check.see(&stored, &case.name, *level, hashes));
        own += usize::from(compared.is_own);
        near += usize::from(compared.is_near);
        differences.extend(compared.differences);
    }
    let checked: Vec<_> = check.checked.iter().map(|level| level.name()).collect();
    let mut said = vec![format!("golden dump: {} of {all} cells on the levels {}", cases.len(), checked.join(", "))];
    said.push(format!(
        "{} compared with their references, {near} with ranks that have the whole model",
        cases.len() - own
    ));
    said.extend(check.not_checked(&levels_here()));
    say(&said);
    let (count, moved) = (differences.len(), check.differences.len());
    assert!(count == 0, "{count} differences, and {moved} stored values differ:\n{}", differences.join("\n"));
    assert!(
        20 * own <= cases.len() && near >= 5,
        "{own} of {} cells are their own references, {near} near",
        cases.len()
    );
    check.assert();
}

#[test]
fn every_cell_has_a_name_of_its_own_and_stored_values() {
    let cells = Cells::get();
    let [data, meshes] = [&cells.data, &cells.meshes].map(Vec::len);
    assert!(data >= 300 && (60..=100).contains(&meshes), "{data} and {meshes} cells");
    let names: BTreeSet<&str> = cells.all().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), data + meshes, "two cells have one name");
    assert!(cells.meshes.iter().all(|case| case.name.starts_with("mesh ") && case.cell.parallel.ranks <= 8));
    let stored = stored();
    let differ: Vec<_> = names.symmetric_difference(&stored.cells()).copied().collect();
    assert!(differ.is_empty(), "{} cells are in hashes.txt or in the code, not in both: {differ:#?}", differ.len());
    let chosen = chosen(&cells, Tier::Fast);
    let cuda = chosen.iter().filter(|case| case.is_cuda()).count();
    assert!((1..=2).contains(&cuda) && chosen.len() <= 60, "{} cells, {cuda} on CUDA", chosen.len());
}

/// The file that is stored, read and written, is the file.
#[test]
fn stored_values_read_back() {
    let (cells, text) = (Cells::get(), std::fs::read_to_string(file()).unwrap());
    assert!(Stored::parse(&text).write(cells.all().map(|case| case.name.as_str())) == text);
}

type Change = fn(&mut Taken);

fn add(ledgers: &mut ByTier<Ledger>, home: MemoryTier, category: Category, bytes: u64) {
    let was = ledgers.clone();
    *ledgers = ByTier::of(|of| {
        let mut ledger = was[of].clone();
        if of == home {
            ledger.add(category, bytes);
        }
        ledger
    });
}

/// Changed values, each as small as can be, with the section that shows it.
fn changes() -> Vec<(Section, Change)> {
    vec![
        (Section::Actions, |taken| taken.stage_plans[0].actions.swap(1, 2)),
        (Section::Actions, |taken| taken.stage_plans[1].in_flight += 1),
        (Section::Actions, |taken| taken.stage_plans[1].actions.truncate(5)),
        (Section::Memory, |taken| {
            add(&mut taken.stage_plans[0].estimate.ledgers, MemoryTier::Device, Category::Workspace, 1 << 30)
        }),
        (Section::Memory, |taken| {
            add(&mut taken.stage_plans[1].estimate.ledgers, MemoryTier::Host, Category::Optimizer, 1 << 30)
        }),
        (Section::Memory, |taken| {
            add(&mut taken.measured[1].ledgers, MemoryTier::Device, Category::Gradients, 1 << 30)
        }),
        (Section::Memory, |taken| add(&mut taken.measured[1].ledgers, MemoryTier::Host, Category::Optimizer, 1 << 30)),
        (Section::Memory, |taken| add(&mut taken.measured[1].ledgers, MemoryTier::Disk, Category::Optimizer, 1)),
        (Section::Wire, |taken| taken.stage_plans[0].estimate.traffic[0].wire_bytes += 1.0),
        (Section::Wire, |taken| taken.stage_plans[1].estimate.moves[0].bytes += 1.0),
        (Section::Wire, |taken| taken.measured[1].traffic[0].calls += 1.0),
        (Section::Wire, |taken| taken.measured[1].moves[0].moves += 1.0),
        (Section::Flops, |taken| taken.stage_plans[0].estimate.flops.hardware += 2.0),
        (Section::Flops, |taken| taken.stage_plans[1].estimate.flops.ledger[0].1 += 2.0),
        (Section::Operations, |taken| {
            let gemm = taken.last_operations.iter_mut().find_map(|stated| match &mut stated.op {
                Op::Gemm(gemm) => Some(gemm),
                _ => None,
            });
            gemm.unwrap().k += 1;
        }),
        (Section::Operations, |taken| taken.stage_plans[0].operations.truncate(10)),
        (Section::Operations, |taken| taken.stage_plans[1].operations.truncate(10)),
        (Section::Losses, |taken| taken.ran.steps[3].loss = taken.ran.steps[3].loss.next_up()),
        (Section::Losses, |taken| taken.ran.steps[0].grad_norm = taken.ran.steps[0].grad_norm.next_down()),
        (Section::Weights, |taken| taken.ran.weights[0].2[7] = taken.ran.weights[0].2[7].next_up()),
    ]
}

#[test]
fn a_changed_value_of_every_section_is_found_and_named() {
    // One that has two stages, and state of another home.
    let cells = Cells::get();
    let wanted = |case: &&Case| {
        case.cell.parallel.degrees.pipeline == 2 && case.cell.memory.offload_optimizer == MemoryTier::Host
    };
    let case = cells.meshes.iter().find(wanted).unwrap();
    let (level, taken) = on_levels(case, vec![levels_of(case)[0]]).remove(0);
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
        let is_result = [Section::Losses, Section::Weights].contains(&section);
        assert_eq!(reference::difference(&taken.ran, &changed.ran).is_some(), is_result, "{}", section.word());
        let is_planned = [Section::Memory, Section::Wire].contains(&section);
        assert_eq!(planned::difference(&changed).is_some(), is_planned, "{}", section.word());
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
    let (cells, mut stored) = (Cells::get(), stored());
    let seen = visit(&cells.all().collect::<Vec<_>>(), |_, case| {
        let on_levels = on_levels(case, levels_of(case));
        on_levels.iter().map(|(level, taken)| (case.name.clone(), *level, hashes(taken))).collect::<Vec<_>>()
    });
    for (cell, level, hashes) in seen.into_iter().flatten() {
        hashes.into_iter().for_each(|(section, hash)| stored.put(&cell, section, level, hash));
    }
    let kept = Level::all().filter(|level| !levels_here().contains(level));
    say(&kept.map(|level| format!("kept as they were: values of level {}", level.name())).collect::<Vec<_>>());
    std::fs::write(file(), stored.write(cells.all().map(|case| case.name.as_str()))).unwrap();
}

fn named_file(variable: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no file")))
}

#[test]
#[ignore = "writes all cells in full to the file that ZBENCH_DUMP names"]
fn dump() {
    let (cells, path) = (Cells::get(), named_file("ZBENCH_DUMP"));
    let texts = visit(&cells.all().collect::<Vec<_>>(), |_, case| in_full(case, &on_levels(case, levels_of(case))));
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
