//! What the environment says of this process: which rank of how many it is, and where the ranks meet.

use crate::{LaunchError, launcher, loopback, slurm};
use std::cell::RefCell;
use std::net::{IpAddr, ToSocketAddrs};
use zbench_host::environment::Root;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// zbench itself.
    Ours,
    /// torchrun, or whatever sets RANK and WORLD_SIZE as it does.
    Torchrun,
    /// MPICH, Intel MPI: the Hydra process manager, HPE's PALS, or srun with its PMI.
    Hydra,
    /// Open MPI's mpirun.
    OpenMpi,
    /// MVAPICH.
    Mvapich,
    /// srun.
    Slurm,
}

impl Source {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Ours => "zbench",
            Source::Torchrun => "torchrun",
            Source::Hydra => "mpirun (Hydra)",
            Source::OpenMpi => "mpirun (Open MPI)",
            Source::Mvapich => "mpirun (MVAPICH)",
            Source::Slurm => "srun",
        }
    }
}

/// This process's place among those that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// This process's number.
    pub rank: usize,
    /// Processes in all.
    pub size: usize,
    /// Its number among those of its host.
    pub local_rank: Option<usize>,
    /// Processes of its host.
    pub local_size: Option<usize>,
    /// The host of rank 0, where the ranks meet; absent where the launcher names none and there are several hosts.
    pub host: Option<String>,
    /// The port there.
    pub port: u16,
    /// What the ranks of one launch know and others should not.
    pub token: String,
    /// Whether others cannot know it. Where nobody has given a secret, the token follows from what the launcher says of the
    /// job, which every user of the host may see.
    pub secret: bool,
    /// Who started them.
    pub source: Source,
    /// The launcher's process on this host, in words, where that tells launches apart; else empty.
    pub launcher: String,
    /// What else was noticed, for the line of the decision.
    pub notes: Vec<String>,
}

impl World {
    /// The decision in one line.
    pub fn describe(&self) -> String {
        let World { rank, size, .. } = self;
        let local = match (self.local_rank, self.local_size) {
            (Some(rank), Some(size)) => format!(", local rank {rank} of {size}"),
            (Some(rank), None) => format!(", local rank {rank}"),
            (None, _) => String::new(),
        };
        let meeting = match &self.host {
            Some(host) => format!(", meeting at {host}:{}", self.port),
            None => ", no meeting place named".into(),
        };
        let notes: String = self.notes.iter().map(|note| format!("; {note}")).collect();
        format!("launched by {}: rank {rank} of {size}{local}{meeting}{notes}", self.source.name())
    }

    /// What is to be said where others on the network can know the token.
    pub fn warning(&self) -> Option<String> {
        let host = self.host.as_deref().filter(|host| !self.secret && self.size > 1 && !is_loopback(host))?;
        let place = match self.hidden() {
            Some(_) if !self.has_ranks_elsewhere() => return None,
            Some(why) => format!("{host}; {why}, so rank 0 listens on all addresses of its host. They"),
            None => format!("{host}, which is no loopback address, and"),
        };
        Some(format!(
            "the ranks meet at {place} know each other by what {} says of the job, which others can find out; give all of them \
             a secret with ZBENCH_TOKEN_FILE or ZBENCH_TOKEN (docs/launch.md)",
            self.source.name()
        ))
    }

    /// Whether ranks are known to be on other hosts.
    fn has_ranks_elsewhere(&self) -> bool {
        self.local_size.is_some_and(|local| local < self.size)
    }

    /// Why ranks on other hosts may not reach what this host takes for the meeting place: Debian's installer names a host
    /// 127.0.1.1 in its own /etc/hosts. Nothing where an address is the host's own or another's.
    fn hidden(&self) -> Option<String> {
        let host = self.host.as_deref()?;
        let found = (bare(host), self.port).to_socket_addrs().into_iter().flatten();
        let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        match addresses.first() {
            None => Some(format!("this host knows no address of {host}")),
            Some(first) if addresses.iter().all(IpAddr::is_loopback) => {
                Some(format!("on this host that is {first} (/etc/hosts), its loopback"))
            }
            Some(_) => None,
        }
    }

    /// Whether rank 0 listens on all addresses of its host: where a secret protects it and not all ranks are known to be there, or
    /// where ranks of other hosts could not reach it otherwise.
    pub fn listens_everywhere(&self) -> bool {
        let is_named = self.host.as_deref().is_some_and(|host| !is_loopback(host));
        let is_alone = self.local_size == Some(self.size);
        is_named && !is_alone && (self.secret || self.has_ranks_elsewhere() && self.hidden().is_some())
    }

    /// Where the ranks meet.
    ///
    /// # Errors
    /// The launcher does not say, and they are on several hosts.
    pub fn meeting(&self) -> Result<(&str, u16), LaunchError> {
        let absent = || LaunchError::NoAddress { source_name: self.source.name(), size: self.size };
        Ok((self.host.as_deref().ok_or_else(absent)?, self.port))
    }
}

/// An address without the brackets of version 6.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether it names the loopback as such, and not by a name that a host gives itself.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || bare(host).parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Looks a variable up.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What ranks on several hosts tell each other to be let in.
const TOKEN: &str = "ZBENCH_TOKEN";
/// Or a file that holds it, which its owner alone may read.
const TOKEN_FILE: &str = "ZBENCH_TOKEN_FILE";
/// More than this is no token.
const MOST_TOKEN_BYTES: u64 = 4096;
/// torchrun's port when none is said.
const TORCH_PORT: u16 = 29500;
/// SLURM's numbers from here on are no steps of tasks but the allocation's own shells.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// What launchers say of this process; nothing when none started it. DeepSpeed's precedence: RANK, then PMI, Open MPI,
/// MVAPICH, SLURM; a process that zbench started belongs to zbench whatever it has inherited.
///
/// # Errors
/// Half of what a launcher sets, values that are none, or two launchers that disagree.
pub fn detect(env: Env<'_>) -> Result<Option<World>, LaunchError> {
    detect_on(&Root::system(), env)
}

fn detect_on(root: &Root, env: Env<'_>) -> Result<Option<World>, LaunchError> {
    if env("ZBENCH_LAUNCHED").is_some_and(|value| value == "1") {
        let seen = seen(env, &TORCHRUN)?.ok_or_else(|| LaunchError::Partial {
            present: "ZBENCH_LAUNCHED=1".into(),
            missing: "RANK".into(),
            source_name: "zbench",
            advice: "Unset it; it is for processes that zbench starts itself.".into(),
        })?;
        return world(root, env, Seen { source: Source::Ours, ..seen }, Vec::new()).map(Some);
    }
    let mut all = Vec::new();
    for variables in &LAUNCHERS {
        all.extend(seen(env, variables)?);
    }
    match slurm(env) {
        // Another launcher, or srun's own PMI, has what SLURM does not state.
        Err(LaunchError::Heterogeneous { .. }) if !all.is_empty() => {}
        seen => all.extend(seen?),
    }
    let mut notes = Vec::new();
    let mut all = all.into_iter();
    let Some(mut first) = all.next() else { return Ok(None) };
    for other in all {
        if (other.rank, other.size) == (first.rank, first.size) {
            first.local_rank = first.local_rank.or(other.local_rank);
            first.local_size = first.local_size.or(other.local_size);
            first.host = first.host.or(other.host);
        } else if other.source == Source::Slurm && started_an_agent(env, &first, &other) {
            notes.push(format!("srun started its agents, this is in task {} of {}", other.rank, other.size));
        } else {
            return Err(LaunchError::Disagree { first: first.says, second: other.says });
        }
    }
    world(root, env, first, notes).map(Some)
}

/// The variables that are set and that [`detect`] reads, whatever it decides; what only the ranks may know is left out.
pub fn consulted(env: Env<'_>) -> Vec<(String, String)> {
    let read = RefCell::new(Vec::<(String, String)>::new());
    let recording = |name: &str| {
        let value = env(name)?;
        let mut read = read.borrow_mut();
        if name != TOKEN && !read.iter().any(|(known, _)| known == name) {
            read.push((name.to_string(), value.clone()));
        }
        Some(value)
    };
    // What it decides is told elsewhere. It ends at the first contradiction, which is when one wants to see the rest.
    let _ = detect(&recording);
    for variables in &LAUNCHERS {
        let _ = seen(&recording, variables);
    }
    let _ = slurm(&recording);
    for source in [Source::Torchrun, Source::Slurm, Source::OpenMpi, Source::Hydra, Source::Mvapich] {
        let _ = job(&recording, source);
    }
    read.into_inner()
}

/// Variables of a launcher that started no ranks here, in words: what a process inherits from an interactive allocation.
pub fn inherited(env: Env<'_>) -> Option<String> {
    let rank = env("SLURM_PROCID")?;
    slurm(env).is_ok_and(|seen| seen.is_none()).then(|| {
        format!(
            "SLURM_PROCID={rank} is inherited from an allocation and no step of several tasks: this is an ordinary run of one \
             process (srun starts ranks)"
        )
    })
}

/// What one launcher says.
#[derive(Debug)]
struct Seen {
    source: Source,
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    host: Option<String>,
    /// The variables that say so.
    says: String,
}

/// A launcher and the names of its variables: rank, number of ranks, rank on the host, ranks on the host.
type Variables = (Source, [&'static str; 4]);

const TORCHRUN: Variables = (Source::Torchrun, ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]);
const LAUNCHERS: [Variables; 5] = [
    TORCHRUN,
    (Source::Hydra, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // HPE's PALS: the same rank and size, and the place on the host under names of its own.
    (Source::Hydra, ["PMI_RANK", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"]),
    (
        Source::OpenMpi,
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ),
    (
        Source::Mvapich,
        ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"],
    ),
];

fn seen(env: Env<'_>, (source, names): &Variables) -> Result<Option<Seen>, LaunchError> {
    let (source, [of_rank, of_size, of_local_rank, of_local_size]) = (*source, *names);
    let half = |present: &str, value: usize, missing: &str| LaunchError::Partial {
        present: format!("{present}={value}"),
        missing: missing.into(),
        source_name: source.name(),
        advice: format!("Set {missing} too, or unset {present} if this is a run of one process."),
    };
    let (rank, size) = match (number(env, of_rank)?, number(env, of_size)?) {
        (None, None) => return Ok(None),
        (Some(rank), None) => return Err(half(of_rank, rank, of_size)),
        (None, Some(size)) => return Err(half(of_size, size, of_rank)),
        (Some(rank), Some(size)) => (rank, size),
    };
    below(of_rank, rank, size)?;
    let (local_rank, local_size) = (number(env, of_local_rank)?, number(env, of_local_size)?);
    if let (Some(rank), Some(size)) = (local_rank, local_size) {
        below(of_local_rank, rank, size)?;
    }
    let says = format!("{of_rank}={rank} of {of_size}={size} ({})", source.name());
    Ok(Some(Seen { source, rank, size, local_rank, local_size, host: None, says }))
}

/// What srun says. Nothing in a shell or script of an allocation, which has SLURM_PROCID=0 too and is no step of tasks.
fn slurm(env: Env<'_>) -> Result<Option<Seen>, LaunchError> {
    let step = env("SLURM_STEP_ID").and_then(|step| step.trim().parse::<u64>().ok());
    let Some(rank) = number(env, "SLURM_PROCID")? else { return Ok(None) };
    if step.is_none_or(|step| step >= FIRST_SPECIAL_STEP) {
        return Ok(None);
    }
    let mut size = None;
    for variable in ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"] {
        size = size.or(number(env, variable)?.map(|size| (variable, size)));
    }
    let Some((size_variable, size)) = size else {
        return Err(LaunchError::Partial {
            present: format!("SLURM_PROCID={rank}"),
            missing: "SLURM_NTASKS".into(),
            source_name: Source::Slurm.name(),
            advice: "Start the ranks with srun, or unset SLURM_PROCID if this is a run of one process.".into(),
        });
    };
    // SLURM 22.05 counts the tasks of a step over all components of a heterogeneous job.
    if rank >= size && number(env, "SLURM_HET_SIZE")?.is_some_and(|components| components > 1) {
        return Err(LaunchError::Heterogeneous { rank, size_variable, size });
    }
    if size == 1 {
        return Ok(None);
    }
    below("SLURM_PROCID", rank, size)?;
    let mut local_size = None;
    for variable in ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"] {
        if let (None, Some(compact)) = (local_size, env(variable)) {
            let tasks = slurm::expand_tasks(&compact)?;
            local_size = number(env, "SLURM_NODEID")?.and_then(|node| tasks.get(node).copied());
        }
    }
    if local_size.is_none() {
        local_size = number(env, "SLURM_NTASKS_PER_NODE")?;
    }
    let mut host = None;
    for variable in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        if let (None, Some(list)) = (&host, env(variable)) {
            host = slurm::expand_nodes(&list)?.into_iter().next();
        }
    }
    let local_rank = number(env, "SLURM_LOCALID")?;
    let says = format!("SLURM_PROCID={rank} of {size_variable}={size} (srun)");
    Ok(Some(Seen { source: Source::Slurm, rank, size, local_rank, local_size, host, says }))
}

/// Whether srun started not this process but what started it: torchrun's agents, or mpirun's daemons, one a node.
fn started_an_agent(env: Env<'_>, first: &Seen, slurm: &Seen) -> bool {
    let is = |variable: &str, wanted: usize| number(env, variable).ok().flatten() == Some(wanted);
    match first.source {
        Source::Torchrun => is("GROUP_RANK", slurm.rank) && is("GROUP_WORLD_SIZE", slurm.size),
        Source::OpenMpi | Source::Hydra | Source::Mvapich => {
            slurm.size < first.size && is("SLURM_STEP_NUM_NODES", slurm.size) && slurm.local_size == Some(1)
        }
        Source::Ours | Source::Slurm => false,
    }
}

/// Adds the meeting place and the token.
fn world(root: &Root, env: Env<'_>, seen: Seen, mut notes: Vec<String>) -> Result<World, LaunchError> {
    let Seen { source, rank, size, local_rank, local_size, .. } = seen;
    let alone = local_size == Some(size);
    let mut job = job(env, source);
    // Two launches of one size have the same variables there.
    let is_unnamed = matches!(source, Source::Hydra | Source::Mvapich) && env("PMI_JOBID").is_none();
    let launcher = if is_unnamed { launcher::above(root, std::process::id()) } else { None };
    if let Some(launcher) = launcher.as_ref().filter(|launcher| alone || launcher.is_of_all_hosts) {
        notes.push(format!("started by {}", launcher.words));
        job.push_str(&format!(" {}", launcher.words));
    }
    let launcher = launcher.map(|launcher| launcher.words).unwrap_or_default();
    let stated = match number(env, "MASTER_PORT")? {
        Some(port) => Some(u16::try_from(port).ok().filter(|port| *port > 0).ok_or_else(|| LaunchError::Value {
            variable: "MASTER_PORT".into(),
            value: port.to_string(),
            wanted: "a port from 1 to 65535",
        })?),
        None if source == Source::Torchrun => Some(TORCH_PORT),
        None => None,
    };
    let agents = env("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = match stated {
        Some(stated) if agents && source == Source::Torchrun => {
            notes.push(format!("{stated} is torchrun's own"));
            derived_port(&format!("{job} {stated}"))
        }
        Some(stated) => stated,
        None => derived_port(&job),
    };
    let stated_host = env("MASTER_ADDR").map(|host| host.trim().to_string()).filter(|host| !host.is_empty());
    let host = stated_host.or(seen.host).or_else(|| alone.then(|| loopback().to_string()));
    let given = secret(env)?;
    let secret = given.is_some();
    let given = given.unwrap_or_default();
    let token = match source {
        Source::Ours => given,
        _ => {
            blake3::hash(format!("zbench\n{}\n{job}\n{size}\n{given}", source.name()).as_bytes()).to_hex()[..32].into()
        }
    };
    Ok(World { rank, size, local_rank, local_size, host, port, token, secret, source, launcher, notes })
}

/// The secret that the user or zbench itself has given to all ranks.
fn secret(env: Env<'_>) -> Result<Option<String>, LaunchError> {
    let given = |name: &str| env(name).filter(|value| !value.is_empty());
    match (given(TOKEN), given(TOKEN_FILE)) {
        (Some(_), Some(path)) => {
            Err(LaunchError::TokenFile { path, reason: "ZBENCH_TOKEN is set too; unset one".into() })
        }
        (token, None) => Ok(token),
        (None, Some(path)) => match token_of(std::path::Path::new(&path)) {
            Ok(token) => Ok(Some(token)),
            Err(reason) => Err(LaunchError::TokenFile { path, reason }),
        },
    }
}

/// The secret in a file. What is checked is the open file, so that nobody can exchange it in between.
fn token_of(path: &std::path::Path) -> Result<String, String> {
    use rustix::fs::{FileType, Mode, OFlags};
    use std::io::Read;
    let words = |error: std::io::Error| format!("it cannot be read: {error}");
    // Without waiting, should it be a fifo.
    let open = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    let file = open.map_err(|error| words(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| words(error.into()))?;
    let (owner, own) = (stat.st_uid, rustix::process::geteuid().as_raw());
    let mode = stat.st_mode & 0o7777;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is no regular file".into());
    }
    if owner != own {
        return Err(format!("it belongs to user {owner}, and this is user {own}; who owns it can change it"));
    }
    if !zbench_host::machine::is_this_user(owner) {
        return Err(
            "its owner cannot be told: the user namespace of this process does not map this user; use ZBENCH_TOKEN"
                .into(),
        );
    }
    if mode & !0o600 != 0 {
        return Err(format!("its mode is {mode:04o}, and its owner alone should read it; chmod 600"));
    }
    let mut text = String::new();
    std::fs::File::from(file).take(MOST_TOKEN_BYTES + 1).read_to_string(&mut text).map_err(words)?;
    match text.trim() {
        _ if text.len() as u64 > MOST_TOKEN_BYTES => Err(format!("it has more than {MOST_TOKEN_BYTES} bytes")),
        "" => Err("it is empty; fill it with: openssl rand -hex 32".into()),
        token => Ok(token.to_string()),
    }
}

/// What all ranks of one launch know of it and the next launch does not share, as far as the launcher says.
fn job(env: Env<'_>, source: Source) -> String {
    let variables: &[&str] = match source {
        Source::Ours => &[],
        Source::Torchrun => &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"],
        Source::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        Source::OpenMpi => &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"],
        Source::Hydra => &["PMI_JOBID", "PALS_APID", "SLURM_JOB_ID"],
        Source::Mvapich => &["MPIRUN_ID", "PMI_JOBID", "SLURM_JOB_ID"],
    };
    variables.iter().map(|name| env(name).unwrap_or_default()).collect::<Vec<_>>().join(" ")
}

/// A port that all ranks of a job find, below those that systems give to outgoing connections.
fn derived_port(job: &str) -> u16 {
    let hash = blake3::hash(job.as_bytes());
    let [a, b, ..] = hash.as_bytes();
    10_000 + u16::from_le_bytes([*a, *b]) % 20_000
}

fn number(env: Env<'_>, variable: &str) -> Result<Option<usize>, LaunchError> {
    let Some(value) = env(variable).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    let wrong = || LaunchError::Value { variable: variable.into(), value: value.clone(), wanted: "a number from 0" };
    value.trim().parse().map(Some).map_err(|_| wrong())
}

fn below(variable: &str, rank: usize, size: usize) -> Result<(), LaunchError> {
    let wanted = "a rank below the number of ranks";
    let wrong = || LaunchError::Value { variable: variable.into(), value: format!("{rank} (of {size})"), wanted };
    if rank < size { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::tests::below;

    /// Ranks of Hydra below a proxy, whose variables name no job: of all hosts where `local` is less than 2.
    fn under(proxy: &tempfile::TempDir, rank: usize, local: usize) -> World {
        let env = |name: &str| match name {
            "PMI_RANK" => Some(rank.to_string()),
            "PMI_SIZE" => Some("2".into()),
            "MPI_LOCALNRANKS" => Some(local.to_string()),
            "MPI_LOCALRANKID" => Some((rank % local).to_string()),
            "MASTER_ADDR" => (local < 2).then(|| "n1".into()),
            _ => None,
        };
        detect_on(&Root::at(proxy.path()), &env).unwrap().unwrap()
    }

    #[test]
    fn launches_without_a_name_are_told_apart_by_their_process() {
        let proxy = |process, started| below("hydra_pmi_proxy", "hydra_pmi_proxy --usize -1", process, started);
        let [one, other, later] = [(50, 7), (51, 7), (50, 8)].map(|(process, started)| proxy(process, started));
        let first = under(&one, 0, 2);
        let place = |world: &World| (world.port, world.token.clone());
        assert_eq!(place(&first), place(&under(&one, 1, 2)));
        for other in [&other, &later] {
            let other = under(other, 1, 2);
            assert!(first.port != other.port && first.token != other.token && first.launcher != other.launcher);
        }
        assert!(
            first.describe().ends_with("; started by hydra_pmi_proxy (process 50, started 7 ticks after the system)")
        );
        // Each host has a process of its own, which the ranks compare when they have met.
        let (here, there) = (under(&one, 0, 1), under(&other, 1, 1));
        assert_eq!(place(&here), place(&there));
        assert!(!here.launcher.is_empty() && here.launcher != there.launcher);
        // Where Hydra has told it the place of its mpiexec, that is the same on all hosts.
        let told = |place: &str, process| below("hydra_pmi_proxy", &format!("p --control-port {place}"), process, 7);
        let (here, there) = (under(&told("n1:1", 50), 0, 1), under(&told("n1:1", 51), 1, 1));
        assert_eq!(place(&here), place(&there));
        assert_ne!(here.token, under(&told("n1:2", 52), 1, 1).token);
    }
}
