//! A map from names to values that keeps the order in which names were added.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Values by name, in the order of insertion: tables keep the order that the measuring side chose. Equality ignores
/// the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrderedMap<V>(IndexMap<String, V>);

/// Numbers by name; `None` (JSON null) is a number that cannot be stated.
pub type NumberMap = OrderedMap<Option<f64>>;

impl<V> Default for OrderedMap<V> {
    fn default() -> Self {
        Self(IndexMap::new())
    }
}

impl<V> OrderedMap<V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, or replaces the one of that name in its place.
    pub fn insert(&mut self, name: impl Into<String>, value: V) {
        self.0.insert(name.into(), value);
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.0.get(name)
    }

    /// Names and values in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The names in the order of insertion.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl NumberMap {
    /// Sets a number; one that is not finite becomes `None`, as the JSON of a record has no such numbers.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.insert(name, value.is_finite().then_some(value));
    }

    /// The finite number of that name: `None` both when the name is absent and when the number is null.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name).copied().flatten().filter(|value| value.is_finite())
    }
}

impl<N: Into<String>, V> FromIterator<(N, V)> for OrderedMap<V> {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}
