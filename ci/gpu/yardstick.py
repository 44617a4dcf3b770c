#!/usr/bin/env python3
"""PyTorch's figures for the work that ci/gpu-check measures, taken on the same GPU in the same run.

Usage: yardstick.py --out FILE [--warm-up] [--device cpu --small]. Same shapes, vocabularies, heads and types as zbench's parts;
attention by backends of scaled_dot_product_attention that are named. Random numbers throughout; each figure is the median of
several samples after a warm-up, timed by the device's events. FILE is replaced after every figure: what ends this program takes
away no figure that it had. --warm-up compiles what is compiled later, into the caches that the environment names, and writes no
FILE. --device cpu --small tries all of it without a GPU, at sizes that say nothing.
"""

import argparse
import contextlib
import functools
import gc
import json
import os
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
# Of training: the backend that needs no newer library than PyTorch's own.
TRAINED_WITH = "flash"
# The warm-up takes so much before zbench's arenas take what is free.
RESERVED = 56 << 30


class Bench:
    def __init__(self, device, small, out):
        self.device, self.small, self.out = device, small, out
        self.rows = []

    def timed(self, call, warmup=5, samples=20):
        """Seconds of a call, sample by sample."""
        warmup, samples = (1, 2) if self.small else (warmup, samples)
        for _ in range(warmup):
            call()
        if self.device == "cpu":
            return [self.on_host(call) for _ in range(samples)]
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

    @staticmethod
    def on_host(call):
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def row(self, what, unit, values, reason=None):
        middle = statistics.median(values) if values else None
        self.rows.append({"what": what, "unit": reason or unit, "median": middle, "samples": sorted(values)})
        print(f"{what}: " + (f"{middle:.4g} {unit}" if values else f"not measured: {reason}"), flush=True)
        gpu = torch.cuda.get_device_name() if self.device == "cuda" else "no GPU: sizes and speeds say nothing"
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": gpu}
        if self.out:
            aside = f"{self.out}.part"
            with open(aside, "w") as file:
                json.dump({"versions": versions, "rows": self.rows}, file, indent=1)
            os.replace(aside, self.out)

    def tried(self, what, unit, work):
        """What a version of PyTorch or a GPU cannot do is a row with its reason, and the rest goes on."""
        try:
            return work()
        except Exception as error:  # what compiling and attention raise has no type in common
            lines = str(error).strip().splitlines() or [""]
            reason = f"{type(error).__name__}: {lines[0]}"[:200]
        # Outside of the handler, where nothing holds the tensors of the work any more.
        self.row(what, unit, [], reason)
        self.freed()
        return None

    def freed(self):
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def copies(bench):
    x = torch.randn((1 << 20) if bench.small else (1 << 28), device=bench.device).to(torch.bfloat16)
    y = torch.empty_like(x)
    size = x.numel() * x.element_size()
    bench.row(f"copy of {size >> 20} MiB", "TB/s", [2 * size / s / 1e12 for s in bench.timed(lambda: y.copy_(x))])


def products(bench):
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (8192, 50257, 768), (8192, 14336, 4096)]
    for m, n, k in [(64, 65, 32)] if bench.small else shapes:
        for dtype in (torch.bfloat16, torch.float32):

            def work(m=m, n=n, k=k, dtype=dtype):
                a = torch.randn(m, k, device=bench.device, dtype=dtype)
                b = torch.randn(n, k, device=bench.device, dtype=dtype)
                seconds = bench.timed(lambda: a @ b.T)
                bench.row(f"gemm {m}x{n}x{k} {dtype}", "TFLOP/s", [2 * m * n * k / s / 1e12 for s in seconds])

            bench.tried(f"gemm {m}x{n}x{k} {dtype}", "TFLOP/s", work)


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])


def attention(bench):
    shapes = [(1, 32, 8, 4096, 128), (1, 32, 8, 8192, 128), (64, 12, 12, 1024, 64)]
    for batch, heads, kv, length, width in [(1, 4, 2, 64, 32)] if bench.small else shapes:
        for name, backend in BACKENDS.items():
            what = f"attention causal, batch {batch}, {heads} heads on {kv}, {length} tokens, d{width}, {name}"

            def work(batch=batch, heads=heads, kv=kv, length=length, width=width, backend=backend, what=what):
                def tensor(of):
                    shape = (batch, of, length, width)
                    return torch.randn(shape, device=bench.device, dtype=torch.bfloat16, requires_grad=True)

                q, k, v = tensor(heads), tensor(kv), tensor(kv)
                flops = 4 * batch * heads * length * length * width / 2
                with sdpa_kernel(backend) if bench.device == "cuda" else contextlib.nullcontext():
                    forward = bench.timed(lambda: attend(q, k, v))
                    bench.row(f"{what}, forward", "TFLOP/s", [flops / s / 1e12 for s in forward])
                    out = attend(q, k, v)
                    gradient = torch.randn_like(out)
                    # Into fresh tensors: adding to `.grad` would be timed with it.
                    backward = bench.timed(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
                    bench.row(f"{what}, backward", "TFLOP/s", [2.5 * flops / s / 1e12 for s in backward])

            bench.tried(what, "TFLOP/s", work)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.n1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 124M with its own vocabulary, which no power of two divides."""

    def __init__(self, layers=12, width=768, heads=12, length=1024, vocabulary=50257):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class Adapted(nn.Module):
    """A frozen matrix and an adapter of rank 16 beside it."""

    def __init__(self, inputs, outputs, rank=16, alpha=32.0):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.b(self.a(x))


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class LlamaBlock(nn.Module):
    def __init__(self, width, inner, heads, kv, head, linear):
        super().__init__()
        self.shape = heads, kv, head
        self.n1, self.n2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v = linear(width, heads * head), linear(width, kv * head), linear(width, kv * head)
        self.out = linear(heads * head, width)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        y = self.n1(x)
        q, k, v = (
            made(y).view(batch, length, count, self.shape[2]).transpose(1, 2)
            for made, count in ((self.q, self.shape[0]), (self.k, self.shape[1]), (self.v, self.shape[1]))
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width, inner, layers, heads, kv, head, vocabulary, tied, linear):
        super().__init__()
        self.head_size = head
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, inner, heads, kv, head, linear) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids)
        steps = torch.arange(0, self.head_size, 2, device=ids.device) / self.head_size
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device), 500000.0**-steps)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


plain = functools.partial(nn.Linear, bias=False)
THREE = dict(width=3072, inner=8192, layers=28, heads=24, kv=8, head=128, vocabulary=128256, tied=True, linear=plain)
EIGHT = dict(width=4096, inner=14336, layers=32, heads=32, kv=8, head=128, vocabulary=128256, tied=False, linear=Adapted)
SMALL = dict(width=64, inner=96, layers=2, heads=4, kv=2, head=16, vocabulary=97, tied=False)


def gpt2(bench):
    return Gpt2(2, 64, 4, 64, 97) if bench.small else Gpt2()


def llama(bench, sizes, layers=None):
    sizes = {**sizes, **(SMALL if bench.small else {})}
    model = Llama(**{**sizes, "layers": layers or sizes["layers"]})
    if sizes["linear"] is Adapted:
        # The base, embedding and head stay as they are, in bf16; adapters are trained in f32.
        for name, parameter in model.named_parameters():
            is_trained = name.split(".")[-2] in ("a", "b")
            parameter.requires_grad_(is_trained)
            if not is_trained:
                parameter.data = parameter.data.to(torch.bfloat16)
    return model


def step_of(bench, model, rows, length):
    """A step as zbench's: bf16 with f32 masters, norms clipped, AdamW."""
    rows, length = (2, 32) if bench.small else (rows, length)
    vocabulary = model.tokens.weight.shape[0]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=bench.device == "cuda")
    ids = torch.randint(0, vocabulary, (rows, length + 1), device=bench.device)

    def step():
        with torch.autocast(bench.device, dtype=torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, rows * length


# What is trained: name, the model, sequences, tokens, whether it is compiled as a whole (else block by block).
CELLS = [
    ("GPT-2 124M", gpt2, 64, 1024, True),
    ("Llama 3.2 3B", functools.partial(llama, sizes=THREE), 4, 2048, False),
    ("Llama 3.1 8B LoRA", functools.partial(llama, sizes=EIGHT), 1, 8192, False),
]


def compiled(model, is_whole):
    if is_whole:
        model.compile()
    else:
        for block in model.blocks:
            block.compile()
    return model


def training(bench):
    torch.set_float32_matmul_precision("high")
    # Compiling takes a C compiler and Python's headers, which a bare machine has not. Both are measured, so that the difference
    # is seen; what is compiled comes first, since it is what others use.
    for name, make, rows, length, is_whole in CELLS:
        for how in ("compiled", "eager"):
            what = f"{name}, {rows} x {length} tokens, bf16, {how}, attention by {TRAINED_WITH}"

            def work(make=make, rows=rows, length=length, is_whole=is_whole, how=how, what=what):
                with torch.device(bench.device):
                    model = make(bench)
                if how == "compiled":
                    compiled(model, is_whole)
                step, tokens = step_of(bench, model, rows, length)
                if bench.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                with sdpa_kernel(BACKENDS[TRAINED_WITH]) if bench.device == "cuda" else contextlib.nullcontext():
                    seconds = bench.timed(step, warmup=5, samples=10)
                bench.row(what, "tokens/s", [tokens / s for s in seconds])
                if bench.device == "cuda":
                    bench.row(f"{what}: peak memory", "bytes", [torch.cuda.max_memory_allocated()])

            bench.tried(what, "tokens/s", work)
            bench.freed()


def warm_up(bench):
    """Compiles what is compiled later. Its memory is taken first, and it says so: zbench's arenas take the rest."""
    if bench.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        taken = torch.empty(min(RESERVED, free // 2), dtype=torch.uint8, device=bench.device)
        del taken
    print("ready", flush=True)
    torch.set_float32_matmul_precision("high")
    for name, make, rows, length, is_whole in CELLS:
        with torch.device(bench.device):
            # Blocks are alike: one is compiled for all.
            model = make(bench) if is_whole else make(bench, layers=1)
        step, _ = step_of(bench, compiled(model, is_whole), rows, length)
        with sdpa_kernel(BACKENDS[TRAINED_WITH]) if bench.device == "cuda" else contextlib.nullcontext():
            step()
        del model, step
        gc.collect()
        print(f"{name} is compiled", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU")
    bench = Bench(arguments.device, arguments.small, None if arguments.warm_up else arguments.out)
    if arguments.warm_up:
        return warm_up(bench)
    for measure in (copies, products, attention, training):
        measure(bench)
    if not any(row["samples"] for row in bench.rows):
        raise SystemExit("nothing could be measured")


if __name__ == "__main__":
    main()
