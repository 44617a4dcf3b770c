#!/usr/bin/env bash
# transformers 5.23.0 with peft 0.21.2: Trainer leaves biases and norms out of weight decay by name and by class, and decays DoRA's magnitude
# vectors, which are vectors of one value per output, too. DoRA's initial magnitudes are the norms of frozen weights, so decay moves the
# model away from its base even where the gradient is zero.
# Seen: decayed adapters: 3, of which magnitudes: 1
. "$(dirname "$0")/pinned.sh"
pinned torch==2.15.0 numpy transformers==5.23.0 peft==0.21.2 accelerate==1.15.0
cat > names.py <<'P'
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))
model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], use_dora=True, task_type="CAUSAL_LM"))
trainer = Trainer(model, TrainingArguments("out", weight_decay=0.1, report_to=[], use_cpu=True))
trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
decayed = [name for name in trainer.get_decay_parameter_names(model) if name in trained]
print(f"decayed adapters: {len(decayed)}, of which magnitudes: {sum('magnitude' in name for name in decayed)}")
P
seen=$(python names.py 2>names.log) || { cat names.log; exit 1; }
echo "$seen"
[ "$seen" = "decayed adapters: 3, of which magnitudes: 1" ]
