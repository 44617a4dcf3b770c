//! Why a world ended, as text in the memory that its ranks share.

use super::CommError;
use super::call::Kind;

/// Between fields; no name or reason has it.
const MARK: char = '\u{1f}';

/// Operations by the names they have in errors.
const OPERATIONS: [&str; 14] = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "sendrecv",
    "barrier",
    "split",
    "a collective",
];

/// The error in words for other processes. What only one rank can feel is told as its abort.
pub(crate) fn encode(error: &CommError, group: &str, rank: usize) -> String {
    let fields = match error {
        CommError::Aborted { group, rank, reason } => {
            ["A".into(), group.clone(), rank.to_string(), reason.clone()].to_vec()
        }
        CommError::Stalled { group, operation, sequence, missing, seconds } => {
            let missing = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            vec!["S".into(), group.clone(), (*operation).into(), sequence.to_string(), missing, seconds.to_string()]
        }
        other => vec!["A".into(), group.into(), rank.to_string(), other.to_string()],
    };
    fields.join(&MARK.to_string())
}

/// The error that another rank has written.
pub(crate) fn decode(text: &str) -> CommError {
    let fields: Vec<&str> = text.split(MARK).collect();
    let number = |text: &str| text.parse().unwrap_or_default();
    match fields[..] {
        ["A", group, rank, reason] => {
            CommError::Aborted { group: group.into(), rank: number(rank) as usize, reason: reason.into() }
        }
        ["S", group, operation, sequence, missing, seconds] => CommError::Stalled {
            group: group.into(),
            operation: OPERATIONS.iter().find(|known| **known == operation).copied().unwrap_or("a collective"),
            sequence: number(sequence),
            missing: missing.split(',').filter_map(|rank| rank.parse().ok()).collect(),
            seconds: number(seconds),
        },
        // Its writer died in the middle of it.
        _ => CommError::Aborted { group: "world".into(), rank: 0, reason: "ended without saying why".into() },
    }
}

/// The name of a kind, as [`decode`] knows it.
pub(crate) fn operation(kind: Option<Kind>) -> &'static str {
    kind.map_or("split", Kind::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_a_world_is_understood_by_all() {
        let aborted = CommError::Aborted { group: "world".into(), rank: 3, reason: "the disk is full, é".into() };
        let stalled = CommError::Stalled {
            group: "inner".into(),
            operation: "all_gather",
            sequence: 17,
            missing: vec![1, 5],
            seconds: 300,
        };
        for error in [aborted, stalled] {
            assert_eq!(decode(&encode(&error, "world", 9)), error);
        }
        let odd = CommError::Invalid { operation: "send", reason: "no".into() };
        let told = CommError::Aborted { group: "world".into(), rank: 9, reason: odd.to_string() };
        assert_eq!(decode(&encode(&odd, "world", 9)), told);
        for torn in ["", "A", "S\u{1f}x"] {
            assert!(matches!(decode(torn), CommError::Aborted { .. }));
        }
        let kinds = [Kind::AllGather, Kind::AllToAll, Kind::Barrier, Kind::Send { to: 0 }];
        assert!(kinds.iter().all(|kind| OPERATIONS.contains(&operation(Some(*kind)))));
    }
}
