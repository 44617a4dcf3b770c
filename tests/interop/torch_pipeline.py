#!/usr/bin/env python3
"""What torch.distributed.pipelining does: writes tests/fixtures/pipelines.json, which the engine's tests compare with.

    python tests/interop/torch_pipeline.py        # needs torch and transformers; processes talk over Gloo on loopback

`orders`: by schedule, stages p, virtual stages v and micro-batches m, what every rank did in which order, seen where PyTorch calls its
stages: F and B with the number of the virtual stage and of the micro-batch. `losses`: five steps of the fixture `llama` in two stages of
one block each, in four micro-batches of one sequence, with the AdamW of the fixture.
"""

import json
import os
import socket
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

FIXTURES = Path(__file__).parent.parent / "fixtures"
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
# Schedule, p, v, m.
CASES = [
    ("gpipe", 2, 1, 4),
    ("gpipe", 4, 1, 8),
    ("1f1b", 2, 1, 4),
    ("1f1b", 3, 1, 7),
    ("1f1b", 4, 1, 4),
    ("1f1b", 4, 1, 8),
    ("interleaved", 2, 2, 4),
    ("interleaved", 2, 3, 6),
    ("interleaved", 4, 2, 8),
    ("interleaved", 4, 2, 4),
    ("interleaved", 3, 2, 6),
]
STEPS, MICROS = 5, 4


def free_port():
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", 0))
        return socket_.getsockname()[1]


def in_group(rank, world, port, work, queue, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    queue.put((rank, work(rank, world, *arguments)))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(world, work, *arguments):
    """What `work` returns on each rank."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    processes = [context.Process(target=in_group, args=(rank, world, port, work, queue, arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    said = dict(queue.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a process ended with {process.exitcode}")
    return [said[rank] for rank in range(world)]


def noted(stage, notes):
    """The stage, which notes every forward and backward that the schedule asks of it."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

    def noted_forward(micro, *arguments, **named):
        notes.append(f"F{stage.stage_index}.{micro}")
        return forward(micro, *arguments, **named)

    def noted_backward(micro, *arguments, **named):
        notes.append(f"B{stage.stage_index}.{micro}")
        return backward(micro, *arguments, **named)

    stage.forward_one_chunk, stage.backward_one_chunk = noted_forward, noted_backward
    return stage


def order(rank, world, name, virtual, micros):
    notes = []
    count = world * virtual
    stages = [noted(PipelineStage(nn.Linear(8, 8), index, count, torch.device("cpu")), notes) for index in range(rank, count, world)]
    of_one = virtual == 1
    schedule = SCHEDULES[name](stages[0] if of_one else stages, micros, loss_fn=nn.MSELoss())
    x = [torch.randn(micros, 8)] if rank == 0 else []
    last = {"target": torch.randn(micros, 8), "losses": []} if rank == world - 1 else {}
    schedule.step(*x, **last)
    return " ".join(notes)


class First(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embedding, self.block, self.rotary = model.model.embed_tokens, model.model.layers[0], model.model.rotary_emb

    def forward(self, ids):
        return blocks_output(self.block, self.embedding(ids), self.rotary)


class Last(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.block, self.rotary = model.model.layers[1], model.model.rotary_emb
        self.norm, self.head = model.model.norm, model.lm_head

    def forward(self, x):
        return self.head(self.norm(blocks_output(self.block, x, self.rotary)))


def blocks_output(block, x, rotary):
    places = torch.arange(x.shape[1]).unsqueeze(0)
    mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min).triu(1)[None, None]
    output = block(x, attention_mask=mask, position_ids=places, position_embeddings=rotary(x, places))
    return output[0] if isinstance(output, tuple) else output


def losses(rank, world, name):
    from transformers import AutoModelForCausalLM

    folder = FIXTURES / "llama"
    reference = json.loads((folder / "reference.json").read_text())
    settings, rows, seq = reference["optimizer"], reference["mb"], reference["seq"]
    tokens = numpy.fromfile(folder / "tokens.bin", dtype="<u4").reshape(-1, rows, seq + 1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    module = First(model) if rank == 0 else Last(model)
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings["weight_decay"]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings["lr"], betas=tuple(settings["betas"]), eps=settings["eps"])

    def loss_of(logits, targets):
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    schedule = SCHEDULES[name](PipelineStage(module, rank, world, torch.device("cpu")), MICROS, loss_fn=loss_of)
    means = []
    for step in range(STEPS):
        batch = torch.from_numpy(tokens[step].astype("int64"))
        of_micros = []
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(batch[:, :-1])
        else:
            schedule.step(target=batch[:, 1:], losses=of_micros)
        optimizer.step()
        means.append(sum(loss.item() for loss in of_micros) / MICROS)
    return means


def main():
    orders = [
        {"schedule": name, "p": p, "v": v, "m": m, "ranks": on_ranks(p, order, name, v, m)} for name, p, v, m in CASES
    ]
    means = {name: on_ranks(2, losses, name)[1] for name in ("gpipe", "1f1b")}
    # A line for each order: what changes is seen.
    lines = ",\n  ".join(json.dumps(order) for order in orders)
    head = f' "torch": {json.dumps(torch.__version__)},\n "losses": {json.dumps(means)}'
    (FIXTURES / "pipelines.json").write_text(f'{{\n{head},\n "orders": [\n  {lines}\n ]\n}}\n')
    print(f"{len(orders)} orders; losses {means}")


if __name__ == "__main__":
    main()
