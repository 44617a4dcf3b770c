#!/usr/bin/env bash
# peft 0.21.2: LoraConfig(target_modules="all-linear") saves the whole path of every layer for a Llama of 2 blocks (14 linear layers) and the
# seven leaf names for one of 3 blocks (21): paths are shortened from 20 on. So a reader tried on tiny models sees another form of
# adapter_config.json than files of real models have, and the reverse.
# Seen: 14 model.layers.0.mlp.down_proj / 7 down_proj
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy transformers==5.23.0 peft==0.21.2
cat > save.py <<'P'
import json
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

forms = []
for blocks in (2, 3):
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=blocks, **sizes))
    get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")).save_pretrained("adapter")
    with open("adapter/adapter_config.json") as file:
        names = sorted(json.load(file)["target_modules"])
    forms.append(f"{len(names)} {names[0]}")
print(" / ".join(forms))
P
seen=$(python save.py 2>save.log) || { cat save.log; exit 1; }
echo "$seen"
[ "$seen" = "14 model.layers.0.mlp.down_proj / 7 down_proj" ]
