#!/usr/bin/env bash
# torch 2.15.0, gloo: ReduceOp.SUM of a boolean tensor over three ranks that hold True leaves the byte 3 in a tensor of type bool.
# It prints as True, and `.float()` makes 3.0 of it, so a flag that ranks reduce this way is not 0 or 1 in a later sum.
# Seen: tensor([True]) 3.0
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy
cat > ranks.py <<'P'
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(index, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=index, world_size=3)
    flag = torch.tensor([True])
    dist.all_reduce(flag, op=dist.ReduceOp.SUM)
    if index == 0:
        print(flag, flag.float().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank, args=(sys.argv[1],), nprocs=3)
P
seen=$(python ranks.py "$PWD/store" 2>ranks.log) || { cat ranks.log; exit 1; }
echo "$seen"
[ "$seen" = "tensor([True]) 3.0" ]
