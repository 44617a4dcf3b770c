//! How a checkpoint is held: a strategy and its ranks, as `ddp:1`, `zero3:4`, `hsdp:4/2`.

use std::fmt;
use zbench_engine::config::{Cell, Strategy};

/// More ranks than this are a typing error.
const MOST_RANKS: usize = 1024;

/// A strategy, its ranks, and of a hybrid the ranks of a shard group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    /// The sharding strategy.
    pub strategy: Strategy,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks of a shard group.
    pub shard: usize,
}

impl ShardSpec {
    /// That of a cell.
    pub fn of(cell: &Cell) -> ShardSpec {
        ShardSpec { strategy: cell.parallel.strategy, ranks: cell.parallel.ranks, shard: cell.parallel.shard }
    }

    /// From its text.
    ///
    /// # Errors
    /// What is wrong with it and what would be right.
    pub fn parse(text: &str) -> Result<ShardSpec, String> {
        let example = "write STRATEGY:RANKS, as \"ddp:1\" or \"hsdp:4/2\"";
        let (name, counts) = text.split_once(':').ok_or_else(|| format!("\"{text}\" has no ranks; {example}"))?;
        let strategy = Strategy::ALL.into_iter().find(|strategy| strategy.name() == name.trim()).ok_or_else(|| {
            let names = Strategy::ALL.map(Strategy::name).join(", ");
            format!("\"{name}\" of \"{text}\" is no strategy; there are {names}")
        })?;
        let count = |digits: &str| {
            let count = digits.trim().parse::<usize>().ok().filter(|count| (1..=MOST_RANKS).contains(count));
            count.ok_or_else(|| {
                format!("\"{digits}\" of \"{text}\" is no number of ranks from 1 to {MOST_RANKS}; {example}")
            })
        };
        let (ranks, shard) = match counts.split_once('/') {
            None => (count(counts)?, None),
            Some((ranks, shard)) => (count(ranks)?, Some(count(shard)?)),
        };
        let shard = match (strategy.is_hybrid(), shard) {
            (false, None) => ranks,
            (false, Some(_)) => {
                return Err(format!("{name} of \"{text}\" has no shard groups; write \"{name}:{ranks}\""));
            }
            (true, Some(shard)) if ranks.is_multiple_of(shard) => shard,
            (true, Some(shard)) => {
                return Err(format!("{shard} does not divide the {ranks} ranks of \"{text}\"; write a divisor"));
            }
            (true, None) if ranks.is_multiple_of(2) => ranks / 2,
            (true, None) => {
                return Err(format!(
                    "\"{text}\" has no halves; write the ranks of a shard group, as \"{name}:{ranks}/1\""
                ));
            }
        };
        Ok(ShardSpec { strategy, ranks, shard })
    }

    /// The default layouts that a checkpoint of this layout is loaded as.
    pub fn usual(self) -> Vec<ShardSpec> {
        let half = (self.ranks >= 2 && self.ranks.is_multiple_of(2)).then_some(ShardSpec {
            strategy: Strategy::Hsdp,
            ranks: self.ranks,
            shard: self.ranks / 2,
        });
        let one = ShardSpec { strategy: Strategy::Ddp, ranks: 1, shard: 1 };
        [Some(one), half].into_iter().flatten().filter(|way| *way != self).collect()
    }

    /// The cell with this layout, on this many cores.
    pub fn apply(self, cell: &Cell, cores: usize) -> Cell {
        let mut cell = cell.clone();
        if self != ShardSpec::of(&cell) {
            cell.hardware.threads_per_rank = (cores / self.ranks).max(1);
            (cell.parallel.strategy, cell.parallel.ranks, cell.parallel.shard) =
                (self.strategy, self.ranks, self.shard);
            // A node has a divisor of the cell's ranks.
            cell.parallel.ranks_per_node = cell.parallel.ranks_per_node.filter(|node| self.ranks.is_multiple_of(*node));
            if let Some(link) = &mut cell.link {
                link.node = link.node.filter(|_| cell.parallel.ranks_per_node.is_some());
            }
            cell.link = cell.link.filter(|link| link.node.is_some() || link.host.is_some());
        }
        cell
    }
}

impl fmt::Display for ShardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.strategy.name(), self.ranks)?;
        if self.strategy.is_hybrid() { write!(f, "/{}", self.shard) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_read_and_written() {
        for text in ["ddp:1", "zero3:4", "hsdp:4/2", "hsdp-full-optimizer:6/3", "fsdp-grad-op:1024"] {
            assert_eq!(ShardSpec::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(ShardSpec::parse("hsdp:4").unwrap().to_string(), "hsdp:4/2");
        for (text, words) in [
            ("ddp", "has no ranks"),
            ("dpp:2", "is no strategy"),
            ("ddp:0", "is no number of ranks"),
            ("ddp:2000", "is no number of ranks"),
            ("ddp:4/2", "write \"ddp:4\""),
            ("hsdp:4/3", "does not divide"),
            ("hsdp:3", "has no halves"),
        ] {
            let error = ShardSpec::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_usual_is_one_rank_and_halves_and_never_itself() {
        let usual =
            |text: &str| ShardSpec::parse(text).unwrap().usual().iter().map(ShardSpec::to_string).collect::<Vec<_>>();
        assert_eq!(usual("zero3:4"), ["ddp:1", "hsdp:4/2"]);
        assert_eq!(usual("zero3:3"), ["ddp:1"]);
        assert_eq!(usual("hsdp:4/2"), ["ddp:1"]);
        assert_eq!(usual("ddp:1"), [""; 0]);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_alike(text in "[a-z0-9:/ -]{0,24}|\\PC{0,12}") {
            if let Ok(way) = ShardSpec::parse(&text) {
                prop_assert_eq!(ShardSpec::parse(&way.to_string()), Ok(way));
                prop_assert!(way.ranks % way.shard == 0);
            }
        }
    }
}
