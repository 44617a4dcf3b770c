#!/usr/bin/env python3
"""Opens with PEFT the adapters that zbench writes, and with transformers the models it merges them into.

    cargo build -p zbench-engine --features examples --example adapters
    VENV/bin/python tests/interop/adapters.py target/debug/examples/adapters   (VENV as in tests/fixtures/make.py)

Folders that PEFT wrote (tests/fixtures/*/start) go through zbench unchanged: PEFT must give the logits of the folder it wrote
on what zbench wrote, and transformers on the merged model. Then zbench trains three steps on two ranks under ZeRO-3, from
those folders and from fresh adapters of each kind on every linear layer of every family, and writes both. PEFT's logits and
those of the merged model must agree, and so must PEFT's loss on the fourth step's tokens with zbench's own. Largest logit
difference 1e-5, relative loss difference 1e-5. Ends with 1 if anything is off.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import peft
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).parent.parent / "fixtures"
FOLDERS = {"rslora-gpt2": "gpt2-exact", "lora-falcon": "falcon-new", "dora-llama": "bf16-sharded", "ia3-llama": "bf16-sharded",
           "ia3-bloom": "bloom"}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = dict(rank=3, alpha=6.0, dropout=0.0, targets=ALL)
FRESH = {
    "LoRA": LORA,
    "rsLoRA": LORA | dict(use_rslora=True),
    "DoRA": LORA | dict(use_dora=True),
    "IA3": dict(method="ia3", rank=0, alpha=0.0, dropout=0.0, targets=ALL, feedforward=["down_proj"]),
}
FAMILIES = ["bf16-sharded", "qwen3", "gemma", "gpt2-exact", "falcon", "falcon-new", "falcon-bias", "bloom", "mpt"]
LOGITS = LOSS = 1e-5
STEPS = 3


def load(folder):
    model, seen = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    odd = {key: value for key, value in seen.items() if value}
    assert not odd, f"{folder}: {odd}"
    return model.eval()


def with_adapters(base, folder):
    """PEFT's model; a tensor that it misses or does not know is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=FutureWarning)
        model = peft.PeftModel.from_pretrained(load(base), folder)
    stored = set(peft.utils.load_peft_weights(folder))
    wanted = set(peft.get_peft_model_state_dict(model))
    assert stored == wanted, f"{folder}: {stored ^ wanted}"
    return model.eval()


def tokens_of(folder):
    seq = json.loads((folder / "reference.json").read_text())["train"]["seq_len"]
    tokens = np.fromfile(folder / "tokens.bin", dtype="<u2").astype(np.int64)
    return seq, torch.from_numpy(tokens.reshape(-1, 4, seq + 1))


def export(program, base, adapters, folder, steps, out):
    seq, _ = tokens_of(folder)
    words = [program, base, adapters, folder / "tokens.bin", seq, steps, out / "adapters", out / "merged"]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[:, :-1]).logits


def check(program, name, kind, base, adapters, folder):
    tokens = tokens_of(folder)[1]
    with tempfile.TemporaryDirectory() as out:
        same = merged = None
        if isinstance(adapters, Path):
            place = Path(out) / "same"
            export(program, base, adapters, folder, 0, place)
            original = logits(with_adapters(base, adapters), tokens[0])
            same = (logits(with_adapters(base, place / "adapters"), tokens[0]) - original).abs().max().item()
            merged = (logits(load(place / "merged"), tokens[0]) - original).abs().max().item()
        else:
            adapters = json.dumps(adapters)
        place = Path(out) / "trained"
        ours = export(program, base, adapters, folder, STEPS, place)
        theirs = logits(with_adapters(base, place / "adapters"), tokens[STEPS])
        plain = (logits(load(base), tokens[STEPS]) - theirs).abs().max().item()
        apart = (logits(load(place / "merged"), tokens[STEPS]) - theirs).abs().max().item()
        loss = F.cross_entropy(theirs.flatten(0, 1), tokens[STEPS][:, 1:].flatten()).item()
    relative = abs(ours - loss) / loss
    good = max(same or 0, merged or 0, apart) <= LOGITS and relative <= LOSS and plain > 100 * LOGITS
    shown = ["" if value is None else f"{value:.1e}" for value in (same, merged, plain, apart, relative)]
    print(f"| {name} | {kind} | {' | '.join(shown)} | {'yes' if good else 'NO'} |", flush=True)
    return good


def main():
    torch.set_num_threads(1)
    print("| base | adapters | logits, read and written | merged | what training changed | after training: merged | loss "
          "| within |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    results = []
    for name, base in FOLDERS.items():
        results.append(check(sys.argv[1], base, f"PEFT's {name}", FIXTURES / base, FIXTURES / name / "start",
                             FIXTURES / name))
    for name in FAMILIES:
        fused = name.split("-")[0] in ("gpt2", "falcon", "bloom", "mpt")
        for kind, adapters in FRESH.items():
            if kind == "DoRA" and fused:  # not there for what holds queries, keys and values
                adapters = adapters | dict(targets=ALL[3:])
            results.append(check(sys.argv[1], name, kind, FIXTURES / name, adapters, FIXTURES / name))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
