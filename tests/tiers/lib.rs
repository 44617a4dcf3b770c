//! How much of a test runs. `cargo test` runs the fast tier, `.ci/run` sets `ZBENCH_TESTS=ci`, and `ZBENCH_TESTS=full` runs every case.
//! docs/ci.md lists what each tier holds.

use std::collections::BTreeSet;
use std::io::Write;

/// A tier of the tests. Each holds what the ones before it hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// `cargo test`: witnesses; docs/ci.md lists what has none here.
    Fast,
    /// `.ci/run`: what every submission must pass.
    Ci,
    /// Every case; scheduled, and before a release.
    Full,
}

/// The tier that `ZBENCH_TESTS` names; without it the fast one.
///
/// # Panics
/// If the variable has another value than `ci` and `full`.
pub fn tier() -> Tier {
    match std::env::var("ZBENCH_TESTS").as_deref() {
        Ok("full") => Tier::Full,
        Ok("ci") => Tier::Ci,
        Ok("") | Err(_) => Tier::Fast,
        Ok(value) => panic!("ZBENCH_TESTS={value} is not known; set it to ci or full, or not at all"),
    }
}

/// The number of cases of `test` to run: `fast`, `ci` or `full` of them. Cases that are left out are reported on standard error.
pub fn cases(test: &str, [fast, ci, full]: [u32; 3]) -> u32 {
    let count = match tier() {
        Tier::Fast => fast,
        Tier::Ci => ci,
        Tier::Full => full,
    };
    report(test, count as usize, full as usize);
    count.min(full)
}

/// Of these cases `fast` or `ci` many at equal distances, the first among them; all in the full tier.
pub fn some<T>(test: &str, all: impl IntoIterator<Item = T>, [fast, ci]: [usize; 2]) -> Vec<T> {
    let all: Vec<T> = all.into_iter().collect();
    let len = all.len();
    let count = cases(test, [fast as u32, ci as u32, len as u32]) as usize;
    let chosen: BTreeSet<usize> = (0..count).map(|number| number * len / count).collect();
    all.into_iter().enumerate().filter(|(at, _)| chosen.contains(at)).map(|(_, case)| case).collect()
}

/// Combinations of dimensions with these numbers of values, as indices: in the fast tier every value of each dimension occurs, in
/// CI every pair of values of two dimensions, in the full tier every combination.
pub fn combinations<const N: usize>(test: &str, sizes: [usize; N]) -> Vec<[usize; N]> {
    of_strength(test, sizes, [1, 2])
}

/// As [`combinations`], but with every pair of values in the fast tier too: for properties of two dimensions together.
pub fn pairs<const N: usize>(test: &str, sizes: [usize; N]) -> Vec<[usize; N]> {
    of_strength(test, sizes, [2, 2])
}

fn of_strength<const N: usize>(test: &str, sizes: [usize; N], [fast, ci]: [usize; 2]) -> Vec<[usize; N]> {
    let all = product(sizes);
    let chosen = match tier() {
        Tier::Fast => covering(&all, fast),
        Tier::Ci => covering(&all, ci),
        Tier::Full => all.clone(),
    };
    report(test, chosen.len(), all.len());
    chosen
}

/// Written past the test harness, which shows no output of tests that pass; `.ci/run` adds the numbers up.
fn report(test: &str, run: usize, all: usize) {
    if run < all {
        // In one write, on a line of its own: other tests write at the same time.
        let line = format!("\n{} of {all} cases of {test} are left to slower tiers\n", all - run);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn product<const N: usize>(sizes: [usize; N]) -> Vec<[usize; N]> {
    let mut rows = vec![[0; N]];
    for (at, size) in sizes.into_iter().enumerate() {
        let with = |row: [usize; N]| (0..size).map(move |value| set(row, at, value));
        rows = rows.into_iter().flat_map(with).collect();
    }
    rows
}

fn set<const N: usize>(mut row: [usize; N], at: usize, value: usize) -> [usize; N] {
    row[at] = value;
    row
}

/// Rows of `all` that hold every `strength`-tuple of values of different dimensions that occurs in it. Greedy: each row adds as many
/// new tuples as a row can, and of equal ones differs most from the rows before, so that few rows mix values well.
fn covering<const N: usize>(all: &[[usize; N]], strength: usize) -> Vec<[usize; N]> {
    let strength = strength.min(N);
    let dimensions: Vec<u32> = (0..1u32 << N).filter(|set| set.count_ones() as usize == strength).collect();
    let tuples = |row: &[usize; N]| -> Vec<(u32, Vec<usize>)> {
        let values = |set: u32| (0..N).filter(|at| set >> at & 1 == 1).map(|at| row[at]).collect();
        dimensions.iter().map(|set| (*set, values(*set))).collect()
    };
    let of_rows: Vec<_> = all.iter().map(tuples).collect();
    let mut open: BTreeSet<_> = of_rows.iter().flatten().cloned().collect();
    let mut chosen: Vec<[usize; N]> = Vec::new();
    while !open.is_empty() {
        let score = |at: &usize| {
            let new = of_rows[*at].iter().filter(|tuple| open.contains(*tuple)).count();
            let same = |other: &[usize; N]| (0..N).filter(|d| other[*d] == all[*at][*d]).count();
            (new, -(chosen.iter().map(same).sum::<usize>() as i64), -(*at as i64))
        };
        let best = (0..all.len()).max_by_key(score).expect("an open tuple is in a row");
        for tuple in &of_rows[best] {
            open.remove(tuple);
        }
        chosen.push(all[best]);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cover_every_value_and_every_pair() {
        let all = product([9, 4, 3, 2]);
        assert_eq!(all.len(), 9 * 4 * 3 * 2);
        assert_eq!(covering(&all, 1).len(), 9);
        let rows = covering(&all, 2);
        assert!(rows.len() < 45, "{} rows, and 36 at the least", rows.len());
        for (one, other) in [(0, 1), (0, 3), (1, 2), (2, 3)] {
            let seen: BTreeSet<_> = rows.iter().map(|row| (row[one], row[other])).collect();
            let wanted: BTreeSet<_> = all.iter().map(|row| (row[one], row[other])).collect();
            assert_eq!(seen, wanted, "dimensions {one} and {other}");
        }
        assert_eq!(covering(&product([3]), 2).len(), 3);
    }
}
