//! A thread that carries on the calls a rank has started, while the rank computes.
//!
//! Whoever holds the lock of a rank's state drives all of the rank's calls, whatever their group. A rank that is inside a call does
//! so itself, which costs no change of threads. The thread is made with the first started call, and drives only while the rank
//! is elsewhere and something that it has started is under way.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zbench_kernels::threads::affinity::Cores;
use zbench_kernels::work_alone;

/// What drives calls.
pub(crate) trait Engine: Send + Sync + 'static {
    /// The calls under way, and all that driving them changes.
    type State: Send;

    /// Whether calls are under way that nobody waits for.
    fn is_busy(&self, state: &Self::State) -> bool;

    /// Does what can be done now; false when every call waits for other ranks. An error ends the world (over MPI the group) and is kept
    /// for whoever waits for the call.
    fn advance(&self, state: &mut Self::State) -> bool;

    /// Sleeps until there may be something to do, or for a short while. Nobody holds the state meanwhile: the guard is dropped first.
    fn idle(&self, state: MutexGuard<'_, Self::State>);

    /// Ends [`Engine::idle`] early.
    fn wake(&self);

    /// The thread is unwinding from a panic: nothing that is under way will be complete.
    fn panicked(&self);
}

/// A rank's engine with its state, and the thread.
pub(crate) struct Driver<E: Engine> {
    core: Arc<Core<E>>,
    /// Made once; none where the system refused it.
    thread: Mutex<Option<Option<JoinHandle<()>>>>,
}

struct Core<E: Engine> {
    engine: E,
    state: Mutex<E::State>,
    /// Calls of the rank that are inside, or about to be.
    callers: AtomicU32,
    /// Told when the last caller leaves something under way.
    news: Condvar,
    stop: AtomicBool,
    /// The thread is in [`Engine::idle`], or about to be. Changes under the lock.
    napping: AtomicBool,
    /// The cores of the thread: those of whoever made the driver, before it kept to one.
    cores: Option<Cores>,
}

/// The state, held by a rank that is inside a call.
pub(crate) struct Inside<'a, E: Engine> {
    core: &'a Core<E>,
    /// Gone only while it is dropped, or others have it.
    state: Option<MutexGuard<'a, E::State>>,
}

impl<E: Engine> Driver<E> {
    pub(crate) fn new(engine: E, state: E::State) -> Driver<E> {
        let core = Core {
            engine,
            state: Mutex::new(state),
            callers: AtomicU32::new(0),
            news: Condvar::new(),
            stop: AtomicBool::new(false),
            napping: AtomicBool::new(false),
            cores: Cores::of_this_thread().ok(),
        };
        Driver { core: Arc::new(core), thread: Mutex::default() }
    }

    pub(crate) fn engine(&self) -> &E {
        &self.core.engine
    }

    /// Takes the state from the thread, which stops driving until the guard is dropped.
    pub(crate) fn enter(&self) -> Inside<'_, E> {
        self.core.callers.fetch_add(1, Ordering::Relaxed);
        Inside { core: &self.core, state: Some(self.core.lock()) }
    }

    /// Makes sure that the thread is there: a call has been started. Without a thread (the system may refuse one) calls go on
    /// whenever their rank is inside another.
    pub(crate) fn carry_on(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.get_or_insert_with(|| {
            let core = self.core.clone();
            std::thread::Builder::new().name("comm".into()).spawn(move || core.run()).ok()
        });
    }
}

impl<E: Engine> Drop for Driver<E> {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take().flatten();
        let Some(thread) = thread else { return };
        {
            let _state = self.core.lock();
            self.core.stop.store(true, Ordering::Relaxed);
            self.core.news.notify_all();
        }
        self.core.engine.wake();
        // A panic of it has ended the world, which is how others learn of it.
        let _ = thread.join();
    }
}

impl<E: Engine> Core<E> {
    fn lock(&self) -> MutexGuard<'_, E::State> {
        // A panic in the middle of a call ends the world, so nobody uses what the call left.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let _guard = PanicGuard(&self.engine);
        // The rank's own operations have the team of its kernels, and its first core.
        work_alone();
        if let Some(cores) = &self.cores {
            // Where the system refuses, the thread stays where its rank is.
            let _ = cores.keep();
        }
        let mut state = self.lock();
        while !self.stop.load(Ordering::Relaxed) {
            if self.callers.load(Ordering::Relaxed) > 0 || !self.engine.is_busy(&state) {
                state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if !self.engine.advance(&mut state) {
                self.napping.store(true, Ordering::Relaxed);
                self.engine.idle(state);
                state = self.lock();
                self.napping.store(false, Ordering::Relaxed);
            }
        }
    }
}

struct PanicGuard<'a, E: Engine>(&'a E);

impl<E: Engine> Drop for PanicGuard<'_, E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked();
        }
    }
}

impl<E: Engine> Deref for Inside<'_, E> {
    type Target = E::State;

    fn deref(&self) -> &E::State {
        self.state.as_ref().expect("nobody looks while others have it")
    }
}

impl<E: Engine> DerefMut for Inside<'_, E> {
    fn deref_mut(&mut self) -> &mut E::State {
        self.state.as_mut().expect("nobody looks while others have it")
    }
}

impl<E: Engine> Inside<'_, E> {
    /// Lets other callers have the state meanwhile. The thread still does not drive.
    #[cfg(feature = "mpi")]
    pub(crate) fn unlocked(&mut self, meanwhile: impl FnOnce()) {
        drop(self.state.take());
        meanwhile();
        self.state = Some(self.core.lock());
    }
}

impl<E: Engine> Drop for Inside<'_, E> {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        // Before the lock is free, so that the thread, which looks under the lock, is not told too early.
        let last = self.core.callers.fetch_sub(1, Ordering::Relaxed) == 1;
        let busy = last && self.core.engine.is_busy(&state);
        let napping = self.core.napping.load(Ordering::Relaxed);
        drop(state);
        match (busy, napping) {
            (false, _) => {}
            (true, false) => self.core.news.notify_one(),
            // What it waits for is not all that there is any more.
            (true, true) => self.core.engine.wake(),
        }
    }
}
