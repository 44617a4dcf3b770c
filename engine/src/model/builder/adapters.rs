//! The tensors of adapters, named and shaped as PEFT has them.

use super::Builder;
use crate::config::{Linear, Method};
use crate::model::layers::{AdapterSpec, Factors, Magnitude, TensorSplit};
use crate::model::stored::FusedRows;
use crate::model::{FlatKind, FlatRange, Init, Stored, Unit, stream_of};

/// PEFT starts B at zero, so that a fresh adapter changes nothing.
const ZERO: Init = Init::Constant(0.0);

impl Builder<'_> {
    fn adapted(&self, which: Linear, method: Method) -> bool {
        let lora = self.cell.lora;
        lora.on() && lora.method == method && lora.targets.contains(&which)
    }

    /// The low-rank adapter of a layer that has a tensor of its own, and DoRA's magnitudes.
    pub(super) fn adapter(
        &self,
        unit: &mut Unit,
        module: &str,
        which: Linear,
        fused: Option<FusedRows>,
        weight: FlatRange,
        whole: [usize; 2],
    ) -> (Option<AdapterSpec>, Option<Magnitude>) {
        if fused.is_some() || !self.adapted(which, Method::Lora) {
            return (None, None);
        }
        let (cut, [out, input]) = self.cut(which, whole);
        let a = self.reducing(unit, module, cut, [whole[1], input]);
        let b = unit.push(FlatKind::Trainable, format!("{module}.lora_B.weight"), &[out, self.cell.lora.rank], ZERO);
        match cut {
            TensorSplit::Replicated => {}
            TensorSplit::ColumnParallel(_) => unit.cut_last(cut, whole[0]),
            // Each rank reads its own part of the input, and so finds its own part of the gradient.
            TensorSplit::RowParallel(axis) => unit.partial_last(axis),
        }
        let adapter = self.low_rank(module, a, [(b, out)], cut, input);
        let magnitude = self.cell.lora.use_dora.then(|| {
            let name = format!("{module}.lora_magnitude_vector");
            Magnitude { m: unit.push(FlatKind::Trainable, name, &[out], Init::NormsOf(weight)) }
        });
        (Some(adapter), magnitude)
    }

    /// The low-rank adapter of the tensor that holds queries, keys and values.
    pub(super) fn qkv_adapter(
        &self,
        unit: &mut Unit,
        prefix: &str,
        outs: [usize; 3],
        input: usize,
    ) -> Option<AdapterSpec<3>> {
        let parts = Linear::QKV;
        let [(module, Some(q)), (_, Some(k)), (_, Some(v))] = parts.map(|part| self.module(part)) else { return None };
        if !self.adapted(Linear::QProj, Method::Lora) {
            return None;
        }
        let (module, rank) = (format!("{prefix}.{module}"), self.cell.lora.rank);
        let (cut, _) = self.cut(Linear::QProj, [outs[0], input]);
        let a = self.reducing(unit, &module, cut, [input; 2]);
        let mut expanding = |part: Linear, fused: FusedRows, whole: usize| {
            let name = format!("{module}.{}.lora_B.weight", part.name());
            let (cut, [out, _]) = self.cut(part, [whole, input]);
            let b = unit.push(FlatKind::Trainable, name, &[out, rank], ZERO);
            unit.cut_last(cut, whole);
            unit.store_last(Some(Stored::part(format!("{module}.lora_B.weight"), fused, &[rank])));
            (b, out)
        };
        let b = [expanding(parts[0], q, outs[0]), expanding(parts[1], k, outs[1]), expanding(parts[2], v, outs[2])];
        Some(self.low_rank(&module, a, b, cut, input))
    }

    /// A of a layer with so many inputs, in all and here. PEFT draws it with Kaiming's uniform bound for sqrt(5), whose deviation is
    /// sqrt(1/(3 input)).
    fn reducing(&self, unit: &mut Unit, module: &str, cut: TensorSplit, [whole, input]: [usize; 2]) -> FlatRange {
        let spread = Init::Normal((1.0 / (3.0 * whole as f64)).sqrt());
        let name = format!("{module}.lora_A.weight");
        let a = unit.push(FlatKind::Trainable, name, &[self.cell.lora.rank, input], spread);
        match cut {
            TensorSplit::Replicated => {}
            // Each rank has its own part of the output.
            TensorSplit::ColumnParallel(axis) => unit.partial_last(axis),
            TensorSplit::RowParallel(_) => unit.cut_last(cut, whole),
        }
        a
    }

    fn low_rank<const N: usize>(
        &self,
        module: &str,
        a: FlatRange,
        b: [(FlatRange, usize); N],
        cut: TensorSplit,
        input: usize,
    ) -> AdapterSpec<N> {
        let lora = self.cell.lora;
        let (scale, dropout) = (lora.scale() as f32, lora.dropout);
        // The name of PEFT's module, which has no tensor.
        let stream = stream_of(&format!("{module}.lora_dropout"));
        AdapterSpec { a, b, cut, input, rank: lora.rank, scale, dropout, stream }
    }

    /// IA3's factors of a layer. The parts of a fused tensor have their own where they are on the output, and share those
    /// on the input.
    pub(super) fn factors(
        &self,
        unit: &mut Unit,
        module: &str,
        which: Linear,
        fused: Option<FusedRows>,
        whole: [usize; 2],
    ) -> Option<Factors> {
        if !self.adapted(which, Method::Ia3) {
            return None;
        }
        let (name, feedforward) = (format!("{module}.ia3_l"), self.cell.lora.feedforward.contains(&which));
        if let Some(shared) = unit.tensors.iter().find(|tensor| feedforward && tensor.name == name) {
            return Some(Factors { l: shared.place, feedforward });
        }
        let (cut, [out, input]) = self.cut(which, whole);
        let (own, shape) = match fused {
            Some(_) if !feedforward => (format!("{module}.{}.ia3_l", which.name()), [out, 1]),
            _ if feedforward => (name.clone(), [1, input]),
            _ => (name.clone(), [out, 1]),
        };
        let l = unit.push(FlatKind::Trainable, own, &shape, Init::Constant(1.0));
        match (cut, feedforward) {
            (TensorSplit::Replicated, _) => {}
            (TensorSplit::ColumnParallel(_), false) => unit.cut_last(cut, whole[0]),
            (TensorSplit::RowParallel(_), true) => unit.cut_last(cut, whole[1]),
            // Each rank finds the part of the gradient that comes through its own rows.
            (TensorSplit::ColumnParallel(axis), true) => unit.partial_last(axis),
            // Refused by the planner.
            (TensorSplit::RowParallel(_), false) => {}
        }
        if let (Some(fused), false) = (fused, feedforward) {
            unit.store_last(Some(Stored::part(name, fused, &[1])));
        }
        Some(Factors { l, feedforward })
    }
}
