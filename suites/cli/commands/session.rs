//! Launch state of the commands that train: a single process, or one of several.

use crate::Global;
use anyhow::Result;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info};
use zbench_config::Hosts;
use zbench_engine::config::{Backend, STALL};
use zbench_host::{exit, machine};
use zbench_launch::{ControlChannel, LaunchError, Options, World};
use zbench_predict::planned::{Decision, Planned};
use zbench_reports::Notebook;
use zbench_reports::record::{Record, Source, Status};
use zbench_runner::launched::{Leader, follow};
use zbench_runner::rescue;
use zbench_runner::trace::Timelines;

/// How a command runs its cells.
pub struct Session {
    /// Set on rank 0 of a launch of several processes.
    pub leader: Option<Leader>,
    /// That launch.
    pub world: Option<World>,
    /// The hosts of its processes.
    pub hosts: Option<Arc<Hosts>>,
    /// Timelines of the ranks, if they are traced.
    pub trace: Option<Timelines>,
}

/// Runs `command` here, or on rank 0 of a launch while the other processes follow it.
/// A process that does not come within `timeout` ends it.
pub fn with(global: &Global, timeout: Duration, command: impl FnOnce(&mut Session) -> Result<u8>) -> Result<u8> {
    let env = |name: &str| std::env::var(name).ok();
    let world = zbench_launch::detect(&env)?;
    match &world {
        Some(world) => info!(target: "zbench::launch", "{}", world.describe()),
        None => debug!(target: "zbench::launch", "no launcher started this process"),
    }
    if let (None, false, Some(words)) = (&world, global.quiet, zbench_launch::inherited(&env)) {
        zbench_host::say!("{words}");
    }
    // A launch of one process is an ordinary run.
    let Some(world) = world.filter(|world| world.size > 1) else {
        return Session { leader: None, world: None, hosts: None, trace: None }.carry_out(command);
    };
    if world.rank == 0 && !global.quiet {
        zbench_host::say!("{}", world.describe());
    }
    let options = Options { timeout: timeout.min(STALL), stall: STALL, quiet: true, stop: None };
    let opened = zbench_launch::meet(&world, &options).and_then(|mut met| {
        let hosts = Hosts::meet(&mut met, &machine::core_numbers(), machine::quota())?;
        Ok((Arc::new(hosts), ControlChannel::open(met)?))
    });
    let (hosts, line) = match opened {
        Ok(opened) => opened,
        // The launch was correct, and another process failed.
        Err(error @ (LaunchError::Rendezvous(_) | LaunchError::System { .. })) => {
            zbench_host::say!("error: rank {}: {error}", world.rank);
            return Ok(exit::FAILED);
        }
        Err(error) => return Err(error.into()),
    };
    if world.rank > 0 {
        let (code, record) = follow(&line, &super::signals::stop_flags()?);
        if let Some(record) = record
            && let Err(error) = keep(global, &record)
        {
            zbench_host::say!("error: {error:#}");
            rescue::keep_and_say(&record);
        }
        return Ok(code);
    }
    machine::set_cores_of_launch(hosts.cores(0));
    let leader = Some(Leader::new(world.clone(), line, hosts.clone()));
    let mut session = Session { leader, world: Some(world), hosts: Some(hosts), trace: None };
    let result = session.carry_out(command);
    if let Some(leader) = session.leader {
        leader.finish(*result.as_ref().unwrap_or(&exit::USAGE));
    }
    result
}

/// Keeps the record of a cell whose rank 0 was lost, unless rank 0 did before.
fn keep(global: &Global, record: &Record) -> Result<()> {
    let notebook = Notebook::open(&global.notebook)?;
    if !notebook.index()?.records.iter().any(|known| known.id == record.id) {
        notebook.append(record)?;
        zbench_host::say!("{} is kept as failed: {}", record.id, record.outcome.reason);
    }
    Ok(())
}

impl Session {
    fn carry_out(&mut self, command: impl FnOnce(&mut Session) -> Result<u8>) -> Result<u8> {
        let result = command(self);
        if let Some(complaint) = self.trace.as_mut().and_then(Timelines::complaint) {
            zbench_host::say!("warning: {complaint}");
        }
        result
    }

    /// The timelines, if `--trace` is given. The first call creates the file, before anything runs.
    pub fn timelines(&mut self, global: &Global) -> Result<Option<&mut Timelines>> {
        if self.trace.is_none() {
            self.trace = super::timelines(global)?;
        }
        Ok(self.trace.as_mut())
    }

    /// Marks the cells that cannot run in this launch, or in this build.
    pub fn judge(&self, cells: &mut [Planned]) {
        for planned in cells {
            let reason = planned.cell().and_then(|cell| self.why_not(cell.parallel.backend, cell.parallel.ranks));
            if let (Decision::Run, Some((reason, source))) = (&planned.decision, reason) {
                planned.decision = Decision::Record { status: Status::Skipped, reason, source };
            }
        }
    }

    fn why_not(&self, backend: Backend, ranks: usize) -> Option<(String, Source)> {
        let Some(world) = &self.world else {
            let absent = backend == Backend::Mpi && !cfg!(feature = "mpi");
            let reason =
                || format!("parallel.backend = \"mpi\" is not in this build; {}", zbench_launch::HOW_TO_HAVE_MPI);
            return absent.then(|| (reason(), Source::Host));
        };
        let (source, size) = (world.source.name(), world.size);
        let reason = match backend {
            Backend::Local | Backend::Device => format!(
                "parallel.backend = \"{}\" runs all ranks as threads of one process, and {source} started {size} \
                 processes; leave it out (then it is \"shm\" or \"tcp\", \"nccl\" for GPUs), or start zbench by itself",
                backend.name()
            ),
            Backend::Mpi => format!(
                "parallel.backend = \"mpi\" has a mpirun of its own for each cell, and {source} started {size} processes; \
                 start zbench by itself, or leave parallel.backend out"
            ),
            Backend::Shm | Backend::Tcp | Backend::Nccl if ranks != size => {
                format!("parallel.ranks = {ranks}, and {source} started {size} processes; make them equal")
            }
            Backend::Shm | Backend::Tcp | Backend::Nccl => return None,
        };
        Some((reason, Source::Plan))
    }
}
