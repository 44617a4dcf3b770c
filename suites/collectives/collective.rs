//! The collectives of the test: sizes, counts and factors by nccl-tests' definitions, and the call that each of them is.

use super::buffers::Slot;
use zbench_collectives::{Call, Kind};
use zbench_kernels::{DType, ReduceOp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everybody gets the reduction of all.
    AllReduce,
    /// Everybody gets the parts of all.
    AllGather,
    /// Everybody gets its part of the reduction.
    ReduceScatter,
    /// Everybody gets what the root has.
    Broadcast,
    /// The root gets the reduction.
    Reduce,
    /// The root gets the parts of all.
    Gather,
    /// Everybody gets its part of what the root has.
    Scatter,
    /// Everybody gets its part of what each has.
    AllToAll,
    /// Around the ring: to the next rank, from the one before.
    SendRecv,
}

/// What one rank gives and gets, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The column `count`: of a part where the collective has parts.
    pub count: usize,
    /// Elements given (by the root, where only the root gives all).
    pub send: usize,
    /// Elements got (by the root, where only the root gets all).
    pub recv: usize,
}

impl Shape {
    /// The larger side: what a buffer must hold.
    pub fn whole(&self) -> usize {
        self.send.max(self.recv)
    }

    /// The column `size`, which is what algbw counts.
    pub fn bytes(&self, dtype: DType) -> u64 {
        (self.whole() * dtype.size()) as u64
    }
}

use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv};

impl Collective {
    /// All of them, in the order in which `--collective all` runs them.
    pub const ALL: [Collective; 9] =
        [AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Gather, Scatter, AllToAll, SendRecv];

    /// Its name on the command line, in tables and records.
    pub const fn name(self) -> &'static str {
        match self {
            AllReduce => "all_reduce",
            AllGather => "all_gather",
            ReduceScatter => "reduce_scatter",
            Broadcast => "broadcast",
            Reduce => "reduce",
            Gather => "gather",
            Scatter => "scatter",
            AllToAll => "all_to_all",
            SendRecv => "sendrecv",
        }
    }

    pub const fn has_op(self) -> bool {
        matches!(self, AllReduce | ReduceScatter | Reduce)
    }

    /// Whether one rank stands out.
    pub const fn has_root(self) -> bool {
        matches!(self, Broadcast | Reduce | Gather | Scatter)
    }

    /// Counts for a size in bytes over `ranks`: whole elements of whole parts, so the size may come out smaller.
    pub fn shape(self, bytes: u64, dtype: DType, ranks: usize) -> Shape {
        let elements = usize::try_from(bytes / dtype.size() as u64).unwrap_or(usize::MAX);
        let part = elements / ranks;
        match self {
            AllReduce | Broadcast | Reduce | SendRecv => Shape { count: elements, send: elements, recv: elements },
            AllGather | Gather => Shape { count: part, send: part, recv: part * ranks },
            ReduceScatter | Scatter => Shape { count: part, send: part * ranks, recv: part },
            AllToAll => Shape { count: part, send: part * ranks, recv: part * ranks },
        }
    }

    /// busbw over algbw.
    pub fn factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            AllReduce => 2.0 * (n - 1.0) / n,
            AllGather | ReduceScatter | AllToAll | Gather | Scatter => (n - 1.0) / n,
            Broadcast | Reduce | SendRecv => 1.0,
        }
    }

    /// Why there is no such call, where there is none.
    pub fn impossible(self, in_place: bool, ranks: usize) -> Option<&'static str> {
        match self {
            SendRecv if in_place => Some("sendrecv has no meaning in place: what arrives would overwrite what leaves"),
            SendRecv if ranks == 1 => Some("sendrecv needs another rank"),
            _ => None,
        }
    }

    /// What the ranks ask of each other.
    pub fn kind(self, op: ReduceOp, root: usize, rank: usize, ranks: usize) -> Kind {
        match self {
            AllReduce => Kind::AllReduce { op },
            AllGather => Kind::AllGather,
            ReduceScatter => Kind::ReduceScatter { op, accumulate: false },
            Broadcast => Kind::Broadcast { root },
            Reduce => Kind::Reduce { op, root },
            Gather => Kind::Gather { root },
            Scatter => Kind::Scatter { root },
            AllToAll => Kind::AllToAll,
            SendRecv => Kind::SendRecv { to: (rank + 1) % ranks, from: (rank + ranks - 1) % ranks },
        }
    }

    /// The call of one rank on a slot's memory. Where a side is of no use to a rank it is absent, as [`Call`] wants it.
    pub fn call(self, kind: Kind, shape: Shape, root: Option<bool>, in_place: bool, slot: Slot<'_>) -> Call<'_> {
        let is_root = root.unwrap_or(true);
        let Slot { send, recv } = slot;
        let give = |len: usize| send.slice(0..len);
        let take = |len: usize| recv.into_slice(0..len);
        match (self, in_place) {
            // The root's own part stays where it is, in the buffer that it gives.
            (Scatter, true) if is_root => Call::giving(kind, give(shape.send)),
            (Gather | Reduce, _) if !is_root => Call::giving(kind, give(shape.send)),
            (Scatter, _) if !is_root => Call::in_place(kind, take(shape.recv)),
            (Broadcast, false) if !is_root => Call::in_place(kind, take(shape.recv)),
            (_, true) => Call::in_place(kind, take(shape.whole())),
            (_, false) => Call::new(kind, give(shape.send), take(shape.recv)),
        }
    }

    /// Where this rank's input lies in place: elements from the start of the receiving buffer. Absent where it lies in
    /// the sending buffer even so.
    pub fn input_in_place(self, shape: Shape, rank: usize, is_root: bool) -> Option<usize> {
        match self {
            AllGather => Some(rank * shape.count),
            Gather if is_root => Some(rank * shape.count),
            Gather | Reduce if !is_root => None,
            Scatter => None,
            _ => Some(0),
        }
    }

    /// Where the result begins in the receiving buffer, and how long it is; absent where this rank gets none.
    pub fn output(self, shape: Shape, in_place: bool, rank: usize, is_root: bool) -> Option<(usize, usize)> {
        match self {
            Gather | Reduce if !is_root => None,
            ReduceScatter if in_place => Some((rank * shape.count, shape.recv)),
            Scatter if in_place && is_root => None,
            _ => Some((0, shape.recv)),
        }
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_and_sizes_are_those_of_nccl_tests() {
        // all-reduce, all-gather, broadcast at 2, 3 and 4 ranks, by hand.
        let factor = |c: Collective| [2, 3, 4].map(|n| (c.factor(n) * 12.0).round() as u32);
        assert_eq!(factor(AllReduce), [12, 16, 18]);
        for c in [AllGather, ReduceScatter, AllToAll, Gather, Scatter] {
            assert_eq!(factor(c), [6, 8, 9], "{c}");
        }
        for c in [Broadcast, Reduce, SendRecv] {
            assert_eq!(factor(c), [12, 12, 12], "{c}");
        }
        assert_eq!(AllReduce.shape(1026, DType::F32, 3), Shape { count: 256, send: 256, recv: 256 });
        assert_eq!(AllGather.shape(1024, DType::F32, 3), Shape { count: 85, send: 85, recv: 255 });
        assert_eq!(ReduceScatter.shape(1024, DType::F16, 3), Shape { count: 170, send: 510, recv: 170 });
        assert_eq!(AllToAll.shape(8, DType::F64, 2), Shape { count: 0, send: 0, recv: 0 });
        assert_eq!(AllToAll.shape(1024, DType::F64, 2).bytes(DType::F64), 1024);
    }
}
