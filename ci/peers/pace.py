#!/usr/bin/env python3
"""PyTorch and zbench in turn on this machine: training steps, attention, matrix products. See README.md, "Pace".

    ci/peers/pace.py --python venv/bin/python --out results/ [--only REGEX] [--rounds 3] [--quick] [--list]
"""

import argparse
import ctypes.util
import glob
import json
import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time

import models
import results

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORES = len(os.sched_getaffinity(0))
TICK = os.sysconf("SC_CLK_TCK")
# Cores that others may keep busy before a round counts as spoiled.
TOLERATED = 0.1
# Keeps what was freed, on huge pages.
JEMALLOC = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,metadata_thp:auto"

DIFFERENCES = [
    "Tokens: uniform random ids for PyTorch, zbench's synthetic tokens for zbench; weights are drawn by each. Shapes are equal.",
    "bf16: PyTorch keeps bf16 weights and gradients and an f32 copy of the weights (fsdp and hsdp: f32 shards, gathered "
    "in bf16, gradients reduced in f32); zbench's bf16-mixed keeps f32 weights, computes in bf16 and accumulates and reduces gradients in f32.",
    "PyTorch's loss is computed on all logits at once in f32, zbench's in chunks of tokens.",
    "Operations: the same buffers in every call. Forward + backward is one call of autograd in PyTorch, and the sum of two "
    "kernels' times in zbench. zbench packs inside the timing.",
    "Ranks: gloo over loopback between processes for PyTorch, threads of one process for zbench.",
    "Both: AdamW (lr 1e-4, betas 0.9 and 0.999, weight decay 0.01), the gradient's norm clipped, no activation "
    "checkpointing, flash attention.",
    "Memory: the highest resident size; PyTorch's is counted from its third step, with its libraries (their size is stated "
    "in the JSON as imported_bytes); zbench's is that of the whole process from its start, data and weights made included.",
]


def cases(quick):
    """Rows of the comparison: name, unit, goal, threads in all, and how each side is started and read."""
    steps = [("32m", "f32", "ddp", 1, 2, "1,700"), ("32m", "bf16", "ddp", 1, 2, "8,000"),
             ("134m", "bf16", "ddp", 1, 2, "2,000"), ("32m", "bf16", "ddp", 2, 1, "7,500"),
             ("32m", "bf16", "fsdp", 2, 1, "7,200"), ("32m", "bf16", "hsdp", 4, 1, "6,500"),
             ("134m", "bf16", "ddp", 2, 1, "1,900"), ("134m", "bf16", "fsdp", 2, 1, "1,800")]
    if quick:
        steps = [("tiny", "f32", "ddp", 1, 2, ""), ("tiny", "bf16", "fsdp", 2, 1, "")]
    for model, dtype, strategy, ranks, threads, goal in steps:
        yield Step(model, dtype, strategy, ranks, threads, "tok/s", goal)
    yield Step("tiny" if quick else "32m", "bf16", "ddp", 1, 2, "MiB", "half of PyTorch's")
    seq, size = (512, 512) if quick else (4096, 2048)
    for width, backward, goal in [(64, False, "1.6"), (64, True, "1.1"), (128, False, "2.2"), (128, True, "1.5")]:
        yield Attention(seq, width, backward, "" if quick else goal)
    for layout in ("nn", "tn"):
        yield Gemm(size, layout, "" if quick else "3.5")


class Step:
    def __init__(self, model, dtype, strategy, ranks, threads, unit, goal):
        self.what = (model, dtype, strategy, ranks, threads)
        self.unit, self.goal, self.busy = unit, goal, ranks * threads
        spread = f"{ranks} x {threads} threads" + (f" {strategy}" if ranks > 1 else "")
        self.name = f"step {model} {dtype}, {spread}" + (", peak RSS" if unit == "MiB" else "")

    def torch(self, args):
        model, dtype, strategy, ranks, threads = self.what
        launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return [args.python, *launch, HERE / "torch_step.py", "--model", model, "--dtype", dtype, "--strategy", strategy,
                "--threads", threads, "--steps", args.steps, "--clip", args.clip, *(["--compile"] if args.compile else [])]

    def zbench(self, args, folder):
        model, dtype, strategy, ranks, threads = self.what
        file = pathlib.Path(folder) / "step.toml"
        file.write_text(models.toml(model, dtype, strategy, ranks, threads, args.steps, 2, args.clip))
        return [args.zbench, "--notebook", pathlib.Path(folder) / "notebook", "run", file, "--format", "json", "--quiet"]

    def value(self, read):
        return read["peak_rss_bytes"] / 2**20 if self.unit == "MiB" else read["tokens_per_second"]

    def read_torch(self, text):
        return results.torch_line(text)

    def read_zbench(self, text):
        return results.zbench_step(text)


class Op:
    unit, busy = "TFLOP/s", 2

    def read_torch(self, text):
        return results.torch_line(text)

    def read_zbench(self, text):
        seconds = sum(results.zbench_seconds(text, wanted) for wanted in self.wanted)
        return dict(tflops=self.flops / seconds / 1e12)

    def value(self, read):
        return read["tflops"]


class Attention(Op):
    def __init__(self, seq, width, backward, goal):
        self.seq, self.width, self.backward, self.goal = seq, width, backward, goal
        pas = "forward + backward" if backward else "forward"
        self.name = f"flash attention bf16, 8 heads of {width}, T {seq}, {pas}"
        self.flops = 2 * 8 * seq**2 * width * (3.5 if backward else 1)
        self.wanted = [{"kernel": "flash", "pass": one} for one in ("forward", "backward")[:2 if backward else 1]]

    def torch(self, args):
        return [args.python, HERE / "torch_ops.py", "attention", "--seq", self.seq, "--head-dim", self.width, "--threads", 2,
                "--seconds", args.seconds, *(["--backward"] if self.backward else [])]

    def zbench(self, args, folder):
        return [args.zbench, "--notebook", pathlib.Path(folder) / "notebook", "attention", "--seq-len", self.seq, "--heads", 8,
                "--head-dim", self.width, "--dtype", "bf16", "--kernel", "flash", "--pass", "both" if self.backward else "forward",
                "--threads", 2, "--seconds", args.seconds, "--format", "json"]


class Gemm(Op):
    def __init__(self, size, layout, goal):
        self.size, self.layout, self.goal = size, layout, goal
        self.name, self.flops = f"GEMM bf16 {size}^3 {layout.upper()}", 2 * size**3
        self.wanted = [{"layout": layout, "dtype": "bf16"}]

    def torch(self, args):
        shape = "x".join([str(self.size)] * 3)
        return [args.python, HERE / "torch_ops.py", "gemm", "--shape", shape, "--layout", self.layout, "--threads", 2,
                "--seconds", args.seconds]

    def zbench(self, args, folder):
        shape = "x".join([str(self.size)] * 3)
        return [args.zbench, "--notebook", pathlib.Path(folder) / "notebook", "gemm", "--shape", shape, "--dtype", "bf16",
                "--layout", self.layout, "--buffers", "hot", "--threads", 2, "--seconds", args.seconds, "--format", "json"]


def busy_seconds():
    """Core seconds that this machine has worked for anybody."""
    with open("/proc/stat") as lines:
        user, nice, system, _idle, _io, irq, softirq, steal = map(int, lines.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for_idle_cores(longest):
    """Whether nobody works on this machine, waiting so many seconds for it."""
    end = time.monotonic() + longest
    while True:
        before, begin = busy_seconds(), time.monotonic()
        time.sleep(1)
        if (busy_seconds() - before) / (time.monotonic() - begin) <= TOLERATED:
            return True
        if time.monotonic() >= end:
            return False


def run_once(command, environment, timeout, cores_used):
    """Runs a program; its output, and whether somebody else worked at the same time."""
    busy, own, begin = busy_seconds(), own_seconds(), time.monotonic()
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment,
                              timeout=timeout)
    except subprocess.TimeoutExpired:
        return dict(error=f"took longer than {timeout} s")
    except OSError as error:
        return dict(error=str(error))
    wall = time.monotonic() - begin
    foreign = max(0.0, (busy_seconds() - busy - (own_seconds() - own)) / wall)
    run = dict(wall_s=wall, foreign_cores=foreign, spoiled=foreign > TOLERATED + max(0, CORES - cores_used))
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return dict(run, error=f"exit {done.returncode}: {last[:300]}")
    return dict(run, output=done.stdout)


def measure(case, side, args):
    """One round of one side, repeated where it was disturbed; the last attempt's result, with all that were made counted."""
    attempts = 0
    while True:
        attempts += 1
        idle = wait_for_idle_cores(args.wait)
        with tempfile.TemporaryDirectory() as folder:
            command = case.torch(args) if side == "torch" else case.zbench(args, folder)
            threads = str(case.what[4] if isinstance(case, Step) else case.busy)
            environment = dict(os.environ, OMP_NUM_THREADS=threads)
            if side == "torch" and args.jemalloc:
                environment.update(LD_PRELOAD=args.jemalloc, MALLOC_CONF=JEMALLOC)
            run = run_once(command, environment, args.timeout, case.busy)
        run.update(idle_before=idle, idle_after=wait_for_idle_cores(0), attempts=attempts)
        if "output" in run:
            try:
                run["read"] = (case.read_torch if side == "torch" else case.read_zbench)(run.pop("output"))
                run["value"] = case.value(run["read"])
            except (results.Unreadable, KeyError, TypeError) as error:
                run["error"] = f"{type(error).__name__}: {error}"
        if "error" in run or not run["spoiled"] or attempts >= args.attempts:
            return run


def machine(args):
    def said(*command):
        try:
            return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT).stdout.strip()
        except OSError as error:
            return str(error)

    with open("/proc/cpuinfo") as lines:
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": cpu, "cores": CORES, "kernel": platform.release(),
            "PyTorch": said(args.python, "-c", "import torch; print(torch.__version__)"),
            "zbench": said(args.zbench, "--version"), "commit": said("git", "rev-parse", "--short", "HEAD"),
            "allocator of PyTorch": args.jemalloc or "the system's: no libjemalloc.so.2 was found, which is mostly faster",
            "command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d")}


def jemalloc():
    """The library, where it is installed."""
    places = glob.glob("/usr/lib/*/libjemalloc.so.2") + glob.glob("/usr/lib*/libjemalloc.so.2")
    return places[0] if places else ctypes.util.find_library("jemalloc")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("PEERS_PYTHON", sys.executable), help="one that has torch")
    parser.add_argument("--zbench", default=os.environ.get("ZBENCH", str(ROOT / "target/release/zbench")))
    parser.add_argument("--out", type=pathlib.Path, help="folder of pace.json and pace.md")
    parser.add_argument("--only", default="", help="rows whose name this regular expression finds")
    parser.add_argument("--quick", action="store_true", help="small shapes and one round: whether everything works")
    parser.add_argument("--list", action="store_true", help="names of the rows, and nothing else")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=3, help="runs of one round, while others disturb it")
    parser.add_argument("--wait", type=float, default=60, help="longest wait for idle cores before a run, seconds")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2, help="of an operation")
    parser.add_argument("--clip", type=float, default=1.0, help="the gradient's norm; 0 = no clipping")
    parser.add_argument("--compile", action="store_true", help="PyTorch's steps through torch.compile")
    args = parser.parse_args()
    args.jemalloc = jemalloc()
    if args.quick:
        args.rounds, args.attempts, args.wait, args.steps, args.seconds = 1, 1, 0, 2, 0.2
    return args


def main():
    args = arguments()
    rows = [case for case in cases(args.quick) if re.search(args.only, case.name)]
    if args.list or not rows:
        print("\n".join(case.name for case in rows or cases(args.quick)))
        sys.exit(None if args.list else f"no row's name has {args.only!r}; these are all")
    result = dict(machine=machine(args), differences=DIFFERENCES, rows=[])
    for case in rows:
        runs = dict(torch=[], zbench=[])
        for number in range(args.rounds):
            # In turn, and who begins changes: what else the machine does falls on both alike.
            for name in ("torch", "zbench") if number % 2 == 0 else ("zbench", "torch"):
                run = measure(case, name, args)
                runs[name].append(run)
                said = run.get("error") or f"{run['value']:,.2f} {case.unit}"
                note = f" (others: {run['foreign_cores']:.2f} cores)" if run.get("spoiled") else ""
                print(f"{case.name}: round {number + 1}, {name}: {said}{note}", file=sys.stderr, flush=True)
        row = dict(name=case.name, unit=case.unit, goal=case.goal, runs=runs)
        row.update({name: results.side(of) for name, of in runs.items()})
        result["rows"].append(dict(row, ratio=results.ratio(row)))
    table = results.markdown(result)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "pace.json").write_text(json.dumps(result, indent=1) + "\n")
        (args.out / "pace.md").write_text(table)
    print(table)
    if all(row["ratio"] is None for row in result["rows"]):
        sys.exit("no row has both sides")


if __name__ == "__main__":
    main()
