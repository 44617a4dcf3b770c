#!/usr/bin/env python3
"""Times builds of the bench `passes` in turn and prints a table: median and range of each line, the last build's rate, the
ratio of the first to the last (median over turns), and the last's share of the triad that was measured in the same turn.

    turns.py TURNS FILTER BINARY...     FILTER is criterion's; '' for all. The last binary is the one that is judged.
"""

import re
import statistics
import subprocess
import sys

MICROSECONDS = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}
BYTES = {"B/s": 1, "KiB/s": 2**10, "MiB/s": 2**20, "GiB/s": 2**30}
SHORT = "--bench --noplot --warm-up-time 0.02 --measurement-time 0.06 --sample-size 10 --nresamples 1000".split()


def run(binary, wanted):
    """Lines' times in microseconds and bytes, and the triad in bytes a second."""
    text = subprocess.run([binary, *SHORT, wanted], capture_output=True, text=True, check=True).stdout
    times, sizes, triad, name = {}, {}, float("nan"), None
    for line in text.splitlines():
        if found := re.match(r"passes/triad ([\d.]+) GB/s", line):
            triad = float(found[1]) * 1e9
            continue
        if found := re.match(r"passes/(.+?)(\s+time:|$)", line):
            name = found[1].strip()
        if found := re.search(r"time:\s+\[\S+ \S+ ([\d.]+) (ns|µs|ms|s) ", line):
            times[name] = float(found[1]) * MICROSECONDS[found[2]]
        if found := re.search(r"thrpt:\s+\[\S+ \S+ ([\d.]+) (\S+B\/s) ", line):
            sizes[name] = float(found[1]) * BYTES[found[2]] * times[name] / 1e6
    return times, sizes, triad


def main():
    turns, wanted, binaries = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    seen = [[run(binary, wanted) for binary in binaries] for _ in range(turns)]
    median = statistics.median
    print("triads, GB/s:", " ".join(f"{turn[-1][2] / 1e9:.0f}" for turn in seen))
    columns = " | ".join(f"{binary.split('/')[-1]}, us" for binary in binaries)
    print(f"| pass | {columns} | GB/s | of triad | first / last |\n| --- |{' --- |' * (len(binaries) + 3)}")
    for name, size in seen[0][-1][1].items():
        cells = []
        for i in range(len(binaries)):
            all_times = [turn[i][0][name] for turn in seen if name in turn[i][0]]
            cells.append(f"{median(all_times):.0f} ({min(all_times):.0f} to {max(all_times):.0f})" if all_times else "")
        rate = size / median(turn[-1][0][name] for turn in seen) * 1e6
        share = median(size / turn[-1][0][name] * 1e6 / turn[-1][2] for turn in seen)
        ratios = [turn[0][0][name] / turn[-1][0][name] for turn in seen if name in turn[0][0]]
        gain = f"{median(ratios):.2f}" if ratios else ""
        print(f"| {name} | {' | '.join(cells)} | {rate / 1e9:.1f} | {share:.0%} | {gain} |")


main()
