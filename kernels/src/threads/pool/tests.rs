use super::*;

#[test]
fn every_index_runs_once() {
    for threads in 1..=4 {
        let pool = Pool::new(threads);
        for _ in 0..200 {
            let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            pool.run(|index| {
                calls[index].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn parts_cover_everything_once_and_start_on_grains() {
    let pool = Pool::new(3);
    for len in [0, 1, 15, 16, 17, 47, 48, 49, 1000] {
        let hits: Vec<AtomicUsize> = (0..len).map(|_| AtomicUsize::new(0)).collect();
        pool.split(len, 16, |_, range| {
            assert_eq!(range.start % 16, 0);
            range.for_each(|i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
        });
        assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        let jobs = Mutex::new(vec![0; len]);
        pool.each(len, |_, number| jobs.lock().unwrap()[number] += 1);
        assert!(jobs.into_inner().unwrap().iter().all(|n| *n == 1));
    }
}

#[test]
fn a_panic_on_any_thread_reaches_the_caller_and_the_pool_goes_on() {
    let pool = Pool::new(3);
    for bad in 0..3 {
        let run = || pool.run(|index| assert_ne!(index, bad, "thread {index} fails"));
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains(&format!("thread {bad} fails")));
        let sum = AtomicUsize::new(0);
        pool.run(|index| {
            sum.fetch_add(index + 1, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 6);
    }
}

#[test]
fn a_task_inside_a_task_runs_in_place() {
    let pool = Pool::new(2);
    let sum = AtomicUsize::new(0);
    pool.run(|_| {
        pool.run(|index| {
            sum.fetch_add(index + 1, Ordering::Relaxed);
        })
    });
    assert_eq!(sum.into_inner(), 6);
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(2);
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let hits = AtomicUsize::new(0);
        pool.run(|_| {
            hits.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(hits.into_inner(), 2);
    }
}

#[test]
fn no_phase_begins_before_the_one_before_has_ended() {
    for threads in [1, 2, 3, 5] {
        let pool = Pool::new(threads);
        for round in 0..200 {
            let done = AtomicUsize::new(0);
            pool.phases(4, |phase, index| {
                let seen = done.load(Ordering::Relaxed);
                assert!((phase * threads..(phase + 1) * threads).contains(&seen), "{seen} in phase {phase}");
                if round % 50 == 0 && index == phase % threads {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 4 * threads);
        }
    }
}

#[test]
fn lots_follow_each_other_and_every_job_is_done_once() {
    let pool = Pool::new(3);
    for counts in [[0, 5, 1], [7, 0, 9], [1, 1, 40]] {
        let done = AtomicUsize::new(0);
        let jobs: Vec<_> = (0..counts.iter().sum()).map(|_| AtomicUsize::new(0)).collect();
        pool.each_of(counts, |lot, _, number| {
            let before: usize = counts[..lot].iter().sum();
            assert!(done.fetch_add(1, Ordering::Relaxed) >= before);
            jobs[before + number].fetch_add(1, Ordering::Relaxed);
        });
        assert!(jobs.iter().all(|job| job.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn jobs_of_runs_are_done_once_by_workers_of_one_thread_each() {
    for threads in [1, 3, 70] {
        let pool = Pool::new(threads);
        for count in [0, 1, 2, 5, 64, 300] {
            let (begun, jobs) = (AtomicUsize::new(0), (0..count).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
            let begin = |thread: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                (thread, 0)
            };
            pool.each_in_runs(count, begin, |(thread, done), number| {
                assert!(*thread < threads);
                *done += 1;
                assert!(*done <= count);
                jobs[number].fetch_add(1, Ordering::Relaxed);
            });
            assert!(jobs.iter().all(|job| job.load(Ordering::Relaxed) == 1), "{threads} threads, {count} jobs");
            assert!(begun.into_inner() <= threads);
        }
        // A task inside a task does all runs on its own thread.
        let sum = AtomicUsize::new(0);
        pool.run(|_| {
            pool.each_in_runs(
                10,
                |_| (),
                |(), number| {
                    sum.fetch_add(number, Ordering::Relaxed);
                },
            );
        });
        assert_eq!(sum.into_inner(), 45 * threads);
        let fails = || pool.each_in_runs(9, |_| (), |(), number| assert_ne!(number, 7, "number 7 fails"));
        assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
    }
}

#[test]
fn a_panic_in_a_phase_leaves_nobody_waiting() {
    let pool = Pool::new(3);
    for (bad, phase) in [(0, 0), (1, 0), (2, 1), (0, 1), (1, 2), (2, 2)] {
        let run = || pool.phases(3, |p, index| assert_ne!((index, p), (bad, phase), "thread {index} fails"));
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains(&format!("thread {bad} fails")));
        let sum = AtomicUsize::new(0);
        pool.phases(2, |p, index| {
            sum.fetch_add(10 * p + index, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 36);
    }
}

#[test]
fn phases_inside_a_task_run_in_place() {
    let pool = Pool::new(2);
    let sum = AtomicUsize::new(0);
    pool.run(|_| {
        let own = AtomicUsize::new(0);
        pool.phases(2, |phase, index| assert_eq!(own.fetch_add(1, Ordering::Relaxed), 2 * phase + index));
        sum.fetch_add(own.into_inner(), Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 8);
}

#[test]
fn callers_that_come_at_the_same_time_all_get_their_work_done() {
    let (pool, sum) = (Pool::new(2), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..500 {
                    pool.phases(2, |_, index| {
                        sum.fetch_add(index + 1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 3 * 500 * 6);
}
