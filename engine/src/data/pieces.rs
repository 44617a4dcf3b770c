//! Documents cut into pieces that a sequence holds, and pieces put together into sequences.

use std::collections::BTreeSet;

/// Tokens of one document that stand together in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first, in the file's tokens.
    pub begin: u64,
    /// Tokens that are inputs.
    pub len: u32,
    /// Inputs whose target has a loss.
    pub targets: u32,
    /// The token behind the last input is the same document's: the last input's target.
    pub more: bool,
}

/// The pieces of a document: whole if it fits, else as many inputs as a sequence holds to each but the last. Every token but
/// the document's first is a target once: that behind a piece is the target of its last input.
pub(super) fn cut(begin: u64, len: u64, seq_len: u32, mut each: impl FnMut(Piece)) {
    let (seq, mut at) = (u64::from(seq_len), 0);
    while at < len {
        let inputs = (len - at).min(seq);
        // One token left over is a target and needs no piece to be an input in.
        let more = at + inputs < len;
        each(Piece { begin: begin + at, len: inputs as u32, targets: 0, more });
        at += inputs;
        if more && at + 1 == len {
            break;
        }
    }
}

/// How many consecutive pieces of the file are packed together.
pub(super) const WINDOW: usize = 1 << 14;

/// Puts pieces into sequences of `seq_len`: best-fit decreasing within windows of [`WINDOW`] pieces. The longest piece
/// comes first and goes where the least room is left over; where none has room, a sequence begins. Within a sequence pieces
/// stand as in the file, and sequences of a window as the longest of their pieces do. Returns where each sequence ends.
pub(super) fn pack(pieces: &mut [Piece], seq_len: u32) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut base = 0;
    for window in pieces.chunks_mut(WINDOW) {
        let mut longest: Vec<usize> = (0..window.len()).collect();
        longest.sort_by_key(|index| std::cmp::Reverse(window[*index].len));
        let mut bins: Vec<Vec<usize>> = Vec::new();
        let mut rooms: BTreeSet<(u32, usize)> = BTreeSet::new();
        for index in longest {
            let len = window[index].len;
            let found = rooms.range((len, 0)..).next().copied();
            let (room, bin) = found.unwrap_or_else(|| {
                bins.push(Vec::new());
                (seq_len, bins.len() - 1)
            });
            rooms.remove(&(room, bin));
            bins[bin].push(index);
            if room > len {
                rooms.insert((room - len, bin));
            }
        }
        bins.sort_by_key(|bin| bin.first().copied());
        let mut ordered = Vec::with_capacity(window.len());
        for mut bin in bins {
            bin.sort_unstable();
            ordered.extend(bin.iter().map(|index| window[*index]));
            ends.push(base + ordered.len());
        }
        window.copy_from_slice(&ordered);
        base += window.len();
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cuts(len: u64, seq_len: u32) -> Vec<(u64, u32, bool)> {
        let mut found = Vec::new();
        cut(100, len, seq_len, |piece| found.push((piece.begin - 100, piece.len, piece.more)));
        found
    }

    #[test]
    fn a_document_is_whole_where_it_fits_and_loses_no_target_where_it_is_cut() {
        assert_eq!(cuts(0, 4), []);
        assert_eq!(cuts(1, 4), [(0, 1, false)]);
        assert_eq!(cuts(4, 4), [(0, 4, false)]);
        assert_eq!(cuts(5, 4), [(0, 4, true)]);
        assert_eq!(cuts(6, 4), [(0, 4, true), (4, 2, false)]);
        assert_eq!(cuts(9, 4), [(0, 4, true), (4, 4, true)]);
        assert_eq!(cuts(2, 1), [(0, 1, true)]);
    }

    proptest! {
        #[test]
        fn every_token_but_the_first_is_a_target_once(len in 1u64..200, seq_len in 1u32..40) {
            let mut targets = vec![0; len as usize];
            cut(0, len, seq_len, |piece| {
                assert!(piece.len <= seq_len && piece.len > 0);
                let last = u64::from(piece.len) + u64::from(piece.more);
                (piece.begin + 1..piece.begin + last).for_each(|token| targets[token as usize] += 1);
            });
            prop_assert_eq!(targets[0], 0);
            prop_assert!(targets[1..].iter().all(|count| *count == 1));
        }

        #[test]
        fn packing_keeps_every_piece_and_fills_sequences(
            lens in proptest::collection::vec(1u32..65, 1..400), seq_len in 64u32..100,
        ) {
            let of = |(index, len): (usize, &u32)| Piece { begin: index as u64, len: *len, targets: 0, more: false };
            let before: Vec<Piece> = lens.iter().enumerate().map(of).collect();
            let mut after = before.clone();
            let ends = pack(&mut after, seq_len);
            prop_assert_eq!(ends.last().copied(), Some(before.len()));
            let mut begin = 0;
            let mut light = 0;
            for end in &ends {
                let bin = &after[begin..*end];
                let filled: u32 = bin.iter().map(|piece| piece.len).sum();
                prop_assert!(filled <= seq_len && !bin.is_empty());
                prop_assert!(bin.is_sorted_by_key(|piece| piece.begin));
                light += u32::from(filled * 2 <= seq_len);
                begin = *end;
            }
            // Two sequences that are half empty would have been one.
            prop_assert!(light <= 1);
            after.sort_by_key(|piece| piece.begin);
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn packing_is_dense() {
        // Lengths as of short documents, 20 to 400 tokens, into 512: less than 1 % is padding.
        let len = |i: u64| 20 + (crate::data::order::mix(i) % 381) as u32;
        let mut pieces: Vec<Piece> =
            (0..5000).map(|i| Piece { begin: i, len: len(i), targets: 0, more: false }).collect();
        let tokens: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let sequences = pack(&mut pieces, 512).len() as u64;
        let padding = 1.0 - tokens as f64 / (sequences * 512) as f64;
        assert!(padding < 0.01, "{padding}");
    }
}
