#!/usr/bin/env python3
"""Writes the process groups that Megatron-core forms on 20 meshes to engine/tests/mesh/megatron.json.

    python3 -m venv VENV
    VENV/bin/pip install --no-deps megatron-core==0.14.0
    VENV/bin/python tests/interop/mesh.py

Megatron's own `initialize_model_parallel` builds the rank generators, and each generator lists the groups, so nothing of
Megatron's arithmetic is repeated here. That code is pure Python, but its module imports torch, numpy and the rest of
Megatron. This script loads that one module with stand-ins for those imports: no process starts and no GPU is needed. A list
of groups, and the list of ranks in each, keeps the order of the generator.
"""

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock, patch

PACKAGE, VERSION, ORDER = "megatron-core", "0.14.0", "tp-cp-ep-dp-pp"
OUT = Path(__file__).parents[2] / "engine/tests/mesh/megatron.json"
DENSE_TOKENS = ["tp", "cp", "dp", "pp", "tp-cp", "dp-cp", "tp-dp", "tp-pp", "tp-dp-cp", "tp-cp-pp"]
EXPERT_TOKENS = ["ep", "tp", "dp", "pp", "tp-ep", "tp-ep-pp"]
# The degrees tp, cp, dp, pp of meshes without experts.
DENSE = [(1, 1, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 5, 1), (1, 1, 1, 7), (2, 1, 3, 1), (1, 2, 2, 1), (2, 2, 2, 2),
         (4, 1, 2, 2), (3, 5, 1, 2), (2, 1, 4, 3), (1, 1, 4, 4), (8, 1, 2, 4), (2, 4, 4, 2), (3, 2, 5, 4), (8, 2, 4, 4)]
# The degrees tp, cp, dp, pp of meshes with experts, then the expert tensor parallel and the expert parallel size.
EXPERTS = [((2, 1, 4, 2), 1, 4), ((1, 2, 4, 1), 1, 8), ((4, 1, 3, 2), 2, 3), ((2, 2, 4, 4), 1, 8)]


def parallel_state():
    """Megatron's module of process groups, without what it imports."""
    found = importlib.metadata.distribution(PACKAGE)
    assert found.version == VERSION, f"{PACKAGE} is {found.version}, not {VERSION}"
    path = found.locate_file("megatron/core/parallel_state.py")
    spec = importlib.util.spec_from_file_location("megatron.core.parallel_state", path)
    module = importlib.util.module_from_spec(spec)
    names = ["torch", "numpy", "megatron", "megatron.core", "megatron.core.utils"]
    with patch.dict(sys.modules, {name: MagicMock() for name in names}):
        spec.loader.exec_module(module)
    return module


def generators(module, degrees, etp=None, ep=1):
    """The generator of the dense layers and that of the experts, as Megatron builds them on that many ranks."""
    tp, cp, dp, pp = degrees
    module.torch.distributed.get_world_size.return_value = tp * cp * dp * pp
    module.torch.distributed.get_rank.return_value = 0
    made, build = [], module.RankGenerator

    def keep(**arguments):
        made.append(build(**arguments))
        return made[-1]

    with patch.object(module, "RankGenerator", keep):
        module.initialize_model_parallel(tp, pp, context_parallel_size=cp, expert_model_parallel_size=ep,
                                         expert_tensor_parallel_size=etp, order=ORDER, create_gloo_process_groups=False)
    module.destroy_model_parallel()
    dense, expert = made
    assert (dense.tp, dense.cp, dense.dp, dense.pp) == degrees
    return dense, expert


def described(generator, axes, tokens):
    degrees = {axis: getattr(generator, axis) for axis in axes}
    return {"degrees": degrees, "groups": {token: generator.get_ranks(token) for token in tokens}}


def dense(generator):
    return described(generator, ["tp", "cp", "dp", "pp"], DENSE_TOKENS)


def pretty(value, depth=0):
    """JSON with one line for each list of groups."""
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values()):
        parts = [f"{json.dumps(key)}: {pretty(v, depth + 1)}" for key, v in value.items()]
        return "{" + inner + ("," + inner).join(parts) + outer + "}"
    if isinstance(value, list) and isinstance(value[0], dict):
        return "[" + inner + ("," + inner).join(pretty(v, depth + 1) for v in value) + outer + "]"
    return json.dumps(value, separators=(",", ": ") if isinstance(value, list) else None)


def main():
    module = parallel_state()
    meshes = [dense(generators(module, degrees)[0]) for degrees in DENSE]
    experts = []
    for degrees, etp, ep in EXPERTS:
        both = generators(module, degrees, etp, ep)
        experts.append({"dense": dense(both[0]), "expert": described(both[1], ["tp", "ep", "dp", "pp"], EXPERT_TOKENS)})
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(pretty({"package": PACKAGE, "version": VERSION, "order": ORDER, "dense": meshes, "experts": experts}) + "\n")


if __name__ == "__main__":
    main()
