#!/usr/bin/env python3
"""The four experiments of Megatron-Core's document on fine-grained activation offload, predicted.

    scripts/activation_offload_claims.py [--ballast build/ballast] [--only 1,2,3,4]

Each row is a plan without offload and the same with it, of one model on as many GPUs as printed
there. What the document does not say (the GPU, tokens of a sequence, what the baseline recomputes)
is in `taken`. Prints a table in Markdown; a figure is of `predict` alone, none is measured.
"""

import argparse
import json
import subprocess

FATES = ("norm1", "qkv", "core_attention", "attention_out", "norm2", "fc1", "activation", "fc2")
BY_MODULE = {"reload": "by-module", "offload_least_bytes": 2097152}
FULL = {fate: "recompute" for fate in FATES if fate != "fc2"} | {"dispatched": "recompute"}
NORMS = {"norm1": "recompute", "norm2": "recompute"}
H800 = "--machine hgx-h800-80gb"
ONE = "--tensor 1 --context 1"


class Experiment:
    def __init__(self, name, common, baseline, offload, said, taken):
        self.name, self.common, self.said, self.taken = name, common, said, taken
        self.plans = (baseline, offload)


# A plan: flags and what becomes of activations.
EXPERIMENTS = {
    "1": Experiment(
        "DeepSeek-V3-like, 14 MoE layers, 64 experts, 64 GPUs",
        "--model deepseek-v3 --set model.layers=14 --set model.experts=64"
        " --set model.first_dense_layers=0"
        f" {H800} --devices 64 {ONE} --virtual-pipeline 1 --pipeline 4 --expert 16 --micro-batch 1"
        " --global-batch 512"
        " --sequence-length 4096",
        ("", {"activation": "recompute"}),
        (
            "",
            {"activation": "recompute", "fc1": "offload", "dispatched": "offload"}
            | {"attention_out": "offload", "fc2": "offload"}
            | BY_MODULE,
        ),
        "memory -10 to -35 %, time +1 to 2 %",
        "EP 16 for the printed 6, which divides neither 64 experts nor 16 ranks; 4,096 tokens;"
        " the baseline recomputes moe_act",
    ),
    "2": Experiment(
        "DeepSeek-V3, 256 GPUs, MXFP8",
        f"--model deepseek-v3 --machine gb200-nvl72 --devices 256 {ONE} --pipeline 8"
        " --virtual-pipeline 4 --expert 32 --micro-batch 1 --global-batch 2048"
        " --sequence-length 4096 --set plan.products=fp8 --set machine.gpu.memory_gb=400",
        ("", {"activation": "recompute"}),
        ("", {"activation": "recompute", "fc1": "offload"} | BY_MODULE),
        "memory -10.7 %, throughput -1.6 %",
        "GB200, since MXFP8 is Blackwell's; 4,096 tokens; the baseline recomputes moe_act;"
        " 400 GB a GPU for both; one scale a tensor for one of every 32 values",
    ),
    "3": Experiment(
        "Qwen3-235B, 65,536 tokens, 256 GPUs",
        "--model qwen3-235b-a22b"
        f" {H800} --devices 256 --tensor 4 --pipeline 8 --expert 8 --micro-batch 1"
        " --global-batch 1024 --sequence-length 65536 --set plan.tensor_sequence=true",
        (
            "--context 4 --virtual-pipeline 4",
            NORMS | {"fc1": "recompute", "activation": "recompute", "dispatched": "recompute"},
        ),
        (
            "--context 1 --virtual-pipeline 4",
            {"fc1": "recompute", "activation": "recompute", "dispatched": "recompute"}
            | {"norm1": "recompute", "norm2": "recompute", "qkv": "offload"}
            | {"core_attention": "offload", "attention_out": "offload", "fc2": "offload"}
            | BY_MODULE,
        ),
        "the memory of the baseline, throughput +7 to 10 %",
        "94 layers in 32 chunks of 2 or 3; global batch 1,024; the norms' inputs leave, their"
        " outputs are recomputed in both",
    ),
    "4": Experiment(
        "dots.llm, 512 GPUs",
        "--model dots.llm1"
        f" {H800} --devices 512 {ONE} --virtual-pipeline 1 --pipeline 8 --expert 8 --micro-batch 1"
        " --global-batch 4096"
        " --sequence-length 8192",
        ("", FULL),
        (
            "",
            {fate: "recompute" for fate in FATES if fate not in ("fc1", "fc2")}
            | {"fc1": "offload", "dispatched": "recompute"}
            | BY_MODULE,
        ),
        "the memory of full recompute, throughput +7 to 10 %",
        "dots.llm1 for Dots2.llm, which is not published; PP 8, EP 8, 8,192 tokens",
    ),
}


def predicted(ballast, experiment, plan):
    """The prediction of one plan of an experiment."""
    flags, activations = plan
    command = f"{ballast} predict --json --stack megatron-core-2024 {experiment.common} {flags}"
    words = command.split() + [
        "--strategy",
        "megatron",
        "--zero-stage",
        "1",
        "--set",
        "plan.activations=" + json.dumps(activations),
    ]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}\n{run.stderr}")
    return json.loads(run.stdout)


def change(before, after):
    return f"{100 * (after / before - 1):+.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ballast", default="build/ballast")
    parser.add_argument("--only", default="1,2,3,4")
    given = parser.parse_args()
    print("| experiment | GPU memory, without and with | change | step | throughput | said |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for key in given.only.split(","):
        experiment = EXPERIMENTS[key]
        before, after = (predicted(given.ballast, experiment, plan) for plan in experiment.plans)
        memory = [answer["peak_gpu_bytes"] for answer in (before, after)]
        steps = [answer["step_time_s"] for answer in (before, after)]
        print(
            f"| {experiment.name} | {memory[0] / 2**30:.1f} and {memory[1] / 2**30:.1f} GiB"
            f" | {change(*memory)} | {steps[0]:.2f} and {steps[1]:.2f} s"
            f" | {change(steps[1], steps[0])} | {experiment.said} |",
            flush=True,
        )
    for key in given.only.split(","):
        print(f"\n{key}: {EXPERIMENTS[key].taken}.")


if __name__ == "__main__":
    main()
