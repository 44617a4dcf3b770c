"""gloo's collectives through PyTorch, by the method of README.md. One JSON object a line, from rank 0.

    python -m torch.distributed.run --standalone --nproc-per-node 2 gloo_peer.py COLLECTIVE ITERATIONS BYTES [BYTES ...]
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def bound(name, count, ranks, rank):
    """The call, on random floats."""
    generator = torch.Generator().manual_seed(rank + 1)
    whole = torch.rand(count, generator=generator) * 2 - 1
    part = whole[: count // ranks].clone()
    if name == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    if name == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if name == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole)
    if name == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    sys.exit(f"no collective named {name}")


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    name, iterations, sizes = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for size in sizes:
        call = bound(name, size // 4, ranks, rank)
        times = torch.empty(iterations, dtype=torch.float64)
        for i in range(-2, iterations):
            dist.barrier()
            start = time.perf_counter()
            call()
            if i >= 0:
                times[i] = (time.perf_counter() - start) * 1e6
        # An iteration takes as long as its slowest rank.
        dist.all_reduce(times, dist.ReduceOp.MAX)
        if rank == 0:
            median = times.sort().values[iterations // 2].item()
            print(json.dumps({"collective": name, "bytes": size, "us": median}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
