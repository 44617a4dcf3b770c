"""Gathers what criterion measured since a file was made: medians and their intervals, with machine, commit and compiler.

bench_results.py CRITERION-FOLDER MARKER [FILE]
"""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def machine():
    cpu = None
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {"cpu": cpu or platform.machine(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def measured(folder, since):
    """Every benchmark whose newest estimate is younger than `since`, by its full name."""
    found = {}
    for estimates in sorted(folder.glob("**/new/estimates.json")):
        if estimates.stat().st_mtime < since:
            continue
        about = json.loads((estimates.parent / "benchmark.json").read_text())
        median = json.loads(estimates.read_text())["median"]
        interval = median["confidence_interval"]
        row = {"median_ns": round(median["point_estimate"], 1),
               "interval_ns": [round(interval["lower_bound"], 1), round(interval["upper_bound"], 1)]}
        for kind, count in (about.get("throughput") or {}).items():
            # Elements are operations for products and attention, tokens for a step.
            row[f"{kind.lower()}_per_second"] = round(count / median["point_estimate"] * 1e9, 1)
        found[about["full_id"]] = row
    return found


def main():
    folder, marker = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows = measured(folder, marker.stat().st_mtime)
    if not rows:
        sys.exit("ci/bench: nothing was measured; does the filter name a benchmark?")
    commit = said("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    if said("git", "status", "--porcelain"):
        commit += "-changed"
    about = machine()
    result = {"machine": about, "commit": commit, "rustc": said("rustc", "--version"),
              "command": os.environ.get("BENCH_COMMAND"), "load_before": os.environ.get("BENCH_LOAD"),
              "date": time.strftime("%Y-%m-%d"), "benchmarks": rows}
    name = re.sub(r"[^a-z0-9]+", "-", f"{about['cpu']} {about['cores']} cores".lower()).strip("-")
    out = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3] else pathlib.Path(f"ci/bench-results/{name}-{commit}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{out}: {len(rows)} medians")


if __name__ == "__main__":
    main()
