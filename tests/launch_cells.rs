//! Cells of a launch: which cores its ranks have, and what becomes of a cell when a process is lost or told to stop.

use crate::support::{TINY, cells};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zbench_collectives::{Meeting, Rendezvous};
use zbench_config::{Context, Hosts, RankCores};
use zbench_engine::config::Cell;
use zbench_launch::{ControlChannel, Source, World, free_port};
use zbench_reports::record::{Outcome, Record, Status};
use zbench_runner::launched::{Answer, Launched, Leader, Order, StopFlags, follow};
use zbench_runner::protocol::Job;
use zbench_runner::{Execute, Execution};

const LONG: Duration = Duration::from_secs(60);

/// A cell of two ranks of one thread.
fn cell() -> Cell {
    cells(TINY).unwrap().remove(0).resolved.unwrap().cell
}

fn place(host: &str, cores: &[usize]) -> RankCores {
    RankCores { host: host.into(), cores: cores.to_vec(), quota: None }
}

#[test]
fn ranks_of_a_launch_have_the_threads_that_their_cores_give() {
    let threads = |places: Vec<RankCores>| {
        let hosts = Arc::new(Hosts::new(false, places));
        Context::new(PathBuf::new(), 2).launched(Some(hosts)).threads(2)
    };
    assert_eq!(
        threads(vec![place("a", &[0, 1]), place("b", &[0, 1])]),
        2,
        "not the cores of one host by the ranks of all"
    );
    assert_eq!(threads(vec![place("a", &[0, 1]), place("a", &[0, 1])]), 1);
    assert_eq!(Context::new(PathBuf::new(), 4).threads(2), 2, "no launch");
}

#[test]
fn a_rank_is_told_its_place_among_those_that_share_its_cores() {
    let job = Job { cell: cell(), cores: 1, peak_seconds: 0.0, trace_steps: 0, turns: None };
    let seats = |places: Vec<RankCores>| {
        let jobs = job.rank_jobs(&Hosts::new(false, places), None);
        jobs.iter()
            .map(|job| (job.seat.index, job.seat.place, job.seat.sharers, job.peak_threads, job.cores.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(seats(vec![place("a", &[0]), place("a", &[1])]), [(0, 0, 1, 2, 2), (1, 0, 1, 0, 2)], "a core each");
    assert_eq!(
        seats(vec![place("a", &[0]), place("a", &[0])]),
        [(0, 0, 2, 1, 1), (1, 1, 2, 0, 1)],
        "the peak of one core, whatever number of ranks share it"
    );
    assert_eq!(seats(vec![place("a", &[0]), place("b", &[0])]), [(0, 0, 1, 1, 1), (0, 0, 1, 1, 1)]);
    let unknown = job.rank_jobs(&Hosts::of_names(["", ""]), None);
    assert_eq!((unknown[1].seat.place, unknown[1].seat.sharers, unknown[1].cores.len()), (1, 2, 0));
}

/// The lines of two processes of a launch.
fn lines() -> (ControlChannel, ControlChannel) {
    let port = free_port().unwrap();
    let join = move |rank| {
        let meeting = Meeting {
            rank,
            size: 2,
            host: "127.0.0.1".into(),
            port,
            token: "line".into(),
            timeout: LONG,
            ..Meeting::default()
        };
        ControlChannel::open(Rendezvous::join(&meeting).unwrap()).unwrap()
    };
    let other = std::thread::spawn(move || join(1));
    (join(0), other.join().unwrap())
}

fn raise(flags: &StopFlags, is_users: bool) {
    flags.user.store(is_users, Ordering::Relaxed);
    flags.any.store(true, Ordering::Relaxed);
}

/// What rank 0 makes of a cell, whose own rank ends at once. The other process does `other` when it is to start its rank.
fn executed(stop: &StopFlags, other: impl FnOnce(ControlChannel, u64) + Send) -> Execution {
    let (first, second) = lines();
    let world = World {
        rank: 0,
        size: 2,
        local_rank: Some(0),
        local_size: Some(2),
        host: Some("127.0.0.1".into()),
        port: 1,
        token: String::new(),
        secret: true,
        source: Source::Torchrun,
        launcher: String::new(),
        notes: Vec::new(),
    };
    let mut leader = Leader::new(world, first, Arc::new(Hosts::of_names(["a", "a"])));
    std::thread::scope(|scope| {
        scope.spawn(move || match second.hear(LONG) {
            Ok((_, Order::Run { number, .. })) => other(second, number),
            unexpected => panic!("{unexpected:?}"),
        });
        let (program, stop) = ("/bin/sh".into(), stop.clone());
        let mut launched =
            Launched { leader: &mut leader, program, stop, timeout: LONG, peak_seconds: 0.0, trace_steps: 0 };
        launched.execute(&cell(), &mut |_| ())
    })
}

/// torchrun and Hydra end the others with SIGTERM when a process has died.
#[test]
fn a_process_that_dies_is_a_failure_although_the_launcher_ends_the_others() {
    let stop = StopFlags::default();
    let execution = executed(&stop, |line, _| {
        raise(&stop, false);
        drop(line);
    });
    let failure = execution.end.expect("an end").failure.expect("a failure");
    assert_eq!(failure.status, Status::Failed);
    assert!(failure.reason.starts_with("the launch has lost a process: rank 1 on "), "{}", failure.reason);
    assert!(execution.last, "nothing can run after it");
}

#[test]
fn processes_that_end_by_the_users_signals_are_no_failure() {
    let stop = StopFlags::default();
    let execution = executed(&stop, |line, _| {
        raise(&stop, true);
        drop(line);
    });
    assert!(execution.end.is_none(), "Ctrl-C twice ends processes at once: {:?}", execution.end);
    let stop = StopFlags::default();
    let execution = executed(&stop, |line, _| {
        raise(&stop, false);
        line.say(&Answer::Stopped);
        drop(line);
    });
    assert!(execution.end.is_none(), "SIGTERM at all, then SIGKILL: {:?}", execution.end);
    let stop = StopFlags::default();
    let execution = executed(&stop, |line, number| {
        raise(&stop, false);
        // Its rank was ended with it, and its own signal comes a little later.
        line.say(&Answer::Said(number, Box::default()));
        line.say(&Answer::Stopped);
        assert!(matches!(line.hear(LONG), Ok((_, Order::Stop))));
    });
    assert!(execution.end.is_none(), "SIGTERM at all: {:?}", execution.end);
}

/// What rank 1 returns whose rank 0 is lost while a cell is under way.
fn followed(stop: &StopFlags) -> (u8, Option<Box<Record>>) {
    let (first, second) = lines();
    let job = Job { cell: cell(), cores: 1, peak_seconds: 0.0, trace_steps: 0, turns: None };
    let jobs =
        job.rank_jobs(&Hosts::of_names(["a", "a"]), Some(("127.0.0.1".into(), free_port().unwrap(), String::new())));
    let record = Box::new(Record::new("abc", "key", "name", Outcome::measured()));
    first.say(&Order::Run { number: 1, jobs, record });
    drop(first);
    follow(&second, stop)
}

#[test]
fn rank_1_has_the_record_of_a_cell_whose_rank_0_is_lost() {
    let stop = StopFlags::default();
    raise(&stop, false);
    let (code, record) = followed(&stop);
    let record = record.expect("a record");
    assert_eq!((code, record.outcome.status, record.id.as_str()), (5, Status::Failed, "abc"));
    let reason = &record.outcome.reason;
    assert!(
        reason.starts_with("the launch has lost a process: rank 0 on ") && reason.contains("rank 1 wrote"),
        "{reason}"
    );
    assert!(record.unstated.get("tokens_per_second").is_some());
    let stop = StopFlags::default();
    raise(&stop, true);
    assert_eq!(followed(&stop), (130, None), "the user's wish");
    let (_, line) = lines();
    assert_eq!(follow(&line, &StopFlags::default()), (5, None), "no cell was under way");
}
