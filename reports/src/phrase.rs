//! Parts of sentences that several reports use.

use crate::gather::extent;

/// `a; b; c`, and of more than `most` names the first ones and a count. One name too many is written out: the count would be as
/// long.
pub(crate) fn first_names(names: &[impl AsRef<str>], most: usize) -> String {
    let joined = |names: &[_]| names.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("; ");
    match names.len().saturating_sub(most) {
        0 | 1 => joined(names),
        more => format!("{}; and {more} more", joined(&names[..most])),
    }
}

/// `12 MiB`, or `12 MiB to 20 MiB` where the least and the greatest value are written differently; `None` without values.
pub(crate) fn range(values: impl IntoIterator<Item = f64>, show: impl Fn(f64) -> String) -> Option<String> {
    let (low, high) = extent(values)?;
    let (low, high) = (show(low), show(high));
    Some(if low == high { low } else { format!("{low} to {high}") })
}
