//! Collectives made of others, over any communicator: in two levels, so that little crosses nodes, and quantised, so that
//! little travels at all.
//!
//! Ranks stand node by node: rank `r` is member `r % I` of node `r / I`. `inner` is a node's ranks, `outer` the ranks with
//! the same place in every node.

mod quantised;

pub use quantised::BLOCK;

use super::link::LinkUse;
use super::{Call, Communicator, Kind, Member, OwnedCall, ReduceOp, Result, Ticket, invalid};
use quantised::Packed;
use std::cell::Cell;
use std::sync::Arc;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels, QuantFormat, Quantize, View, ViewMut};

/// How all-reduce, all-gather and reduce-scatter are composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Inside the nodes and across them, exact.
    Hierarchical,
    /// Values travel as int8 with a scale per block: qwZ and qgZ of ZeRO++.
    Q8,
    /// As `Q8`, two values to a byte.
    Q4,
}

impl Algorithm {
    pub const ALL: [Algorithm; 3] = [Algorithm::Hierarchical, Algorithm::Q8, Algorithm::Q4];

    /// The name in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::Q8 => "q8",
            Algorithm::Q4 => "q4",
        }
    }

    pub fn find(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The quantisation, with [`BLOCK`] elements to a scale.
    pub const fn quantize(self) -> Option<Quantize> {
        match self {
            Algorithm::Hierarchical => None,
            Algorithm::Q8 => Some(Quantize { format: QuantFormat::Int8, block: BLOCK }),
            Algorithm::Q4 => Some(Quantize { format: QuantFormat::Int4, block: BLOCK }),
        }
    }
}

/// The average of averages is the average, but not where each is cut off to an integer.
fn combines(operation: &'static str, op: ReduceOp, dtype: DType) -> Result<()> {
    let integer = !matches!(dtype, DType::F64 | DType::F32 | DType::Bf16 | DType::F16);
    if op == ReduceOp::Avg && integer {
        let reason = format!("the average of {dtype} in two levels would be cut off twice; use floats or a sum");
        return Err(invalid(operation, reason));
    }
    Ok(())
}

/// A communicator whose all-reduce, all-gather and reduce-scatter are composed; everything else goes to the group that
/// it is made of.
pub struct Composed {
    world: Box<dyn Communicator>,
    inner: Box<dyn Communicator>,
    /// The ranks with this rank's place in every node.
    outer: Box<dyn Communicator>,
    algorithm: Algorithm,
    kernels: Arc<dyn Kernels>,
    arena: Arena,
    next: Cell<u64>,
}

impl Composed {
    /// Composes over `world`, with nodes of `ranks_per_node`; scratch is from `arena`. A collective call.
    ///
    /// # Errors
    /// [`super::CommError::Invalid`] when the ranks are no whole nodes.
    pub fn new(
        world: Box<dyn Communicator>,
        algorithm: Algorithm,
        ranks_per_node: usize,
        kernels: Arc<dyn Kernels>,
        arena: Arena,
    ) -> Result<Composed> {
        let (rank, size) = (world.rank(), world.size());
        if ranks_per_node == 0 || !size.is_multiple_of(ranks_per_node) {
            let reason = format!("{size} ranks are no whole nodes of {ranks_per_node}; write a divisor of the ranks");
            return Err(invalid("split", reason));
        }
        let (node, place) = (rank / ranks_per_node, rank % ranks_per_node);
        let (inner, outer) = (world.split(node, place, "inner")?, world.split(place, node, "outer")?);
        Ok(Composed { world, inner, outer, algorithm, kernels, arena, next: Cell::new(0) })
    }

    fn composes(kind: Kind) -> bool {
        matches!(kind, Kind::AllReduce { .. } | Kind::AllGather | Kind::ReduceScatter { .. })
    }

    fn scratch(&self, operation: &'static str, dtype: DType, len: usize) -> Result<Buffer> {
        let buffer = self.arena.alloc(Category::Communication, dtype, len);
        buffer.map_err(|error| invalid(operation, error))
    }

    fn all_reduce(&self, op: ReduceOp, send: Option<View<'_>>, mut recv: ViewMut<'_>) -> Result<()> {
        if let Some(send) = send {
            self.kernels.reduce(ReduceOp::Sum, &[send], false, recv.reborrow())?;
        }
        let Some(quantize) = self.algorithm.quantize() else { return self.all_reduce_exact(op, recv) };
        // The tail that no rank gets a part of is fewer elements than ranks, and travels as it is.
        let whole = recv.len() / self.size() * self.size();
        let (body, tail) = recv.split_at(whole);
        let sum = quantised::reduced(self, &quantize, op, body.as_view())?;
        Packed::new(self, &quantize, sum.view())?.all_gather(body)?;
        if tail.is_empty() { Ok(()) } else { self.world.call(Call::in_place(Kind::AllReduce { op }, tail)) }
    }

    /// A reduce-scatter inside the node, an all-reduce of the parts across nodes, an all-gather inside the node. Across nodes
    /// travels one part of `inner` parts a rank.
    ///
    /// A sum has the order inner, then outer: the flat one where both are powers of two. Short types are rounded between
    /// the levels.
    fn all_reduce_exact(&self, op: ReduceOp, buffer: ViewMut<'_>) -> Result<()> {
        combines("all_reduce", op, buffer.dtype())?;
        let parts = self.inner.size();
        // What does not divide is fewer elements than ranks, and is reduced whole.
        let whole = buffer.len() / parts * parts;
        let (mut body, mut tail) = buffer.split_at(whole);
        let kind = Kind::AllReduce { op };
        if whole > 0 {
            let part = whole / parts;
            let own = self.inner.rank() * part..(self.inner.rank() + 1) * part;
            let scatter = Kind::ReduceScatter { op, accumulate: false };
            self.inner.call(Call::in_place(scatter, body.reborrow()))?;
            self.outer.call(Call::in_place(kind, body.slice_mut(own)))?;
            self.inner.call(Call::in_place(Kind::AllGather, body))?;
        }
        if !tail.is_empty() {
            self.inner.call(Call::in_place(kind, tail.reborrow()))?;
            self.outer.call(Call::in_place(kind, tail))?;
        }
        Ok(())
    }

    /// First the parts of this rank's place across nodes, then every node's inside.
    fn all_gather(&self, send: Option<View<'_>>, mut recv: ViewMut<'_>) -> Result<()> {
        let part = recv.len() / self.size();
        let own = self.rank() * part..(self.rank() + 1) * part;
        let send = send.unwrap_or(recv.as_view().slice(own));
        if let Some(quantize) = self.algorithm.quantize() {
            return Packed::new(self, &quantize, send)?.all_gather(recv);
        }
        let mut column = self.scratch("all_gather", send.dtype(), part * self.outer.size())?;
        self.outer.all_gather(send, column.view_mut())?;
        let row = part * self.inner.size();
        for node in 0..self.outer.size() {
            let send = column.slice(node * part..(node + 1) * part);
            self.inner.all_gather(send, recv.slice_mut(node * row..(node + 1) * row))?;
        }
        Ok(())
    }

    /// First inside the nodes, then across.
    fn reduce_scatter(
        &self,
        op: ReduceOp,
        accumulate: bool,
        send: Option<View<'_>>,
        mut recv: ViewMut<'_>,
    ) -> Result<()> {
        let source = send.unwrap_or(recv.as_view());
        let part = source.len() / self.size();
        let own = if send.is_none() { self.rank() * part..(self.rank() + 1) * part } else { 0..part };
        match self.algorithm.quantize() {
            None => {
                let column = self.reduced_column(op, source)?;
                let kind = Kind::ReduceScatter { op, accumulate };
                self.outer.call(Call::new(kind, column.view(), recv.slice_mut(own)))
            }
            Some(quantize) => {
                let sum = quantised::reduced(self, &quantize, op, source)?;
                Ok(self.kernels.reduce(ReduceOp::Sum, &[sum.view()], accumulate, recv.slice_mut(own))?)
            }
        }
    }

    /// For every node, the part of this rank's place there, reduced inside this node.
    fn reduced_column(&self, op: ReduceOp, send: View<'_>) -> Result<Buffer> {
        combines("reduce_scatter", op, send.dtype())?;
        let part = send.len() / self.size();
        let row = part * self.inner.size();
        let mut column = self.scratch("reduce_scatter", send.dtype(), part * self.outer.size())?;
        for node in 0..self.outer.size() {
            let recv = column.slice_mut(node * part..(node + 1) * part);
            let kind = Kind::ReduceScatter { op, accumulate: false };
            self.inner.call(Call::new(kind, send.slice(node * row..(node + 1) * row), recv))?;
        }
        Ok(column)
    }
}

impl Communicator for Composed {
    fn member(&self) -> Member {
        self.world.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        if Composed::composes(kind) { self.algorithm.name() } else { self.world.algorithm(kind, bytes) }
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank(), self.size())?;
        let Call { kind, send, recv } = call;
        match (kind, recv) {
            (Kind::AllReduce { op }, Some(recv)) => self.all_reduce(op, send, recv),
            (Kind::AllGather, Some(recv)) => self.all_gather(send, recv),
            (Kind::ReduceScatter { op, accumulate }, Some(recv)) => self.reduce_scatter(op, accumulate, send, recv),
            (kind, recv) => self.world.call(Call { kind, send, recv }),
        }
    }

    /// Performs the whole collective: a composition does not go on by itself.
    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        self.call(request.as_call())?;
        let sequence = self.next.replace(self.next.get() + 1);
        Ok(Ticket::complete(sequence, request))
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.take()
    }

    /// A bare group of the one that this is made of.
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        self.world.split(color, key, name)
    }

    fn abort(&self, reason: &str) {
        self.world.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.world.wire_bytes() + self.inner.wire_bytes() + self.outer.wire_bytes()
    }

    fn link_use(&self) -> Option<LinkUse> {
        let [world, inner, outer] = [&self.world, &self.inner, &self.outer].map(|comm| comm.link_use());
        Some(world?.plus(inner?).plus(outer?))
    }
}
