#!/usr/bin/env python3
"""Trains a GPT-2-shaped model on one GPU with PyTorch and times its steps.

modes: compiled      everything on the GPU, bf16, torch.compile, fused AdamW
       fsdp-offload  fully_shard with CPUOffloadPolicy on one rank: weights, gradients and Adam's
                     state rest on the CPU, which steps them (fused AdamW)
Writes {"mode", "parameters", "tokens_per_s", "step_time_s", "peak_gpu_bytes", "torch", "gpu"}.
Random tokens; medians of the steps after a warm-up of three.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.nn.functional as functional
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        sequences, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(sequences, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(sequences, length, width))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens = nn.Embedding(a.vocab, a.width)
        self.positions = nn.Embedding(a.length, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.float(), targets.flatten())


def resident(model):
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return torch.compile(model), optimizer


def offloaded(model):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    for library in ["NCCL", "GLOO"]:  # there may be no network
        os.environ.setdefault(library + "_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    policy = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "offload_policy": CPUOffloadPolicy(),
    }
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    # Fused on the CPU too: else every tensor is walked through a dozen times.
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["compiled", "fsdp-offload"], required=True)
    parser.add_argument("--out", required=True)
    for name, value in [("layers", 48), ("width", 1600), ("heads", 25), ("vocab", 50257),
                        ("length", 1024), ("batch", 8), ("steps", 12)]:
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    torch.manual_seed(1)
    model = Decoder(a)
    parameters = sum(p.numel() for p in model.parameters())
    model, optimizer = (resident if a.mode == "compiled" else offloaded)(model)
    times = []
    for _ in range(a.steps):
        ids = torch.randint(a.vocab, (a.batch, a.length + 1), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    step = statistics.median(times[3:])
    record = {"mode": a.mode, "parameters": parameters, "step_time_s": step,
              "tokens_per_s": a.batch * a.length / step,
              "peak_gpu_bytes": torch.cuda.max_memory_allocated(), "torch": torch.__version__,
              "gpu": torch.cuda.get_device_name()}
    with open(a.out, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
