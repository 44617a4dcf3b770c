//! What each command is given.

mod rule;

use clap::Args;
pub use rule::*;
use std::path::PathBuf;
use std::time::Duration;
use zbench_config::grid::max_cells;
use zbench_config::units::duration;
use zbench_suites::interop::export::Target;

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
#[command(group = clap::ArgGroup::new("kind").required(true).args(["bundle", "to"]))]
pub struct ExportArgs {
    /// Write records into this bundle, which must not exist
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Write one cell as a configuration of this program
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub to: Option<Target>,
    /// With --to: write to this file instead, whole or not at all
    #[arg(short, long, value_name = "FILE", requires = "to")]
    pub output: Option<PathBuf>,
    /// With -o: write over a file that exists
    #[arg(long, requires = "output")]
    pub force: bool,
    /// With --to and a configuration: change a key; a bare word is a string. Narrows an axis to this value
    #[arg(long, value_name = "KEY=VALUE", requires = "to")]
    pub set: Vec<String>,
    /// With --to and a configuration: only the cell with these values
    #[arg(long, value_name = "EXPR", requires = "to")]
    pub only: Option<String>,
    /// With --to deepspeed or accelerate: the file that the cell came of. Keys by which it would be
    /// another cell get the cell's values, all others stay as they are; comments are lost
    #[arg(long, value_name = "FILE", requires = "to")]
    pub base: Option<PathBuf>,
    /// With --bundle: leave names and addresses of hosts as they are
    #[arg(long, requires = "bundle")]
    pub keep_hosts: bool,
    /// With --bundle: what to export, in the terms of `list`; everything unless given. With --to: a record's id, a
    /// configuration, or `best` and terms of `list`
    #[arg(value_name = "WHAT", required_if_eq_any([("to", "deepspeed"), ("to", "accelerate"), ("to", "torchtitan")]))]
    pub what: Vec<String>,
}

/// `zbench import`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("kind").required(true).args(["bundle", "file", "keys"]))]
pub struct ImportArgs {
    /// A DeepSpeed JSON, an accelerate YAML, a torchtitan TOML or a Hugging Face config.json, told apart by their keys
    pub file: Option<PathBuf>,
    /// Take in the records of this bundle
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Print the table of foreign keys instead, as Markdown
    #[arg(long)]
    pub keys: bool,
    /// Write the configuration to this file, whole or not at all, and the table to standard output
    #[arg(short, long, value_name = "OUT.toml", requires = "file")]
    pub output: Option<PathBuf>,
    /// With -o: write over a file that exists
    #[arg(long, requires = "output")]
    pub force: bool,
    /// The model, which most of these files do not state: a preset, or a folder with config.json
    #[arg(long, value_name = "PRESET|DIR", requires = "file")]
    pub model: Option<String>,
    /// Ranks in all
    #[arg(long, value_name = "N", requires = "file", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub ranks: Option<u64>,
    /// Ranks of a node
    #[arg(long, value_name = "N", requires = "file", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub ranks_per_node: Option<u64>,
    /// State a key of zbench beside the file's; a bare word is a string
    #[arg(long, value_name = "KEY=VALUE", requires = "file")]
    pub set: Vec<String>,
}

/// `zbench compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// What is compared with: a record's id or a cell's key (or their beginnings), a cell's label, key=value[,key=value] (a key of
    /// the configuration, name, status, trial or commit), a notebook's folder, or FOLDER:one of the former
    pub a: String,
    /// What is compared
    #[arg(required_unless_present = "measure")]
    pub b: Option<String>,
    /// Measure by turns: A and B are configurations of one cell each. B may be left out beside --set-b, --binary or --command
    #[arg(long)]
    pub measure: bool,
    /// With --measure: change a key of both; a bare word is a string
    #[arg(long, value_name = "KEY=VALUE", requires = "measure")]
    pub set: Vec<String>,
    /// With --measure: change a key of A
    #[arg(long, value_name = "KEY=VALUE", requires = "measure")]
    pub set_a: Vec<String>,
    /// With --measure: change a key of B
    #[arg(long, value_name = "KEY=VALUE", requires = "measure")]
    pub set_b: Vec<String>,
    /// With --measure: A is trained by this program, another zbench, and B by this one
    #[arg(long, value_name = "PROGRAM", requires = "measure", conflicts_with = "foreign")]
    pub binary: Option<PathBuf>,
    /// With --measure: B is this command, which prints a line that begins with "step" at the end of every step
    #[arg(long = "command", value_name = "COMMAND", requires = "measure", conflicts_with = "b")]
    pub foreign: Option<String>,
    /// With --command: tokens of one of its steps; those of A's unless given
    #[arg(long, value_name = "N", requires = "foreign", value_parser = clap::value_parser!(u64).range(1..))]
    pub tokens: Option<u64>,
    /// With --measure: wall time, starts included; it ends earlier when it is decided. Discarded rounds are measured again, which at most
    /// doubles it
    #[arg(long, value_parser = duration, default_value = "60s", value_name = "TIME", requires = "measure")]
    pub budget: Duration,
    /// With --measure: differences below this are called equal
    #[arg(long, value_parser = percent, default_value = "5%", value_name = "PERCENT", requires = "measure")]
    pub decide: f64,
    /// With --measure: what the time is compared of, a token or a step
    #[arg(long, value_enum, value_name = "UNIT", default_value = "token", requires = "measure")]
    pub per: Per,
    /// With --measure: steps at the beginning of each turn that do not count
    #[arg(long, value_name = "N", default_value_t = 0, requires = "measure")]
    pub discard: usize,
    /// With --measure: decides the order of turns; printed, so that it can be repeated
    #[arg(long, value_name = "N", requires = "measure")]
    pub seed: Option<u64>,
    /// With --measure: count rounds in which other processes used the cores; they are discarded otherwise, as load hides differences
    #[arg(long, requires = "measure")]
    pub allow_load: bool,
    /// With --measure: keep every turn in this file, a JSON object a line
    #[arg(long, value_name = "FILE", requires = "measure")]
    pub turns: Option<PathBuf>,
    /// With --measure: time limit of one turn
    #[arg(long, value_parser = duration, default_value = "10min", value_name = "TIME", requires = "measure")]
    pub timeout: Duration,
    /// Use trials with validity flags too
    #[arg(long)]
    pub include_flagged: bool,
    /// Keep the steps of warm-up that are found among the timed ones
    #[arg(long)]
    pub all_steps: bool,
}

/// What times are compared of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Per {
    /// A token of the global batch
    Token,
    /// A step, whatever it trains on
    Step,
}

/// How a file becomes cells.
#[derive(Args, Clone, Debug)]
pub struct Cells {
    /// Configuration
    pub file: PathBuf,
    /// Change a key; a bare word is a string. Narrows an axis to this value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only these cells: a label, as zero3, checkpointing=full; its terms are key=value, a strategy, or the beginning of a cell's key.
    /// Values of one key are alternatives
    #[arg(long, value_name = "EXPR")]
    pub only: Option<String>,
}

/// `zbench grid`.
#[derive(Args)]
pub struct GridArgs {
    /// The cells.
    #[command(flatten)]
    pub cells: Cells,
    /// Wall time for all cells, starts included; it ends earlier when all is decided [default: 2min]. Rounds that are discarded, as other
    /// processes used the cores, are measured again, which at most doubles it. Where cells cannot take turns: every cell has one trial,
    /// and no further trial begins after this time [default there: no limit]
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "trials")]
    pub budget: Option<Duration>,
    /// Differences of speed below this are called equal
    #[arg(long, value_parser = percent, default_value = "5%", value_name = "PERCENT")]
    pub decide: f64,
    /// Seed of the random order of turns, or of trials where cells cannot take turns; every record has it
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Count rounds in which other processes used the cores; they are discarded otherwise, as load hides differences
    #[arg(long, conflicts_with = "trials")]
    pub allow_load: bool,
    /// Instead of the memory that the system calls available: which cells fit into it together and take turns
    #[arg(long, hide = true, value_parser = bytes, value_name = "SIZE")]
    pub resident_memory: Option<u64>,
    /// Measure by N separate trials of each cell, round robin, instead of by turns. Flagged trials are repeated, up to 2 N trials of a
    /// cell. Where cells cannot take turns, 3 trials in random order are the default
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub trials: Option<u32>,
    /// Time limit of a trial, and of a turn
    #[arg(long, value_parser = duration, default_value = "10min", value_name = "TIME")]
    pub timeout: Duration,
    /// Measure everything again, whatever the notebook holds
    #[arg(long)]
    pub fresh: bool,
    /// Do not repeat flagged trials: --trials trials of each cell, valid or not
    #[arg(long)]
    pub no_repeats: bool,
    /// Count records of another machine, build profile or commit as done
    #[arg(long, conflicts_with = "fresh")]
    pub any_environment: bool,
    /// Refuse a grid of more cells
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = max_cells)]
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
#[command(group = clap::ArgGroup::new("ways").args(["search", "advise"]))]
pub struct PlanArgs {
    /// Configuration; not needed with --validate
    #[arg(required_unless_present = "validate")]
    pub file: Option<PathBuf>,
    /// Change a key; a bare word is a string. Narrows an axis to this value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only these cells: a label, as zero3, checkpointing=full; its terms are key=value, a strategy, or the beginning of a cell's key.
    /// Values of one key are alternatives
    #[arg(long, value_name = "EXPR")]
    pub only: Option<String>,
    /// Refuse a grid of more cells
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = max_cells)]
    pub max_cells: usize,
    /// Plan the scaled-down stand-ins
    #[arg(long)]
    pub proxy: bool,
    /// Look for the fastest way to train this model on these ranks: strategy, tensor, sequence, pipeline, virtual stages, context,
    /// expert, placement, micro-batch, accumulation, checkpointing and offload, under the memory limit
    #[arg(long, conflicts_with_all = ["proxy", "explain", "what_if"])]
    pub search: bool,
    /// With --search or --advise: share of a rank's memory that a recommendation leaves free [default: 5%]
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "ways")]
    pub headroom: Option<f64>,
    /// With --search or --advise: only ways that have this value of a key that is searched, as parallel.pipeline=1
    #[arg(long, value_name = "KEY=VALUE", requires = "ways")]
    pub keep: Vec<String>,
    /// With --search: train the best N ways on this machine, by turns, and say whether the predicted order held. Where they need
    /// other devices, scaled-down stand-ins train
    #[arg(long, value_name = "N", requires = "search", value_parser = clap::value_parser!(u32).range(2..=50))]
    pub measure: Option<u32>,
    /// With --measure: wall time of all turns, starts included; it ends earlier when all is decided [default: 2min]
    #[arg(long, value_parser = duration, value_name = "TIME", requires = "measure")]
    pub budget: Option<Duration>,
    /// With --measure: count rounds in which other processes used the cores
    #[arg(long, requires = "measure")]
    pub allow_load: bool,
    /// One screen of advice, as `zbench advise FILE` prints it
    #[arg(long, conflicts_with_all = ["search", "proxy", "explain", "what_if"])]
    pub advise: bool,
    /// Print every sum term by term, with the field's rules of thumb beside it
    #[arg(long)]
    pub explain: bool,
    /// Price again on a changed machine: a key of its profile and its value with the unit, as network.rate=800Gb/s or
    /// hbm.bandwidth=4.8TB/s
    #[arg(long, value_name = "KEY=VALUE")]
    pub what_if: Vec<String>,
    /// Print what DeepSpeed's ZeRO-2 and ZeRO-3 estimators print, by the current formula or the older documented one
    #[arg(long, value_name = "FORMULA", num_args = 0..=1, default_missing_value = "current", value_parser = ["current", "documented"])]
    pub deepspeed_estimator: Option<String>,
    /// Predict the published results in the grid files of a folder, and say how far off that is
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "search", "explain", "what_if", "proxy"])]
    pub validate: Option<PathBuf>,
}

/// `zbench advise`.
#[derive(Args)]
pub struct AdviseArgs {
    /// Configuration that states model, ranks, machine and batch; the options below state them instead, or beside it
    pub file: Option<PathBuf>,
    /// The model: a preset, or a folder with config.json
    #[arg(long, value_name = "PRESET|DIR", required_unless_present = "file")]
    pub model: Option<String>,
    /// Devices in all
    #[arg(long, value_name = "N", required_unless_present = "file", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub gpus: Option<u64>,
    /// The machine: a profile that zbench comes with, or machines/NAME.toml
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    pub profile: Option<String>,
    /// Sequences of a step, all devices together
    #[arg(long, value_name = "N", required_unless_present = "file", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub global_batch: Option<u64>,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", required_unless_present = "file", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub seq_len: Option<u64>,
    /// Whose memory and speed are predicted [default: the file's, else that of --export, else megatron-core]
    #[arg(long, value_name = "NAME")]
    pub software: Option<String>,
    /// Price of one device for an hour: the cost of tokens is then stated, in the same currency
    #[arg(long, value_name = "PRICE", allow_negative_numbers = true)]
    pub price: Option<f64>,
    /// Change a key; a bare word is a string. What a search varies has no effect unless --keep names it
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only this cell of a file with several
    #[arg(long, value_name = "EXPR", requires = "file")]
    pub only: Option<String>,
    /// Only ways that have this value of a key that is searched, as parallel.pipeline=1
    #[arg(long, value_name = "KEY=VALUE")]
    pub keep: Vec<String>,
    /// Share of a rank's memory that stays free [default: 5%]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub headroom: Option<f64>,
    /// Write the recommended way as a configuration of this program, to standard output unless -o is given; only ways that the
    /// program has are then recommended
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub export: Option<AdviseTarget>,
    /// With --export: write to this file instead, whole or not at all
    #[arg(short, long, value_name = "FILE", requires = "export")]
    pub output: Option<PathBuf>,
    /// With -o: write over a file that exists
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// Whose configuration advice is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AdviseTarget {
    /// DeepSpeed's JSON
    Deepspeed,
    /// accelerate's YAML
    Accelerate,
    /// torchtitan's TOML
    Torchtitan,
    /// A configuration of zbench
    Zbench,
}

/// `zbench report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Ids or their beginnings, labels of cells, or key=value filters (a key of the configuration, name, key or status)
    #[arg(value_name = "ID|LABEL|FILTER")]
    pub what: Vec<String>,
    /// Write to a file instead, whole or not at all; its ending (html, md, csv, json, txt) is the form where --format is absent
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write each plot into this folder as SVG
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Write each plot as PNG, too; needs a zbench that was built with --features png
    #[arg(long, requires = "figures")]
    pub png: bool,
    /// Show it in a browser: the file of -o, or a page in the folder for temporary files
    #[arg(long)]
    pub open: bool,
    /// Report skipped records of hardware on which nothing was measured, too; without it they are left out beside measured ones
    #[arg(long)]
    pub other_hardware: bool,
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
    /// Count rounds and trials in which other processes used the cores; they are left out otherwise, as load hides differences
    #[arg(long)]
    pub allow_load: bool,
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
    /// Measure the same program against itself, as the gate measures, and replay gates on that: how often does it err?
    #[arg(long, conflicts_with_all = ["baseline", "against", "candidate_set"])]
    pub self_test: bool,
    /// Replay this pool instead of measuring one
    #[arg(long, value_name = "FILE", requires = "self_test")]
    pub pool: Option<PathBuf>,
    /// Folder for the self-test's pool.jsonl and result.json
    #[arg(long, value_name = "DIR", requires = "self_test")]
    pub into: Option<PathBuf>,
    /// Minutes that the self-test takes turns, in place of the rules'
    #[arg(long, value_name = "M", requires = "self_test", value_parser = minutes, conflicts_with_all = ["pairs", "pool"])]
    pub minutes: Option<f64>,
    /// Let the self-test measure so many pairs of trials instead, as for cells that cannot take turns
    #[arg(long, value_name = "N", requires = "self_test", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: Option<u32>,
    /// Comparisons that the self-test replays, in place of the rules'
    #[arg(long, value_name = "N", requires = "self_test", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
}

/// A number of minutes.
fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.trim().parse::<f64>().ok().filter(|minutes| *minutes > 0.0 && *minutes <= 10_000.0);
    minutes.ok_or_else(|| "write a number of minutes, as 12".to_string())
}

/// A size of at least one byte, written as `512MiB`.
fn bytes(text: &str) -> Result<u64, String> {
    zbench_config::units::bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "write a size above 0, as 512MiB".to_string())
}

/// A share of something, written as `5%`.
fn percent(text: &str) -> Result<f64, String> {
    let share = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = share.filter(|share| (0.0..100.0).contains(share)).map(|share| share / 100.0);
    share.ok_or_else(|| format!("`{text}` is no share from 0% to below 100%; write it with its sign, as 5%"))
}
