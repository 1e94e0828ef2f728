#!/usr/bin/env python3
"""Holds what checkpoints were predicted to cost beside what they cost a training on this machine.

    scripts/checkpoint_overhead.py build/ballast [--store STORE] [--steps 120] [--turns 3]
        [--periods 10 20 40] [--overhead 3.5%] [--width 384] [--folder FOLDER]

For each period: `predict --checkpoint-period` with the rates of the machine's profile and with the
seconds in which this disk takes a file of a checkpoint's size, written and synced alone; and
`train --checkpoint-period`, whose steps beside a write and without one are of one run. Then
`train --checkpoint-overhead`, with the period that it chose. In each turn there is a run that keeps
no checkpoint before its end, before the other or after it by turns: how much longer the other takes
as a whole is what checkpoints cost, whichever steps pay for it. Beside the median of all turns
stands the standard error of their mean, which says what a machine with neighbours can tell. Without
--store the machine is profiled first. Prints a table of Markdown.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

CONFIG = """{"model_type": "gpt2", "n_embd": WIDTH, "n_head": 4, "n_layer": 4, "n_positions": 128,
"vocab_size": 256, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
"tie_word_embeddings": true, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"""
PLAN = ["--model", "mid.json", "--sequence-length", "128", "--global-batch", "4", "--strategy",
        "superoffload"]
CHUNK = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ballast")
    parser.add_argument("--store")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--periods", type=int, nargs="*", default=[10, 20, 40])
    parser.add_argument("--overhead", default="3.5%")
    parser.add_argument("--width", type=int, default=384, help="of the model, a multiple of 8")
    parser.add_argument("--folder", help="on the disk that is meant")
    return parser.parse_args()


class Bench:
    def __init__(self, options, folder):
        self.ballast = str(pathlib.Path(options.ballast).resolve())
        self.folder = folder
        (folder / "mid.json").write_text(CONFIG.replace("WIDTH", str(options.width)))
        (folder / "text.txt").write_text("".join(f"the quick brown fox {i * i}\n"
                                                 for i in range(4000)))
        if options.store:
            shutil.copy(options.store, folder / "here.db")
        else:
            self.run("profile", "--store", "here.db")

    def run(self, *words):
        done = subprocess.run([self.ballast, *words], cwd=self.folder, capture_output=True,
                              text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def predict(self, *words):
        return json.loads(self.run("predict", *PLAN, "--machine", "here", "--store", "here.db",
                                   "--json", *words))

    def train(self, steps, *words):
        kept = self.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        return json.loads(self.run("train", *PLAN, "--store", "here.db", "--data", "text.txt",
                                   "--steps", str(steps), "--json", "--checkpoint", "kept", *words))

    def whole_runs(self, steps, is_first, *words):
        """What a run says of its checkpoints, and how much longer it takes than one without."""
        seconds = {}
        for keeps in (is_first, not is_first):
            begin = time.monotonic()
            if keeps:
                checkpoints = self.train(steps, *words)["checkpoints"]
            else:
                self.train(steps, "--checkpoint-period", str(10 * steps))
            seconds[keeps] = time.monotonic() - begin
        checkpoints["longer_percent"] = 100 * (seconds[True] / seconds[False] - 1)
        return checkpoints

    def write_alone(self, size):
        data = os.urandom(CHUNK)
        path = self.folder / "alone"
        begin = time.monotonic()
        with open(path, "wb", buffering=0) as file:
            for _ in range(-(-size // CHUNK)):
                file.write(data)
            os.fsync(file.fileno())
        seconds = time.monotonic() - begin
        path.unlink()
        return seconds


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(options, pathlib.Path(folder))
        size = bench.predict("--checkpoint-period", "10")["checkpoints"]["bytes"]
        write = statistics.median(bench.write_alone(size) for _ in range(5))
        print(f"a checkpoint of {size / 1e6:.0f} MB, which this disk takes in {write:.2f} s\n")
        print("| period, steps | predicted, % | whole runs, % by turns | median, error of the mean "
              "| within the run, % | copy, predicted ms | measured ms | write, measured s "
              "| step s |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for period in options.periods:
            told = bench.predict("--checkpoint-period", str(period), "--checkpoint-write-seconds",
                                 str(write))["checkpoints"]
            row(bench, period, told, options, "--checkpoint-period", str(period))
        runs = row(bench, options.overhead, None, options, "--checkpoint-overhead",
                   options.overhead)
        for run in runs:
            chosen = run["period_steps"]
            told = bench.predict("--checkpoint-period", str(chosen), "--checkpoint-write-seconds",
                                 str(write))["checkpoints"]
            print(f"chose {chosen} steps: {told['overhead_percent']:.2f} % predicted, "
                  f"{run['longer_percent']:.2f} % measured, bound {options.overhead}")


def row(bench, name, told, options, *words):
    runs = [bench.whole_runs(options.steps, turn % 2 == 1, *words) for turn in range(options.turns)]
    measured = [run["longer_percent"] for run in runs]
    within = statistics.median(run["overhead_percent"] for run in runs)
    error = statistics.stdev(measured) / len(measured) ** 0.5 if len(measured) > 1 else 0
    copies = [1e3 * (run["rest_s"] - run["waited_s"]) / run["kept_before_the_end"] for run in runs]
    print(f"| {name} | {told['overhead_percent']:.2f} |" if told else f"| {name} | - |",
          " ".join(f"{one:.2f}" for one in measured),
          f"| {statistics.median(measured):.2f} ± {error:.2f} | {within:.2f} |",
          f"{1e3 * told['copy_s']:.1f} |" if told else "- |",
          f"{statistics.median(copies):.1f} |",
          f"{statistics.median(run['write_s'] for run in runs):.3f} |",
          f"{statistics.median(run['undisturbed_step_s'] for run in runs):.3f} |", flush=True)
    return runs


if __name__ == "__main__":
    main()
