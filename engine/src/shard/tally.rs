use crate::comm::ONE_ROUND_BYTES;
use crate::config::{Backend, Cell, DeviceKind};
use crate::outcome::Traffic;

/// One collective of a step, as it is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The mesh axis.
    pub axis: &'static str,
    /// `all_reduce`, `all_gather`, `reduce_scatter`.
    pub kind: &'static str,
    /// Ranks on the axis.
    pub ranks: usize,
    /// The larger buffer: nccl-tests' size.
    pub bytes: u64,
    /// One buffer is read and written.
    pub in_place: bool,
}

/// Collectives as they are stated: calls, payload and bytes on the wire by axis and kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    rows: Vec<Traffic>,
    /// Every call, in order.
    calls: Vec<Collective>,
    /// All-reduces up to this size take one round.
    one_round_bytes: u64,
}

impl Tally {
    /// An empty one for a cell: only ranks whose buffers lie on hosts and that are not left to a library reduce small buffers
    /// in one round.
    pub fn new(cell: &Cell) -> Tally {
        let own = matches!(cell.parallel.backend, Backend::Local | Backend::Shm | Backend::Tcp);
        let on_host = cell.hardware.device == DeviceKind::Cpu;
        Tally { one_round_bytes: if own && on_host { ONE_ROUND_BYTES as u64 } else { 0 }, ..Tally::default() }
    }

    /// `recv` of `bytes` gathered from `ranks`.
    pub fn all_gather(&mut self, axis: &'static str, ranks: usize, bytes: u64) {
        self.call(axis, "all_gather", ranks, bytes, 1);
    }

    /// A buffer of `bytes` reduced and scattered over `ranks`.
    pub fn reduce_scatter(&mut self, axis: &'static str, ranks: usize, bytes: u64) {
        self.call(axis, "reduce_scatter", ranks, bytes, 1);
    }

    /// A buffer of `bytes` reduced over `ranks`: scattered, then gathered; a small one in one round.
    pub fn all_reduce(&mut self, axis: &'static str, ranks: usize, bytes: u64) {
        self.call(axis, "all_reduce", ranks, bytes, 2);
        if bytes <= self.one_round_bytes
            && let Some(row) = self.rows.iter_mut().find(|row| row.axis == axis && row.kind == "all_reduce")
        {
            // Every rank reads every other's buffer, rather than passing parts twice.
            let others = ranks as u64 - 1;
            row.wire_bytes += (others * bytes) as f64 - (2 * (bytes / ranks as u64) * others) as f64;
        }
    }

    fn call(&mut self, axis: &'static str, kind: &'static str, ranks: usize, bytes: u64, passes: u64) {
        let at = self.rows.iter().position(|row| row.axis == axis && row.kind == kind);
        let row = match at {
            Some(at) => &mut self.rows[at],
            None => {
                self.rows.push(Traffic { axis, kind, ranks, ..Traffic::default() });
                self.rows.last_mut().expect("just pushed")
            }
        };
        row.calls += 1.0;
        // An all-reduce of the engine has one buffer always.
        self.calls.push(Collective { axis, kind, ranks, bytes, in_place: kind == "all_reduce" });
        row.payload_bytes += (passes * bytes) as f64;
        row.wire_bytes += (passes * (bytes / ranks as u64) * (ranks as u64 - 1)) as f64;
    }

    /// The last call has one buffer.
    pub fn in_place(&mut self) {
        if let Some(call) = self.calls.last_mut() {
            call.in_place = true;
        }
    }

    /// The calls since this was last asked, in order.
    pub fn take_calls(&mut self) -> Vec<Collective> {
        std::mem::take(&mut self.calls)
    }

    /// The rows, by axis and kind.
    pub fn into_rows(mut self) -> Vec<Traffic> {
        self.rows.sort_by_key(|row| (row.axis, row.kind));
        self.rows
    }
}
