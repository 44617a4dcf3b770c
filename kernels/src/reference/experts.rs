//! A mixture of experts, plainly.

use super::values::{read, write};
use super::{Reference, floats};
use crate::op::*;
use crate::{DType, Element, ExpertKernels, Kernels, Result, View, ViewMut, check};

/// A row's experts, the best first, and the softmax over all of them or over those chosen: (expert, weight).
fn choose(op: &Route, logits: &[f64]) -> Vec<(usize, f64)> {
    let key = |e: usize| if logits[e].is_nan() { f64::INFINITY } else { logits[e] };
    let mut experts: Vec<usize> = (0..logits.len()).collect();
    // A stable sort leaves equal ones in the order of their numbers.
    experts.sort_by(|a, b| key(*b).partial_cmp(&key(*a)).unwrap_or(std::cmp::Ordering::Equal));
    let top = experts.first().map_or(0.0, |e| key(*e));
    let share = |e: usize| (key(e) - top).exp();
    let among = if op.normalised { &experts[..op.top] } else { &experts[..] };
    let sum: f64 = among.iter().map(|e| share(*e)).sum();
    experts[..op.top].iter().map(|e| (*e, share(*e) / sum)).collect()
}

/// To the nearest of `dtype` and back.
fn rounded(dtype: DType, values: Vec<f64>) -> Result<Vec<f64>> {
    fn through<T: Element + Default>(values: &[f64]) -> Result<Vec<f64>> {
        let mut narrow = vec![T::default(); values.len()];
        write(&mut ViewMut::of(&mut narrow), values)?;
        Ok(read(&View::of(&narrow), values.len()))
    }
    match dtype {
        DType::Bf16 => through::<half::bf16>(&values),
        DType::F16 => through::<half::f16>(&values),
        _ => Ok(values),
    }
}

impl ExpertKernels for Reference {
    fn route(&self, op: &Route, logits: View<'_>, mut weights: ViewMut<'_>, mut indices: ViewMut<'_>) -> Result<()> {
        floats("route", &[op.dtype])?;
        check::route(op, &logits, &weights, &indices)?;
        let logits = read(&logits, op.rows * op.experts);
        let chosen: Vec<_> =
            (0..op.rows).flat_map(|row| choose(op, &logits[row * op.experts..][..op.experts])).collect();
        let mut shares: Vec<f64> = chosen.iter().map(|(_, share)| *share).collect();
        if op.rounded {
            shares = rounded(op.dtype, shares)?;
        }
        write(&mut weights, &shares)?;
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_key(|choice| chosen[*choice].0);
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(slot, choice)| places[*choice] = slot);
        let offsets = (0..=op.experts).map(|e| chosen.iter().filter(|(id, _)| *id < e).count());
        let ids = chosen.iter().map(|(id, _)| *id);
        let all = ids.chain(order.iter().copied()).chain(places.iter().copied()).chain(offsets);
        indices.as_slice_mut::<u32>()?.iter_mut().zip(all).for_each(|(to, from)| *to = from as u32);
        Ok(())
    }

    fn route_backward(
        &self,
        op: &Route,
        logits: View<'_>,
        indices: View<'_>,
        dweights: View<'_>,
        mut dlogits: ViewMut<'_>,
    ) -> Result<()> {
        floats("route_backward", &[op.dtype])?;
        let routing = check::route_backward(op, &logits, &indices, &dweights, &dlogits)?;
        let (logits, dweights) = (read(&logits, op.rows * op.experts), read(&dweights, op.slots()));
        let mut out = vec![0.0; op.rows * op.experts];
        for row in 0..op.rows {
            let logits = &logits[row * op.experts..][..op.experts];
            let chosen: Vec<usize> = routing.ids[row * op.top..][..op.top].iter().map(|id| *id as usize).collect();
            let among: Vec<usize> = if op.normalised { chosen.clone() } else { (0..op.experts).collect() };
            let top = among.iter().map(|e| logits[*e]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = among.iter().map(|e| (logits[*e] - top).exp()).sum();
            let share = |e: usize| (logits[e] - top).exp() / sum;
            let gradient = |e: usize| chosen.iter().position(|c| *c == e).map_or(0.0, |j| dweights[row * op.top + j]);
            let mean: f64 = among.iter().map(|e| share(*e) * gradient(*e)).sum();
            among.iter().for_each(|e| out[row * op.experts + e] = share(*e) * (gradient(*e) - mean));
        }
        write(&mut dlogits, &out)
    }

    fn dispatch(&self, op: &Slots, indices: View<'_>, x: View<'_>, mut y: ViewMut<'_>) -> Result<()> {
        floats("dispatch", &[op.dtype])?;
        let routing = check::dispatch(op, &indices, &x, &y)?;
        let x = read(&x, op.rows * op.cols);
        let row = |choice: &u32| &x[*choice as usize / op.top * op.cols..][..op.cols];
        let rows: Vec<f64> = routing.order.iter().flat_map(row).copied().collect();
        write(&mut y, &rows)
    }

    fn combine(
        &self,
        op: &Combine,
        indices: View<'_>,
        x: View<'_>,
        weights: Option<View<'_>>,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        let Slots { rows, top, cols, dtype, .. } = op.slots;
        floats("combine", &[dtype])?;
        let routing = check::combine(op, &indices, &x, weights.as_ref(), &y)?;
        let x = read(&x, rows * top * cols);
        let weights = weights.map_or(vec![1.0; rows * top], |weights| read(&weights, rows * top));
        let mut sums = if op.accumulate { read(&y.as_view(), rows * cols) } else { vec![0.0; rows * cols] };
        for (choice, place) in routing.places.iter().enumerate() {
            for i in 0..cols {
                sums[choice / top * cols + i] += weights[choice] * x[*place as usize * cols + i];
            }
        }
        write(&mut y, &sums)
    }

    fn weigh(
        &self,
        op: &Slots,
        indices: View<'_>,
        weights: View<'_>,
        mut x: ViewMut<'_>,
        mut dx: ViewMut<'_>,
        mut dweights: ViewMut<'_>,
    ) -> Result<()> {
        floats("weigh", &[op.dtype])?;
        let routing = check::weigh(op, &indices, &weights, &x, &dx, &dweights)?;
        let (slots, cols) = (op.slots(), op.cols);
        let (mut xs, mut dxs) = (read(&x.as_view(), slots * cols), read(&dx.as_view(), slots * cols));
        let weights = read(&weights, slots);
        let mut dots = vec![0.0; slots];
        for (slot, choice) in routing.order.iter().enumerate() {
            let choice = *choice as usize;
            let (x, dx) = (&mut xs[slot * cols..][..cols], &mut dxs[slot * cols..][..cols]);
            dots[choice] = x.iter().zip(&*dx).map(|(x, dx)| x * dx).sum();
            x.iter_mut().chain(dx).for_each(|value| *value *= weights[choice]);
        }
        write(&mut dweights, &dots)?;
        write(&mut x, &xs)?;
        write(&mut dx, &dxs)
    }

    fn grouped_gemm(
        &self,
        op: &GroupedGemm,
        offsets: View<'_>,
        a: View<'_>,
        b: View<'_>,
        mut c: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        floats("grouped_gemm", &[op.a, op.b, op.c])?;
        let bounds = check::grouped_gemm(op, &offsets, &a, &b, &c)?;
        for (group, pair) in bounds.windows(2).enumerate() {
            let (gemm, [a_range, b_range, c_range]) = op.one(group, pair[0] as usize..pair[1] as usize);
            let none = ViewMut::of::<f64>(&mut []);
            self.gemm(&gemm, a.slice(a_range), b.slice(b_range), c.slice_mut(c_range), none)?;
        }
        Ok(())
    }
}
