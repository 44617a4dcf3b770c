//! What the meter writes down.

use crate::comm::harness::PATIENCE;
use crate::comm::tree::Tree;
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_collectives::Traffic;
use zbench_collectives::{Communicator, Metered, OwnedCall, group};
use zbench_kernels::{Arena, Category, DType, Kernels, View, ViewMut};

fn metered(size: usize, rank: impl Fn(Metered) + Sync) {
    let kernels = (0..size).map(|_| Arc::new(Tree::default()) as Arc<dyn Kernels>).collect();
    std::thread::scope(|scope| {
        let rank = &rank;
        for comm in group("world", kernels, PATIENCE).unwrap() {
            scope.spawn(move || rank(Metered::new(GroupName::Inner, Box::new(comm))));
        }
    });
}

fn row<'a>(rows: &'a [Traffic], kind: &str) -> &'a Traffic {
    rows.iter().find(|row| row.kind.name() == kind).unwrap_or_else(|| panic!("no {kind} in {rows:?}"))
}

fn bytes(rows: &[Traffic], kind: &str) -> (f64, f64, f64) {
    let row = row(rows, kind);
    (row.calls, row.payload_bytes, row.wire_bytes)
}

#[test]
fn calls_payload_and_wire_by_kind() {
    metered(4, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let (send, mut whole) = ([1f32; 16], [0f32; 64]);
        comm.all_gather(View::of(&send), ViewMut::of(&mut whole)).unwrap();
        comm.all_gather_in_place(ViewMut::of(&mut whole)).unwrap();
        comm.reduce_scatter(View::of(&whole), ViewMut::of(&mut [0f32; 16]), true).unwrap();
        comm.reduce_scatter_in_place(ViewMut::of(&mut whole)).unwrap();
        comm.all_reduce(ViewMut::of(&mut whole)).unwrap();
        comm.broadcast(ViewMut::of(&mut whole), 1).unwrap();
        comm.all_to_all(View::of(&[1f32; 64]), ViewMut::of(&mut whole)).unwrap();
        match comm.rank() {
            0 => comm.send(View::of(&send), 3).unwrap(),
            3 => comm.recv(ViewMut::of(&mut whole[..16]), 0).unwrap(),
            _ => {}
        }
        comm.barrier().unwrap();
        let buffer = |len| arena.alloc(Category::Communication, DType::F32, len).unwrap();
        let ticket = comm.start(OwnedCall::all_gather(buffer(16), buffer(64))).unwrap();
        comm.wait(ticket).unwrap();

        let wire = comm.wire_bytes() as f64;
        let rows = comm.snapshot();
        comm.reset();
        assert!(rows.iter().all(|row| row.axis == GroupName::Inner && row.ranks == 4 && row.ms >= row.exposed_ms));
        assert_eq!(bytes(&rows, "all_gather"), (3.0, 3.0 * 256.0, 3.0 * 192.0));
        assert_eq!(bytes(&rows, "reduce_scatter"), (2.0, 512.0, 384.0));
        assert_eq!(bytes(&rows, "all_reduce"), (1.0, 512.0, 768.0), "in one round");
        assert_eq!(bytes(&rows, "broadcast"), (1.0, 256.0, if comm.rank() == 1 { 0.0 } else { 256.0 }));
        assert_eq!(bytes(&rows, "all_to_all"), (1.0, 256.0, 192.0));
        assert_eq!(bytes(&rows, "barrier"), (1.0, 0.0, 0.0));
        match comm.rank() {
            0 => assert_eq!(bytes(&rows, "send"), (1.0, 64.0, 0.0)),
            3 => assert_eq!(bytes(&rows, "recv"), (1.0, 64.0, 64.0)),
            _ => assert!(!rows.iter().any(|row| matches!(row.kind, CollectiveKind::Send | CollectiveKind::Recv))),
        }
        assert_eq!(rows.iter().map(|row| row.wire_bytes).sum::<f64>(), wire, "every byte has its row");
        assert!(comm.snapshot().is_empty(), "reset");
    });
}

#[test]
fn a_started_collective_is_exposed_only_while_its_rank_waits() {
    metered(2, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let buffer = arena.alloc(Category::Communication, DType::F32, 64).unwrap();
        let ticket = comm.start(OwnedCall::all_reduce(buffer)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        comm.wait(ticket).unwrap();
        let rows = comm.snapshot();
        let sum = row(&rows, "all_reduce");
        // The sleep lies between start and wait, whatever the machine's load.
        assert!(sum.ms >= 50.0 && sum.ms - sum.exposed_ms >= 50.0, "{sum:?}");
        comm.reset();
        assert!(comm.snapshot().is_empty());
    });
}

#[test]
fn one_rank_takes_the_same_path_and_moves_nothing() {
    metered(1, |comm| {
        let mut buffer = [1f32; 10];
        comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
        comm.all_gather_in_place(ViewMut::of(&mut buffer)).unwrap();
        let rows = comm.snapshot();
        assert_eq!(bytes(&rows, "all_reduce"), (1.0, 80.0, 0.0));
        assert_eq!(bytes(&rows, "all_gather"), (1.0, 40.0, 0.0));
        assert_eq!(buffer, [1f32; 10]);
    });
}
