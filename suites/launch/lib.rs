//! How ranks become processes: what a launcher (torchrun, srun, mpirun) says of this process, processes of our own, and
//! the group they form. The same code serves `run`, `grid` and `allreduce`.

use zbench_collectives::{CommError, RendezvousError};

mod connect;
mod control_channel;
mod detect;
mod launcher;
mod slurm;
mod spawn;

pub use connect::{Choice, HOW_TO_HAVE_MPI, Options, connect, connect_gpus, meet};
pub use control_channel::{ControlChannel, Silence};
pub use detect::{Source, World, consulted, detect, inherited};
pub use slurm::{expand_nodes, expand_tasks};
pub use spawn::{
    Exit, Io, RankExit, Ranks, Start, Streams, become_follower, follow_parent, free_port, loopback, signal_name, spawn,
};
pub use spawn::{fresh_token, is_ignored};

/// Why a launch cannot be.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// One half of what a launcher sets.
    #[error("{present} is set and {missing} is not: {source_name} sets both. {advice}")]
    Partial {
        /// The variable that is there, with its value.
        present: String,
        /// The one that is not.
        missing: String,
        /// Whose variables they are.
        source_name: &'static str,
        /// What to do.
        advice: String,
    },
    /// A variable that holds something else.
    #[error("{variable}={value} is not {wanted}; correct it, or unset it if no launcher started this process")]
    Value {
        /// The variable.
        variable: String,
        /// What it holds.
        value: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// Two launchers say different things of this process.
    #[error(
        "two launchers disagree on this process: {first}, but {second}; unset the variables of the one that did not start it"
    )]
    Disagree {
        /// What the first says.
        first: String,
        /// What the second says.
        second: String,
    },
    /// A file with the secret of a launch that others can read, or that cannot be read.
    #[error("ZBENCH_TOKEN_FILE={path}: {reason}")]
    TokenFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A step over several components of a heterogeneous job, of which SLURM counts one component alone.
    #[error(
        "SLURM_PROCID={rank} counts the tasks of all components of a heterogeneous step, and {size_variable}={size} those of \
         one; start it with srun --mpi=pmi2, which states all, or set RANK, WORLD_SIZE and MASTER_ADDR for all ranks"
    )]
    Heterogeneous {
        /// Rank over all components.
        rank: usize,
        /// The variable with the tasks of one component.
        size_variable: &'static str,
        /// Tasks of that component.
        size: usize,
    },
    /// A node list that cannot be read.
    #[error("{text}: {reason}")]
    Nodes {
        /// The list.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Nobody says where the ranks meet.
    #[error(
        "{source_name} does not say where its ranks meet, and not all {size} run on this host; set MASTER_ADDR to the host \
         of rank 0 and MASTER_PORT to a free port there, for all ranks, or use the backend mpi"
    )]
    NoAddress {
        /// Who started them.
        source_name: &'static str,
        /// Ranks in all.
        size: usize,
    },
    /// The ranks did not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// They met and could not talk.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The group is another than the launcher's.
    #[error(
        "the ranks have formed a world in which this is rank {} of {}, but {source_name} started it as rank {} of {}; \
         one of them is misled, so nothing is measured",
        formed.0, formed.1, launched.0, launched.1
    )]
    Formed {
        /// Rank and size of the group.
        formed: (usize, usize),
        /// Rank and size by the launcher.
        launched: (usize, usize),
        /// Who started them.
        source_name: &'static str,
    },
    /// This program was built without a backend.
    #[error("the backend {backend} is not in this build; {how}")]
    NotBuilt {
        /// Which.
        backend: &'static str,
        /// How to have it.
        how: &'static str,
    },
    /// A process or what it needs could not be had.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl LaunchError {
    /// The error of a system call; `what` names what it was for.
    pub fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LaunchError {
        let what = what.into();
        |source| LaunchError::System { what, source }
    }
}
