//! Products that one thread does by itself. Operands are of any type, and sums are f32.

use super::micro::Block;
use super::path::Path;
use super::tiles::{self, COLS, Element, ROWS, Source, WORDS};

/// f32 elements of scratch that suffice for a product of these sides, and of smaller ones. They hold A packed, a panel of B, and the
/// sums of its columns.
pub(in crate::cpu) fn scratch([m, _, k]: [usize; 3]) -> usize {
    let (rows, tiles) = (m.div_ceil(ROWS), Element::Single.tiles(k));
    let (packed, panel) = (rows.saturating_mul(tiles).saturating_mul(ROWS * WORDS), tiles.saturating_mul(WORDS * COLS));
    packed.saturating_add(panel).saturating_add(rows.saturating_mul(ROWS * COLS))
}

/// `C = (C +) alpha A B`, with C in rows of `c_row`. The operands become f32, whatever they hold.
///
/// # Safety
/// A, B and C are as large as m, n and k say, and C is apart from both; `work` has room for what [`scratch`] says. C and `work` are
/// used here alone.
pub(in crate::cpu) unsafe fn multiply(
    path: Path,
    [m, n, k]: [usize; 3],
    alpha: f32,
    [a, b]: [Source; 2],
    accumulate: bool,
    (c, c_row): (*mut f32, usize),
    work: &mut [f32],
) {
    let [a, b] = [a, b].map(|source| Source { element: Element::Single, ..source });
    let level = path.level();
    let (form, width) = (path.form(Element::Single, a.terms_adjoin), Element::Single.tile());
    let (rows, tiles) = (m.div_ceil(ROWS), Element::Single.tiles(k));
    let (packed, rest) = work.split_at_mut(rows * tiles * ROWS * WORDS);
    let (panel, sums) = rest.split_at_mut(tiles * WORDS * COLS);
    let packed_at = packed.as_mut_ptr();
    a.along((0..m).step_by(ROWS), 0..tiles, |row, tile| {
        let (to, term) = ((row / ROWS * tiles + tile) * ROWS * WORDS, tile * width);
        // SAFETY: inside A and its packed copy.
        unsafe {
            let to = packed_at.add(to).cast();
            tiles::pack_rows(level, form, a.at(row, term), ROWS.min(m - row), width.min(k - term), to);
        }
    });
    for col in (0..n).step_by(COLS) {
        let cols = COLS.min(n - col);
        // SAFETY: inside B, the panel and the sums.
        unsafe {
            for tile in 0..tiles {
                let (to, term) = (panel.as_mut_ptr().add(tile * WORDS * COLS).cast(), tile * width);
                tiles::pack_cols(level, b.at(col, term), cols, width.min(k - term), to);
            }
            path.multiply(Block {
                a: packed.as_ptr().cast(),
                form,
                a_panel: tiles * ROWS * WORDS * 4,
                rows,
                b: panel.as_ptr().cast(),
                cols: 1,
                tiles,
                c: sums.as_mut_ptr(),
                c_row: COLS,
                ..Block::empty(path, Element::Single)
            });
        }
        for (row, sums) in sums.chunks_exact(COLS).take(m).enumerate() {
            // SAFETY: inside C.
            let to = unsafe { std::slice::from_raw_parts_mut(c.add(row * c_row + col), cols) };
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if accumulate { *to + alpha * sum } else { alpha * sum };
            }
        }
    }
}
