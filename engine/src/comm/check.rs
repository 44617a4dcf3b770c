//! Whether buffers fit a collective, for every implementation alike.

use super::{CommError, Request, Result};
use zbench_kernels::DType;

/// A buffer's type and length.
pub(crate) type Shape = (DType, usize);

fn invalid(operation: &'static str, reason: String) -> CommError {
    CommError::Invalid { operation, reason }
}

fn sums(operation: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(invalid(operation, format!("{dtype} cannot be summed; f64, f32, bf16 and f16 can")))
}

/// `whole == size * part`, without overflow.
fn parts(operation: &'static str, size: usize, part: (&str, usize), whole: (&str, usize)) -> Result<()> {
    if part.1.checked_mul(size) == Some(whole.1) {
        return Ok(());
    }
    let (part, part_len, whole, whole_len) = (part.0, part.1, whole.0, whole.1);
    Err(invalid(
        operation,
        format!("{whole} has {whole_len} elements, {size} ranks times {part}'s {part_len} are needed"),
    ))
}

fn divisible(operation: &'static str, size: usize, len: usize) -> Result<()> {
    if len.is_multiple_of(size) {
        return Ok(());
    }
    Err(invalid(operation, format!("{len} elements are no {size} equal parts; pad the buffer")))
}

fn same_type(operation: &'static str, send: DType, recv: DType) -> Result<()> {
    if send == recv {
        Ok(())
    } else {
        Err(invalid(operation, format!("send is {send} and recv {recv}; one type is needed")))
    }
}

fn known_rank(operation: &'static str, size: usize, what: &str, rank: usize) -> Result<()> {
    if rank < size { Ok(()) } else { Err(invalid(operation, format!("{what} {rank} is not one of the {size} ranks"))) }
}

pub(crate) fn all_reduce(buffer: Shape) -> Result<()> {
    sums("all_reduce", buffer.0)
}

pub(crate) fn reduce_scatter(size: usize, send: Shape, recv: Shape) -> Result<()> {
    sums("reduce_scatter", send.0)?;
    sums("reduce_scatter", recv.0)?;
    parts("reduce_scatter", size, ("recv", recv.1), ("send", send.1))
}

pub(crate) fn reduce_scatter_in_place(size: usize, buffer: Shape) -> Result<()> {
    sums("reduce_scatter", buffer.0)?;
    divisible("reduce_scatter", size, buffer.1)
}

pub(crate) fn all_gather(size: usize, send: Shape, recv: Shape) -> Result<()> {
    same_type("all_gather", send.0, recv.0)?;
    parts("all_gather", size, ("send", send.1), ("recv", recv.1))
}

pub(crate) fn all_gather_in_place(size: usize, buffer: Shape) -> Result<()> {
    divisible("all_gather", size, buffer.1)
}

pub(crate) fn broadcast(size: usize, root: usize) -> Result<()> {
    known_rank("broadcast", size, "root", root)
}

pub(crate) fn all_to_all(size: usize, send: Shape, recv: Shape) -> Result<()> {
    same_type("all_to_all", send.0, recv.0)?;
    divisible("all_to_all", size, send.1)?;
    match send.1 == recv.1 {
        true => Ok(()),
        false => Err(invalid("all_to_all", format!("send has {} elements and recv {}", send.1, recv.1))),
    }
}

/// `operation` is `send` or `recv`.
pub(crate) fn pair(operation: &'static str, size: usize, rank: usize, peer: usize) -> Result<()> {
    known_rank(operation, size, "peer", peer)?;
    if peer == rank { Err(invalid(operation, format!("rank {rank} cannot exchange with itself"))) } else { Ok(()) }
}

pub(crate) fn request(size: usize, request: &Request) -> Result<()> {
    match request {
        Request::AllGather { send, recv } => all_gather(size, (send.dtype(), send.len()), (recv.dtype(), recv.len())),
        Request::ReduceScatter { send, recv, .. } => {
            reduce_scatter(size, (send.dtype(), send.len()), (recv.dtype(), recv.len()))
        }
        Request::AllReduce { buffer } => all_reduce((buffer.dtype(), buffer.len())),
    }
}
