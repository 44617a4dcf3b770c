#!/usr/bin/env bash
# torch 2.15.0: clip_grad_norm_ multiplies by max_norm / (norm + 1e-6) wherever that is below 1, so gradients whose norm equals the limit,
# or is up to 1e-6 below it, shrink. An implementation that clips only where norm > max_norm has other bits at this place.
# Seen: norm 1.0, gradients 0.5 become 0.4999995231628418
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy
seen=$(python - <<'P'
import torch

weight = torch.nn.Parameter(torch.ones(4))
weight.grad = torch.full((4,), 0.5)
norm = torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
print(f"norm {norm.item()}, gradients 0.5 become {weight.grad[0].item()}")
P
)
echo "$seen"
[ "$seen" = "norm 1.0, gradients 0.5 become 0.4999995231628418" ]
