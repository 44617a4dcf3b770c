//! The values that a search tries, and how it finds the largest that fits.

/// Values in rising order.
#[derive(Clone, Debug, PartialEq)]
pub enum Candidates {
    /// The first multiples of a number.
    Multiples {
        /// The number.
        of: usize,
        /// How many.
        count: usize,
    },
    /// These.
    List(Vec<usize>),
}

impl Candidates {
    /// The multiples of `of`, which is not 0, up to `most`.
    pub fn of_multiples(of: usize, most: usize) -> Candidates {
        Candidates::Multiples { of, count: most / of.max(1) }
    }

    /// The divisors of `number` that are multiples of `multiple`, which is not 0, up to `most`.
    pub fn of_divisors(number: usize, multiple: usize, most: usize) -> Candidates {
        let small: Vec<usize> =
            (1..).take_while(|d| d * d <= number).filter(|divisor| number.is_multiple_of(*divisor)).collect();
        let large = small.iter().rev().map(|divisor| number / divisor).filter(|large| large * large != number);
        let all = small.iter().copied().chain(large);
        Candidates::List(all.filter(|value| value.is_multiple_of(multiple) && *value <= most).collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Candidates::Multiples { count, .. } => *count,
            Candidates::List(list) => list.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at a place below [`Candidates::len`].
    pub fn at(&self, place: usize) -> usize {
        match self {
            Candidates::Multiples { of, .. } => of * (place + 1),
            Candidates::List(list) => list.get(place).copied().unwrap_or_default(),
        }
    }

    /// The largest.
    pub fn last(&self) -> Option<usize> {
        self.len().checked_sub(1).map(|place| self.at(place))
    }
}

/// So many places beyond a limit are looked at before it is believed: memory need not grow with every step (scratch of a
/// kernel may depend on how work falls on threads), and neighbours cost a plan each.
const BEYOND: usize = 8;

/// The largest place below `count` that fits: places are doubled until one does not, halved between, and the next few
/// beyond are asked, too. Between these `fits` is taken to be true below and false above; it is asked more than once for
/// the same place.
pub fn largest(count: usize, fits: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
    let mut low = (0..count.min(BEYOND)).find(|place| fits(*place))?;
    loop {
        let (mut step, mut high) = (1, count);
        while low + 1 < high {
            let place = low.saturating_add(step).min(count - 1);
            if !fits(place) {
                high = place;
                break;
            }
            (low, step) = (place, (place + 1).max(step));
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        match (high + 1..count.min(high.saturating_add(1 + BEYOND))).find(|place| fits(*place)) {
            Some(beyond) => low = beyond,
            None => return Some(low),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_of_both_kinds() {
        let sequences = Candidates::of_multiples(64, 300);
        assert_eq!((sequences.len(), sequences.at(0), sequences.last()), (4, 64, Some(256)));
        assert_eq!(Candidates::of_divisors(12, 1, 100), Candidates::List(vec![1, 2, 3, 4, 6, 12]));
        assert_eq!(Candidates::of_divisors(36, 2, 18), Candidates::List(vec![2, 4, 6, 12, 18]));
        assert_eq!(Candidates::of_divisors(6, 4, 100), Candidates::List(vec![]));
        assert!(Candidates::of_divisors(0, 1, 0).is_empty());
        assert_eq!(Candidates::of_divisors(6, 4, 100).last(), None);
    }

    #[test]
    fn few_are_asked() {
        let mut asked = 0;
        let found = largest(65_536, &mut |place| {
            asked += 1;
            place < 4_321
        });
        assert_eq!(found, Some(4_320));
        assert!(asked < 40, "{asked} plans");
    }

    proptest! {
        /// Where memory grows, the boundary is found wherever it lies; nothing out of range is asked.
        #[test]
        fn the_boundary_is_found(count in 0usize..3_000, limit in 0usize..3_500) {
            let found = largest(count, &mut |place| {
                assert!(place < count);
                place < limit
            });
            prop_assert_eq!(found, count.min(limit).checked_sub(1));
        }

        /// What is found fits, and none of the few beyond does, whatever pattern there is.
        #[test]
        fn a_ragged_edge_is_followed(pattern in proptest::collection::vec(any::<bool>(), 0..200)) {
            match largest(pattern.len(), &mut |place| pattern[place]) {
                None => prop_assert!(pattern.iter().take(BEYOND).all(|fits| !fits)),
                Some(found) => {
                    prop_assert!(pattern[found]);
                    prop_assert!(pattern.iter().skip(found + 1).take(BEYOND).all(|fits| !fits));
                }
            }
        }
    }
}
