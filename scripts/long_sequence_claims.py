#!/usr/bin/env python3
"""The longest sequences that SPPO's paper reports, and those that a prediction says fit.

    scripts/long_sequence_claims.py [--ballast build/ballast] [--stack NAME] [--devices 32,64,128]

A 7B model on A100-80GB, 8 a node, 250 GB of CPU memory a GPU (arXiv 2503.10377, figure 12). For
each number of devices the longest that fits, in steps of 65,536 tokens, by bisection from above.
Prints a table in Markdown. --more adds flags, for example
--more="--set plan.activations.reload=look-ahead", or --set plan.multiplex=true.
"""

import argparse
import json
import subprocess

STEP = 65536  # 8,192 tokens of a part on each of 8 ranks
MOST = 128  # steps: 8.4 million tokens
CLAIMS = {32: 1.3, 64: 2.0, 128: 4.0}  # million tokens


def predicted(given, devices, steps):
    """The prediction of one length."""
    length = steps * STEP
    parts = length // (8 * given.part_tokens)
    plan = f"--strategy sppo --sequence 8 --pipeline {devices // 8} --subsequences {parts}"
    if "plan.multiplex" not in given.more:
        plan += " --set plan.multiplex=false"
    command = (
        f"{given.ballast} predict --json --stack {given.stack}"
        " --model llama-2-7b --machine hgx-a100-80gb"
        f" --set machine.cpu.memory_gb=250 --devices {devices} --global-batch 1 --micro-batch 1"
        f" --sequence-length {length} {plan} {given.more}"
    )
    run = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        raise SystemExit(f"{command}\n{run.stderr}")
    return json.loads(run.stdout)


def longest(given, devices):
    # A part has as many tokens in every length.
    grain = given.part_tokens * 8 // STEP
    low, high, best = 0, MOST // grain, None
    while high - low > 1:
        middle = (low + high) // 2
        answer = predicted(given, devices, middle * grain)
        if answer["fits"]:
            low, best = middle, answer
        else:
            high = middle
    return low * grain * STEP, best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ballast", default="build/ballast")
    parser.add_argument("--stack", default="ballast")
    parser.add_argument("--devices", default="32,64,128")
    parser.add_argument("--part-tokens", type=int, default=8192, help="on each of 8 ranks")
    parser.add_argument("--more", default="")
    given = parser.parse_args()
    print("| GPUs | published, million tokens | ours | GPU memory | CPU memory | step |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for devices in (int(text) for text in given.devices.split(",")):
        tokens, best = longest(given, devices)
        if best is None:
            print(f"| {devices} | {CLAIMS[devices]} | none | - | - | - |", flush=True)
            continue
        print(
            f"| {devices} | {CLAIMS[devices]} | {tokens / 1e6:.2f}"
            f" | {best['peak_gpu_bytes'] / 2**30:.1f} GiB"
            f" | {best['peak_cpu_bytes'] / 2**30:.0f} GiB"
            f" | {best['step_time_s']:.0f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
