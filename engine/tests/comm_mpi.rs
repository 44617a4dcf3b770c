//! The suite of all backends over MPI. Run by itself (as `cargo test` does) this program starts `mpirun` with itself as the
//! ranks; run by `mpirun` it is a rank. ZBENCH_MPIRUN names another launcher, as MPICH's `mpirun.mpich`.

#[path = "conformance/mod.rs"]
mod conformance;
#[path = "comm/program.rs"]
mod program;
#[path = "mpi/started.rs"]
mod started;

use conformance::{NEAR, Options};
use started::Signals;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zbench_collectives::GroupName;
use zbench_collectives::mpi::{Settings, mpi, mpi_with};
use zbench_collectives::{CommError, Communicator, Metered};
use zbench_kernels::{Cpu, DType, Kernels, ViewMut};

/// Long enough for eight ranks on two cores that others use too.
const PATIENCE: Duration = Duration::from_secs(120);
/// The limit of the runs that reach it; longer than a loaded machine keeps a rank waiting.
const STALL: Duration = Duration::from_secs(2);
/// No run takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(400);
/// The same for runs that end badly on purpose.
const LIMIT_OF_FAILURES: Duration = Duration::from_secs(60);
/// What the launcher's child gets as its first argument; the run's name and a folder for its signals follow.
const RANK: &str = "--rank";

/// MPI adds f32 and f64 in an order of its own; what is staged has ours.
const OPTIONS: Options = Options { exact_order: |dtype| matches!(dtype, DType::F16 | DType::Bf16), ..NEAR };

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().position(|argument| argument == RANK) {
        Some(at) => rank(&arguments[at + 1], Path::new(&arguments[at + 2])),
        None => launch(),
    }
}

fn kernels() -> Arc<dyn Kernels> {
    Arc::new(Cpu::new(1))
}

/// One rank of a run of this name. A panic ends the whole run, with an exit code that is not 0.
fn rank(run: &str, folder: &Path) -> ExitCode {
    let comm = match run {
        "conforms" | "metered" | "panics" | "aborts" | "started" | "programs" | "abandons" => mpi(kernels(), PATIENCE),
        "pieces" => mpi_with(kernels(), Settings { largest_count: 777, in_place: false, ..Settings::new(PATIENCE) }),
        "threadless" => mpi_with(kernels(), Settings { thread: false, ..Settings::new(PATIENCE) }),
        "stalls" | "leaves" | "refuses" | "absent" => mpi(kernels(), STALL),
        _ => panic!("there is no run named {run}"),
    };
    let comm = comm.unwrap();
    if comm.rank() == 0 {
        println!("{} ranks on {}, {}", comm.size(), comm.host(), comm.library().lines().next().unwrap_or_default());
    }
    let (own, size) = (comm.rank(), comm.size());
    match run {
        "conforms" | "pieces" => conformance::all(&comm, &OPTIONS),
        "metered" => conformance::all(&Metered::new(GroupName::Data, Box::new(comm)), &OPTIONS),
        "stalls" => {
            conformance::stalls(&comm, size - 1, STALL);
            std::mem::forget(comm);
            return heard(own);
        }
        "leaves" => {
            conformance::leaves(Box::new(comm), 1);
            return heard(own);
        }
        "refuses" => wrong_length(&comm),
        "started" => started::all(&comm, &Signals::new(folder, PATIENCE)),
        "programs" => started::programs(&comm),
        "threadless" => started::threadless(&comm),
        "absent" => {
            started::absent(&comm, size - 1, 4 * STALL);
            std::mem::forget(comm);
            return heard(own);
        }
        "abandons" => started::abandons(&comm),
        "aborts" if own == 1 => comm.abort("the disk is full"),
        "aborts" => panic!("{:?} after an abort", comm.barrier()),
        "panics" if own == 1 => panic!("on purpose"),
        _ => panic!("{:?} after a panic", comm.barrier()),
    }
    ExitCode::SUCCESS
}

/// The run is at its end although MPI is not finalized, so the launcher's exit code says nothing: this line does.
fn heard(rank: usize) -> ExitCode {
    println!("rank {rank} heard of it");
    // Others may still have to say so; the launcher ends all when the first one leaves like this.
    std::thread::sleep(5 * STALL);
    ExitCode::SUCCESS
}

/// A message of another length than expected is noticed where it arrives, and everyone hears of it.
fn wrong_length(comm: &dyn Communicator) {
    let mut buffer = vec![1f32; 10 + comm.rank()];
    let error = match comm.rank() {
        0 => comm.send(zbench_kernels::View::of(&buffer), 1).and_then(|()| comm.barrier()).unwrap_err(),
        1 => comm.recv(ViewMut::of(&mut buffer), 0).unwrap_err(),
        _ => comm.barrier().unwrap_err(),
    };
    match error {
        CommError::Aborted { rank: 1, reason, .. } if reason.contains("40 bytes where 44") => {}
        error => panic!("rank {}: {error:?}", comm.rank()),
    }
    heard(comm.rank());
}

/// The name of a run, its ranks and what has to come out of it.
type Run = (&'static str, usize, Wanted);

/// What has to come out of a run.
enum Wanted {
    /// All is well.
    Success,
    /// The run fails, and says this.
    Failure(&'static str),
    /// These ranks say that they heard of it.
    Heard(fn(usize) -> bool),
}

fn launch() -> ExitCode {
    let launcher = std::env::var("ZBENCH_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let Ok(version) = Command::new(&launcher).arg("--version").output() else {
        eprintln!(
            "{launcher} cannot be started: install openmpi-bin and libopenmpi-dev (or mpich), or build without the feature mpi"
        );
        return ExitCode::FAILURE;
    };
    let open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open");
    let mut alone: Vec<Run> = Vec::new();
    alone.extend([1, 2, 3, 4, 8].map(|size| ("conforms", size, Wanted::Success)));
    alone.extend([2, 3].map(|size| ("pieces", size, Wanted::Success)));
    alone.push(("metered", 2, Wanted::Success));
    alone.extend([2, 3].map(|size| ("started", size, Wanted::Success)));
    alone.extend(["programs", "threadless"].map(|name| (name, program::MOST_RANKS, Wanted::Success)));
    alone.push(("abandons", 2, Wanted::Failure("it did not wait for a collective it had started")));
    alone.push(("aborts", 3, Wanted::Failure("rank 1 of 3 of world")));
    alone.push(("aborts", 3, Wanted::Failure("the disk is full")));
    alone.push(("panics", 3, Wanted::Failure("ends the run: panicked")));
    // Their ranks sleep most of the time, so they run side by side.
    let together: [Run; 4] = [
        ("stalls", 3, Wanted::Heard(|_| true)),
        ("leaves", 3, Wanted::Heard(|rank| rank != 1)),
        ("refuses", 3, Wanted::Heard(|_| true)),
        ("absent", 3, Wanted::Heard(|_| true)),
    ];
    let good = |run: &Run| {
        let (name, size, wanted) = run;
        let begin = Instant::now();
        let mut command = Command::new(&launcher);
        if open_mpi {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
            if *name == "started" {
                // Both sides have to work for a large message: a receiver that may read its sender's memory needs no thread there.
                command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
            }
        }
        let own = std::env::current_exe().expect("a program knows its file");
        let folder = tempfile::tempdir().expect("a folder for a run's signals");
        command.args(["-n", &size.to_string()]).arg(own).args([RANK, name]).arg(folder.path());
        let result = outcome(&mut command, *size, wanted);
        match &result {
            Ok(()) => println!("{name} with {size} ranks: ok, {:.1} s", begin.elapsed().as_secs_f64()),
            Err(reason) => println!("{name} with {size} ranks: FAILED: {reason}"),
        }
        result.is_ok()
    };
    let mut passed = alone.iter().filter(|run| good(run)).count();
    passed += std::thread::scope(|scope| {
        let runs: Vec<_> = together.iter().map(|run| scope.spawn(|| good(run))).collect();
        runs.into_iter().map(|run| run.join().unwrap_or(false)).filter(|good| *good).count()
    });
    if passed == alone.len() + together.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs to the end, or for [`LIMIT`]; an error says what was not as wanted, with all that was printed.
fn outcome(command: &mut Command, size: usize, wanted: &Wanted) -> Result<(), String> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start: {error}"))?;
    let drain = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            pipe.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
        })
    };
    let pipes: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
    let texts = pipes.map(drain);
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break Some(status);
        }
        // Open MPI 4.1's mpirun now and then stays when ranks end badly, though all of them are gone.
        let limit = if matches!(wanted, Wanted::Success) { LIMIT } else { LIMIT_OF_FAILURES };
        if begin.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = texts.map(|text| text.join().unwrap_or_default()).concat();
    // A launcher that had to be ended is no success; what its ranks said of a failure counts all the same.
    let succeeded = status.is_some_and(|status| status.success());
    let good = match wanted {
        Wanted::Success => succeeded,
        Wanted::Failure(words) => !succeeded && text.contains(words),
        Wanted::Heard(who) => {
            (0..size).filter(|rank| who(*rank)).all(|rank| text.contains(&format!("rank {rank} heard of it")))
        }
    };
    let ended = status.map_or_else(|| "mpirun did not end".into(), |status| status.to_string());
    if good { Ok(()) } else { Err(format!("{ended}\n{text}")) }
}
