//! Forward on packed tiles. Keys and values of a head are packed once for all queries; then every block of
//! queries goes over the keys it sees, a tile at a time: scores, softmax, sums.
//!
//! What is computed of a query depends on the cuts of the keys alone, so blocks may be of any size and on any thread.

#![allow(unsafe_code, reason = "packed panels are read and written by address")]

use super::head::Head;
use super::lanes::{LANES, Lanes, Pass, Terms, exp2, run};
use super::*;
use crate::cpu::matmul::micro::Block;
use crate::op::attention_mask::AttentionMask;

/// Queries of a block.
const QUERIES: usize = 128;
/// Keys that go through the softmax at a time.
const KEYS: usize = 256;
/// How far, as a power of two, a numerator may exceed 1 before sums are scaled to a new maximum.
const SLACK: f32 = 8.0;

/// How an operation is cut, and the sizes of what it keeps.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    panels: Panels,
    /// Queries of a block, and keys of a sequence, padded.
    block: usize,
    keys: usize,
    /// Heads of keys that are packed at a time.
    heads: usize,
    /// f32 elements that they take.
    packed: usize,
    /// f32 elements of a thread: a block's queries, scores, numerators, sums; maxima and totals of rows.
    own: [usize; 5],
}

impl Layout {
    /// Of an operation that has something to do.
    pub fn of(op: &Attention, path: Path, threads: usize) -> Layout {
        let panels = Panels::of(op, path);
        let all = op.batch.saturating_mul(op.kv_heads);
        let [seq, kv_seq] = [op.seq, op.kv_seq].map(|len| len.div_ceil(COLS).saturating_mul(COLS));
        let head = panels.b(kv_seq, panels.tiles).saturating_mul(2);
        let packed = head.saturating_mul(all).min(head.max(ROUND.saturating_mul(threads)));
        let (block, keys) = (QUERIES.min(seq), KEYS.min(kv_seq));
        let own = [
            panels.a(block, panels.tiles),
            STRIP * keys,
            panels.a(STRIP, keys / COLS),
            block.saturating_mul(panels.wide()),
            2 * block,
        ];
        Layout { panels, block, keys: kv_seq, heads: (packed / head).max(1), packed, own }
    }

    pub fn workspace(&self, threads: usize) -> usize {
        self.packed.saturating_add(threads.saturating_mul(taken(&self.own)))
    }
}

impl Cpu {
    pub(in crate::cpu) fn run_attention(&self, op: &Attention, inputs: Inputs, outs: [ViewMut; 2], workspace: ViewMut) {
        if elements(&[op.batch, op.seq, op.heads, op.head_dim]) == 0 {
            return;
        }
        let layout = Layout::of(op, self.path, self.pool.threads());
        let Layout { panels, keys, .. } = layout;
        let half = panels.b(keys, panels.tiles);
        let (packed, own_parts) = workspace.split_at(layout.packed);
        let ([out, lse], [packed, own_parts]) = (outs.map(Shared::new), [packed, own_parts].map(Shared::new));
        let group = op.heads / op.kv_heads;
        let (chunks, blocks) = (op.kv_seq.div_ceil(TILE), op.seq.div_ceil(QUERIES));
        for round in steps(0..op.batch * op.kv_heads, layout.heads) {
            let heads = round.len();
            self.pool.each_of([heads * chunks, heads * group * blocks], |lot, thread, number| {
                if lot == 0 {
                    let (slot, chunk) = (number / chunks, number % chunks);
                    let tokens = chunk * TILE..((chunk + 1) * TILE).min(op.kv_seq);
                    let (batch, head) = ((round.start + slot) / op.kv_heads, (round.start + slot) % op.kv_heads);
                    let key = Head::key(op, batch, head);
                    let [k, v] = [&inputs.k, &inputs.v].map(|x| Strand::of(x, key));
                    let to = own(&packed, 2 * slot * half);
                    // SAFETY: tokens of a head, whose lengths were checked; each chunk is packed by one thread.
                    unsafe { pack(panels, keys, [k, v], tokens, [to, to.wrapping_add(half)]) };
                    return;
                }
                // The last queries see most: they come first.
                let (slot, member) = (number % (heads * group) / group, number % group);
                let block = blocks - 1 - number / (heads * group);
                let (batch, head) = ((round.start + slot) / op.kv_heads, (round.start + slot) % op.kv_heads);
                let keys = own(&packed, 2 * slot * half);
                let job = Job {
                    op,
                    sight: AttentionMask::of(op, inputs.starts),
                    layout,
                    batch,
                    head: head * group + member,
                    rows: block * QUERIES..((block + 1) * QUERIES).min(op.seq),
                    keys,
                    values: keys.wrapping_add(half),
                };
                // SAFETY: these queries of this head are this thread's, and so is this part of the scratch; what is packed
                // is only read.
                unsafe { job.run(&inputs.q, &out, &lse, own(&own_parts, thread * taken(&layout.own))) };
            });
        }
    }
}

/// Packs `tokens`, which begin at a multiple of 32, of a head's keys and values, padded to `all` tokens.
///
/// # Safety
/// The head has these tokens; nobody else uses their part of `to`.
unsafe fn pack(panels: Panels, all: usize, [k, v]: [Strand; 2], tokens: Range<usize>, [keys, values]: [*mut f32; 2]) {
    let panel = panels.b(COLS, panels.tiles);
    // SAFETY: the caller's promise.
    unsafe {
        panels.pack_b(k.tokens(tokens.start), tokens.len(), panels.dim, keys.add(tokens.start / COLS * panel), panel);
        let to = values.add(panels.b(COLS, tokens.start / COLS));
        panels.pack_b(v.elements(tokens.start), panels.dim, tokens.len(), to, panels.b(COLS, all / COLS));
    }
}

/// A block of queries of a head.
struct Job<'a> {
    op: &'a Attention,
    sight: AttentionMask<'a>,
    layout: Layout,
    batch: usize,
    head: usize,
    rows: Range<usize>,
    /// The head's keys, as columns, and its values, with tokens as terms.
    keys: *const f32,
    values: *const f32,
}

impl Job<'_> {
    /// # Safety
    /// The queries of this head are this thread's, and so is `scratch`.
    unsafe fn run(self, q: &View, out: &Shared, lse: &Shared, mut scratch: *mut f32) {
        let Job { op, layout: Layout { panels, block, keys: all, own, .. }, batch, ref rows, .. } = self;
        let Panels { path, element, tiles, .. } = panels;
        let [queries, scores, numerators, sums, lines] = own.map(|len| take(&mut scratch, len));
        let (tops, totals) = (lines, lines.wrapping_add(block));
        let _held = path.hold();
        let sight = self.sight;
        let sees = sight.any(batch, rows);
        let query = Head::query(op, batch, self.head);
        let factor = op.scale as f32 * std::f32::consts::LOG2_E;
        let slope = op.slope(self.head) as f32 * std::f32::consts::LOG2_E;
        // With neither of these a maximum of scores is one of scaled scores.
        let simple = slope == 0.0 && factor > 0.0;
        // SAFETY: the head has these tokens; scratch is as large as the layout says.
        unsafe {
            panels.pack_a(Strand::of(q, query).tokens(rows.start), rows.len(), panels.dim, queries);
            for i in 0..rows.len() {
                tops.add(i).write(f32::NEG_INFINITY);
                totals.add(i).write(0.0);
            }
        }
        for tile in steps(sees.start / KEYS * KEYS..sees.end, KEYS) {
            for strip in steps(rows.clone(), STRIP) {
                let sees = sight.any(batch, &strip);
                // Padded to whole panels: the packed keys go as far.
                let keys = outwards(both(&sees, &tile), COLS);
                if sees.start >= tile.end || keys.is_empty() {
                    continue;
                }
                let line = strip.start - rows.start;
                let (height, width) = (strip.len(), keys.len());
                let first = sees.start >= tile.start;
                // SAFETY: as above; the block of scores has whole panels.
                unsafe {
                    path.multiply(Block {
                        a: queries.add(panels.a(line, tiles)).cast(),
                        a_panel: panels.a(ROWS, tiles) * 4,
                        rows: height.div_ceil(ROWS),
                        b: self.keys.add(panels.b(keys.start, tiles)).cast(),
                        b_panel: panels.b(COLS, tiles),
                        cols: width / COLS,
                        tiles: panels.deep(tiles),
                        c: scores,
                        c_row: width,
                        add: false,
                        ..Block::empty(path, element)
                    });
                    if !simple {
                        let far = |row, col| (strip.start + row) as f32 - (keys.start + col) as f32;
                        bias(scores, [height, width], factor, slope, far);
                    }
                    if !sight.all(batch, &strip, &keys) {
                        for row in strip.clone() {
                            hide(scores.add((row - strip.start) * width), &keys, sight.seen(batch, row));
                        }
                    }
                    run(
                        path,
                        element,
                        Softmax {
                            scores,
                            width,
                            height,
                            factor: if simple { factor } else { 1.0 },
                            numerators,
                            panel: panels.a(ROWS, width / COLS),
                            tops: tops.add(line),
                            totals: totals.add(line),
                            sums: sums.add(line * panels.wide()),
                            wide: panels.wide(),
                            first,
                        },
                    );
                    path.multiply(Block {
                        a: numerators.cast_const().cast(),
                        a_panel: panels.a(ROWS, width / COLS) * 4,
                        rows: height.div_ceil(ROWS),
                        b: self.values.add(panels.b(COLS, keys.start / COLS)).cast(),
                        b_panel: panels.b(COLS, all / COLS),
                        cols: tiles,
                        tiles: panels.deep(width / COLS),
                        c: sums.add(line * panels.wide()),
                        c_row: panels.wide(),
                        add: !first,
                        ..Block::empty(path, element)
                    });
                }
            }
        }
        // SAFETY: these queries are this thread's.
        unsafe {
            let at = (batch * op.heads + self.head) * op.seq;
            let lse = lse.elements::<f32>(at + rows.start..at + rows.end);
            for (i, row) in rows.clone().enumerate() {
                let (top, total) = (*tops.add(i), *totals.add(i));
                lse[i] = (f64::from(top) * std::f64::consts::LN_2 + f64::from(total).ln()) as f32;
                let line = std::slice::from_raw_parts_mut(sums.add(i * panels.wide()), panels.dim);
                scale_all(panels.level, line, 1.0 / total);
                query.store(panels.level, row..row + 1, line, out);
            }
        }
    }
}

/// Makes scores of unseen keys minus infinity.
///
/// # Safety
/// The row has as many scores as there are keys.
unsafe fn hide(scores: *mut f32, keys: &Range<usize>, seen: Range<usize>) {
    // SAFETY: the caller's promise.
    let scores = unsafe { std::slice::from_raw_parts_mut(scores, keys.len()) };
    // A row of the strip may see none of these keys, which lie all before its first.
    let first = seen.start.clamp(keys.start, keys.end);
    let end = seen.end.clamp(first, keys.end);
    scores[..first - keys.start].fill(f32::NEG_INFINITY);
    scores[end - keys.start..].fill(f32::NEG_INFINITY);
}

/// Turns rows of scores into numerators `2^(factor * score - top)` in the form of A, and brings the rows' sums up to date.
struct Softmax {
    scores: *const f32,
    width: usize,
    height: usize,
    factor: f32,
    numerators: *mut f32,
    /// f32 elements from one panel of numerators to the next.
    panel: usize,
    /// Maxima of the rows, in powers of two, that their sums are relative to.
    tops: *mut f32,
    totals: *mut f32,
    /// Sums of the output, in rows of `wide`; not there yet if this is the `first` tile.
    sums: *mut f32,
    wide: usize,
    first: bool,
}

impl Pass for Softmax {
    /// # Safety
    /// Everything is as large as it says and used here alone.
    #[inline(always)]
    unsafe fn run<L: Lanes, T: Terms>(self) {
        let factor = L::splat(self.factor);
        for row in 0..self.height.next_multiple_of(ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                let to = self.numerators.add(row / ROWS * self.panel + row % ROWS * T::LINE);
                if row >= self.height {
                    // Rows that only fill the panel.
                    for group in 0..self.width / COLS {
                        T::row(L::splat(0.0), L::splat(0.0), to.add(group * T::GROUP));
                    }
                    continue;
                }
                let scores = self.scores.add(row * self.width);
                let mut largest = [L::splat(f32::NEG_INFINITY); 2];
                for at in (0..self.width).step_by(2 * LANES) {
                    largest[0] = largest[0].max(L::load(scores.add(at)));
                    largest[1] = largest[1].max(L::load(scores.add(at + LANES)));
                }
                let top = largest[0].max(largest[1]).largest() * self.factor;
                if top > *self.tops.add(row) + SLACK {
                    self.lift::<L>(row, top);
                }
                // A row that has seen nothing has no maximum yet, and only zeros here.
                let top = *self.tops.add(row);
                let base = L::splat(if top == f32::NEG_INFINITY { 0.0 } else { -top });
                let mut totals = [L::splat(0.0); 2];
                for group in 0..self.width / COLS {
                    let scores = scores.add(group * COLS);
                    let low = exp2(L::load(scores).fma(factor, base));
                    let high = exp2(L::load(scores.add(LANES)).fma(factor, base));
                    totals = [totals[0].add(low), totals[1].add(high)];
                    T::row(low, high, to.add(group * T::GROUP));
                }
                *self.totals.add(row) += totals[0].add(totals[1]).total();
            }
        }
    }
}

impl Softmax {
    /// Makes a row's sums relative to a larger maximum.
    #[inline(always)]
    unsafe fn lift<L: Lanes>(&self, row: usize, top: f32) {
        // SAFETY: as in `run`.
        unsafe {
            let old = self.tops.add(row).replace(top);
            let shrink = exp2(L::splat(old - top));
            *self.totals.add(row) *= shrink.largest();
            if !self.first {
                let sums = self.sums.add(row * self.wide);
                for at in (0..self.wide).step_by(LANES) {
                    L::load(sums.add(at)).mul(shrink).store(sums.add(at));
                }
            }
        }
    }
}
