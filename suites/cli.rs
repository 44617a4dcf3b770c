//! What people type, and the exit code they get.

use crate::allreduce::args::AllreduceArgs;
use crate::bench::args::{AttentionArgs, GemmArgs};
use crate::calibrate::args::CalibrateArgs;
use crate::checkpoint::args::CheckpointArgs;
use crate::commands;
use crate::config::ConfigError;
use crate::config::units;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit codes, as docs/contract.md states them.
pub mod exit {
    /// Done.
    pub const SUCCESS: u8 = 0;
    /// Usage or configuration.
    pub const USAGE: u8 = 1;
    /// Worse than it may be.
    pub const REGRESSION: u8 = 2;
    /// The data do not say.
    pub const INCONCLUSIVE: u8 = 3;
    /// Nothing was measured, though asked.
    pub const NOT_MEASURED: u8 = 4;
    /// At least one cell failed, timed out or diverged.
    pub const FAILED: u8 = 5;
    /// Stopped by Ctrl-C.
    pub const INTERRUPTED: u8 = 130;
}

const EXAMPLES: &str = "Examples:
  zbench grid configs/quickstart.toml                 train every cell, three trials each, and compare them
  zbench grid configs/quickstart.toml --dry-run       what each cell will take, without running it
  zbench report -o report.html                        everything in the notebook, with plots, as one file

Exit codes: 0 success, 1 usage or configuration, 4 nothing was measured, 5 a cell failed, timed out or diverged.";

/// A lab notebook for LLM training: one engine, every sharding strategy, measured and predicted.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 120)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Folder of the notebook
    #[arg(long, global = true, default_value = "notebook", value_name = "DIR")]
    pub notebook: PathBuf,
    /// Form of what is printed on standard output
    #[arg(long, global = true, value_enum, default_value = "table")]
    pub format: Format,
    /// Whether the form was asked for.
    #[arg(skip)]
    pub format_given: bool,
    /// No progress on standard error
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// More on standard error: a line for each step
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Colour of tables
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub color: ColorWhen,
}

/// Form of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For a terminal
    #[value(alias = "terminal")]
    Table,
    /// Markdown
    Markdown,
    /// Comma-separated values, a block for each table
    Csv,
    /// One object per line
    Json,
    /// One self-contained page, with plots
    Html,
}

/// When tables have colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run every cell of a file's grid that the notebook does not hold yet, and compare them
    #[command(after_help = "Examples:
  zbench grid configs/quickstart.toml
  zbench grid configs/quickstart.toml --only parallel.strategy=ddp,parallel.strategy=zero3 --trials 5
  zbench grid configs/quickstart.toml --set train.steps=20 --fresh
  zbench grid configs/llama70b.toml --proxy           the same grid here, scaled down and labelled

Stop it with Ctrl-C at any time; the same command goes on where it stopped.")]
    Grid(GridArgs),
    /// Run one cell and append a trial, with a line for each step
    #[command(after_help = "Examples:
  zbench run configs/quickstart.toml --only parallel.strategy=zero3,memory.checkpointing=none,train.accumulation=1,lora.rank=0
  zbench run configs/quickstart.toml --set parallel.strategy=zero3 --set memory.checkpointing=full --set lora.rank=0 --set train.accumulation=2")]
    Run(RunArgs),
    /// The estimate of every cell, without running
    #[command(after_help = "Examples:
  zbench plan configs/llama70b.toml
  zbench plan configs/llama70b.toml --format json     an object for each cell
  zbench plan configs/llama70b.toml --only parallel.strategy=fsdp --explain
  zbench plan configs/llama70b.toml --what-if network.rate=400Gb/s
  zbench plan configs/search70b.toml --search         the best way on these ranks
  zbench plan configs/claims/t5-3b.toml --deepspeed-estimator documented
  zbench plan --validate tests/published              predictions beside published results")]
    Plan(PlanArgs),
    /// The interconnect test: nccl-tests' flags, columns, factors and data check, over any backend
    #[command(after_help = "Examples:
  zbench allreduce                                    all-reduce of floats over 2 ranks, 8 B to 128 MiB
  zbench allreduce -b 1K -e 256M -f 4 -I 1 --ranks 4  iterations one by one: median, p95, p99
  zbench allreduce --collective all -d all -o all -e 1M -c 3
  zbench allreduce --collective pairs --bisect        every pair of ranks; names a slow rank or link
  zbench allreduce --format json > out.json           nccl-tests' JSON, file version 3
  zbench allreduce --expect list                      published figures of machines
  NCCL_TESTS_MIN_BW=5 zbench allreduce -b 64M -e 64M  exit code 2 below 0.9 of that

Exit codes: 0 success, 1 usage, 2 below NCCL_TESTS_MIN_BW or --bisect found something, 4 nothing was measured, 5 wrong
data or a collective that failed, 130 stopped by Ctrl-C. What was measured before is printed and recorded.")]
    Allreduce(Box<AllreduceArgs>),
    /// Matrix products over shapes, layouts, types and threads, against the ceiling of the cores
    #[command(after_help = "Examples:
  zbench gemm                                         cubes of 256 to 2048 in f32 and bf16
  zbench gemm --shape 2048x1376x512,1x4096x4096 --layout nn,nt,tn --dtype bf16 --threads 1,2
  zbench gemm --model llama-32m --seq-len 512 --micro-batch 4
                                                      every distinct product of a training step, and what they take together
  zbench gemm --model ./my-model --dtype bf16         … of a folder with config.json
  zbench gemm grid.toml                               a file with suite = \"gemm\"; what the notebook holds is not repeated
  zbench gemm --shape 512x512x512 --format csv

Exit codes: 0 success, 1 usage, 4 nothing was measured, 5 a wrong product or a trial that failed, 130 stopped by Ctrl-C: what was
measured before is kept. docs/kernels.md says how it is measured.")]
    Gemm(Box<GemmArgs>),
    /// Attention, flash and naive side by side: time, share of the ceiling, memory
    #[command(after_help = "Examples:
  zbench attention                                    8 heads of 64, sequences of 512 to 2048, f32 and bf16
  zbench attention --seq-len 4096 --heads 32 --kv-heads 8 --head-dim 128 --dtype bf16 --pass forward
  zbench attention --seq-len 8192 --window 1024 --kernel flash --threads 1,2
  zbench attention grid.toml                          a file with suite = \"attention\"

Exit codes: as `zbench gemm`. docs/kernels.md says how it is measured, and how operations are counted.")]
    Attention(Box<AttentionArgs>),
    /// Saving, loading and loading otherwise of a run's state: rates beside the disk's, what training loses, memory
    #[command(after_help = "Examples:
  zbench checkpoint                                   llama-32m on 4 ranks of zero3, 390 MB, the notebook's disk
  zbench checkpoint --strategy ddp,zero3 --layout sharded,full --dir /scratch
  zbench checkpoint --load-as ddp:1,hsdp:4/2,zero3:3  who loads what was written
  zbench checkpoint configs/checkpoint.toml           a file with suite = \"checkpoint\"

Exit codes: as `zbench gemm`; 5 too where what was loaded is not what was written. docs/checkpoint-suite.md has the rest.")]
    Checkpoint(Box<CheckpointArgs>),
    /// This machine's ceilings into its profile: matrix rate per type, memory, disk, per number of threads; or those of a GPU
    #[command(after_help = "Examples:
  zbench calibrate                                    1, 2, 4, … and all cores; the notebook's disk; machines/HOST.toml
  zbench calibrate --threads 1,8 --rounds 9 --disk /scratch --save configs/machines/mine.toml
  zbench calibrate --no-save --no-disk                measure, judge, keep the record only
  zbench calibrate --device cuda --gpu 0              a GPU: products, its memory, copies from and to the host, launches;
                                                      machines/HOST-GPU.toml, for hardware.profile

Exit codes: 0 saved, 1 usage, 3 the machine was too noisy: the numbers and the reasons are printed and recorded, the profile is
left as it was (or there is no data sheet of this GPU to have shares of), 4 there is no such GPU, or what it needs is missing,
130 stopped by Ctrl-C. The limits are in docs/kernels.md, and no flag goes around them.")]
    Calibrate(CalibrateArgs),
    /// The records of the notebook
    #[command(after_help = "Examples:
  zbench list
  zbench list status=failed --last 5
  zbench list parallel.strategy=zero3,valid=yes since=7d
  zbench list tag=paper --sort tokens_per_second
  zbench list commit=6336a92 --format csv")]
    List(ListArgs),
    /// Everything that a record holds
    #[command(after_help = "Examples:
  zbench show 3f2a                                    the beginning of an id is enough
  zbench show 3f2a --format json                      the record itself")]
    Show {
        /// Id of the record, or its beginning
        id: String,
    },
    /// A remark on a record
    #[command(after_help = "Examples:
  zbench note 3f2a \"the machine was on battery\"
  zbench show 3f2a                                    shows it again")]
    Note {
        /// Id of the record, or its beginning
        id: String,
        /// What to say
        text: String,
    },
    /// Tags on a record, to find it by
    #[command(after_help = "Examples:
  zbench tag 3f2a paper figure-2
  zbench tag 3f2a paper --remove
  zbench list tag=paper")]
    Tag(TagArgs),
    /// Records and their remarks as one file for another machine
    #[command(after_help = "Examples:
  zbench export --bundle all.jsonl                    the whole notebook
  zbench export --bundle paper.jsonl tag=paper        some of it: the terms of `list`, or ids
  zbench export --bundle here.jsonl --keep-hosts      with the names of hosts

Secrets are always left out; names and addresses of hosts become hashes.")]
    Export(ExportArgs),
    /// Take in the records of a bundle
    #[command(after_help = "Examples:
  zbench import --bundle paper.jsonl --notebook theirs

Nothing is taken of a file that is cut off, changed or of a newer version. What the notebook holds already stays as it is.")]
    Import(ImportArgs),
    /// Run a cell again from its record alone, and compare
    #[command(after_help = "Examples:
  zbench repro 3f2a                                   losses, bytes and calls must be the same; speed is shown beside")]
    Repro {
        /// Id of the record, or its beginning
        id: String,
        /// Time limit of the trial
        #[arg(long, value_parser = duration, default_value = "10min", value_name = "TIME")]
        timeout: Duration,
    },
    /// The comparison of records, with plots
    #[command(after_help = "Examples:
  zbench report                                       everything in the notebook
  zbench report name=quickstart -o report.html        the entry of that title, as one page with plots
  zbench report --format html > report.html           the same page of everything
  zbench report parallel.strategy=zero3 --format csv  records of one strategy, and the data of the plots
  zbench report 3f2a 77c0                             two records
  zbench report --figures plots --png                 each plot as plots/NAME.svg and plots/NAME.png
  zbench report -o report.md --figures plots          Markdown that shows the plots

The page loads nothing and runs nothing; it follows the reader's light or dark theme and can be printed. docs/reports.md says
how to read each plot.")]
    Report(ReportArgs),
    /// Two records, cells, grids, commits or notebooks side by side: how much, how surely, and what explains it
    #[command(after_help = "Examples:
  zbench compare 3f2a 77c0                            two records, or two cells by their keys
  zbench compare parallel.strategy=ddp parallel.strategy=zero3
                                                      each cell of the one with its like of the other
  zbench compare commit=1a2b3c commit=4d5e6f          what a change of zbench did to every cell
  zbench compare before after                         two notebooks: folders that hold records.jsonl
  zbench compare before:name=quickstart after:name=quickstart --format markdown
  zbench compare 3f2a 77c0 --format json              an object for each pair

The ratio is B/A with a 95 % interval over trials and steps. docs/compare.md says how it is read.
Exit codes: 0 compared, 1 a selector that is nothing or several things, 4 no two cells could be compared.")]
    Compare(CompareArgs),
    /// Is it as good as before? Speed, memory, traffic and losses against a baseline, another program or another configuration
    #[command(after_help = "Examples:
  zbench gate ci/gate.toml --against ../main/target/release/zbench    two programs in one job: the most trustworthy
  zbench gate ci/gate.toml --candidate-set memory.checkpointing=full  two configurations of this program
  zbench gate ci/gate.toml --update --baseline ci/baseline.json       measure a baseline and write it
  zbench gate ci/gate.toml --baseline ci/baseline.json --junit gate.xml --markdown gate.md
  zbench gate rules.toml --baseline old-notebook --candidate notebook records as they are, nothing is measured
  zbench gate ci/gate.toml --self-test --into ci/gate-self-test       how often the gate errs on this machine
  zbench gate ci/gate.toml --self-test --pool ci/gate-self-test/pool.jsonl

Exit codes: 0 pass or improvement, 1 usage, or machines, configurations or schemas that differ, 2 regression (and improvement
with --fail-on improvement), 3 inconclusive, 4 not measured, 5 a trial failed, 130 stopped by Ctrl-C. docs/gate.md has the rest.")]
    Gate(Box<GateArgs>),
    /// What this machine has, what is missing for which feature, and how to get it
    #[command(after_help = "Examples:
  zbench doctor
  zbench doctor --keys > docs/configuration.md        every key of a configuration")]
    Doctor {
        /// Print the table of configuration keys instead, as Markdown
        #[arg(long)]
        keys: bool,
    },
    /// A cell's own process
    #[command(name = "__cell", hide = true)]
    Cell,
    /// A rank's own process
    #[command(name = "__rank", hide = true)]
    Rank,
    /// The process of a trial of suite checkpoint
    #[command(name = "__checkpoint", hide = true)]
    CheckpointTrial,
    /// Becomes another program that ends with its parent
    #[command(name = "__follow", hide = true)]
    Follow {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// `zbench list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Ids or their beginnings, or key=value filters: a key of the configuration, name, key, status, trial, tag, commit,
    /// since (7d, 12h, 2026-11-21) or valid (yes, no)
    #[arg(value_name = "ID|FILTER")]
    pub what: Vec<String>,
    /// Order: started, name, key, status, trial, or a metric
    #[arg(long, default_value = "started", value_name = "WHAT")]
    pub sort: String,
    /// Only the last of them, in that order
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
}

/// `zbench tag`.
#[derive(Args, Debug)]
pub struct TagArgs {
    /// Id of the record, or its beginning
    pub id: String,
    /// Words without blanks, commas and equals signs
    #[arg(required = true, value_name = "TAG")]
    pub tags: Vec<String>,
    /// Take them away
    #[arg(long)]
    pub remove: bool,
}

/// `zbench export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The file, which must not exist
    #[arg(long, required = true, value_name = "FILE")]
    pub bundle: PathBuf,
    /// Leave names and addresses of hosts as they are
    #[arg(long)]
    pub keep_hosts: bool,
    /// What to export, in the terms of `list`; everything unless given
    #[arg(value_name = "ID|FILTER")]
    pub what: Vec<String>,
}

/// `zbench import`.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The file
    #[arg(long, required = true, value_name = "FILE")]
    pub bundle: PathBuf,
}

/// `zbench compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// What is compared with: a record's id or a cell's key (or their beginnings), key=value[,key=value] (a key of the
    /// configuration, name, status, trial or commit), a notebook's folder, or FOLDER:one of the former
    pub a: String,
    /// What is compared
    pub b: String,
    /// Use trials with validity flags too
    #[arg(long)]
    pub include_flagged: bool,
    /// Keep the steps of warm-up that are found among the timed ones
    #[arg(long)]
    pub all_steps: bool,
}

/// How a file becomes cells.
#[derive(Args, Clone, Debug)]
pub struct Cells {
    /// Configuration
    pub file: PathBuf,
    /// Change a key; a bare word is a string. Narrows an axis to this value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only cells with these values: key=value terms joined by commas; values of one key are alternatives
    #[arg(long, value_name = "EXPR")]
    pub only: Option<String>,
}

/// `zbench grid`.
#[derive(Args)]
pub struct GridArgs {
    /// The cells.
    #[command(flatten)]
    pub cells: Cells,
    /// Trials of each cell, round robin over the cells
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub trials: u32,
    /// Time limit of a trial
    #[arg(long, value_parser = duration, default_value = "10min", value_name = "TIME")]
    pub timeout: Duration,
    /// Measure everything again, whatever the notebook holds
    #[arg(long)]
    pub fresh: bool,
    /// Count records of another machine, build profile or commit as done
    #[arg(long, conflicts_with = "fresh")]
    pub any_environment: bool,
    /// Refuse a grid of more cells
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub max_cells: usize,
    /// Print the estimate of every cell and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Run a scaled-down, labelled stand-in of each cell whose hardware is absent
    #[arg(long)]
    pub proxy: bool,
}

/// `zbench run`.
#[derive(Args)]
pub struct RunArgs {
    /// The cell.
    #[command(flatten)]
    pub cells: Cells,
    /// Time limit; a run has none unless it is given
    #[arg(long, value_parser = duration, default_value = "87600h", hide_default_value = true, value_name = "TIME")]
    pub timeout: Duration,
    /// A line for every N-th step, the first and the last
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub log_every: u64,
}

/// `zbench plan`.
#[derive(Args)]
pub struct PlanArgs {
    /// Configuration; not needed with --validate
    #[arg(required_unless_present = "validate")]
    pub file: Option<PathBuf>,
    /// Change a key; a bare word is a string. Narrows an axis to this value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only cells with these values: key=value terms joined by commas; values of one key are alternatives
    #[arg(long, value_name = "EXPR")]
    pub only: Option<String>,
    /// Refuse a grid of more cells
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub max_cells: usize,
    /// Plan the scaled-down stand-ins
    #[arg(long)]
    pub proxy: bool,
    /// Look for the fastest way to train this model on these ranks: strategy, tensor, pipeline, context, expert,
    /// micro-batch, accumulation, checkpointing and offload, under the memory limit
    #[arg(long, conflicts_with_all = ["proxy", "explain", "what_if"])]
    pub search: bool,
    /// Print every sum term by term, with the field's rules of thumb beside it
    #[arg(long)]
    pub explain: bool,
    /// Price again on a changed machine: a key of its profile, as network.rate=800Gb/s or hbm.bandwidth=4.8TB/s
    #[arg(long, value_name = "KEY=VALUE")]
    pub what_if: Vec<String>,
    /// Print what DeepSpeed's ZeRO-2 and ZeRO-3 estimators print, by the current formula or the older documented one
    #[arg(long, value_name = "FORMULA", num_args = 0..=1, default_missing_value = "current", value_parser = ["current", "documented"])]
    pub deepspeed_estimator: Option<String>,
    /// Predict the published results in the CSV files of a folder, and say how far off that is
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "search", "explain", "what_if", "proxy"])]
    pub validate: Option<PathBuf>,
}

/// `zbench report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Ids or their beginnings, or key=value filters (a key of the configuration, name, key or status)
    #[arg(value_name = "ID|FILTER")]
    pub what: Vec<String>,
    /// Write to a file instead, whole or not at all; its ending (html, md, csv, json, txt) is the form where --format is absent
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write each plot into this folder as SVG
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Write each plot as PNG, too
    #[arg(long, requires = "figures")]
    pub png: bool,
}

/// `zbench gate`.
#[derive(Args)]
pub struct GateArgs {
    /// Rules: what is watched, how far it may move, how long it may take (docs/gate.md)
    pub rules: PathBuf,
    /// Compare with this: a baseline file, a file of records, or a notebook. With --update: the file to write
    #[arg(long, value_name = "FILE|NOTEBOOK", conflicts_with_all = ["against", "candidate_set"])]
    pub baseline: Option<PathBuf>,
    /// Compare with this program: another zbench, run in turn with this one
    #[arg(long, value_name = "PROGRAM", conflicts_with = "candidate_set")]
    pub against: Option<PathBuf>,
    /// Compare the rules' configuration with itself after this change
    #[arg(long, value_name = "KEY=VALUE")]
    pub candidate_set: Vec<String>,
    /// Judge these records instead of measuring: a file or a notebook
    #[arg(long, value_name = "FILE|NOTEBOOK", requires = "baseline")]
    pub candidate: Option<PathBuf>,
    /// Also fail on these verdicts
    #[arg(long, value_name = "VERDICT", value_delimiter = ',', value_parser = ["regression", "improvement", "inconclusive", "not_measured"])]
    pub fail_on: Vec<String>,
    /// In place of the rules' time budget
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub time_budget: Option<Duration>,
    /// Decides which side goes first; printed, so that it can be repeated
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Write JUnit XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write Markdown, as for a comment on a pull request
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print GitHub's ::error, ::warning and ::notice lines on standard error; done anyway where GITHUB_ACTIONS=true
    #[arg(long)]
    pub annotations: bool,
    /// Keep the raw samples here instead of in the notebook's folder gate
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Measure a baseline and write it to the file of --baseline; with --candidate make it of records
    #[arg(long, requires = "baseline", conflicts_with_all = ["junit", "markdown", "annotations", "self_test"])]
    pub update: bool,
    /// Measure pairs of the same program, and replay gates on them: how often does it err?
    #[arg(long, conflicts_with_all = ["baseline", "against", "candidate_set"])]
    pub self_test: bool,
    /// Replay this pool instead of measuring one
    #[arg(long, value_name = "FILE", requires = "self_test")]
    pub pool: Option<PathBuf>,
    /// Folder for the self-test's pool.jsonl and result.json
    #[arg(long, value_name = "DIR", requires = "self_test")]
    pub into: Option<PathBuf>,
    /// Pairs of the self-test, in place of the rules'
    #[arg(long, value_name = "N", requires = "self_test", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: Option<u32>,
    /// Comparisons that the self-test replays, in place of the rules'
    #[arg(long, value_name = "N", requires = "self_test", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = units::seconds(text).filter(|seconds| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| "write a time above 0, as 90s or 10min".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "is too long; write at most some years".to_string())
}

fn parse() -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    // A global option may stand behind the command.
    let innermost = std::iter::successors(Some(&matches), |matches| matches.subcommand().map(|(_, inner)| inner));
    let given = innermost.into_iter().any(|level| level.value_source("format") == Some(ValueSource::CommandLine));
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.format_given = given;
    Ok(cli)
}

/// Parses the arguments, runs the command, and says in an exit code how it went.
pub fn main() -> ExitCode {
    // A file that may not grow is then an error of the write, which is told, and not the end of the process.
    let grown = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, grown);
    if !crate::launch::follow_parent() {
        crate::say!("error: the process that started this one is gone");
        return ExitCode::from(exit::USAGE);
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap's own code for a usage error is 2, which is taken.
            let code = if error.use_stderr() { exit::USAGE } else { exit::SUCCESS };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match commands::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::from(exit::SUCCESS),
        Err(error) => {
            match error.downcast_ref::<ConfigError>() {
                Some(config) => config.0.iter().for_each(|problem| crate::say!("error: {problem}")),
                None => crate::say!("error: {error:#}"),
            }
            ExitCode::from(exit::USAGE)
        }
    }
}

/// The reader of our output has had enough, as `| head` has.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
