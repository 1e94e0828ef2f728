#!/usr/bin/env python3
"""Times torch.optim.AdamW on the CPU, plain, foreach and fused, beside bench/adam_bench.

    pip install torch --index-url https://download.pytorch.org/whl/cpu
    python3 scripts/bench_torch_adam.py [--parameters 64000000] [--threads 1,2]
                                        [--adam-bench build/bench/adam_bench]

Prints one line a case: nanoseconds a parameter, the median of the steps after two to warm up, and
GB/s of the 28 bytes that a step must move. With --adam-bench, runs our best table before and after
on the same size and threads, and prints how many times faster it is.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

BYTES_PER_PARAMETER = 28  # master, two moments read and written, gradient read; all f32


def time_torch(torch, parameters, threads, form):
    torch.set_num_threads(threads)
    weight = torch.nn.Parameter(torch.full((parameters,), 0.02))
    weight.grad = torch.randn(parameters) * 1e-3
    optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.01, **form)
    seconds = []
    for _ in range(2 + 7):
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return 1e9 * statistics.median(seconds[2:]) / parameters


def time_ours(adam_bench, parameters, threads):
    out = subprocess.run(
        [adam_bench, f"--parameters={parameters}", f"--threads={threads}",
         "--benchmark_filter=^step/.*/f32/", "--benchmark_format=json"],
        capture_output=True, text=True, check=True).stdout
    runs = json.loads(out)["benchmarks"]
    return min((run["ns_per_parameter"], run["name"].split("/")[1]) for run in runs)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--parameters", type=int, default=64_000_000)
    arguments.add_argument("--threads", default="1,2", help="comma-separated (default %(default)s)")
    arguments.add_argument("--adam-bench", help="path of our benchmark, to compare in the same run")
    options = arguments.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("bench_torch_adam: torch is not installed; see the first lines of this file")

    forms = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    print(f"torch {torch.__version__}, {options.parameters} parameters, f32")
    for threads in map(int, options.threads.split(",")):
        rows = []
        if options.adam_bench:
            rows.append(time_ours(options.adam_bench, options.parameters, threads))
        for name, form in forms.items():
            try:
                rows.append((time_torch(torch, options.parameters, threads, form), "torch " + name))
            except (RuntimeError, TypeError, ValueError) as error:
                print(f"  threads {threads}  torch {name}: not here ({str(error).splitlines()[0]})")
        if options.adam_bench:
            rows.append(time_ours(options.adam_bench, options.parameters, threads))
        ours = min((ns for ns, name in rows if not name.startswith("torch")), default=None)
        for ns, name in rows:
            line = f"  threads {threads}  {name:14s} {ns:7.3f} ns/parameter " \
                   f"{BYTES_PER_PARAMETER / ns:7.1f} GB/s"
            print(line + (f"  {ns / ours:5.2f} x ours" if ours else ""))


if __name__ == "__main__":
    main()
