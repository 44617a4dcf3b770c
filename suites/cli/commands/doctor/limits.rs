//! What this process may use, and where it may write.

use super::Finding;
use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use zbench_host::environment::{Root, container};
use zbench_predict::planned::gib;

/// Files below this make large worlds over TCP fail.
const FEW_FILES: u64 = 1024;
/// Free space below this is too little for a notebook with training checkpoints.
const LITTLE_ROOM: u64 = 1 << 30;

/// Limits of the process and of its control group.
pub(super) fn findings(root: &Root, has_gpus: bool) -> Vec<Finding> {
    let limit = |resource| getrlimit(resource).current;
    let words = |limit: Option<u64>, of: &dyn Fn(u64) -> String| Some(limit.map_or("unlimited".into(), of));
    let count = |number: u64| number.to_string();
    let (locked, files, threads) = (limit(Resource::Memlock), limit(Resource::Nofile), limit(Resource::Nproc));
    let (address, size) = (limit(Resource::As), limit(Resource::Fsize));
    let group = container::memory_limit(root);
    let has_rdma = !root.names("sys/class/infiniband").is_empty();
    let is_enough = |limit: Option<u64>, least: u64| limit.is_none_or(|limit| limit >= least);
    vec![
        Finding::judged("memory limit of the control group", words(group, &gib), true, ""),
        Finding::judged(
            "open files (ulimit -n)",
            words(files, &count),
            is_enough(files, FEW_FILES),
            "every rank over tcp holds a socket to every other: ulimit -n 65536",
        ),
        Finding::judged(
            "threads (ulimit -u)",
            words(threads, &count),
            is_enough(threads, 4 * zbench_host::machine::cores() as u64 + 256),
            "ranks are threads or processes with threads: ulimit -u unlimited",
        ),
        locked_memory(locked, has_rdma, has_gpus),
        Finding::judged(
            "address space (ulimit -v)",
            words(address, &gib),
            address.is_none(),
            "arenas are reserved as a whole, far more than they use: ulimit -v unlimited",
        ),
        Finding::judged(
            "size of a file (ulimit -f)",
            words(size, &gib),
            size.is_none(),
            "checkpoints are files, and so is the memory that ranks of shm share: ulimit -f unlimited",
        ),
        shared_memory(root),
    ]
}

/// Locked memory: RDMA devices read memory that NCCL and MPI have locked, and NCCL locks what GPUs copy from. Nothing else does.
fn locked_memory(limit: Option<u64>, has_rdma: bool, has_gpus: bool) -> Finding {
    let words = limit.map_or("unlimited".to_string(), gib);
    let (what, advice) = ("locked memory (ulimit -l)", "ulimit -l unlimited, in a container --ulimit memlock=-1");
    let locks = match (has_rdma, has_gpus) {
        _ if limit.is_none() => return Finding::judged(what, Some(words), true, ""),
        (true, _) => "this machine has RDMA devices, and NCCL and MPI lock the memory that these read",
        (false, true) => "this machine has GPUs, and NCCL locks the memory that they copy from",
        (false, false) => {
            let words = format!("{words}; enough, as there is no RDMA device and no GPU");
            return Finding::judged(what, Some(words), true, "");
        }
    };
    Finding::judged(what, Some(words), false, &format!("{locks}: {advice}"))
}

/// NCCL's ranks on one host meet in /dev/shm; zbench's own need none of it.
fn shared_memory(root: &Root) -> Finding {
    let folder = root.path("dev/shm");
    let size = rustix::fs::statvfs(&folder).ok().and_then(|stat| stat.f_blocks.checked_mul(stat.f_frsize));
    Finding::judged(
        "/dev/shm",
        size.map(gib),
        size.is_some_and(|bytes| bytes >= 1 << 29),
        "NCCL wants it, zbench's shm does not (it shares memory by memfd); containers have 64 MiB: --shm-size=1g or --ipc=host",
    )
}

/// The folders that zbench writes to.
pub(super) fn places(notebook: &Path) -> Vec<Finding> {
    let room = place(notebook);
    let temporary = std::env::temp_dir();
    let may_write = |path: &Path| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    let written = match &room {
        Some((existing, _)) if !existing.is_dir() => Err(format!("no: {} is no folder", existing.display())),
        Some((existing, _)) if may_write(existing) => {
            Ok(if notebook.is_dir() { "yes" } else { "yes, it will be made" })
        }
        Some((existing, _)) => Err(format!("no: {} may not be written", existing.display())),
        None => Err("no".to_string()),
    };
    vec![
        Finding::judged(
            "disk space for the notebook",
            room.as_ref().map(|(_, bytes)| gib(*bytes)),
            room.as_ref().is_some_and(|(_, bytes)| *bytes >= LITTLE_ROOM),
            "less than 1 GiB, or the folder cannot be looked at: name another with --notebook DIR",
        ),
        Finding::result(
            "notebook can be written",
            written.map(str::to_string),
            "name another folder with --notebook DIR",
        )
        .needed(true),
        Finding::judged(
            "folder for temporary files",
            Some(temporary.display().to_string()),
            may_write(&temporary),
            "it is not there or may not be written: name another in TMPDIR",
        )
        .needed(true),
    ]
}

/// The nearest existing folder of the notebook's path, and the free bytes there.
fn place(notebook: &Path) -> Option<(std::path::PathBuf, u64)> {
    let absolute = std::path::absolute(notebook).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some((existing.to_path_buf(), stat.f_bavail.checked_mul(stat.f_frsize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_is_judged_by_who_would_lock_it() {
        let row = |limit, rdma, gpus| locked_memory(limit, rdma, gpus);
        for (rdma, gpus, who) in [(true, false, "RDMA"), (true, true, "RDMA"), (false, true, "GPUs")] {
            let few = row(Some(8 << 20), rdma, gpus);
            assert!(!few.is_there && few.found == "8.00 MiB" && few.advice().contains(who), "{few:?}");
            assert!(row(None, rdma, gpus).is_there);
        }
        let nobody = row(Some(8 << 20), false, false);
        assert!(nobody.is_there && nobody.found.contains("no RDMA device and no GPU"), "{nobody:?}");
    }
}
