"""python3 -m unittest discover -s ci: what bench_results.py takes from criterion's folder."""

import json
import os
import pathlib
import tempfile
import unittest

import bench_results


class Gathering(unittest.TestCase):
    def estimate(self, folder, name, nanoseconds, age, throughput=None):
        place = pathlib.Path(folder) / name / "new"
        place.mkdir(parents=True)
        median = {"point_estimate": nanoseconds,
                  "confidence_interval": {"confidence_level": 0.95, "lower_bound": nanoseconds - 1, "upper_bound": nanoseconds + 2}}
        (place / "estimates.json").write_text(json.dumps({"mean": {}, "median": median}))
        (place / "benchmark.json").write_text(json.dumps({"full_id": name, "throughput": throughput}))
        os.utime(place / "estimates.json", (1000 - age, 1000 - age))

    def test_what_was_measured_since_with_its_rate(self):
        with tempfile.TemporaryDirectory() as folder:
            self.estimate(folder, "gemm/bf16/64x64x64", 2000.0, 0, {"Elements": 524288})
            self.estimate(folder, "passes/sum_squares", 1e6, 0, {"Bytes": 4e6})
            self.estimate(folder, "an/older/one", 5.0, 500)
            rows = bench_results.measured(pathlib.Path(folder), 900)
        self.assertEqual(sorted(rows), ["gemm/bf16/64x64x64", "passes/sum_squares"])
        row = rows["gemm/bf16/64x64x64"]
        self.assertEqual((row["median_ns"], row["interval_ns"]), (2000.0, [1999.0, 2002.0]))
        self.assertEqual(row["elements_per_second"], 524288 / 2e-6)
        self.assertEqual(rows["passes/sum_squares"]["bytes_per_second"], 4e9)

    def test_this_machine_has_a_name_and_cores(self):
        about = bench_results.machine()
        self.assertTrue(about["cpu"] and about["cores"] >= 1)


if __name__ == "__main__":
    unittest.main()
