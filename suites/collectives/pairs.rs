//! Every pair of ranks in O(n) rounds, suspects measured again, and halving.

use super::exchange::Exchange;
use super::judge::{self, Outliers};
use super::member::Member;
use super::plan::Plan;
use super::{CollectiveError, Watch};
use std::time::Instant;
use zbench_collectives::{Call, Communicator, Kind, ReduceOp};
use zbench_kernels::{Buffer, Category, DType, Kernels};
use zbench_reports::collectives::{Device, Pairs, Suspect};
use zbench_reports::stats;

/// How often a pair or a half that stands out is measured again before anything is said of it.
pub const RETRIES: usize = 3;
/// A half is slower if it takes this much longer than the other.
const SLOWER: f64 = 1.25;
/// Larger messages say no more about a link.
const LARGEST: u64 = 4 << 20;

/// Measures, judges, and tells the watch of rank 0. Whether it was stopped.
pub fn run(
    member: &Member<'_>,
    plan: &Plan,
    exchange: Exchange<'_>,
    devices: &[Device],
    largest: u64,
    watch: &dyn Watch,
) -> Result<bool, CollectiveError> {
    let world = member.world;
    if world.size() < 2 {
        return Err(CollectiveError::Unsupported("pairs of ranks need two ranks at least; give --ranks".into()));
    }
    let len = usize::try_from(largest.min(LARGEST) / 4).unwrap_or(usize::MAX).max(1);
    let buffer = || member.arena.alloc(Category::Communication, DType::F32, len);
    let (mut send, recv) = (buffer()?, buffer()?);
    let pattern = super::data::Pattern { dtype: DType::F32, op: None, ranks: world.size(), seed: plan.seed };
    member.memory().fill(&mut send.view_mut(), pattern, world.rank(), 0)?;
    let mut prober = Prober { world, exchange, kernels: member.kernels, send, recv, iters: plan.nccl.iters };
    let hosts: Vec<String> = devices.iter().map(|device| device.hostname.clone()).collect();
    let mut pairs = Pairs {
        bytes: (len * 4) as u64,
        hosts: hosts.clone(),
        rule: judge::RULE.into(),
        retries: RETRIES,
        ..Pairs::default()
    };
    let mut matrix = vec![vec![f64::NAN; world.size()]; world.size()];
    for round in judge::tournament(world.size()) {
        if exchange.any(watch.stop())? {
            return Ok(true);
        }
        prober.round(&round, &mut matrix)?;
    }
    let found = prober.confirm(&mut matrix, &hosts, &mut pairs)?;
    pairs.gb_s =
        matrix.iter().map(|line| line.iter().map(|rate| rate.is_finite().then_some(*rate)).collect()).collect();
    pairs.kinds = found.kinds;
    pairs.bad_ranks = found.ranks;
    pairs.bad_links = found.links.into_iter().map(|(a, b)| [a, b]).collect();
    if plan.bisect {
        prober.halves(&mut pairs)?;
    }
    if world.rank() == 0 {
        watch.pairs(pairs);
    }
    Ok(false)
}

struct Prober<'a> {
    world: &'a dyn Communicator,
    exchange: Exchange<'a>,
    kernels: &'a dyn Kernels,
    send: Buffer,
    recv: Buffer,
    iters: u32,
}

impl Prober<'_> {
    /// All pairs of a round at the same time.
    fn round(&mut self, pairs: &[(usize, usize)], matrix: &mut [Vec<f64>]) -> Result<(), CollectiveError> {
        let own = self.world.rank();
        let peer = pairs.iter().find_map(|(a, b)| match own {
            own if own == *a => Some(*b),
            own if own == *b => Some(*a),
            _ => None,
        });
        self.world.barrier()?;
        let seconds = match peer {
            Some(peer) => self.time(self.world, Kind::SendRecv { to: peer, from: peer })?,
            None => 0.0,
        };
        let all = self.exchange.number(seconds)?;
        for (a, b) in pairs {
            let rate = self.bytes() / all[*a].max(all[*b]) / 1e9;
            (matrix[*a][*b], matrix[*b][*a]) = (rate, rate);
        }
        Ok(())
    }

    fn bytes(&self) -> f64 {
        (self.send.len() * 4) as f64
    }

    /// Seconds of the fastest call: what is slow even then is slow by itself, whatever else the machine does. The first
    /// call does not count, as it may set up what the others use.
    fn time(&mut self, comm: &dyn Communicator, kind: Kind) -> Result<f64, CollectiveError> {
        let mut least = f64::INFINITY;
        self.kernels.synchronize()?;
        for iteration in 0..=self.iters {
            let start = Instant::now();
            comm.call(Call::new(kind, self.send.view(), self.recv.view_mut()))?;
            self.kernels.synchronize()?;
            if iteration > 0 {
                least = least.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(least.max(1e-9))
    }

    /// Measures what stands out again, one pair at a time, and judges by the medians.
    fn confirm(
        &mut self,
        matrix: &mut [Vec<f64>],
        hosts: &[String],
        pairs: &mut Pairs,
    ) -> Result<Outliers, CollectiveError> {
        let first = judge::outliers(matrix, hosts);
        let n = self.world.size();
        let all = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        let is_suspect =
            |(a, b): &(usize, usize)| first.ranks.iter().any(|r| r == a || r == b) || first.links.contains(&(*a, *b));
        for (a, b) in all.filter(is_suspect) {
            let first_gb_s = matrix[a][b];
            let mut again_gb_s = Vec::new();
            for _ in 0..RETRIES {
                self.round(&[(a, b)], matrix)?;
                again_gb_s.push(matrix[a][b]);
            }
            let rate = stats::median(&again_gb_s).unwrap_or(first_gb_s);
            (matrix[a][b], matrix[b][a]) = (rate, rate);
            pairs.suspects.push(Suspect { ranks: [a, b], first_gb_s, again_gb_s, confirmed: false });
        }
        let found = judge::outliers(matrix, hosts);
        for suspect in &mut pairs.suspects {
            let [a, b] = suspect.ranks;
            suspect.confirmed = found.ranks.iter().any(|r| *r == a || *r == b) || found.links.contains(&(a, b));
        }
        Ok(found)
    }

    /// All-reduces in halves, and halves of the slower half. Finds what only shows when more than two ranks talk.
    fn halves(&mut self, pairs: &mut Pairs) -> Result<(), CollectiveError> {
        let mut suspects: Vec<usize> = (0..self.world.size()).collect();
        if suspects.len() < 4 {
            pairs.halves.push("fewer than 4 ranks have no halves of two; the pairs above say all there is".into());
            return Ok(());
        }
        while suspects.len() >= 4 {
            let (low, high) = suspects.split_at(suspects.len() / 2);
            let mut ratios = vec![self.compare(low, high)?];
            let stands_out = |ratio: f64| !(1.0 / SLOWER..=SLOWER).contains(&ratio);
            if stands_out(ratios[0]) {
                for _ in 0..RETRIES {
                    ratios.push(self.compare(low, high)?);
                }
            }
            let ratio = stats::median(&ratios).unwrap_or(1.0);
            let finding =
                format!("ranks {low:?} take {ratio:.2} times as long as {high:?}, median of {}", ratios.len());
            if !stands_out(ratio) {
                pairs.halves.push(format!("{finding}: neither is slower"));
                return Ok(());
            }
            pairs.halves.push(finding);
            suspects = if ratio > 1.0 { low } else { high }.to_vec();
        }
        let others: Vec<usize> = (0..self.world.size()).filter(|rank| !suspects.contains(rank)).collect();
        self.last(&suspects, others[0], pairs)
    }

    /// Two or three are left: each of them with one that is above suspicion, and with each other.
    fn last(&mut self, suspects: &[usize], good: usize, pairs: &mut Pairs) -> Result<(), CollectiveError> {
        let mut with_good = Vec::new();
        for suspect in suspects {
            let mut scratch = vec![vec![f64::NAN; self.world.size()]; self.world.size()];
            let mut rates = Vec::new();
            for _ in 0..RETRIES {
                self.round(&[(good.min(*suspect), good.max(*suspect))], &mut scratch)?;
                rates.push(scratch[good][*suspect]);
            }
            with_good.push((*suspect, stats::median(&rates).unwrap_or(0.0)));
        }
        let best = with_good.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let worst = with_good.iter().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
        // Slower than the best, and nearer to the slowest than to it.
        let is_slow = |rate: f64| rate * SLOWER < best && rate * rate < best * worst;
        let slow: Vec<usize> = with_good.iter().filter(|(_, rate)| is_slow(*rate)).map(|(rank, _)| *rank).collect();
        pairs.halves.push(match &slow[..] {
            [] => {
                format!("ranks {suspects:?} are slow together, and none of them with rank {good}: a link between them")
            }
            slow => format!("with rank {good}, which is not slow, rank(s) {slow:?} of {suspects:?} are slow"),
        });
        pairs.bad_ranks.extend(slow);
        pairs.bad_ranks.sort_unstable();
        pairs.bad_ranks.dedup();
        Ok(())
    }

    /// How much longer an all-reduce takes among `low` than among `high`, at the same time, the sizes of the groups
    /// taken into account.
    fn compare(&mut self, low: &[usize], high: &[usize]) -> Result<f64, CollectiveError> {
        let own = self.world.rank();
        let color = if low.contains(&own) {
            0
        } else if high.contains(&own) {
            1
        } else {
            2
        };
        let group = self.world.split(color, own, "half")?;
        let seconds = match color {
            2 => 0.0,
            _ => self.time(&*group, Kind::AllReduce { op: ReduceOp::Sum })?,
        };
        let all = self.exchange.number(seconds)?;
        let slowest = |ranks: &[usize]| {
            let factor = super::collective::Collective::AllReduce.factor(ranks.len());
            ranks.iter().map(|rank| all[*rank]).fold(0.0, f64::max) / factor
        };
        Ok(slowest(low) / slowest(high))
    }
}
