//! Ranks that are connected by TCP: threads here, each with its own meeting and connections.

use crate::comm::rendezvous::{join, meeting};
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::GroupName;
use zbench_collectives::{CommError, Communicator, Metered, OwnedCall, Tcp, TcpOptions, tcp};
use zbench_kernels::{Arena, Buffer, Category, Cpu, DType, Kernels, View, ViewMut};
use zbench_test_tiers as tiers;

/// Longer than anything here takes on a loaded machine; only tests of stalls wait for their own.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn patient() -> TcpOptions {
    TcpOptions { stall: PATIENCE, ..TcpOptions::default() }
}

/// Runs `rank` on one thread per rank; what each gave, panics as errors.
pub fn attempt<T: Send>(
    size: usize,
    options: &TcpOptions,
    kernels: impl Fn(usize) -> Arc<dyn Kernels> + Sync,
    rank: impl Fn(Tcp) -> T + Sync,
) -> Vec<std::thread::Result<T>> {
    let meeting = meeting(size, PATIENCE);
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let (meeting, kernels, rank) = (&meeting, &kernels, &rank);
            scope.spawn(move || {
                let met = join(meeting, number).join().unwrap().unwrap();
                rank(tcp(met, kernels(number), options.clone()).unwrap())
            })
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    })
}

pub fn cpu(_: usize) -> Arc<dyn Kernels> {
    Arc::new(Cpu::new(1))
}

/// As `attempt` for ranks that are well.
pub fn run<T: Send>(size: usize, options: &TcpOptions, rank: impl Fn(&Tcp) -> T + Sync) -> Vec<T> {
    let results = attempt(size, options, cpu, |comm| rank(&comm));
    results.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

fn gather(group: &dyn Communicator, own: u32) -> Vec<u32> {
    let mut all = vec![0u32; group.size()];
    group.all_gather(View::of(&[own]), ViewMut::of(&mut all)).unwrap();
    all
}

#[test]
fn split_orders_by_key_then_rank() {
    run(6, &patient(), |comm| {
        let group = comm.split(usize::MAX - comm.rank() % 2, 5 - comm.rank() / 4, "reversed").unwrap();
        let wanted = if comm.rank() % 2 == 0 { [4, 0, 2] } else { [5, 1, 3] };
        assert_eq!(gather(&*group, comm.rank() as u32), wanted);
    });
}

#[test]
fn one_rank_late_and_a_hundred_small_ones_in_a_row() {
    for size in [2, 4] {
        run(size, &patient(), |comm| {
            for late in 0..size {
                if comm.rank() == late {
                    std::thread::sleep(Duration::from_millis(60));
                }
                let mut buffer = [comm.rank() as f32; 3];
                comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
                assert_eq!(buffer, [(size * (size - 1) / 2) as f32; 3]);
            }
            for turn in 0..100u32 {
                assert_eq!(
                    gather(comm, turn * 10 + comm.rank() as u32),
                    (0..size as u32).map(|r| turn * 10 + r).collect::<Vec<_>>()
                );
                comm.barrier().unwrap();
            }
        });
    }
}

/// Sends that would each fill the sockets' buffers, all at once: nobody may wait for somebody that waits.
#[test]
fn everybody_sends_much_at_once() {
    let len = 6 << 20;
    for sockets in tiers::some("comm::tcp::everybody_sends_much_at_once", [3, 1], [1, 2]) {
        run(3, &TcpOptions { sockets_per_peer: sockets, ..patient() }, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let send: Vec<u32> = (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ rank as u32).collect();
            let mut recv = vec![0u32; len];
            let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
            let call = zbench_collectives::Call::new(
                zbench_collectives::Kind::SendRecv { to: right, from: left },
                View::of(&send),
                ViewMut::of(&mut recv),
            );
            comm.call(call).unwrap();
            assert!(recv.iter().zip(&send).all(|(got, own)| *got == own ^ rank as u32 ^ left as u32));
            assert_eq!(comm.wire_bytes(), 4 * len as u64);
        });
    }
}

fn filled(arena: &Arena, values: &[f32]) -> Buffer {
    let mut buffer = arena.alloc(Category::Gradients, DType::F32, values.len()).unwrap();
    buffer.view_mut().as_slice_mut().unwrap().copy_from_slice(values);
    buffer
}

#[test]
fn started_collectives_may_be_waited_for_in_any_order_and_count_then() {
    let results = attempt(3, &patient(), cpu, |comm| {
        let metered = Metered::new(GroupName::Data, Box::new(comm));
        let arena = Arena::host(Some(16 << 20)).unwrap();
        let rank = metered.rank() as f32;
        let first = metered.start(OwnedCall::all_reduce(filled(&arena, &[rank, 1.0, 2.0]))).unwrap();
        let (send, recv) = (filled(&arena, &[rank]), filled(&arena, &[9.0; 3]));
        let second = metered.start(OwnedCall::all_gather(send, recv)).unwrap();
        let recv = metered.wait(second).unwrap().recv.unwrap();
        assert_eq!(recv.view().as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0]);
        let buffer = metered.wait(first).unwrap().recv.unwrap();
        assert_eq!(buffer.view().as_slice::<f32>().unwrap(), [3.0, 3.0, 6.0]);
        metered.snapshot().into_iter().map(|row| (row.kind.name(), row.calls, row.wire_bytes)).collect::<Vec<_>>()
    });
    for result in results {
        assert_eq!(result.unwrap(), [("all_gather", 1.0, 8.0), ("all_reduce", 1.0, 24.0)]);
    }
}

#[test]
fn options_that_differ_or_cannot_be_are_refused_on_all_ranks() {
    let meeting = meeting(2, PATIENCE);
    let connect = |rank: usize, options: TcpOptions| {
        let met = join(&meeting, rank);
        std::thread::spawn(move || tcp(met.join().unwrap().unwrap(), cpu(0), options).err().unwrap())
    };
    let ranks = [connect(0, patient()), connect(1, TcpOptions { checksum: true, ..patient() })];
    for rank in ranks {
        let error = rank.join().unwrap();
        assert!(matches!(&error, CommError::Invalid { .. }) && error.to_string().contains("checksum true"), "{error}");
    }
    for sockets_per_peer in [0, 17] {
        let alone = join(&self::meeting(1, PATIENCE), 0).join().unwrap().unwrap();
        let options = TcpOptions { sockets_per_peer, ..patient() };
        assert!(matches!(tcp(alone, cpu(0), options), Err(CommError::Invalid { .. })));
    }
}
