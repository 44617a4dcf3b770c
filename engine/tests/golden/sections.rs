//! What a cell's plan says and what its run gives, as the sections of the dump.

use super::cells::{Case, Meeting};
use super::words;
use crate::comm::harness::exchanged;
use crate::training::families::single;
use crate::training::support::{cpus, plan};
use std::fmt::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zbench_collectives::Traffic;
use zbench_collectives::shm;
use zbench_collectives::{Communicator, Rendezvous, Shared, TcpOptions, group, tcp};
use zbench_engine::action::Action;
use zbench_engine::compute::recorder::Recorded;
use zbench_engine::config::{Cell, MemoryTier};
use zbench_engine::memory::tiers::ByTier;
use zbench_engine::observe::outcome::{Estimate, Evaluated, Failure, Flops, Happening, RankReport, Step, Transfer};
use zbench_engine::plan::{Plan, StagePlan};
use zbench_engine::run::launch_ranks::{collect, train_rank, with_ranks};
use zbench_engine::run::train_loop::Control;
use zbench_kernels::{Arena, Kernels, Ledger};

/// The sections of a cell, each compared by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Actions,
    Memory,
    Wire,
    Flops,
    Operations,
    Losses,
    Weights,
}

impl Section {
    pub const ALL: [Section; 7] = [
        Section::Actions,
        Section::Memory,
        Section::Wire,
        Section::Flops,
        Section::Operations,
        Section::Losses,
        Section::Weights,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            Section::Actions => "actions",
            Section::Memory => "memory",
            Section::Wire => "wire",
            Section::Flops => "flops",
            Section::Operations => "operations",
            Section::Losses => "losses",
            Section::Weights => "weights",
        }
    }

    pub fn of(word: &str) -> Option<Section> {
        Section::ALL.into_iter().find(|section| section.word() == word)
    }
}

/// Name, shape and values of a tensor.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

/// A cell's plan and run, before they are put into words.
#[derive(Clone)]
pub struct Taken {
    /// By stage.
    pub stage_plans: Vec<Planned>,
    /// Of the last rank.
    pub last_operations: Vec<Recorded>,
    /// By rank.
    pub measured: Vec<Measured>,
    pub ran: Trained,
}

/// What the ranks of a stage do.
#[derive(Clone)]
pub struct Planned {
    pub actions: Vec<Action>,
    /// An evaluation's: first micro-batch, each further one, end.
    pub evaluation: [Vec<Action>; 3],
    pub in_flight: usize,
    pub estimate: Estimate,
    /// Of the stage's first rank.
    pub operations: Vec<Recorded>,
}

/// What a rank took.
#[derive(Clone)]
pub struct Measured {
    pub ledgers: ByTier<Ledger>,
    pub traffic: Vec<Traffic>,
    pub moves: Vec<Transfer>,
}

/// What training gives.
#[derive(Clone)]
pub struct Trained {
    pub steps: Vec<Step>,
    pub evaluations: Vec<Evaluated>,
    pub weights: Vec<Tensor>,
}

/// What a run gives.
struct Ran {
    reports: Vec<RankReport>,
    trained: Trained,
}

/// What training a cell gives whose ranks are threads.
pub fn trained(cell: &Cell) -> Trained {
    let ran = on_threads(cell, &plan(cell));
    ran.unwrap_or_else(|failure| panic!("{}", failure.cause)).trained
}

/// Plans and runs a cell.
pub fn take(case: &Case) -> Taken {
    let cell = &case.cell;
    let plan = plan(cell);
    let kernels = zbench_engine::compute::hardware::planner(cell).unwrap();
    let ran = match case.meeting {
        Meeting::Threads => on_threads(cell, &plan),
        Meeting::Shm => in_words(cell, &plan, |kernels, local| {
            let arena = Arena::shared(None).unwrap();
            let mut exchange = |own: &[u8]| Ok(exchanged(&local, own));
            let shm = shm(local.rank(), local.size(), &mut exchange, kernels, &arena, PATIENCE).unwrap();
            (Box::new(shm), arena)
        }),
        Meeting::Tcp => {
            let meeting = meeting(cell);
            in_words(cell, &plan, |kernels, local| {
                let met = Rendezvous::join(&zbench_collectives::Meeting { rank: local.rank(), ..meeting.clone() });
                let options = TcpOptions { stall: PATIENCE, ..TcpOptions::default() };
                let arena = kernels.arena(None, 1).unwrap();
                (Box::new(tcp(met.unwrap(), kernels, options).unwrap()), arena)
            })
        }
    };
    let ran = ran.unwrap_or_else(|failure| panic!("{}: {}", case.name, failure.cause));
    let first_rank = |stage| stage * (cell.parallel.ranks / plan.stage_plans.len());
    let planned = |(stage, stage_plan): (usize, &StagePlan)| Planned {
        actions: stage_plan.actions.clone(),
        evaluation: [&stage_plan.evaluation.first, &stage_plan.evaluation.next, &stage_plan.evaluation.end]
            .map(Clone::clone),
        in_flight: stage_plan.in_flight,
        estimate: stage_plan.estimate.clone(),
        operations: plan.operations(cell, &*kernels, first_rank(stage)),
    };
    let measured =
        |report: RankReport| Measured { ledgers: report.ledgers, traffic: report.traffic, moves: report.moves };
    Taken {
        stage_plans: plan.stage_plans.iter().enumerate().map(planned).collect(),
        last_operations: plan.operations(cell, &*kernels, cell.parallel.ranks - 1),
        measured: ran.reports.into_iter().map(measured).collect(),
        ran: ran.trained,
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

fn on_threads(cell: &Cell, plan: &Plan) -> Result<Ran, Failure> {
    let every = cell.evaluation().map(|evaluation| evaluation.every as usize);
    let last = cell.train.untimed_steps + cell.train.steps;
    let ranks = with_ranks(cell, plan, cpus(cell), |rank| {
        let (mut steps, mut evaluations, mut weights) =
            (Vec::new(), rank.evaluate()?.into_iter().collect::<Vec<_>>(), Vec::new());
        for done in 1..=last {
            steps.push(rank.step()?);
            if every.is_some_and(|every| done % every == 0 || done == last) {
                evaluations.extend(rank.evaluate()?);
            }
        }
        let report = rank.report();
        rank.executor
            .export_weights(|name, shape, values| weights.push((name.to_string(), shape.to_vec(), values.to_vec())))?;
        Ok((report, steps, evaluations, weights))
    })?;
    let mut reports = Vec::new();
    let mut first = None;
    for (report, steps, evaluations, weights) in ranks {
        reports.push(report);
        first.get_or_insert((steps, evaluations, weights));
    }
    let (steps, evaluations, weights) = first.unwrap();
    Ok(Ran { reports, trained: Trained { steps, evaluations, weights } })
}

fn meeting(cell: &Cell) -> zbench_collectives::Meeting {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (host, port) = ("127.0.0.1".to_owned(), free.local_addr().unwrap().port());
    drop(free);
    let token = format!("golden-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (size, timeout) = (cell.parallel.ranks, PATIENCE);
    zbench_collectives::Meeting { size, host, port, token, timeout, ..Default::default() }
}

/// Every rank by itself, as processes run: it tells of its steps, and its weights are the model that it saves.
fn in_words(
    cell: &Cell,
    plan: &Plan,
    connect: impl Fn(Arc<dyn Kernels>, Shared) -> (Box<dyn Communicator>, Arena) + Sync,
) -> Result<Ran, Failure> {
    let saved = tempfile::tempdir().unwrap();
    let mut cell = cell.clone();
    cell.model.save = Some(saved.path().join("model"));
    let (told, stop) = (Mutex::new((Vec::new(), Vec::new())), AtomicBool::new(false));
    let kernels = cpus(&cell);
    let locals = group("golden", kernels.clone(), PATIENCE).unwrap();
    let ended = std::thread::scope(|scope| {
        let start = |(local, kernels): (Shared, Arc<dyn Kernels>)| {
            let (cell, told, stop, connect) = (&cell, &told, &stop, &connect);
            scope.spawn(move || {
                let tell = |happening: &Happening| match happening {
                    Happening::Step(step) => told.lock().unwrap().0.push(step.clone()),
                    Happening::Evaluated(evaluated) => told.lock().unwrap().1.push(*evaluated),
                    _ => {}
                };
                let (comm, arena) = connect(kernels.clone(), local);
                let control = Control { stop, tell: &tell, trace: None, pace: None };
                train_rank(cell, plan, comm, kernels, arena, control, None)
            })
        };
        let ranks: Vec<_> = locals.into_iter().zip(kernels).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    let reports = collect(ended)?.into_iter().map(|(report, _)| report).collect();
    let (steps, evaluations) = told.into_inner().unwrap();
    let tensors = single(&saved.path().join("model/model.safetensors"));
    let weights = tensors.into_iter().map(|(name, values)| (name, vec![values.len()], values)).collect();
    Ok(Ran { reports, trained: Trained { steps, evaluations, weights } })
}

impl Taken {
    /// A section, line by line.
    pub fn text(&self, section: Section) -> String {
        match section {
            Section::Actions => self.actions(),
            Section::Memory => self.memory(),
            Section::Wire => self.wire(),
            Section::Flops => self.flops(),
            Section::Operations => self.operations(),
            Section::Losses => self.losses(),
            Section::Weights => self.weights(),
        }
    }

    /// The stage plans with what each line of theirs begins with. Of the first it is nothing, as of most cells it is the only one.
    fn stage_plans(&self) -> impl Iterator<Item = (String, &Planned)> {
        let who = |stage| if stage == 0 { String::new() } else { format!("stage {stage}: ") };
        self.stage_plans.iter().enumerate().map(move |(stage, stage_plan)| (who(stage), stage_plan))
    }

    fn actions(&self) -> String {
        let mut text = String::new();
        for (who, stage_plan) in self.stage_plans() {
            if self.stage_plans.len() > 1 {
                line(&mut text, format_args!("{who}in-flight={}", stage_plan.in_flight));
            }
            let mut say = |who: &str, actions: &[Action]| {
                let mut loaded = 0;
                for action in actions {
                    let micro = action.micro().unwrap_or(loaded);
                    loaded = if matches!(action, Action::Load { .. }) { micro } else { loaded };
                    let of = if micro == loaded { String::new() } else { format!(" micro={micro}") };
                    line(&mut text, format_args!("{who}{}{of}", words::action(action)));
                }
            };
            say(&who, &stage_plan.actions);
            for (part, actions) in ["first", "next", "end"].into_iter().zip(&stage_plan.evaluation) {
                say(&format!("{who}evaluation {part}: "), actions);
            }
        }
        text
    }

    fn memory(&self) -> String {
        let mut text = String::new();
        let mut ledgers = |who: &str, ledgers: &ByTier<Ledger>| {
            for home in MemoryTier::ALL {
                let ledger = &ledgers[home];
                let who = match home {
                    MemoryTier::Device => who.to_string(),
                    _ if ledger.total_peak() == 0 => continue,
                    _ => format!("{who} {}", words::home(home)),
                };
                for (category, word) in words::CATEGORIES {
                    let (peak, at_peak) = (ledger.peak(category), ledger.at_peak(category));
                    line(&mut text, format_args!("{who}: {word} peak={peak} at-total-peak={at_peak}"));
                }
                line(&mut text, format_args!("{who}: total peak={}", ledger.total_peak()));
            }
        };
        self.stage_plans()
            .for_each(|(who, stage_plan)| ledgers(&format!("{who}planned"), &stage_plan.estimate.ledgers));
        self.measured.iter().enumerate().for_each(|(rank, of)| ledgers(&format!("rank {rank}"), &of.ledgers));
        text
    }

    fn wire(&self) -> String {
        let mut text = String::new();
        let mut rows = |who: &str, rows: &[Traffic], moves: &[Transfer]| {
            let of_traffic = |row: &Traffic| {
                let Traffic { axis, kind, calls, payload_bytes, wire_bytes, ranks, .. } = row;
                let place = format!("{who}: {} {} ranks={ranks}", words::axis(*axis), words::kind(*kind));
                format!("{place} calls={calls} payload-bytes={payload_bytes} wire-bytes={wire_bytes}")
            };
            let of_moves = |row: &Transfer| {
                let Transfer { what, from, to, moves, bytes } = row;
                let [from, to] = [from, to].map(|home| words::home(*home));
                format!("{who}: {} from {from} to {to} moves={moves} bytes={bytes}", words::category(*what))
            };
            let mut sentences: Vec<String> = rows.iter().map(of_traffic).chain(moves.iter().map(of_moves)).collect();
            sentences.sort();
            sentences.iter().for_each(|sentence| line(&mut text, format_args!("{sentence}")));
        };
        for (who, Planned { estimate, .. }) in self.stage_plans() {
            rows(&format!("{who}planned"), &estimate.traffic, &estimate.moves);
        }
        self.measured.iter().enumerate().for_each(|(rank, of)| rows(&format!("rank {rank}"), &of.traffic, &of.moves));
        text
    }

    fn flops(&self) -> String {
        let mut text = String::new();
        for (who, Planned { estimate, .. }) in self.stage_plans() {
            let Flops { model, palm, hardware, ledger, tokens } = &estimate.flops;
            line(&mut text, format_args!("{who}model={model} palm={palm} hardware={hardware} tokens={tokens}"));
            let mut terms: Vec<String> =
                ledger.iter().map(|(term, flops)| format!("{} {flops}", words::flop_term(term))).collect();
            terms.sort();
            terms.iter().for_each(|term| line(&mut text, format_args!("{who}{term}")));
            let Estimate { trainable_parameters: trainable, parameters: all, .. } = estimate;
            let Estimate { active_parameters: active, base_bytes: base, .. } = estimate;
            line(
                &mut text,
                format_args!("{who}parameters trainable={trainable} all={all} active={active} frozen-bytes={base}"),
            );
        }
        text
    }

    fn operations(&self) -> String {
        let mut text = String::new();
        let mut say = |who: &str, operations: &[Recorded]| {
            operations.iter().for_each(|op| line(&mut text, format_args!("{who}: {}", words::operation(op))));
        };
        say("first rank", &self.stage_plans[0].operations);
        say("last rank", &self.last_operations);
        for (stage, stage_plan) in self.stage_plans.iter().enumerate().skip(1) {
            say(&format!("first rank of stage {stage}"), &stage_plan.operations);
        }
        text
    }

    fn losses(&self) -> String {
        let mut text = String::new();
        for Step { step, loss, grad_norm, lr, tokens, loss_scale, skipped, .. } in &self.ran.steps {
            let bits =
                format!("loss={:016x} norm={:016x} lr={:016x}", loss.to_bits(), grad_norm.to_bits(), lr.to_bits());
            let scale = loss_scale.map_or("none".into(), |scale| scale.to_string());
            line(&mut text, format_args!("step {step}: {bits} tokens={tokens} loss-scale={scale} skipped={skipped}"));
        }
        for Evaluated { step, loss, tokens, .. } in &self.ran.evaluations {
            line(&mut text, format_args!("evaluation after {step}: loss={:016x} tokens={tokens}", loss.to_bits()));
        }
        text
    }

    fn weights(&self) -> String {
        let mut text = String::new();
        let mut tensors: Vec<&Tensor> = self.ran.weights.iter().collect();
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, shape, values) in tensors {
            let mut hash = blake3::Hasher::new();
            values.iter().for_each(|value| {
                hash.update(&value.to_bits().to_le_bytes());
            });
            let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
            line(&mut text, format_args!("{name} {shape} {}", &hash.finalize().to_hex()[..32]));
        }
        text
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(text, "{what}").unwrap();
}
