//! ZeRO-R's partitioned activations (Rajbhandari et al. (2020), section 6.1): of a block's input `[tokens, hidden]`, which tensor ranks all
//! have, each keeps a share of the tokens.

use super::{POINTWISE, Saved};
use crate::compute::error::Result;
use crate::mesh::Axis;
use crate::model::layers::context::LayerContext;
use zbench_collectives::Communicator;

impl Saved {
    /// Keeps of the block's input the tokens of this rank's own share, where tensor ranks have all of it (ZeRO-R).
    pub fn share_input(&mut self, ex: &LayerContext<'_>) -> Result<()> {
        let (Some(group), Some(input)) = (ex.group(Axis::Tensor), &mut self.input) else { return Ok(()) };
        let len = input.len() / group.size();
        let mut own = ex.activation(len)?;
        ex.cast(POINTWISE, input.slice(group.rank() * len..(group.rank() + 1) * len), own.view_mut())?;
        *input = own;
        Ok(())
    }

    /// Gathers a shared input of `hidden` elements for each token.
    pub fn restore_input(&mut self, ex: &LayerContext<'_>, hidden: usize) -> Result<()> {
        let (Some(group), Some(input)) = (ex.group(Axis::Tensor), &mut self.input) else { return Ok(()) };
        let len = ex.own_tokens().len() * hidden;
        if input.len() == len {
            return Ok(());
        }
        let mut all = ex.activation(len)?;
        ex.waiting(|| group.all_gather(input.view(), all.view_mut()))?;
        *input = all;
        Ok(())
    }
}
