//! Where elements of stored tensors come from: their files, host memory, or rank 0. Whoever fills asks for slices of them and
//! does not see the difference.

use super::account::Account;
use crate::checkpoint::weights::{Checkpoint, CheckpointError};
use crate::compute::error::{Result, StepError};
use crate::config::Loading;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use zbench_collectives::Communicator;
use zbench_kernels::ViewMut;

/// The rank that reads where one reads for all.
const ROOT: usize = 0;

/// Bytes that are broadcast at a time.
const PIECE_BYTES: usize = 4 << 20;

/// How many bytes the root reads between two barriers.
const MEETING_BYTES: usize = 256 << 20;

/// One rank's access to a checkpoint.
pub(super) struct Stock<'a> {
    checkpoint: &'a Checkpoint,
    account: &'a Account,
    way: Way,
    root: bool,
    /// Tensors that were received and not freed yet.
    brought: BTreeSet<String>,
    buffer: RefCell<Vec<u8>>,
}

enum Way {
    /// A slice is read when it is asked for.
    Files,
    /// All tensors are here, as they are stored.
    Memory(Tensors),
    /// Tensors come from the root when they are wanted, and are here as long as they are. The root has all of them.
    Wire(Tensors),
}

type Tensors = BTreeMap<String, Vec<u8>>;

impl<'a> Stock<'a> {
    /// Opens a checkpoint in the way that `loading` says; the account counts what is held.
    pub(super) fn open(
        checkpoint: &'a Checkpoint,
        loading: Loading,
        comm: &dyn Communicator,
        account: &'a Account,
    ) -> Result<Stock<'a>> {
        let root = comm.rank() == ROOT;
        let read = |name: &str| {
            let bytes = checkpoint.read_stored(name).map_err(refused)?;
            account.takes(bytes.len() as u64);
            account.reads(bytes.len());
            Ok(bytes)
        };
        let way = match loading {
            Loading::Sliced => Way::Files,
            Loading::Everywhere => {
                let all = checkpoint.names().map(|name| Ok((name.into(), read(name)?)));
                Way::Memory(all.collect::<Result<Tensors>>()?)
            }
            Loading::Broadcast => Way::Wire(all_on_root(checkpoint, comm, &read)?),
        };
        Ok(Stock { checkpoint, account, way, root, brought: BTreeSet::new(), buffer: RefCell::new(Vec::new()) })
    }

    /// Whether [`Stock::bring`] must be called before a tensor is read.
    pub(super) fn is_wire(&self) -> bool {
        matches!(self.way, Way::Wire(_))
    }

    /// Makes a tensor available. A collective call where tensors come from the root.
    pub(super) fn bring(&mut self, name: &str, comm: &dyn Communicator) -> Result<()> {
        let Way::Wire(tensors) = &mut self.way else { return Ok(()) };
        let (root, account) = (self.root, self.account);
        // The root has every tensor and keeps count with the others of those that are brought.
        if comm.size() == 1 || !self.brought.insert(name.into()) {
            return Ok(());
        }
        let len = self.checkpoint.tensor(name).map_or(0, |info| info.bytes());
        let mut piece = vec![0i8; PIECE_BYTES.min(len)];
        let _held = account.holds::<i8>(piece.len());
        let mut held = match root {
            true => tensors.remove(name).unwrap_or_default(),
            false => self.checkpoint.room(name, len).map_err(refused)?,
        };
        if !root {
            account.takes(len as u64);
        }
        for start in (0..len).step_by(PIECE_BYTES) {
            let range = start..(start + PIECE_BYTES).min(len);
            let piece = &mut piece[..range.len()];
            if root {
                piece.iter_mut().zip(&held[range]).for_each(|(to, from)| *to = *from as i8);
                comm.broadcast(ViewMut::of(piece), ROOT)?;
            } else {
                comm.broadcast(ViewMut::of(piece), ROOT)?;
                held.extend(piece.iter().map(|byte| *byte as u8));
                account.receives(piece.len());
            }
        }
        tensors.insert(name.into(), held);
        Ok(())
    }

    /// Frees a tensor that was brought. The root keeps all that it has read until the end.
    pub(super) fn give_back(&mut self, name: &str) {
        self.brought.remove(name);
        if let (Way::Wire(tensors), false) = (&mut self.way, self.root)
            && let Some(bytes) = tensors.remove(name)
        {
            self.account.gives(bytes.len() as u64);
        }
    }

    /// Elements of a tensor, in f32.
    pub(super) fn read(&self, name: &str, elements: Range<usize>, dst: &mut [f32]) -> Result<(), CheckpointError> {
        match &self.way {
            Way::Files => {
                let mut buffer = self.buffer.borrow_mut();
                let before = buffer.len();
                self.checkpoint.read(name, elements, dst, &mut buffer)?;
                self.account.takes((buffer.len() - before) as u64);
                let width = self.checkpoint.tensor(name).map_or(0, |info| info.dtype.bitsize() / 8);
                self.account.reads(dst.len() * width);
                Ok(())
            }
            Way::Memory(tensors) | Way::Wire(tensors) => {
                let held = tensors.get(name).map_or(&[][..], Vec::as_slice);
                self.checkpoint.decode(name, held, elements, dst)
            }
        }
    }
}

impl Drop for Stock<'_> {
    fn drop(&mut self) {
        let held = match &self.way {
            Way::Files => 0,
            Way::Memory(tensors) | Way::Wire(tensors) => tensors.values().map(Vec::len).sum(),
        };
        self.account.gives((held + self.buffer.borrow().len()) as u64);
    }
}

/// Every tensor of the files, on the root; nothing elsewhere. The ranks meet while it reads, so that nobody takes a long
/// reading for a rank that hangs.
fn all_on_root(
    checkpoint: &Checkpoint,
    comm: &dyn Communicator,
    read: &dyn Fn(&str) -> Result<Vec<u8>>,
) -> Result<Tensors> {
    let (mut tensors, mut since) = (Tensors::new(), 0);
    for name in checkpoint.names() {
        if comm.rank() == ROOT {
            tensors.insert(name.into(), read(name)?);
        }
        since += checkpoint.tensor(name).map_or(0, |info| info.bytes());
        if since >= MEETING_BYTES {
            comm.barrier()?;
            since = 0;
        }
    }
    Ok(tensors)
}

pub(super) fn refused(error: CheckpointError) -> StepError {
    StepError::Input(error.to_string())
}
