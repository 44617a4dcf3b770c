//! Started calls over MPI: they go on while their rank computes, are matched by peer, group and order, and end with their group.

use crate::program::{Program, execute, filled};
use half::bf16;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use zbench_collectives::{CommError, Communicator, OwnedCall, Ticket};
use zbench_kernels::{Arena, Buffer, View, ViewMut};

/// 1 KiB and 16 MiB.
const LENGTHS: [usize; 2] = [256, 4 << 20];
/// Most calls of a group that may be under way.
const IN_FLIGHT: usize = 4096;
const PROGRAMS: u64 = 50;

/// What ranks tell each other beside their communicators: a signal is a file.
pub struct Signals {
    folder: PathBuf,
    /// Only a run that hangs takes so long.
    patience: Duration,
}

impl Signals {
    pub fn new(folder: &std::path::Path, patience: Duration) -> Signals {
        Signals { folder: folder.to_owned(), patience }
    }

    fn give(&self, name: &str) {
        std::fs::write(self.folder.join(name), "").unwrap();
    }

    /// "Computes", without a call, until all of these are given.
    fn compute_until(&self, names: &[String]) {
        let begin = Instant::now();
        while !names.iter().all(|name| self.folder.join(name).exists()) {
            assert!(begin.elapsed() < self.patience, "{names:?}: nothing moves while the rank computes");
            std::hint::spin_loop();
        }
    }
}

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 31) % 1009) as f32).collect()
}

fn slice(buffer: &Option<Buffer>) -> &[f32] {
    buffer.as_ref().unwrap().view().as_slice::<f32>().unwrap()
}

/// Whether this process has the thread, where the system tells.
fn has_thread() -> Option<bool> {
    let mut threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    Some(threads.any(|thread| std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "comm\n")))
}

/// All that a run of this many ranks can show.
pub fn all(comm: &dyn Communicator, signals: &Signals) {
    comm.barrier().unwrap();
    assert_ne!(has_thread(), Some(true), "without a started call");
    for len in LENGTHS {
        sends_while_its_rank_computes(comm, signals, len);
        receives_while_its_rank_computes(comm, signals, len);
        collectives_while_a_rank_computes(comm, signals, len);
        groups_in_opposite_orders(comm, len);
    }
    pairs_are_matched_by_peer_group_and_order(comm);
    limits_belong_to_groups(comm);
    assert_ne!(has_thread(), Some(false), "after started calls");
}

/// The receiver posts after the start has returned, and is done while the sender computes.
fn sends_while_its_rank_computes(comm: &dyn Communicator, signals: &Signals, len: usize) {
    let arena = Arena::host(Some(32 << 20)).unwrap();
    let [started, received] = ["started", "received"].map(|what| format!("send-{what}-{len}"));
    match comm.rank() {
        0 => {
            let ticket = comm.start(OwnedCall::send(filled(&arena, &numbers(len, 1)), 1)).unwrap();
            signals.give(&started);
            signals.compute_until(&[received]);
            assert!(slice(&comm.wait(ticket).unwrap().send) == numbers(len, 1));
        }
        1 => {
            signals.compute_until(&[started]);
            let mut buffer = vec![0f32; len];
            comm.recv(ViewMut::of(&mut buffer), 0).unwrap();
            signals.give(&received);
            assert!(buffer == numbers(len, 1));
        }
        _ => {}
    }
    comm.barrier().unwrap();
}

/// The sender, which is inside its call, is done while the receiver computes.
fn receives_while_its_rank_computes(comm: &dyn Communicator, signals: &Signals, len: usize) {
    let arena = Arena::host(Some(32 << 20)).unwrap();
    let [started, sent] = ["started", "sent"].map(|what| format!("receive-{what}-{len}"));
    match comm.rank() {
        0 => {
            signals.compute_until(&[started]);
            comm.send(View::of(&numbers(len, 2)), 1).unwrap();
            signals.give(&sent);
        }
        1 => {
            let ticket = comm.start(OwnedCall::recv(filled(&arena, &vec![0f32; len]), 0)).unwrap();
            signals.give(&started);
            signals.compute_until(&[sent]);
            let before = comm.wire_bytes();
            assert!(slice(&comm.wait(ticket).unwrap().recv) == numbers(len, 2));
            assert_eq!(comm.wire_bytes() - before, 4 * len as u64);
        }
        _ => {}
    }
    comm.barrier().unwrap();
}

/// Every kind that can be started among all, native and staged: rank 0 computes until the others have waited for theirs.
fn collectives_while_a_rank_computes(comm: &dyn Communicator, signals: &Signals, len: usize) {
    let arena = Arena::host(Some(512 << 20)).unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    let own = numbers(len, rank);
    let whole: Vec<f32> = (0..size).flat_map(|rank| numbers(len, rank)).collect();
    let zeros = |len: usize| filled(&arena, &vec![0f32; len]);
    let tickets = [
        OwnedCall::all_reduce(filled(&arena, &own)),
        OwnedCall::all_gather(filled(&arena, &own), zeros(len * size)),
        OwnedCall::reduce_scatter(filled(&arena, &whole), zeros(len), false),
        OwnedCall::reduce_scatter(filled(&arena, &whole), zeros(len), true),
        OwnedCall::reduce_scatter_in_place(filled(&arena, &whole)),
        OwnedCall::all_reduce(filled(&arena, &vec![bf16::ONE; len])),
    ]
    .map(|call| comm.start(call).unwrap());
    let waited = |rank| format!("collectives-waited-{len}-{rank}");
    if rank == 0 {
        signals.compute_until(&(1..size).map(waited).collect::<Vec<_>>());
    }
    let results = tickets.map(|ticket| comm.wait(ticket).unwrap().recv);
    signals.give(&waited(rank));
    let terms: Vec<Vec<f32>> = (0..size).map(|rank| numbers(len, rank)).collect();
    let sum: Vec<f32> = (0..len).map(|i| terms.iter().map(|term| term[i]).sum()).collect();
    let multiple: Vec<f32> = own.iter().map(|one| size as f32 * one).collect();
    assert!(slice(&results[0]) == sum);
    assert!(slice(&results[1]) == whole);
    assert!(slice(&results[2]) == multiple && slice(&results[3]) == multiple);
    assert!(slice(&results[4])[rank * len..(rank + 1) * len] == multiple);
    let ones = results[5].as_ref().unwrap().view();
    assert!(ones.as_slice::<bf16>().unwrap().iter().all(|one| one.to_f32() == size as f32));
    comm.barrier().unwrap();
}

/// What a rank waits for in one group goes on while others are inside a call of another.
fn groups_in_opposite_orders(comm: &dyn Communicator, len: usize) {
    let arena = Arena::host(Some(64 << 20)).unwrap();
    let groups = ["one", "two"].map(|name| comm.split(0, 0, name).unwrap());
    let order = if comm.rank() == 0 { [0, 1] } else { [1, 0] };
    let started = order.map(|group| {
        let buffer = filled(&arena, &numbers(len, 10 * group + comm.rank()));
        (group, groups[group].start(OwnedCall::all_reduce(buffer)).unwrap())
    });
    for (group, ticket) in started {
        let result = groups[group].wait(ticket).unwrap().recv;
        let terms: Vec<Vec<f32>> = (0..comm.size()).map(|rank| numbers(len, 10 * group + rank)).collect();
        assert!(
            slice(&result).iter().enumerate().all(|(i, sum)| *sum == terms.iter().map(|term| term[i]).sum::<f32>())
        );
    }
}

fn pairs_are_matched_by_peer_group_and_order(comm: &dyn Communicator) {
    let arena = Arena::host(Some(1 << 20)).unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    let groups = ["one", "two"].map(|name| comm.split(0, 0, name).unwrap());
    let others = || (0..size).filter(|other| *other != rank);
    let seed = |from: usize, to: usize, group: usize, turn: usize| 100 * from + 30 * to + 10 * group + turn;
    let mut sends: Vec<(usize, Ticket)> = Vec::new();
    let mut receives: Vec<(usize, usize, Ticket)> = Vec::new();
    for turn in 0..3 {
        // The groups take turns in one order where calls send, in the other where they receive.
        for (peer, group) in others().flat_map(|peer| [0, 1].map(|group| (peer, group))) {
            let call = OwnedCall::send(filled(&arena, &numbers(9, seed(rank, peer, group, turn))), peer);
            sends.push((group, groups[group].start(call).unwrap()));
        }
        for (peer, group) in others().flat_map(|peer| [1, 0].map(|group| (peer, group))) {
            let call = OwnedCall::recv(filled(&arena, &[0f32; 9]), peer);
            receives.push((group, seed(peer, rank, group, turn), groups[group].start(call).unwrap()));
        }
    }
    while let Some((group, seed, ticket)) = receives.pop() {
        assert_eq!(slice(&groups[group].wait(ticket).unwrap().recv), numbers(9, seed));
    }
    sends.into_iter().for_each(|(group, ticket)| drop(groups[group].wait(ticket).unwrap()));
}

/// As many calls as a group may have under way: another group may have its own.
fn limits_belong_to_groups(comm: &dyn Communicator) {
    let arena = Arena::host(Some(1 << 20)).unwrap();
    let other = comm.split(0, 0, "other").unwrap();
    let rank = comm.rank();
    if rank < 2 {
        let call = || match rank {
            0 => OwnedCall::recv(filled(&arena, &[0f32]), 1),
            _ => OwnedCall::send(filled(&arena, &[1f32]), 0),
        };
        let tickets: Vec<Ticket> = (0..IN_FLIGHT).map(|_| comm.start(call()).unwrap()).collect();
        let refused = comm.start(call()).unwrap_err();
        assert!(matches!(refused, CommError::Invalid { .. }), "{refused}");
        let one_more = other.start(call()).unwrap();
        other.wait(one_more).unwrap();
        tickets.into_iter().for_each(|ticket| drop(comm.wait(ticket).unwrap()));
    }
    comm.barrier().unwrap();
}

/// Random programs, each on as many of the ranks as it has.
pub fn programs(comm: &dyn Communicator) {
    for seed in 0..PROGRAMS {
        let program = Program::new(seed);
        let takes_part = comm.rank() < program.ranks;
        let part = comm.split(takes_part.into(), 0, "program").unwrap();
        if takes_part {
            execute(&*part, &Arena::host(Some(64 << 20)).unwrap(), &program);
        }
    }
}

/// Without a thread what was started goes on inside calls, whatever their groups.
pub fn threadless(comm: &dyn Communicator) {
    LENGTHS.into_iter().for_each(|len| groups_in_opposite_orders(comm, len));
    programs(comm);
    assert_ne!(has_thread(), Some(true));
}

/// Calls that wait for a rank that does not come end with its name; a group without it goes on.
pub fn absent(comm: &dyn Communicator, who: usize, long: Duration) {
    let arena = Arena::host(Some(64 << 20)).unwrap();
    let len = 1 << 20;
    let present = comm.split((comm.rank() == who).into(), 0, "present").unwrap();
    if comm.rank() == who {
        std::thread::sleep(long);
        std::mem::forget(present);
        return;
    }
    let begin = Instant::now();
    let sum = comm.start(OwnedCall::all_reduce(filled(&arena, &numbers(len, 1)))).unwrap();
    let receive = comm.start(OwnedCall::recv(filled(&arena, &numbers(len, 1)), who)).unwrap();
    let well = present.start(OwnedCall::all_reduce(filled(&arena, &numbers(len, 1)))).unwrap();
    let error = comm.wait(sum).unwrap_err();
    assert!(begin.elapsed() < long, "{:?}", begin.elapsed());
    assert!(matches!(&error, CommError::Stalled { missing, .. } if missing == &[who]), "{error}");
    // The group is at its end: its other calls have failed, too, and what is dropped ends nothing else.
    assert_eq!(comm.barrier().unwrap_err(), error);
    drop(receive);
    let doubled: Vec<f32> = numbers(len, 1).iter().map(|one| present.size() as f32 * one).collect();
    assert!(slice(&present.wait(well).unwrap().recv) == doubled);
    present.barrier().unwrap();
    std::mem::forget(present);
}

/// A ticket that is dropped ends the run.
pub fn abandons(comm: &dyn Communicator) {
    let arena = Arena::host(Some(1 << 20)).unwrap();
    let ticket = comm.start(OwnedCall::all_reduce(filled(&arena, &numbers(256, 1)))).unwrap();
    if comm.rank() == 1 {
        drop(ticket);
    }
    panic!("{:?} after a dropped ticket", comm.barrier());
}
