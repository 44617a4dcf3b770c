//! The runner's schedule over a notebook, with cells that only pretend: order, resume, outcomes, parity.

use crate::support::{TINY, cells};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use zbench_engine::config::{Cell, Strategy};
use zbench_engine::planner::Planner;
use zbench_predict::planned::{Decision, Planned, plan};
use zbench_reports::Notebook;
use zbench_reports::record::{Outcome, Record, Source, Status, Step, Verdict};
use zbench_runner::child::Children;
use zbench_runner::protocol::{End, Ended, Event, ProgressEvent};
use zbench_runner::{Execute, Execution, Header, Observe, Runner, Summary, Train, Trials};

/// Executes without training: losses and ends by strategy.
#[derive(Default)]
struct Fake {
    /// What was run, in order.
    ran: Vec<String>,
    /// Added to the losses of a strategy.
    off: BTreeMap<&'static str, f64>,
    /// Strategies that end otherwise.
    ends: BTreeMap<&'static str, Status>,
    /// Stops before this many executions are done.
    stop_after: Option<usize>,
    /// How many of a strategy's next trials find the machine busy.
    busy: BTreeMap<&'static str, usize>,
    /// Processor time of ranks that a launcher started.
    peers_seconds: f64,
}

fn name(cell: &Cell) -> String {
    format!("{} {:?}", cell.parallel.strategy.name(), cell.memory.checkpointing)
}

impl Execute for Fake {
    fn execute(&mut self, cell: &Cell, tell: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution {
        if self.stop_after == Some(self.ran.len()) {
            return Execution::default();
        }
        self.ran.push(name(cell));
        let strategy = cell.parallel.strategy.name();
        let off = self.off.get(strategy).copied().unwrap_or(0.0);
        let step = |i: u64| Step {
            step: i,
            timed: i > 1,
            loss: 5.0 - i as f64 + off,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 10.0 * i as f64,
            tokens: 1000,
            extra: Default::default(),
        };
        let steps: Vec<Step> = (1..=3).map(step).collect();
        steps.iter().for_each(|step| tell(ProgressEvent::Step(step)));
        let failure =
            self.ends.get(strategy).map(|status| Ended { status: *status, reason: "because".into(), source: None });
        let others_share = self.busy.get_mut(strategy).filter(|left| **left > 0).map(|left| {
            *left -= 1;
            0.9
        });
        Execution {
            steps,
            end: Some(End { failure, others_share, peak_flops: vec![Some(1e9), Some(1e9)], ..End::default() }),
            peers_seconds: self.peers_seconds,
            ..Execution::default()
        }
    }
}

struct Silent;
impl Observe for Silent {}

fn planned(text: &str) -> Vec<Planned> {
    cells(text).unwrap().into_iter().map(|cell| plan(&Planner::default(), cell, None)).collect()
}

fn run(folder: &Path, fake: &mut Fake, text: &str, trials: Trials) -> Summary {
    let notebook = Notebook::open(folder).unwrap();
    let mut runner = Runner {
        notebook: &notebook,
        suite: Train { execute: fake },
        observe: &mut Silent,
        header: Default::default(),
    };
    runner.run(&planned(text), trials).unwrap()
}

#[test]
fn trials_go_round_robin_and_references_first() {
    let folder = tempfile::tempdir().unwrap();
    let text = TINY.replace("[\"ddp\", \"zero3\"]", "[\"zero3\", \"ddp\"]");
    let mut fake = Fake::default();
    let summary = run(folder.path(), &mut fake, &text, Trials::UpTo(2));
    let round = ["ddp None", "ddp Full", "zero3 None", "zero3 Full"];
    assert_eq!(fake.ran, [round, round].concat());
    assert_eq!(summary.appended, 8);
    // Reported in the order of the grid, each cell's trials together.
    let order: Vec<(String, u32)> = summary
        .records
        .iter()
        .map(|r| (r.setting("parallel.strategy").unwrap().as_str().unwrap().into(), r.trial))
        .collect();
    assert_eq!(order[0], ("zero3".into(), 1));
    assert_eq!(order[1], ("zero3".into(), 2));
    assert_eq!(order[7], ("ddp".into(), 2));
}

fn run_with(folder: &Path, header: Header, trials: Trials) -> (Summary, Vec<String>) {
    let notebook = Notebook::open(folder).unwrap();
    let mut fake = Fake::default();
    let mut runner = Runner { notebook: &notebook, suite: Train { execute: &mut fake }, observe: &mut Silent, header };
    let summary = runner.run(&planned(TINY), trials).unwrap();
    (summary, fake.ran)
}

#[test]
fn where_cells_cannot_take_turns_the_order_of_trials_is_random() {
    let order = |seed: u64| {
        let folder = tempfile::tempdir().unwrap();
        let header = Header { why_not_turns: Some("one GPU".into()), seed, ..Header::default() };
        let (summary, ran) = run_with(folder.path(), header, Trials::UpTo(20));
        assert!(summary.records.iter().all(|record| record.turns.as_ref().is_some_and(|turns| turns.seed == seed)));
        ran
    };
    let ran = order(1);
    assert_eq!(ran, order(1));
    assert_ne!(ran, order(2));
    let rounds: Vec<&[String]> = ran.chunks(4).collect();
    assert_eq!(rounds.len(), 20);
    // The losses of other cells are compared with those of ddp.
    assert!(rounds[0][..2].iter().all(|cell| cell.starts_with("ddp")), "{:?}", rounds[0]);
    let sorted = |round: &[String]| {
        let mut round = round.to_vec();
        round.sort();
        round
    };
    assert!(rounds.iter().all(|round| sorted(round) == sorted(rounds[0])), "each round has every cell once");
    // Of 19 random rounds all begin with the same cell once in 4^18 seeds.
    assert!(rounds[2..].iter().any(|round| round[0] != rounds[1][0]));
}

#[test]
fn trials_end_with_the_budget_and_every_cell_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let header = || Header { budget: Some(Duration::ZERO), ..Header::default() };
    let (summary, ran) = run_with(folder.path(), header(), Trials::UpTo(3));
    assert_eq!((ran.len(), summary.appended, summary.left_out, summary.interrupted), (4, 4, 8, false));
    // The same command with more time measures what is left.
    let header = Header { budget: Some(Duration::from_secs(600)), ..Header::default() };
    let (summary, ran) = run_with(folder.path(), header, Trials::UpTo(3));
    assert_eq!((ran.len(), summary.records.len(), summary.left_out), (8, 12, 0));
}

#[test]
fn an_interrupted_grid_goes_on_without_repeating() {
    let folder = tempfile::tempdir().unwrap();
    for stop in 0..11 {
        let mut fake = Fake { stop_after: Some(1), ..Fake::default() };
        let summary = run(folder.path(), &mut fake, TINY, Trials::UpTo(3));
        assert!(summary.interrupted, "{stop}");
        assert_eq!(summary.records.len(), stop + 1);
    }
    for (ran, appended) in [(1, 1), (0, 0)] {
        let mut fake = Fake::default();
        let summary = run(folder.path(), &mut fake, TINY, Trials::UpTo(3));
        assert_eq!((fake.ran.len(), summary.interrupted), (ran, false));
        assert_eq!((summary.records.len(), summary.appended), (12, appended));
    }
    let summary = run(folder.path(), &mut Fake::default(), TINY, Trials::UpTo(3));
    let trials: Vec<u32> = summary.records.iter().map(|record| record.trial).collect();
    assert_eq!(trials, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
}

/// Trials of zero3 by number, and whether they are flagged.
fn zero3(summary: &Summary) -> Vec<(u32, bool)> {
    let of = |record: &&zbench_reports::Record| record.setting("parallel.strategy").is_some_and(|name| name == "zero3");
    summary.records.iter().filter(of).map(|record| (record.trial, !record.validity.is_empty())).collect()
}

#[test]
fn flagged_trials_are_repeated_until_as_many_are_valid_as_were_asked_for() {
    let text = TINY.replace("[\"none\", \"full\"]", "[\"none\"]");
    let folder = tempfile::tempdir().unwrap();
    let mut fake = Fake { busy: BTreeMap::from([("zero3", 2)]), ..Fake::default() };
    let summary = run(folder.path(), &mut fake, &text, Trials::UpTo(3));
    // Three of ddp, and of zero3 two flagged and three valid ones; the repeats come last.
    assert_eq!(fake.ran.len(), 8);
    assert_eq!(fake.ran[6..], ["zero3 None", "zero3 None"]);
    assert_eq!(zero3(&summary), [(1, true), (2, true), (3, false), (4, false), (5, false)]);
    // The same command finds nothing to do, and shows the same records.
    let mut again = Fake::default();
    let summary = run(folder.path(), &mut again, &text, Trials::UpTo(3));
    assert_eq!((again.ran.len(), summary.appended, summary.records.len()), (0, 0, 8));

    // Bounded: on a machine that is always busy, twice as many trials as were asked for, once and for all.
    let folder = tempfile::tempdir().unwrap();
    let mut fake = Fake { busy: BTreeMap::from([("zero3", usize::MAX)]), ..Fake::default() };
    let summary = run(folder.path(), &mut fake, &text, Trials::UpTo(2));
    assert_eq!(zero3(&summary), [(1, true), (2, true), (3, true), (4, true)]);
    let mut again = Fake { busy: BTreeMap::from([("zero3", usize::MAX)]), ..Fake::default() };
    assert_eq!(run(folder.path(), &mut again, &text, Trials::UpTo(2)).appended, 0);
    // More trials are asked for: two more, and as many repeats as there are flagged ones.
    let mut more = Fake::default();
    let summary = run(folder.path(), &mut more, &text, Trials::UpTo(4));
    assert_eq!(zero3(&summary).iter().filter(|(_, flagged)| !flagged).count(), 4);
    assert_eq!(zero3(&summary).len(), 8);

    // `--fresh` repeats its own flagged trials; `run` measures once, whatever comes of it.
    let mut fake = Fake { busy: BTreeMap::from([("zero3", 1)]), ..Fake::default() };
    assert_eq!(zero3(&run(folder.path(), &mut fake, &text, Trials::Fresh(1))), [(1, true), (2, false)]);
    let mut fake = Fake { busy: BTreeMap::from([("zero3", 1)]), ..Fake::default() };
    assert_eq!(zero3(&run(folder.path(), &mut fake, &text, Trials::OneMore)).len(), 1);

    // What another trial would show again is not repeated: losses that are not those of the first.
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &mut Fake::default(), &text, Trials::UpTo(1));
    let mut other = Fake { off: BTreeMap::from([("zero3", 0.5)]), ..Fake::default() };
    assert_eq!(zero3(&run(folder.path(), &mut other, &text, Trials::UpTo(2))), [(1, false), (2, true)]);
}

#[test]
fn a_torn_line_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &mut Fake::default(), TINY, Trials::UpTo(1));
    let path = folder.path().join("records.jsonl");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 20]).unwrap();
    let mut fake = Fake::default();
    let summary = run(folder.path(), &mut fake, TINY, Trials::UpTo(1));
    assert_eq!(fake.ran, ["zero3 Full"]);
    assert_eq!(summary.records.len(), 4);
}

#[test]
fn fresh_and_one_more_repeat() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &mut Fake::default(), TINY, Trials::UpTo(1));
    let fresh = run(folder.path(), &mut Fake::default(), TINY, Trials::Fresh(1));
    assert_eq!(fresh.appended, 4);
    let more = run(folder.path(), &mut Fake::default(), TINY, Trials::OneMore);
    assert_eq!(more.records.iter().map(|r| r.trial).collect::<Vec<_>>(), [2, 2, 2, 2]);
    let all = run(folder.path(), &mut Fake::default(), TINY, Trials::UpTo(1));
    assert_eq!(all.appended, 0);
    assert_eq!(all.records[0].id, fresh.records[0].id, "a trial's newest record counts");
}

#[test]
fn failures_end_a_cell_and_are_tried_again_by_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    for status in [Status::Failed, Status::TimedOut] {
        let mut fake = Fake { ends: BTreeMap::from([("zero3", status)]), ..Fake::default() };
        let summary = run(folder.path(), &mut fake, TINY, Trials::UpTo(2));
        assert_eq!(fake.ran.iter().filter(|name| name.starts_with("zero3")).count(), 2, "one trial of each, not two");
        let record = summary.records.iter().find(|record| record.outcome.status == status).unwrap();
        assert_eq!(record.outcome.reason, "because");
        assert_eq!(record.steps.len(), 3, "steps done before are kept");
    }
    let mut fake = Fake::default();
    run(folder.path(), &mut fake, TINY, Trials::UpTo(2));
    assert_eq!(fake.ran.len(), 4);
    assert!(fake.ran.iter().all(|name| name.starts_with("zero3")));
}

#[test]
fn divergence_and_a_full_arena_are_final() {
    let folder = tempfile::tempdir().unwrap();
    let mut fake = Fake { ends: BTreeMap::from([("zero3", Status::Diverged)]), ..Fake::default() };
    run(folder.path(), &mut fake, TINY, Trials::UpTo(1));
    let mut again = Fake::default();
    run(folder.path(), &mut again, TINY, Trials::UpTo(1));
    assert!(again.ran.is_empty());
}

#[test]
fn parity_with_the_ddp_cell() {
    let verdict = |off: f64| {
        let folder = tempfile::tempdir().unwrap();
        let mut fake = Fake { off: BTreeMap::from([("zero3", off)]), ..Fake::default() };
        let summary = run(folder.path(), &mut fake, TINY, Trials::UpTo(1));
        let verdicts: Vec<Verdict> = summary.records.iter().map(|record| record.parity.verdict).collect();
        assert_eq!(verdicts[..2], [Verdict::Reference, Verdict::Identical], "ddp without and with checkpointing");
        assert_eq!(summary.records[2].parity.reference.as_deref(), Some(summary.records[0].id.as_str()));
        verdicts[2]
    };
    assert_eq!(verdict(0.0), Verdict::Identical);
    assert_eq!(verdict(1e-6), Verdict::WithinTolerance);
    assert_eq!(verdict(1e-3), Verdict::Failed);
    assert_eq!(verdict(f64::NAN), Verdict::Failed);
}

#[test]
fn without_a_ddp_cell_nothing_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let text = TINY.replace("[\"ddp\", \"zero3\"]", "[\"zero1\", \"zero3\"]");
    let summary = run(folder.path(), &mut Fake::default(), &text, Trials::UpTo(1));
    assert!(summary.records.iter().all(|record| record.parity.verdict == Verdict::None));
}

#[test]
fn a_reference_that_this_command_lacks_is_looked_up_in_the_notebook() {
    let folder = tempfile::tempdir().unwrap();
    let with = |strategies: &str, steps: &str| {
        let text = TINY.replace("[\"ddp\", \"zero3\"]", strategies).replace("[\"none\", \"full\"]", "[\"none\"]");
        text.replace("steps = 2\n", steps)
    };
    let (ddp, zero3) = (with("[\"ddp\"]", "steps = 2\n"), with("[\"zero3\"]", "steps = 2\n"));
    let alone = run(folder.path(), &mut Fake::default(), &zero3, Trials::OneMore).records.remove(0);
    assert_eq!((alone.parity.verdict, alone.parity.reference), (Verdict::None, None));
    let run_ddp = || run(folder.path(), &mut Fake::default(), &ddp, Trials::OneMore).records.remove(0);
    run_ddp();
    let newest = run_ddp();
    for (trials, off, verdict) in [
        (Trials::OneMore, 0.0, Verdict::Identical),
        (Trials::UpTo(4), 1e-3, Verdict::Failed),
        (Trials::Fresh(1), 0.0, Verdict::Identical),
    ] {
        let mut fake = Fake { off: BTreeMap::from([("zero3", off)]), ..Fake::default() };
        let record = run(folder.path(), &mut fake, &zero3, trials).records.pop().unwrap();
        assert_eq!(
            (record.parity.verdict, record.parity.reference.as_ref()),
            (verdict, Some(&newest.id)),
            "{trials:?}"
        );
        assert_eq!(record.parity.extra["reference_from"], "notebook");
        assert!(record.notes.iter().any(|note| note.contains(&newest.id)), "{:?}", record.notes);
    }
    // Another build may draw other weights: its losses are no reference.
    let path = folder.path().join("records.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for record in &mut records {
        record["environment"]["commit"] = "another".into();
    }
    let text: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(&path, text).unwrap();
    let other = run(folder.path(), &mut Fake::default(), &zero3, Trials::Fresh(1)).records.pop().unwrap();
    assert_eq!((other.parity.verdict, other.parity.reference), (Verdict::None, None));
    run_ddp();
    // Another number of steps is another class.
    let other = run(folder.path(), &mut Fake::default(), &with("[\"zero3\"]", "steps = 3\n"), Trials::OneMore);
    assert_eq!(other.records[0].parity.verdict, Verdict::None);
    // A command with a reference of its own takes that.
    let both = run(folder.path(), &mut Fake::default(), &with("[\"ddp\", \"zero3\"]", "steps = 2\n"), Trials::Fresh(1));
    assert_eq!(both.records[1].parity.reference.as_ref(), Some(&both.records[0].id));
    assert!(!both.records[1].parity.extra.contains_key("reference_from"));
}

#[test]
fn of_the_notebooks_references_the_newest_that_divides_the_batch_alike_is_preferred() {
    let folder = tempfile::tempdir().unwrap();
    let once = |strategy: &str, ranks: usize, global_batch: usize| {
        let text = TINY.replace("[\"ddp\", \"zero3\"]", &format!("[\"{strategy}\"]"));
        let text = text.replace("[\"none\", \"full\"]", "[\"none\"]").replace("ranks = 2", &format!("ranks = {ranks}"));
        let batch = format!("steps = 2\nmicro_batch = 2\nglobal_batch = {global_batch}\n");
        let text = text.replacen("steps = 2\n", &batch, 1);
        run(folder.path(), &mut Fake::default(), &text, Trials::OneMore).records.remove(0)
    };
    once("ddp", 2, 8);
    let alike = once("ddp", 2, 8);
    let newest = once("ddp", 1, 8);
    assert_eq!(once("zero3", 2, 8).parity.reference, Some(alike.id));
    assert_eq!(once("zero3", 4, 8).parity.reference, Some(newest.id));
    assert_eq!(once("zero3", 4, 16).parity.reference, None, "another global batch");
}

/// A cell that hangs after it has said everything is ended, and what it said counts.
#[test]
fn a_result_counts_although_its_process_hangs() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let end = Event::End(Box::new(End { kernels: "test".into(), ..End::default() }));
    let script =
        format!("#!/bin/bash\ncat > /dev/null\necho '{}'\nexec sleep 3600\n", serde_json::to_string(&end).unwrap());
    let program = folder.path().join("cell");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let timeout = std::time::Duration::from_secs(20);
    let mut children = Children { program, stop: Default::default(), timeout, peak_seconds: 0.0, trace_steps: 0 };
    let cell = planned(TINY).remove(0).cell().unwrap().clone();
    let end = children.execute(&cell, &mut |_| ()).end.expect("a result");
    assert!(end.failure.is_none(), "{:?}", end.failure);
    assert_eq!(end.kernels, "test");
}

#[test]
fn ranks_of_a_launch_are_no_others_in_records() {
    let folder = tempfile::tempdir().unwrap();
    let mut fake = Fake { peers_seconds: 1e9, ..Fake::default() };
    let record = run(folder.path(), &mut fake, TINY, Trials::UpTo(1)).records.remove(0);
    let sampled = &record.extra["sampled"];
    assert_eq!(sampled["peers_seconds"], 1e9);
    assert!(sampled["others_share"].as_f64().is_none_or(|share| share == 0.0), "{sampled}");
}

#[test]
fn a_quota_that_limits_the_peak_is_said() {
    let note = |quota: Option<f64>| {
        let cell = planned(TINY).remove(0);
        let end = End { peak_flops: vec![Some(1e9)], peak_threads: 2, peak_quota: quota, ..End::default() };
        let mut record = Record::new("id", "key", "name", Outcome::measured());
        let step = Step {
            step: 1,
            timed: true,
            loss: 1.0,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 1.0,
            tokens: 1,
            extra: Default::default(),
        };
        let (of, estimate) = (cell.cell().unwrap(), cell.estimate.as_ref().unwrap());
        zbench_runner::record::measured(&mut record, vec![step], &end, of, estimate, "");
        record.notes.into_iter().find(|note| note.starts_with("The peak is that of 2 threads")).unwrap()
    };
    assert!(note(Some(1.5)).contains("A processor quota of 1.5 cores limits it"), "{}", note(Some(1.5)));
    assert!(!note(None).contains("quota"), "{}", note(None));
}

#[test]
fn losses_that_change_between_trials_are_flagged() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &mut Fake::default(), TINY, Trials::UpTo(1));
    let mut fake = Fake { off: BTreeMap::from([("zero3", 1e-9)]), ..Fake::default() };
    let summary = run(folder.path(), &mut fake, TINY, Trials::UpTo(2));
    let flagged: Vec<bool> =
        summary.records.iter().map(|r| r.validity.contains(&"not_reproducible".to_string())).collect();
    assert_eq!(flagged, [false, false, false, false, false, true, false, true]);
}

#[test]
fn metrics_follow_from_the_timed_steps() {
    let folder = tempfile::tempdir().unwrap();
    let record = run(folder.path(), &mut Fake::default(), TINY, Trials::UpTo(1)).records.remove(0);
    let number = |metric: &str| record.metrics.number(metric).unwrap();
    // Steps 2 and 3 are timed: 20 and 30 ms, 1000 tokens each.
    assert_eq!(number("tokens_per_second"), 2000.0 / 0.05);
    assert_eq!(number("tokens_per_second_per_rank"), 1000.0 / 0.05);
    assert_eq!((number("step_ms_mean"), number("step_ms_p50")), (25.0, 20.0));
    assert_eq!((number("loss_first"), number("loss_last")), (4.0, 2.0));
    let flops = record.flops.get("model").unwrap();
    assert!((number("mfu") - flops / 0.025 / 1e9).abs() < 1e-12 * number("mfu").abs().max(1.0));
    assert_eq!(number("mfu"), number("mfu_of_measured_peak"));
    for metric in zbench_runner::record::METRICS {
        let stated = record.metrics.number(metric).is_some();
        assert_eq!(stated, record.unstated.get(metric).is_none(), "{metric}: a number or a reason");
    }
}

#[test]
fn what_cannot_run_is_recorded_once_with_reason_and_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TINY}\n[[grid.include]]\n\"parallel.tensor\" = 2\n\"parallel.ranks\" = 4\n")
        .replace("threads_per_rank = 1", "device = \"cuda\"");
    let mut fake = Fake::default();
    for appended in [5, 0] {
        let summary = run(folder.path(), &mut fake, &text, Trials::UpTo(3));
        assert_eq!((summary.records.len(), summary.appended), (5, appended));
        assert!(summary.records.iter().all(|record| record.outcome.status == Status::Skipped));
        assert!(summary.records[0].outcome.reason.contains("CUDA"));
        assert!(summary.records[0].memory.parameters.as_ref().unwrap().predicted_bytes.unwrap() > 0);
        assert!(summary.records[4].outcome.reason.contains("parallel.tensor"));
        assert_eq!(summary.records[4].setting("parallel.tensor"), Some(&serde_json::json!(2)));
        assert!(summary.records[4].memory.parameters.as_ref().unwrap().predicted_bytes.unwrap() > 0);
    }
    assert!(fake.ran.is_empty());
}

#[test]
fn capacity_is_proved_by_the_plan_or_left_to_the_arena() {
    let decision = |capacity: u64| {
        let text = TINY.replace("[grid]", &format!("[memory]\ncapacity = {capacity}\n[grid]"));
        planned(&text).remove(0)
    };
    let free = planned(TINY).remove(0);
    let total = free.estimate.as_ref().unwrap().memory().total_peak();
    assert!(matches!(
        decision(1000).decision,
        Decision::Record { status: Status::OutOfMemory, source: Source::Plan, .. }
    ));
    assert_eq!(decision(total).decision, Decision::Run);
    assert_eq!(decision(total).fits(), Some(true));
    let tight = decision(total - 64);
    assert_eq!((tight.decision.clone(), tight.fits()), (Decision::Run, Some(false)));
    assert!(tight.advice.contains("memory.checkpointing") && tight.advice.contains("predicted"), "{}", tight.advice);
}

/// As the rule says: the ratio of query heads to a key-value head is kept as far as 4 heads can.
#[test]
fn the_proxy_keeps_the_ratio_of_heads_as_far_as_it_can() {
    let cell = planned(TINY).remove(0).cell().unwrap().clone();
    for (heads, kv, expected) in [(64, 8, (4, 1)), (32, 16, (4, 2)), (32, 32, (4, 4)), (24, 8, (4, 1)), (2, 1, (2, 1))]
    {
        let mut cell = cell.clone();
        (cell.model.num_attention_heads, cell.model.num_key_value_heads) = (heads, kv);
        let small = zbench_predict::proxy::scaled(&cell, 2).model;
        assert_eq!((small.num_attention_heads, small.num_key_value_heads), expected, "{heads}/{kv}");
    }
    assert!(
        zbench_predict::proxy::RULE.contains("at most 4 heads")
            && !zbench_predict::proxy::RULE.contains("same ratios of heads")
    );
}

/// A stand-in shows nothing of a degree that it leaves out, so `plan --search --measure` trains it for no such way.
#[test]
fn degrees_that_a_proxy_leaves_out_are_named() {
    let whole = planned(TINY).remove(0).cell().unwrap().clone();
    for (context, tensor, left_out) in [(1, 2, &[][..]), (2, 1, &["parallel.context"]), (2, 2, &["parallel.context"])] {
        let mut cell = whole.clone();
        cell.parallel.ranks = 8;
        (cell.parallel.degrees.context, cell.parallel.degrees.tensor) = (context, tensor);
        let small = zbench_predict::proxy::scaled(&cell, 2);
        assert_eq!(zbench_predict::proxy::left_out(&cell, &small), left_out);
    }
}

#[test]
fn the_proxy_keeps_strategies_and_ratios() {
    let document = std::fs::read_to_string(crate::support::root().join("configs/llama70b.toml")).unwrap();
    let document = document.replace("profile = \"a100-80gb\"", "device = \"cuda\"");
    for cell in cells(&document).unwrap() {
        let cell = cell.resolved.unwrap().cell;
        let small = zbench_predict::proxy::scaled(&cell, 2);
        assert_eq!((small.parallel.ranks, small.parallel.ranks_per_node), (4, Some(2)));
        assert_eq!(small.parallel.strategy, cell.parallel.strategy);
        assert_eq!(small.parallel.shard, if cell.parallel.strategy == Strategy::Hsdp { 2 } else { 4 });
        assert_eq!((&small.precision, &small.memory.checkpointing), (&cell.precision, &cell.memory.checkpointing));
        assert_eq!((small.model.num_attention_heads, small.model.num_key_value_heads), (4, 1));
        assert!(zbench_predict::planned::estimate(&zbench_engine::planner::Planner::default(), &small).is_ok());
    }
}
