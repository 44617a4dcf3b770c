//! The claims that many cells together allow, and what follows from them.

/// Directed claims "b is faster than a" about the cells of a grid. In the mean at most a share alpha of them is false.
#[derive(Debug, Clone, PartialEq)]
pub struct Claims {
    cells: usize,
    /// At `a * cells + b`: b is shown to be faster than a.
    faster: Vec<bool>,
}

impl Claims {
    /// By the e-BH procedure of Wang and Ramdas over the m = k (k - 1) directed claims of k cells: those of the K largest
    /// e-values, for the largest K whose K-th largest e-value is at least m / (alpha K). It holds whatever the dependence between
    /// e-values.
    ///
    /// `evidence(a, b)` is the logarithm of the evidence that b is faster than a when measuring stopped (a running maximum would
    /// be wrong); minus infinity where the claim must not be made.
    pub fn new(cells: usize, alpha: f64, evidence: impl Fn(usize, usize) -> f64) -> Self {
        let mut values = vec![f64::NEG_INFINITY; cells * cells];
        let mut sorted = Vec::with_capacity(cells * cells);
        for a in 0..cells {
            for b in (0..cells).filter(|&b| b != a) {
                let value = evidence(a, b);
                if !value.is_nan() {
                    values[a * cells + b] = value;
                    sorted.push(value);
                }
            }
        }
        sorted.sort_unstable_by(|one, other| other.total_cmp(one));
        let claims = (cells * cells.saturating_sub(1)) as f64;
        let needed = |count: usize| (claims / (alpha * count as f64)).ln();
        let most = (1..=sorted.len()).rev().find(|&count| sorted[count - 1] >= needed(count));
        let threshold = most.map_or(f64::INFINITY, needed);
        Self { cells, faster: values.iter().map(|&value| value >= threshold).collect() }
    }

    /// Whether b is shown to be faster than a.
    pub fn is_faster(&self, a: usize, b: usize) -> bool {
        self.faster[a * self.cells + b]
    }

    /// Whether one of the two is shown to be faster than the other.
    pub fn differ(&self, a: usize, b: usize) -> bool {
        self.is_faster(a, b) || self.is_faster(b, a)
    }

    /// The places that a cell may have among others, counted from 1: at best behind all that are shown to be faster, at worst
    /// before all that are shown to be slower.
    pub fn rank(&self, cell: usize, among: impl Iterator<Item = usize> + Clone) -> (usize, usize) {
        let ahead = among.clone().filter(|&other| self.is_faster(cell, other)).count();
        let behind = among.clone().filter(|&other| self.is_faster(other, cell)).count();
        (1 + ahead, among.count() - behind)
    }

    /// Compact letters: two cells share a letter exactly when they are not shown to differ. `order` names the cells, the
    /// fastest first, so that letters begin there; cells that it leaves out get none. Letters are numbers from 0: see
    /// [`Claims::label`].
    pub fn letters(&self, order: &[usize]) -> Vec<Vec<usize>> {
        // Piepho's insert and absorb: begin with one letter for all, split it at each claim, drop what another contains.
        let mut groups: Vec<Vec<usize>> = vec![(0..order.len()).collect()];
        for one in 0..order.len() {
            for other in one + 1..order.len() {
                if !self.differ(order[one], order[other]) {
                    continue;
                }
                let (split, mut kept): (Vec<_>, Vec<_>) =
                    groups.into_iter().partition(|group| group.contains(&one) && group.contains(&other));
                for group in split {
                    for left_out in [other, one] {
                        let rest: Vec<usize> = group.iter().copied().filter(|&place| place != left_out).collect();
                        if !kept.iter().any(|larger| contains(larger, &rest)) {
                            kept.retain(|smaller| !contains(&rest, smaller));
                            kept.push(rest);
                        }
                    }
                }
                groups = kept;
            }
        }
        groups.sort();
        let mut letters = vec![Vec::new(); self.cells];
        for (letter, group) in groups.iter().enumerate() {
            for &place in group {
                letters[order[place]].push(letter);
            }
        }
        letters
    }

    /// Letters as text: a to z, then aa, ab and so on, separated by nothing while all are single.
    pub fn label(letters: &[usize]) -> String {
        fn name(letter: usize) -> String {
            let rest = (letter / 26).checked_sub(1).map_or(String::new(), name);
            format!("{rest}{}", (b'a' + (letter % 26) as u8) as char)
        }
        let names: Vec<String> = letters.iter().map(|&letter| name(letter)).collect();
        names.join(if letters.iter().all(|&letter| letter < 26) { "" } else { " " })
    }
}

/// Whether the sorted `larger` has everything of the sorted `smaller`.
fn contains(larger: &[usize], smaller: &[usize]) -> bool {
    smaller.iter().all(|place| larger.binary_search(place).is_ok())
}
