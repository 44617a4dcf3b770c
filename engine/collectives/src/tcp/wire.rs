//! How the thread of a rank drives its mesh, and sleeps.

use super::drive::NAP;
use super::mesh::Mesh;
use crate::progress::Engine;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) struct Wire {
    /// Ends the thread's sleep. Without one (the system may refuse it) the sleep ends by itself.
    bell: Option<OwnedFd>,
    /// The thread has panicked, and could not tell the others.
    pub broken: AtomicBool,
}

impl Wire {
    pub(super) fn new() -> Wire {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok();
        Wire { bell, broken: AtomicBool::new(false) }
    }
}

impl Engine for Wire {
    type State = Mesh;

    fn is_busy(&self, mesh: &Mesh) -> bool {
        mesh.is_busy()
    }

    fn advance(&self, mesh: &mut Mesh) -> bool {
        if std::mem::take(&mut mesh.asleep) {
            mesh.look_around();
        }
        mesh.turn()
    }

    fn idle(&self, mut mesh: MutexGuard<'_, Mesh>) {
        let watched = mesh.watched();
        mesh.asleep = true;
        drop(mesh);
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|one| PollFd::new(&one.socket, one.flags)).collect();
        fds.extend(self.bell.as_ref().map(|bell| PollFd::new(bell, PollFlags::IN)));
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Timespec::try_from(NAP).ok().as_ref());
        if let Some(bell) = &self.bell {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
    }

    fn wake(&self) {
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    fn panicked(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}
