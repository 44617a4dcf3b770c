//! A communicator of the right shapes that moves nothing: for plans, and for tests of one rank's program.

use super::{CommError, Communicator, Request, Result, Ticket, check};
use std::cell::Cell;
use zbench_kernels::{View, ViewMut};

/// Checks what it is given as any communicator would, and leaves every buffer as it was.
#[derive(Debug)]
pub struct Null {
    rank: usize,
    size: usize,
    next: Cell<u64>,
}

impl Null {
    /// Rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> Null {
        Null { rank, size, next: Cell::new(0) }
    }
}

fn shape(view: View<'_>) -> check::Shape {
    (view.dtype(), view.len())
}

impl Communicator for Null {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, buffer: ViewMut<'_>) -> Result<()> {
        check::all_reduce(shape(buffer.as_view()))
    }

    fn reduce_scatter(&self, send: View<'_>, recv: ViewMut<'_>, _accumulate: bool) -> Result<()> {
        check::reduce_scatter(self.size, shape(send), shape(recv.as_view()))
    }

    fn reduce_scatter_in_place(&self, buffer: ViewMut<'_>) -> Result<()> {
        check::reduce_scatter_in_place(self.size, shape(buffer.as_view()))
    }

    fn all_gather(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()> {
        check::all_gather(self.size, shape(send), shape(recv.as_view()))
    }

    fn all_gather_in_place(&self, buffer: ViewMut<'_>) -> Result<()> {
        check::all_gather_in_place(self.size, shape(buffer.as_view()))
    }

    fn broadcast(&self, _buffer: ViewMut<'_>, root: usize) -> Result<()> {
        check::broadcast(self.size, root)
    }

    fn all_to_all(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()> {
        check::all_to_all(self.size, shape(send), shape(recv.as_view()))
    }

    fn send(&self, _buffer: View<'_>, to: usize) -> Result<()> {
        check::pair("send", self.size, self.rank, to)
    }

    fn recv(&self, _buffer: ViewMut<'_>, from: usize) -> Result<()> {
        check::pair("recv", self.size, self.rank, from)
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn start(&self, request: Request) -> Result<Ticket> {
        check::request(self.size, &request)?;
        let sequence = self.next.replace(self.next.get() + 1);
        Ok(Ticket { sequence, request: Some(request), owner: None })
    }

    fn wait(&self, mut ticket: Ticket) -> Result<Request> {
        let reason = "the collective was waited for before".to_owned();
        ticket.request.take().ok_or(CommError::Invalid { operation: "wait", reason })
    }

    /// An error: what colors the other ranks give is not known here. Make the smaller group with [`Null::new`].
    fn split(&self, _color: usize, _key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let reason =
            format!("a null group cannot know who else is in {name}; make it directly, with its rank and size");
        Err(CommError::Invalid { operation: "split", reason })
    }

    /// Nobody else is there to be told.
    fn abort(&self, _reason: &str) {}

    fn wire_bytes(&self) -> u64 {
        0
    }
}
