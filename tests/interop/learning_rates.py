#!/usr/bin/env python3
"""Writes the learning rate of every update under the schedules of transformers and DeepSpeed to tests/interop/learning_rates.csv.

    python3 -m venv VENV
    VENV/bin/pip install torch==2.15.0 transformers==5.23.0 accelerate==1.15.0 wheel setuptools ninja
    DS_BUILD_OPS=0 VENV/bin/pip install --no-build-isolation deepspeed==0.19.8
    PATH=VENV/bin:$PATH VENV/bin/python tests/interop/learning_rates.py

Rates are read from the optimizer just before it steps, in runs of transformers' Trainer and of DeepSpeed's engine on the
CPU. engine/src/state/learning_rate.rs compares zbench's with every row. A linear schedule that ends above 0 is transformers'
polynomial one of power 1.
"""

import csv
import itertools
import os
import tempfile
from pathlib import Path

os.environ |= dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29666", DS_ACCELERATOR="cpu")

import deepspeed
import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments

OUT = Path(__file__).with_name("learning_rates.csv")
COLUMNS = ["program", "version", "scheduler", "lr_steps", "lr_schedule", "steps", "lr_warmup_steps", "lr", "lr_min", "rates"]
# Without warm-up, with one that is shorter than DeepSpeed's shortest, and as long as the run or longer.
LENGTHS = [(6, 0), (5, 1), (4, 2), (10, 3), (5, 5), (5, 7), (1, 0)]
LR, LEAST = 1e-3, 1e-4


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        return dict(loss=self.layer(x).square().sum())


class Rates(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **_):
        self.seen.append(float(optimizer.param_groups[0]["lr"]))


def of_transformers(name, more, steps, warmup):
    rates = Rates()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, warmup_steps=warmup, learning_rate=LR, lr_scheduler_type=name, lr_scheduler_kwargs=more,
            per_device_train_batch_size=1, use_cpu=True, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True)
        Trainer(Model(), arguments, train_dataset=[dict(x=[1.0])] * steps, callbacks=[rates]).train()
    return rates.seen


def of_deepspeed(name, more, steps, warmup):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    params = dict(warmup_num_steps=warmup, warmup_type="linear") | more
    config = dict(train_batch_size=1, scheduler=dict(type=name, params=params))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    seen = []
    for _ in range(steps):
        engine.backward(engine(torch.ones(1, 1))["loss"])
        seen.append(float(optimizer.param_groups[0]["lr"]))
        engine.step()
    return seen


def rows():
    for steps, warmup in LENGTHS:
        for schedule, least, name, more in [
            ("constant", 0.0, "constant_with_warmup" if warmup else "constant", {}),
            ("linear", 0.0, "linear", {}),
            ("linear", LEAST, "polynomial", dict(power=1.0, lr_end=LEAST)),
            ("cosine", 0.0, "cosine", {}),
            ("cosine", LEAST, "cosine_with_min_lr", dict(min_lr=LEAST)),
        ]:
            # transformers' polynomial schedule divides by the steps behind the warm-up.
            if name == "polynomial" and warmup >= steps:
                continue
            yield ["transformers", transformers.__version__, name, "transformers", schedule, steps, warmup, LR, least,
                   of_transformers(name, more, steps, warmup)]
    for (steps, warmup), (schedule, least, name, more) in itertools.product(LENGTHS, [
        ("constant", 0.0, "WarmupLR", dict(warmup_max_lr=LR)),
        ("linear", 0.0, "WarmupDecayLR", dict(warmup_max_lr=LR)),
        ("cosine", 0.0, "WarmupCosineLR", dict(cos_min_ratio=0.0)),
        ("cosine", LEAST, "WarmupCosineLR", dict(cos_min_ratio=LEAST / LR)),
    ]):
        # DeepSpeed has no schedule without warm-up.
        if warmup:
            total = {} if schedule == "constant" else dict(total_num_steps=steps)
            yield ["deepspeed", deepspeed.__version__, name, "deepspeed", schedule, steps, warmup, LR, least,
                   of_deepspeed(name, more | total, steps, warmup)]


def main():
    with OUT.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for *row, rates in rows():
            assert len(rates) == row[5]
            writer.writerow([*row, " ".join(map(repr, rates))])


main()
