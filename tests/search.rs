//! `search` of `[grid]`: what is found by plan is the largest by trying all, the arena holds it and refuses the next, and
//! the table says so.

use crate::support::{parse, root, run, stderr, stdout, write};
use proptest::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use zbench_config::files::Files;
use zbench_config::{Context, Document, grid};
use zbench_engine::config::Cell;
use zbench_engine::planner::Planner;
use zbench_predict::planned::Planned;
use zbench_reports::Notebook;
use zbench_reports::max_batch::{Of, Role, Search};
use zbench_reports::record::{Source, Status, Step};
use zbench_runner::protocol::{End, Ended, ProgressEvent};
use zbench_runner::{Execute, Execution, Observe, Runner, Train, Trials};
use zbench_suites::max_batch::{self, MaxBatchSearch};

const MODEL: &str = r#"
name = "limit"
[model]
family = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 64
max_position_embeddings = 256
[train]
seq_len = 16
steps = 2
untimed_steps = 1
[parallel]
ranks = 2
[hardware]
threads_per_rank = 1
"#;

/// The model with a capacity and a `[grid]`.
fn text(capacity: &str, grid: &str) -> String {
    format!("{MODEL}[memory]\ncapacity = \"{capacity}\"\n[grid]\n{grid}\n")
}

fn context() -> Context {
    Context::new(PathBuf::new(), 2)
}

/// What is found by plan, cell by cell.
fn found(text: &str) -> (Vec<Planned>, MaxBatchSearch) {
    let document = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let search = document.search.expect("a search");
    let mut files = Files::default();
    let cells = grid::expand_to_search(&document, &[], 1000, &context(), &mut files).unwrap();
    MaxBatchSearch::find(&document, search, cells, context(), files)
}

fn said(planned: &Planned) -> &Search {
    planned.search.as_deref().expect("a cell of a search")
}

/// The largest of `values` whose plan is within the capacity, by trying all of them.
fn by_brute_force(text: &str, key: &str, values: impl Iterator<Item = usize>) -> Option<u64> {
    let planner = Planner::default();
    let fits = |value: &usize| {
        let set = [format!("{key}={value}")];
        let document = Document::parse(Path::new("test.toml"), text, &set).unwrap();
        assert!(document.search.is_none(), "--set states the value");
        let cells = grid::expand(&document, &[], 10, &context(), &mut Files::default()).unwrap();
        let [cell] = &cells[..] else { panic!("{} cells", cells.len()) };
        let Ok(resolved) = &cell.resolved else { return false };
        let capacity = resolved.cell.memory.capacity.unwrap();
        planner.plan(&resolved.cell).is_ok_and(|plan| plan.stage_plan_of(0).estimate.memory().total_peak() <= capacity)
    };
    values.filter(fits).max().map(|value| value as u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_micro_batch_is_the_largest_by_brute_force(
        kib in 150u64..3_000,
        strategy in prop::sample::select(vec!["ddp", "zero1", "zero2", "zero3", "fsdp-grad-op"]),
        checkpointing in prop::sample::select(vec!["none", "selective", "full"]),
        multiple in 1usize..4,
    ) {
        let grid = format!(
            "search = \"micro_batch\"\nsearch_max = 150\nsearch_multiple = {multiple}\n\"parallel.strategy\" = [\"{strategy}\"]\n\
             \"memory.checkpointing\" = [\"{checkpointing}\"]"
        );
        let text = text(&format!("{kib}KiB"), &grid);
        let (cells, _) = found(&text);
        let values = (1..=150).filter(|value| value % multiple == 0);
        prop_assert_eq!(said(&cells[0]).value, by_brute_force(&text, "train.micro_batch", values));
    }

    #[test]
    fn the_sequence_is_the_largest_by_brute_force(
        kib in 150u64..3_000,
        strategy in prop::sample::select(vec!["ddp", "zero2", "zero3"]),
        attention in prop::sample::select(vec!["flash", "naive"]),
    ) {
        let grid = format!(
            "search = \"train.seq_len\"\nsearch_max = 256\nsearch_multiple = 8\n\"parallel.strategy\" = [\"{strategy}\"]\n\
             \"memory.attention\" = [\"{attention}\"]"
        );
        let text = text(&format!("{kib}KiB"), &grid);
        let (cells, _) = found(&text);
        prop_assert_eq!(said(&cells[0]).value, by_brute_force(&text, "train.seq_len", (8..=256).step_by(8)));
    }
}

#[test]
fn a_found_cell_is_the_ordinary_cell_with_that_value() {
    let text = text("600KiB", "search = \"micro_batch\"\n\"parallel.strategy\" = [\"ddp\", \"zero3\"]");
    let (cells, mut limits) = found(&text);
    let next = limits.next(&cells);
    assert_eq!((cells.len(), next.len()), (2, 2));
    for (cell, strategy) in cells.iter().zip(["ddp", "zero3"]) {
        let search = said(cell);
        let value = search.value.unwrap();
        assert_eq!((search.role, search.of, search.capacity), (Role::Limit, Of::Plan, Some(600 << 10)));
        assert_eq!(search.axes.get("parallel.strategy").map(String::as_str), Some(strategy));
        assert_eq!(search.global_batch, Some(2 * value));
        let after = search.next.as_ref().unwrap();
        assert_eq!(after.value, value + 1);
        assert!(search.bytes.unwrap() <= 600 << 10 && after.bytes.unwrap() > 600 << 10);
        let set = [format!("train.micro_batch={value}"), format!("parallel.strategy={strategy}")];
        let document = Document::parse(Path::new("test.toml"), &text, &set).unwrap();
        let ordinary = grid::expand(&document, &[], 10, &context(), &mut Files::default()).unwrap();
        assert_eq!(ordinary[0].key, cell.grid.key, "its key is that of the ordinary cell");
        assert!(cell.grid.label.contains(&format!("micro_batch={value}")), "{}", cell.grid.label);
    }
    for (cell, limit) in next.iter().zip(&cells) {
        assert_eq!(said(cell).role, Role::Next);
        assert_eq!(said(cell).value, said(limit).next.as_ref().map(|next| next.value));
        assert_eq!(said(cell).combination, said(limit).combination);
        assert_eq!(cell.advice, "", "what must not fit needs no advice");
    }
}

/// The records of a command whose output is JSON.
fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_arena_holds_what_was_found_and_refuses_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let grid = "search = \"micro_batch\"\n\"memory.capacity\" = [\"700KiB\", \"1300KiB\"]\n\
                \"parallel.strategy\" = [\"ddp\", \"zero2\", \"zero3\"]";
    let path = write(folder.path(), &format!("{MODEL}[grid]\n{grid}\n"));
    let notebook = folder.path().join("notebook");
    let arguments = ["grid", path.to_str().unwrap(), "--trials", "1", "--format", "json"];
    let output = run(&notebook, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = records(&stdout(&output));
    assert_eq!(lines.len(), 12);
    let (limits, next): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["search"]["role"] == "limit");
    assert_eq!((limits.len(), next.len()), (6, 6));
    for limit in &limits {
        let search = &limit["search"];
        assert_eq!(limit["outcome"]["status"], "measured", "{}", limit["outcome"]);
        assert_eq!(limit["cell"]["train"]["micro_batch"], search["value"]);
        assert_eq!(search["of"], "plan");
        assert_eq!(search["capacity"], limit["cell"]["memory"]["capacity"]);
        assert_eq!(limit["metrics"]["peak_memory_bytes"].as_f64(), search["bytes"].as_f64(), "as planned, to the byte");
        assert_eq!(search["next"]["outcome"], "out_of_memory");
        assert!(limit["estimate"].get("search").is_none(), "it stands beside the estimate");
    }
    for next in &next {
        assert_eq!(next["outcome"]["status"], "out_of_memory");
        assert_eq!(next["outcome"]["source"], "arena");
        assert_eq!(next["cell"]["train"]["micro_batch"], next["search"]["value"]);
    }
    // Both fit more than ddp; of so small a model zero3 keeps no less than zero2, as its slots hold most of it.
    let value = |line: &Value| line["search"]["value"].as_u64().unwrap();
    assert!(limits.chunks(3).all(|of| value(of[0]) < value(of[1]) && value(of[0]) < value(of[2])));

    // The same command measures nothing, and says the same.
    let before = std::fs::read(notebook.join("records.jsonl")).unwrap();
    let again = run(&notebook, &arguments);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!(std::fs::read(notebook.join("records.jsonl")).unwrap(), before);
    assert_eq!(stdout(&again), stdout(&output));

    // The table, of the same records.
    let table = stdout(&run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "1", "--format", "markdown"]));
    let first = value(limits[0]);
    for part in [
        "Largest micro_batch".to_string(),
        "The next value was run and was out of memory in all 6 searches.".into(),
        format!("({} against {first})", value(limits[1])),
        "out of memory when run".into(),
        "× ddp: micro_batch".into(),
    ] {
        assert!(table.contains(&part), "{part}\n{table}");
    }
    let csv = stdout(&run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "1", "--format", "csv"]));
    assert!(csv.contains("largest micro_batch"), "{csv}");
    // A report of the notebook has it, too.
    let report = stdout(&run(&notebook, &["report", "--format", "markdown"]));
    assert!(report.contains("Largest micro_batch") && report.contains("all 6 searches"), "{report}");
}

#[test]
fn records_made_before_the_search_count() {
    let folder = tempfile::tempdir().unwrap();
    let text = text("900KiB", "search = \"micro_batch\"\n\"parallel.strategy\" = [\"zero3\"]");
    let path = write(folder.path(), &text);
    let value = said(&found(&text).0[0]).value.unwrap();
    let notebook = folder.path().join("notebook");
    let set = format!("train.micro_batch={value}");
    let plain = ["grid", path.to_str().unwrap(), "--trials", "1", "--format", "json", "--set", &set];
    let one = records(&stdout(&run(&notebook, &plain)));
    assert!(one.len() == 1 && one[0].get("search").is_none(), "{one:?}");
    let lines = records(&stdout(&run(&notebook, &plain[..6])));
    let [limit, next] = &lines[..] else { panic!("{} records", lines.len()) };
    assert_eq!(limit["id"], one[0]["id"], "it was not measured again");
    assert_eq!(limit["search"]["value"], value);
    assert_eq!(next["outcome"]["status"], "out_of_memory");
}

#[test]
fn a_dry_run_prints_the_table_and_makes_no_notebook() {
    let folder = tempfile::tempdir().unwrap();
    let path =
        write(folder.path(), &text("600KiB", "search = \"micro_batch\"\n\"parallel.strategy\" = [\"ddp\", \"zero3\"]"));
    let notebook = folder.path().join("notebook");
    for arguments in [&["grid", path.to_str().unwrap(), "--dry-run"][..], &["plan", path.to_str().unwrap()]] {
        let output = run(&notebook, arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stdout(&output);
        assert!(said.contains("Largest micro_batch") && said.contains("does not fit by the plan"), "{said}");
        assert!(!notebook.exists());
    }
    let lines = records(&stdout(&run(&notebook, &["plan", path.to_str().unwrap(), "--format", "json"])));
    assert_eq!(lines.len(), 2, "the cells that are found, and not those that are to be refused");
    assert!(lines.iter().all(|line| line["search"]["next"]["outcome"].is_null() && line["fits"] == true));
}

#[test]
fn nothing_fits() {
    let folder = tempfile::tempdir().unwrap();
    let path =
        write(folder.path(), &text("100KiB", "search = \"micro_batch\"\n\"parallel.strategy\" = [\"ddp\", \"zero3\"]"));
    let notebook = folder.path().join("notebook");
    let output = run(&notebook, &["grid", path.to_str().unwrap(), "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "out of a stated capacity is a result: {}", stderr(&output));
    let lines = records(&stdout(&output));
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["outcome"]["status"], "out_of_memory");
        assert!(line["search"]["value"].is_null() && line["search"]["next"].is_null());
        assert_eq!(line["cell"]["train"]["micro_batch"], 1);
        assert!(line["notes"][0].as_str().unwrap().starts_with("Cheapest change"), "{}", line["notes"]);
    }
    let table = stdout(&run(&notebook, &["grid", path.to_str().unwrap(), "--format", "markdown"]));
    assert!(table.contains("even micro_batch = 1 takes"), "{table}");
}

#[test]
fn everything_up_to_the_most_fits() {
    let text = text("1GiB", "search = \"micro_batch\"\nsearch_max = 5\n\"parallel.strategy\" = [\"ddp\"]");
    let (cells, mut limits) = found(&text);
    assert_eq!((said(&cells[0]).value, &said(&cells[0]).next), (Some(5), &None));
    assert!(limits.next(&cells).is_empty());
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &text);
    let table = stdout(&run(folder.path(), &["plan", path.to_str().unwrap(), "--format", "markdown"]));
    assert!(table.contains("5 or more") && table.contains("the limit is above"), "{table}");
}

#[test]
fn a_stated_global_batch_leaves_its_divisors() {
    let with = |global: usize, more: &str| {
        let text = text("900KiB", &format!("search = \"micro_batch\"\n{more}\"parallel.strategy\" = [\"zero3\"]"));
        text.replace("seq_len = 16", &format!("seq_len = 16\nglobal_batch = {global}"))
    };
    let (cells, _) = found(&with(48, ""));
    let search = said(&cells[0]);
    let value = search.value.unwrap();
    assert!(search.fixed_batch && 24 % value == 0, "a divisor of the 24 sequences of a rank: {value}");
    assert_eq!(search.global_batch, Some(48));
    let divisors = [1, 2, 3, 4, 6, 8, 12, 24].into_iter();
    assert_eq!(search.value, by_brute_force(&with(48, ""), "train.micro_batch", divisors));
    let train = &cells[0].cell().unwrap().train;
    assert_eq!(train.micro_batch * train.accumulation, 24);
    // No value can be: a skipped cell with the reason.
    let (cells, _) = found(&with(6, "search_multiple = 2\n"));
    assert_eq!(said(&cells[0]).value, None);
    assert!(said(&cells[0]).reason.contains("global_batch"), "{}", said(&cells[0]).reason);
}

#[test]
fn a_device_is_searched_by_its_price() {
    let folder = tempfile::tempdir().unwrap();
    let path = root().join("configs/largest-batch-a100.toml");
    let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = records(&stdout(&output));
    assert_eq!(lines.len(), 16);
    let value = |profile: &str, strategy: &str, checkpointing: &str| {
        let axes =
            [("hardware.profile", profile), ("parallel.strategy", strategy), ("memory.checkpointing", checkpointing)];
        let is_it = |line: &&Value| axes.iter().all(|(path, value)| line["search"]["axes"][path] == *value);
        lines.iter().find(is_it).unwrap()["search"]["value"].as_u64().unwrap_or(0)
    };
    for checkpointing in ["none", "full"] {
        for profile in ["a100-40gb", "a100-80gb"] {
            assert!(value(profile, "ddp", checkpointing) < value(profile, "zero2", checkpointing));
            assert!(value(profile, "zero2", checkpointing) < value(profile, "zero3", checkpointing));
        }
        assert!(value("a100-40gb", "zero2", checkpointing) < value("a100-80gb", "zero2", checkpointing));
    }
    assert!(value("a100-80gb", "zero2", "none") < value("a100-80gb", "zero2", "full"));
    // Without a profile nothing says what a device has.
    let set = ["plan", path.to_str().unwrap(), "--set", "hardware.device=cuda", "--set", "hardware.software=zbench"];
    let cuda = MODEL.replace("threads_per_rank = 1", "device = \"cuda\"");
    let file = write(folder.path(), &format!("{cuda}[grid]\nsearch = \"micro_batch\"\n"));
    let said = stdout(&run(folder.path(), &["plan", file.to_str().unwrap(), "--full"]));
    assert!(said.contains("nothing says how much memory a rank has"), "{said}");
    assert_eq!(run(folder.path(), &set).status.code(), Some(0));
}

#[test]
fn what_a_search_cannot_be_beside() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &text("600KiB", "search = \"micro_batch\"\n\"parallel.strategy\" = [\"ddp\"]"));
    let path = path.to_str().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["run", path], "use `grid`"),
        (&["grid", path, "--proxy"], "--proxy runs stand-ins"),
        (&["plan", path, "--search"], "--search for the fastest way"),
        (&["grid", path, "--only", "train.micro_batch=4"], "--set train.micro_batch=N"),
        (&["grid", path, "--set", "grid.search=micro_bach"], "did you mean \"micro_batch\"?"),
        (&["grid", path, "--set", "grid.search=parallel.ranks"], "parallel.ranks cannot be searched"),
        (&["grid", path, "--set", "grid.search_max=0"], "0 is too small"),
        (&["grid", path, "--set", "grid.search_multiple=70000"], "there is no value to try"),
        (&["grid", path, "--set", "grid.serch=seq_len"], "unknown key"),
    ];
    for (arguments, fragment) in cases {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(fragment), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"));
    }
    // --set searches an ordinary grid, and ends a search.
    let axes = Document::parse(
        Path::new("t.toml"),
        "[grid]\n\"train.micro_batch\" = [1, 2]\n",
        &["train.micro_batch=3".into(), "grid.search=seq_len".into(), "grid.search_max=512".into()],
    );
    let search = axes.unwrap().search.unwrap();
    assert_eq!((search.key, search.most, search.multiple), ("train.seq_len", 512, 64));
}

/// Pretends to run: what has more than so many sequences a rank is out of the host's memory.
struct Fake {
    holds: usize,
    ran: Vec<(usize, Status)>,
}

impl Execute for Fake {
    fn execute(&mut self, cell: &Cell, tell: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution {
        let fits = cell.train.micro_batch <= self.holds;
        self.ran.push((cell.train.micro_batch, if fits { Status::Measured } else { Status::OutOfMemory }));
        let step = |step: u64| Step {
            step,
            timed: true,
            loss: 5.0,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 10.0,
            tokens: 100,
            extra: Default::default(),
        };
        let steps: Vec<Step> = if fits { (1..=3).map(step).collect() } else { Vec::new() };
        steps.iter().for_each(|step| tell(ProgressEvent::Step(step)));
        let reason = "the system ended the process for lack of memory".to_string();
        let failure = (!fits).then_some(Ended { status: Status::OutOfMemory, reason, source: Some(Source::Host) });
        Execution { steps, end: Some(End { failure, ..End::default() }), ..Execution::default() }
    }
}

struct Silent;
impl Observe for Silent {}

#[test]
fn a_limit_that_does_not_run_is_stepped_down_and_said() {
    let text = text("900KiB", "search = \"micro_batch\"\n\"parallel.strategy\" = [\"zero3\"]");
    let planned = said(&found(&text).0[0]).value.unwrap() as usize;
    assert!(planned > 3, "{planned}");
    for holds in [planned, planned - 1, planned / 2, 1, 0] {
        let (mut cells, mut limits) = found(&text);
        let next = limits.next(&cells);
        cells.extend(next);
        let folder = tempfile::tempdir().unwrap();
        let notebook = Notebook::open(folder.path()).unwrap();
        let mut fake = Fake { holds, ran: Vec::new() };
        let mut run = |cells: &[Planned]| {
            let mut runner = Runner {
                notebook: &notebook,
                suite: Train { execute: &mut fake },
                observe: &mut Silent,
                header: Default::default(),
            };
            Ok(runner.run(cells, Trials::UpTo(1))?)
        };
        let summary = max_batch::carry_out(&mut limits, &cells, &mut run).unwrap();
        let largest = fake.ran.iter().filter(|(_, status)| *status == Status::Measured).map(|(value, _)| *value).max();
        assert_eq!(largest, (holds > 0).then_some(holds), "{:?}", fake.ran);
        assert!(fake.ran.len() <= 2 + planned.ilog2() as usize + 1, "{:?}", fake.ran);
        let searches: Vec<Search> = summary.records.iter().filter_map(Search::of).collect();
        assert_eq!(searches.len(), fake.ran.len(), "every record says what it was for");
        let limit = summary
            .records
            .iter()
            .filter(|record| record.is_measured())
            .find_map(|record| Search::of(record).filter(|search| search.value == Some(holds as u64)));
        assert_eq!(
            limit.map(|search| search.of),
            (holds > 0).then_some(if holds == planned { Of::Plan } else { Of::Run })
        );
        let report = zbench_reports::grid_report::comparison(&summary.records, None);
        let words = zbench_reports::render::markdown::render(&report);
        match holds {
            0 => assert!(words.contains("zero3 none") && words.contains("for lack of memory"), "{words}"),
            holds if holds == planned => assert!(!words.contains("out of memory all the same"), "{words}"),
            holds => {
                assert!(words.contains(&format!("zero3 {holds}.")), "{words}");
                let fell = format!("micro_batch = {} fits by its plan and was out of memory all the same", holds + 1);
                assert!(words.replace('\\', "").contains(&fell), "{words}");
            }
        }
    }
}
