"""What programs print becomes numbers, numbers become ratios, ratios a table. Nothing here runs anything."""

import json
import statistics

class Unreadable(Exception):
    """A program printed something else than was expected."""


def objects(text):
    """The JSON objects in a text: one in all, or one on a line among other lines."""
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    found = []
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def torch_line(text):
    """The line of torch_step.py or torch_ops.py."""
    for found in reversed(objects(text)):
        if "torch" in found:
            return found
    raise Unreadable("PyTorch's side printed no line of JSON")


def zbench_step(text):
    """Tokens a second and resident bytes of a training record."""
    for found in objects(text):
        if "outcome" in found and "metrics" in found:
            outcome = found["outcome"]
            if outcome.get("status") != "measured":
                raise Unreadable(f"zbench: {outcome.get('status')}: {outcome.get('reason')}")
            metrics = found["metrics"]
            return dict(tokens_per_second=metrics["tokens_per_second"], peak_rss_bytes=metrics.get("peak_rss_bytes"),
                        kernels=found.get("environment", {}).get("kernels"),
                        loss_first=metrics.get("loss_first"), loss_last=metrics.get("loss_last"))
    raise Unreadable("zbench printed no record of a training run")


def zbench_seconds(text, wanted):
    """The median time of the timing with the `wanted` values, own or its cell's, in the records of `zbench gemm` or `attention`."""
    for found in objects(text):
        outcome = found.get("outcome") or {}
        if outcome.get("status", "measured") != "measured":
            raise Unreadable(f"zbench: {outcome['status']}: {outcome.get('reason')}")
        cell = found.get("cell") or {}
        for timing in found.get("timings") or []:
            words = dict(cell.get(cell.get("suite")) or {}, **timing)
            if all(words.get(key) == value for key, value in wanted.items()) and is_number(timing.get("median_us")):
                return timing["median_us"] / 1e6
    raise Unreadable(f"zbench printed no time for {wanted}")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def side(runs):
    """Median and spread of the rounds of one program: of those that nobody disturbed, or of all where all were."""
    good = [run for run in runs if run.get("value") is not None and not run.get("spoiled")]
    used = good or [run for run in runs if run.get("value") is not None]
    if not used:
        reasons = [run.get("error") for run in runs if run.get("error")]
        return dict(median=None, error=reasons[-1] if reasons else "not run", rounds=len(runs))
    values = sorted(run["value"] for run in used)
    median = statistics.median(values)
    return dict(median=median, spread=(values[-1] - values[0]) / median if median else 0.0, rounds=len(used),
                spoiled=not good, values=values)


def ratio(row):
    """zbench over PyTorch; None where one is missing."""
    ours, theirs = row["zbench"]["median"], row["torch"]["median"]
    return ours / theirs if ours and theirs else None


def shown(one, unit):
    if one["median"] is None:
        return f"none: {one['error']}"
    digits = 2 if one["median"] < 100 else 0
    mark = " ~" if one["spoiled"] else ""
    return f"{one['median']:,.{digits}f} {unit} ± {50 * one['spread']:.0f} %{mark}"


def markdown(result):
    """The table of a result, with what must be known to read it."""
    lines = ["| work | PyTorch | zbench | zbench / PyTorch | issue's goal |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in result["rows"]:
        of = ratio(row)
        lines.append(f"| {row['name']} | {shown(row['torch'], row['unit'])} | {shown(row['zbench'], row['unit'])} | "
                     f"{'none' if of is None else f'{of:.2f}'} | {row.get('goal') or ''} |")
    lines += ["", "± is half of the range of the rounds. ~: every round had company on the cores. "
              "For bytes less is better, for all else more.", ""]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    lines += ["", "Not the same on both sides:", ""]
    lines += [f"- {line}" for line in result["differences"]]
    return "\n".join(lines) + "\n"
