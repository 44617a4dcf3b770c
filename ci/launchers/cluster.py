"""Hosts n1 and n2 and a head on one machine, with a SLURM over them: network namespaces of names that are unique to the run, joined by
a bridge. As root, with iproute2, munge and slurm-wlm. Everything that was started is ended, by its number, with the `with` block."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time

ADDRESSES = {"head": "10.214.0.1", "n1": "10.214.0.11", "n2": "10.214.0.12"}
MARK = "ZBENCH_LAUNCHERS_RUN"
SLURM_CONF = """
ClusterName=zbench
SlurmctldHost=head(10.214.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
KillWait=5
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeAddr=10.214.0.11 CPUs=2
NodeName=n2 NodeAddr=10.214.0.12 CPUs=2
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Cluster:
    """The hosts. `slurm=False` leaves SLURM out."""

    def __init__(self, slurm=True):
        self.wants_slurm = slurm
        self.name = f"zb{os.getpid():x}"
        self.mark = self.name + "-"
        self.daemons = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=self.name, ignore_cleanup_errors=True)))
            stack.callback(self.remove_network)
            stack.callback(self.end_processes)
            self.make_network()
            if self.wants_slurm:
                self.start_slurm()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def make_network(self):
        hosts = "".join(f"{address} {host}\n" for host, address in ADDRESSES.items())
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + hosts)
        switch = self.name + "switch"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for host, address in ADDRESSES.items():
            namespace = self.name + host
            ip("netns", "add", namespace)
            ip("-n", switch, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            ip("-n", switch, "link", "set", host, "master", "bridge", "up")
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "address", "add", address + "/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")

    def remove_network(self):
        for host in ["switch", *ADDRESSES]:
            subprocess.run(["ip", "netns", "delete", self.name + host], capture_output=True)

    def start_slurm(self):
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(folder=self.folder))
        for folder in ["state", "spool.n1", "spool.n2"]:
            (self.folder / folder).mkdir()
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = [f"--{option}={self.folder}/munge.{ending}" for option, ending in options.items()]
        self.daemon("head", "munged", "--foreground", "--force", *munge)
        self.wait("munge", lambda: (self.folder / "munge.socket").exists())
        self.daemon("head", "slurmctld", "-D", "-i")
        for node in ["n1", "n2"]:
            self.daemon(node, "slurmd", "-D", "-N", node)
        self.wait("SLURM's nodes", lambda: self.output("head", "sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"])

    def daemon(self, host, *words):
        with open(self.folder / "daemons.log", "ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", *self.command(host, *words)]
            self.daemons.append(subprocess.Popen(command, env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def wait(self, what, is_there, seconds=60):
        end = time.monotonic() + seconds
        while not is_there():
            if time.monotonic() > end or any(daemon.poll() is not None for daemon in self.daemons):
                logs = [path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log"))]
                raise SystemExit(f"{what}: not ready within {seconds} s, or a daemon has ended\n" + "\n".join(logs))
            time.sleep(0.1)

    def env(self):
        """The environment of commands: of no other launcher, and of a terminal with colours."""
        begins = ("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "ZBENCH_TOKEN", "NO_COLOR")
        env = {name: value for name, value in os.environ.items() if not name.startswith(begins)}
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return env | as_root | {"SLURM_CONF": f"{self.folder}/slurm.conf", "TERM": "xterm", MARK: self.mark}

    def command(self, host, *words):
        """The words of a command that runs `words` on a host: its network, its name, its /etc/hosts."""
        enter = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        inside = ["unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", enter, host, f"{self.folder}/hosts"]
        return ["nsenter", f"--net=/run/netns/{self.name}{host}", *inside, *map(str, words)]

    def output(self, host, *words):
        return subprocess.run(self.command(host, *words), env=self.env(), capture_output=True, text=True).stdout

    def processes(self, mark=None):
        """Number, words and variables of every process whose mark begins so; without one, of all that the cluster has started."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if any(pair.startswith(f"{MARK}={mark or self.mark}") for pair in variables):
                    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    found.append((int(folder.name), words, dict(pair.split("=", 1) for pair in variables if "=" in pair)))
        return found

    def end_processes(self):
        own = {daemon.pid for daemon in self.daemons}
        for number, _, _ in self.processes():
            if number not in own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
