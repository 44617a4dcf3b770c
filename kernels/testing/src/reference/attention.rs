use super::values::{read, write};
use std::ops::Range;
use zbench_kernels::{Attention, Result, View, ViewMut};

/// For every token the place in its sequence at which its document starts, where there are several documents.
type Starts<'a> = Option<&'a [u32]>;

/// The keys that the query at `row` of a sequence sees.
fn seen(op: &Attention, starts: Starts, b: usize, row: usize) -> Range<usize> {
    if !op.causal {
        return 0..op.kv_seq;
    }
    let document = starts.map_or(0, |starts| starts[b * op.seq + row] as usize);
    let window = op.window.map_or(0, |window| (row + 1).saturating_sub(window));
    document.max(window)..row + 1
}

/// One query's scaled scores against the keys up to the last that it sees; minus infinity for those that it does not see.
fn scores(op: &Attention, starts: Starts, q: &[f64], k: &[f64], b: usize, h: usize, row: usize) -> Vec<f64> {
    let dot = |col: usize| {
        let (left, right) = (&q[at(op, b, h, row)..], &k[at_kv(op, b, h, col)..]);
        op.scale * left.iter().zip(right).take(op.head_dim).map(|(a, b)| a * b).sum::<f64>()
    };
    let slope = op.slope(h);
    let seen = seen(op, starts, b, row);
    let score = |col: usize| dot(col) - slope * (row as f64 - col as f64);
    (0..seen.end).map(|col| if seen.contains(&col) { score(col) } else { f64::NEG_INFINITY }).collect()
}

/// The softmax of scores, and their log-sum-exp.
fn softmax(mut scores: Vec<f64>) -> (Vec<f64>, f64) {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
    scores.iter_mut().for_each(|s| *s = (*s - top).exp() / sum);
    (scores, top + sum.ln())
}

/// Where query head `h` of token `row` starts.
fn at(op: &Attention, b: usize, h: usize, row: usize) -> usize {
    ((b * op.seq + row) * op.heads + h) * op.head_dim
}

/// Where the key head that query head `h` reads starts at token `row`.
fn at_kv(op: &Attention, b: usize, h: usize, row: usize) -> usize {
    ((b * op.kv_seq + row) * op.kv_heads + h / (op.heads / op.kv_heads)) * op.head_dim
}

/// Both kinds: `lse` is written when asked for; stored probabilities are rounded, and the output uses what was stored.
pub(super) fn forward(
    op: &Attention,
    starts: Starts,
    [q, k, v]: [View; 3],
    out: &mut ViewMut,
    lse: Option<&mut ViewMut>,
    mut probs: Option<&mut ViewMut>,
) -> Result<()> {
    let (queries, keys) = (op.queries(), op.keys());
    if queries == 0 {
        return Ok(());
    }
    let (q, k, v) = (read(&q, queries), read(&k, keys), read(&v, keys));
    let (mut outs, mut sums) = (vec![0.0; queries], vec![0.0; op.rows()]);
    for b in 0..op.batch {
        for h in 0..op.heads {
            for row in 0..op.seq {
                let line = (b * op.heads + h) * op.seq + row;
                let (mut p, total) = softmax(scores(op, starts, &q, &k, b, h, row));
                sums[line] = total;
                if let Some(probs) = &mut probs {
                    p.resize(op.kv_seq, 0.0);
                    let mut stored = probs.slice_mut(line * op.kv_seq..(line + 1) * op.kv_seq);
                    write(&mut stored, &p)?;
                    p = read(&stored.as_view(), op.kv_seq);
                }
                for (col, p) in p.iter().enumerate() {
                    for i in 0..op.head_dim {
                        outs[at(op, b, h, row) + i] += p * v[at_kv(op, b, h, col) + i];
                    }
                }
            }
        }
    }
    write(out, &outs)?;
    lse.map_or(Ok(()), |lse| write(lse, &sums))
}

/// What backward finds of the probabilities.
pub(super) enum Kept<'a> {
    /// All of them.
    Probs(View<'a>),
    /// The output and the log-sum-exp of every row's scores, from which they are computed again.
    Out(View<'a>, View<'a>),
}

/// Both kinds.
pub(super) fn backward(
    op: &Attention,
    starts: Starts,
    [q, k, v]: [View; 3],
    kept: Kept,
    dout: View,
    [dq, dk, dv]: [&mut ViewMut; 3],
) -> Result<()> {
    let (queries, keys) = (op.queries(), op.keys());
    if queries == 0 {
        return Ok(());
    }
    let (q, k, v, dout) = (read(&q, queries), read(&k, keys), read(&v, keys), read(&dout, queries));
    let (mut dqs, mut dks, mut dvs) = (vec![0.0; queries], vec![0.0; keys], vec![0.0; keys]);
    let dim = op.head_dim;
    for b in 0..op.batch {
        for h in 0..op.heads {
            for row in 0..op.seq {
                let line = (b * op.heads + h) * op.seq + row;
                let query = at(op, b, h, row);
                let end = seen(op, starts, b, row).end;
                let dp: Vec<f64> =
                    (0..end).map(|col| (0..dim).map(|i| dout[query + i] * v[at_kv(op, b, h, col) + i]).sum()).collect();
                // The sum of p * dp is that of dout * out; each kind takes what it has.
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let (p, delta) = match &kept {
                    Kept::Probs(probs) => {
                        let p = read(&probs.slice(line * op.kv_seq..line * op.kv_seq + end), end);
                        let delta = dot(&p, &dp);
                        (p, delta)
                    }
                    Kept::Out(out, lse) => {
                        let lse = read(&lse.slice(line..line + 1), 1)[0];
                        let p = scores(op, starts, &q, &k, b, h, row).iter().map(|s| (s - lse).exp()).collect();
                        (p, dot(&read(&out.slice(query..query + dim), dim), &dout[query..query + dim]))
                    }
                };
                for col in 0..end {
                    let ds = op.scale * p[col] * (dp[col] - delta);
                    let key = at_kv(op, b, h, col);
                    for i in 0..dim {
                        dqs[query + i] += ds * k[key + i];
                        dks[key + i] += ds * q[query + i];
                        dvs[key + i] += p[col] * dout[query + i];
                    }
                }
            }
        }
    }
    write(dq, &dqs)?;
    write(dk, &dks)?;
    write(dv, &dvs)
}
