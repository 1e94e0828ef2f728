#!/usr/bin/env python3
"""Kills one rank of a training under mpirun at random moments, and looks at what is left.

    scripts/kill_ranks.py build/ballast [--kills 20] [--seed 1] [--splits data,expert,...]
        [--most-seconds 10]

After each kill -9 the others end within so many seconds, mpirun with an exit code other than 0,
and a run that is resumed from the folder as it was left, with another number of ranks, ends with
the bits of one of that number that nobody disturbed, which began from the newest checkpoint alone.
The splits take turns: what ranks share (all of SPLITS, unless some are named). Moments, ranks and
ZeRO stages follow from the seed. Exits with 1 at the first kill that is not so.
"""
import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tiny_model import CONFIG, EXPERTS_CONFIG

# By the degree that is killed: the degrees of the ranks that one of is killed, and of those that
# resume. Each rank has all stages of its pipeline.
SPLITS = {
    "data": ({"data": 3}, {"data": 2}),
    "tensor": ({"tensor": 2, "data": 2}, {"tensor": 2}),
    "sequence": ({"sequence": 2, "data": 2}, {"sequence": 2}),
    "context": ({"context": 2, "data": 2}, {"context": 2}),
    "expert": ({"data": 4, "expert": 4}, {"data": 2, "expert": 2}),
    "pipeline": ({"pipeline": 2, "data": 3}, {"pipeline": 2, "data": 2}),
}
BATCH = 12  # sequences of a step, which every number of ranks above divides
PERIOD = 4
EARLY_SHARE = 0.2  # of kills that do not wait for a first checkpoint


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ballast")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--splits", default=",".join(SPLITS),
                        type=lambda text: text.split(","), help="names, between commas")
    parser.add_argument("--most-seconds", type=float, default=10)
    parser.add_argument("--store", help="with machine 'here'; else it is profiled, roughly")
    options = parser.parse_args()
    for split in options.splits:
        if split not in SPLITS:
            parser.error(f"--splits: '{split}' is none of {', '.join(SPLITS)}")
    return options


def ranks_of(degrees):
    """The processes of a plan: data x tensor x sequence x context."""
    count = 1
    for knob, degree in degrees.items():
        count *= degree if knob not in ("pipeline", "expert") else 1
    return count


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.ballast = str(pathlib.Path(options.ballast).resolve())
        (folder / "tiny.json").write_text(CONFIG)
        (folder / "experts.json").write_text(EXPERTS_CONFIG)
        text = "".join(f"the quick brown fox {i * i}\n" for i in range(400))
        (folder / "text.txt").write_text(text)
        self.store = "here.db"
        if options.store:
            shutil.copy(options.store, folder / self.store)
        else:
            self.run([self.ballast, "profile", "--quick", "--store", self.store])

    def run(self, command):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")

    def mpirun(self, ranks):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun", *root, "--oversubscribe", "-n", str(ranks)]

    def train(self, split, degrees, zero_stage, kept, steps):
        devices = ranks_of(degrees) * degrees.get("pipeline", 1)
        plan = {**degrees, "zero_stage": zero_stage, "weights.flow_share": 0, "micro_batch": 1}
        sets = [word for knob in plan.items() for word in ("--set", "plan.{}={}".format(*knob))]
        model = "experts.json" if split == "expert" else "tiny.json"
        return [self.ballast, "train", "--model", model, "--store", self.store, "--data",
                "text.txt", "--sequence-length", "16", "--global-batch", str(BATCH), "--devices",
                str(devices), *sets, "--checkpoint", kept, "--checkpoint-period", str(PERIOD),
                "--resume", "--steps", str(steps)]


def rank_processes(program):
    """The processes of a program that mpirun started, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.readlink(entry / "exe") != program:
                continue
            for word in (entry / "environ").read_bytes().split(b"\0"):
                if word.startswith(b"BALLAST_KILL_RUN=" + str(os.getpid()).encode()):
                    break
            else:
                continue
            for word in (entry / "environ").read_bytes().split(b"\0"):
                if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(word.split(b"=")[1])] = int(entry.name)
        except OSError:  # it has ended, or is another user's
            continue
    return found


def wait_until(condition, seconds):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def newest_of(folder):
    steps = sorted(folder.glob("step-*.safetensors")) if folder.exists() else []
    return steps[-1] if steps else None


def kill_one(bench, number, draw):
    """What went wrong, or None, and a line that says what was done."""
    split = bench.options.splits[(number - 1) % len(bench.options.splits)]
    degrees = SPLITS[split][0]
    ranks = ranks_of(degrees)
    rank = draw.randrange(ranks)
    moment = draw.uniform(0.0, 3.0)
    early = draw.random() < EARLY_SHARE
    # A pipeline splits no weights.
    zero_stage = draw.choice((1, 2) if split == "pipeline" else (1, 2, 3))
    kept = bench.folder / f"kept-{number}"
    environment = {**os.environ, "BALLAST_KILL_RUN": str(os.getpid())}
    line = bench.train(split, degrees, zero_stage, kept.name, 10**6)
    run = subprocess.Popen(bench.mpirun(ranks) + line, cwd=bench.folder, env=environment,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not wait_until(lambda: len(rank_processes(bench.ballast)) == ranks, 60):
        run.kill()
        return "the ranks did not start", ""
    if not early:
        wait_until(lambda: newest_of(kept), 120)
    time.sleep(moment)
    victim = rank_processes(bench.ballast).get(rank)
    if victim is None:
        return f"rank {rank} ended by itself, with {run.poll()}", ""
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    most = bench.options.most_seconds
    ended = wait_until(lambda: run.poll() is not None and not rank_processes(bench.ballast), most)
    seconds = time.monotonic() - begin
    newest = newest_of(kept)
    what = (f"{number}: {split}, rank {rank} of {ranks}, ZeRO {zero_stage}, {moment:.2f} s after "
            f"{'the start' if early else 'a checkpoint'}: "
            f"ended after {seconds:.1f} s with {run.poll()}, newest "
            f"{newest.name if newest else 'none'}")
    if not ended:
        run.kill()
        return f"not all had ended after {most} s", what
    if run.returncode == 0:
        return "mpirun says that all went well", what
    return resume(bench, split, kept, newest, zero_stage), what


def resume(bench, split, kept, newest, zero_stage):
    degrees = SPLITS[split][1]
    ranks = ranks_of(degrees)
    clean = kept.with_name("clean-" + kept.name)
    clean.mkdir()
    if newest:
        step = newest.stem.split("-")[1]
        for file in [newest, *kept.glob(f"shard-{step}-*.safetensors")]:
            shutil.copy(file, clean)
    steps = (int(newest.stem.split("-")[1]) if newest else 0) + 7
    exports = []
    for folder in (kept, clean):
        export = folder.name + ".safetensors"
        line = bench.train(split, degrees, zero_stage, folder.name, steps) + ["--export", export]
        bench.run(bench.mpirun(ranks) + line)
        exports.append((bench.folder / export).read_bytes())
    if exports[0] != exports[1]:
        return f"{ranks} ranks that resumed have other bits than those nobody disturbed"
    return None


def main():
    options = arguments()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        for number in range(1, options.kills + 1):
            wrong, what = kill_one(bench, number, draw)
            print(what + (f": {wrong}" if wrong else ""), flush=True)
            if wrong:
                sys.exit(1)
    print(f"{options.kills} kills, each left a run that resumes")


if __name__ == "__main__":
    main()
