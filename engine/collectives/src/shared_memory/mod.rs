//! Ranks that share memory: threads of a process (`local`, `device`) and processes of a host (`shm`).

mod board;
mod drive;
mod local;
mod moves;
mod pending;
mod protocol;
mod shared;
mod shm;
mod space;

pub(crate) use board::EAGER_BYTES;
pub use local::group;
pub(crate) use pending::buffers;
pub use shared::Shared;
pub use shm::{Exchange, shm};

use zbench_kernels::threads::sync;
