//! Which forms of weights can be kept for products.

use super::{Layer, Layout};
use crate::model::layers::prepacked::Form;
use crate::model::layers::{FlatKind, FlatRange, LinearSpec, product_forward, product_input};
use zbench_kernels::{DType, Gemm, Kernels};

impl Layout {
    /// The forms of weights that a unit's products read, in the type `compute`.
    pub fn forms(&self, unit: usize, kernels: &dyn Kernels, compute: DType) -> Vec<Form> {
        let of = |place: FlatRange, out: usize, input: usize, products: [Gemm; 2]| {
            debug_assert_eq!(place.len, out * input);
            products.map(|op| (place, op)).into_iter().filter(|(_, op)| kernels.prepacked_len(op).is_some())
        };
        let linear = |spec: &LinearSpec| {
            let LinearSpec { out, input, weight, .. } = *spec;
            let products =
                [product_forward(1, out, input, false, compute), product_input(1, out, input, false, compute)];
            // Records of few bits are unpacked for each product; DoRA multiplies by a matrix that it makes.
            let kept = weight.part != FlatKind::Quantised && spec.magnitude.is_none();
            kept.then(|| of(weight, out, input, products)).into_iter().flatten()
        };
        let mut forms = Vec::new();
        let own = self.layers.iter().find(|layer| layer.unit == unit);
        if let Some(block) = own.and_then(Layer::block) {
            // Stacks of experts are multiplied group by group.
            let mlp = [block.gate.as_ref(), Some(&block.up), Some(&block.down)].into_iter().flatten();
            let mlp = mlp.filter(|_| block.experts.is_none());
            forms.extend([&block.q, &block.k, &block.v, &block.o].into_iter().chain(mlp).flat_map(linear));
        }
        let head = self.layers.last().zip(self.head());
        if let Some((_, head)) = head.filter(|(layer, _)| layer.shares.unwrap_or(layer.unit) == unit) {
            let (out, input) = (head.local_vocab, head.hidden);
            forms.extend(of(
                head.matrix,
                out,
                input,
                [head.logits(1, compute), product_input(1, out, input, false, compute)],
            ));
        }
        forms
    }
}
