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

    def test_the_timing_that_was_asked_for(self):
        for name, asked in (("gemm", [{"layout": "nn", "dtype": "bf16"}, {"layout": "tn"}]),
                            ("attention", [{"kernel": "flash", "pass": "forward"}, {"kernel": "flash", "pass": "backward"},
                                           {"kernel": "naive", "pass": "backward"}])):
            text = recorded(f"zbench-{name}.jsonl")
            timings = [(found, timing) for found in results.objects(text) for timing in found["timings"]]
            for wanted in asked:
                match = [timing["median_us"] for found, timing in timings
                         if all(dict(found["cell"][name], **timing)[key] == value for key, value in wanted.items())]
                self.assertEqual(len(match), 1)
                self.assertAlmostEqual(results.zbench_seconds("measuring\n" + text, wanted), match[0] / 1e6)
            with self.assertRaises(results.Unreadable):
                results.zbench_seconds(text, {"dtype": "f16"})
        # A cell states "both" passes, its timings one each: the timing's word counts.
        with self.assertRaises(results.Unreadable):
            results.zbench_seconds(recorded("zbench-attention.jsonl"), {"pass": "both"})

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
