#!/usr/bin/env python3
"""Kills train, profile, tune and export inside a call on a file, and looks at what is left.

    scripts/kill_writes.py build/ballast build/libfault_shim.so [--kills 100] [--seed 1]
        [--only train profile tune export] [--store STORE] [--width 32]

Every kill is at one of the calls that a run of the same line makes (write, sync, rename, unlink,
close, open for writing; a write that is killed has written half), drawn by the seed. Trainings take
turns in how they step (wait, delay, speculate). After it:

* train: the newest checkpoint is whole and no older than the period allows, a run that resumes has
  the bits of one that nobody disturbed, and it leaves nothing half written;
* profile, tune: the store opens and tells what it told before or what the run adds, and the same
  line then ends well;
* export (train --export): the file is the old one or the new one, whole.

A model of --width 192 has checkpoints of 11 MB, which are written by direct I/O.

Exits with 1 at the first kill after which that is not so.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

from tiny_model import CONFIG

PERIOD = 3
STEPS = 11
TOLD_EVERY = 50
SYNCS = ["wait", "delay", "speculate"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ballast")
    parser.add_argument("shim")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["train", "profile", "tune", "export"])
    parser.add_argument("--store")
    parser.add_argument("--width", type=int, default=32, help="of the model, a multiple of 8")
    return parser.parse_args()


class Bench:
    def __init__(self, options, folder):
        self.ballast = str(pathlib.Path(options.ballast).resolve())
        self.shim = str(pathlib.Path(options.shim).resolve())
        self.folder = folder
        (folder / "tiny.json").write_text(CONFIG.replace('"n_embd": 32',
                                                         f'"n_embd": {options.width}'))
        (folder / "text.txt").write_text("".join(f"the quick brown fox {i * i}\n"
                                                 for i in range(400)))
        if options.store:
            shutil.copy(options.store, folder / "here.db")
        else:
            self.must("profile", "--quick", "--store", "here.db")
        # What the store learns at the first run of a plan it knows from there on.
        self.whole = {}
        for sync in SYNCS:
            self.must(*self.train(f"warm-{sync}", "warm.safetensors", sync))
            self.whole[sync] = (folder / "warm.safetensors").read_bytes()
        shutil.copy(folder / "here.db", folder / "known.db")
        self.counts = {}

    def start(self, words, **environment):
        return subprocess.run([self.ballast, *words], cwd=self.folder, capture_output=True,
                              text=True, env={**os.environ, **environment})

    def must(self, *words):
        done = self.start(words)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def train(self, kept, export, sync):
        return ["train", "--model", "tiny.json", "--store", "here.db", "--data", "text.txt",
                "--sequence-length", "16", "--global-batch", "2", "--steps", str(STEPS),
                "--checkpoint", kept, "--checkpoint-period", str(PERIOD), "--resume", "--export",
                export, "--set", f"plan.optimizer.sync={sync}"]

    def line(self, verb, sync):
        if verb == "profile":
            return ["profile", "--quick", "--store", "here.db"], "here.db"
        if verb == "tune":
            return ["tune", "--model", "gpt2", "--machine", "gh200-96gb-480gb", "--global-batch",
                    "8", "--store", "here.db", "--deadline", "5", "--out", "plan.json"], \
                   str(self.folder)
        where = "/kept/" if verb == "train" else "/out.saf"
        return self.train("kept", "out.safetensors", sync), where

    def begin_anew(self, verb):
        for name in ("kept", "out.safetensors", "plan.json"):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for left in self.folder.glob("here.db*"):
            left.unlink()
        shutil.copy(self.folder / "known.db", self.folder / "here.db")
        if verb == "export":
            (self.folder / "out.safetensors").write_bytes(b"the old one")

    def calls(self, verb, sync):
        of = f"{verb}, {sync}" if verb in ("train", "export") else verb
        if of not in self.counts:
            self.begin_anew(verb)
            words, where = self.line(verb, sync)
            done = self.start(words, LD_PRELOAD=self.shim, BALLAST_FAULT_IN=where,
                              BALLAST_FAULT_CALL="any", BALLAST_FAULT_AT="0",
                              BALLAST_FAULT_COUNT="count")
            if done.returncode != 0:
                sys.exit(f"{verb} under the shim ended with {done.returncode}:\n{done.stderr}")
            self.counts[of] = int((self.folder / "count").read_text())
            print(f"{of}: {self.counts[of]} calls on files", flush=True)
        return self.counts[of]

    def parts(self):
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*.part-*")]


def kill_one(bench, verb, sync, draw):
    """The number of the call, and what is wrong or None."""
    at = draw.randint(1, bench.calls(verb, sync))
    bench.begin_anew(verb)
    words, where = bench.line(verb, sync)
    done = bench.start(words, LD_PRELOAD=bench.shim, BALLAST_FAULT_IN=where,
                       BALLAST_FAULT_CALL="any", BALLAST_FAULT_AT=str(at),
                       BALLAST_FAULT_WHAT="KILL")
    if done.returncode == 0:
        return at, None, False  # a run may make fewer calls than the one that was counted
    if done.returncode != -9:
        return at, f"it ended with {done.returncode}: {done.stderr}", False
    return at, after_kill(bench, verb, sync, words), True


def after_kill(bench, verb, sync, words):
    if verb == "export":
        left = (bench.folder / "out.safetensors").read_bytes()
        if left not in (b"the old one", bench.whole[sync]):
            return "the export is neither the old one nor the new one"
    if verb in ("profile", "tune"):
        told = bench.start(["predict", "--model", "tiny.json", "--machine", "here",
                            "--sequence-length", "16", "--global-batch", "2", "--store",
                            "here.db"])
        if told.returncode not in (0, 1):
            return f"the store does not tell of this machine: {told.stderr}"
        plan = bench.folder / "plan.json"
        if plan.exists():
            json.loads(plan.read_text())
    again = bench.start(words)
    if again.returncode != 0:
        return f"the same line ends with {again.returncode}: {again.stderr}"
    if ".damaged" in again.stderr or list(bench.folder.rglob("*.damaged")):
        return f"a checkpoint was not whole: {again.stderr}"
    if verb in ("train", "export"):
        if (bench.folder / "out.safetensors").read_bytes() != bench.whole[sync]:
            return "a run that resumes has other bits"
    if bench.parts():
        return f"left half written: {bench.parts()}"
    return None


def main():
    options = arguments()
    draw = random.Random(options.seed)
    killed = dict.fromkeys(options.only, 0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        for number in range(options.kills):
            verb = options.only[number % len(options.only)]
            sync = SYNCS[number // len(options.only) % len(SYNCS)]
            at, wrong, was_killed = kill_one(bench, verb, sync, draw)
            killed[verb] += was_killed
            if wrong:
                print(f"{number}: {verb}, {sync}, call {at} of {bench.calls(verb, sync)}: {wrong}")
                sys.exit(1)
            if (number + 1) % TOLD_EVERY == 0:
                print(f"{number + 1} tries, {sum(killed.values())} kills", flush=True)
    told = ", ".join(f"{count} of {verb}" for verb, count in killed.items())
    print(f"seed {options.seed}: {sum(killed.values())} kills ({told}), nothing lost")


if __name__ == "__main__":
    main()
