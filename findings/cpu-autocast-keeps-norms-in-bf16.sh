#!/usr/bin/env bash
# torch 2.15.0: autocast to bf16 on the CPU computes softmax, layer_norm, rms_norm and sums of bf16 inputs in bf16 and returns bf16; only
# losses are f32. On CUDA its documented list puts these operations in f32, so a run on CPUs is no reference for the losses of one on GPUs.
# Seen: softmax=bfloat16 layer_norm=bfloat16 rms_norm=bfloat16 sum=bfloat16 cross_entropy=float32
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy
seen=$(python - <<'P'
import torch
import torch.nn.functional as F

x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
with torch.autocast("cpu", dtype=torch.bfloat16):
    results = {
        "softmax": x.softmax(-1),
        "layer_norm": F.layer_norm(x, (4,)),
        "rms_norm": F.rms_norm(x, (4,)),
        "sum": x.sum(),
        "cross_entropy": F.cross_entropy(x, torch.tensor([0, 1])),
    }
print(" ".join(f"{name}={str(y.dtype).removeprefix('torch.')}" for name, y in results.items()))
P
)
echo "$seen"
[ "$seen" = "softmax=bfloat16 layer_norm=bfloat16 rms_norm=bfloat16 sum=bfloat16 cross_entropy=float32" ]
