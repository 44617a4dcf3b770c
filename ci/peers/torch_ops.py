#!/usr/bin/env python3
"""PyTorch's side of single operations: one JSON line. See README.md, "Pace".

    torch_ops.py gemm --shape 2048x2048x2048 --layout tn --threads 2
    torch_ops.py attention --seq 4096 --heads 8 --head-dim 64 --backward --threads 2
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F


def timed(call, seconds):
    """Seconds of each call, for about so long, after two that do not count."""
    call(), call()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def gemm(args):
    m, n, k = map(int, args.shape.split("x"))
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]
    a = torch.randn((k, m) if args.layout[0] == "t" else (m, k)).to(dtype)
    b = torch.randn((n, k) if args.layout[1] == "t" else (k, n)).to(dtype)
    a, b = (a.t() if args.layout[0] == "t" else a), (b.t() if args.layout[1] == "t" else b)
    out = torch.empty(m, n, dtype=dtype)
    return timed(lambda: torch.mm(a, b, out=out), args.seconds), 2 * m * n * k


def attention(args):
    shape = (1, args.heads, args.seq, args.head_dim)
    q, k, v = (torch.randn(shape).bfloat16().requires_grad_(args.backward) for _ in range(3))
    gradient = torch.randn(shape).bfloat16()

    def call():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if args.backward:
            out.backward(gradient)
            q.grad = k.grad = v.grad = None

    # The causal half of two products; backward is two and a half times forward.
    flops = 2 * args.heads * args.seq**2 * args.head_dim
    return timed(call, args.seconds), flops * (3.5 if args.backward else 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["gemm", "attention"])
    parser.add_argument("--shape", default="2048x2048x2048")
    parser.add_argument("--layout", choices=["nn", "nt", "tn"], default="nn")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    times, flops = (gemm if args.what == "gemm" else attention)(args)
    print(json.dumps(dict(torch=torch.__version__, what=args.what, calls=len(times), median_s=statistics.median(times),
                          tflops=flops / statistics.median(times) / 1e12)))


if __name__ == "__main__":
    main()
