//! What every rank does: for each collective, type, reduction, root and size a row, measured out of place and in place.

use super::buffers::Buffers;
use super::collective::Collective::{self, AllGather, AllReduce, ReduceScatter};
use super::collective::Shape;
use super::data::{Expected, Mismatch, Pattern};
use super::exchange::Exchange;
use super::member::Member;
use super::plan::{Average, Plan, type_name};
use super::{CollectiveError, Watch, pairs, setup};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;
use zbench_collectives::{CommError, Communicator, Kind};
use zbench_kernels::{DType, ReduceOp};
use zbench_reports::collectives::{Device, Iterations, Row, Side, Wrong};
use zbench_reports::units;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// Ended early because somebody asked for it.
    pub interrupted: bool,
    /// Rows measured.
    pub rows: usize,
}

/// Runs the whole plan on one rank. Every rank of the world calls it with the same plan.
///
/// # Errors
/// A collective that failed, or memory that does not suffice. What was measured before has been told to the watch.
pub fn rank_main(member: &Member<'_>, plan: &Plan, watch: &dyn Watch) -> Result<Finish, CollectiveError> {
    let world = member.world;
    let exchange = Exchange::new(member.control, member.host_arena);
    let split = match plan.split {
        Some(split) => {
            let color = split.color(world.rank());
            Some((color, world.split(color, world.rank(), "split")?))
        }
        None => None,
    };
    let group: &dyn Communicator = split.as_ref().map_or(world, |(_, group)| &**group);
    let devices = setup::devices(member, &exchange, split.as_ref().map_or(0, |(color, _)| *color))?;
    let largest = setup::largest(member, plan, &exchange, &devices, group.size())?;
    let sharers = setup::sharers(&devices, world.rank());
    let rotation_bytes = member.place.rotation_bytes(plan, sharers);
    let settings = setup::settings(member, plan, group, &devices, largest, rotation_bytes);
    let is_first = world.rank() == 0;
    if is_first {
        watch.begin(&settings, &devices);
    }
    let mut rank = Rank { member, plan, group, exchange, watch, devices: &devices, largest, rotation_bytes, row: 0 };
    let mut finish = Finish::default();
    for collective in &plan.collectives {
        rank.tell(|watch| watch.section(collective.name()));
        let before = group.link_use();
        finish.interrupted = rank.collective(*collective)?;
        if let (Some(before), Some(after)) = (before, group.link_use()) {
            let usage = after.less(before);
            let numbers = exchange.numbers(&[usage.calls as f64, usage.over_budget as f64, usage.late_ns as f64])?;
            let most = |i: usize| numbers.iter().map(|of_rank| of_rank[i]).fold(0.0, f64::max);
            if most(1) > 0.0 {
                let (calls, late, ms) = (most(0), most(1), most(2) / 1e6);
                rank.tell(|watch| {
                    watch.note(format!(
                        "{late} of {calls} calls over the emulated link ended later than it says, {ms:.3} ms in all: there the \
                         machine is what was measured, and not the link"
                    ));
                });
            }
        }
        if plan.nccl.memory > 0 {
            let peaks = exchange.number(member.arena.ledger().total_peak() as f64)?;
            let most = peaks.into_iter().fold(0.0, f64::max);
            rank.tell(|watch| watch.note(format!("memory: buffers take at most {} of a rank", units::memory(most))));
        }
        rank.tell(|watch| watch.end_section(finish.interrupted));
        if finish.interrupted {
            break;
        }
    }
    finish.rows = rank.row as usize;
    if (plan.pairs || plan.bisect) && !finish.interrupted {
        finish.interrupted = pairs::run(member, plan, exchange, &devices, largest, watch)?;
    }
    Ok(finish)
}

/// One row's question.
#[derive(Clone, Copy)]
struct Job {
    collective: Collective,
    dtype: DType,
    op: ReduceOp,
    root: usize,
    shape: Shape,
    kind: Kind,
}

impl Job {
    /// Whether `rank` is the root, where there is one.
    fn is_root(&self, rank: usize) -> Option<bool> {
        self.collective.has_root().then_some(rank == self.root)
    }

    fn pattern(&self, ranks: usize, seed: u64) -> Pattern {
        Pattern { dtype: self.dtype, op: self.collective.has_op().then_some(self.op), ranks, seed }
    }

    /// What `rank` must receive at `index` of its result, however it travelled.
    fn expected(&self, pattern: &Pattern, rank: usize, index: u64, levels: Option<f64>) -> Expected {
        let exact = self.exact(pattern, rank, index);
        let travels = matches!(self.collective, AllReduce | AllGather | ReduceScatter);
        match levels.filter(|_| travels) {
            None => exact,
            Some(levels) => Expected { tolerance: exact.tolerance + pattern.quantised(levels), ..exact },
        }
    }

    /// The same, where nothing is rounded on the way.
    fn exact(&self, pattern: &Pattern, rank: usize, index: u64) -> Expected {
        let count = self.shape.count as u64;
        let given = |by: usize, at: u64| Expected { value: pattern.input(by, at), tolerance: 0.0 };
        match self.collective {
            AllReduce | Collective::Reduce => pattern.reduced(self.op, index),
            ReduceScatter => pattern.reduced(self.op, rank as u64 * count + index),
            AllGather | Collective::Gather => given((index / count) as usize, index % count),
            Collective::Broadcast => given(self.root, index),
            Collective::Scatter => given(self.root, rank as u64 * count + index),
            Collective::AllToAll => given((index / count) as usize, rank as u64 * count + index % count),
            Collective::SendRecv => given((rank + pattern.ranks - 1) % pattern.ranks, index),
        }
    }
}

struct Rank<'a> {
    member: &'a Member<'a>,
    plan: &'a Plan,
    group: &'a dyn Communicator,
    exchange: Exchange<'a>,
    watch: &'a dyn Watch,
    devices: &'a [Device],
    largest: u64,
    rotation_bytes: u64,
    /// Rows so far: the data of each is another.
    row: u64,
}

impl Rank<'_> {
    fn tell(&self, what: impl FnOnce(&dyn Watch)) {
        if self.member.world.rank() == 0 {
            what(self.watch);
        }
    }

    /// All rows of a collective; whether it was stopped before the last one.
    fn collective(&mut self, collective: Collective) -> Result<bool, CollectiveError> {
        let ranks = self.group.size();
        for in_place in [false, true] {
            if let Some(reason) = collective.impossible(in_place, ranks) {
                self.tell(|watch| watch.note(format!("N/A: {reason}")));
            }
        }
        let roots = match self.plan.root {
            _ if !collective.has_root() => 0..=0,
            Some(root) if root >= ranks => {
                return Err(CollectiveError::Unsupported(format!("-r {root} is none of the {ranks} ranks")));
            }
            Some(root) => root..=root,
            None => 0..=ranks - 1,
        };
        for dtype in &self.plan.dtypes {
            for op in self.plan.ops_of(collective) {
                let largest = collective.shape(self.largest, *dtype, ranks).whole();
                let pattern =
                    Pattern { dtype: *dtype, op: collective.has_op().then_some(*op), ranks, seed: self.plan.seed };
                let (arena, memory, unalign) =
                    (self.member.arena, self.member.memory(), self.plan.nccl.unalign as usize);
                let fill = (pattern, self.group.rank());
                let mut buffers = Buffers::new(arena, memory, *dtype, largest, self.rotation_bytes, unalign, fill)?;
                for root in roots.clone() {
                    if self.sweep(collective, *op, root, &mut buffers)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// All sizes, as many rounds as asked for; whether it was stopped.
    fn sweep(
        &mut self,
        collective: Collective,
        op: ReduceOp,
        root: usize,
        buffers: &mut Buffers,
    ) -> Result<bool, CollectiveError> {
        let (rank, ranks, dtype) = (self.group.rank(), self.group.size(), buffers.dtype());
        let mut cycle = 0;
        loop {
            for bytes in self.plan.sizes(self.largest) {
                // Signals reach ranks at different times: they agree, or one would wait for another that has gone.
                if self.exchange.any(self.watch.stop())? {
                    return Ok(true);
                }
                let shape = collective.shape(bytes, dtype, ranks);
                let kind = collective.kind(op, root, rank, ranks);
                let row = self.measure(Job { collective, dtype, op, root, shape, kind }, buffers)?;
                self.row += 1;
                self.tell(|watch| watch.row(row));
            }
            cycle += 1;
            if self.plan.nccl.run_cycles > 0 && cycle >= self.plan.nccl.run_cycles {
                return Ok(false);
            }
        }
    }

    fn measure(&mut self, job: Job, buffers: &mut Buffers) -> Result<Row, CollectiveError> {
        let Job { collective, shape, .. } = job;
        let ranks = self.group.size();
        let mut sides = [None, None];
        let (mut wire_bytes_rank, mut wire_bytes_link) = (0.0, 0.0);
        for (in_place, side) in [false, true].into_iter().zip(&mut sides) {
            if collective.impossible(in_place, ranks).is_some() {
                continue;
            }
            match self.side(job, buffers, in_place) {
                Ok((measured, wire)) => {
                    *side = Some(measured);
                    wire_bytes_rank = wire.iter().copied().fold(0.0, f64::max);
                    let links = (ranks * ranks.saturating_sub(1)).max(1) as f64;
                    wire_bytes_link = wire.iter().sum::<f64>() / links;
                }
                Err(CollectiveError::Comm(CommError::Invalid { operation, reason })) => {
                    let place = if in_place { "in place" } else { "out of place" };
                    self.tell(|watch| watch.note(format!("N/A: {operation} {place}: {reason}")));
                }
                Err(error) => return Err(error),
            }
        }
        let [out_of_place, in_place] = sides;
        if zbench_reports::record::wire_is_planned(self.group.backend()) {
            // The library does not tell what it moved.
            (wire_bytes_rank, wire_bytes_link) = (f64::NAN, f64::NAN);
        }
        let bytes = shape.bytes(job.dtype);
        Ok(Row {
            size: bytes,
            count: shape.count as u64,
            dtype: type_name(job.dtype).into(),
            redop: if collective.has_op() { job.op.name() } else { "none" }.into(),
            root: if collective.has_root() { job.root as i64 } else { -1 },
            out_of_place,
            in_place,
            algorithm: self.group.algorithm(job.kind, bytes).into(),
            wire_bytes_rank,
            wire_bytes_link,
            iterations: self.plan.nccl.iters,
            timestamp: jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string(),
        })
    }

    /// One side of a row, and the bytes on the wire of each rank of the world.
    fn side(&mut self, job: Job, buffers: &mut Buffers, in_place: bool) -> Result<(Side, Vec<f64>), CollectiveError> {
        let mut moved = 0;
        for _ in 0..=self.plan.nccl.warmup_iters {
            let before = self.group.wire_bytes();
            self.call(job, buffers, in_place)?;
            moved = self.group.wire_bytes() - before;
        }
        self.settle()?;
        self.group.barrier()?;
        let (times, cpu) = if self.plan.per_iteration {
            self.time_each(job, buffers, in_place)?
        } else {
            self.time_all(job, buffers, in_place)?
        };
        let cpu_us = match self.plan.nccl.cpu_time > 0 {
            true => Some(self.average(&self.exchange.number(cpu)?)),
            false => None,
        };
        let all = self.exchange.numbers(&times)?;
        let skip = if self.plan.per_iteration { self.plan.nccl.per_iter_skip as usize } else { 0 };
        let iterations = if self.plan.per_iteration { Iterations::new(all.clone(), skip) } else { None };
        let time_us = match &iterations {
            Some(iterations) => iterations.p50_us,
            None => self.average(&all.into_iter().flatten().collect::<Vec<f64>>()),
        };
        let wire = self.exchange.number(moved as f64)?;
        let bytes = job.shape.bytes(job.dtype) as f64;
        let algbw = if bytes > 0.0 && time_us > 0.0 { bytes / (time_us * 1e3) } else { 0.0 };
        let busbw = algbw * job.collective.factor(self.group.size());
        let (wrong, first_wrong) = self.check(job, buffers, in_place)?;
        Ok((Side { time_us, cpu_us, algbw, busbw, wrong, first_wrong, iterations }, wire))
    }

    fn call(&self, job: Job, buffers: &mut Buffers, in_place: bool) -> Result<(), CommError> {
        let slot = buffers.next(job.shape.whole(), self.plan.hot);
        let root = job.is_root(self.group.rank());
        self.group.call(job.collective.call(job.kind, job.shape, root, in_place, slot))
    }

    /// Waits for what a device was asked for: there calls return before it is done. Elsewhere there is nothing to wait for.
    fn settle(&self) -> Result<(), CommError> {
        Ok(self.member.kernels.synchronize()?)
    }

    /// One iteration: as many calls as are aggregated.
    fn iteration(&self, job: Job, buffers: &mut Buffers, in_place: bool) -> Result<(), CommError> {
        for _ in 0..self.plan.nccl.agg_iters {
            self.call(job, buffers, in_place)?;
            if matches!(self.plan.nccl.blocking, 1 | 2) {
                self.settle()?;
            }
            if self.plan.nccl.blocking == 1 {
                self.group.barrier()?;
            }
        }
        Ok(())
    }

    /// Microseconds of a call, over all iterations back to back, and CPU time.
    fn time_all(&self, job: Job, buffers: &mut Buffers, in_place: bool) -> Result<(Vec<f64>, f64), CollectiveError> {
        let calls = f64::from(self.plan.nccl.iters) * f64::from(self.plan.nccl.agg_iters);
        let (cpu, start) = (self.cpu_us(), Instant::now());
        let mut waited = 0.0;
        for _ in 0..self.plan.nccl.iters {
            self.iteration(job, buffers, in_place)?;
            if self.plan.nccl.blocking == 3 {
                self.settle()?;
                let wait = Instant::now();
                self.group.barrier()?;
                waited += wait.elapsed().as_secs_f64();
            }
        }
        self.settle()?;
        let us = (start.elapsed().as_secs_f64() - waited) * 1e6;
        Ok((vec![us / calls], (self.cpu_us() - cpu) / calls))
    }

    /// Microseconds of a call in each iteration, every one started by a barrier, and CPU time.
    fn time_each(&self, job: Job, buffers: &mut Buffers, in_place: bool) -> Result<(Vec<f64>, f64), CollectiveError> {
        let calls = f64::from(self.plan.nccl.agg_iters);
        let (mut times, mut cpu) = (Vec::with_capacity(self.plan.nccl.iters as usize), 0.0);
        for _ in 0..self.plan.nccl.iters {
            self.group.barrier()?;
            let (before, start) = (self.cpu_us(), Instant::now());
            self.iteration(job, buffers, in_place)?;
            self.settle()?;
            times.push(start.elapsed().as_secs_f64() * 1e6 / calls);
            cpu += self.cpu_us() - before;
        }
        Ok((times, cpu / (calls * f64::from(self.plan.nccl.iters))))
    }

    /// CPU time of this thread in microseconds, where somebody wants it: asking the system takes as long as a small message.
    fn cpu_us(&self) -> f64 {
        if self.plan.nccl.cpu_time == 0 {
            return 0.0;
        }
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    }

    fn average(&self, of_ranks: &[f64]) -> f64 {
        match self.plan.average {
            Average::RankZero => of_ranks.first().copied().unwrap_or_default(),
            Average::Mean => of_ranks.iter().sum::<f64>() / of_ranks.len().max(1) as f64,
            Average::Min => of_ranks.iter().copied().fold(f64::INFINITY, f64::min),
            Average::Max => of_ranks.iter().copied().fold(0.0, f64::max),
        }
    }

    /// Wrong elements on all ranks together, and where the first one is; nothing where nobody is to look. Stops at the
    /// first round that finds some.
    fn check(
        &self,
        job: Job,
        buffers: &mut Buffers,
        in_place: bool,
    ) -> Result<(Option<u64>, Option<Wrong>), CollectiveError> {
        for round in 0..self.plan.nccl.check {
            let stream = (self.row << 8 | u64::from(round)) << 1 | u64::from(in_place);
            let own = self.check_once(job, buffers, in_place, self.plan.seed ^ stream << 20)?;
            let (at, wanted, found) = own.first.unwrap_or((0, 0.0, 0.0));
            let all = self.exchange.numbers(&[own.count as f64, at as f64, wanted, found])?;
            let count: f64 = all.iter().map(|numbers| numbers[0]).sum();
            if let Some(rank) = all.iter().position(|numbers| numbers[0] > 0.0) {
                let [_, offset, expected, found] = all[rank][..] else { continue };
                let found = found.is_finite().then_some(found);
                let host = self.devices[rank].hostname.clone();
                let first = Wrong { rank, host, offset: offset as u64, expected, found };
                return Ok((Some(count as u64), Some(first)));
            }
        }
        Ok(((self.plan.nccl.check > 0).then_some(0), None))
    }

    fn check_once(
        &self,
        job: Job,
        buffers: &mut Buffers,
        in_place: bool,
        seed: u64,
    ) -> Result<Mismatch, CollectiveError> {
        let (rank, shape) = (self.group.rank(), job.shape);
        let is_root = job.is_root(rank);
        let gets_all = is_root.unwrap_or(true);
        let pattern = job.pattern(self.group.size(), seed);
        let memory = self.member.memory();
        memory.poison(&mut buffers.receiving(shape.whole()))?;
        let input = if in_place { job.collective.input_in_place(shape, rank, gets_all) } else { None };
        match input {
            // Only the root's buffer is broadcast; the others' stays as it is, to show what arrives.
            Some(_) if job.collective == Collective::Broadcast && !gets_all => {}
            Some(at) => {
                let mut whole = buffers.receiving(shape.whole());
                memory.fill(&mut whole.slice_mut(at..at + shape.send), pattern, rank, 0)?;
            }
            None => memory.fill(&mut buffers.sending(shape.send), pattern, rank, 0)?,
        }
        let slot = buffers.first(shape.whole());
        self.group.call(job.collective.call(job.kind, shape, is_root, in_place, slot))?;
        let Some((from, len)) = job.collective.output(shape, in_place, rank, gets_all) else {
            return Ok(Mismatch::default());
        };
        let end = if in_place { shape.whole() } else { shape.recv };
        let received = buffers.receiving(shape.whole());
        let expected = |index: u64| job.expected(&pattern, rank, index, self.plan.levels);
        let guard = end..end + super::buffers::GUARD;
        memory.compare(received.as_view(), from..from + len, guard, expected)
    }
}
