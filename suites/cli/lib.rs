//! What people type, and the exit code they get.

mod args;
mod commands;
pub mod png;

pub use args::*;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use zbench_config::{ConfigError, units};
use zbench_host::environment::{self, BuildInfo};
use zbench_host::exit;
use zbench_host::logging::{self, Filter};
use zbench_host::terminal::{self, ColorWhen};
use zbench_reports::render::printable;
use zbench_suites::calibrate::args::CalibrateArgs;
use zbench_suites::checkpoint::args::CheckpointArgs;
use zbench_suites::collectives::args::AllreduceArgs;
use zbench_suites::io::args::IoArgs;
use zbench_suites::kernels::args::{AttentionArgs, GemmArgs};

const EXAMPLES: &str = "Examples:
  zbench grid configs/quickstart.toml                 train every cell; cells take turns for two minutes
  zbench grid configs/quickstart.toml --dry-run       what each cell will take, without running it
  zbench report -o report.html                        everything in the notebook, with plots, as one file

Exit codes: 0 success, 1 usage or configuration, 4 nothing was measured, 5 a cell failed, timed out or diverged.";

/// A lab notebook for LLM training: one engine, every sharding strategy, measured and predicted.
#[derive(Parser)]
#[command(name = "zbench", version, after_help = EXAMPLES, max_term_width = 120)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do; without it zbench says what could be done here.
    #[command(subcommand)]
    pub command: Option<Command>,
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
    /// Print everything: what is longer than a screen ends with how to see the rest
    #[arg(long, global = true)]
    pub full: bool,
    /// No progress on standard error
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// More on standard error: a line for each step, and the log at level info; -vv: the log at level debug
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Write a timeline of what every rank does, for Perfetto (ui.perfetto.dev) or chrome://tracing: run, grid, repro; of
    /// plan, what is predicted
    #[arg(long, global = true, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Steps of each trial that --trace holds, from the first
    #[arg(long, global = true, value_name = "N", default_value_t = 50, requires = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub trace_steps: u64,
    /// Colour of tables, help and errors
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
  zbench plan configs/search70b.toml --search         the best way on these ranks, the runner-up and why it lost
  zbench plan configs/search70b.toml --search --keep parallel.pipeline=1
  zbench plan configs/ways.toml --search --measure 4  train the best four on this machine: did the order hold?
  zbench plan configs/claims/t5-3b.toml --deepspeed-estimator documented
  zbench plan --validate tests/published              predictions beside published results")]
    Plan(Box<PlanArgs>),
    /// How to train this model on these devices: the recommended configuration, memory, time, cost, and what lost against it
    #[command(after_help = "Examples:
  zbench advise --model llama3-70b --gpus 64 --profile h100-sxm --global-batch 512 --seq-len 8192
  zbench advise --model llama3-8b --gpus 8 --profile a100-80gb --global-batch 128 --seq-len 4096 --price 1.80
  zbench advise --model ./my-model --gpus 16 --profile h100-sxm --global-batch 64 --seq-len 8192 --software fsdp2
  zbench advise configs/search70b.toml --export torchtitan -o train.toml
  zbench advise configs/search70b.toml --export zbench -o run.toml
  zbench advise configs/search70b.toml --keep parallel.pipeline=1 --keep memory.checkpointing=full
  zbench advise configs/search70b.toml --format json  one object

Without a file the precision is bf16-mixed; --set precision.preset=… is another.
Exit codes: 0 advice was given, 1 usage, or a batch that no split divides, 4 nothing fits: the nearest miss is named, and what would
fit. docs/advise.md has the rest.")]
    Advise(Box<AdviseArgs>),
    /// Published rules of thumb and DeepSpeed's estimators as one-line answers
    #[command(
        disable_help_subcommand = true,
        after_help = "Examples:
  zbench rule network --parameters 176e9 --nodes 48 --network 400Gb/s
  zbench rule states --parameters 7.5B --ranks 64 --stage 3
  zbench rule zero2 --parameters 2851598336 --gpus-per-node 8 --offload
  zbench rule zero3 --parameters 2851598336 --largest-layer 32899072 --gpus-per-node 8 --format json

The second line has the formula and who published it; docs/claims.md works out known claims with them.
`zbench plan FILE --explain` prints all rules for a cell beside its prediction."
    )]
    Rule(RuleArgs),
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
  zbench gemm --model llama-32m --bound               every kernel of the step against the peak and the memory's rate
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

Exit codes: as `zbench gemm`; 5 too where what was loaded is not what was written. docs/training-checkpoints.md has the rest.")]
    Checkpoint(Box<CheckpointArgs>),
    /// The links of offload: a disk's writes and reads of tensors beside fio's, and copies between host and device
    #[command(after_help = "Examples:
  zbench io                                           the notebook's disk: both engines, O_DIRECT or not, depths 1, 8
  zbench io --dir /scratch --size 1MiB,16MiB --depth 1,4,16,64 --direct true
  zbench io --link device --device cuda --size 1MiB,64MiB
                                                      copies from host memory to the GPU and back
  zbench io grid.toml                                 a file with suite = \"io\"; what the notebook holds is not repeated

Exit codes: as `zbench gemm`; 5 too where what was read is not what was written. docs/io.md says how it is measured.")]
    Io(Box<IoArgs>),
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
  zbench list \"zero3, accumulation=4\"               a label, as reports and plans show it
  zbench list commit=6336a92 --format csv")]
    List(ListArgs),
    /// Everything that a record holds
    #[command(after_help = "Examples:
  zbench show 3f2a                                    the beginning of an id is enough
  zbench show \"zero3, accumulation=4\"               the newest record of a cell, by its label
  zbench show 3f2a --format json                      the record itself")]
    Show {
        /// Id of the record or its beginning, or a cell's label: then its newest record
        id: String,
    },
    /// A remark on a record
    #[command(after_help = "Examples:
  zbench note 3f2a \"the machine was on battery\"
  zbench show 3f2a                                    shows it again")]
    Note {
        /// Id of the record or its beginning, or a cell's label: then all of its records
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
    /// Records as one file for another machine, or a cell as a configuration of DeepSpeed, accelerate or torchtitan
    #[command(after_help = "Examples:
  zbench export --bundle all.jsonl                    the whole notebook
  zbench export --bundle paper.jsonl tag=paper        some of it: the terms of `list`, or ids
  zbench export --bundle here.jsonl --keep-hosts      with the names of hosts
  zbench export best --to deepspeed -o ds_config.json the fastest valid record of the notebook
  zbench export best name=quickstart --to accelerate  … of one entry; the file to stdout, the table of settings to stderr
  zbench export 3f2a --to torchtitan                  one record
  zbench export run.toml --set parallel.strategy=zero3 --to deepspeed
  zbench export best --to deepspeed --base mine.json  mine.json with the cell's settings: what zbench does not speak of stays

From bundles known patterns of secrets are removed; names and addresses of hosts become hashes. docs/import.md has the mapping of settings.")]
    Export(ExportArgs),
    /// A DeepSpeed JSON, an accelerate YAML, a torchtitan TOML or a config.json as a zbench configuration; or the records of a bundle
    #[command(after_help = "Examples:
  zbench import ds_config.json --model llama3.1-8b --ranks 8 -o run.toml
  zbench import fsdp.yaml --model ./my-model          the configuration to stdout, the table of keys to stderr
  zbench import my-model/config.json                  [model] of a Hugging Face model
  zbench import ds_config.json --set train.steps=20 --format json
  zbench import --bundle paper.jsonl --notebook theirs

Every key of the file is in the table: used, default, ignored or no equivalent, and why. What is unknown, deprecated or of a wrong
type is an error. Nothing is taken of a bundle that is cut off, changed or of a newer version. docs/import.md has the rest.")]
    Import(ImportArgs),
    /// Run a cell again from its record alone, and compare
    #[command(after_help = "Examples:
  zbench repro 3f2a                                   losses, bytes and calls must be the same; speed is shown beside")]
    Repro {
        /// Id of the record or its beginning, or a cell's label: then its newest record
        id: String,
        /// Time limit of the trial
        #[arg(long, value_parser = units::duration, default_value = "10min", value_name = "TIME")]
        timeout: Duration,
    },
    /// The comparison of records, with plots
    #[command(after_help = "Examples:
  zbench report                                       everything in the notebook
  zbench report name=quickstart -o report.html        the entry of that title, as one page with plots
  zbench report --format html > report.html           the same page of everything
  zbench report parallel.strategy=zero3 --format csv  records of one strategy, and the data of the plots
  zbench report 3f2a 77c0                             two records
  zbench report --open                                the page in a browser
  zbench report --figures plots --png                 each plot as SVG, and as PNG (built with --features png)
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
  zbench compare --measure a.toml b.toml              two cells by turns, until it is known which is faster
  zbench compare --measure a.toml --set-b parallel.strategy=zero3 --budget 2min
  zbench compare --measure a.toml --binary ../old/zbench              the same cell of two programs
  zbench compare --measure a.toml --command 'python train.py' --tokens 8192   a cell and any command that prints its steps

The ratio is B/A with a 95 % interval over trials and steps. docs/compare.md says how it is read.
Exit codes: 0 compared, 1 a selector that is nothing or several things, 4 no two cells could be compared.")]
    Compare(CompareArgs),
    /// Is it as good as before? Speed, memory, traffic and losses against a baseline, another program or another configuration
    #[command(after_help = "Examples:
  zbench gate ci/gate.toml --against ../main/target/release/zbench    two programs in one job: the most trustworthy
  zbench gate ci/gate.toml --candidate-set memory.checkpointing=full  two configurations of this program
  zbench gate ci/gate.toml --update --baseline ci/baseline.json       measure a baseline and write it
  zbench gate ci/gate.toml --baseline ci/baseline.json --junit gate.xml --markdown gate.md
  zbench gate rules.toml --baseline old-notebook --candidate notebook  records as they are, nothing is measured
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
    /// Completions of commands and options for a shell, on standard output
    #[command(after_help = "Examples:
  zbench completions bash > ~/.local/share/bash-completion/completions/zbench
  zbench completions zsh > \"${fpath[1]}/_zbench\"
  zbench completions fish > ~/.config/fish/completions/zbench.fish")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Manual pages, one for each command, into a folder
    #[command(after_help = "Examples:
  zbench man ~/.local/share/man/man1                  then: man zbench-grid")]
    Man {
        /// The folder, which is made where it is not there
        #[arg(value_name = "DIR")]
        folder: PathBuf,
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

/// The command line. An error repeats words of it: its words are shown, they do not act.
fn parse() -> Result<Cli, clap::Error> {
    parse_from(std::env::args_os()).map_err(|error| {
        let shown = |word: OsString| match printable(&word.to_string_lossy()) {
            Cow::Borrowed(_) => word,
            Cow::Owned(shown) => shown.into(),
        };
        parse_from(std::env::args_os().map(shown)).err().unwrap_or(error)
    })
}

fn parse_from(words: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    // Lines longer than that are hard to read, however wide the terminal.
    let width = terminal::Stream::Out.width().min(120);
    let matches = Cli::command().term_width(width.into()).try_get_matches_from(words)?;
    // A global option may stand behind the command.
    let innermost = std::iter::successors(Some(&matches), |matches| matches.subcommand().map(|(_, inner)| inner));
    let given = innermost.into_iter().any(|level| level.value_source("format") == Some(ValueSource::CommandLine));
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.format_given = given;
    Ok(cli)
}

/// Parses the arguments, runs the command, and says in an exit code how it went.
pub fn main(build: BuildInfo) -> ExitCode {
    environment::set_build(build);
    // A file that may not grow is then an error of the write, which is told, and not the end of the process.
    let grown = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, grown);
    if !zbench_launch::follow_parent() {
        zbench_host::say!("error: the process that started this one is gone");
        return ExitCode::from(exit::USAGE);
    }
    let color = terminal::color_of(std::env::args_os().skip(1));
    terminal::remember(color);
    terminal::say_panics();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap's own code for a usage error is 2, which is taken.
            let is_error = error.use_stderr();
            terminal::print_clap(&error, if is_error { terminal::Stream::Err } else { terminal::Stream::Out }, color);
            return ExitCode::from(if is_error { exit::USAGE } else { exit::SUCCESS });
        }
    };
    if let Err(reason) = start_log(&cli) {
        zbench_host::say!("error: {reason}");
        return ExitCode::from(exit::USAGE);
    }
    match commands::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::from(exit::SUCCESS),
        Err(error) => {
            match error.downcast_ref::<ConfigError>() {
                Some(config) => config.0.iter().for_each(|problem| zbench_host::say!("error: {problem}")),
                None => zbench_host::say!("error: {}", in_words(&error)),
            }
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Starts the log as `-v` and `ZBENCH_LOG` ask for it, and that of a grid or a run in any case.
fn start_log(cli: &Cli) -> Result<(), String> {
    let is_child = |command: &Command| {
        matches!(command, Command::Cell | Command::Rank | Command::CheckpointTrial | Command::Follow { .. })
    };
    if cli.command.as_ref().is_some_and(is_child) {
        logging::start_in_child();
        return Ok(());
    }
    let asked = std::env::var_os(logging::FILTER).filter(|text| !text.is_empty());
    let on_stderr = asked.is_some() || cli.global.verbose > 0;
    let filter = match asked {
        Some(text) => Filter::parse(&text.to_string_lossy())?,
        None => Filter::of_verbosity(cli.global.verbose),
    };
    logging::start(filter, on_stderr, matches!(cli.command, Some(Command::Grid(_) | Command::Run(_))));
    Ok(())
}

/// An error with its causes, without those that an error before them has in its own words already.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = text + colon + &cause;
        }
    }
    text
}

/// The reader of our output has had enough, as `| head` has.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
