//! Training over TCP on loopback: what is measured on the wire is what was planned, and the steps are those of threads.

use crate::training::accounting::small;
use crate::training::support::*;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zbench_collectives::Traffic;
use zbench_collectives::{Communicator, Meeting, Rendezvous, TcpOptions, tcp};
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Happening, RankReport};
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::{collect, train, train_rank};
use zbench_engine::run::train_loop::Control;
use zbench_test_tiers as tiers;

const PATIENCE: Duration = Duration::from_secs(120);

/// All ranks' reports, and the bits of the losses that rank 0 tells.
fn measured(cell: &Cell, plan: &Plan) -> (Vec<RankReport>, Vec<u64>) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (host, port) = ("127.0.0.1".to_owned(), free.local_addr().unwrap().port());
    drop(free);
    let token = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (size, timeout) = (cell.parallel.ranks, PATIENCE);
    let meeting = Meeting { size, host, port, token, timeout, ..Meeting::default() };
    let (kernels, losses, stop) = (cpus(cell), Mutex::new(Vec::new()), AtomicBool::new(false));
    let ended = std::thread::scope(|scope| {
        let ranks: Vec<_> = kernels
            .iter()
            .enumerate()
            .map(|(rank, kernels)| {
                let (meeting, losses, stop) = (Meeting { rank, ..meeting.clone() }, &losses, &stop);
                scope.spawn(move || {
                    let met = Rendezvous::join(&meeting).unwrap();
                    let options = TcpOptions { stall: PATIENCE, ..TcpOptions::default() };
                    let comm: Box<dyn Communicator> = Box::new(tcp(met, kernels.clone(), options).unwrap());
                    let tell = |happening: &Happening| {
                        if let (0, Happening::Step(step)) = (rank, happening) {
                            losses.lock().unwrap().push(step.loss.to_bits());
                        }
                    };
                    let arena = kernels.arena(None, 1).unwrap();
                    train_rank(
                        cell,
                        plan,
                        comm,
                        kernels.clone(),
                        arena,
                        Control { stop, tell: &tell, trace: None, pace: None },
                        None,
                    )
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    let reports = collect(ended).unwrap_or_else(|failure| panic!("{}", failure.cause));
    (reports.into_iter().map(|(report, _)| report).collect(), losses.into_inner().unwrap())
}

/// Units on both sides of the largest all-reduce in one round: 6 and 10 KB, and 6 and 18 KB, with sums of 16 bits half of it.
fn cells(strategy: Strategy, ranks: usize, shard: usize) -> Vec<Cell> {
    let mut narrow = on(small(), strategy, ranks, shard);
    (narrow.model.intermediate_size, narrow.parallel.backend) = (10, Backend::Tcp);
    let mut wide = on(small(), strategy, ranks, shard);
    (wide.parallel.backend, wide.train.accumulation) = (Backend::Tcp, 2);
    let mut mixed = wide.clone();
    mixed.precision =
        Precision { reduce: zbench_kernels::DType::Bf16, ..Precision::mixed(zbench_kernels::DType::Bf16) };
    vec![narrow, wide, mixed]
}

/// Two stages with two chunks each send values and gradients between the same two ranks.
#[test]
fn stages_train_over_tcp_as_they_do_as_threads() {
    let interleaved = (PipelineSchedule::Interleaved, 2, 2);
    for (schedule, stages, chunks) in [interleaved, (PipelineSchedule::ZbH1, 3, 1)] {
        let mut cell = on(small(), Strategy::Zero2, 2 * stages, 2);
        (cell.parallel.backend, cell.train.accumulation, cell.model.num_hidden_layers) = (Backend::Tcp, 4, 4);
        let degrees = &mut cell.parallel.degrees;
        (degrees.pipeline, degrees.virtual_stages, degrees.pipeline_schedule) = (stages, chunks, schedule);
        let plan = plan(&cell);
        let (reports, losses) = measured(&cell, &plan);
        let plain = |t: &Traffic| (t.axis, t.kind, t.calls, t.payload_bytes, t.wire_bytes, t.ranks);
        for report in &reports {
            let stated: Vec<_> = plan.stage_plan_of(report.rank).estimate.traffic.iter().map(plain).collect();
            let moved: Vec<_> = report.traffic.iter().map(plain).collect();
            assert_eq!(stated, moved, "{schedule:?}: rank {}", report.rank);
        }
        let threads = train(&cell, &plan, &|_| {}).unwrap_or_else(|failure| panic!("{}", failure.cause));
        let bits: Vec<_> = threads.steps.iter().map(|step| step.loss.to_bits()).collect();
        assert_eq!(losses, bits, "{schedule:?}: losses beside those of threads");
    }
}

#[test]
fn what_is_planned_is_measured_over_tcp_for_every_strategy_and_rank_count() {
    let test = "training::tcp::what_is_planned_is_measured_over_tcp";
    let meshes = [(2, 1), (4, 2), (3, 3), (2, 2), (6, 2), (6, 3), (8, 2), (8, 4)];
    let meshes = tiers::some(&format!("{test} (meshes)"), meshes, [3, 4]);
    for [mesh, strategy, index] in tiers::combinations(test, [meshes.len(), Strategy::ALL.len(), 3]) {
        let ((ranks, shard), strategy) = (meshes[mesh], Strategy::ALL[strategy]);
        // The shard group is all ranks without a hybrid.
        let hybrid = strategy.is_hybrid();
        let cell = &cells(strategy, ranks, if hybrid { shard } else { ranks })[index];
        let what = format!("{} on {ranks} by {shard}, cell {index}", strategy.name());
        let plan = plan(cell);
        let (reports, losses) = measured(cell, &plan);
        let plain = |t: &Traffic| (t.axis, t.kind, t.calls, t.payload_bytes, t.wire_bytes, t.ranks);
        let stated: Vec<_> = plan.stage_plan_of(0).estimate.traffic.iter().map(plain).collect();
        assert!(stated.iter().any(|row| row.4 > 0.0), "{what}");
        for report in &reports {
            let moved: Vec<_> = report.traffic.iter().map(plain).collect();
            assert_eq!(stated, moved, "{what}: rank {}", report.rank);
        }
        let threads = train(cell, &plan, &|_| {}).unwrap_or_else(|failure| panic!("{}", failure.cause));
        let bits: Vec<_> = threads.steps.iter().map(|step| step.loss.to_bits()).collect();
        assert_eq!(losses, bits, "{what}: losses beside those of threads");
    }
}
