//! The kernels of a mixture of experts, beside [`Kernels`](crate::Kernels), whose rules hold here too.

use crate::op::{Combine, GroupedGemm, Route, Slots};
use crate::{Result, View, ViewMut};

/// What a device does for a mixture of experts. `indices` are [`Route::indices_len`] elements of u32 that `route` wrote;
/// every kernel checks them before it follows them.
pub trait ExpertKernels {
    /// See [`Route`]: `logits [rows,experts]` to `weights [rows,top]` and `indices`.
    fn route(&self, op: &Route, logits: View<'_>, weights: ViewMut<'_>, indices: ViewMut<'_>) -> Result<()>;

    /// Writes `dlogits [rows,experts]` from the gradient of the weights; the weights are made again from the logits.
    fn route_backward(
        &self,
        op: &Route,
        logits: View<'_>,
        indices: View<'_>,
        dweights: View<'_>,
        dlogits: ViewMut<'_>,
    ) -> Result<()>;

    /// `y[slot] = x[token of the slot]`: `x [rows,cols]`, `y [slots,cols]`.
    fn dispatch(&self, op: &Slots, indices: View<'_>, x: View<'_>, y: ViewMut<'_>) -> Result<()>;

    /// See [`Combine`]: `x [slots,cols]`, `weights [rows,top]` if there are any, `y [rows,cols]`.
    fn combine(
        &self,
        op: &Combine,
        indices: View<'_>,
        x: View<'_>,
        weights: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()>;

    /// The backward of weights that stand before a layer's last product, whose input is `x [slots,cols]` and has the
    /// gradient `dx` without them: `dweights[choice] = x[slot] . dx[slot]`, then `x[slot]` and `dx[slot]` are multiplied by
    /// the weight.
    fn weigh(
        &self,
        op: &Slots,
        indices: View<'_>,
        weights: View<'_>,
        x: ViewMut<'_>,
        dx: ViewMut<'_>,
        dweights: ViewMut<'_>,
    ) -> Result<()>;

    /// See [`GroupedGemm`]; group `g` has rows `offsets[g]..offsets[g + 1]`.
    fn grouped_gemm(
        &self,
        op: &GroupedGemm,
        offsets: View<'_>,
        a: View<'_>,
        b: View<'_>,
        c: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()>;
}
