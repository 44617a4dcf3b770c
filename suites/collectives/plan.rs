//! What was asked for, checked and with every default filled in.

use super::args::{AllreduceArgs, BufferUse, NcclArgs};
use super::collective::Collective;
use super::data::{DTYPES, OPS};
use super::split::Split;
use zbench_collectives::compose::Algorithm;
use zbench_config::kind::hint;
use zbench_kernels::{DType, QuantFormat, ReduceOp};

/// How the times of ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// Rank 0's.
    RankZero,
    /// Their mean.
    Mean,
    /// The least.
    Min,
    /// The largest.
    Max,
}

/// Everything that ranks need to know before they begin.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The flags of nccl-tests that need no more than clap's checks.
    pub nccl: NcclArgs,
    /// In this order.
    pub collectives: Vec<Collective>,
    /// Whether every pair is measured.
    pub pairs: bool,
    /// Whether a slow rank or link is looked for.
    pub bisect: bool,
    /// In this order.
    pub dtypes: Vec<DType>,
    /// In this order.
    pub ops: Vec<ReduceOp>,
    /// The root; every rank in turn where absent.
    pub root: Option<usize>,
    /// Largest size.
    pub max_bytes: u64,
    /// Factor between sizes, 1 for none.
    pub step_factor: u64,
    /// Difference of sizes.
    pub step_bytes: u64,
    /// How the times of ranks become one.
    pub average: Average,
    /// Whether iterations are timed one by one.
    pub per_iteration: bool,
    /// Whether all iterations use the same memory.
    pub hot: bool,
    /// Groups that measure at the same time.
    pub split: Option<Split>,
    /// The average bus bandwidth that is expected, GB/s.
    pub min_bandwidth: Option<f64>,
    /// The algorithm asked for.
    pub algorithm: String,
    /// Ranks of a node, where collectives are composed.
    pub ranks_per_node: Option<usize>,
    /// The largest integer of quantised values, where collectives travel quantised.
    pub levels: Option<f64>,
    /// Emulated links, in words.
    pub link: Option<String>,
    /// Another seed, other data.
    pub seed: u64,
}

impl Plan {
    /// From the command line and the variables of nccl-tests, which `variable` looks up.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn new(args: &AllreduceArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Plan, String> {
        let nccl = &args.nccl;
        // Looking for a slow rank is a question of its own.
        let default = if args.bisect { "pairs" } else { "all_reduce" };
        let (collectives, pairs) = collectives(args.collective.as_deref().unwrap_or(default))?;
        let step_factor = match (nccl.step_factor, nccl.step_bytes) {
            (Some(0), _) => return Err("-f 0: the factor between sizes is 1 or more".into()),
            (Some(factor), _) => factor,
            (None, Some(_)) => 1,
            (None, None) => 2,
        };
        let step_bytes = nccl.step_bytes.unwrap_or(1 << 20);
        let max_bytes = nccl.max_bytes.unwrap_or((128 << 20).max(nccl.min_bytes));
        if nccl.min_bytes > max_bytes {
            return Err(format!(
                "-b {} is above -e {max_bytes}; give a smallest size up to the largest",
                nccl.min_bytes
            ));
        }
        if step_factor == 1 && step_bytes == 0 && nccl.min_bytes < max_bytes {
            return Err("-i 0 does not get from -b to -e; give a difference above 0, or -f".into());
        }
        let per_iteration = args.per_iteration || nccl.per_iter_timing > 0;
        if nccl.per_iter_skip > 0 && (!per_iteration || nccl.per_iter_skip >= nccl.iters) {
            return Err(format!("-K {} needs -I 1 and more than that many iterations (-n)", nccl.per_iter_skip));
        }
        let root = match nccl.root {
            -1 => None,
            root => Some(usize::try_from(root).map_err(|_| format!("-r {root}: a rank, or -1 for every one in turn"))?),
        };
        let min_bandwidth = match variable("NCCL_TESTS_MIN_BW") {
            None => None,
            Some(text) => Some(
                text.trim()
                    .parse::<f64>()
                    .ok()
                    .filter(|rate| *rate > 0.0 && rate.is_finite())
                    .ok_or_else(|| format!("NCCL_TESTS_MIN_BW=`{text}` is no bandwidth in GB/s above 0"))?,
            ),
        };
        let levels = levels(&args.algorithm);
        let (types, reductions) = (dtypes(&nccl.datatype)?, ops(&nccl.op)?);
        let travels = |dtype: &DType| matches!(dtype, DType::F32 | DType::F16 | DType::Bf16);
        let sums = |op: &ReduceOp| matches!(op, ReduceOp::Sum | ReduceOp::Avg);
        if levels.is_some() && !(types.iter().all(travels) && reductions.iter().all(sums)) {
            let name = &args.algorithm;
            return Err(format!("--algorithm {name}: only sum and avg of half, float and bfloat16 travel quantised"));
        }
        Ok(Plan {
            nccl: nccl.clone(),
            collectives,
            pairs,
            bisect: args.bisect,
            dtypes: types,
            ops: reductions,
            root,
            max_bytes,
            step_factor,
            step_bytes,
            average: match nccl.average {
                0 => Average::RankZero,
                1 => Average::Mean,
                2 => Average::Min,
                _ => Average::Max,
            },
            per_iteration,
            hot: args.buffers == BufferUse::Hot,
            split: Split::from_environment(variable)?,
            min_bandwidth,
            algorithm: args.algorithm.clone(),
            ranks_per_node: args.ranks_per_node.filter(|_| Algorithm::find(&args.algorithm).is_some()),
            levels,
            link: args.link_bandwidth.map(|bandwidth| {
                let latency = args.link_latency.unwrap_or(0.0) * 1e6;
                let node = args.ranks_per_node.unwrap_or(0);
                format!("{} GB/s each way and {latency} us between nodes of {node} ranks", bandwidth / 1e9)
            }),
            seed: args.seed,
        })
    }

    /// Whether some collectives are made of others.
    pub fn is_composed(&self) -> bool {
        Algorithm::find(&self.algorithm).is_some()
    }

    /// All sizes up to `largest`, ascending.
    pub fn sizes(&self, largest: u64) -> impl Iterator<Item = u64> + '_ {
        let next = move |size: &u64| match (self.step_factor, *size) {
            (1, size) => size.checked_add(self.step_bytes).filter(|_| self.step_bytes > 0),
            // No factor leads away from nothing.
            (_, 0) => Some(8),
            (factor, size) => size.checked_mul(factor),
        };
        std::iter::successors(Some(self.nccl.min_bytes.min(largest)), next).take_while(move |size| *size <= largest)
    }

    /// The reductions of a collective; one that is not used where it does not reduce.
    pub fn ops_of(&self, collective: Collective) -> &[ReduceOp] {
        if collective.has_op() { &self.ops } else { &[ReduceOp::Sum] }
    }

    /// How times come about, in words.
    pub fn timing(&self) -> String {
        let calls =
            if self.nccl.agg_iters > 1 { format!(", {} calls each", self.nccl.agg_iters) } else { String::new() };
        let ranks = match self.average {
            Average::RankZero => "rank 0's (-a 0)",
            Average::Mean => "mean of the ranks (-a 1)",
            Average::Min => "least of the ranks (-a 2)",
            Average::Max => "largest of the ranks (-a 3)",
        };
        if self.per_iteration {
            format!(
                "median of {} iterations{calls}, each started by a barrier, each that of its slowest rank",
                self.nccl.iters
            )
        } else {
            format!("mean of {} back-to-back iterations{calls}, {ranks}", self.nccl.iters)
        }
    }
}

/// The collectives named, and whether `pairs` is among them.
fn collectives(names: &str) -> Result<(Vec<Collective>, bool), String> {
    let mut chosen = Vec::new();
    let mut pairs = false;
    for name in names.split(',').map(str::trim) {
        match Collective::ALL.into_iter().find(|c| c.name() == name) {
            Some(collective) => chosen.push(collective),
            None if name == "all" => chosen.extend(Collective::ALL),
            None if name == "pairs" => pairs = true,
            None => {
                let all: Vec<&str> = Collective::ALL.iter().map(|c| c.name()).chain(["pairs", "all"]).collect();
                return Err(format!("--collective `{name}` is none of {}{}", all.join(", "), hint(name, &all)));
            }
        }
    }
    Ok((chosen, pairs))
}

/// Types by nccl-tests' names or ours.
fn dtypes(name: &str) -> Result<Vec<DType>, String> {
    if name == "all" {
        return Ok(DTYPES.map(|(dtype, _)| dtype).to_vec());
    }
    let found = DTYPES.into_iter().find(|(dtype, theirs)| *theirs == name || dtype.name() == name);
    found.map(|(dtype, _)| vec![dtype]).ok_or_else(|| {
        let names = DTYPES.map(|(_, name)| name).join(", ");
        format!("-d `{name}`: this version has {names} and all")
    })
}

fn ops(name: &str) -> Result<Vec<ReduceOp>, String> {
    if name == "all" {
        return Ok(OPS.to_vec());
    }
    let found = OPS.into_iter().find(|op| op.name() == name);
    found
        .map(|op| vec![op])
        .ok_or_else(|| format!("-o `{name}`: this version has {} and all", OPS.map(ReduceOp::name).join(", ")))
}

/// The largest integer of an algorithm that quantises.
fn levels(algorithm: &str) -> Option<f64> {
    let quantize = Algorithm::find(algorithm)?.quantize()?;
    Some(match quantize.format {
        QuantFormat::Int8 => 127.0,
        QuantFormat::Int4 => 7.0,
    })
}

/// nccl-tests' name of a type.
pub fn type_name(dtype: DType) -> &'static str {
    DTYPES.into_iter().find(|(known, _)| *known == dtype).map_or("unknown", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AllreduceArgs,
    }

    fn plan(words: &[&str]) -> Result<Plan, String> {
        let line = Line::try_parse_from([&["allreduce"], words].concat()).map_err(|error| error.to_string())?;
        Plan::new(&line.args, |_| None)
    }

    #[test]
    fn defaults_are_nccl_tests_but_for_the_sizes() {
        let plan = plan(&[]).unwrap();
        let nccl = &plan.nccl;
        assert_eq!((nccl.iters, nccl.warmup_iters, nccl.agg_iters, nccl.run_cycles, nccl.check), (20, 1, 1, 1, 1));
        assert_eq!((plan.average, plan.root, nccl.blocking), (Average::Mean, Some(0), 0));
        assert_eq!((&plan.ops[..], &plan.dtypes[..]), (&[ReduceOp::Sum][..], &[DType::F32][..]));
        let sizes: Vec<u64> = plan.sizes(plan.max_bytes).collect();
        assert_eq!((sizes[0], sizes[1], sizes.len(), sizes[24]), (8, 16, 25, 128 << 20));
    }

    #[test]
    fn sizes_step_by_factor_or_difference_and_stop_where_memory_ends() {
        let sizes = |words: &[&str], largest| plan(words).unwrap().sizes(largest).collect::<Vec<u64>>();
        assert_eq!(sizes(&["-b", "1K", "-e", "9K", "-f", "3"], 9216), [1024, 3072, 9216]);
        assert_eq!(sizes(&["-b", "10", "-e", "50", "-i", "20"], 50), [10, 30, 50]);
        assert_eq!(sizes(&["-b", "0", "-e", "32", "-f", "2"], 32), [0, 8, 16, 32]);
        assert_eq!(sizes(&["-b", "1M", "-e", "4M"], 1000), [1000]);
        assert_eq!(sizes(&["-b", "1M", "-e", "1M", "-i", "0"], 1 << 20), [1 << 20]);
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (words, said) in [
            (&["-b", "2M", "-e", "1M"][..], "is above -e"),
            (&["-f", "0"], "-f 0"),
            (&["-i", "0", "-e", "1M"], "-i 0"),
            (&["-K", "3"], "needs -I 1"),
            (&["-r", "-2"], "-r -2"),
            (&["-o", "mulsum"], "this version has sum, prod, max, min, avg"),
            (&["-d", "uint8"], "this version has int8"),
            (&["--collective", "allreduce"], "is none of all_reduce,"),
            (&["--collective", "all-reduce"], "did you mean \"all_reduce\"?"),
            (&["--collective", "xyz"], "`xyz` is none of all_reduce,"),
            (&["-n", "0"], "0"),
        ] {
            let error = plan(words).unwrap_err();
            assert!(error.contains(said), "{words:?}: {error}");
        }
        assert_eq!(plan(&["-r", "-1"]).unwrap().root, None);
        assert_eq!(plan(&["--collective", "all,pairs"]).unwrap().collectives.len(), 9);
        assert_eq!(plan(&["-o", "all", "-d", "all"]).unwrap().ops.len(), 5);
    }
}
