//! The cells of `suite = "collectives"`: the flags of `zbench allreduce` as keys of a document. A cell is measured by a process
//! of its own, `zbench allreduce` with these flags on a notebook of its own, whose record is taken over.

use super::args::AllreduceArgs;
use super::plan::Plan;
use super::record::{Placement, cell, key};
use super::world_spec::WorldSpec;
use crate::bench::{BenchError, BenchResult, BenchSpec, Limits, Scratch, Specs, process};
use clap::Parser;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use toml::Value as Toml;
use zbench_config::{Context, Refusal, Values};
use zbench_host::machine;
use zbench_reports::Notebook;
use zbench_reports::record::Record;
use zbench_reports::units::plural;
use zbench_runner::child::died;

/// Keys and the flags of `zbench allreduce` that they stand for.
const FLAGS: [(&str, &str); 19] = [
    ("collectives.collective", "--collective"),
    ("collectives.min_bytes", "--minbytes"),
    ("collectives.max_bytes", "--maxbytes"),
    ("collectives.step_factor", "--stepfactor"),
    ("collectives.iterations", "--iters"),
    ("collectives.warmup", "--warmup_iters"),
    ("collectives.type", "--datatype"),
    ("collectives.redop", "--op"),
    ("collectives.check", "--check"),
    ("collectives.algorithm", "--algorithm"),
    ("collectives.buffers", "--buffers"),
    ("collectives.per_iteration", "--per-iteration"),
    ("collectives.blocking", "--blocking"),
    ("parallel.ranks_per_node", "--ranks-per-node"),
    ("parallel.ranks", "--ranks"),
    ("parallel.backend", "--backend"),
    ("hardware.threads_per_rank", "--threads"),
    ("link.node.bandwidth", "--link-bandwidth"),
    ("link.node.latency", "--link-latency"),
];
/// Keys of every suite, which say nothing of the measurement.
const COMMON: [&str; 3] = ["name", "question", "suite"];
/// Variables of nccl-tests that would change what a cell measures, and the filter of a log that would go to the standard error, whose
/// end becomes a failure's reason.
const NOT_INHERITED: [&str; 4] = ["NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_MIN_BW", "ZBENCH_LOG"];

/// The flags, as a command line of their own.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    args: AllreduceArgs,
}

/// One collective over one group of ranks.
struct CollectivesSpec {
    flags: Vec<String>,
    plain: Value,
    label: String,
    needs: Option<u64>,
    /// The backend, where it is one of GPUs.
    gpus: Option<String>,
}

/// The cell of one combination.
///
/// # Errors
/// A key without effect, values that contradict each other.
pub fn specs(values: &Values, _context: &Context) -> Result<Specs, Refusal> {
    let is_known = |key: &&str| COMMON.contains(key) || FLAGS.iter().any(|(known, _)| known == key);
    if let Some(key) = values.settings.keys().find(|key| !is_known(key)) {
        return Err(values.refuse(key, &["suite"], "has no effect where suite is \"collectives\"; leave it out"));
    }
    if values.text("parallel.backend") == "mpi" {
        let message = "mpirun starts the ranks of \"mpi\": mpirun -n 4 zbench allreduce --backend mpi; write another backend here";
        return Err(values.refuse("parallel.backend", &[], message));
    }
    let flags = flags(values);
    let refuse = |message: String| {
        let (key, message) = by_keys(&message);
        values.refuse(key, &FLAGS.map(|(key, _)| key), message)
    };
    let args = Line::try_parse_from(&flags).map_err(|error| refuse(error.to_string()))?.args;
    let plan = Plan::new(&args, |_| None).map_err(&refuse)?;
    let wanted = WorldSpec::new(&args, None, true).map_err(&refuse)?;
    let backend = args.backend.as_deref().unwrap_or("local");
    // The process that measures starts the ranks over shm and tcp; it is on this host.
    let place = Placement {
        backend,
        link: plan.link.as_deref(),
        ranks: wanted.ranks,
        group_ranks: wanted.ranks,
        hosts: 1,
        threads_per_rank: wanted.threads,
        maximum_bytes: plan.max_bytes,
        on_gpus: matches!(backend, "nccl" | "device"),
    };
    let [collective] = plan.collectives[..] else {
        return Err(values.refuse("collectives.collective", &[], "a cell measures one collective".to_string()));
    };
    let spec = CollectivesSpec {
        plain: cell(&plan, collective.name(), collective.has_op(), &place),
        label: format!("{}, {backend}, {}", collective.name(), plural(wanted.ranks, "rank", "ranks")),
        needs: plan.nccl.min_bytes.checked_mul(2 * wanted.ranks as u64),
        gpus: place.on_gpus.then(|| format!("parallel.backend = \"{backend}\" needs a GPU")),
        flags,
    };
    Ok((vec![Box::new(spec)], None))
}

/// The flags of what is stated. Both read sizes, rates and times alike.
fn flags(values: &Values) -> Vec<String> {
    let mut flags = Vec::new();
    for (key, flag) in FLAGS {
        match values.given(key) {
            None | Some(Toml::Boolean(false)) => {}
            Some(Toml::Boolean(true)) => flags.push(flag.to_string()),
            Some(Toml::String(text)) => flags.extend([flag.to_string(), text.clone()]),
            Some(number) => flags.extend([flag.to_string(), number.to_string()]),
        }
    }
    flags
}

/// A message about flags as one about keys, and the key that it is about.
fn by_keys(message: &str) -> (&'static str, String) {
    let short =
        [("-b ", "collectives.min_bytes "), ("-e ", "collectives.max_bytes "), ("-f ", "collectives.step_factor ")];
    let named = FLAGS.iter().map(|(key, flag)| (*flag, *key)).chain(short);
    let found = named.filter_map(|(flag, key)| Some((message.find(flag)?, flag, key)));
    let about = found.clone().min_by_key(|(place, ..)| *place).map(|(.., key)| key.trim());
    let text = found.fold(message.to_string(), |text, (_, flag, key)| text.replace(flag, key));
    let about = about.unwrap_or("collectives.collective");
    // The key stands in front of every refusal.
    let text = text.strip_prefix(about).map_or(text.clone(), |rest| rest.trim_start_matches([':', ' ']).to_string());
    (about, text)
}

impl BenchSpec for CollectivesSpec {
    fn plain(&self) -> Value {
        self.plain.clone()
    }

    fn key(&self) -> String {
        key(&self.plain)
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn needs(&self) -> Option<u64> {
        self.needs
    }

    fn asks_for_gpu(&self) -> Option<String> {
        self.gpus.clone()
    }

    fn measure(&self, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError> {
        let scratch = Scratch::new(folder, "name another notebook with --notebook").map_err(process::failed)?;
        let oom_kills = machine::oom_kills();
        let program = std::env::current_exe()
            .map_err(|error| process::failed(format!("zbench allreduce cannot be started: {error}")))?;
        let mut command = Command::new(program);
        command.arg("--notebook").arg(scratch.path()).args(["--quiet", "allreduce"]).args(&self.flags);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        // Its result is a record. Where it is killed its ranks end with it (they die with their parent).
        let trial = process::run::<()>(&mut command, &[], limits, |_| None)?;
        let records = Notebook::open(scratch.path()).and_then(|notebook| notebook.records());
        match records.map_err(|error| process::failed(error.to_string()))?.pop() {
            Some(record) => {
                // The notebook of the process is gone; the flags measure the same again.
                let words = ["zbench", "allreduce"].into_iter().chain(self.flags.iter().map(String::as_str));
                let command = shlex::try_join(words).unwrap_or_default();
                let record = Record { command, ..record };
                Ok(BenchResult { record: Some(Box::new(record)), ..BenchResult::default() })
            }
            None => Err(died(trial.status, oom_kills, &trial.tail).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_config::{Document, Settings};

    fn settings(text: &str) -> Settings {
        Document::parse(Path::new("c.toml"), &format!("suite = \"collectives\"\n{text}"), &[]).unwrap().base
    }

    fn spec(text: &str) -> Result<Box<dyn BenchSpec>, Refusal> {
        let settings = settings(text);
        let context = Context::new(".".into(), 2);
        specs(&Values { settings: &settings }, &context).map(|(mut specs, _)| specs.remove(0))
    }

    #[test]
    fn keys_become_the_flags_of_the_test() {
        let settings = settings(
            "[collectives]\nmin_bytes = \"1KiB\"\nmax_bytes = 4096\ntype = \"half\"\nper_iteration = true\n\
             [parallel]\nranks = 4\nbackend = \"shm\"\nranks_per_node = 2\n[link.node]\nbandwidth = \"1GB/s\"\nlatency = \"20us\"\n",
        );
        let words = flags(&Values { settings: &settings }).join(" ");
        assert_eq!(
            words,
            "--minbytes 1KiB --maxbytes 4096 --datatype half --per-iteration --ranks-per-node 2 --ranks 4 --backend shm \
             --link-bandwidth 1GB/s --link-latency 20us"
        );
    }

    #[test]
    fn what_is_the_same_measurement_has_the_same_cell() {
        let cell = |text: &str| spec(text).map_err(|refusal| refusal.to_string()).unwrap().plain();
        let usual = cell("");
        assert_eq!(usual, cell("[collectives]\ncollective = \"all_reduce\"\nmin_bytes = 8\n[parallel]\nranks = 2\n"));
        assert_ne!(usual, cell("[collectives]\ncollective = \"all_gather\"\n"));
        assert_ne!(usual, cell("[parallel]\nbackend = \"shm\"\n"));
        let composed = |node: u32| {
            cell(&format!("[collectives]\nalgorithm = \"q8\"\n[parallel]\nranks = 4\nranks_per_node = {node}\n"))
        };
        assert_ne!(composed(1), composed(2), "another composition");
        assert_eq!((usual["parallel"]["ranks"].as_u64(), usual["maximum_bytes"].as_u64()), (Some(2), Some(128 << 20)));
    }

    #[test]
    fn what_contradicts_itself_is_told_by_its_keys() {
        for (text, key, words) in [
            ("[train]\nsteps = 3\n", "train.steps", "has no effect where suite is \"collectives\""),
            (
                "[collectives]\nmin_bytes = 4096\nmax_bytes = 8\n",
                "collectives.min_bytes",
                "is above collectives.max_bytes",
            ),
            ("[collectives]\nalgorithm = \"q8\"\n", "collectives.algorithm", "needs parallel.ranks_per_node"),
            ("[link.node]\nbandwidth = \"1GB/s\"\n", "link.node.bandwidth", "needs parallel.ranks_per_node"),
            (
                "[parallel]\nranks = 3\nranks_per_node = 2\n[link.node]\nbandwidth = \"1GB/s\"\n",
                "parallel.ranks_per_node",
                "does not divide",
            ),
            ("[parallel]\nranks = 5000\n", "parallel.ranks", "from 1 to 4096"),
        ] {
            let Err(refusal) = spec(text) else { panic!("{text}") };
            assert_eq!(refusal.key, key, "{text}: {}", refusal.message);
            assert!(refusal.message.contains(words), "{text}: {}", refusal.message);
            assert!(!refusal.message.contains("--"), "{text}: {}", refusal.message);
            assert!(!refusal.message.starts_with(key), "the key stands in front of it: {}", refusal.message);
        }
    }
}
