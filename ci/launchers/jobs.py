"""Commands that start ranks under each launcher, and one such launch: its processes, its output, its records."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from cluster import MARK

PYTHON = sys.executable
LAUNCHERS = ["srun", "srun of two components", "sbatch", "salloc + mpirun", "salloc + Hydra", "mpirun", "Hydra", "torchrun standalone", "torchrun static",
             "torchrun c10d", "accelerate", "torchrun in srun"]
ON_TWO_HOSTS = ["srun of two components", "torchrun static", "torchrun c10d", "torchrun in srun"]
COMMANDS = ["run", "grid", "allreduce"]


def starts(launcher, command, folder, port, n, hosts, bound):
    """The commands that start `n` ranks of `command` on so many hosts, each with the host where it is typed."""
    cores, nodes = 1 if bound else 2, "n1,n2" if hosts == 2 else "n1"
    place = [f"--nodes={hosts}", f"--ntasks={n}", f"--cpus-per-task={cores}", "--overcommit", f"--nodelist={nodes}"]
    one = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}"]
    mpirun = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "core" if bound else "none", "-n", n]
    hydra = ["mpiexec.hydra", *(["-bind-to", "core"] if bound else []), "-n", n]
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--no-python", f"--nproc-per-node={n // (2 if launcher in ON_TWO_HOSTS else 1)}"]
    torchrun = [*(["taskset", "-c", "0"] if bound else []), *torchrun]
    c10d = [*torchrun, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{port}"]
    static = [*torchrun, "--nnodes=2", "--master-addr=n1", f"--master-port={port}", "--node-rank"]
    accelerate = [PYTHON, "-m", "accelerate.commands.launch", "--cpu", "--num_machines=1", f"--num_processes={n}", f"--main_process_port={port}",
                  "--no_python"]
    (folder / "hostfile").write_text(f"n1 slots={n}\n")
    in_batch = shlex.join(map(str, ["srun", *place, *command]))
    return {
        "srun": [("head", ["srun", *place, *command])],
        "srun of two components": [("head", ["srun", *one, *command, ":", *one, *command])],
        "sbatch": [("head", ["sbatch", "--wait", f"--output={folder}/job.out", *place, "--wrap", in_batch])],
        "salloc + mpirun": [("head", ["salloc", *place, *mpirun, "-x", "MASTER_ADDR=n1", *command])],
        "salloc + Hydra": [("head", ["salloc", *place, *hydra, "-genv", "MASTER_ADDR", "n1", *command])],
        "mpirun": [("n1", [*mpirun, *command])],
        "Hydra": [("n1", [*hydra, *command])],
        "torchrun standalone": [("n1", [*torchrun, "--standalone", *command])],
        "torchrun static": [(f"n{rank + 1}", [*static, rank, *command]) for rank in range(2)],
        "torchrun c10d": [(f"n{rank + 1}", [*c10d, *command]) for rank in range(2)],
        "accelerate": [("n1", [*accelerate, f"--mpirun_hostfile={folder}/hostfile", *command])],
        "torchrun in srun": [("head", ["srun", "--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={cores}", *c10d, *command])],
    }[launcher]


class Job:
    """One launch: its processes, what they print, its notebook."""

    next_port = 20000

    def __init__(self, cluster, launcher, words, n=2, hosts=2, bound=False, wrapper=()):
        self.cluster, self.launcher, self.folder = cluster, launcher, pathlib.Path(tempfile.mkdtemp(dir=cluster.folder))
        self.mark = cluster.mark + self.folder.name
        Job.next_port += 10
        command = ["env", *wrapper, f"{MARK}={self.mark}", *words, "--notebook", f"{self.folder}/nb"]
        torch = {"PYTHONPATH": os.environ["ZBENCH_TORCH"]} if "ZBENCH_TORCH" in os.environ else {}
        options = {"env": cluster.env() | torch, "cwd": self.folder, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT,
                   "start_new_session": True}
        with open(self.folder / "out", "wb") as out:
            parts = starts(launcher, command, self.folder, Job.next_port, n, hosts, bound)
            self.started = [subprocess.Popen(cluster.command(host, *part), stdout=out, **options) for host, part in parts]

    def said(self):
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("*out"))

    def records(self):
        path = self.folder / "nb/records.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self, commands):
        """Number of the process of each rank whose first argument is one of these."""
        found = {}
        for number, words, env in self.cluster.processes(self.mark):
            names = [name for name in ["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] if name in env]
            if names and words[1:2] and words[1] in commands:
                found[int(env[names[0]])] = number
        return found

    def runs(self):
        return any(job.poll() is None for job in self.started)

    def get_under_way(self):
        end = time.monotonic() + 60
        while len(self.processes(["__rank"])) < 2 and "(us)" not in self.said():
            if time.monotonic() > end or not self.runs():
                return False
            time.sleep(0.2)
        time.sleep(2)
        return self.runs() and len(self.processes(COMMANDS)) == 2

    def stop(self):
        if self.launcher == "sbatch":  # it only waits
            self.cluster.output("head", "scancel", "--user=root")
        for job in self.started:  # accelerate alone does not pass the signal on
            os.killpg(job.pid, signal.SIGTERM) if self.launcher == "accelerate" else job.terminate()

    def wait(self, seconds):
        """Exit codes, when nothing runs any more; what runs after so many seconds is killed."""
        end = time.monotonic() + seconds
        while self.runs() or self.cluster.processes(self.mark):
            if time.monotonic() > end:
                for number, _, _ in self.cluster.processes(self.mark):
                    os.kill(number, signal.SIGKILL)
                for job in self.started:
                    job.kill()
                return ["hung"]
            time.sleep(0.2)
        return [job.wait() for job in self.started]
