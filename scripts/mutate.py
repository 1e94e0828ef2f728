#!/usr/bin/env python3
"""Feeds mutated files of every format to the program, and looks at how it ends.

    scripts/mutate.py BUILD [--count 1000] [--seed 1] [--jobs 2] [--only NAME ...]
        [--most-seconds 10] [--most-mb 2000] [--keep FOLDER] [--store STORE] [--time-box SECONDS]

BUILD is a build folder with `ballast` and `fork_server` (tests/cli/mutation/fork_server.cpp), which
forks a child for every hundred tries; what is found is tried again in a child of its own, and the
line says so where it does not happen there. An exit code other than 0 to 3, a signal, more than so
many seconds of a core or so much memory, or text of another library ("json.exception", "terminate
called") is a finding; its file and its line are kept in FOLDER, and the script exits with 1. So is
what has not ended after twelve times as many seconds of a clock: it hangs. Every try follows from
the seed and its number alone: `--seed S --first N --count 1` does the Nth again. With a time box no
try begins after it. The last lines say how many tries there were, how they ended, and what the most
costly took. Works with sanitized builds, whose shadow counts as memory.
"""
import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import queue
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

from tiny_model import CONFIG

NUMBERS = ["0", "-1", "1e308", "-1e308", "1e-308", "9223372036854775807", "9223372036854775808",
           "-9223372036854775808", "2147483648", "4294967296", "0.5", "3", "7", "null", "true",
           "\"\"", "\"x\"", "[]", "{}", "[[[[1]]]]", "1000003", "1e18"]
SCRAPS = [b"\0", b"\xff\xfe", b"{", b"}", b"[", b"]", b"\"", b",", b":", b"\\u0000", b"\x1b[31m",
          b"[" * 5000, b"{\"a\":" * 5000, b"9" * 400, b"nan", b"-", b"\n"]
FOREIGN = ["json.exception", "terminate called", "CHECK", "AddressSanitizer", "runtime error",
           "mimalloc"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--most-seconds", type=float, default=10)
    parser.add_argument("--most-mb", type=int, default=2000)
    parser.add_argument("--keep", default="mutated")
    parser.add_argument("--time-box", type=float, default=float("inf"))
    parser.add_argument("--store")
    return parser.parse_args()


# A model of two layers and short sequences: what reads a file is tried, not what a model costs.
TINY = ["--sequence-length", "16", "--global-batch", "2", "--store", "here.db"]
ON = [*TINY, "--machine", "gh200-96gb-480gb"]
# Plans with nothing left open: no search begins before the file is read, or because it is.
SETTLED = ["--plan", "settled.json", "--store", "here.db"]
TRAINED = ["--plan", "trained.json", "--store", "here.db"]
# What reads a file of each kind; FILE is the mutated one. "copy": where it has to lie.
CASES = {
    "plan": ("plan.json", [["predict", "--plan", "FILE", "--store", "here.db"],
                           ["graph", "--plan", "FILE", "--store", "here.db"],
                           ["export", "--deepspeed", "FILE", "--store", "here.db"],
                           ["export", "--megatron", "FILE", "--store", "here.db"],
                           ["export", "--torchtitan", "FILE", "--store", "here.db"]]),
    "config": ("tiny.json", [["predict", "--model", "FILE", *ON], ["models", "show", "FILE"]]),
    "machine": ("machine.json", [["predict", "--machine", "FILE", *SETTLED],
                                 ["machines", "show", "FILE", "--store", "here.db"]]),
    # Of eight GPUs, with a fabric, a network, prices and what is on offer.
    "cluster": ("cluster.json", [["predict", "--machine", "FILE", "--devices", "2",
                                  "--zero-stage", "3", *SETTLED],
                                 ["machines", "show", "FILE", "--store", "here.db"]]),
    "strategy": ("strategy.json", [["predict", "--model", "tiny.json", "--strategy", "FILE", *ON],
                                   ["strategies", "show", "FILE"]]),
    "stack": ("stack.json", [["predict", "--stack", "FILE", *SETTLED]]),
    "case": ("case.json", [["validate", "FILE"]]),
    "verify": ("verify.json", [["report", "--verify", "FILE", "--out", "OUT.html", "--store",
                                "here.db"]]),
    "tune": ("tune.json", [["report", "--tune", "FILE", "--out", "OUT.html", "--store",
                            "here.db"]]),
    "compare": ("compare.json", [["report", "--compare", "FILE", "--out", "OUT.html", "--store",
                                  "here.db"]]),
    "validation": ("validation.json", [["report", "--validation", "FILE", "--out", "OUT.html"]]),
    "deepspeed": ("deepspeed.json", [["import", "--deepspeed", "FILE", "--model", "tiny.json",
                                      "--devices", "1", "--machine", "gh200-96gb-480gb"]]),
    "megatron": ("megatron.txt", [["import", "--megatron", "FILE", "--model", "tiny.json",
                                   "--devices", "1", "--machine", "gh200-96gb-480gb"]]),
    "store": ("here.db", [["predict", "--plan", "trained.json", "--machine", "here", "--store",
                           "FILE"],
                          ["machines", "show", "here", "--store", "FILE"],
                          ["verify", "--history", "--store", "FILE"]]),
    # Of a program that wrote no digests: what is behind them is reached.
    "older-store": ("older.db", [["predict", "--plan", "trained.json", "--machine", "here",
                                  "--store", "FILE"],
                                 ["machines", "show", "here", "--store", "FILE"],
                                 ["verify", "--history", "--store", "FILE"]]),
    "weights": ("model.safetensors", [["train", *TRAINED, "--data", "text.txt", "--steps", "1",
                                       "--import", "FILE"]]),
    "checkpoint": ("step-00000002.safetensors",
                   [["train", *TRAINED, "--data", "text.txt", "--steps", "3", "--checkpoint",
                     "FOLDER", "--resume"]]),
    "metrics": ("metrics.jsonl", [["report", "--metrics", "FILE", "--out", "OUT.html", *TRAINED]]),
    "tokens": ("tokens.bin", [["train", *TRAINED, "--data", "FILE", "--steps", "1"]]),
}


class Server:
    """A program that forks a child for so many runs."""
    MOST_CLOCK = 12  # times the seconds of a core: others use the machine

    def __init__(self, build, runs=100):
        self.process = subprocess.Popen([str((build / "fork_server").resolve()), str(runs)],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)  # Ctrl-C is for the script

    def end(self):
        self.process.stdin.close()
        self.process.wait()

    def run(self, folder, words, most_seconds):
        """The exit code, or a signal below 0; seconds of a core and of a clock; megabytes."""
        seconds = str(int(most_seconds)), str(int(most_seconds * self.MOST_CLOCK))
        self.process.stdin.write("\t".join((str(folder), *seconds, *words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the server ended at {' '.join(words)}")
        code, core, clock, kilobytes = line.split()
        return int(code), float(core), float(clock), int(kilobytes) / 1024


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.ballast = str((options.build / "ballast").resolve())
        (folder / "tiny.json").write_text(CONFIG)
        (folder / "text.txt").write_text("".join(f"the quick brown fox {i * i}\n"
                                                 for i in range(400)))
        draw = random.Random(0)
        (folder / "tokens.bin").write_bytes(bytes(draw.randrange(256) if i % 2 == 0 else 0
                                                  for i in range(8000)))
        if options.store:
            shutil.copy(options.store, folder / "here.db")
        else:
            self.make("profile", "--quick", "--store", "here.db")
        shutil.copy(folder / "here.db", folder / "older.db")
        self.take_digests_out(folder / "older.db")
        on = ["--model", "tiny.json", *TINY]
        self.make("predict", *on, "--machine", "here", "--plan-out", "trained.json")
        on = TRAINED
        self.make("verify", *on, "--steps", "3", "--data", "text.txt", "--out", "verify.json")
        self.make("train", *on, "--data", "text.txt", "--steps", "2", "--checkpoint", "kept",
                  "--export", "model.safetensors", "--metrics", "metrics.jsonl")
        shutil.copy(folder / "kept/step-00000002.safetensors", folder)
        of_tiny = ["--model", "tiny.json", *ON]
        self.make("predict", *of_tiny, "--plan-out", "plan.json")
        shutil.copy(folder / "plan.json", folder / "settled.json")
        text = self.make("tune", *of_tiny, "--json", "--deadline", "5", "--out", "tuned.json")
        (folder / "tune.json").write_text(text)
        self.make("compare", *of_tiny, "--strategy", "superoffload,zero-offload", "--out",
                  "compare.json")
        for name, words in (("machine", ["machines", "show", "gh200-96gb-480gb"]),
                            ("cluster", ["machines", "show", "dgx-h100-80gb"]),
                            ("strategy", ["strategies", "show", "zero-offload"])):
            (folder / f"{name}.json").write_text(self.make(*words))
        root = pathlib.Path(__file__).resolve().parent.parent
        shutil.copy(root / "profiles/stacks/deepspeed-2024.json", folder / "stack.json")
        # One whose plan leaves little open.
        shutil.copy(root / "profiles/published/korthikanti-time.json", folder / "case.json")
        self.make("validate", "case.json", "--out", "validation.json")
        (folder / "deepspeed.json").write_text(self.make("export", "--deepspeed", "plan.json"))
        (folder / "megatron.txt").write_text(self.make("export", "--megatron", "plan.json"))

    @staticmethod
    def take_digests_out(store):
        with contextlib.closing(sqlite3.connect(store)) as database, database:
            tables = [name for name, in database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
                if "row_digest" in columns:
                    database.execute(f"ALTER TABLE {table} DROP COLUMN row_digest")

    def make(self, *words):
        done = subprocess.run([self.ballast, *words], cwd=self.folder, capture_output=True,
                              text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
        return done.stdout


def mutate(content, draw, is_text):
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        if not content:
            return content
        at = draw.randrange(len(content))
        kind = draw.random()
        if is_text and kind < 0.45:
            content = with_other_value(content, draw)
        elif kind < 0.6:
            flipped = bytes([content[at] ^ 1 << draw.randrange(8)])
            content = content[:at] + flipped + content[at + 1:]
        elif kind < 0.7:
            content = content[:at] + content[at + draw.choice((1, 2, 16, 200)):]
        elif kind < 0.8:
            end = at + draw.choice((1, 16, 100))
            content = content[:end] + content[at:end] + content[end:]
        elif kind < 0.92:
            content = content[:at] + draw.choice(SCRAPS) + content[at:]
        else:
            content = content[:at]
    return content


def with_other_value(content, draw):
    """One value of a JSON document is another one, or one of its keys is gone or there twice."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content + draw.choice(SCRAPS)
    places = []

    def visit(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                visit(value[key])

    if isinstance(document, (dict, list)):
        visit(document)
    if not places:
        return content
    value, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.7:
        value[key] = json.loads(draw.choice(NUMBERS))
    elif kind < 0.85 and isinstance(value, dict):
        del value[key]
    else:
        other, where = draw.choice(places)
        value[key] = json.loads(json.dumps(other[where]))
    return json.dumps(document, indent=1).encode()


class Try:
    """One mutated file, in a folder of its own."""

    def __init__(self, bench, number):
        self.number = number
        draw = random.Random(bench.options.seed * 1_000_003 + number)
        names = bench.options.only or list(CASES)
        self.name = names[number % len(names)]
        source, lines = CASES[self.name]
        is_text = source.endswith((".json", ".txt", ".jsonl"))
        content = mutate((bench.folder / source).read_bytes(), draw, is_text)
        self.folder = bench.folder / f"try-{number}"
        self.bench = bench
        self.file = self.folder / ("kept" if self.name == "checkpoint" else "") / \
            ("m-" + source if self.name == "store" else source)
        self.content = content
        self.put_files()
        words = {"FILE": str(self.file.relative_to(self.folder)), "FOLDER": "kept"}
        self.words = [words.get(word, word) for word in draw.choice(lines)]

    def put_files(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for kept in ("tiny.json", "text.txt", "here.db", "settled.json", "trained.json"):
            shutil.copyfile(self.bench.folder / kept, self.folder / kept)
        (self.folder / "kept").mkdir()
        self.file.write_bytes(self.content)

    def run(self, server, options):
        self.code, self.core, self.clock, self.megabytes = server.run(
            self.folder, self.words, options.most_seconds)
        self.text = (self.folder / "err").read_text(errors="replace")
        self.wrong = self.fault(options)
        if self.wrong:
            self.run_alone(options)
            keep = pathlib.Path(options.keep) / f"{options.seed}-{self.number}"
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(self.folder, keep)
            (keep / "line").write_text(" ".join(self.words) + "\n" + self.wrong + "\n")
        shutil.rmtree(self.folder)
        return self

    def run_alone(self, options):
        first, text = self.wrong, self.text
        self.put_files()
        server = Server(options.build, runs=1)
        self.code, self.core, self.clock, self.megabytes = server.run(
            self.folder, self.words, options.most_seconds)
        server.end()
        self.text = (self.folder / "err").read_text(errors="replace")
        self.wrong = self.fault(options)
        if not self.wrong:
            self.wrong, self.text = f"{first}, but not alone", text

    def fault(self, options):
        late = options.most_seconds
        if self.core >= late or self.clock >= late * Server.MOST_CLOCK:
            return f"it took {self.core:.1f} s of a core, {self.clock:.1f} s in all"
        if self.code not in (0, 1, 2, 3):
            return f"it ended with {self.code}"
        if 0 < options.most_mb < self.megabytes:
            return f"it took {self.megabytes:.0f} MB"
        if self.code == 2 and self.text.count("ballast: ") < 1:
            return "it ended with 2 and said nothing"
        for foreign in FOREIGN:
            if foreign in self.text:
                return f"it says '{foreign}'"
        return None

    def __str__(self):
        return f"{self.name} {self.number}: {' '.join(self.words)}"


class Progress:
    """A line on stderr every so many seconds."""
    SECONDS = 30

    def __init__(self, count):
        self.count = count
        self.began = self.said = time.monotonic()

    def say(self, tries, findings):
        now = time.monotonic()
        if now - self.said >= self.SECONDS:
            self.said = now
            print(f"{tries} of {self.count} tries, {findings} findings, {now - self.began:.0f} s",
                  file=sys.stderr, flush=True)


def all_tries(bench):
    """Each as it ends. As many servers as jobs; none begins after the time box or a signal."""
    options = bench.options
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    servers = queue.Queue()
    for _ in range(options.jobs):
        servers.put(Server(options.build))
    end = time.monotonic() + options.time_box

    def one(number):
        if stopped.is_set() or time.monotonic() > end:
            return None
        server = servers.get()
        done = Try(bench, number).run(server, options)
        servers.put(server)
        return done

    numbers = range(options.first, options.first + options.count)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in pool.map(one, numbers):
            if done:
                yield done


def main():
    options = arguments()
    unknown = set(options.only) - set(CASES)
    if unknown:
        sys.exit(f"no such format: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    findings = tries = 0
    codes = {}
    cores = {}
    longest = largest = None
    progress = Progress(options.count)
    with tempfile.TemporaryDirectory() as folder:
        for done in all_tries(Bench(options, pathlib.Path(folder))):
            tries += 1
            codes[done.code] = codes.get(done.code, 0) + 1
            count, core = cores.get(done.name, (0, 0))
            cores[done.name] = (count + 1, core + done.core)
            if not longest or done.core > longest.core:
                longest = done
            if not largest or done.megabytes > largest.megabytes:
                largest = done
            if done.wrong:
                findings += 1
                last = " ".join(done.text.strip().splitlines()[-1:])
                print(f"{done}: {done.wrong}: {last[:200]}", flush=True)
            progress.say(tries, findings)
    if not tries:
        sys.exit("no try began before the time box ended or a signal came")
    each = {name: 1000 * core / count for name, (count, core) in cores.items()}
    print("ms of a core a try:", ", ".join(f"{name} {each[name]:.0f}" for name in
                                           sorted(each, key=each.get, reverse=True)))
    print(f"longest: {longest.core:.2f} s of a core, {longest}")
    print(f"largest: {largest.megabytes:.0f} MB, {largest}")
    ended = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
    print(f"seed {options.seed}: {tries} tries ({ended}), {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
