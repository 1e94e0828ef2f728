#!/usr/bin/env python3
"""Makes profiles/kernels and profiles/fabrics from profiles/published/micro.

    scripts/make_kernel_tables.py            # writes the tables again
    scripts/make_kernel_tables.py --thin DIR # first copies from DIR what the tables are made from

What is left out, by rule: products of a kernel that no framework's library has (own kernels,
TileLang), of a GPU with another power limit, that include the time to launch or to quantise; the
best of a search over shapes (an extreme, not a sample); attention of whose time more than 5 % may
be its launch (bounds of what a model may say of it), or whose mask, shape or GPU the source does
not say, or that must repeat its bits; products of experts in groups, which are another kernel;
batched products of the grid (a check: a batch counts as so much more of m and n). Where two series
hold one shape, the one with more points is kept. Attention with a sliding window of w counts as
that of a sequence of 2 w, whose queries see as many keys on average. The constants of the models
are fitted here, by a search that always takes the same steps, to the points of their own table.

Of collectives: sizes at which the listed bandwidth is rounded by more than 1 %, and below 1 MiB
the times of XLA, which are of its rendezvous; sizes that took longer than a larger one;
all-reduces of XLA where NCCL's own benchmark has them; runs whose network or sizes the source does
not say.
"""
import json
import math
import os
import random
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MICRO = os.path.join(ROOT, "profiles", "published", "micro")
HARDWARE = os.path.join(ROOT, "profiles", "published", "hardware.json")
OUT = os.path.join(ROOT, "profiles", "kernels")


def entries(name):
    with open(os.path.join(MICRO, name + ".json"), encoding="utf-8") as file:
        return json.load(file)["entries"]


# --- products ---------------------------------------------------------------------------------

REFUSED_NOTES = ("own kernel", "TileLang", "500 W", "launch-bound", "best shape")
# The beginning of a source's machine -> generation, part.
PARTS = {
    "a100": ("ampere", "a100-80gb"),
    "h100-sxm": ("hopper", "h100"),
    "h200-sxm": ("hopper", "h200"),
    "h800-sxm": ("hopper", "h100"),
        "b200": ("blackwell", "b200"),
    "gb200": ("blackwell", "gb200"),
    "gb300": ("blackwell", "gb300"),
    "b300": ("blackwell", "gb300"),
}


def part_of(machine):
    for prefix, part in PARTS.items():
        if machine.startswith(prefix):
            return part
    return None, None


def gemm_points(generation, fp8):
    wanted = ("fp8",) if fp8 else ("bf16", "fp16")
    points = {}
    for name in ("gemm-xla-grid", "gemm"):
        for e in entries(name):
            note = e.get("note", "")
            if e["kind"] not in ("gemm", "batched_gemm") or e["dtype"] not in wanted:
                continue
            of, part = part_of(e["machine"])
            if of != generation or any(word in note for word in REFUSED_NOTES):
                continue
            batch = e.get("groups", 1) or 1
            if batch > 1 and name == "gemm-xla-grid":
                continue
            if e["machine"].startswith("h800"):
                continue  # DeepGEMM, which quantises by blocks
            key = (part, batch, e["m"], e["n"], e["k"])
            flops = 2 * batch * e["m"] * e["n"] * e["k"]
            if key not in points:
                points[key] = (flops / e["value"] / 1e6, e["source"])
    if generation == "hopper" and not fp8:
        with open(HARDWARE, encoding="utf-8") as file:
            for fact in json.load(file)["facts"]:
                if fact["quantity"] == "gemm_bf16_tflops" and fact["machine"] == "h200":
                    m, n, k = fact["shape_mnk"]
                    points[("h200", 1, m, n, k)] = (2 * m * n * k / fact["value"] / 1e6,
                                                    "H200, " + fact["source"])
    return points


TILES = [(128, 256), (256, 128), (128, 192), (192, 128), (128, 128), (64, 256), (256, 64),
         (64, 128), (128, 64), (64, 64)]


def gemm_model(key, c, part, fp8):
    """Microseconds, as KernelModel::modelled, of the first part."""
    _, b, m, n, k = key
    memory = part["memory_bandwidth_gb_per_s"] * 1e3  # bytes per us
    sms = part["multiprocessors"]
    rate = c["tflops"] * 1e6 / sms
    read = b * (1 if fp8 else 2) * (m * k + k * n) / memory
    written = 2 * b * m * n / memory
    best = None
    for tm, tn in TILES:
        share = 1 / (1 + c["load"] * ((tm + tn) / (tm * tn) - 384 / 32768))
        parts = 1
        while parts == 1 or (parts <= 64 and k >= parts * 512):
            waves = -(-(b * -(-m // tm) * -(-n // tn) * parts) // sms)
            us = max(2 * waves * tm * tn * (-(-k // parts) + c["start_k"]) / (rate * share), read)
            us += written
            if parts > 1:
                us += c["split_us"] + 8 * parts * b * m * n / memory
            best = us if best is None else min(best, us)
            parts *= 2
    return c["start_us"] + best


def descend(loss, constants, names, steps=300):
    """Random search with shrinking steps and a fixed seed."""
    dice = random.Random(1)
    best, width = loss(constants), 0.25
    for step in range(steps):
        trial = dict(constants)
        name = dice.choice(names)
        trial[name] *= math.exp(dice.gauss(0, width))
        value = loss(trial)
        if value < best:
            best, constants = value, trial
        if step % 100 == 99:
            width *= 0.6
    return {name: float("%.4g" % value) for name, value in constants.items()}


# Sources whose products were timed after ten thousand others: at the clocks that are held.
LOADED = ("Azure/AI-benchmarking-guide",)


def timed(points):
    """As most points of a table are by their work, which is what training has."""
    loaded = sum(2 * b * m * n * k * (1 if source.startswith(LOADED) else -1)
                 for (_, b, m, n, k), (_, source) in points.items())
    return "under load" if loaded > 0 else "in bursts"


def gemm_table(generation, parts, fp8, first, fit=True):
    points = gemm_points(generation, fp8)
    by_part = {part["part"]: part for part in parts}
    points = {key: value for key, value in points.items() if key[0] in by_part}
    if not points:
        return None
    reference = parts[0]["part"]
    used = {key: value for key, value in points.items() if key[0] == reference} or points

    def loss(c):
        # Large products count more: training has few others.
        return sum(abs(math.log(us / gemm_model(key, c, by_part[key[0]], fp8))) *
                   (8 if 2 * key[1] * key[2] * key[3] * key[4] > 2e11 else 1)
                   for key, (us, _) in used.items())

    constants = descend(loss, first, ["tflops", "start_us", "start_k", "load", "split_us"]) \
        if fit else first
    series = {}
    for key, (us, source) in points.items():
        one = series.setdefault((key[0], source), {name: [] for name in
                                                   ("batch", "m", "n", "k", "us")})
        for name, value in zip(("batch", "m", "n", "k", "us"), key[1:] + (float("%.5g" % us),)):
            one[name].append(value)
    return {"format": "fp8" if fp8 else "16-bit", "timed": timed(points), "model": constants,
            "series": [{"part": part, "source": source, **one}
                       for (part, source), one in series.items()]}


# --- attention --------------------------------------------------------------------------------

KERNELS = ("triton", "flash1", "flash2", "flash3", "flash4", "cudnn9.13", "cudnn")


def attention_entries(generation, kernel):
    """Of a table's kernel: key, entry."""
    for name in ("attention", "attention-more"):
        for e in entries(name):
            if e["implementation"] != kernel or e["dtype"] not in ("bf16", "fp16"):
                continue
            of, part = part_of(e["machine"])
            if of != generation or e.get("causal") is None or "head_dim" not in e:
                continue
            if e["implementation"] == "triton" and e.get("sequence") is None:
                continue
            if e["head_dim"] is None or e["pass"] not in ("forward", "backward"):
                continue
            if e.get("deterministic"):
                continue
            head = (e["head_dim"] + e.get("head_dim_v", e["head_dim"])) // 2
            length = min(e["sequence"], 2 * e.get("sliding_window", e["sequence"]))
            yield (part, head, length, int(e["pass"] == "backward"), int(e["causal"])), e


def mostly_launch(e):
    """Whether more than 5 % of a time may be its launch."""
    return "launch_us_at_most" in e and e["us"] < 20 * e["launch_us_at_most"]


def attention_points(generation, kernel):
    assert kernel in KERNELS
    points = []
    windows = {}
    for key, e in attention_entries(generation, kernel):
        if mostly_launch(e):
            continue
        if "sliding_window" in e:
            windows.setdefault((key, e["source"]), []).append(e["value"])
        else:
            points.append((key, e["value"], e["source"]))
    # Of one window in sequences of several lengths, the median.
    points += [(key, statistics.median(values), source)
               for (key, source), values in windows.items()]
    taken, size = {}, {}
    for _, _, source in points:
        size[source] = size.get(source, 0) + 1
    for key, value, source in points:
        if key not in taken or size[source] > size[taken[key][1]]:
            taken[key] = (value, source)
    return taken


def attention_bounds(generation, kernel):
    """Of times that may be mostly launch: the rate with it, and without the most it can be."""
    return {key: (e["value"], e["value"] * e["us"] / (e["us"] - e["launch_us_at_most"]))
            for key, e in attention_entries(generation, kernel)
            if mostly_launch(e) and e["us"] > 1.5 * e["launch_us_at_most"]}


# Wider heads gain nothing. Forward on a B200 a score takes 4 D / 8,192 cycles of a multiprocessor
# for its two products and 1 / 16 for its exponential (FlashAttention-4, arXiv 2603.05451), which is
# as long at D = 128. No other generation's table has wider heads. kernel_model.cpp has it too, and
# tests/profiles/attention_levels_test.cpp compares the two.
WIDE_HEAD = 128


def attention_model(key, c):
    _, head, length, backward, causal = key
    which = "backward" if backward else "forward"
    rate = c[which + "_tflops"] / (1 + c["half_%s_tokens" % which] / length)
    rate /= 1 + c["half_head_size"] / min(head, WIDE_HEAD)
    return rate / (1 + c["diagonal_tokens"] / length) if causal else rate


def attention_table(generation, kernel, first, fixed=(), bounds=None):
    """`bounds`: of rates that are no points, which each part at its own level shall keep."""
    points = attention_points(generation, kernel)

    def beyond(c):
        levels = {}
        for key, (value, _) in points.items():
            miss = math.log(value / attention_model(key, c))
            levels.setdefault((key[0], key[3]), []).append(miss)
        sum_of = 0
        for key, (low, high) in (bounds or {}).items():
            of = levels[key[0], key[3]]
            rate = attention_model(key, c) * math.exp(sum(of) / len(of))
            sum_of += max(0, math.log(rate / high), math.log(low / rate))
        return sum_of

    def loss(c):
        return beyond(c) + sum(abs(math.log(value / attention_model(key, c)))
                               for key, (value, _) in points.items())

    names = [name for name in first if name not in fixed]
    constants = descend(loss, first, names, 1500) if points and names else first
    series = {}
    columns = ("head_size", "tokens", "backward", "causal", "tflops")
    for key, (value, source) in points.items():
        one = series.setdefault((key[0], source), {name: [] for name in columns})
        for name, item in zip(columns, key[1:] + (value,)):
            one[name].append(item)
    return {"kernel": kernel, "model": constants,
            "series": [{"part": part, "source": source, **one}
                       for (part, source), one in series.items()]}


def attention_first(forward, backward, half=150.0, half_backward=300.0, diagonal=400.0):
    return {"forward_tflops": forward, "backward_tflops": backward, "half_forward_tokens": half,
            "half_backward_tokens": half_backward, "half_head_size": 20.0,
            "diagonal_tokens": diagonal}


# --- collectives ------------------------------------------------------------------------------

FABRICS = os.path.join(ROOT, "profiles", "fabrics")


def bus_factor(kind, ranks):
    return (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks


def fabric_series(name, match, nodes=None, us="time_us", least=0):
    """Series of the entries that match, in the order of the file.

    `nodes` stands for the entry's."""
    series = {}
    for e in entries(name):
        if not match(e) or not e.get("bytes") or e["bytes"] < least:
            continue
        kind = e["kind"].replace("nccl_", "").replace("_", "-")
        of = (nodes or (lambda e: e.get("nodes", 1)))(e)
        time = e.get(us)
        if time is None:
            if e["value"] < 1:
                continue
            time = e["bytes"] * bus_factor(kind, e["ranks"]) / e["value"] / 1e3
        key = (kind, e["ranks"], of, e["source"])
        one = series.setdefault(key, {"bytes": [], "us": []})
        one["bytes"].append(e["bytes"])
        one["us"].append(float("%.5g" % time))
    return [{"kind": kind, "ranks": ranks, "nodes": of, "source": source, **one}
            for (kind, ranks, of, source), one in ((key, ordered(one)) for key, one in
                                                    series.items())]


def ordered(one):
    """Without the sizes that took longer than a larger one did, which is noise or a bad setting."""
    kept = {"bytes": [], "us": []}
    for i, (size, us) in enumerate(zip(one["bytes"], one["us"])):
        if all(later > 0.95 * us for later in one["us"][i + 1:]):
            kept["bytes"].append(size)
            kept["us"].append(us)
    return kept


def fabric(name, description, node, network, series):
    write_columns({"schema": "ballast.fabric/1", "name": name, "description": description,
                   "node": node, "network": network, "series": series},
                  os.path.join(FABRICS, name + ".json"))


def wires(bandwidth, latency, switch=None):
    result = {"bandwidth_gb_per_s": bandwidth, "latency_us": latency}
    if switch:
        result["switch_reduction_gb_per_s"] = switch
    return result


def starts(prefix):
    return lambda e: e["machine"].startswith(prefix)


def xla(prefix, with_all_reduce_of):
    return fabric_series("nccl-xla-node", lambda e: starts(prefix)(e) and (
        e["kind"] != "all_reduce" or e["ranks"] in with_all_reduce_of), least=1 << 20)


def fabrics():
    fabric("alps", "NVLink between four GH200, Slingshot 11 with a card each between nodes; the "
           "fastest of ten settings of NCCL (their median has sizes at which some settings break)",
           wires(370.0, 0.5), wires(23.99, 2.7),
           fabric_series("nccl-alps", lambda e: True, us="time_us_min", least=1024))
    fabric("nvswitch-ampere", "Eight A100 with NVSwitch", wires(235.0, 0.5), None,
           fabric_series("nccl-others", starts("azure-nd-a100")))
    fabric("nvswitch-hopper", "Eight H100 or H200 with NVSwitch, InfiniBand NDR with a card each "
           "between nodes", wires(370.0, 0.5, 480.0), wires(48.0, 2.7),
           fabric_series("nccl-others", starts("azure-nd-h100")) + xla("dgx-h100", (2, 4)) +
           fabric_series("nccl-others", starts("coreweave H100")))
    fabric("nvswitch-blackwell", "Eight B200 with NVSwitch", wires(740.0, 0.5, 846.0), None,
           fabric_series("nccl-others", lambda e: starts("p6-b200")(e) and e["nodes"] == 1) +
           xla("hgx-b200", (2, 4)))
    fabric("efa-b200", "Nodes of eight B200 with NVSwitch, eight 400 Gb/s EFA v4 between nodes",
           wires(740.0, 0.5, 846.0), wires(48.0, 5.0),
           fabric_series("nccl-others", starts("p6-b200")) + xla("hgx-b200", (2, 4)))
    fabric("nvl72", "Racks of 72 GB200 on NVLink, InfiniBand between racks",
           wires(740.0, 0.5, 960.0),
           wires(48.0, 2.7),
           fabric_series("nccl-others", lambda e: starts("coreweave GB200")(e) and
                         e["kind"] == "nccl_all_reduce",
                         nodes=lambda e: {72: 1, 128: 2, 1440: 20}[e["ranks"]]))


# --- files ------------------------------------------------------------------------------------

def part(name, multiprocessors, matmul, memory, source, measured=False):
    return {"part": name, "multiprocessors": multiprocessors, "matmul_tflops": matmul,
            "memory_bandwidth_gb_per_s": memory, "measured": measured, "source": source}


AZURE = "Azure/AI-benchmarking-guide@8fd0c6e1"
GEMM_FIRST = {"tflops": 850.0, "start_us": 4.2, "load": 30.0, "start_k": 32.0, "split_us": 1.5}


def write_columns(document, path):
    """JSON with one line a list of numbers."""
    def text(value, indent):
        pad = " " * indent
        if isinstance(value, dict):
            inner = ",\n".join("%s %s: %s" % (pad, json.dumps(k), text(v, indent + 1))
                               for k, v in value.items())
            return "{\n%s\n%s}" % (inner, pad)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join("%s %s" % (pad, text(v, indent + 1)) for v in value)
            return "[\n%s\n%s]" % (inner, pad)
        return json.dumps(value)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text(document, 0) + "\n")


def generation_file(generation, description, parts, gemm, attention, **facts):
    write_columns({"schema": "ballast.kernels/1", "generation": generation,
                   "description": description, **facts, "parts": parts,
                   "gemm": [table for table in gemm if table], "attention": attention},
                  os.path.join(OUT, generation + ".json"))


def ampere():
    parts = [
        part("a100-80gb", 108, {"bf16": 256.5, "fp16": 256.5}, 1700,
             AZURE + " Azure_Results/ND_A100_v4_results.md: cuBLASLt at 16384 cubed, BabelStream "
             "triad",
             True),
        part("a100-40gb", 108, {"bf16": 256.5, "fp16": 256.5}, 1297,
             "as a100-80gb (the same chip); 83 % of 1555 GB/s, as BabelStream reaches of 2039 "
             "there"),
    ]
    gemm = [gemm_table("ampere", parts, False, dict(GEMM_FIRST, tflops=262.0, load=15.0))]
    attention = [
        # Backward, nowhere listed by length: at most 30 (25 to 35) and 63 % of 312 TFLOP/s (arXiv
        # 2307.08691, sections 1 and 4.1), at head size 128, where half_head_size takes a sixth.
        attention_table("ampere", "flash1", attention_first(90.0, 108.0),
                        fixed=("backward_tflops", "half_backward_tokens")),
        # FlashAttention in Triton, of before version 2: its backward takes twice version 2's
        # (section 4.1).
        attention_table("ampere", "triton", attention_first(200.0, 115.0),
                        fixed=("backward_tflops", "half_backward_tokens")),
        attention_table("ampere", "flash2", attention_first(220.0, 230.0),
                        fixed=("backward_tflops", "half_backward_tokens")),
    ]
    generation_file("ampere", "NVIDIA A100", parts, gemm, attention)


def hopper():
    h200 = {"bf16": 788, "fp16": 788, "fp8": 1366.3}
    parts = [
        part("h100", 132, {"bf16": 795, "fp16": 795, "fp8": 1382.2}, 2970,
             "pranjalssh/fast.cu@38eb642e (cuBLAS 12.6 at 8192 cubed); " + AZURE +
             " Azure_Results/ND_H100_v5_results.md: fp8 at 32768 cubed, BabelStream triad", True),
        part("h200", 132, h200, 4150, "hardware facts in profiles/published/hardware.json (8192 "
             "cubed, random data); " + AZURE + " Azure_Results/ND_H200_v5_results.md: fp8 at 16384 "
             "cubed, BabelStream triad", True),
        part("gh200-480gb", 132, {"bf16": 821, "fp16": 821, "fp8": 1427}, 3482,
             "the best of a search over shapes is 821 TFLOP/s (stas00/ml-engineering pull request "
             "60) where it is 794.5 on h100, so much faster in fp8 too; HBM: twice what a kernel "
             "copies (ntua-el20062/grace-hopper-benchmark@505e82c1)"),
        part("gh200-quad", 132, {"bf16": 692, "fp16": 692, "fp8": 1203}, 3526,
             "87 % of h100: products of experts on Alps "
             "(FFGGSSJJ/moe_model_architecture@4f87aeb5: 4 x 1024 x 4096 x 4096 at 678 TFLOP/s, "
             "2048 deep 606, 2 x 1024 x 4096 x 4096 at 655) over "
             "the same shapes on h100 (openxla/xla: 770, 714, 743), so much slower in fp8 too; a "
             "long run there reaches 612 at 46341 cubed (fp16); BabelStream triad (arXiv "
             "2408.11556)"),
    ]
    gemm = [gemm_table("hopper", parts, False, dict(GEMM_FIRST)),
            gemm_table("hopper", parts, True, dict(GEMM_FIRST, tflops=1600.0))]
    attention = [
        # Nobody lists FlashAttention 1 here, CUDA's or Triton's: as much slower than 2 as on
        # Ampere.
        attention_table("hopper", "flash1", attention_first(177.0, 168.0)),
        attention_table("hopper", "triton", attention_first(329.0, 196.0)),
        attention_table("hopper", "flash2", attention_first(380.0, 310.0)),
        # Of one length: how it starts is as pull request 2391 of pytorch/benchmark lists it
        # (forward, an older version) and as cuDNN does.
        attention_table("hopper", "flash3", attention_first(740.0, 650.0, 205.0, 450.0),
                        fixed=("half_forward_tokens", "half_backward_tokens", "half_head_size")),
        attention_table("hopper", "cudnn", attention_first(720.0, 620.0)),
    ]
    # Persistent kernels keep 47 of 80 % of the peak beside an all-gather, others what it does not
    # hold, 112 of 132 multiprocessors as machines have it on average. How many of a step's products
    # are persistent nobody counted ("sometimes"), so half of their time is taken to be.
    share = round(1 / (0.5 * 80 / 47 + 0.5 * 132 / 112), 2)
    beside = {"share": share, "source": "NVIDIA developer forum, topic 337991 of 2025-07: on H100 "
              "a product of 132 blocks makes 80 % of the peak alone and 47 % beside an all-gather "
              "of 24 blocks; pytorch/pytorch issue 143988: half as fast beside NCCL under FSDP; "
              "pull request 144974: kernels for Hopper are persistent sometimes, so half of the "
              "time of products is taken to be theirs, in 16 and 8 bits"}
    generation_file("hopper", "NVIDIA H100, H200, H800 and GH200", parts, gemm, attention,
                    product_beside_collective=beside)


def blackwell():
    parts = [
        part("b200", 148, {"bf16": 1670, "fp16": 1670, "fp8": 3280}, 6600,
             "openxla/xla matmul_interpolator_data.h (four products of 4096 cubed, the best of its "
             "grid); HBM 86 % of 7672 GB/s (bus and clock of the device: pytorch/ao pull request "
             "4002), as H200 reaches of 4800 (BabelStream)"),
        part("gb200", 152, {"bf16": 1670, "fp16": 1670, "fp8": 3280}, 6880,
             "rates as b200; HBM 86 % of 8000 GB/s nominal, as H200 reaches of 4800 (BabelStream)"),
        part("gb300", 152, {"bf16": 1670, "fp16": 1670, "fp8": 3280}, 6880,
             "rates as b200; HBM 86 % of 8000 GB/s nominal, as H200 reaches of 4800 (BabelStream)"),
    ]
    gemm = [gemm_table("blackwell", parts, False, dict(GEMM_FIRST, tflops=1750.0)),
            gemm_table("blackwell", parts, True, dict(GEMM_FIRST, tflops=3400.0))]
    flash4 = attention_table("blackwell", "flash4",
                             dict(attention_first(2400.0, 2400.0), half_head_size=200.0),
                             fixed=("half_backward_tokens",))
    # Timed with narrow heads in windows alone, so what these cost is flash4's: it was timed with
    # heads of 64 and of 128, and is written for the same units. (flash2 is of two generations ago.)
    narrow = flash4["model"]["half_head_size"]
    cudnn = attention_table("blackwell", "cudnn",
                            dict(attention_first(1750.0, 1400.0), half_head_size=narrow),
                            fixed=("half_head_size",))
    attention = [
        attention_table("blackwell", "flash2", attention_first(380.0, 330.0),
                        bounds=attention_bounds("blackwell", "flash2")),
        flash4,
        # Timed with heads of 128 and causal masks alone: the terms of head size and mask are
        # those of the later version.
        attention_table("blackwell", "cudnn9.13", dict(cudnn["model"], forward_tflops=1700.0,
                                                       backward_tflops=1300.0),
                        fixed=("half_head_size", "diagonal_tokens"),
                        bounds=attention_bounds("blackwell", "cudnn9.13")),
        cudnn,
    ]
    # TransformerEngine v2.2, pytorch/csrc/extensions/util.cpp: non_tn_fp8_gemm_supported
    generation_file("blackwell", "NVIDIA B200, GB200 and GB300; its 8-bit products take a factor "
                    "in either layout", parts, gemm, attention, code_layouts=1)


def main():
    if "--thin" in sys.argv:
        thin(sys.argv[sys.argv.index("--thin") + 1])
    ampere()
    hopper()
    blackwell()
    fabrics()


def keep(name, e):
    """Whether any table of that file is made from this entry."""
    if name == "gemm-xla-grid":
        return e["kind"] == "gemm"
    if name == "gemm":
        return e["kind"] in ("gemm", "batched_gemm") and \
            not e["machine"].startswith("h800") and \
            not any(word in e.get("note", "") for word in REFUSED_NOTES)
    if name == "attention":
        return e["dtype"] in ("bf16", "fp16") and e.get("causal") is not None and \
            not e.get("deterministic") and \
            not e["implementation"].startswith("eager")
    if name == "launch":
        return e["kind"].startswith(("launch", "babelstream", "nvbandwidth"))
    if name == "nccl-xla-node":
        return e["bytes"] >= 1 << 20
    if name == "nccl-alps":
        return e["bytes"] >= 1024
    if name == "nccl-others":
        return e["machine"].startswith(("azure-nd-a100", "azure-nd-h100", "p6-b200", "coreweave"))
    return True


def thin(folder):
    for name in ("gemm-xla-grid", "gemm", "attention", "launch", "nccl-alps", "nccl-others",
                 "nccl-xla-node"):
        origin = "hbm-norms-launch" if name == "launch" else name
        with open(os.path.join(folder, origin + ".json"), encoding="utf-8") as file:
            document = json.load(file)
        document["entries"] = [e for e in document["entries"] if keep(name, e)]
        with open(os.path.join(MICRO, name + ".json"), "w", encoding="utf-8") as file:
            head = {key: value for key, value in document.items() if key != "entries"}
            file.write(json.dumps(head)[:-1] + ', "entries": [\n')
            file.write(",\n".join(json.dumps(e) for e in document["entries"]) + "\n]}\n")


if __name__ == "__main__":
    main()
