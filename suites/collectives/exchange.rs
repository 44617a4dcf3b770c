//! What ranks tell each other beside the collectives they measure: numbers and short texts, through the communicator
//! itself, so that no other channel is needed.

use super::CollectiveError;
use zbench_collectives::Communicator;
use zbench_kernels::{Arena, Category, DType};

/// Bytes of a text that others get to see.
const TEXT_BYTES: usize = 192;

/// All ranks of a world, talking.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    comm: &'a dyn Communicator,
    arena: &'a Arena,
}

impl<'a> Exchange<'a> {
    /// Over this communicator, with buffers of this arena.
    pub fn new(comm: &'a dyn Communicator, arena: &'a Arena) -> Exchange<'a> {
        Exchange { comm, arena }
    }

    /// What every rank gives, in rank order; all give as many numbers. The bits arrive as they are.
    pub fn numbers(&self, own: &[f64]) -> Result<Vec<Vec<f64>>, CollectiveError> {
        let alloc = |len| self.arena.alloc(Category::Workspace, DType::F64, len);
        let (mut send, mut recv) = (alloc(own.len())?, alloc(own.len() * self.comm.size())?);
        send.view_mut().as_slice_mut::<f64>()?.copy_from_slice(own);
        self.comm.all_gather(send.view(), recv.view_mut())?;
        let all = recv.view();
        Ok(all.as_slice::<f64>()?.chunks(own.len().max(1)).map(<[f64]>::to_vec).collect())
    }

    /// One number of every rank.
    pub fn number(&self, own: f64) -> Result<Vec<f64>, CollectiveError> {
        Ok(self.numbers(&[own])?.into_iter().flatten().collect())
    }

    /// Whether any rank says yes.
    pub fn any(&self, own: bool) -> Result<bool, CollectiveError> {
        Ok(self.number(f64::from(u8::from(own)))?.iter().any(|said| *said != 0.0))
    }

    /// A text of every rank; long ones are cut.
    pub fn texts(&self, own: &str) -> Result<Vec<String>, CollectiveError> {
        // Six bytes are a whole number that f64 holds exactly.
        let mut bytes = own.as_bytes()[..own.len().min(TEXT_BYTES)].to_vec();
        bytes.resize(TEXT_BYTES, 0);
        let pack = |six: &[u8]| six.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)) as f64;
        let packed: Vec<f64> = bytes.chunks(6).map(pack).collect();
        let unpack = |number: &f64| (*number as u64).to_le_bytes()[..6].to_vec();
        let text = |numbers: Vec<f64>| {
            let bytes: Vec<u8> = numbers.iter().flat_map(unpack).take_while(|byte| *byte != 0).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(self.numbers(&packed)?.into_iter().map(text).collect())
    }
}
