#!/usr/bin/env python3
"""The table of a run of ci/gpu-check: every part with its outcome, then what was measured beside PyTorch's figures.

Usage: table.py FOLDER. Reads FOLDER/*.status, FOLDER/notebook/*.jsonl and FOLDER/yardstick.json, whichever are there.
"""

import json
import pathlib
import statistics
import sys

OUTCOMES = {"0": "passed", "3": "NOT RUN", "124": "FAILED: over its time"}


def last_line(path):
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    skipped = [line for line in lines if "skipped: " in line]
    return (skipped or lines[-1:] or [""])[0][:160].replace("|", "/")


def parts(folder):
    rows = []
    for path in sorted(folder.glob("*.status")):
        status = path.read_text().split(" ")[0]
        outcome = OUTCOMES.get(status, f"FAILED with {status}")
        said = "" if status == "0" else last_line(path.with_suffix(".log"))
        rows.append((path.stem, outcome, said))
    return rows


def records(folder):
    for path in sorted((folder / "notebook").glob("**/*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # a line that was cut off
            if isinstance(record, dict) and "cell" in record:
                yield record


def measured(folder):
    """By what was measured: unit, values of all trials, flags."""
    found = {}
    for record in records(folder):
        cell, flags = record["cell"], record.get("validity", [])
        if record.get("outcome", {}).get("status") not in ("ok", "measured", None):
            found.setdefault((record.get("name", "?"), record["outcome"].get("reason", "")), ("", [], set()))
            continue
        for timing in record.get("timings", []) + record.get("extra", {}).get("timings", []):
            label = " ".join(str(timing.get(key, "")) for key in ("kernel", "pass")).strip()
            shape = json.dumps(cell.get("gemm") or cell.get("attention") or {}, sort_keys=True)
            add(found, f"{label} {shape}", "TFLOP/s", timing.get("gflops", 0) / 1e3, flags)
        metrics = record.get("metrics", {})
        named = [("tokens_per_second", "tokens/s"), ("mfu", "of data sheet"), ("peak_memory_bytes", "bytes")]
        if cell.get("suite") == "collectives":
            # Of the largest size; the record has all of them.
            named = [(f"{cell['collective']}_busbw_gb_s", "GB/s"), ("wrong_elements", "elements")]
        for name, unit in named:
            value = metrics.get(name)
            value = value.get("value") if isinstance(value, dict) else value
            if isinstance(value, (int, float)):
                label = f"{record.get('name', '?')} {record.get('label', '')} {name}".strip()
                add(found, label, unit, value, flags)
    return found


def add(found, label, unit, value, flags):
    _, values, seen = found.setdefault((label, unit), (unit, [], set()))
    values.append(value)
    seen.update(flags)


def main():
    folder = pathlib.Path(sys.argv[1])
    print("| part | outcome | said |\n| --- | --- | --- |")
    for row in parts(folder):
        print("| " + " | ".join(row) + " |")
    found = measured(folder)
    if found:
        print("\n| measured | median | least to most | unit | flags |\n| --- | --- | --- | --- | --- |")
        for (label, _), (unit, values, flags) in found.items():
            if values:
                middle, spread = statistics.median(values), f"{min(values):.4g} to {max(values):.4g}"
                print(f"| {label} | {middle:.4g} | {spread} | {unit} | {', '.join(sorted(flags))} |")
            else:
                print(f"| {label} | | | | {unit} |")
    yardstick = folder / "yardstick.json"
    if yardstick.exists():
        print("\n| PyTorch, same run | median | unit |\n| --- | --- | --- |")
        for row in json.loads(yardstick.read_text())["rows"]:
            print(f"| {row['what']} | {row['median']:.4g} | {row['unit']} |")


if __name__ == "__main__":
    main()
