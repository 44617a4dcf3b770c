//! What a mistyped word was meant to be.

/// The known word that is nearest to another, if one is near: at most a third of the letters differ (two of a short word), and
/// never more than half. A known name also counts by its parts before a dash, as `h100` of `h100-sxm`, since what follows a
/// dash is what people leave out.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No name is that long, and the distance takes as many steps as both have letters.
    if word.len() > 100 {
        return None;
    }
    let word = word.to_lowercase();
    let distance = |known: &str| {
        let known = known.to_lowercase();
        let stems = known.match_indices('-').map(|(end, _)| &known[..end]);
        stems.chain([known.as_str()]).map(|part| strsim::osa_distance(&word, part)).min().unwrap_or(usize::MAX)
    };
    let (distance, known) = known.map(|known| (distance(known), known)).min_by_key(|(distance, _)| *distance)?;
    let letters = word.chars().count();
    (distance <= 2.max(letters / 3) && distance * 2 <= letters).then_some(known)
}

/// The end of a message about an unknown word: the known one nearest to it, if one is near.
pub(crate) fn did_you_mean(nearest: &str) -> String {
    if nearest.is_empty() { String::new() } else { format!(" (did you mean {nearest}?)") }
}
