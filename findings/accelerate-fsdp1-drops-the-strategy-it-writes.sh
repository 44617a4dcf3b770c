#!/usr/bin/env bash
# accelerate 1.15.0: a file of FSDP version 1 that states fsdp_reshard_after_forward: SHARD_GRAD_OP, as `accelerate config` writes it since
# FSDP 2, is launched as FULL_SHARD: `accelerate launch` hands the value over under its new name, and version 1 reads the old name alone.
# Seen: ShardingStrategy.FULL_SHARD
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy accelerate==1.15.0
cat > file.yaml <<'Y'
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 1
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: SHARD_GRAD_OP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: false
  fsdp_cpu_ram_efficient_loading: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: false
Y
cat > strategy.py <<'P'
import os
from accelerate.utils import FullyShardedDataParallelPlugin

if os.environ["RANK"] == "0":
    print(FullyShardedDataParallelPlugin().sharding_strategy)
P
seen=$(accelerate launch --config_file file.yaml strategy.py 2>launch.log) || { cat launch.log; exit 1; }
echo "$seen"
[ "$seen" = "ShardingStrategy.FULL_SHARD" ]
