//! Tables of keys, addressed by keys with points.

use crate::interop::node::Node;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A key with a point in its name.
pub fn pointed(node: &Node) -> Option<String> {
    let inside = |node: &Node| pointed(node);
    node.table()?
        .iter()
        .find_map(|(key, node)| if key.name.contains('.') { Some(key.name.clone()) } else { inside(node) })
}

/// What stands under a key with points.
pub fn at<'v>(keys: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = keys.get(first)?;
    rest.map_or(Some(value), |rest| rest.split('.').try_fold(value, |value, name| value.get(name)))
}

/// Puts a value under a key with points; a section that is null begins to be one.
pub fn put(keys: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((first, rest)) = path.split_once('.') else {
        keys.insert(path.into(), value);
        return;
    };
    let inner = keys.entry(first).or_insert(Value::Null);
    if !inner.is_object() {
        *inner = Value::Object(Map::new());
    }
    if let Value::Object(inner) = inner {
        put(inner, rest, value);
    }
}

/// Takes a key out, and a table that is empty without it.
pub fn take(keys: &mut Map<String, Value>, path: &str) {
    match path.split_once('.') {
        None => drop(keys.shift_remove(path)),
        Some((first, rest)) => {
            if let Some(Value::Object(inner)) = keys.get_mut(first) {
                take(inner, rest);
                if inner.is_empty() {
                    keys.shift_remove(first);
                }
            }
        }
    }
}

/// Every key with points and what stands there.
pub fn flatten<'v>(keys: &'v Map<String, Value>, prefix: &str, into: &mut BTreeMap<String, &'v Value>) {
    for (name, value) in keys {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(inner, &path, into),
            _ => drop(into.insert(path, value)),
        }
    }
}
