//! Why a world ended, as text for the other ranks: in memory that they share, or over a connection.

use super::{CollectiveKind, CommError};

/// The name of the group of all ranks.
pub(crate) const WORLD: &str = "world";
/// The name of a split in errors.
pub(crate) const SPLIT: &str = "split";
/// Longest text of a cause that travels, and most of the ranks that it names.
const MAX_TEXT: usize = 2000;
const MAX_MISSING: usize = 200;

/// How a rank that ends the world by a mismatch is seen from the others: the world rank it names, and its own place in the
/// group.
pub(crate) type Sides = (usize, usize);

/// The error in words for other processes: fields with a zero between them. `own` is this rank's number in the world. What only
/// one rank can feel is told as its abort.
pub(crate) fn encode(cause: &CommError, own: usize, sides: Option<Sides>) -> String {
    let cut = |text: &str| text.chars().filter(|c| *c != '\0').take(MAX_TEXT).collect::<String>();
    let fields = match cause {
        CommError::Aborted { group, rank, reason } => vec!["aborted".into(), cut(group), rank.to_string(), cut(reason)],
        CommError::Stalled { group, operation, sequence, missing, seconds } => {
            let missing: Vec<String> = missing.iter().take(MAX_MISSING).map(usize::to_string).collect();
            let (sequence, seconds) = (sequence.to_string(), seconds.to_string());
            vec!["stalled".into(), cut(group), (*operation).into(), sequence, missing.join(","), seconds]
        }
        CommError::Mismatch { group, sequence, rank, theirs, ours } => {
            let (named, place) = sides.unwrap_or((usize::MAX, *rank));
            let numbers = [*rank, named, own, place].map(|number| number.to_string());
            let mut fields = vec!["mismatch".into(), cut(group), sequence.to_string()];
            fields.extend(numbers);
            fields.extend([cut(theirs), cut(ours)]);
            fields
        }
        other => vec!["aborted".into(), WORLD.into(), own.to_string(), cut(&other.to_string())],
    };
    fields.join("\0")
}

/// What a rank says, as this one sees it, which is `own` in the world and in the given call.
pub(crate) fn decode(words: &[u8], own: usize, call: Option<&str>) -> Option<CommError> {
    let text = String::from_utf8_lossy(words);
    let mut fields = text.split('\0');
    let mut next = || fields.next().map(str::to_owned);
    match next()?.as_str() {
        "aborted" => Some(CommError::Aborted { group: next()?, rank: next()?.parse().ok()?, reason: next()? }),
        "stalled" => Some(CommError::Stalled {
            group: next()?,
            operation: operation(&next()?),
            sequence: next()?.parse().ok()?,
            missing: next()?.split(',').filter_map(|rank| rank.parse().ok()).collect(),
            seconds: next()?.parse().ok()?,
        }),
        "mismatch" => {
            let (group, sequence) = (next()?, next()?.parse().ok()?);
            let mut number = || next()?.parse::<usize>().ok();
            let (rank, named, teller, place) = (number()?, number()?, number()?, number()?);
            let (theirs, ours) = (next()?, next()?);
            // The rank that is named sees it from the other side, and so does who called what that rank called.
            Some(if named == own || call == Some(&theirs) {
                CommError::Mismatch { group, sequence, rank: place, theirs: ours, ours: theirs }
            } else if call == Some(&ours) {
                CommError::Mismatch { group, sequence, rank, theirs, ours }
            } else {
                let calls = format!("rank {rank} called {theirs}, rank {place} {ours}");
                let reason = format!("collective number {sequence} of {group} does not match: {calls}");
                CommError::Aborted { group: WORLD.into(), rank: teller, reason }
            })
        }
        _ => None,
    }
}

/// The name of an operation that another rank speaks of, as this program writes it.
fn operation(name: &str) -> &'static str {
    match CollectiveKind::find(name) {
        Some(kind) => kind.name(),
        None if name == SPLIT => SPLIT,
        None => "a collective",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_arrive_as_they_were_and_mismatches_from_the_other_side() {
        let group = || "row".to_owned();
        let aborted = CommError::Aborted { group: group(), rank: 3, reason: "the disk is full, é".into() };
        let (sequence, seconds) = (12, 5);
        let stalled =
            CommError::Stalled { group: group(), operation: "all_gather", sequence, missing: vec![1, 7], seconds };
        for cause in [aborted, stalled] {
            assert_eq!(decode(encode(&cause, 5, None).as_bytes(), 0, None), Some(cause));
        }
        let mismatch = |rank, theirs: &str, ours: &str| CommError::Mismatch {
            group: group(),
            sequence,
            rank,
            theirs: theirs.into(),
            ours: ours.into(),
        };
        // World rank 6, place 1 in its group, names world rank 9, place 2.
        let words = encode(&mismatch(2, "barrier", "all_reduce"), 6, Some((9, 1)));
        let seen = |own, call| decode(words.as_bytes(), own, call).unwrap();
        assert_eq!(seen(9, Some("barrier")), mismatch(1, "all_reduce", "barrier"));
        assert_eq!(seen(4, Some("barrier")), mismatch(1, "all_reduce", "barrier"));
        assert_eq!(seen(4, Some("all_reduce")), mismatch(2, "barrier", "all_reduce"));
        let CommError::Aborted { rank: 6, reason, .. } = seen(4, None) else { panic!("{}", seen(4, None)) };
        assert!(reason.ends_with("does not match: rank 2 called barrier, rank 1 all_reduce"), "{reason}");
        let long = CommError::Aborted { group: group(), rank: 3, reason: "\0x".repeat(100_000) };
        assert!(encode(&long, 0, None).len() < usize::from(u16::MAX));
        let odd = CommError::Invalid { operation: "send", reason: "no".into() };
        let told = CommError::Aborted { group: "world".into(), rank: 9, reason: odd.to_string() };
        assert_eq!(decode(encode(&odd, 9, None).as_bytes(), 0, None), Some(told));
        for name in ["all_gather", "sendrecv", "barrier", "split", "a collective"] {
            assert_eq!(operation(name), name);
        }
        for garbage in [&b""[..], b"aborted", b"stalled\0a", b"mismatch\0a\0b", &[0xff; 40]] {
            assert_eq!(decode(garbage, 0, None), None);
        }
    }
}
