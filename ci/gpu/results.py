"""What ci/gpu-check hands back: an archive, a table and a file of facts, replaced as wholes."""

import gzip
import io
import json
import pathlib
import statistics
import tarfile
import tempfile

ARCHIVE, TABLE, FACTS = "results.tar.gz", "table.md", "facts.json"
# A file that is handed back must stay below 16 MiB.
LARGEST_ARCHIVE = 15 << 20
# Of a longer log its beginning and its end are kept.
LOG = (256 << 10, 768 << 10)
LARGEST_TEXT = 4 << 20


def replace(path, content):
    """Writes a file so that at any moment the old one or the new one is there."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(content)
    aside.replace(path)


def said(log):
    """The line of a log that tells most: why cells were skipped, what went wrong, else the last words."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    for sign in ("skipped: ", "panicked at", "error: ", "Error: "):
        for number, line in enumerate(lines):
            if sign in line:
                # What a test says stands in the line below the place.
                more = lines[number + 1] if sign == "panicked at" and number + 1 < len(lines) else ""
                return f"{line} {more}".strip()[:300]
    return (lines or [""])[-1][:300]


def shortened(content):
    if len(content) <= sum(LOG):
        return content
    left = f"\n... {len(content) - sum(LOG)} bytes are left out ...\n".encode()
    return content[: LOG[0]] + left + content[-LOG[1] :]


def packed(files):
    """A compressed archive of (name, content)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as squeezed:
        with tarfile.open(fileobj=squeezed, mode="w") as archive:
            for name, content in files:
                about = tarfile.TarInfo(f"results/{name}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    return buffer.getvalue()


def write(out, state, facts):
    """All three files, of what the folder `state` has now."""
    files = []
    for path in sorted(state.rglob("*")):
        if path.is_file() and not path.name.endswith(".part") and ".lock" not in path.name:
            content = path.read_bytes()
            files.append((str(path.relative_to(state)), shortened(content) if path.suffix == ".log" else content))
    text = table(state, facts["parts"]).encode()[:LARGEST_TEXT]
    # The largest go first where all of them are too much; facts.json names them.
    facts["left_out"] = []
    while True:
        about = json.dumps(facts, indent=1).encode()
        archive = packed([*files, (TABLE, text), (FACTS, about)])
        if len(archive) <= LARGEST_ARCHIVE or not files:
            break
        largest = max(files, key=lambda file: len(file[1]))
        files.remove(largest)
        facts["left_out"].append(largest[0])
    replace(out / ARCHIVE, archive)
    replace(out / TABLE, text)
    replace(out / FACTS, about)


def records(folder):
    for path in sorted((folder / "notebook").glob("**/*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # a line that was cut off
            if isinstance(record, dict) and isinstance(record.get("cell"), dict):
                yield record


def measured(folder):
    """By what was measured: unit, values of all trials, flags."""
    found = {}
    for record in records(folder):
        cell, flags = record["cell"], record.get("validity") or []
        outcome = record.get("outcome") or {}
        if outcome.get("status") not in ("ok", "measured", None):
            label = f"{record.get('name', '?')} {record.get('label', '')}".strip()
            found.setdefault((label, outcome.get("reason", "")), ("", [], set()))
            continue
        for timing in (record.get("timings") or []) + (record.get("extra") or {}).get("timings", []):
            label = " ".join(str(timing.get(key, "")) for key in ("kernel", "pass")).strip()
            shape = json.dumps(cell.get("gemm") or cell.get("attention") or {}, sort_keys=True)
            add(found, f"{label} {shape}", "TFLOP/s", timing.get("gflops", 0) / 1e3, flags)
        metrics = record.get("metrics") or {}
        named = [("tokens_per_second", "tokens/s"), ("mfu", "of data sheet"), ("peak_memory_bytes", "bytes")]
        if cell.get("suite") == "collectives":
            # Of the largest size; the record has all of them.
            named = [(f"{cell.get('collective')}_busbw_gb_s", "GB/s"), ("wrong_elements", "elements")]
        for name, unit in named:
            value = metrics.get(name)
            value = value.get("value") if isinstance(value, dict) else value
            if isinstance(value, (int, float)):
                label = " ".join(filter(None, [record.get("name", "?"), record.get("label"), name]))
                add(found, label, unit, value, flags)
    return found


def add(found, label, unit, value, flags):
    _, values, seen = found.setdefault((label, unit), (unit, [], set()))
    values.append(value)
    seen.update(map(str, flags))


def cells(*values):
    return "| " + " | ".join(str(value).replace("|", "/").replace("\n", " ") for value in values) + " |"


def table(folder, parts):
    """Every part with its outcome, then what was measured beside PyTorch's figures."""
    lines = ["| part | outcome | s | said |", "| --- | --- | --- | --- |"]
    lines += [cells(row["part"], row["outcome"], row["seconds"], row["said"]) for row in parts]
    found = measured(folder)
    if found:
        lines += ["", "| measured | median | least to most | unit | flags |", "| --- | --- | --- | --- | --- |"]
    for (label, _), (unit, values, flags) in found.items():
        if values:
            spread = f"{min(values):.4g} to {max(values):.4g}"
            lines.append(cells(label, f"{statistics.median(values):.4g}", spread, unit, ", ".join(sorted(flags))))
    for (label, reason), (unit, values, _) in found.items():
        if not values:
            lines.append(cells(label, "not measured", "", "", reason))
    yardstick = folder / "yardstick.json"
    if yardstick.is_file():
        lines += ["", "| PyTorch, same GPU | median | unit |", "| --- | --- | --- |"]
        for row in json.loads(yardstick.read_text())["rows"]:
            lines.append(cells(row["what"], f"{row['median']:.4g}" if row["samples"] else "not measured", row["unit"]))
    return "\n".join(lines) + "\n"


def table_of_archive(archive):
    """The same of a results.tar.gz."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as packed_files:
        packed_files.extractall(folder)
        folder = pathlib.Path(folder) / "results"
        return table(folder, json.loads((folder / FACTS).read_text())["parts"])
