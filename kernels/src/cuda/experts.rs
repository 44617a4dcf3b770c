//! A mixture of experts: routing, moving rows to their experts and back, and products in groups.

use super::{Cuda, supported};
use crate::op::{Combine, GroupedGemm, Op, Route, Slots};
use crate::{DType, ExpertKernels, Kernels, Result, View, ViewMut, check};

impl Cuda {
    fn run_route(&self, _: &Route, _: View<'_>, _: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("route"))
    }

    fn run_route_backward(&self, _: &Route, _: View<'_>, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("route_backward"))
    }

    fn run_dispatch(&self, _: &Slots, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("dispatch"))
    }

    fn run_combine(&self, _: &Combine, _: View<'_>, _: View<'_>, _: Option<View<'_>>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("combine"))
    }

    fn run_weigh(
        &self,
        _: &Slots,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Err(super::missing("weigh"))
    }
}

impl ExpertKernels for Cuda {
    fn route(&self, op: &Route, logits: View<'_>, weights: ViewMut<'_>, indices: ViewMut<'_>) -> Result<()> {
        supported("route", &[op.dtype])?;
        check::route(op, &logits, &weights, &indices)?;
        self.run_route(op, logits, weights, indices)
    }

    fn route_backward(
        &self,
        op: &Route,
        logits: View<'_>,
        indices: View<'_>,
        dweights: View<'_>,
        dlogits: ViewMut<'_>,
    ) -> Result<()> {
        supported("route_backward", &[op.dtype])?;
        check::route_backward_shapes(op, &logits, &indices, &dweights, &dlogits)?;
        self.run_route_backward(op, logits, indices, dweights, dlogits)
    }

    fn dispatch(&self, op: &Slots, indices: View<'_>, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        supported("dispatch", &[op.dtype])?;
        check::dispatch_shapes(op, &indices, &x, &y)?;
        self.run_dispatch(op, indices, x, y)
    }

    fn combine(
        &self,
        op: &Combine,
        indices: View<'_>,
        x: View<'_>,
        weights: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        supported("combine", &[op.slots.dtype])?;
        check::combine_shapes(op, &indices, &x, weights.as_ref(), &y)?;
        self.run_combine(op, indices, x, weights, y)
    }

    fn weigh(
        &self,
        op: &Slots,
        indices: View<'_>,
        weights: View<'_>,
        x: ViewMut<'_>,
        dx: ViewMut<'_>,
        dweights: ViewMut<'_>,
    ) -> Result<()> {
        supported("weigh", &[op.dtype])?;
        check::weigh_shapes(op, &indices, &weights, &x, &dx, &dweights)?;
        self.run_weigh(op, indices, weights, x, dx, dweights)
    }

    fn grouped_gemm(
        &self,
        op: &GroupedGemm,
        offsets: View<'_>,
        a: View<'_>,
        b: View<'_>,
        c: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        let name = "grouped_gemm";
        supported(name, &[op.a, op.b, op.c])?;
        check::grouped_gemm_shapes(op, &offsets, &a, &b, &c)?;
        check::operand(name, "workspace", &workspace, DType::F32, self.workspace(&Op::GroupedGemm(*op)))?;
        self.run_grouped_gemm(op, offsets, [a, b], c)
    }
}
