#!/usr/bin/env python3
"""PyTorch's side of a training step: one JSON line from rank 0. See README.md, "Pace".

    torch_step.py --model 32m --dtype bf16 --threads 2
    torchrun --standalone --nproc-per-node 2 torch_step.py --model 32m --dtype bf16 --threads 1 --strategy fsdp
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import models

ADAMW = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, models.EPS)


def matrix(rows, cols):
    return nn.Linear(cols, rows, bias=False)


class Block(nn.Module):
    """Grouped-query attention and a gated MLP, each behind a norm."""

    def __init__(self, m):
        super().__init__()
        self.heads, self.kv_heads, self.width = m["heads"], m["kv_heads"], m["hidden"] // m["heads"]
        kv = self.kv_heads * self.width
        self.norm_in, self.norm_mlp = Norm(m["hidden"]), Norm(m["hidden"])
        self.q, self.o = matrix(m["hidden"], m["hidden"]), matrix(m["hidden"], m["hidden"])
        self.k, self.v = matrix(kv, m["hidden"]), matrix(kv, m["hidden"])
        self.gate, self.up = matrix(m["ffn"], m["hidden"]), matrix(m["ffn"], m["hidden"])
        self.down = matrix(m["hidden"], m["ffn"])

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.width)).transpose(1, 2)

    def forward(self, x, cos, sin):
        h = self.norm_in(x)
        q, k = turned(self.split(self.q(h), self.heads), cos, sin), turned(self.split(self.k(h), self.kv_heads), cos, sin)
        v = self.split(self.v(h), self.kv_heads)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        h = self.norm_mlp(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def turned(x, cos, sin):
    """Rotary positions; the halves of a head are a pair."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Llama(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embedding = nn.Embedding(m["vocab"], m["hidden"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm, self.head = Norm(m["hidden"]), matrix(m["vocab"], m["hidden"])
        self.angles = None

    def set_positions(self, m, dtype):
        """Not buffers: FSDP would move and cast them."""
        width = m["hidden"] // m["heads"]
        rates = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
        angles = torch.arange(m["seq"]).float()[:, None] * rates
        self.angles = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, ids, targets):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, *self.angles)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class Master:
    """AdamW on an f32 copy of bf16 weights, as zbench's bf16-mixed has it."""

    def __init__(self, weights):
        self.low = list(weights)
        self.high = [w.detach().float().requires_grad_() for w in self.low]
        self.inner = torch.optim.AdamW(self.high, **ADAMW)

    @torch.no_grad()
    def step(self):
        for low, high in zip(self.low, self.high):
            high.grad = low.grad.float()
            low.grad = None
        self.inner.step()
        torch._foreach_copy_(self.low, self.high)
        self.inner.zero_grad(set_to_none=True)

    def zero_grad(self, set_to_none=True):
        for low in self.low:
            low.grad = None


def build(args, m, world):
    """Network, what is called, and optimizer."""
    torch.manual_seed(1)
    net = Llama(m)
    for weight in net.parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=0.02)
    low = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    net.set_positions(m, low)
    if args.strategy in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        shape, names = ((world,), ("shard",)) if args.strategy == "fsdp" else ((world // 2, 2), ("replicate", "shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        for part in [*net.blocks, net]:
            fully_shard(part, mesh=mesh, mp_policy=policy)
        called, optimizer = net, torch.optim.AdamW(net.parameters(), **ADAMW)
    else:
        net.to(low)
        called = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True) if world > 1 else net
        optimizer = Master(net.parameters()) if args.dtype == "bf16" else torch.optim.AdamW(net.parameters(), **ADAMW)
    if args.compile:
        if args.strategy in ("fsdp", "hsdp"):
            for block in net.blocks:
                block.compile()
        else:
            called = torch.compile(called)
    return net, called, optimizer


def status(key):
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=models.MODELS, required=True)
    parser.add_argument("--dtype", choices=["f32", "bf16"], required=True)
    parser.add_argument("--strategy", choices=["ddp", "fsdp", "hsdp"], default="ddp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    imported = status("VmRSS")
    torch.set_num_threads(args.threads)
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
    m = models.MODELS[args.model]
    net, called, optimizer = build(args, m, world)
    data = torch.Generator().manual_seed(1000 + rank)
    times, losses = [], []
    for step in range(args.warmup + args.steps):
        tokens = torch.randint(m["vocab"], (m["micro_batch"], m["seq"] + 1), generator=data)
        ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if step == args.warmup:
            with open("/proc/self/clear_refs", "w") as clear:
                clear.write("5")
        if world > 1:
            dist.barrier()
        begin = time.perf_counter()
        loss = called(ids, targets)
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    own = dict(times=times[args.warmup:], peak=status("VmHWM"), imported=imported)
    all_ranks = [own] * world
    if world > 1:
        dist.all_gather_object(all_ranks, own)
    if rank == 0:
        slowest = [max(of) for of in zip(*(r["times"] for r in all_ranks))]
        tokens = world * m["micro_batch"] * m["seq"]
        print(json.dumps(dict(
            torch=torch.__version__, model=args.model, dtype=args.dtype, strategy=args.strategy, ranks=world,
            threads=torch.get_num_threads(), compiled=args.compile, step_s=slowest,
            tokens_per_second=tokens / statistics.median(slowest), loss_first=losses[0], loss_last=losses[-1],
            parameters=sum(w.numel() for w in net.parameters()),
            peak_rss_bytes=max(r["peak"] for r in all_ranks), imported_bytes=max(r["imported"] for r in all_ranks))),
            flush=True)
    if world > 1:
        # gloo's threads may abort when an interpreter ends: all leave together, and at once.
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
