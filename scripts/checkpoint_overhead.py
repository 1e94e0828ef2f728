#!/usr/bin/env python3
"""Holds what checkpoints were predicted to cost beside what they cost a training on this machine.

    scripts/checkpoint_overhead.py build/ballast [--store STORE] [--steps 120] [--runs 3]
        [--periods 10 20 40] [--overhead 3.5%] [--width 384] [--folder FOLDER]

For each period: `predict --checkpoint-period` with the rates of the machine's profile and with the
seconds in which this disk takes a file of a checkpoint's size, written and synced alone; and two
trainings, one that keeps checkpoints and one that keeps none before its end, which take turns: one
goes on for a period's steps while the other is stopped, so that a machine that gets slower by the
minute slows both. How much longer the same steps take the first is what checkpoints cost, whichever
steps pay for it. Then `train --checkpoint-overhead`, for the period that it chooses and what the
steps beside a write and those without one say of it within one run, and the same two trainings with
that period. Beside the median of the turns stands its standard error, by the medians of the pairs
of trainings: two trainings of the same steps differ by some percent for as long as they live. The
trainings clip nothing: a step that is rolled back repeats what of the next had begun, which is less
where that waited for a checkpoint, so that checkpoints would seem to gain time. The sum of all
turns counts each moment in which a neighbour took the machine. Without --store the machine is
profiled first. Prints a table of Markdown.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
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
NO_CLIP = "1000000"  # no gradient's norm comes near it
COLUMNS = ("period, steps", "predicted, %", "median of turns, %", "their quartiles",
           "all turns, %", "within the run, %", "copy, predicted ms", "measured ms",
           "write, measured s", "step s")
POLL = 0.002  # seconds between looks at a file of some kilobytes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ballast")
    parser.add_argument("--store")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--runs", type=int, default=3, help="pairs of trainings for a period")
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

    def training(self, name, steps, *words):
        """A command that trains with its checkpoints and its lines of steps under this name."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / f"{name}.jsonl").unlink(missing_ok=True)
        return ["train", *PLAN, "--store", "here.db", "--data", "text.txt", "--steps", str(steps),
                "--clip", NO_CLIP, "--json", "--checkpoint", name,
                "--metrics", f"{name}.jsonl", *words]

    def chosen(self, options):
        """What a run says of the checkpoints whose period it chose."""
        return json.loads(self.run(*self.training("kept", options.steps, "--checkpoint-overhead",
                                                  options.overhead)))["checkpoints"]

    def turns(self, period, is_first, options):
        """Seconds of each turn with checkpoints of this period and without, as pairs."""
        both = {}
        pairs = []
        try:
            for keeps in (is_first, not is_first):
                both[keeps] = Training(self, "kept" if keeps else "none", options.steps,
                                       period if keeps else 10 * options.steps)
            for _ in range((options.steps - 1) // period):
                seconds = {keeps: training.goes_on(period) for keeps, training in both.items()}
                pairs.append((seconds[True], seconds[False]))
        finally:
            for training in both.values():
                training.ends()
        return pairs

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


class Training:
    """A training that stands still but while it is told to go on."""

    def __init__(self, bench, name, steps, period):
        self.lines = bench.folder / f"{name}.jsonl"
        command = bench.training(name, steps, "--checkpoint-period", str(period))
        self.process = subprocess.Popen([bench.ballast, *command], cwd=bench.folder,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.steps = 0
        self.waits_for(1)  # the first step touches memory that others find mapped

    def goes_on(self, steps):
        """Seconds that as many steps take."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGCONT)
        self.waits_for(steps)
        return time.monotonic() - begin

    def waits_for(self, steps):
        self.steps += steps
        while not self.lines.exists() or self.lines.read_bytes().count(b"\n") < self.steps:
            if self.process.poll() is not None:
                sys.exit(f"a training ended early:\n{self.process.stderr.read().decode()}")
            time.sleep(POLL)
        self.process.send_signal(signal.SIGSTOP)

    def ends(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.communicate()


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(options, pathlib.Path(folder))
        size = bench.predict("--checkpoint-period", "10")["checkpoints"]["bytes"]
        write = statistics.median(bench.write_alone(size) for _ in range(5))
        print(f"a checkpoint of {size / 1e6:.0f} MB, which this disk takes in {write:.2f} s\n")
        print(f"| {' | '.join(COLUMNS)} |")
        print(f"|{' --- |' * len(COLUMNS)}")
        for period in options.periods:
            row(bench, period, period, write, options)
        run = bench.chosen(options)
        row(bench, f"{options.overhead} chose {run['period_steps']}", run["period_steps"], write,
            options, run)


def longer_of(pairs):
    """How much longer each turn takes with checkpoints, in percent."""
    return [100 * (kept / none - 1) for kept, none in pairs]


def row(bench, name, period, write, options, run=None):
    told = bench.predict("--checkpoint-period", str(period), "--checkpoint-write-seconds",
                         str(write))["checkpoints"]
    by_run = [bench.turns(period, turn % 2 == 1, options) for turn in range(options.runs)]
    pairs = [pair for run_pairs in by_run for pair in run_pairs]
    low, median, high = statistics.quantiles(longer_of(pairs), n=4)
    medians = [statistics.median(longer_of(run_pairs)) for run_pairs in by_run]
    error = statistics.stdev(medians) / len(medians) ** 0.5 if len(medians) > 1 else float("nan")
    whole = 100 * (sum(kept for kept, _ in pairs) / sum(none for _, none in pairs) - 1)
    print(f"| {name} | {told['overhead_percent']:.2f} | {median:.2f} ± {error:.2f} "
          f"| {low:.2f} to {high:.2f} | {whole:.2f} |",
          f"{run['overhead_percent']:.2f} | {1e3 * told['copy_s']:.1f} "
          f"| {1e3 * (run['rest_s'] - run['waited_s']) / run['kept_before_the_end']:.1f} "
          f"| {run['write_s']:.3f} |" if run else f"- | {1e3 * told['copy_s']:.1f} | - | - |",
          f"{sum(none for _, none in pairs) / (len(pairs) * period):.3f} |", flush=True)


if __name__ == "__main__":
    main()
