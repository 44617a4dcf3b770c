//! Inside a cell's process: reads the job, trains, says what was measured.

use crate::child_process::{BROKEN, read_job, say, stop_order};
use crate::gpu_info::GpuInfo;
use crate::protocol::{self, End, Ended, Event, Job, RankEnd};
use crate::turns::token::Token;
use crate::{mpirun, processes};

use zbench_engine::compute::hardware;
use zbench_engine::config::{Backend, DeviceKind};
use zbench_engine::observe::outcome::{Failure, Happening};
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::train_on;
use zbench_engine::run::train_loop::{Control, Pace};
use zbench_host::{devices, machine};

/// The whole life of a cell's process; its exit status.
pub fn main() -> u8 {
    stop_order();
    say(&Event::Ready);
    let job: Job = match read_job(&mut std::io::stdin()) {
        Ok(job) => job,
        Err(reason) => {
            zbench_host::say!("{reason}");
            return BROKEN;
        }
    };
    let mut end = match job.cell.parallel.backend {
        Backend::Local | Backend::Device => threads(&job),
        Backend::Shm | Backend::Tcp | Backend::Nccl => processes::run(&job, &say),
        Backend::Mpi => mpirun::run(&job, &say),
    };
    if job.cell.hardware.device == DeviceKind::Cuda && end.gpu.is_none() {
        end.gpu = Some(GpuInfo::of_cell(&job.cell, 0));
    }
    say(&Event::End(Box::new(end)));
    0
}

/// Ranks as threads of this process.
fn threads(job: &Job) -> End {
    let cell = &job.cell;
    let plan = hardware::planner(cell)
        .map_err(|error| error.to_string())
        .and_then(|kernels| Plan::new(cell, &*kernels).map_err(|error| error.to_string()));
    let plan = match plan {
        Ok(plan) => plan,
        Err(reason) => return End::failed(reason),
    };
    let threads = cell.parallel.ranks.saturating_mul(cell.hardware.threads_per_rank).min(job.cores).max(1);
    let on_cuda = cell.hardware.device == DeviceKind::Cuda;
    let compute = cell.precision.compute;
    let peak = || match on_cuda {
        true => devices::measured_flops(0, compute).ok(),
        false => machine::peak_flops(&[], threads, compute, job.peak_seconds),
    };
    let before = peak();
    let busy = machine::Busy::start(job.cores);
    let tell = |happening: &Happening| say(&protocol::event(happening));
    let token = job.turns.as_ref().map(|place| Token::new(place, cell.parallel.ranks));
    let pace = token.as_ref().map(|token| token as &dyn Pace);
    let control = Control { stop: stop_order(), tell: &tell, trace: protocol::tracing(job.trace_steps), pace };
    let result = train_on(cell, &plan, &zbench_host::devices::machine, control);
    let busy = busy.and_then(machine::Busy::seconds);
    let mut end = match result {
        Ok(run) => End {
            steps: run.steps.iter().map(protocol::step).collect(),
            kernels: run.kernels,
            ranks: run.ranks.iter().map(RankEnd::from).collect(),
            stopped: run.ranks.iter().any(|rank| rank.stopped),
            ..End::default()
        },
        Err(failure) => ended(&failure),
    };
    end.peak_flops = vec![before, peak()];
    (end.peak_threads, end.peak_quota) = (threads, machine::quota_below(threads));
    // Those that take turns with this one are no strangers.
    let alone = busy.filter(|_| job.turns.is_none());
    end.others_share = alone.and_then(|busy| busy.others_share(busy.own));
    end.peak_rss_bytes = machine::status_bytes("VmHWM");
    end.swap_bytes = machine::status_bytes("VmSwap");
    end
}

fn ended(failure: &Failure) -> End {
    let (status, source) = protocol::status_of(&failure.cause);
    let ranks = failure.ledgers.iter().enumerate();
    let ranks = ranks.map(|(rank, ledgers)| RankEnd::of_ledgers(rank, ledgers)).collect();
    let steps = failure.steps.iter().map(protocol::step).collect();
    End { failure: Some(Ended { status, reason: failure.cause.to_string(), source }), steps, ranks, ..End::default() }
}
