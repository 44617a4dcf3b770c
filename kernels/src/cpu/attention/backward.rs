//! Backward on packed tiles.
//!
//! Queries and gradients of the output are packed once per head, in the two forms that the products take. A job has a
//! block of keys and goes over the queries that see it, with everything transposed, keys as rows: so probabilities and
//! gradients of scores come out as rows of A for `dv = p^T dout` and `dk = ds^T q`, and, of bf16 two rows woven, as columns of B
//! for `dq^T = k^T ds^T`.
//!
//! All blocks of keys add to the same dq. They do so in the order of the keys: a block waits for the one before it, tile
//! by tile of queries. Jobs are taken in that order, so whoever is waited for is at work, and the sums are the same
//! whatever the number of threads.

#![allow(unsafe_code, reason = "packed panels are read and written by address")]
#![allow(clippy::needless_range_loop, reason = "vectors in registers are taken by number, several arrays at once")]

use super::head::{Head, deltas_of};
use super::lanes::{LANES, Lanes, Pass, Terms, exp2, run};
use super::*;
use crate::cpu::matmul::micro::Block;
use crate::cpu::matmul::tiles::transpose;
use crate::op::attention_mask::AttentionMask;
use std::sync::atomic::{AtomicU32, Ordering};

/// Keys of a block.
const KEYS: usize = 128;
/// Queries of a tile, at most.
const QUERIES: usize = 256;

/// How an operation is cut, and the sizes of what it keeps.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    panels: Panels,
    /// Queries of a sequence, padded; those that are packed at a time; keys of a block, and queries of a tile.
    seq: usize,
    chunk: usize,
    side: usize,
    span: usize,
    /// Query heads that share a head of keys.
    group: usize,
    /// Heads of keys that are at work at a time.
    heads: usize,
    /// f32 elements that they take.
    packed: usize,
    /// Of a query head: q and dout as columns, q and dout with tokens as terms, sums of dq, negative log-sum-exps and
    /// negative products of out and dout.
    head: [usize; 7],
    /// Of a sequence: first and last keys that its queries see.
    bounds: [usize; 2],
    /// Tiles that are done, by blocks of keys.
    marks: usize,
    /// f32 elements of a thread: keys, values and transposed keys as rows; a strip's scores and gradients of
    /// probabilities; a tile's probabilities and gradients of scores, and the latter woven; sums of dk and dv.
    own: [usize; 10],
}

impl Layout {
    /// Of an operation that has something to do.
    pub fn of(op: &Attention, path: Path, threads: usize) -> Layout {
        let panels = Panels::of(op, path);
        let all = op.batch.saturating_mul(op.kv_heads);
        let group = op.heads / op.kv_heads.max(1);
        let [seq, kv_seq] = [op.seq, op.kv_seq].map(|len| len.div_ceil(COLS).saturating_mul(COLS));
        let (chunk, side, span) = (TILE.min(seq), KEYS.min(kv_seq), QUERIES.min(seq));
        let (wide, packed) = (panels.wide(), panels.b(seq, panels.tiles));
        let head = [packed, packed, packed, packed, seq.saturating_mul(wide), seq, seq];
        let (bounds, marks) = ([seq; 2], kv_seq.div_ceil(side));
        let one = taken(&head).saturating_mul(group).saturating_add(taken(&bounds)).saturating_add(taken(&[marks]));
        let packed = one.saturating_mul(all).min(one.max(ROUND.saturating_mul(threads)));
        let rows = panels.a(side, panels.tiles);
        let own = [
            rows,
            rows,
            panels.a(wide, side / COLS),
            side * STRIP,
            side * STRIP,
            panels.a(side, span / COLS),
            panels.a(side, span / COLS),
            panels.b(span, side / COLS),
            side.saturating_mul(wide),
            side.saturating_mul(wide),
        ];
        Layout { panels, seq, chunk, side, span, group, heads: (packed / one).max(1), packed, head, bounds, marks, own }
    }

    pub fn workspace(&self, threads: usize) -> usize {
        self.packed.saturating_add(threads.saturating_mul(taken(&self.own)))
    }

    /// f32 elements of a head of keys in the shared part.
    fn slot(&self) -> usize {
        self.group * taken(&self.head) + taken(&self.bounds) + taken(&[self.marks])
    }

    /// What is shared of a head of keys, which begins at `start`.
    fn shared(&self, mut start: *mut f32) -> Slot {
        let members = start;
        start = start.wrapping_add(self.group * taken(&self.head));
        let [first, last] = self.bounds.map(|len| take(&mut start, len).cast());
        Slot { members, first, last, marks: start.cast() }
    }

    /// What is shared of a query head.
    fn member(&self, slot: &Slot, member: usize) -> Member {
        let mut start = slot.members.wrapping_add(member * taken(&self.head));
        let [q_cols, dout_cols, q_terms, dout_terms, dq, lse, delta] = self.head.map(|len| take(&mut start, len));
        Member { q_cols, dout_cols, q_terms, dout_terms, dq, lse, delta }
    }
}

/// What is shared of a head of keys.
struct Slot {
    members: *mut f32,
    /// By query, and padding that sees nothing.
    first: *mut i32,
    last: *mut i32,
    marks: *mut u32,
}

/// What is shared of a query head.
struct Member {
    q_cols: *mut f32,
    dout_cols: *mut f32,
    q_terms: *mut f32,
    dout_terms: *mut f32,
    /// Tile after tile of queries, each `[head elements][queries of a tile]`.
    dq: *mut f32,
    /// In powers of two, negative.
    lse: *mut f32,
    /// Negative.
    delta: *mut f32,
}

impl Cpu {
    pub(in crate::cpu) fn run_attention_backward(
        &self,
        op: &Attention,
        inputs: Inputs,
        kept: Kept,
        gradients: [ViewMut; 3],
        workspace: ViewMut,
    ) {
        if elements(&[op.batch, op.seq, op.heads, op.head_dim]) == 0 {
            return;
        }
        let layout = Layout::of(op, self.path, self.pool.threads());
        let (shared, own_parts) = workspace.split_at(layout.packed);
        let [shared, own_parts] = [shared, own_parts].map(Shared::new);
        let gradients = gradients.map(Shared::new);
        let (chunks, blocks) = (op.seq.div_ceil(layout.chunk), op.kv_seq.div_ceil(layout.side));
        for round in steps(0..op.batch * op.kv_heads, layout.heads) {
            let heads = round.len();
            let job = |slot: usize, block: usize, len: usize, all: usize| Job {
                op,
                layout,
                inputs: &inputs,
                kept: &kept,
                gradients: &gradients,
                batch: (round.start + slot) / op.kv_heads,
                kv_head: (round.start + slot) % op.kv_heads,
                tokens: block * len..((block + 1) * len).min(all),
                block,
                slot: layout.shared(own(&shared, slot * layout.slot())),
            };
            // The first keys are seen by most: they come first. Of one head they come in order.
            self.pool.each_of([heads * chunks * layout.group, heads * blocks], |lot, thread, number| {
                if lot == 0 {
                    let (place, member) = (number / layout.group, number % layout.group);
                    // SAFETY: these queries of this head are this thread's to pack.
                    unsafe { job(place / chunks, place % chunks, layout.chunk, op.seq).prepare(member) };
                } else {
                    let scratch = own(&own_parts, thread * taken(&layout.own));
                    // SAFETY: these keys are this thread's, and so is the scratch.
                    unsafe { job(number % heads, number / heads, layout.side, op.kv_seq).run(scratch) };
                }
            });
        }
    }
}

/// A block of queries to pack, or one of keys to work on, of a head of keys.
struct Job<'a> {
    op: &'a Attention,
    layout: Layout,
    inputs: &'a Inputs<'a>,
    kept: &'a Kept<'a>,
    gradients: &'a [Shared<'a>; 3],
    batch: usize,
    kv_head: usize,
    tokens: Range<usize>,
    block: usize,
    slot: Slot,
}

/// A tile of queries of a query head, before a block of keys.
struct Meeting<'a> {
    head: usize,
    rows: Range<usize>,
    member: &'a Member,
    own: [*mut f32; 10],
}

/// Says that all tiles of a block of keys are done when its job ends, however it ends: nobody waits for a job that failed.
struct Done<'a>(&'a AtomicU32);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(u32::MAX, Ordering::Release);
    }
}

impl Job<'_> {
    fn mark(&self, block: usize) -> &AtomicU32 {
        // SAFETY: the layout has one for each block, which threads use as such alone once they are set to 0 in the first
        // lot of jobs, and which is as aligned as an f32.
        unsafe { AtomicU32::from_ptr(self.slot.marks.wrapping_add(block)) }
    }

    fn head(&self, member: usize) -> usize {
        self.kv_head * self.layout.group + member
    }

    /// Packs the queries of one query head, and makes its sums ready.
    ///
    /// # Safety
    /// These queries of this head are this thread's.
    unsafe fn prepare(&self, member: usize) {
        let Job { op, layout: Layout { panels, seq, .. }, ref tokens, .. } = *self;
        let (start, len, head) = (tokens.start, tokens.len(), self.head(member));
        let padded = len.next_multiple_of(COLS);
        let to = self.layout.member(&self.slot, member);
        let panel = panels.b(COLS, panels.tiles);
        let (q, dout) = (&self.inputs.q, &self.kept.dout);
        let query = Head::query(op, self.batch, head);
        let [q, dout] = [q, dout].map(|x| Strand::of(x, query));
        // SAFETY: the head has these queries, and the layout room for them, padded.
        unsafe {
            for (from, cols, terms) in [(q, to.q_cols, to.q_terms), (dout, to.dout_cols, to.dout_terms)] {
                panels.pack_b(from.tokens(start), len, panels.dim, cols.add(start / COLS * panel), panel);
                let terms = terms.add(panels.b(COLS, start / COLS));
                panels.pack_b(from.elements(start), panels.dim, len, terms, panels.b(COLS, seq / COLS));
            }
            let dq = to.dq.add(start * panels.wide());
            std::slice::from_raw_parts_mut(dq, padded * panels.wide()).fill(0.0);
            let line = (self.batch * op.heads + head) * op.seq;
            let [lse, delta] = [to.lse, to.delta].map(|to| std::slice::from_raw_parts_mut(to.add(start), padded));
            for i in 0..len {
                lse[i] = -std::f32::consts::LOG2_E * self.kept.lse[line + start + i];
            }
            deltas_of(panels.level, query, self.kept.out, self.kept.dout, start, &mut delta[..len]);
            delta[..len].iter_mut().for_each(|delta| *delta = -*delta);
            // Padding sees nothing: its probabilities are zero.
            lse[len..].fill(f32::NEG_INFINITY);
            delta[len..].fill(0.0);
            if member > 0 {
                return;
            }
            let sight = AttentionMask::of(op, self.inputs.starts);
            for i in 0..padded {
                let row = start + i;
                let seen = if i < len { sight.seen(self.batch, row) } else { 0..0 };
                let (first, last) = (seen.start as i32, seen.end as i32 - 1);
                self.slot.first.add(row).write(first);
                self.slot.last.add(row).write(last);
            }
            // There is always a first block of queries.
            if self.block == 0 {
                (0..self.layout.marks).for_each(|block| self.slot.marks.add(block).write(0));
            }
        }
    }

    /// Everything that these keys have a part in.
    ///
    /// # Safety
    /// These keys are this thread's, and so is `scratch`; all queries are prepared.
    unsafe fn run(self, mut scratch: *mut f32) {
        let Job { op, layout: Layout { panels, span, .. }, ref tokens, .. } = self;
        let own = self.layout.own.map(|len| take(&mut scratch, len));
        let [keys, values, turned, .., dk, dv] = own;
        let done = Done(self.mark(self.block));
        let (k, v) = (&self.inputs.k, &self.inputs.v);
        let key = Head::key(op, self.batch, self.kv_head);
        let [k, v] = [k, v].map(|x| Strand::of(x, key));
        let padded = tokens.len().next_multiple_of(COLS);
        // SAFETY: the head has these tokens; scratch is as large as the layout says.
        unsafe {
            // Rows that fill the last strip count as keys that nobody sees.
            std::slice::from_raw_parts_mut(keys, panels.a(padded, panels.tiles)).fill(0.0);
            std::slice::from_raw_parts_mut(values, panels.a(padded, panels.tiles)).fill(0.0);
            panels.pack_a(k.tokens(tokens.start), tokens.len(), panels.dim, keys);
            panels.pack_a(v.tokens(tokens.start), tokens.len(), panels.dim, values);
            panels.pack_a(k.elements(tokens.start), panels.dim, tokens.len(), turned);
            for sums in [dk, dv] {
                std::slice::from_raw_parts_mut(sums, padded * panels.wide()).fill(0.0);
            }
        }
        let _held = panels.path.hold();
        let sight = AttentionMask::of(op, self.inputs.starts);
        for member in 0..self.layout.group {
            let shared = self.layout.member(&self.slot, member);
            let count = op.seq.div_ceil(span);
            // Causally no query before the first key sees any of them.
            let first = if op.causal { tokens.start / span } else { 0 };
            for number in first..count {
                let rows = number * span..((number + 1) * span).min(op.seq);
                if sight.first(self.batch, rows.start) >= tokens.end {
                    break;
                }
                let meeting = Meeting { head: self.head(member), rows, member: &shared, own };
                // SAFETY: as above.
                unsafe { self.meet(&sight, meeting, (member * count + number) as u32, done.0) };
            }
        }
        for (i, row) in tokens.clone().enumerate() {
            for (sums, scale, to) in [(dk, op.scale as f32, &self.gradients[1]), (dv, 1.0, &self.gradients[2])] {
                // SAFETY: as above.
                unsafe {
                    let line = std::slice::from_raw_parts_mut(sums.add(i * panels.wide()), panels.dim);
                    scale_all(panels.level, line, scale);
                    key.store(panels.level, row..row + 1, line, to);
                }
            }
        }
    }

    /// A tile of queries. `turn` counts the tiles of a block of keys; `mark` is this block's.
    ///
    /// # Safety
    /// As [`Job::run`].
    unsafe fn meet(&self, sight: &AttentionMask, meeting: Meeting, turn: u32, mark: &AtomicU32) {
        let Job { op, layout: Layout { panels, seq, span, .. }, ref tokens, .. } = *self;
        let Meeting { head, ref rows, member, own } = meeting;
        let Panels { path, element, tiles, .. } = panels;
        let wide = panels.wide();
        let [keys, values, turned, scores, slopes, probs, grads, woven, dk, dv] = own;
        let side = tokens.len().next_multiple_of(COLS);
        // Groups of terms along a row of A of probabilities, and along a column of B, whether they are filled or not.
        let (across, deep) = (span / COLS, self.layout.side / COLS);
        let factor = op.scale as f32 * std::f32::consts::LOG2_E;
        let slope = op.slope(head) as f32 * std::f32::consts::LOG2_E;
        // The keys that each strip of queries sees, padded to whole strips.
        let mut seen = [const { 0..0 }; QUERIES / STRIP];
        for (s, strip) in steps(rows.clone(), STRIP).enumerate() {
            let sees = both(&sight.any(self.batch, &strip), tokens);
            if sees.is_empty() {
                continue;
            }
            let range = outwards(sees.start - tokens.start..sees.end - tokens.start, STRIP);
            let (from, height, tokens_from) = (range.start, range.len(), tokens.start + range.start);
            seen[s] = range;
            let block = |a: *mut f32, b: *mut f32, c: *mut f32| Block {
                a: a.wrapping_add(panels.a(from, tiles)).cast(),
                a_panel: panels.a(ROWS, tiles) * 4,
                rows: height / ROWS,
                b: b.wrapping_add(panels.b(strip.start / COLS * COLS, tiles)).cast_const().cast(),
                b_panel: 0,
                cols: 1,
                tiles: panels.deep(tiles),
                c: c.wrapping_add(from * STRIP),
                c_row: STRIP,
                add: false,
                ..Block::empty(path, element)
            };
            // SAFETY: all packed, whole panels.
            unsafe {
                path.multiply(block(keys, member.q_cols, scores));
                path.multiply(block(values, member.dout_cols, slopes));
                if slope != 0.0 {
                    // A row for each key.
                    let far = |row, col| (strip.start + col) as f32 - (tokens_from + row) as f32;
                    bias(scores.add(from * STRIP), [height, STRIP], factor, slope, far);
                }
                run(
                    path,
                    element,
                    Gradients {
                        scores: scores.add(from * STRIP),
                        slopes: slopes.add(from * STRIP),
                        height,
                        factor: if slope == 0.0 { factor } else { 1.0 },
                        lse: member.lse.add(strip.start),
                        delta: member.delta.add(strip.start),
                        key: tokens_from as i32,
                        first: self.slot.first.add(strip.start),
                        last: self.slot.last.add(strip.start),
                        hide: strip.len() < STRIP
                            || !sight.all(self.batch, &strip, &(tokens_from..tokens_from + height)),
                        probs: probs.add(panels.a(from, across) + s * panels.a(ROWS, 1)),
                        grads: grads.add(panels.a(from, across) + s * panels.a(ROWS, 1)),
                        panel: panels.a(ROWS, across),
                        woven: woven.add(s * panels.b(COLS, deep) + from / element.terms() * COLS),
                    },
                );
            }
        }
        let count = rows.len().div_ceil(STRIP);
        let seen = &seen[..count];
        let whole = seen.iter().all(|seen| *seen == (0..side));
        // All keys by all queries, or strip by strip of keys those queries that see it.
        let step = if whole { side } else { STRIP };
        for keys in steps(0..side, step) {
            let sees = |seen: &Range<usize>| !both(seen, &keys).is_empty();
            let Some(from) = seen.iter().position(sees) else { continue };
            let strips = seen[from..].iter().take_while(|seen| sees(seen)).count();
            for (a, b, c) in [(probs, member.dout_terms, dv), (grads, member.q_terms, dk)] {
                // SAFETY: as above; what is seen is there.
                unsafe {
                    path.multiply(Block {
                        a: a.add(panels.a(keys.start, across) + from * panels.a(ROWS, 1)).cast(),
                        a_panel: panels.a(ROWS, across) * 4,
                        rows: keys.len() / ROWS,
                        b: b.add(panels.b(COLS, rows.start / COLS + from)).cast(),
                        b_panel: panels.b(COLS, seq / COLS),
                        cols: tiles,
                        tiles: panels.deep(strips),
                        c: c.add(keys.start * wide),
                        c_row: wide,
                        add: true,
                        ..Block::empty(path, element)
                    });
                }
            }
        }
        if self.block > 0 && sight.first(self.batch, rows.start) < tokens.start {
            wait(self.mark(self.block - 1), turn);
        }
        let dq = member.dq.wrapping_add(rows.start * wide);
        let width = count * STRIP;
        let step = if whole { count } else { 1 };
        for s in (0..count).step_by(step).filter(|s| !seen[*s].is_empty()) {
            let keys = &seen[s];
            // SAFETY: as above; the block of keys before this one has added its part.
            unsafe {
                path.multiply(Block {
                    a: turned.add(keys.start / COLS * panels.a(ROWS, 1)).cast(),
                    a_panel: panels.a(ROWS, side / COLS) * 4,
                    rows: panels.dim.div_ceil(ROWS),
                    b: woven.add(s * panels.b(COLS, deep) + keys.start / element.terms() * COLS).cast(),
                    b_panel: panels.b(COLS, deep),
                    cols: step,
                    tiles: panels.deep(keys.len() / COLS),
                    c: dq.add(s * STRIP),
                    c_row: width,
                    add: true,
                    ..Block::empty(path, element)
                });
            }
        }
        if tokens.end >= sight.any(self.batch, rows).end {
            // SAFETY: no later keys are seen by these queries.
            unsafe { self.store(head, rows, dq, width) };
        }
        mark.store(turn + 1, Ordering::Release);
    }

    /// Turns sums of dq of a tile back into rows.
    ///
    /// # Safety
    /// These queries are this thread's now.
    unsafe fn store(&self, head: usize, rows: &Range<usize>, dq: *const f32, width: usize) {
        let (op, panels) = (self.op, self.layout.panels);
        let query = Head::query(op, self.batch, head);
        let scale = op.scale as f32;
        for strip in steps(rows.clone(), ROWS) {
            for first in (0..panels.dim).step_by(ROWS) {
                let (mut square, mut turned) = ([0f32; ROWS * ROWS], [0f32; ROWS * ROWS]);
                let dims = ROWS.min(panels.dim - first);
                // SAFETY: the tile holds whole panels; squares have 16 rows of 16.
                unsafe {
                    for (i, line) in square.chunks_exact_mut(ROWS).enumerate() {
                        let from = dq.add((first + i) * width + strip.start - rows.start);
                        line.copy_from_slice(std::slice::from_raw_parts(from, ROWS));
                    }
                    transpose(panels.level, square.as_ptr().cast(), turned.as_mut_ptr().cast(), ROWS);
                    scale_all(panels.level, &mut turned, scale);
                    for (row, line) in strip.clone().zip(turned.chunks_exact(ROWS)) {
                        query.store_part(panels.level, row, first, &line[..dims], &self.gradients[0]);
                    }
                }
            }
        }
    }
}

/// Waits until the mark is beyond `turn`. Whoever sets it is at work, so this is short; a thread that lacks a core gets one.
fn wait(mark: &AtomicU32, turn: u32) {
    let mut rounds = 0u32;
    while mark.load(Ordering::Acquire) <= turn {
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(256) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// Turns a strip of scores into probabilities, and of gradients of probabilities into gradients of scores, in the forms
/// that products take. Rows are keys.
struct Gradients {
    scores: *const f32,
    slopes: *const f32,
    height: usize,
    factor: f32,
    lse: *const f32,
    delta: *const f32,
    /// The first row's key, and which keys the queries see.
    key: i32,
    first: *const i32,
    last: *const i32,
    /// Whether any of these keys is unseen by any of these queries.
    hide: bool,
    /// Tiles of A, and f32 elements from one panel to the next.
    probs: *mut f32,
    grads: *mut f32,
    panel: usize,
    /// A part of a panel of B.
    woven: *mut f32,
}

impl Pass for Gradients {
    /// # Safety
    /// Everything is as large as it says and used here alone.
    #[inline(always)]
    unsafe fn run<L: Lanes, T: Terms>(self) {
        // SAFETY: the caller's promise.
        unsafe { if self.hide { self.rows::<L, T, true>() } else { self.rows::<L, T, false>() } }
    }
}

impl Gradients {
    #[inline(always)]
    unsafe fn rows<L: Lanes, T: Terms, const HIDE: bool>(&self) {
        let factor = L::splat(self.factor);
        // SAFETY: the caller's promise.
        unsafe {
            let halves = [0, LANES];
            let (lse, delta) = (halves.map(|h| L::load(self.lse.add(h))), halves.map(|h| L::load(self.delta.add(h))));
            for row in (0..self.height).step_by(2) {
                let mut ds = [[L::splat(0.0); 2]; 2];
                for i in 0..2 {
                    let mut p = [L::splat(0.0); 2];
                    for h in 0..2 {
                        let at = (row + i) * STRIP + h * LANES;
                        p[h] = exp2(L::load(self.scores.add(at)).fma(factor, lse[h]));
                        if HIDE {
                            let (first, last) = (self.first.add(h * LANES), self.last.add(h * LANES));
                            p[h] = p[h].within(self.key + (row + i) as i32, first, last);
                        }
                        ds[i][h] = L::load(self.slopes.add(at)).add(delta[h]).mul(p[h]);
                    }
                    let to = (row + i) / ROWS * self.panel + (row + i) % ROWS * T::LINE;
                    T::row(p[0], p[1], self.probs.add(to));
                    T::row(ds[i][0], ds[i][1], self.grads.add(to));
                }
                for h in 0..2 {
                    T::columns(ds[0][h], ds[1][h], row, self.woven.add(h * LANES));
                }
            }
        }
    }
}
