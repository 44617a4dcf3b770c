//! The threads of one device: a fixed number that share one task at a time.
//!
//! A task is a closure called once per thread index, so what a thread does depends on its index and never on timing.

mod sync;
mod team;

use crate::affinity::{Pinned, keep_to};
use std::any::Any;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;
use sync::Patience;
use team::Team;

/// Waiting with a core for each thread. What a rank does alone between two operations is mostly shorter than this; waking
/// a thread takes as long.
const AT_EASE: Patience = Patience { spin: Duration::from_micros(100), pauses: 0 };
/// Waiting where threads outnumber cores: whoever spins takes the core from one that works.
const CROWDED: Patience = Patience { spin: Duration::from_micros(2), pauses: 4 };

/// What all threads are to call, phase by phase; the pool keeps it only while [`Pool::phases`] waits.
#[derive(Clone, Copy)]
struct Task {
    call: *const (dyn Fn(usize, usize) + Sync),
    phases: usize,
}

// SAFETY: the closure is Sync, and `phases` keeps it alive until every worker is done with it.
unsafe impl Send for Task {}

/// What a panic carries.
type Panic = Box<dyn Any + Send>;

struct Shared {
    team: Team<Task>,
    threads: u32,
    patience: Patience,
    /// Touched only when a task panics.
    panic: Mutex<Option<Panic>>,
}

impl Shared {
    /// One thread's part of a task.
    ///
    /// # Safety
    /// The task's closure is alive.
    unsafe fn act(&self, task: Task, index: usize) -> Result<(), Panic> {
        for phase in 0..task.phases {
            if phase > 0 && !self.team.meet(self.threads, self.patience) {
                break;
            }
            // SAFETY: promised by the caller.
            let call = || unsafe { (*task.call)(phase, index) };
            catch_unwind(AssertUnwindSafe(call)).inspect_err(|_| self.team.leave())?;
        }
        Ok(())
    }
}

/// A fixed team of threads. The caller of [`Pool::run`] is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Held while a task runs: one at a time. Only callers of this pool meet here.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    /// The caller's core.
    leader: Option<usize>,
}

/// A worker that has a thread and no team yet: how many there will be is known when all have started.
struct Starting {
    thread: JoinHandle<()>,
    settled: Receiver<Result<(), (usize, io::Error)>>,
    shared: Sender<Arc<Shared>>,
}

impl Starting {
    fn spawn(index: usize, core: Option<usize>) -> io::Result<Starting> {
        let ((shared, given), (say, settled)) = (channel::<Arc<Shared>>(), channel());
        let life = move || {
            let kept = core.map_or(Ok(()), |core| keep_to(core).map_err(|error| (core, error)));
            if say.send(kept).is_ok()
                && let Ok(shared) = given.recv()
            {
                work(&shared, index);
            }
        };
        let thread = std::thread::Builder::new().name(format!("kernels-{index}")).spawn(life)?;
        Ok(Starting { thread, settled, shared })
    }
}

impl Pool {
    /// A team of `threads`, the caller included; fewer when the system refuses more threads.
    pub fn new(threads: usize) -> Pool {
        // Without cores to keep to nothing can fail.
        Pool::with(threads, 0, None).unwrap_or_else(|_| Pool::of(Vec::new(), AT_EASE))
    }

    /// As [`Pool::new`], with `beside` more threads on the same cores, and a core for each thread where given; the
    /// caller's is the first, where [`Pool::settle`] puts it. Where a worker cannot be kept on its core: which, and why.
    pub fn with(threads: usize, beside: usize, cores: Option<&[usize]>) -> Result<Pool, (usize, io::Error)> {
        let there = std::thread::available_parallelism().map_or(1, |n| n.get());
        let patience = if threads.saturating_add(beside) <= there { AT_EASE } else { CROWDED };
        let core = |index: usize| cores.and_then(|cores| cores.get(index)).copied();
        let mut starting = Vec::new();
        for index in 1..threads {
            match Starting::spawn(index, core(index)) {
                Ok(worker) => starting.push(worker),
                Err(_) => break,
            }
        }
        for worker in &starting {
            if let Ok(Err(failed)) = worker.settled.recv() {
                // The others go home when nothing is sent to them.
                return Err(failed);
            }
        }
        let mut pool = Pool::of(starting, patience);
        pool.leader = core(0);
        Ok(pool)
    }

    fn of(starting: Vec<Starting>, patience: Patience) -> Pool {
        let threads = starting.len() as u32 + 1;
        let shared = Arc::new(Shared { team: Team::new(), threads, patience, panic: Mutex::new(None) });
        let begin = |worker: Starting| {
            // A worker that waits takes it.
            let _ = worker.shared.send(shared.clone());
            worker.thread
        };
        let workers = starting.into_iter().map(begin).collect();
        Pool { shared, turn: Mutex::new(()), workers, leader: None }
    }

    /// Keeps the calling thread on the core that is meant for it, if one is, until the guard is dropped.
    pub fn settle(&self) -> Option<Pinned> {
        // Cores were tried when the workers started; one that is gone since costs speed, and nothing else.
        self.leader.and_then(|core| Pinned::to(core).ok())
    }

    /// Threads that share a task.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index)` for every thread index, and returns when all are done. A panic of any is passed on then.
    pub fn run(&self, task: impl Fn(usize) + Sync) {
        self.phases(1, |_, index| task(index));
    }

    /// Calls `task(phase, index)` for every thread index, phase after phase: no thread begins a phase before all have
    /// ended the one before and what they wrote is seen. One start for all phases, so that the step from one to the next
    /// costs less than a second [`Pool::run`]. A panic of any thread ends the task and is passed on.
    pub fn phases(&self, count: usize, task: impl Fn(usize, usize) + Sync) {
        let threads = self.threads();
        let alone = || (0..count).for_each(|phase| (0..threads).for_each(|index| task(phase, index)));
        if threads == 1 {
            return alone();
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another caller's task is running: do all parts here. Results depend on indices, not on who works.
            Err(TryLockError::WouldBlock) => return alone(),
        };
        let call: *const (dyn Fn(usize, usize) + Sync + '_) = &task;
        // SAFETY: only the lifetime changes. The closure outlives `finish`, after which no worker uses it.
        let call: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(call) };
        let (shared, task) = (&*self.shared, Task { call, phases: count });
        // SAFETY: the turn is ours, and whoever had it before has finished.
        let started = unsafe { shared.team.start(Some(task), shared.threads - 1) };
        // SAFETY: the closure is alive.
        let own = unsafe { shared.act(task, 0) };
        shared.team.finish(started, shared.patience);
        let panic = shared
            .team
            .is_broken()
            .then(|| {
                let workers = self.take_panic();
                own.err().or(workers)
            })
            .flatten();
        drop(turn);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// What a worker panicked with. Nothing is left for the next task.
    fn take_panic(&self) -> Option<Panic> {
        self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Splits `0..len` into one contiguous part per thread, cut at multiples of `grain`, and calls `part(index, range)`.
    pub fn split(&self, len: usize, grain: usize, part: impl Fn(usize, Range<usize>) + Sync) {
        let grains = len.div_ceil(grain);
        let each = grains.div_ceil(self.threads());
        if grains <= 1 {
            return if len > 0 {
                part(0, 0..len)
            };
        }
        self.run(|index| {
            let (start, end) = (index.saturating_mul(each * grain), (index + 1).saturating_mul(each * grain));
            if start < len {
                part(index, start..end.min(len));
            }
        });
    }

    /// Calls `job(thread, number)` once for every number below `count`. Threads take the next number when they are
    /// free, so a job's result must not depend on the thread.
    pub fn each(&self, count: usize, job: impl Fn(usize, usize) + Sync) {
        if count <= 1 {
            return (0..count).for_each(|number| job(0, number));
        }
        let next = AtomicUsize::new(0);
        self.run(|thread| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                job(thread, number);
            }
        });
    }

    /// As [`Pool::each`] for several lots of jobs, one after the other in one start: `job(lot, thread, number)` for every
    /// number below `counts[lot]`, and no job of a lot begins before all of the lot before have ended.
    #[allow(dead_code)] // for matrix products that pack first
    pub fn each_of<const LOTS: usize>(&self, counts: [usize; LOTS], job: impl Fn(usize, usize, usize) + Sync) {
        let next = [const { AtomicUsize::new(0) }; LOTS];
        self.phases(LOTS, |lot, thread| {
            loop {
                let number = next[lot].fetch_add(1, Ordering::Relaxed);
                if number >= counts[lot] {
                    break;
                }
                job(lot, thread, number);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nobody else has the pool, so no task is running.
        unsafe { self.shared.team.start(None, 0) };
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so there is nothing to pass on.
            let _ = worker.join();
        }
    }
}

/// A worker's life.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    while let Some(task) = shared.team.next(&mut seen, shared.patience) {
        // SAFETY: `phases` keeps the closure alive until this worker is done.
        if let Err(panic) = unsafe { shared.act(task, index) } {
            *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        shared.team.done();
    }
}

#[cfg(test)]
mod tests {
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
}
