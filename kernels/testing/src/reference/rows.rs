use super::values::{read, write};
use zbench_kernels::*;

pub(super) fn rms_norm(op: &RmsNorm, x: View, w: View, mut y: ViewMut, mut rstd: ViewMut) -> Result<()> {
    let RmsNorm { rows, cols, eps, .. } = *op;
    let (mut x, w) = (read(&x, rows * cols), read(&w, cols));
    let mut scales = vec![0.0; rows];
    for r in 0..rows {
        let row = &mut x[r * cols..(r + 1) * cols];
        let mean = row.iter().map(|x| x * x).sum::<f64>() / cols as f64;
        scales[r] = 1.0 / (mean + eps).sqrt();
        row.iter_mut().zip(&w).for_each(|(x, w)| *x *= w * scales[r]);
    }
    write(&mut y, &x)?;
    write(&mut rstd, &scales)
}

pub(super) fn rms_norm_backward(
    op: &RmsNorm,
    x: View,
    w: View,
    rstd: View,
    dy: View,
    mut dx: ViewMut,
    dw: Option<ViewMut>,
) -> Result<()> {
    let RmsNorm { rows, cols, .. } = *op;
    let (x, w, rstd) = (read(&x, rows * cols), read(&w, cols), read(&rstd, rows));
    let (dy, mut sums) = (read(&dy, rows * cols), read(&dx.as_view(), rows * cols));
    let mut dws = vec![0.0; cols];
    for (r, rstd) in rstd.iter().enumerate() {
        let at = |i: usize| r * cols + i;
        let mean = (0..cols).map(|i| dy[at(i)] * w[i] * x[at(i)]).sum::<f64>() / cols as f64;
        for i in 0..cols {
            sums[at(i)] += rstd * (dy[at(i)] * w[i] - x[at(i)] * rstd * rstd * mean);
            dws[i] += dy[at(i)] * x[at(i)] * rstd;
        }
    }
    write(&mut dx, &sums)?;
    let Some(mut dw) = dw else { return Ok(()) };
    let old = read(&dw.as_view(), cols);
    dws.iter_mut().zip(old).for_each(|(new, old)| *new += old);
    write(&mut dw, &dws)
}

pub(super) fn layer_norm(
    op: &LayerNorm,
    x: View,
    w: View,
    b: Option<View>,
    mut y: ViewMut,
    mut statistics: ViewMut,
) -> Result<()> {
    let LayerNorm { rows, cols, eps, .. } = *op;
    let (mut x, w) = (read(&x, rows * cols), read(&w, cols));
    let b = b.map_or(vec![0.0; cols], |b| read(&b, cols));
    let mut saved = vec![0.0; 2 * rows];
    for r in 0..rows {
        let row = &mut x[r * cols..(r + 1) * cols];
        let mean = row.iter().sum::<f64>() / cols as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / cols as f64;
        let rstd = 1.0 / (variance + eps).sqrt();
        (saved[r], saved[rows + r]) = (mean, rstd);
        row.iter_mut().zip(&w).zip(&b).for_each(|((x, w), b)| *x = (*x - mean) * rstd * w + b);
    }
    write(&mut y, &x)?;
    write(&mut statistics, &saved)
}

pub(super) fn layer_norm_backward(
    op: &LayerNorm,
    [x, w, statistics, dy]: [View; 4],
    mut dx: ViewMut,
    [dw, db]: [Option<ViewMut>; 2],
) -> Result<()> {
    let LayerNorm { rows, cols, .. } = *op;
    let (x, w, saved) = (read(&x, rows * cols), read(&w, cols), read(&statistics, 2 * rows));
    let (dy, mut sums) = (read(&dy, rows * cols), read(&dx.as_view(), rows * cols));
    let mut gradients = [vec![0.0; cols], vec![0.0; cols]];
    for r in 0..rows {
        let (mean, rstd) = (saved[r], saved[rows + r]);
        let at = |i: usize| r * cols + i;
        let normal = |i: usize| (x[at(i)] - mean) * rstd;
        let average = |term: &dyn Fn(usize) -> f64| (0..cols).map(term).sum::<f64>() / cols as f64;
        let (plain, along) = (average(&|i| dy[at(i)] * w[i]), average(&|i| dy[at(i)] * w[i] * normal(i)));
        for i in 0..cols {
            sums[at(i)] += rstd * (dy[at(i)] * w[i] - plain - normal(i) * along);
            gradients[0][i] += dy[at(i)] * normal(i);
            gradients[1][i] += dy[at(i)];
        }
    }
    write(&mut dx, &sums)?;
    for (target, new) in [dw, db].into_iter().zip(gradients) {
        let Some(mut target) = target else { continue };
        let sums: Vec<f64> = read(&target.as_view(), cols).iter().zip(&new).map(|(old, new)| old + new).collect();
        write(&mut target, &sums)?;
    }
    Ok(())
}

pub(super) fn add_rows(op: &BiasAdd, table: View, mut x: ViewMut) -> Result<()> {
    let BiasAdd { rows, period, cols, .. } = *op;
    let (table, mut values) = (read(&table, period.min(rows) * cols), read(&x.as_view(), rows * cols));
    for r in 0..rows {
        for i in 0..cols {
            values[r * cols + i] += table[r % period * cols + i];
        }
    }
    write(&mut x, &values)
}

pub(super) fn add_rows_backward(op: &BiasAdd, dy: View, mut dtable: ViewMut) -> Result<()> {
    let BiasAdd { rows, period, cols, .. } = *op;
    let (dy, mut sums) = (read(&dy, rows * cols), read(&dtable.as_view(), period.min(rows) * cols));
    for r in 0..rows {
        for i in 0..cols {
            sums[r % period * cols + i] += dy[r * cols + i];
        }
    }
    write(&mut dtable, &sums)
}

pub(super) fn mul_rows(op: &ScaleColumns, w: View, mut x: ViewMut) -> Result<()> {
    let ScaleColumns { rows, cols, .. } = *op;
    let (w, mut values) = (read(&w, cols), read(&x.as_view(), rows * cols));
    for r in 0..rows {
        for i in 0..cols {
            values[r * cols + i] *= w[i];
        }
    }
    write(&mut x, &values)
}

pub(super) fn mul_rows_backward(op: &ScaleColumns, x: View, dy: View, mut dw: ViewMut) -> Result<()> {
    let ScaleColumns { rows, cols, .. } = *op;
    let (x, dy, mut sums) = (read(&x, rows * cols), read(&dy, rows * cols), read(&dw.as_view(), cols));
    for r in 0..rows {
        for i in 0..cols {
            sums[i] += dy[r * cols + i] * x[r * cols + i];
        }
    }
    write(&mut dw, &sums)
}

pub(super) fn inverse_norms(op: &RowInvNorm, x: View, mut s: ViewMut) -> Result<()> {
    let RowInvNorm { rows, cols, .. } = *op;
    let x = read(&x, rows * cols);
    let norm = |r: usize| x[r * cols..(r + 1) * cols].iter().map(|x| x * x).sum::<f64>().sqrt();
    write(&mut s, &(0..rows).map(|r| 1.0 / norm(r)).collect::<Vec<_>>())
}

pub(super) fn rope(op: &Rope, mut x: ViewMut, cos: View, sin: View) -> Result<()> {
    let Rope { rows, seq, heads, head_dim, .. } = *op;
    let half = head_dim / 2;
    if heads == 0 || half == 0 {
        return Ok(());
    }
    let table = seq.min(rows) * half;
    let (cos, sin) = (read(&cos, table), read(&sin, table));
    let mut values = read(&x.as_view(), rows * heads * head_dim);
    let sign = if op.inverse { -1.0 } else { 1.0 };
    for r in 0..rows {
        for h in 0..heads {
            for i in 0..half {
                let (low, high) = ((r * heads + h) * head_dim + i, (r * heads + h) * head_dim + i + half);
                let (c, s) = (cos[r % seq * half + i], sign * sin[r % seq * half + i]);
                (values[low], values[high]) = (values[low] * c - values[high] * s, values[high] * c + values[low] * s);
            }
        }
    }
    write(&mut x, &values)
}
