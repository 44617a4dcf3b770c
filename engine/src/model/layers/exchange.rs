//! What ranks that share a block's experts exchange: which experts tokens go to, and the rows themselves.
//!
//! Rows travel in equal parts, as many to every rank as even routing gives. So a plan knows their bytes; a run has to wait for an
//! exchange with a count for each rank, and refuses.

use super::context::LayerContext;
use super::experts::{Arrived, Experts, Routing, TERM};
use crate::compute::error::{Result, StepError};
use crate::mesh::Axis;
use zbench_collectives::{Communicator, Metered};
use zbench_kernels::{Buffer, Category, Combine, DType, Op, Route};

impl Experts {
    /// The ranks that share the experts; `None` where this one has all of them.
    fn group<'a>(&self, ex: &LayerContext<'a>) -> Result<Option<&'a Metered>> {
        let group = ex.group(Axis::Expert).filter(|_| self.ranks > 1);
        if group.is_some() && ex.recorder.is_none() {
            let reason = "ranks that share experts exchange as many rows as were routed, which is planned and not run";
            return Err(StepError::Input(reason.into()));
        }
        Ok(group)
    }

    /// Exchanges equal parts of a buffer, one for each rank.
    pub(super) fn exchange(&self, ex: &LayerContext<'_>, buffer: Buffer) -> Result<Buffer> {
        let Some(group) = self.group(ex)? else { return Ok(buffer) };
        let mut arrived = ex.alloc(Category::Activations, buffer.dtype(), buffer.len())?;
        group.all_to_all(buffer.view(), arrived.view_mut())?;
        Ok(arrived)
    }

    /// Tells every rank how many rows come to each of its experts, and what their weights are.
    pub(super) fn exchange_choices(
        &self,
        ex: &LayerContext<'_>,
        route: &Route,
        weights: &Buffer,
    ) -> Result<Option<Arrived>> {
        let Some(group) = self.group(ex)? else { return Ok(None) };
        let counts = || ex.alloc(Category::Workspace, DType::U32, self.count);
        let (own, mut all) = (counts()?, counts()?);
        group.all_to_all(own.view(), all.view_mut())?;
        let arrived = self.arrived_op(route.rows, ex.compute);
        let indices = ex.alloc(Category::Activations, DType::U32, arrived.indices_len())?;
        let mut there = ex.statistic(weights.len())?;
        group.all_to_all(weights.view(), there.view_mut())?;
        Ok(Some(Arrived { indices, weights: there }))
    }

    /// Rows to the ranks of their experts, and there in the order of the experts.
    pub(super) fn send_rows(
        &self,
        ex: &LayerContext<'_>,
        routing: &Routing,
        cols: usize,
        rows: Buffer,
    ) -> Result<Buffer> {
        let Some(arrived) = &routing.arrived else { return Ok(rows) };
        let rows = self.exchange(ex, rows)?;
        let mut sorted = ex.activation(rows.len())?;
        let op = Op::Dispatch(self.arrived_slots(ex.batch.tokens(), cols, ex.compute));
        ex.run(TERM, &op, &[arrived.indices.view(), rows.view()], &mut [sorted.view_mut()])?;
        Ok(sorted)
    }

    /// Rows back to the ranks of their tokens, in the order in which they were sent.
    pub(super) fn return_rows(
        &self,
        ex: &LayerContext<'_>,
        routing: &Routing,
        cols: usize,
        rows: Buffer,
    ) -> Result<Buffer> {
        let Some(arrived) = &routing.arrived else { return Ok(rows) };
        let mut unsorted = ex.activation(rows.len())?;
        let slots = self.arrived_slots(ex.batch.tokens(), cols, ex.compute);
        let op = Op::Combine(Combine { slots, weighted: false, accumulate: false });
        ex.run(TERM, &op, &[arrived.indices.view(), rows.view()], &mut [unsorted.view_mut()])?;
        drop(rows);
        self.exchange(ex, unsorted)
    }
}
