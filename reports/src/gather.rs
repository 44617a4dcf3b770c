//! Items gathered by a key, counted or without repetition, always in the order in which they first occur.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The values of each key.
pub(crate) fn grouped<K: Eq + Hash + Clone, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut places: HashMap<K, usize> = HashMap::new();
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        let place = *places.entry(key.clone()).or_insert(groups.len());
        if place == groups.len() {
            groups.push((key, Vec::new()));
        }
        groups[place].1.push(value);
    }
    groups
}

/// Each item with how often it occurs.
pub(crate) fn counted<T: Eq + Hash + Clone>(items: impl IntoIterator<Item = T>) -> Vec<(T, usize)> {
    grouped(items.into_iter().map(|item| (item, ()))).into_iter().map(|(item, all)| (item, all.len())).collect()
}

/// Each item once.
pub(crate) fn distinct<T: Eq + Hash + Clone>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    items.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

/// The least and the greatest of these numbers.
pub(crate) fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) =
        values.into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    (low <= high).then_some((low, high))
}
