#!/usr/bin/env bash
# torch 2.15.0: a cast of a finite f32 above the range gives the largest value in float8_e4m3fn (448) and infinity in float8_e5m2.
# torch 2.6.0 gave NaN in float8_e4m3fn. A test for overflow by isinf or isnan, as loss scaling makes it, sees the second format only.
# Seen: [448.0, 448.0] [inf, inf]
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy
seen=$(python - <<'P'
import torch

values = torch.tensor([465.0, 1e6])
print(values.to(torch.float8_e4m3fn).float().tolist(), (values * 256).to(torch.float8_e5m2).float().tolist())
P
)
echo "$seen"
[ "$seen" = "[448.0, 448.0] [inf, inf]" ]
