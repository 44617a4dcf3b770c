//! What is made of launchers' variables, as they set them.

use std::collections::BTreeMap;
use zbench_launch::{LaunchError, Source, World, detect, inherited};

fn lookup(text: &str) -> BTreeMap<String, String> {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').expect("NAME=value");
        (name.to_string(), value.to_string())
    };
    text.split_whitespace().map(pair).collect()
}

fn try_detect(text: &str) -> Result<Option<World>, LaunchError> {
    let variables = lookup(text);
    detect(&|name| variables.get(name).cloned())
}

fn found(text: &str) -> World {
    try_detect(text).unwrap_or_else(|error| panic!("{text}: {error}")).unwrap_or_else(|| panic!("{text}: no launch"))
}

fn refused(text: &str) -> String {
    try_detect(text).map(|world| panic!("{text}: {world:?}")).unwrap_err().to_string()
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_RANK=5 \
                        ROLE_WORLD_SIZE=8 MASTER_ADDR=node1 MASTER_PORT=29511 TORCHELASTIC_RUN_ID=job \
                        TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0";
const SRUN: &str = "SLURM_PROCID=9 SLURM_NTASKS=20 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NNODES=3 SLURM_STEP_ID=0 \
                    SLURM_JOB_ID=4711 SLURM_TASKS_PER_NODE=8(x2),4 SLURM_JOB_NODELIST=gpu[07-08],big1 \
                    SLURM_STEP_NODELIST=gpu[07-08],big1 SLURM_LAUNCH_NODE_IPADDR=10.0.0.1";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=99";

/// What doctor and `zbench allreduce` print: what detection asked for, and no secret.
#[test]
fn variables_that_decide_are_told() {
    let told = |variables: &str| {
        let variables = lookup(variables);
        let env = |name: &str| variables.get(name).cloned();
        let told = zbench_launch::consulted(&env);
        told.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    let ranks = told("WORLD_SIZE=2 HOME=/root RANK=1 ZBENCH_TOKEN=secret MASTER_ADDR=a SLURM_JOB_ID=4");
    assert_eq!(ranks, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a SLURM_JOB_ID=4");
    assert_eq!(told("RANK=1 HOME=/root"), "RANK=1", "of a decision that fails, too");
    assert!(told(SRUN).contains("SLURM_PROCID=9") && told(SRUN).contains("SLURM_STEP_NODELIST=gpu[07-08],big1"));
    let half = told("RANK=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4");
    assert_eq!(half, "RANK=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", "behind the first contradiction");
    assert_eq!(told("HOME=/root"), "");
}

#[test]
fn each_launcher_is_read() {
    let world = found(TORCHRUN);
    assert_eq!((world.rank, world.size, world.local_rank, world.local_size), (5, 8, Some(1), Some(4)));
    assert_eq!((world.host.as_deref(), world.port, world.source), (Some("node1"), 29511, Source::Torchrun));
    assert_eq!(
        world.describe(),
        "launched by torchrun: rank 5 of 8, local rank 1 of 4, meeting at node1:29511",
        "the decision in one line"
    );
    let world = found(SRUN);
    assert_eq!((world.rank, world.size, world.local_rank, world.local_size), (9, 20, Some(1), Some(8)));
    assert_eq!((world.host.as_deref(), world.source), (Some("gpu07"), Source::Slurm), "never the login node");
    let world = found(OMPI);
    assert_eq!((world.rank, world.size, world.local_rank, world.local_size), (1, 4, Some(1), Some(4)));
    assert_eq!((world.host.as_deref(), world.source), (Some("127.0.0.1"), Source::OpenMpi), "all are on this host");
    let world = found("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0");
    assert_eq!((world.rank, world.size, world.local_rank, world.source), (2, 3, Some(0), Source::Hydra));
    assert!(world.meeting().unwrap_err().to_string().contains("set MASTER_ADDR"));
    let world = found("PMI_RANK=5 PMI_SIZE=8 PALS_RANKID=5 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4");
    assert_eq!((world.rank, world.local_rank, world.local_size), (5, Some(1), Some(4)), "HPE's PALS");
    let world = found("PMI_RANK=2 PMI_SIZE=3 MASTER_ADDR=a MASTER_PORT=77");
    assert_eq!(world.meeting().unwrap(), ("a", 77));
    let world = found("MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=0");
    assert_eq!((world.rank, world.size, world.source), (0, 2, Source::Mvapich));
    assert_eq!(try_detect("").unwrap(), None);
    let ours =
        found("ZBENCH_LAUNCHED=1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 ZBENCH_TOKEN=abc PMI_RANK=7");
    assert_eq!((ours.source, ours.rank, ours.port, ours.token.as_str()), (Source::Ours, 1, 5, "abc"));
}

#[test]
fn all_ranks_of_a_launch_and_no_other_share_port_and_token() {
    let rank = |rank: usize, job: u32| {
        found(&SRUN.replace("PROCID=9", &format!("PROCID={rank}")).replace("4711", &job.to_string()))
    };
    let first = rank(0, 4711);
    for other in 1..20 {
        let other = rank(other, 4711);
        assert_eq!((&first.token, first.port, &first.host), (&other.token, other.port, &other.host));
    }
    assert_ne!(first.token, rank(0, 4712).token);
    assert!((10_000..30_000).contains(&first.port), "below the ports of outgoing connections: {}", first.port);
    let with_secret = found(&format!("{SRUN} ZBENCH_TOKEN=secret"));
    assert_ne!(first.token, with_secret.token);
    assert!(!with_secret.token.contains("secret"));
    assert_eq!(first.token.len(), 32);
    let (plain, restarted) = (found(TORCHRUN), found(&TORCHRUN.replace("RESTART_COUNT=0", "RESTART_COUNT=1")));
    assert_ne!(plain.token, restarted.token, "a restarted world does not meet the one before");
}

/// torchrun's agent listens on MASTER_PORT itself when its workers are to use its store.
#[test]
fn the_port_of_torchruns_store_is_not_ours() {
    let world = found(&format!("{TORCHRUN} TORCHELASTIC_USE_AGENT_STORE=True"));
    assert_ne!(world.port, 29511);
    assert!(world.describe().ends_with("; 29511 is torchrun's own"), "{}", world.describe());
    let other_rank = TORCHRUN.replace("RANK=5", "RANK=0").replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    assert_eq!(found(&format!("{other_rank} TORCHELASTIC_USE_AGENT_STORE=True")).port, world.port);
    assert_eq!(found("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a").port, 29500);
}

#[test]
fn an_allocation_is_no_launch() {
    for text in [
        // A batch script, a shell of salloc, one of srun --pty, a step of one task.
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_NODEID=0",
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=4294967290 SLURM_JOB_ID=1",
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0",
        "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=3",
    ] {
        assert_eq!(try_detect(text).unwrap(), None, "{text}");
        let variables = lookup(text);
        let said = inherited(&|name| variables.get(name).cloned()).expect("it is said");
        assert!(said.contains("SLURM_PROCID=0") && said.contains("ordinary run"), "{said}");
    }
    let variables = lookup(SRUN);
    assert_eq!(inherited(&|name| variables.get(name).cloned()), None);
    assert_eq!(inherited(&|_| None), None);
    // mpirun in a batch script: SLURM's variables are the script's.
    assert_eq!(found(&format!("{OMPI} SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1")).source, Source::OpenMpi);
}

#[test]
fn a_heterogeneous_step_has_the_ranks_of_all_components() {
    // Of SLURM 22.05.8: `srun -N1 -n1 Z : -N1 -n2 Z`, the last task.
    let whole = "SLURM_HET_SIZE=2 SLURM_JOB_ID=4 SLURM_STEP_ID=0 SLURM_NODEID=1 SLURM_PROCID=2 SLURM_LOCALID=1 SLURM_NTASKS=3 \
                 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=1,2";
    let world = found(whole);
    assert_eq!((world.rank, world.size, world.local_rank, world.local_size), (2, 3, Some(1), Some(2)));
    assert_eq!(world.host.as_deref(), Some("n1"));
    // Where counts are of one component, a world of that component alone would be another than the user's.
    let part = "SLURM_HET_SIZE=2 SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_NODEID=0 SLURM_PROCID=4 SLURM_LOCALID=2 SLURM_NTASKS=4 \
                SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=gpu07 SLURM_STEP_TASKS_PER_NODE=4";
    let said = refused(part);
    for words in ["SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4", "heterogeneous step", "--mpi=pmi2", "WORLD_SIZE"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let world = found(&format!("{part} PMI_RANK=4 PMI_SIZE=6 MASTER_ADDR=cpu001"));
    assert_eq!((world.rank, world.size, world.host.as_deref()), (4, 6, Some("cpu001")));
    assert_eq!(found(&format!("{part} RANK=4 WORLD_SIZE=6 MASTER_ADDR=cpu001")).size, 6);
}

#[test]
fn launchers_that_disagree_are_shown_both() {
    let said = refused("RANK=0 WORLD_SIZE=4 MASTER_ADDR=a OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4");
    assert!(said.contains("RANK=0 of WORLD_SIZE=4") && said.contains("OMPI_COMM_WORLD_RANK=1"), "{said}");
    let said = refused("PMI_RANK=0 PMI_SIZE=4 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_ID=0");
    assert!(said.contains("PMI_SIZE=4") && said.contains("SLURM_NTASKS=8"), "{said}");
    // srun with PMI: both say the same, and SLURM knows the address.
    let world = found(&format!("{SRUN} PMI_RANK=9 PMI_SIZE=20"));
    assert_eq!((world.source, world.host.as_deref(), world.local_size), (Source::Hydra, Some("gpu07"), Some(8)));
}

/// srun starts one torchrun or one daemon of mpirun a node, whose variables the ranks inherit.
#[test]
fn agents_that_srun_started_are_told_from_ranks() {
    let outer = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 \
                 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=n[1-2]";
    let world = found(&format!("{TORCHRUN} {outer}"));
    assert_eq!((world.source, world.rank), (Source::Torchrun, 5));
    assert!(world.describe().contains("srun started its agents, this is in task 1 of 2"), "{}", world.describe());
    refused(&format!("{} {outer}", TORCHRUN.replace("GROUP_RANK=1", "GROUP_RANK=0")));
    assert_eq!(found(&format!("{OMPI} {outer}")).source, Source::OpenMpi);
    refused(&format!("{OMPI} {}", outer.replace("1(x2)", "2(x2)")));
}

#[test]
fn halves_and_nonsense_are_refused_by_name() {
    for (text, words) in [
        ("RANK=0", &["RANK=0", "WORLD_SIZE"][..]),
        ("WORLD_SIZE=4", &["WORLD_SIZE=4", "RANK"]),
        ("OMPI_COMM_WORLD_RANK=0", &["OMPI_COMM_WORLD_SIZE"]),
        ("PMI_SIZE=2", &["PMI_RANK"]),
        ("SLURM_PROCID=0 SLURM_STEP_ID=0", &["SLURM_PROCID=0", "SLURM_NTASKS"]),
        ("ZBENCH_LAUNCHED=1", &["ZBENCH_LAUNCHED=1", "RANK"]),
        ("RANK=4 WORLD_SIZE=4", &["RANK=4", "below"]),
        ("RANK=0 WORLD_SIZE=0", &["below"]),
        ("RANK=-1 WORLD_SIZE=4", &["RANK=-1", "number"]),
        ("RANK=a WORLD_SIZE=4", &["RANK=a"]),
        ("RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", &["LOCAL_RANK=2"]),
        ("RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=0", &["MASTER_PORT=0", "65535"]),
        ("RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=70000", &["MASTER_PORT=70000"]),
        ("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-", &["n[1-", "brackets"]),
        ("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_TASKS_PER_NODE=2(y3)", &["2(y3)"]),
    ] {
        let said = refused(text);
        for word in words {
            assert!(said.contains(word), "{text}: {said} lacks {word}");
        }
    }
}

#[test]
fn a_secret_comes_from_a_variable_or_a_file_that_nobody_else_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let mode = |mode: u32| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    let with = |file: &std::path::Path| try_detect(&format!("{TORCHRUN} ZBENCH_TOKEN_FILE={}", file.display()));
    let why = |file: &std::path::Path| with(file).map(|world| panic!("{world:?}")).unwrap_err().to_string();
    let public = found(TORCHRUN);
    assert!(!public.secret && found(&format!("{TORCHRUN} ZBENCH_TOKEN=")).token == public.token);
    let stated = found(&format!("{TORCHRUN} ZBENCH_TOKEN=a-secret"));
    assert!(stated.secret && stated.token != public.token);

    std::fs::write(&path, "a-secret\n").unwrap();
    for good in [0o600, 0o400] {
        mode(good);
        let world = with(&path).unwrap().unwrap();
        assert_eq!((world.token, world.secret), (stated.token.clone(), true), "{good:o}");
    }
    for bad in [0o640, 0o604, 0o622, 0o700] {
        mode(bad);
        let said = why(&path);
        assert!(said.contains(&format!("its mode is {bad:04o}")) && said.contains("chmod 600"), "{said}");
    }
    mode(0o600);
    let both = refused(&format!("{TORCHRUN} ZBENCH_TOKEN=x ZBENCH_TOKEN_FILE={}", path.display()));
    assert!(both.contains("ZBENCH_TOKEN is set too"), "{both}");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        assert!(why(&path).contains("belongs to user 12345"), "{}", why(&path));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    std::fs::write(&path, " \n").unwrap();
    assert!(why(&path).contains("it is empty"), "{}", why(&path));
    std::fs::write(&path, "x".repeat(5000)).unwrap();
    assert!(why(&path).contains("more than 4096 bytes"), "{}", why(&path));
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&fifo).status().unwrap().success());
    assert!(why(&fifo).contains("no regular file"), "{}", why(&fifo));
    assert!(why(&folder.path().join("absent")).contains("cannot be read"), "{}", why(&folder.path().join("absent")));
}

#[test]
fn a_token_that_others_can_know_is_warned_of_beyond_the_loopback() {
    let torchrun = |host: &str, more: &str| found(&format!("{} {more}", TORCHRUN.replace("node1", host))).warning();
    for host in ["10.0.0.7", "192.0.2.1", "::", "no-such-host.invalid"] {
        let warning = torchrun(host, "").unwrap_or_else(|| panic!("{host}"));
        assert!(warning.contains(host) && warning.contains("ZBENCH_TOKEN_FILE"), "{warning}");
        assert_eq!(torchrun(host, "ZBENCH_TOKEN=secret"), None, "{host}");
    }
    for host in ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost"] {
        assert_eq!(torchrun(host, ""), None, "{host}");
    }
}

#[test]
fn rank_0_listens_where_ranks_of_other_hosts_find_it() {
    let everywhere = |host: &str, more: &str| {
        found(&format!("{} {more}", TORCHRUN.replace("MASTER_ADDR=node1", &format!("MASTER_ADDR={host}"))))
            .listens_everywhere()
    };
    let secret = "ZBENCH_TOKEN=secret";
    // Public and reached by its own address: there alone. A name that this host does not know is one for all addresses.
    assert!(!everywhere("192.0.2.1", "") && everywhere("192.0.2.1", secret) && everywhere("no..host", ""));
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        assert!(!everywhere(host, "") && !everywhere(host, secret), "{host}");
    }
    let all_here = "LOCAL_WORLD_SIZE=8 LOCAL_RANK=5";
    assert!(
        !everywhere("no..host", all_here) && !everywhere("192.0.2.1", &format!("{all_here} {secret}")),
        "all are here"
    );
    let warning = found(&TORCHRUN.replace("=node1", "=no..host")).warning().unwrap();
    assert!(
        warning.contains("no..host; this host knows no address of no..host, so rank 0 listens on all"),
        "{warning}"
    );
}
