#!/usr/bin/env python3
"""Runs zbench under every launcher, in every situation, and prints a table of the outcomes in Markdown; exit code 1 if one is not as it
should be (bold).

    ci/launchers/matrix.py --zbench target/release/zbench                      all, and two jobs at once 20 times
    ci/launchers/matrix.py --launchers srun,Hydra --situations normal --commands run --pairs 0

As root, on Debian: iproute2 munge slurm-wlm mpich openmpi-bin; torch and accelerate by pip, where ZBENCH_TORCH may name their folder.
"""

import argparse
import collections
import os
import pathlib
import re
import signal
import sys
import time
from importlib.machinery import PathFinder

from cluster import Cluster
from jobs import COMMANDS, LAUNCHERS, ON_TWO_HOSTS, Job

CELL = """
name = "launchers"
[model]
preset = "llama-tiny"
[train]
seq_len = 128
micro_batch = 1
steps = {steps}
untimed_steps = 2
[parallel]
ranks = 2
{more}
"""
GRID = '[grid]\n"parallel.strategy" = ["ddp", "zero3"]\n'
KILLED, STOPPED = "a rank killed", "SIGTERM"
# Where a rank is killed these kill all others within milliseconds (MPICH 4.0.2), so that none is left to write a record.
ENDS_ALL = ["Hydra", "salloc + Hydra"]
# These bind ranks of a host to different cores. The two hosts are one machine, so ranks on both may be bound to the same core.
BINDS_APART = ["mpirun", "Hydra"]
# Seconds until a launch that was told to end has done so.
END_SECONDS = 20
SITUATIONS = ["normal", KILLED, STOPPED, "bound to one core", "quota of 1.5 cores"]


def words_of(cluster, zbench, command, is_long):
    path = cluster.folder / f"{command}{is_long}.toml"
    path.write_text(CELL.format(steps=1_000_000 if is_long else 6, more=GRID if command == "grid" else ""))
    if command == "allreduce":
        # A signal ends it after a row, so the long one has many.
        return [zbench, command, "-b", "4M", "-e", "4M", "-w", 1, "-n", 3, "-N", 0 if is_long else 1]
    return [zbench, command, path, *(["--trials", 1, "--no-repeats"] if command == "grid" else [])]


def expected_threads(launcher, situation):
    """Threads of a rank: the cores it may use, shared by the ranks of its host; SLURM's steps ask for two cores a rank."""
    if situation != "normal":
        return 1
    is_one_host = launcher in ["mpirun", "Hydra", "torchrun standalone", "accelerate"]
    return len(os.sched_getaffinity(0)) // 2 if is_one_host else 2


def last_line(text):
    lines = [line for line in text.splitlines() if "error" in line or "failed" in line] or text.splitlines() or [""]
    return lines[-1][:200].replace("|", "\\|")


def cell(cluster, zbench, launcher, command, situation, quota):
    """The outcome of one launch in words, and whether it is as it should be."""
    wrapper = ["sh", "-c", f'echo 0 >{quota}/cgroup.procs; exec env "$@"', "sh"] if situation.startswith("quota") else []
    words = words_of(cluster, zbench, command, situation in (KILLED, STOPPED))
    job = Job(cluster, launcher, words, bound=situation.startswith("bound"), wrapper=wrapper)
    if situation in (KILLED, STOPPED):
        if not job.get_under_way():
            return f"not under way, exit {job.wait(0)}: {last_line(job.said())}", False
        job.stop() if situation == STOPPED else os.kill(job.processes(COMMANDS)[1], signal.SIGKILL)
    begin = time.monotonic()
    codes = job.wait(120)
    seconds, records = time.monotonic() - begin, job.records()
    counts = collections.Counter(record["outcome"]["status"] for record in records)
    told = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no record"
    if situation in (KILLED, STOPPED):
        reasons = [record["outcome"]["reason"] or "" for record in records if record["outcome"]["status"] == "failed"]
        names = any(re.search(r"rank 1\b|rank\(?s?\)? \[1\]", reason) for reason in reasons)
        fine = (names or launcher in ENDS_ALL and not records) if situation == KILLED else all("stopped" in reason for reason in reasons)
        # MPICH's mpiexec may end with 0 when it is told to end (findings/mpiexec-of-mpich-may-end-with-0-when-it-is-terminated.sh).
        ended = (0 not in codes or launcher == "Hydra") and codes != ["hung"] and seconds < END_SECONDS
        return f"{told}{', names rank 1' * names}; exit {codes}, {seconds:.0f} s", fine and ended
    threads = {record["cell"].get("hardware", record["cell"]).get("threads_per_rank") for record in records}
    flags = sorted({flag for record in records for flag in record["validity"]})
    faults = [] if set(codes) == {0} else [f"exit {codes}: {last_line(job.said())}"]
    if counts != {"measured": 2 if command == "grid" else 1} or not all(len(record.get("ranks") or "12") == 2 for record in records):
        faults.append("not the records of two ranks")
    if command != "allreduce" and threads != {expected_threads(launcher, situation)}:
        faults.append(f"{expected_threads(launcher, situation)} threads expected")
    if situation.startswith("bound") and launcher in BINDS_APART and "contended" in flags:
        faults.append("ranks on cores of their own are called contended")
    if situation.startswith("quota") and any(record["environment"].get("limits", {}).get("cpu_quota_cores") != 1.5 for record in records):
        faults.append("the quota is not in the record")
    if "\033" in job.said():  # Open MPI gives ranks a terminal as standard output
        faults.append("escape sequences in a file")
    return "; ".join([told, f"threads {threads}", *flags, *faults]), not faults


def pair(cluster, zbench, launcher, sizes):
    """What was wrong with two jobs at once on one host; each should measure exactly the processes that its own launcher started."""
    # The shell's own number, without the $$ that torchrun would replace.
    wrapper = ["sh", "-c", 'cut -d" " -f4 /proc/self/stat >>started; exec env "$@"', "sh"]
    jobs = [Job(cluster, launcher, words_of(cluster, zbench, "allreduce", False), n, 1, wrapper=wrapper) for n in sizes]
    codes = [job.wait(120) for job in jobs]
    for job, size in zip(jobs, sizes):
        started = [int(number) for path in job.folder.glob("started") for number in sorted(path.read_text().split(), key=int)]
        table = sorted(int(number) for number in re.findall(r"^#  Rank .* Pid +(\d+)", job.said(), re.M))
        if started != table or len(table) != size:
            return f"started {started}, measured {table}, exit {codes}: {last_line(job.said())}"
    return "" if codes == [[0], [0]] else f"exit {codes}"


def quota_folder(cluster):
    """A control group that may use 1.5 cores."""
    is_v1 = pathlib.Path("/sys/fs/cgroup/cpu").is_dir()
    parent = pathlib.Path("/sys/fs/cgroup/cpu" if is_v1 else "/sys/fs/cgroup")
    folder = parent / cluster.name
    try:
        folder.mkdir()
        cluster.stack.callback(folder.rmdir)
        if not is_v1:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        (folder / ("cpu.cfs_quota_us" if is_v1 else "cpu.max")).write_text("150000" if is_v1 else "150000 100000")
    except OSError as error:
        sys.exit(f"no control group with a quota of processor time can be made ({error}): choose other --situations")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zbench", default="target/release/zbench", type=lambda path: pathlib.Path(path).resolve())
    for name, choices in [("--launchers", LAUNCHERS), ("--commands", COMMANDS), ("--situations", SITUATIONS)]:
        parser.add_argument(name, type=lambda text: text.split(",") if text else [], default=choices)
    parser.add_argument("--pairs", type=int, default=20)
    given = parser.parse_args()
    if not PathFinder.find_spec("accelerate", [os.environ.get("ZBENCH_TORCH", ""), *sys.path]) and "accelerate" in given.launchers:
        print("accelerate is not installed, and is left out", file=sys.stderr)
        given.launchers.remove("accelerate")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bad = 0
    with Cluster() as cluster:
        quota = quota_folder(cluster) if any(word.startswith("quota") for word in given.situations) else None
        print("| launcher | command |", " | ".join(given.situations), "|\n| --- | --- |", " --- |" * len(given.situations))
        for launcher, command in [(launcher, command) for launcher in given.launchers for command in given.commands]:
            cells = [cell(cluster, given.zbench, launcher, command, situation, quota) for situation in given.situations]
            bad += sum(not fine for _, fine in cells)
            print(f"| {launcher} | {command} |", " | ".join(text if fine else f"**{text}**" for text, fine in cells), "|", flush=True)
        for launcher in [launcher for launcher in given.launchers if given.pairs and launcher not in ON_TWO_HOSTS]:
            for sizes in [(2, 2), (2, 3)]:
                if launcher == "accelerate" and max(sizes) > len(os.sched_getaffinity(0)):
                    print("- accelerate has mpirun bind each rank to cores of its own, so this machine has too few for", sizes)
                    continue
                faults = [fault for fault in (pair(cluster, given.zbench, launcher, sizes) for _ in range(given.pairs)) if fault]
                bad += len(faults)
                print(f"- {launcher}, two jobs at once of {sizes} ranks: {len(faults)} of {given.pairs} wrong", *faults[:2], sep="; ", flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
