//! The threads of one device: a fixed number that share one task at a time.
//!
//! A task is a closure called once per thread index, so what a thread does depends on its index and never on timing.

#![allow(unsafe_code, reason = "a task is lent to threads that outlive its borrow; its caller waits for them")]

mod team;
#[cfg(test)]
mod tests;

use crate::threads::affinity::{Pinned, keep_to};
use crate::threads::sync::{self, SpinPolicy};
use std::any::Any;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;
use team::Team;

/// Waiting with a core for each thread. What a rank does alone between two operations is mostly shorter than this; waking
/// a thread takes as long.
const DEDICATED: SpinPolicy = SpinPolicy { rounds: 64, spin: Duration::from_micros(100), yields: 0 };
/// Waiting where threads outnumber cores: whoever spins takes the core from one that works.
const OVERSUBSCRIBED: SpinPolicy = SpinPolicy { rounds: 64, spin: Duration::from_micros(2), yields: 4 };

/// Most threads of a pool, and of all pools of a process that know of each other. A thread takes about four of a process's
/// mappings, of which Linux gives 65,530; where a thread that has started gets none for its signals' stack, the standard
/// library ends the process.
pub const MOST_THREADS: usize = 8192;

/// What all threads are to call, phase by phase; the pool keeps it only while [`Pool::phases`] waits.
#[derive(Clone, Copy)]
struct Task {
    call: *const (dyn Fn(usize, usize) + Sync),
    phases: usize,
}

// SAFETY: the closure is Sync, and `phases` keeps it alive until every worker is done with it.
unsafe impl Send for Task {}

type Panic = Box<dyn Any + Send>;

struct Shared {
    team: Team<Task>,
    threads: u32,
    spin: SpinPolicy,
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
            if phase > 0 && !self.team.meet(self.threads, self.spin) {
                break;
            }
            // SAFETY: promised by the caller.
            let call = || unsafe { (*task.call)(phase, index) };
            catch_unwind(AssertUnwindSafe(call)).inspect_err(|_| self.team.leave())?;
        }
        Ok(())
    }
}

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// From now on the calling thread does all parts of its tasks itself, for good. Its tasks are then never in the way of those that
/// have the team.
pub fn work_alone() {
    ALONE.set(true);
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
        Pool::with(threads, 0, None).unwrap_or_else(|_| Pool::of(Vec::new(), DEDICATED))
    }

    /// As [`Pool::new`], with `beside` more threads on the same cores, and a core for each thread where given; the
    /// caller's is the first, where [`Pool::pin_thread`] puts it. Where a worker cannot be kept on its core: which, and why.
    pub fn with(threads: usize, beside: usize, cores: Option<&[usize]>) -> Result<Pool, (usize, io::Error)> {
        let there = std::thread::available_parallelism().map_or(1, |n| n.get());
        let spin = if threads.saturating_add(beside) <= there { DEDICATED } else { OVERSUBSCRIBED };
        let core = |index: usize| cores.and_then(|cores| cores.get(index)).copied();
        let mut starting = Vec::new();
        for index in 1..threads.min(MOST_THREADS) {
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
        let mut pool = Pool::of(starting, spin);
        pool.leader = core(0);
        Ok(pool)
    }

    fn of(starting: Vec<Starting>, spin: SpinPolicy) -> Pool {
        let threads = starting.len() as u32 + 1;
        let shared = Arc::new(Shared { team: Team::new(), threads, spin, panic: Mutex::new(None) });
        let begin = |worker: Starting| {
            // A worker that waits takes it.
            let _ = worker.shared.send(shared.clone());
            worker.thread
        };
        let workers = starting.into_iter().map(begin).collect();
        Pool { shared, turn: Mutex::new(()), workers, leader: None }
    }

    /// Keeps the calling thread on the core that is meant for it, if one is, until the guard is dropped.
    pub fn pin_thread(&self) -> Option<Pinned> {
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
        if threads == 1 || ALONE.get() {
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
        shared.team.finish(started, shared.spin);
        let workers = if shared.team.is_broken() { self.take_panic() } else { None };
        drop(turn);
        if let Some(panic) = own.err().or(workers) {
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
        self.each_of([count], |_, thread, number| job(thread, number));
    }

    /// Calls `job(worker, number)` once for every number below `count`. `worker` is what `begin(thread)` made for the thread. Each
    /// thread has a run of neighbouring numbers. A thread that has finished its run takes numbers from the others' runs.
    pub fn each_in_runs<W>(&self, count: usize, begin: impl Fn(usize) -> W + Sync, job: impl Fn(&mut W, usize) + Sync) {
        /// Most runs. Where there are more threads, they share runs.
        const RUNS: usize = 64;
        if count == 0 {
            return;
        }
        if count == 1 {
            return job(&mut begin(0), 0);
        }
        let runs = self.threads().min(RUNS).min(count);
        let start = |run: usize| run * count / runs;
        let taken = [const { AtomicUsize::new(0) }; RUNS];
        self.run(|thread| {
            let mut worker = begin(thread);
            for run in (0..runs).map(|turn| (thread + turn) % runs) {
                loop {
                    let number = start(run) + taken[run].fetch_add(1, Ordering::Relaxed);
                    if number >= start(run + 1) {
                        break;
                    }
                    job(&mut worker, number);
                }
            }
        });
    }

    /// As [`Pool::each`] for several lots of jobs, one after the other in one start: `job(lot, thread, number)` for every
    /// number below `counts[lot]`, and no job of a lot begins before all of the lot before have ended.
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

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    while let Some(task) = shared.team.next(&mut seen, shared.spin) {
        // SAFETY: `phases` keeps the closure alive until this worker is done.
        if let Err(panic) = unsafe { shared.act(task, index) } {
            *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        shared.team.done();
    }
}
