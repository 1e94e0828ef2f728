#!/usr/bin/env python3
"""Holds plans of two ranks on this machine's CPU beside their predictions.

    bench/verify_ranks.py build/ballast [--store STORE] [--steps 20] [--width 256] [--mpirun]
        [--tolerance PERCENT] [--agreement SHARE]

Ten plans of one small model: ZeRO 0 to 3, two ways to step with the optimizer on the CPU, tensor
ranks with and without norms split by token, Ulysses and a ring. Each is run by `verify` with one
compute thread a rank, as threads of one process, or with --mpirun as two processes. Without --store
the machine and what two ranks exchange are profiled first. Prints a table of Markdown, the median
error of step times, of how many pairs of plans the measured order is the predicted one, and how far
the memory of any rank is from its plan. What a plan keeps for steps that are taken back is touched
where one is: memory is that of a run of its own, whose gradients are all clipped. Exit code 1 where
memory is off by more than 1 %, or where --tolerance or --agreement is not kept.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

CONFIG = """{"model_type": "gpt2", "n_embd": WIDTH, "n_head": 4, "n_layer": 4, "n_positions": 128,
"vocab_size": 256, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
"tie_word_embeddings": true, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"""
COMMON = ["--model", "mid.json", "--machine", "here", "--devices", "2", "--sequence-length", "128",
          "--global-batch", "8", "--micro-batch", "2"]
RESIDENT = ["--strategy", "resident", "--data-parallel", "2"]
OFFLOADED = ["--strategy", "superoffload", "--data-parallel", "2", "--zero-stage", "2", "--set",
             "plan.weights.flow_share=0", "--set", "plan.optimizer.gpu_buckets=0"]
PLANS = {
    **{f"ZeRO {stage}": [*RESIDENT, "--zero-stage", str(stage)] for stage in range(4)},
    **{f"offloaded, {sync}": [*OFFLOADED, "--set", f"plan.optimizer.sync={sync}"]
       for sync in ("wait", "speculate")},
    "tensor": ["--strategy", "resident", "--tensor", "2"],
    "tensor, norms by token": ["--strategy", "resident", "--tensor", "2", "--set",
                               "plan.tensor_sequence=true"],
    "Ulysses": ["--strategy", "resident", "--sequence", "2"],
    "ring": ["--strategy", "resident", "--context", "2"],
}
MOST_MEMORY_ERROR = 1  # percent
SMALL = 1 << 16        # bytes: a page more is no error of a plan


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ballast", type=pathlib.Path)
    parser.add_argument("--store", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--mpirun", action="store_true")
    parser.add_argument("--tolerance", type=float, help="of the median error, percent")
    parser.add_argument("--agreement", type=float, help="the least share of pairs in order")
    return parser.parse_args()


def run(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def memory_error(verified):
    """The furthest of all ranks' places, in percent of what was planned."""
    furthest = 0.0
    ranks = verified["measured"]["memory_bytes_of_ranks"]
    assert len(ranks) == 2
    for place, planned in verified["predicted"]["memory_bytes"].items():
        for rank in ranks:
            apart = rank.get(place, 0) - planned
            if abs(apart) > SMALL:
                furthest = max(furthest, 100 * abs(apart) / planned)
    return furthest


def agreement(rows):
    """Of pairs of plans, those whose measured order is the predicted one."""
    pairs = list(itertools.combinations(rows, 2))
    in_order = [(a[1] - b[1]) * (a[2] - b[2]) > 0 for a, b in pairs]
    return sum(in_order) / len(pairs)


def verify(args, folder, store, flags, steps):
    launcher = ["mpirun", "-n", "2", "--oversubscribe"] if args.mpirun else []
    run([*launcher, args.ballast, "verify", *COMMON, *flags, "--store", store, "--steps",
         str(steps), "--compute-threads", "1", "--out", "verified.json"], folder)
    return json.loads((folder / "verified.json").read_text())


def main():
    args = arguments()
    args.ballast = args.ballast.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "mid.json").write_text(CONFIG.replace("WIDTH", str(args.width)))
        store = args.store.resolve() if args.store else folder / "store.db"
        if not args.store:
            run([args.ballast, "profile", "--store", store], folder)
            launcher = ["mpirun", "-n", "2", "--oversubscribe"] if args.mpirun else []
            run([*launcher, args.ballast, "profile", "--ranks", "2", "--store", store], folder)
        rows, loads = [], []
        print("| plan | predicted | measured | error | memory |\n| --- | --- | --- | --- | --- |")
        for name, flags in PLANS.items():
            verified = verify(args, folder, store, flags, args.steps)
            predicted = verified["predicted"]["step_time_s"]
            measured = verified["measured"]["step_time_s"]
            error = verified["error_percent"]["step_time_s"]
            memory = memory_error(verify(args, folder, store, [*flags, "--clip", "1e-3"], 4))
            rows.append((name, predicted, measured, abs(error), memory))
            if verified["machine_load"]:
                loads.append(verified["machine_load"]["other_cores"])
            print(f"| {name} | {1e3 * predicted:.1f} ms | {1e3 * measured:.1f} ms | {error:+.1f} % "
                  f"| {memory:.2f} % |", flush=True)
    median = statistics.median(row[3] for row in rows)
    furthest = max(row[4] for row in rows)
    ordered = agreement(rows)
    busy = f"; other programs had {statistics.mean(loads):.1f} cores meanwhile" if loads else ""
    print(f"\nmedian error {median:.1f} %, {ordered:.2f} of pairs in order, memory within "
          f"{furthest:.2f} %{busy}")
    kept = furthest <= MOST_MEMORY_ERROR
    kept &= args.tolerance is None or median <= args.tolerance
    kept &= args.agreement is None or ordered >= args.agreement
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
