//! Covering arrays: rows of values, one of each dimension, in which every two values that can stand together do so at least once. The
//! choice of rows is deterministic.

use std::collections::BTreeSet;

/// A dimension and one of its values, by number.
pub type Place = (usize, usize);

/// Dimensions of cells and what cannot stand together.
pub struct Array {
    /// The words of the values, by dimension.
    pub words: Vec<Vec<&'static str>>,
    /// Whether two values of two dimensions, which are in order, cannot stand in one row.
    pub excludes: fn(&[Vec<&'static str>], Place, Place) -> bool,
    /// Whether a value is put into a row only for a pair that needs it.
    pub is_slow: fn(usize, &str) -> bool,
    /// Rows at most: the pairs that are then left are few, and each would take a row.
    pub most: usize,
}

/// A small generator of numbers, so that the choice is the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

type Pair = (Place, Place);

/// All pairs of values of a row.
pub fn pairs(values: &[usize]) -> impl Iterator<Item = Pair> + '_ {
    (0..values.len()).flat_map(move |i| (i + 1..values.len()).map(move |j| ((i, values[i]), (j, values[j]))))
}

/// Pairs without which no row was found, before the array is called impossible.
const MOST_FAILURES: usize = 1000;

impl Array {
    fn excluded(&self, a: Place, b: Place) -> bool {
        let (first, second) = if a.0 < b.0 { (a, b) } else { (b, a) };
        (self.excludes)(&self.words, first, second)
    }

    /// The words of a row.
    pub fn name(&self, row: &[usize]) -> String {
        row.iter().zip(&self.words).map(|(value, words)| words[*value]).collect::<Vec<_>>().join(" ")
    }

    /// Rows of values, so that every pair that is not excluded is in one of them, as far as the rows suffice.
    pub fn covering(&self) -> Vec<Vec<usize>> {
        let words = &self.words;
        let mut open = BTreeSet::new();
        for i in 0..words.len() {
            for j in i + 1..words.len() {
                for a in 0..words[i].len() {
                    let allowed = (0..words[j].len()).filter(|b| !self.excluded((i, a), (j, *b)));
                    open.extend(allowed.map(|b| ((i, a), (j, b))));
                }
            }
        }
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        let mut rows: Vec<Vec<usize>> = Vec::new();
        let mut first: Vec<Pair> = open.iter().copied().collect();
        let mut failures = 0;
        while !open.is_empty() && rows.len() < self.most {
            first.retain(|pair| open.contains(pair));
            let mut best: Option<(usize, Vec<usize>)> = None;
            for _ in 0..12 {
                let start = first[numbers.below(first.len())];
                let Some(row) = self.filled(start, &open, &mut numbers) else { continue };
                let gain = pairs(&row).filter(|pair| open.contains(pair)).count();
                if best.as_ref().is_none_or(|(most, _)| gain > *most) {
                    best = Some((gain, row));
                }
            }
            let Some((_, row)) = best else {
                failures += 1;
                let names: Vec<_> = first.iter().map(|((i, a), (j, b))| [words[*i][*a], words[*j][*b]]).collect();
                assert!(failures < MOST_FAILURES, "no row has these pairs; exclude them: {names:?}");
                continue;
            };
            pairs(&row).for_each(|pair| {
                open.remove(&pair);
            });
            rows.push(row);
        }
        rows
    }

    /// A row with this pair whose other values bring as many open pairs as they can.
    fn filled(&self, ((i, a), (j, b)): Pair, open: &BTreeSet<Pair>, numbers: &mut Numbers) -> Option<Vec<usize>> {
        let words = &self.words;
        let mut row: Vec<Option<usize>> = vec![None; words.len()];
        (row[i], row[j]) = (Some(a), Some(b));
        let mut rest: Vec<usize> = (0..words.len()).filter(|at| ![i, j].contains(at)).collect();
        while !rest.is_empty() {
            let dimension = rest.swap_remove(numbers.below(rest.len()));
            let set: Vec<Place> = row.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?))).collect();
            let ordered = |x: Place, y: Place| if x.0 < y.0 { (x, y) } else { (y, x) };
            let turn = numbers.below(words[dimension].len());
            let candidates = (0..words[dimension].len()).map(|at| (at + turn) % words[dimension].len());
            let candidates = candidates.filter(|at| !(self.is_slow)(dimension, words[dimension][*at]));
            let allowed = candidates.filter(|at| set.iter().all(|other| !self.excluded(*other, (dimension, *at))));
            let gain =
                |at: &usize| set.iter().filter(|other| open.contains(&ordered(**other, (dimension, *at)))).count();
            row[dimension] = Some(allowed.max_by_key(gain)?);
        }
        row.into_iter().collect()
    }
}
