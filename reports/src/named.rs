//! A map from names to values that keeps the order in which names were added.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values by name, in the order of insertion: tables keep the order that the measuring side chose.
/// For tens of names; lookup walks the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<V> {
    entries: Vec<(String, V)>,
}

/// Numbers by name; `None` (JSON null) is a number that cannot be stated.
pub type Numbers = Named<Option<f64>>;

impl<V> Default for Named<V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<V> Named<V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, or replaces the one of that name in its place.
    pub fn insert(&mut self, name: impl Into<String>, value: V) {
        let name = name.into();
        match self.entries.iter_mut().find(|(existing, _)| *existing == name) {
            Some((_, slot)) => *slot = value,
            None => self.entries.push((name, value)),
        }
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.entries.iter().find(|(existing, _)| existing == name).map(|(_, value)| value)
    }

    /// Names and values in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The names in the order of insertion.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Named<Option<f64>> {
    /// Sets a number; one that is not finite becomes `None`, as the JSON of a record has no such numbers.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.insert(name, value.is_finite().then_some(value));
    }

    /// The finite number of that name: `None` both when the name is absent and when the number is null.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name).copied().flatten().filter(|value| value.is_finite())
    }
}

impl<N: Into<String>, V> FromIterator<(N, V)> for Named<V> {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut index: HashMap<String, usize> = HashMap::new();
        let mut entries: Vec<(String, V)> = Vec::new();
        for (name, value) in pairs {
            let name = name.into();
            match index.get(&name) {
                Some(&place) => entries[place].1 = value,
                None => {
                    index.insert(name.clone(), entries.len());
                    entries.push((name, value));
                }
            }
        }
        Self { entries }
    }
}

impl<V: Serialize> Serialize for Named<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (name, value) in &self.entries {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Named<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Named<V>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from names to values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<V>, A::Error> {
                let mut pairs: Vec<(String, V)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs.into_iter().collect())
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}
