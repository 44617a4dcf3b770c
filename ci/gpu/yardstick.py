#!/usr/bin/env python3
"""PyTorch's figures for the work that ci/gpu-check measures, taken on the same GPU in the same run.

Usage: yardstick.py --out FILE [--quick]. Writes rows of what, median, unit and samples. Random numbers throughout; each figure
is the median of several samples after a warm-up, timed by events.
"""

import argparse
import gc
import json
import statistics

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"


def timed(call, warmup=5, samples=20):
    """Seconds of a call, sample by sample."""
    for _ in range(warmup):
        call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(samples):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return seconds


def row(what, unit, values):
    return {"what": what, "unit": unit, "median": statistics.median(values), "samples": sorted(values)}


def products():
    for side in (4096, 8192):
        for dtype in (torch.bfloat16, torch.float32):
            a, b = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
            seconds = timed(lambda: a @ b.T)
            yield row(f"matmul {side} {dtype}", "TFLOP/s", [2 * side**3 / s / 1e12 for s in seconds])


def copies():
    x = torch.randn(1 << 28, device=DEVICE, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    seconds = timed(lambda: y.copy_(x))
    yield row("copy of 512 MiB", "TB/s", [2 * x.numel() * 2 / s / 1e12 for s in seconds])


def attention():
    for length in (4096, 8192):
        shape = (1, 32, length, 128)
        q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        flops = 4 * 32 * length * length * 128 / 2
        forward = timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        yield row(f"attention forward causal {length} d128", "TFLOP/s", [flops / s / 1e12 for s in forward])
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient = torch.randn_like(out)
        # Into fresh tensors: adding to `.grad` would be timed with it.
        backward = timed(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
        yield row(f"attention backward causal {length} d128", "TFLOP/s", [2.5 * flops / s / 1e12 for s in backward])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.n1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, length=1024, vocabulary=50304):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def gpt2(rows, samples, compiled):
    torch.set_float32_matmul_precision("high")
    model = Gpt2().to(DEVICE)
    if compiled:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 50257, (rows, 1025), device=DEVICE)

    def step():
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.cuda.reset_peak_memory_stats()
    seconds = timed(step, warmup=8, samples=samples)
    how = "compiled" if compiled else "eager"
    return [
        row(f"GPT-2 124M T 1024 micro-batch {rows} bf16 {how}", "tokens/s", [rows * 1024 / s for s in seconds]),
        row("the same: peak memory", "bytes", [torch.cuda.max_memory_allocated()]),
    ]


def training(samples):
    """Compiled where that works: it takes a C compiler and Python's headers, which a bare machine has not."""
    for rows, compiled in ((64, True), (64, False), (32, False)):
        try:
            return gpt2(rows, samples, compiled)
        except Exception as error:  # what compiling raises has no type in common; the reason is shown
            last = (str(error).strip().splitlines() or [""])[0]
            print(f"GPT-2, micro-batch {rows}, compiled {compiled}: not measured: {type(error).__name__}: {last}")
        # Outside of the handler, where nothing holds the step's tensors any more.
        gc.collect()
        torch.cuda.empty_cache()
    return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU")
    rows = [*copies(), *products(), *attention(), *training(5 if arguments.quick else 15)]
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}
    with open(arguments.out, "w") as file:
        json.dump({"versions": versions, "rows": rows}, file, indent=1)
    for found in rows:
        print(f"{found['what']}: {found['median']:.4g} {found['unit']}")


if __name__ == "__main__":
    main()
