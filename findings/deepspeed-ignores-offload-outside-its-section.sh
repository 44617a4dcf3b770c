#!/usr/bin/env bash
# DeepSpeed 0.19.8: offload_optimizer beside zero_optimization, where it stands in published files, is accepted and offloads nothing, and no
# line of output names the key.
# Seen: None
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy deepspeed==0.19.8
cat > read.py <<'P'
from deepspeed.runtime.config import DeepSpeedConfig

config = DeepSpeedConfig({
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 2},
    "offload_optimizer": {"device": "cpu"},
})
print(config.zero_config.offload_optimizer)
P
DS_ACCELERATOR=cpu python read.py >read.log 2>&1 || { cat read.log; exit 1; }
tail -n 1 read.log
[ "$(tail -n 1 read.log)" = None ]
! grep -q offload_optimizer read.log
