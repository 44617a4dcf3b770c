//! `zbench compare --measure`: A and B take turns until it is decided which is faster.

use super::{command_line, expand, own_program, planned, print_document, print_json, seed_of_clock};
use crate::{Cells, CompareArgs, Format, Global, Per};
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use zbench_config::{ConfigError, grid};
use zbench_host::exit;
use zbench_predict::planned::{Decision, Planned};
use zbench_reports::compare::measured::Measured;
use zbench_reports::evidence::{Comparison, Pair, Rules, Verdict};
use zbench_runner::Execution;
use zbench_runner::turns::load::{Others, Seen};
use zbench_runner::turns::resident::{ENDLESS, ExternalCommand, Program};
use zbench_runner::turns::{Ending, Experiment, Participant, Settings, TurnPolicy, TurnSample};
use zbench_suites::bench::private_folder;

/// Seconds of a generation of processes at least: starting them anew costs time too.
const GENERATION_SECONDS: f64 = 6.0;
/// Generations at least, and at most: processes of one program differ, and only starting anew shows by how much.
const GENERATIONS: (f64, f64) = (2.0, 8.0);
/// Measures A and B by turns.
pub fn measure(global: &Global, arguments: &CompareArgs) -> Result<u8> {
    let sides = Sides::new(arguments)?;
    let budget = arguments.budget;
    let generations = (budget.as_secs_f64() / GENERATION_SECONDS).clamp(GENERATIONS.0, GENERATIONS.1) as u32;
    let seed = arguments.seed.unwrap_or_else(seed_of_clock);
    let players = sides.players();
    let is_mixed = sides.programs.iter().filter(|program| matches!(program, Program::Command(_))).count() == 1;
    let settings = Settings {
        budget,
        generations,
        seed,
        // Where one side is stopped within a step, its first step of a turn is no whole one; the other side loses its first too.
        discard: arguments.discard.max(usize::from(is_mixed)),
        timeout: arguments.timeout,
        allow_load: arguments.allow_load,
        extra: budget,
    };
    let experiment =
        Experiment { program: own_program()?, players: &players, settings, stop: super::signals::stop_flag()? };
    let samples = arguments.turns.as_ref().map(|path| {
        std::fs::File::create(path).with_context(|| format!("--turns: {} cannot be written", path.display()))
    });
    let rules = Rules { equal: (1.0 + arguments.decide).ln(), ..Rules::default() };
    let mut comparing = TurnComparison {
        pair: Pair::new(rules),
        time: match arguments.per {
            Per::Token => TurnSample::seconds_per_token,
            Per::Step => TurnSample::seconds_per_step,
        },
        discarded: 0,
        others: Others::default(),
        rounds: 0,
        samples: samples.transpose()?,
        failures: Vec::new(),
        quiet: global.quiet,
        last_line: None,
    };
    let began = Instant::now();
    let ending = experiment.run(&mut comparing)?;
    let seconds = began.elapsed().as_secs_f64();
    let comparison = comparing.pair.comparison();
    if global.format == Format::Json {
        let text = json!({
            "schema": 1,
            "a": sides.names[0], "b": sides.names[1],
            "verdict": comparison.verdict,
            "ratio": comparison.ratio, "low": comparison.low, "high": comparison.high,
            "seconds": seconds, "rounds": comparison.rounds, "rounds_discarded": comparing.discarded,
            "generations": comparison.generations, "ended": ending, "seed": seed,
            "evidence": comparison, "failures": comparing.failures, "command": command_line(),
        });
        print_json(&format!("{text}\n"))?;
    } else {
        let measured = Measured {
            names: sides.names,
            comparison,
            seconds,
            discarded: comparing.discarded,
            others: comparing.others.words(),
            seed,
            equal: arguments.decide,
            budget: budget.as_secs_f64(),
            failures: comparing.failures,
        };
        print_document(global, &measured.document())?;
    }
    Ok(match ending {
        Ending::Interrupted => exit::INTERRUPTED,
        _ if comparison.rounds == 0 && comparing.discarded > 0 => exit::NOT_MEASURED,
        _ if comparison.rounds == 0 => exit::FAILED,
        _ => exit::SUCCESS,
    })
}

/// The two sides.
struct Sides {
    names: [String; 2],
    programs: [Program; 2],
    warmups: [usize; 2],
    /// Notebooks of programs, which nobody reads; they go with this value.
    _notebooks: Vec<TempDir>,
}

impl Sides {
    fn new(arguments: &CompareArgs) -> Result<Sides> {
        let file_a = PathBuf::from(&arguments.a);
        let file_b = arguments.b.as_ref().map_or_else(|| file_a.clone(), PathBuf::from);
        let with = |own: &[String]| arguments.set.iter().chain(own).cloned().collect::<Vec<String>>();
        let (set_a, set_b) = (with(&arguments.set_a), with(&arguments.set_b));
        if arguments.b.is_none()
            && arguments.set_b.is_empty()
            && arguments.binary.is_none()
            && arguments.foreign.is_none()
        {
            bail!(
                "compare --measure needs a B: a second configuration, --set-b KEY=VALUE, --binary PROGRAM or --command COMMAND"
            );
        }
        let a = one_cell(&file_a, &set_a)?;
        let cell_of = |planned: &Planned| planned.cell().cloned().map(Box::new);
        let warmup = |planned: &Planned| planned.cell().map_or(0, |cell| cell.train.untimed_steps);
        let cell_a = cell_of(&a).context("the cell has no plan")?;
        let tokens = a.estimate.as_ref().map_or(0, |estimate| estimate.flops.tokens);
        if let Some(command) = &arguments.foreign {
            let foreign = ExternalCommand {
                command: ["sh", "-c", command].map(Into::into).to_vec(),
                tokens: arguments.tokens.unwrap_or(tokens),
                word: "step".into(),
            };
            return Ok(Sides {
                names: [label(&file_a, &set_a), command.clone()],
                programs: [Program::Cell(cell_a), Program::Command(foreign)],
                warmups: [warmup(&a), 1],
                _notebooks: Vec::new(),
            });
        }
        if let Some(binary) = &arguments.binary {
            // Programs that may not know of turns are both run alike: by their public command, stopped and continued.
            let own = own_program()?;
            let notebook = || private_folder("zbench-compare-").context("no folder for temporary files can be made");
            let notebooks = vec![notebook()?, notebook()?];
            let foreign = |program: &PathBuf, file: &PathBuf, set: &[String], side: usize| {
                Program::Command(public(program, file, set, tokens, notebooks[side].path()))
            };
            return Ok(Sides {
                names: [binary.display().to_string(), label(&file_b, &set_b)],
                programs: [foreign(binary, &file_a, &set_a, 0), foreign(&own, &file_b, &set_b, 1)],
                warmups: [1, 1],
                _notebooks: notebooks,
            });
        }
        let b = one_cell(&file_b, &set_b)?;
        Ok(Sides {
            names: [label(&file_a, &set_a), label(&file_b, &set_b)],
            warmups: [warmup(&a), warmup(&b)],
            programs: [Program::Cell(cell_a), Program::Cell(cell_of(&b).context("the cell has no plan")?)],
            _notebooks: Vec::new(),
        })
    }

    fn players(&self) -> Vec<Participant> {
        let both = self.programs.iter().zip(self.warmups);
        both.map(|(program, warmup)| Participant { program: program.clone(), warmup, steps: 0 }).collect()
    }
}

/// The public command of a zbench, whichever version it is.
fn public(program: &Path, file: &Path, set: &[String], tokens: u64, notebook: &Path) -> ExternalCommand {
    let mut command = vec![program.into(), "run".into(), file.into(), "--log-every".into(), "1".into()];
    command.extend(["--notebook".into(), notebook.into(), "--set".into(), ENDLESS.into()]);
    set.iter().for_each(|set| command.extend(["--set".into(), set.into()]));
    ExternalCommand { command, tokens, word: "step".into() }
}

fn label(file: &Path, set: &[String]) -> String {
    std::iter::once(file.display().to_string()).chain(set.iter().cloned()).collect::<Vec<_>>().join(" ")
}

/// The one cell of a configuration, which can run here.
fn one_cell(file: &Path, set: &[String]) -> Result<Planned> {
    let mut expanded = expand(&Cells { file: file.into(), set: set.to_vec(), only: None }, grid::MOST_CELLS, None)?;
    expanded.refuse_search("names several cells")?;
    let source = file.display().to_string();
    if expanded.cells.len() != 1 {
        let message =
            format!("it has {} cells, and one is compared with one; narrow it with --set", expanded.cells.len());
        return Err(ConfigError::about(source, message).into());
    }
    super::train::refuse_all(&expanded)?;
    let mut cells = planned(&mut expanded, false, usize::MAX)?;
    let cell = cells.pop().context("the file has no cell")?;
    match &cell.decision {
        Decision::Run => Ok(cell),
        Decision::Record { reason, .. } => Err(ConfigError::about(source, reason.clone()).into()),
    }
}

/// The turns of two cells, and the comparison so far.
struct TurnComparison {
    pair: Pair,
    /// The time that is compared.
    time: fn(&TurnSample) -> f64,
    rounds: usize,
    discarded: usize,
    /// What others used in discarded rounds and while processes started.
    others: Others,
    samples: Option<std::fs::File>,
    failures: Vec<String>,
    quiet: bool,
    last_line: Option<Instant>,
}

impl TurnComparison {
    /// Prints the state of the comparison every few seconds.
    fn tell(&mut self) {
        if self.quiet || self.last_line.is_some_and(|said| said.elapsed().as_secs_f64() < 5.0) {
            return;
        }
        self.last_line = Some(Instant::now());
        let Comparison { ratio, low, high, rounds, generations, .. } = self.pair.comparison();
        if let (Some(ratio), Some(low), Some(high)) = (ratio, low, high) {
            zbench_host::say!(
                "after {rounds} rounds, {generations} generations: B/A {ratio:.3} ({low:.3} to {high:.3})"
            );
        }
    }
}

impl TurnPolicy for TurnComparison {
    fn rounds(&mut self, turns: &[TurnSample]) -> Vec<bool> {
        if let Some(file) = &mut self.samples {
            for turn in turns {
                let line = json!({
                    "player": turn.player, "generation": turn.generation, "round": turn.round, "order": turn.order, "at": turn.at,
                    "ms": turn.steps.iter().map(|step| step.ms).collect::<Vec<_>>(),
                    "tokens": turn.steps.iter().map(|step| step.tokens).sum::<u64>(),
                    "others": turn.load.others, "stolen": turn.load.stolen, "counted": turn.counted,
                });
                // The verdict does not need the file.
                let _ = writeln!(file, "{line}");
            }
        }
        for pair in turns.chunk_by(|a, b| a.round == b.round) {
            let of = |player: usize| pair.iter().find(|turn| turn.player == player);
            let (Some(a), Some(b)) = (of(0), of(1)) else { continue };
            self.rounds += 1;
            if !a.counted {
                self.discarded += 1;
                continue;
            }
            self.pair.push(a.generation, (self.time)(b).ln() - (self.time)(a).ln());
        }
        self.tell();
        vec![self.pair.verdict() == Verdict::Undecided; 2]
    }

    fn busy(&mut self, seen: &Seen, _prolonged: Duration) {
        let is_first = self.others.words().is_empty();
        self.others.add(seen);
        if is_first && !self.quiet {
            zbench_host::say!(
                "warning: {}: rounds beside them are discarded; --allow-load counts them",
                self.others.words()
            );
        }
    }

    fn ended(&mut self, _generation: u32, _ending: Option<Ending>, said: Vec<Option<Execution>>) {
        let failures = said.into_iter().flatten().filter_map(|said| said.end?.failure);
        self.failures.extend(failures.map(|failure| failure.reason));
    }
}
