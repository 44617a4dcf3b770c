//! Parts of sentences that several reports use.

use crate::gather::extent;

/// `a; b; c`, and of more than `most` names the first ones and a count.
pub(crate) fn first_names(names: &[impl AsRef<str>], most: usize) -> String {
    let shown = names.iter().take(most).map(AsRef::as_ref).collect::<Vec<&str>>().join("; ");
    if names.len() > most { format!("{shown}; and {} more", names.len() - most) } else { shown }
}

/// The same, but a single name beyond `most` is written out: its count would be as long.
pub(crate) fn names_or_count(names: &[impl AsRef<str>], most: usize) -> String {
    first_names(names, if names.len() == most + 1 { names.len() } else { most })
}

/// `12 MiB`, or `12 MiB to 20 MiB` where the least and the greatest value are written differently; `None` without values.
pub(crate) fn range(values: impl IntoIterator<Item = f64>, show: impl Fn(f64) -> String) -> Option<String> {
    let (low, high) = extent(values)?;
    let (low, high) = (show(low), show(high));
    Some(if low == high { low } else { format!("{low} to {high}") })
}
