//! How a group ends: every rank hears of it, and of the first cause.

use crate::comm::harness::{BACKENDS, Backend, PATIENCE, attempt, run, values};
use crate::comm::tree::Mood;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zbench_collectives::{CommError, Communicator, Null, OwnedCall};
use zbench_kernels::{Arena, Category, DType, View, ViewMut};
use zbench_test_tiers as tiers;

const SHORT: Duration = Duration::from_millis(200);

/// Too large for one round, so that no rank is done before all are.
fn reduce(comm: &dyn Communicator) -> Result<(), CommError> {
    comm.all_reduce(ViewMut::of(&mut vec![1f32; 5000]))
}

/// What `rank` ends with on every rank, at several sizes; `None` for a panic.
fn ends(stall: Duration, rank: impl Fn(Box<dyn Communicator>) -> CommError + Sync) -> Vec<Vec<Option<CommError>>> {
    let sizes = [2, 3, 8].into_iter();
    let cases = sizes.flat_map(|size| BACKENDS.map(|backend| (backend, size)));
    cases
        .map(|(backend, size)| {
            let results = attempt(backend, &vec![Mood::Well; size], stall, &rank);
            results.into_iter().map(Result::ok).collect()
        })
        .collect()
}

#[test]
fn one_rank_late() {
    run(Backend::MeteredLocal, 4, |comm| {
        for late in 0..4 {
            if comm.rank() == late {
                std::thread::sleep(Duration::from_millis(30));
            }
            reduce(comm).unwrap();
        }
    });
}

#[test]
fn an_abort_is_heard_by_all_and_the_first_reason_stays() {
    for results in ends(PATIENCE, |comm| {
        reduce(&*comm).unwrap();
        if comm.rank() == 1 {
            comm.abort("the disk is full");
            comm.abort("a second reason");
        }
        let error = comm.barrier().and_then(|()| reduce(&*comm)).unwrap_err();
        assert_eq!(reduce(&*comm).unwrap_err(), error, "and of every later call");
        assert_eq!(comm.split(0, 0, "late").map(|_| ()).unwrap_err(), error);
        error
    }) {
        let wanted = CommError::Aborted { group: "world".into(), rank: 1, reason: "the disk is full".into() };
        assert!(results.iter().all(|result| result.as_ref() == Some(&wanted)), "{results:?}");
    }
}

#[test]
fn a_panic_is_heard_by_all() {
    for results in ends(PATIENCE, |comm| {
        if comm.rank() == 0 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        reduce(&*comm).unwrap_err()
    }) {
        let wanted = CommError::Aborted { group: "world".into(), rank: 0, reason: "panicked".into() };
        assert_eq!(results[0], None);
        assert!(results[1..].iter().all(|result| result.as_ref() == Some(&wanted)), "{results:?}");
    }
}

#[test]
fn a_kernel_that_refuses_or_panics_ends_the_call_on_all_ranks() {
    for mood in [Mood::Refuses, Mood::Panics] {
        let moods = [Mood::Well, Mood::Well, mood, Mood::Well];
        let results = attempt(Backend::Local, &moods, PATIENCE, |comm| reduce(&*comm).unwrap_err());
        for (rank, result) in results.into_iter().enumerate() {
            match (rank, mood, result) {
                (2, Mood::Refuses, Ok(error)) => assert!(matches!(error, CommError::Kernel(_)), "{error}"),
                (2, Mood::Panics, result) => assert!(result.is_err()),
                (_, _, Ok(CommError::Aborted { rank, reason, .. })) => {
                    assert_eq!(rank, 2);
                    assert!(reason == "panicked" || reason.contains("kernels cannot"), "{reason}");
                }
                (_, _, result) => panic!("rank {rank}: {result:?}"),
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    for results in ends(PATIENCE, |comm| {
        reduce(&*comm).unwrap();
        if comm.rank() == 1 {
            return CommError::Invalid { operation: "none", reason: "left".into() };
        }
        reduce(&*comm).unwrap_err()
    }) {
        for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let Some(CommError::Aborted { rank: 1, reason, .. }) = result else { panic!("rank {rank}: {result:?}") };
            assert!(reason.contains("left") && reason.contains("all_reduce number 1"), "{reason}");
        }
    }
}

#[test]
fn a_rank_that_is_done_may_leave_before_the_others() {
    for _ in 0..100 {
        run(Backend::Local, 4, |comm| reduce(comm).unwrap());
    }
}

pub fn a_stall_names_who_is_missing_on_all_ranks() {
    let gone = AtomicUsize::new(0);
    for results in ends(SHORT, |comm| {
        reduce(&*comm).unwrap();
        // Comes when the others have given up.
        let begin = Instant::now();
        while comm.rank() == 1 && gone.load(Ordering::Acquire) < comm.size() - 1 && begin.elapsed() < PATIENCE {
            std::thread::sleep(SHORT / 10);
        }
        let mut all = vec![0u32; comm.size()];
        let error = comm.all_gather(View::of(&[1u32]), ViewMut::of(&mut all)).unwrap_err();
        match comm.rank() {
            1 => gone.store(0, Ordering::Release),
            _ => drop(gone.fetch_add(1, Ordering::Release)),
        }
        error
    }) {
        for result in results {
            let Some(CommError::Stalled { group, operation, sequence, missing, seconds }) = &result else {
                panic!("{result:?}")
            };
            assert_eq!(
                (group.as_str(), *operation, *sequence, missing.as_slice(), *seconds),
                ("world", "all_gather", 1, &[1][..], 1)
            );
        }
    }
}

#[test]
fn calls_that_do_not_match_name_both() {
    let results = attempt(Backend::Local, &[Mood::Well; 3], PATIENCE, |comm| match comm.rank() {
        2 => comm.barrier().unwrap_err(),
        _ => reduce(&*comm).unwrap_err(),
    });
    for (rank, result) in results.into_iter().enumerate() {
        let error = result.unwrap();
        let CommError::Mismatch { rank: other, ours, theirs, sequence: 0, .. } = &error else { panic!("{error}") };
        let (sum, barrier) = ("all_reduce of 5000 f32", "barrier");
        let wanted = if rank == 2 { (0, barrier, sum) } else { (2, sum, barrier) };
        assert_eq!((*other, ours.as_str(), theirs.as_str()), wanted);
    }
}

/// Every way in which two ranks can disagree about a call ends it on both; the ranks' memory is untouched.
#[test]
fn every_kind_of_mismatch_is_seen() {
    type Call = fn(&dyn Communicator, bool) -> Result<(), CommError>;
    let calls: [(&str, Call); 9] = [
        ("length", |c, odd| c.all_reduce(ViewMut::of(&mut vec![0f32; if odd { 8 } else { 9 }]))),
        ("type", |c, odd| match odd {
            true => c.all_reduce(ViewMut::of(&mut [0f32; 8])),
            false => c.all_reduce(ViewMut::of(&mut [0f64; 8])),
        }),
        ("root", |c, odd| c.broadcast(ViewMut::of(&mut [0f32; 8]), usize::from(odd))),
        ("accumulate", |c, odd| c.reduce_scatter(View::of(&[0f32; 8]), ViewMut::of(&mut [0f32; 4]), odd)),
        ("kind", |c, odd| match odd {
            true => c.all_gather(View::of(&[0f32; 4]), ViewMut::of(&mut [0f32; 8])),
            false => c.all_to_all(View::of(&[0f32; 8]), ViewMut::of(&mut [0f32; 8])),
        }),
        ("part", |c, odd| match odd {
            true => c.all_gather(View::of(&[0f32; 4]), ViewMut::of(&mut [0f32; 8])),
            false => c.all_gather(View::of(&[0f32; 5]), ViewMut::of(&mut [0f32; 10])),
        }),
        ("split", |c, odd| if odd { c.split(0, 0, "x").map(|_| ()) } else { c.barrier() }),
        ("pair's length", |c, _| match c.rank() {
            0 => c.send(View::of(&[0f32; 4]), 1),
            _ => c.recv(ViewMut::of(&mut [0f32; 5]), 0),
        }),
        ("pair's type", |c, _| match c.rank() {
            0 => c.send(View::of(&[0f32; 4]), 1),
            _ => c.recv(ViewMut::of(&mut [0u32; 4]), 0),
        }),
    ];
    for backend in BACKENDS {
        for (what, call) in calls {
            let results =
                attempt(backend, &[Mood::Well; 2], PATIENCE, |comm| call(&*comm, comm.rank() == 1).unwrap_err());
            for result in results {
                let error = result.unwrap();
                assert!(matches!(error, CommError::Mismatch { .. }), "{what}: {error}");
            }
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_alike_by_local_and_null() {
    let refuses = |comm: &dyn Communicator| {
        let invalid =
            |result: Result<(), CommError>| assert!(matches!(result, Err(CommError::Invalid { .. })), "{result:?}");
        let (size, rank) = (comm.size(), comm.rank());
        let (mut f, mut u) = (vec![0f32; 3 * size + 1], vec![0u32; size]);
        invalid(comm.reduce_scatter(View::of(&u), ViewMut::of(&mut [0u32]), true));
        invalid(comm.reduce_scatter(View::of(&u), ViewMut::of(&mut [0f32]), false));
        invalid(comm.reduce_scatter(View::of(&f), ViewMut::of(&mut [0f32; 3]), false));
        invalid(comm.reduce_scatter_in_place(ViewMut::of(&mut f)));
        invalid(comm.all_gather_in_place(ViewMut::of(&mut f)));
        invalid(comm.all_gather(View::of(&[0f32; 3]), ViewMut::of(&mut f)));
        invalid(comm.all_gather(View::of(&[0f32]), ViewMut::of(&mut u)));
        invalid(comm.all_to_all(View::of(&[0f32; 4]), ViewMut::of(&mut f)));
        invalid(comm.broadcast(ViewMut::of(&mut f), size));
        invalid(comm.send(View::of(&f), rank));
        invalid(comm.recv(ViewMut::of(&mut f), size + 5));
    };
    run(Backend::MeteredLocal, 3, |comm| {
        refuses(comm);
        reduce(comm).unwrap(); // and nothing was posted
    });
    refuses(&Null::new(1, 3));
}

#[test]
fn null_checks_shapes_and_moves_nothing() {
    let null = Null::new(2, 4);
    let mut all = [7f32; 8];
    null.all_gather(View::of(&[1f32; 2]), ViewMut::of(&mut all)).unwrap();
    null.all_reduce(ViewMut::of(&mut all)).unwrap();
    null.reduce_scatter(View::of(&[1f32; 8]), ViewMut::of(&mut all[..2]), true).unwrap();
    // Each of the three is of 32 bytes in four parts: 24 to gather, 24 and 24 to reduce and gather, 24 to scatter.
    assert_eq!((all, null.wire_bytes(), null.rank(), null.size()), ([7f32; 8], 96, 2, 4));
    let arena = Arena::host(Some(1 << 20)).unwrap();
    let buffer = arena.alloc(Category::Gradients, DType::F32, 8).unwrap();
    let ticket = null.start(OwnedCall::all_reduce(buffer)).unwrap();
    let buffer = null.wait(ticket).unwrap().recv.unwrap();
    assert_eq!(buffer.len(), 8);
    assert!(null.split(0, 0, "inner").is_err());
}

#[test]
fn an_abort_in_a_sub_group_ends_its_siblings_and_its_parent() {
    for backend in BACKENDS {
        let results = attempt(backend, &[Mood::Well; 4], PATIENCE, |comm| {
            let row = comm.split(comm.rank() / 2, 0, "row").unwrap();
            match comm.rank() {
                3 => {
                    row.abort("gave up");
                    row.barrier().unwrap_err()
                }
                2 => row.barrier().unwrap_err(),
                // Waits in the parent, and in the other row.
                1 => comm.barrier().unwrap_err(),
                _ => row.barrier().unwrap_err(),
            }
        });
        let wanted = CommError::Aborted { group: "world".into(), rank: 3, reason: "gave up".into() };
        assert!(results.into_iter().all(|result| result.unwrap() == wanted));
    }
}

#[test]
fn a_sender_without_a_receiver_stalls_and_one_whose_receiver_left_ends() {
    let send = |comm: &dyn Communicator| comm.send(View::of(&values::<f32>(0, 5)), 1).unwrap_err();
    let results = attempt(Backend::Local, &[Mood::Well; 2], SHORT, |comm| match comm.rank() {
        0 => send(&*comm),
        _ => {
            std::thread::sleep(3 * SHORT);
            comm.barrier().unwrap_err()
        }
    });
    for result in results {
        let error = result.unwrap();
        assert!(matches!(&error, CommError::Stalled { operation: "send", missing, .. } if missing == &[1]), "{error}");
    }
    let results = attempt(Backend::Local, &[Mood::Well; 2], PATIENCE, |comm| (comm.rank() == 0).then(|| send(&*comm)));
    let error = results.into_iter().next().unwrap().unwrap().unwrap();
    assert!(matches!(&error, CommError::Aborted { rank: 1, .. }), "{error}");
}

/// A rank that fails in the middle of a large collective takes its memory away at once; its peers must be out of it by
/// then. Under a race detector or with guard pages this shows; here the bytes are overwritten as soon as the call returns.
/// A started collective may be complete before its ticket is dropped: then only the next call fails.
#[test]
fn memory_is_not_read_after_a_failed_call_has_returned() {
    let mut failed = 0;
    let turns = tiers::cases("comm::failures::memory_is_not_read_after_a_failed_call_has_returned", [4, 20, 20]);
    for turn in 0..turns as usize {
        let results = attempt(Backend::Local, &[Mood::Well; 4], PATIENCE, |comm| {
            let arena = Arena::host(Some(64 << 20)).unwrap();
            let send = vec![1f32; 200_000];
            let mut recv = vec![0f32; 800_000];
            if comm.rank() == turn % 4 {
                let buffer = arena.alloc(Category::Gradients, DType::F32, 2_000_000).unwrap();
                let ticket = comm.start(OwnedCall::all_reduce(buffer));
                drop(ticket);
                return false;
            }
            let mut gradient = vec![1f32; 2_000_000];
            let first = comm.all_reduce(ViewMut::of(&mut gradient));
            gradient.fill(f32::NAN);
            drop(gradient);
            comm.all_gather(View::of(&send), ViewMut::of(&mut recv)).unwrap_err();
            first.is_err()
        });
        failed += results.into_iter().filter(|result| *result.as_ref().unwrap()).count();
    }
    assert!(failed > 0, "no collective was ended in its middle");
}
