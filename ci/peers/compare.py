#!/usr/bin/env python3
"""zbench, gloo and Open MPI side by side on this machine. See README.md.

    ci/peers/compare.py [--ranks 2,4] [--collectives all_reduce,...] [--sizes 1024,...] [--rounds 3] > table.md

A peer that is not installed is left out, and said to be.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ZBENCH = pathlib.Path(os.environ.get("ZBENCH", ROOT / "target/release/zbench"))
# busbw over algbw, as nccl-tests defines it.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
# The side of a row that the peers measure: in place where they can.
SIDE = {"all_reduce": "in_place", "all_gather": "in_place", "broadcast": "in_place",
        "reduce_scatter": "out_of_place", "all_to_all": "out_of_place"}


def iterations(size):
    """Enough for a median, and no more than seconds a size."""
    return 200 if size <= 1 << 16 else 50 if size <= 1 << 22 else 9


def run(command, **options):
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def zbench(backend):
    def measure(collective, ranks, size):
        with tempfile.TemporaryDirectory() as notebook:
            text = run([ZBENCH, "--notebook", notebook, "--format", "json", "allreduce",
                        "--backend", backend, "--ranks", ranks, "--collective", collective, "-b", size, "-e", size,
                        "-n", iterations(size), "-w", 2, "-I", 1, "-c", 1, "--buffers", "hot"])
        row = json.loads(text)["results"][0]
        side = row[SIDE[collective]]
        if side["nwrong"] != 0:
            sys.exit(f"zbench {backend} {collective} {size}: {side['nwrong']} wrong elements")
        return side["time"]
    return measure


def open_mpi(program):
    def measure(collective, ranks, size):
        text = run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, program, collective,
                    iterations(size), size])
        return json.loads(text.splitlines()[-1])["us"]
    return measure


def gloo(python):
    def measure(collective, ranks, size):
        text = run([python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                    HERE / "gloo_peer.py", collective, iterations(size), size])
        return json.loads(text.splitlines()[-1])["us"]
    return measure


def peers(folder):
    found = {f"zbench {backend}": zbench(backend) for backend in ["local", "shm", "tcp"]}
    if shutil.which("mpicc") and shutil.which("mpirun"):
        program = pathlib.Path(folder) / "mpi_peer"
        run(["mpicc", "-O3", HERE / "mpi_peer.c", "-o", program])
        found["Open MPI"] = open_mpi(program)
    else:
        print("Open MPI is left out: mpicc or mpirun is missing", file=sys.stderr)
    python = os.environ.get("PEERS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True).returncode == 0:
        found["gloo"] = gloo(python)
    else:
        print(f"gloo is left out: {python} has no torch (set PEERS_PYTHON)", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--collectives", default=",".join(FACTORS))
    parser.add_argument("--sizes", default="1024,1048576,67108864,268435456")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not ZBENCH.exists():
        sys.exit(f"{ZBENCH} is not there; build it first: cargo build --release")
    with tempfile.TemporaryDirectory() as folder:
        found = peers(folder)
        print("| collective | ranks | bytes | " + " | ".join(f"{name}: us (GB/s)" for name in found) + " |")
        print("| --- | ---: | ---: |" + " ---: |" * len(found))
        for collective in args.collectives.split(","):
            for ranks in map(int, args.ranks.split(",")):
                for size in map(int, args.sizes.split(",")):
                    # Round robin, so that what else the machine does falls on all alike; the median of the rounds.
                    times = {name: [] for name in found}
                    for _ in range(args.rounds):
                        for name, measure in found.items():
                            times[name].append(measure(collective, ranks, size))
                    cells = []
                    for name in found:
                        us = statistics.median(times[name])
                        busbw = size / us / 1e3 * FACTORS[collective](ranks)
                        cells.append(f"{us:.1f} ({busbw:.2f})")
                    print(f"| {collective} | {ranks} | {size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
