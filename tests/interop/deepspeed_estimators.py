#!/usr/bin/env python3
"""Writes what DeepSpeed's estimators of model states give over a grid of inputs to tests/interop/deepspeed_estimators.csv.

    python3 -m venv VENV
    VENV/bin/pip install torch wheel setuptools
    DS_BUILD_OPS=0 VENV/bin/pip install --no-build-isolation deepspeed==0.19.8
    VENV/bin/python tests/interop/deepspeed_estimators.py

The functions are DeepSpeed's own, imported from the installed package. suites/estimate/tests/deepspeed.rs compares
suites/estimate/src/deepspeed.rs with every row: at most one byte apart, as DeepSpeed cuts fractions of a byte off.
Nodes and GPUs include numbers that do not divide the parameters.
"""

import csv
import itertools
from pathlib import Path

import deepspeed
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero2

VERSION = "0.19.8"
OUT = Path(__file__).with_name("deepspeed_estimators.csv")
# t5-3b of DeepSpeed's documentation first.
MODELS = [(2_851_598_336, 32_899_072), (1, 1), (999_999_999_989, 12_345_678_901), (7_241_732_096, 131_072_000)]
CLUSTERS = [(1, 1), (8, 1), (8, 2), (3, 7), (4, 513)]
COLUMNS = ["deepspeed", "stage", "parameters", "largest_layer", "gpus_per_node", "nodes", "offload", "zero_init", "host_bytes", "gpu_bytes"]


def rows():
    for (parameters, largest), (gpus, nodes) in itertools.product(MODELS, CLUSTERS):
        for offload in ["none", "optimizer"]:
            host, gpu = zero2(parameters, gpus, nodes, cpu_offload=offload == "optimizer")
            yield [VERSION, 2, parameters, largest, gpus, nodes, offload, "", host, gpu]
        for offload, init in itertools.product(["none", "optimizer", "all"], [True, False]):
            host, gpu, _ = zero3(parameters, largest, gpus, nodes, cpu_offload=offload != "none",
                                 cpu_offload_params=offload == "all", zero_init=init)
            yield [VERSION, 3, parameters, largest, gpus, nodes, offload, str(init).lower(), host, gpu]


assert deepspeed.__version__ == VERSION, f"deepspeed is {deepspeed.__version__}, not {VERSION}"
with OUT.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows())
