"""python3 -m unittest discover -s ci/peers: the parser and the ratios, on what the programs once printed. Needs no torch."""

import json
import pathlib
import tomllib
import unittest

import models
import pace
import results

RECORDED = pathlib.Path(__file__).resolve().parent / "recorded"


def recorded(name):
    return (RECORDED / name).read_text()


class Parsing(unittest.TestCase):
    def test_a_training_record(self):
        record = json.loads(recorded("zbench-step.json"))
        read = results.zbench_step(recorded("zbench-step.json"))
        tokens = sum(step["tokens"] for step in record["steps"] if step["timed"])
        seconds = sum(step["ms"] for step in record["steps"] if step["timed"]) / 1e3
        self.assertAlmostEqual(read["tokens_per_second"] / (tokens / seconds), 1, places=6)
        self.assertEqual(read["peak_rss_bytes"], record["metrics"]["peak_rss_bytes"])
        self.assertTrue(read["kernels"].startswith("cpu "))

    def test_a_cell_that_did_not_run_is_no_number(self):
        with self.assertRaisesRegex(results.Unreadable, "skipped: hardware.pin"):
            results.zbench_step(recorded("zbench-skipped.json"))
        for nothing in ("", "error: no such command\n", '{"schema": 1}'):
            with self.assertRaises(results.Unreadable):
                results.zbench_step(nothing)

    def test_torchs_line_among_what_its_launcher_says(self):
        read = results.torch_line(recorded("torch-step.txt"))
        self.assertEqual((read["ranks"], read["strategy"]), (2, "fsdp"))
        tokens = 2 * models.MODELS["tiny"]["seq"] * models.MODELS["tiny"]["micro_batch"]
        middle = sum(read["step_s"]) / 2
        self.assertAlmostEqual(read["tokens_per_second"], tokens / middle, places=6)
        with self.assertRaises(results.Unreadable):
            results.torch_line("Traceback (most recent call last):\n")

    def test_the_row_that_was_asked_for(self):
        rows = {"results": [{"layout": "nt", "dtype": "bf16", "median_ms": 4.0},
                            {"layout": "nn", "dtype": "bf16", "times": {"median_us": 500.0}}]}
        lines = "\n".join(["measuring 2 cells", *(json.dumps(row) for row in rows["results"])])
        for text in (json.dumps(rows), lines):
            self.assertAlmostEqual(results.zbench_seconds(text, {"layout": "nt", "dtype": "bf16"}), 4e-3)
            self.assertAlmostEqual(results.zbench_seconds(text, {"layout": "nn"}), 5e-4)
            with self.assertRaises(results.Unreadable):
                results.zbench_seconds(text, {"layout": "tn"})

    def test_a_record_of_the_suites(self):
        gemm = {"outcome": {"status": "measured"}, "metrics": {"median_us": 9000.0, "gflops": 1900.0}}
        self.assertAlmostEqual(results.zbench_seconds(json.dumps(gemm), {"layout": "nn"}), 9e-3)
        attention = {"outcome": {"status": "measured"}, "metrics": {"flash_forward_median_us": 1.0},
                     "timings": [{"kernel": "naive", "pass": "forward", "median_us": 90.0},
                                 {"kernel": "flash", "pass": "forward", "median_us": 10.0},
                                 {"kernel": "flash", "pass": "backward", "median_us": 25.0}]}
        case = pace.Attention(4096, 64, True, "")
        self.assertAlmostEqual(case.read_zbench(json.dumps(attention))["tflops"], case.flops / 35e-6 / 1e12)
        attention["outcome"] = {"status": "failed", "reason": "wrong result"}
        with self.assertRaisesRegex(results.Unreadable, "wrong result"):
            case.read_zbench(json.dumps(attention))


class Ratios(unittest.TestCase):
    def runs(self, *values):
        return [dict(value=value, spoiled=False) for value in values]

    def test_medians_and_spread(self):
        side = results.side(self.runs(10.0, 12.0, 11.0))
        self.assertEqual((side["median"], side["rounds"], side["spoiled"]), (11.0, 3, False))
        self.assertAlmostEqual(side["spread"], 2 / 11)

    def test_spoiled_rounds_count_only_where_there_are_no_others(self):
        spoiled = [dict(value=1.0, spoiled=True)]
        self.assertEqual(results.side(self.runs(10.0) + spoiled)["median"], 10.0)
        alone = results.side(spoiled)
        self.assertEqual((alone["median"], alone["spoiled"]), (1.0, True))
        self.assertIn("~", results.shown(alone, "tok/s"))

    def test_a_side_that_failed_has_its_reason_and_no_ratio(self):
        row = dict(name="GEMM", unit="TFLOP/s", goal="3.5", torch=results.side(self.runs(2.0)),
                   zbench=results.side([dict(error="exit 2: unknown command")]))
        self.assertIsNone(results.ratio(row))
        table = results.markdown(dict(rows=[row], machine={"cores": 2}, differences=["Tokens."]))
        self.assertIn("unknown command", table)
        row["zbench"] = results.side(self.runs(3.0))
        self.assertEqual(results.ratio(row), 1.5)
        table = results.markdown(dict(rows=[row], machine={"cores": 2}, differences=["Tokens."]))
        self.assertIn("| GEMM | 2.00 TFLOP/s ± 0 % | 3.00 TFLOP/s ± 0 % | 1.50 | 3.5 |", table)


class Cases(unittest.TestCase):
    def test_every_row_of_the_issue_is_there(self):
        names = [case.name for case in pace.cases(False)]
        self.assertEqual(len(names), len(set(names)))
        for part in ("32m f32", "134m bf16, 2 x 1 threads fsdp", "4 x 1 threads hsdp", "peak RSS", "T 4096, forward + backward",
                     "2048^3 TN"):
            self.assertTrue(any(part in name for name in names), part)

    def test_configurations_are_toml_with_the_models_numbers(self):
        text = models.toml("134m", "bf16", "hsdp", 4, 1, 6, 2, 1.0)
        parsed = tomllib.loads(text)
        self.assertEqual((parsed["model"]["vocab_size"], parsed["parallel"]["shard"]), (32000, 2))
        self.assertEqual((parsed["precision"]["preset"], parsed["train"]["clip_norm"]), ("bf16-mixed", 1.0))


if __name__ == "__main__":
    unittest.main()
