//! A mixture of experts, plainly.

use super::values::{read, write};
use super::{DEVICE, gemm};
use zbench_kernels::internals::{check, operands};
use zbench_kernels::*;

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

pub(super) fn run(op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>]) -> Result<()> {
    let name = op.name();
    match (op, reads, writes) {
        (Op::Route(op), [logits], [weights, indices]) => route(op, logits, weights, indices),
        (Op::RouteBackward(op), [logits, indices, dweights], [dlogits]) => {
            let routing = check::indices(name, [op.rows, op.top, op.experts], indices)?;
            route_backward(op, logits, routing, dweights, dlogits)
        }
        (Op::Dispatch(op), [indices, x], [y]) => {
            let (routing, x) =
                (check::indices(name, [op.rows, op.top, op.experts], indices)?, read(x, op.rows * op.cols));
            let row = |choice: &u32| &x[*choice as usize / op.top * op.cols..][..op.cols];
            write(y, &routing.order.iter().flat_map(row).copied().collect::<Vec<f64>>())
        }
        (Op::Combine(op), [indices, x, weights @ ..], [y]) => {
            let Slots { rows, top, experts, cols, .. } = op.slots;
            let (routing, x) = (check::indices(name, [rows, top, experts], indices)?, read(x, rows * top * cols));
            let weights = weights.first().map_or(vec![1.0; rows * top], |weights| read(weights, rows * top));
            let mut sums = if op.accumulate { read(&y.as_view(), rows * cols) } else { vec![0.0; rows * cols] };
            for (choice, place) in routing.places.iter().enumerate() {
                for i in 0..cols {
                    sums[choice / top * cols + i] += weights[choice] * x[*place as usize * cols + i];
                }
            }
            write(y, &sums)
        }
        (Op::RouterWeightBackward(op), [indices, weights], [x, dx, dweights]) => {
            let routing = check::indices(name, [op.rows, op.top, op.experts], indices)?;
            weigh(op, routing, &read(weights, op.slots()), [x, dx, dweights])
        }
        (Op::GroupedGemm(op), [offsets, a, b], [c]) => {
            for (group, pair) in check::groups(op, offsets)?.windows(2).enumerate() {
                let (product, [a_range, b_range, c_range]) = op.one(group, pair[0] as usize..pair[1] as usize);
                gemm(&product, &a.slice(a_range), &b.slice(b_range), &mut c.slice_mut(c_range))?;
            }
            Ok(())
        }
        (op, ..) => Err(operands::not_run(DEVICE, op)),
    }
}

fn route(op: &Route, logits: &View, weights: &mut ViewMut, indices: &mut ViewMut) -> Result<()> {
    let logits = read(logits, op.rows * op.experts);
    let chosen: Vec<_> = (0..op.rows).flat_map(|row| choose(op, &logits[row * op.experts..][..op.experts])).collect();
    let mut shares: Vec<f64> = chosen.iter().map(|(_, share)| *share).collect();
    if op.rounded {
        shares = rounded(op.dtype, shares)?;
    }
    write(weights, &shares)?;
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
    op: &Route,
    logits: &View,
    routing: check::Routing,
    dweights: &View,
    dlogits: &mut ViewMut,
) -> Result<()> {
    let (logits, dweights) = (read(logits, op.rows * op.experts), read(dweights, op.slots()));
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
    write(dlogits, &out)
}

fn weigh(op: &Slots, routing: check::Routing, weights: &[f64], [x, dx, dweights]: [&mut ViewMut; 3]) -> Result<()> {
    let (slots, cols) = (op.slots(), op.cols);
    let (mut xs, mut dxs) = (read(&x.as_view(), slots * cols), read(&dx.as_view(), slots * cols));
    let mut dots = vec![0.0; slots];
    for (slot, choice) in routing.order.iter().enumerate() {
        let choice = *choice as usize;
        let (x, dx) = (&mut xs[slot * cols..][..cols], &mut dxs[slot * cols..][..cols]);
        dots[choice] = x.iter().zip(&*dx).map(|(x, dx)| x * dx).sum();
        x.iter_mut().chain(dx).for_each(|value| *value *= weights[choice]);
    }
    write(dweights, &dots)?;
    write(x, &xs)?;
    write(dx, &dxs)
}
