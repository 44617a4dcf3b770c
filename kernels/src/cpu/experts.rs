//! A mixture of experts on cores. Each thread takes whole rows, so that no sum depends on the number of threads.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::{LANES, exp, fma, fold, fold_rows, merge};
use super::matmul::Right;
use super::rows::{grain, shift};
use super::stream::{CHUNK, Shared, chunks, close, load, open, widen};
use crate::backend::check::Routing;
use crate::numerics::round::Float32;
use crate::op::*;
use crate::{DType, View, ViewMut};
use half::{bf16, f16};

fn element(level: super::Level, view: &View, at: usize) -> f32 {
    let mut value = [0.0];
    widen(level, view.slice(at..at + 1), &mut value);
    value[0]
}

/// To the nearest of `dtype` and back.
fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::narrow(value).widen(),
        DType::F16 => f16::narrow(value).widen(),
        _ => value,
    }
}

/// Sorts choices by expert, stably, without scratch: the offsets count first, then point to the next free slot.
fn sort(ids: &[u32], order: &mut [u32], places: &mut [u32], offsets: &mut [u32]) {
    offsets.fill(0);
    ids.iter().for_each(|id| offsets[*id as usize + 1] += 1);
    (1..offsets.len()).for_each(|e| offsets[e] += offsets[e - 1]);
    for (choice, id) in ids.iter().enumerate() {
        let next = &mut offsets[*id as usize];
        (places[choice], order[*next as usize]) = (*next, choice as u32);
        *next += 1;
    }
    // Every pointer stands where the next expert begins.
    offsets.copy_within(..offsets.len() - 1, 1);
    offsets[0] = 0;
}

impl Cpu {
    /// To which experts each token goes, with which weights.
    pub(super) fn run_route(&self, op: &Route, logits: View, weights: ViewMut, indices: &mut [u32]) {
        let (ids, rest) = indices[..op.indices_len()].split_at_mut(op.slots());
        self.choose(op, logits, weights, ViewMut::of(ids));
        let (order, rest) = rest.split_at_mut(op.slots());
        let (places, offsets) = rest.split_at_mut(op.slots());
        sort(ids, order, places, offsets);
    }

    pub(super) fn run_dispatch(&self, op: &Slots, routing: Routing, x: View, y: ViewMut) {
        self.copy_rows(op.slots(), op.cols, x, y, |slot| Some(routing.order[slot] as usize / op.top));
    }

    /// One product after the other; `bounds` says which rows are whose.
    pub(super) fn run_grouped_gemm(
        &self,
        op: &GroupedGemm,
        bounds: &[u32],
        [a, b]: [View; 2],
        mut c: ViewMut,
        mut workspace: ViewMut,
    ) {
        for (group, pair) in bounds.windows(2).enumerate() {
            let rows = pair[0] as usize..pair[1] as usize;
            let empty = rows.is_empty();
            let (gemm, [a_range, b_range, c_range]) = op.one(group, rows);
            let mut c = c.slice_mut(c_range);
            match (empty, op.accumulate) {
                (false, _) => {
                    self.run_matmul(&gemm, a.slice(a_range), Right::Plain(b.slice(b_range)), c, workspace.reborrow())
                }
                // The gradient of a matrix that no row has used; of rows there are none.
                (true, false) => self.run_fill(c.reborrow(), 0.0),
                (true, true) => {}
            }
        }
    }

    /// Each row's best experts, in order, and their weights.
    fn choose(&self, op: &Route, logits: View, weights: ViewMut, ids: ViewMut) {
        let Route { experts, top, .. } = *op;
        let (level, weights, ids) = (self.level, Shared::new(weights), Shared::new(ids));
        if top == 0 {
            return;
        }
        self.pool.split(op.rows, grain(experts), |_, rows| {
            let mut buffer = [0.0; CHUNK];
            for row in rows {
                // SAFETY: each row belongs to one thread.
                let best = unsafe { weights.elements::<f32>(row * top..(row + 1) * top) };
                // SAFETY: as above.
                let mut part = unsafe { ids.part(row * top..(row + 1) * top) };
                let Ok(chosen) = part.as_slice_mut::<u32>() else { unreachable!("ids are u32") };
                let mut found = 0;
                for chunk in chunks(0..experts) {
                    let start = chunk.start;
                    let logits = load(level, logits.slice(shift(&chunk, row * experts)), &mut buffer);
                    for (i, logit) in logits.iter().enumerate() {
                        let logit = if logit.is_nan() { f32::INFINITY } else { *logit };
                        if found == top && logit <= best[top - 1] {
                            continue;
                        }
                        // Behind those as good: they have lower numbers.
                        found = (found + 1).min(top);
                        let mut at = found - 1;
                        while at > 0 && best[at - 1] < logit {
                            (best[at], chosen[at]) = (best[at - 1], chosen[at - 1]);
                            at -= 1;
                        }
                        (best[at], chosen[at]) = (logit, (start + i) as u32);
                    }
                }
                let most = best[0];
                let all = if op.normalised { 0.0 } else { self.mass(op, &logits, row, most, &mut buffer) };
                let mut sum = 0.0;
                level.run(
                    #[inline(always)]
                    |fused| best.iter_mut().for_each(|x| *x = exp(fused, *x - most)),
                );
                best.iter().for_each(|x| sum += f64::from(*x));
                let factor = (1.0 / if op.normalised { sum } else { all }) as f32;
                for weight in best.iter_mut() {
                    *weight *= factor;
                    if op.rounded {
                        *weight = rounded(op.dtype, *weight);
                    }
                }
            }
        });
    }

    /// The softmax's sum over all experts of a row.
    fn mass(&self, op: &Route, logits: &View, row: usize, most: f32, buffer: &mut [f32]) -> f64 {
        let mut lanes = [0.0; LANES];
        let mut powers = [0.0; CHUNK];
        for chunk in chunks(0..op.experts) {
            let x = load(self.level, logits.slice(shift(&chunk, row * op.experts)), buffer);
            self.level.run(
                #[inline(always)]
                |fused| {
                    powers.iter_mut().zip(x).for_each(|(power, x)| *power = exp(fused, *x - most));
                    fold(&mut lanes, &powers[..x.len()], |sum, power| sum + power);
                },
            );
        }
        f64::from(merge(lanes, |a, b| a + b))
    }

    pub(super) fn run_route_backward(
        &self,
        op: &Route,
        logits: View,
        routing: Routing,
        dweights: &[f32],
        dlogits: ViewMut,
    ) {
        let Route { experts, top, normalised, .. } = *op;
        let (level, dlogits) = (self.level, Shared::new(dlogits));
        self.pool.split(op.rows, grain(experts), |_, rows| {
            let (mut source, mut target) = ([0.0; CHUNK], [0.0; CHUNK]);
            for row in rows {
                let choices = row * top..(row + 1) * top;
                let (ids, gradients) = (&routing.ids[choices.clone()], &dweights[choices]);
                // The best comes first.
                let most = ids.first().map_or(0.0, |id| element(level, &logits, row * experts + *id as usize));
                let power = |id: u32| {
                    let logit = element(level, &logits, row * experts + id as usize);
                    level.run(
                        #[inline(always)]
                        |fused| exp(fused, logit - most),
                    )
                };
                let sum = match normalised {
                    true => ids.iter().map(|id| f64::from(power(*id))).sum(),
                    false => self.mass(op, &logits, row, most, &mut source),
                };
                let factor = (1.0 / sum) as f32;
                let products = ids.iter().zip(gradients).map(|(id, g)| f64::from(power(*id) * factor) * f64::from(*g));
                let mean = products.sum::<f64>() as f32;
                for chunk in chunks(0..experts) {
                    let x = load(level, logits.slice(shift(&chunk, row * experts)), &mut source);
                    // SAFETY: each row belongs to one thread.
                    let mut part = unsafe { dlogits.part(shift(&chunk, row * experts)) };
                    let dx = open(level, &mut part, &mut target, false);
                    level.run(
                        #[inline(always)]
                        |fused| match normalised {
                            true => dx.fill(0.0),
                            false => {
                                dx.iter_mut().zip(x).for_each(|(d, x)| *d = -exp(fused, *x - most) * factor * mean)
                            }
                        },
                    );
                    let here = ids.iter().zip(gradients).filter(|(id, _)| chunk.contains(&(**id as usize)));
                    for (id, gradient) in here {
                        let share = power(*id) * factor;
                        dx[*id as usize - chunk.start] = share * (gradient - mean);
                    }
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_combine(&self, op: &Combine, routing: Routing, x: View, weights: Option<&[f32]>, y: ViewMut) {
        let Slots { rows, top, cols, .. } = op.slots;
        let (level, y) = (self.level, Shared::new(y));
        self.pool.split(rows, grain(cols.saturating_mul(top)), |_, rows| {
            let (mut source, mut target) = ([0.0; CHUNK], [0.0; CHUNK]);
            for row in rows {
                for chunk in chunks(0..cols) {
                    let mut sum = [0.0; CHUNK];
                    let sum = &mut sum[..chunk.len()];
                    for choice in row * top..(row + 1) * top {
                        let place = routing.places[choice] as usize;
                        let x = load(level, x.slice(shift(&chunk, place * cols)), &mut source);
                        let weight = weights.map_or(1.0, |weights| weights[choice]);
                        level.run(
                            #[inline(always)]
                            |fused| sum.iter_mut().zip(x).for_each(|(sum, x)| *sum = fma(fused, weight, *x, *sum)),
                        );
                    }
                    // SAFETY: each row belongs to one thread.
                    let mut part = unsafe { y.part(shift(&chunk, row * cols)) };
                    let y = open(level, &mut part, &mut target, op.accumulate);
                    if op.accumulate {
                        y.iter_mut().zip(&*sum).for_each(|(y, sum)| *y += sum);
                    } else {
                        y.copy_from_slice(sum);
                    }
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_router_weight_backward(
        &self,
        op: &Slots,
        routing: Routing,
        weights: &[f32],
        x: ViewMut,
        dx: ViewMut,
        dweights: ViewMut,
    ) {
        let (level, cols) = (self.level, op.cols);
        let [x, dx, dweights] = [x, dx, dweights].map(Shared::new);
        self.pool.split(op.slots(), grain(cols), |_, slots| {
            let (mut xs, mut dxs) = ([0.0; CHUNK], [0.0; CHUNK]);
            for slot in slots {
                let choice = routing.order[slot] as usize;
                let weight = weights[choice];
                let mut lanes = [0.0; LANES];
                for chunk in chunks(0..cols) {
                    let at = shift(&chunk, slot * cols);
                    // SAFETY: each slot belongs to one thread.
                    let (mut x, mut dx) = unsafe { (x.part(at.clone()), dx.part(at)) };
                    let (x_values, dx_values) =
                        (open(level, &mut x, &mut xs, true), open(level, &mut dx, &mut dxs, true));
                    level.run(
                        #[inline(always)]
                        |fused| {
                            fold_rows(&mut lanes, [&*x_values, dx_values], |sum, [x, dx]| fma(fused, x, dx, sum));
                            x_values.iter_mut().for_each(|x| *x *= weight);
                            dx_values.iter_mut().for_each(|dx| *dx *= weight);
                        },
                    );
                    close(level, &mut x, &xs);
                    close(level, &mut dx, &dxs);
                }
                // SAFETY: each choice has one slot, and the slot belongs to one thread.
                let dot = unsafe { dweights.elements::<f32>(choice..choice + 1) };
                dot[0] = merge(lanes, |a, b| a + b);
            }
        });
    }
}
