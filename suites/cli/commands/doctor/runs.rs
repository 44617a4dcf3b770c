//! Which strategies, backends and suites run here, and why the others do not. The planner of `grid` decides it for a small cell.

use super::Finding;
use std::path::{Path, PathBuf};
use zbench_config::files::Files;
use zbench_config::kind::Kind;
use zbench_config::{Context, Document, grid, keys};
use zbench_engine::planner::Planner;
use zbench_host::machine;
use zbench_predict::planned::{self, Decision};

/// Two ranks of a model that fits anywhere.
const CELL: &str = "[model]\nfamily = \"llama\"\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2
vocab_size = 64\nmax_position_embeddings = 64\n[train]\nseq_len = 16\nsteps = 1\n[parallel]\nranks = 2\n[hardware]\nthreads_per_rank = 1\n";

/// Prefix of these rows in lists with other rows.
pub(super) const HERE: &str = "runs here: ";

/// A row for each strategy, backend, device and suite.
pub(super) fn findings() -> Vec<Finding> {
    let mut rows = Vec::new();
    for &strategy in choices("parallel.strategy") {
        // Strategies with a copy inside each node need the ranks of a node.
        let settings = [("parallel.strategy", strategy), ("parallel.ranks_per_node", "2")];
        rows.push(row(format!("strategy {strategy}"), runs(&settings), PRICED));
    }
    for &backend in choices("parallel.backend") {
        let is_for_gpus = ["device", "nccl"].contains(&backend);
        let device = if is_for_gpus { "cuda" } else { "cpu" };
        let found = match backend {
            "mpi" if !cfg!(feature = "mpi") => Err(format!("not in this build; {}", zbench_launch::HOW_TO_HAVE_MPI)),
            "mpi" if !crate::commands::open::is_program("mpirun") => Err("mpirun is not in PATH".into()),
            _ => runs(&[("parallel.backend", backend), ("hardware.device", device)]),
        };
        // Two ranks of one thread need two cores. A machine with one core lacks nothing.
        let is_needed = backend == "local" && machine::cores() > 1;
        rows.push(row(format!("backend {backend}"), found, PRICED).needed(is_needed));
    }
    rows.push(row(
        "device cuda".into(),
        runs(&[("hardware.device", "cuda"), ("parallel.ranks", "1"), ("parallel.backend", "device")]),
        PRICED,
    ));
    for &suite in choices("suite") {
        let command = match suite {
            "train" => Ok("yes: zbench grid, zbench run"),
            "gemm" => Ok("yes: zbench gemm"),
            "attention" => Ok("yes: zbench attention"),
            "collectives" => Ok("yes: zbench allreduce"),
            "checkpoint" => Ok("yes: zbench checkpoint"),
            "io" => Ok("yes: zbench io"),
            _ => Err("not in this version".to_string()),
        };
        rows.push(row(format!("suite {suite}"), command.map(str::to_string), "no command measures it yet"));
    }
    rows
}

/// Advice for most things that do not run.
const PRICED: &str = "`zbench plan` prices it all the same";

fn row(what: String, found: Result<String, String>, advice: &str) -> Finding {
    let found =
        found.map_err(|why| format!("no: {}", why.replace(" (zbench doctor says why)", ", as the rows of CUDA say")));
    Finding::result(&format!("{HERE}{what}"), found, advice)
}

fn choices(name: &str) -> &'static [&'static str] {
    match keys::find(name).map(|key| &key.kind) {
        Some(Kind::Choice(words)) => words,
        _ => &[],
    }
}

/// What the planner decides of the small cell with these settings.
fn runs(settings: &[(&str, &str)]) -> Result<String, String> {
    let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let document = Document::parse(Path::new("doctor"), CELL, &settings).map_err(|error| error.to_string())?;
    let context = Context::new(PathBuf::new(), machine::cores());
    let cells = grid::expand(&document, &[], 1, &context, &mut Files::default()).map_err(|error| error.to_string())?;
    let cell = cells.into_iter().next().ok_or("no cell")?;
    match planned::plan(&Planner::default(), cell, None).decision {
        Decision::Run => Ok("yes".into()),
        Decision::Record { reason, .. } => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_has_a_row_and_the_engine_s_strategies_run() {
        let rows = findings();
        for (key, word) in [("parallel.strategy", "strategy"), ("parallel.backend", "backend"), ("suite", "suite")] {
            assert!(choices(key).len() >= 6, "{key}");
            for choice in choices(key) {
                let what = format!("runs here: {word} {choice}");
                assert!(rows.iter().any(|row| row.what == what), "{what}");
            }
        }
        let found = |what: &str| rows.iter().find(|row| row.what == format!("runs here: {what}")).unwrap();
        for strategy in ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "hsdp-full-optimizer"] {
            let row = found(&format!("strategy {strategy}"));
            // On one core two ranks of one thread are refused, with a reason.
            assert!(row.is_there || machine::cores() < 2, "{strategy}: {}", row.found);
        }
        let priced = found("strategy zero++");
        assert!(!priced.is_there && priced.found.contains("priced"), "{}", priced.found);
        assert!(choices("suite").iter().all(|suite| found(&format!("suite {suite}")).is_there));
        assert!(rows.iter().all(|row| !row.advice.is_empty()));
    }
}
