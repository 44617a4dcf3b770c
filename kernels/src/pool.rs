//! The threads of one device: a fixed number that share one task at a time.
//!
//! A task is a closure called once per thread index, so what a thread does depends on its index and never on timing.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Rounds of waiting by spinning, about 20 microseconds, before a thread sleeps. Longer would take cores from the
/// other ranks of a process.
const SPINS: u32 = 500;

/// What all threads are to call; the pool keeps it only while [`Pool::run`] waits.
#[derive(Clone, Copy)]
struct Task(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is Sync, and `run` keeps it alive until every worker is done with it.
unsafe impl Send for Task {}

#[derive(Default)]
struct State {
    task: Option<Task>,
    stop: bool,
    panic: Option<Box<dyn Any + Send>>,
}

struct Shared {
    state: Mutex<State>,
    /// Counts tasks; workers watch it for a new one. Written only under the state's lock.
    generation: AtomicUsize,
    /// Workers still busy with the task.
    busy: AtomicUsize,
    begin: Condvar,
    end: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fixed team of threads. The caller of [`Pool::run`] is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Held while a task runs: one at a time.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A team of `threads`, the caller included; fewer when the system refuses more threads.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            generation: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            begin: Condvar::new(),
            end: Condvar::new(),
        });
        let start = |index| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("kernels-{index}")).spawn(move || work(&shared, index)).ok()
        };
        let workers = (1..threads).map_while(start).collect();
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// Threads that share a task.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index)` for every thread index, and returns when all are done. A panic of any is passed on then.
    pub fn run(&self, task: impl Fn(usize) + Sync) {
        if self.workers.is_empty() {
            return task(0);
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another caller's task is running: do all parts here. Results depend on indices, not on who works.
            Err(std::sync::TryLockError::WouldBlock) => return (0..self.threads()).for_each(task),
        };
        self.start(&task);
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        let others = self.wait();
        drop(turn);
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
    }

    fn start<'a>(&self, task: &'a (dyn Fn(usize) + Sync + 'a)) {
        let task: *const (dyn Fn(usize) + Sync + 'a) = task;
        // SAFETY: only the lifetime changes. `run` waits for all workers before the closure goes out of scope.
        let task =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + 'a), *const (dyn Fn(usize) + Sync)>(task) };
        let mut state = self.shared.state();
        state.task = Some(Task(task));
        self.shared.busy.store(self.workers.len(), Ordering::Relaxed);
        self.shared.generation.fetch_add(1, Ordering::Release);
        drop(state);
        self.shared.begin.notify_all();
    }

    /// Waits for the workers; gives what one of them panicked with.
    fn wait(&self) -> Option<Box<dyn Any + Send>> {
        let done = || self.shared.busy.load(Ordering::Acquire) == 0;
        spin_until(done);
        let mut state = self.shared.state();
        while !done() {
            state = self.shared.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.task = None;
        state.panic.take()
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
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stop = true;
        self.shared.generation.fetch_add(1, Ordering::Release);
        drop(state);
        self.shared.begin.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so there is nothing to pass on.
            let _ = worker.join();
        }
    }
}

/// A worker's life.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        spin_until(|| shared.generation.load(Ordering::Acquire) != seen);
        let mut state = shared.state();
        while shared.generation.load(Ordering::Acquire) == seen {
            state = shared.begin.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        seen = shared.generation.load(Ordering::Acquire);
        let (stop, task) = (state.stop, state.task);
        drop(state);
        let (false, Some(task)) = (stop, task) else { return };
        // SAFETY: `run` keeps the closure alive until `busy` is 0, which this worker has yet to let happen.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*task.0)(index) }));
        if let Err(panic) = result {
            shared.state().panic = Some(panic);
        }
        if shared.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock, so that a caller about to sleep does not miss it.
            let _state = shared.state();
            shared.end.notify_one();
        }
    }
}

fn spin_until(ready: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if ready() {
            return;
        }
        std::hint::spin_loop();
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
}
