#!/usr/bin/env python3
"""Prints what the compiler made of the CUDA kernels, as the table of docs/cuda.md. Needs no GPU.

    scripts/cuda_kernel_table.py            # by the nvcc of the PATH or of /usr/local/cuda
    scripts/cuda_kernel_table.py --check    # exits 1 where one spills or has no 16-byte access

Registers, shared memory and spills are ptxas' (-v, sm_90). Accesses to global memory are counted in
PTX, each instruction once. Blocks on a multiprocessor follow from its limits (CUDA C++ Programming
Guide, technical specifications of compute capability 9.0: 65,536 registers given out 256 a warp,
2,048 threads, 32 blocks, 227 KB of shared memory and 1 KB of it a block to the system).

Instructions a value are PTX's of one thread by the values that it takes, for kernels without a
loop, those of every branch counted, so more than run. From them the share of the memory's rate that
the schedulers sustain at least: four warp instructions a cycle and multiprocessor at 1.755 GHz on
132 of them, against 3.35 TB/s (H100 SXM datasheet). It knows nothing of latencies, for which
occupancy and 16-byte accesses stand, nor of units that take more than a cycle an instruction.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = os.path.join(ROOT, "kernels", "cuda")
FLAGS = ["-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "-I", ROOT]

REGISTERS, THREADS, BLOCKS, SHARED = 65536, 2048, 32, 227 * 1024
ISSUE = 132 * 4 * 32 * 1.755e9  # instructions of a thread a second
MEMORY = 3.35e12  # bytes a second

# Of kernels without a loop: bytes of memory and FLOPs a value in bf16, from what each reads and
# writes (the heads of the sources say the same). A transcendental counts as one.
PER_VALUE = {
    "activation_forward_kernel<1, 0, 8>": (4, 6),  # GELU: a value in, one out
    "activation_forward_kernel<1, 1, 8>": (4, 9),  # its tanh form
    "activation_forward_kernel<1, 2, 8>": (6, 6),  # SwiGLU: two in, one out
    "activation_backward_kernel<1, 0, 8>": (6, 10),
    "activation_backward_kernel<1, 1, 8>": (6, 17),
    "activation_backward_kernel<1, 2, 8>": (10, 11),  # three in, two out
    "add_bias_kernel<1, 8>": (6, 2),  # output and residual in, output out
    "add_kernel<8>": (6, 1),
    "cast_kernel<8>": (6, 0),  # fp32 to bf16
    "scale_kernel<8>": (4, 1),
}
FORMAT_BF16, WIDE = "1", 8


def nvcc():
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(found):
        sys.exit("cuda_kernel_table.py: no nvcc; put the CUDA toolkit's bin on the PATH")
    return found


def run(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"cuda_kernel_table.py: {' '.join(arguments)}:\n{done.stderr}")
    return done.stderr


def compiled(source):
    """ptxas' report and the PTX of one source."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "out.ptx")
        run([nvcc(), *FLAGS, "-arch=compute_90", "-ptx", source, "-o", ptx])
        ptxas = os.path.join(os.path.dirname(os.path.realpath(nvcc())), "ptxas")
        report = run([ptxas, "-v", "-O3", "-arch=sm_90", ptx, "-o", os.path.join(folder, "out")])
        with open(ptx, encoding="utf-8") as file:
            return report, file.read()


def names_of(symbols):
    """Of each, the kernel's own name and its template's arguments."""
    done = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True)
    named = {}
    for symbol, text in zip(symbols, done.stdout.split("\n")):
        own = text.replace("(anonymous namespace)::", "").split("ballast::kernels::cuda::", 1)[-1]
        plain = re.sub(r"\((?:\w+::)*\w+\)(?=\d)", "", own)  # of enumerators, which it casts
        plain = plain.replace("ballast::kernels::cuda::", "")
        found = re.match(r"(\w+)(?:<([^>]*)>)?", plain)
        named[symbol] = (found.group(1), found.group(2) or "", "Format)" in own.split("(d", 1)[0])
    return named


def entries(source):
    report, ptx = compiled(source)
    bodies = {}
    for text in ptx.split(".entry ")[1:]:
        bodies[text.split("(", 1)[0]] = text.split("\n}\n", 1)[0]
    parts = re.split(r"Compiling entry function '(\w+)'", report)
    names = names_of(parts[1::2])
    for symbol, text in zip(parts[1::2], parts[2::2]):
        body = bodies.get(symbol, "")
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", text)
        used = re.search(r"Used (\d+) registers", text)
        shared = re.search(r"(\d+) bytes smem", text)
        threads = re.search(r"\.maxntid (\d+)", body)
        if not threads:
            continue  # the empty kernel that a launch is timed with
        name, told, has_format = names[symbol]
        values = [v.strip() for v in told.split(",")] if told else []
        form = values[0] if has_format and values else ""
        counted = len(values) > has_format and values[-1].isdigit()
        count = int(values[-1]) if counted else 0
        code = [line.strip() for line in body.split("\n")]
        instructions = [c for c in code if c.endswith(";") and not c.startswith(".")]
        accesses = [c for c in instructions if re.match(r"(@\S+ )?(ld|st)\.global", c)]
        yield {
            "source": os.path.basename(source), "symbol": symbol, "name": name, "format": form,
            "count": count, "told": told,
            "registers": int(used.group(1)), "shared": int(shared.group(1)) if shared else 0,
            "stack": int(stack.group(1)), "spills": int(stack.group(2)),
            "threads": int(threads.group(1)),
            "instructions": len(instructions),
            "loops": has_loop(code),
            "wide": sum(".v4" in c or ".v2.b64" in c or ".v2.u64" in c for c in accesses),
            "accesses": len(accesses),
        }


def has_loop(code):
    """Whether a branch goes back to a label that stands before it."""
    seen = set()
    for line in code:
        if re.match(r"\$\w+:", line):
            seen.add(line[:-1])
        branch = re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line)
        if branch and branch.group(1) in seen:
            return True
    return False


def blocks_of(kernel):
    """Blocks on a multiprocessor; dynamic shared memory, which a launch chooses, not counted."""
    warps = kernel["threads"] // 32
    by_registers = REGISTERS // (-(-kernel["registers"] * 32 // 256) * 256 * warps)
    by_shared = SHARED // (kernel["shared"] + 1024)
    return min(by_registers, by_shared, THREADS // kernel["threads"], BLOCKS)


def as_trained(kernel):
    """What a training in bf16 with aligned rows runs: one row of the table."""
    return kernel["format"] in ("", FORMAT_BF16) and kernel["count"] in (0, WIDE) or (
        kernel["format"] == FORMAT_BF16 and kernel["count"] > 1)


def row(kernel):
    blocks = blocks_of(kernel)
    occupancy = 100 * blocks * kernel["threads"] // THREADS
    variant = f"<{kernel['told']}>" if kernel["told"] else ""
    cells = [f"`{kernel['name']}{variant}`", kernel["threads"],
             kernel["registers"], kernel["shared"], kernel["spills"], f"{blocks} ({occupancy} %)",
             f"{kernel['wide']} of {kernel['accesses']}"]
    known = PER_VALUE.get(kernel["name"] + variant)
    if known and kernel["count"] and not kernel["loops"]:
        size, flops = known
        each = kernel["instructions"] / kernel["count"]
        share = min(1.0, (size / MEMORY) / (each / ISSUE))
        cells += [f"{size} / {flops}", f"{each:.1f}", f"{100 * share:.0f} %"]
    else:
        cells += ["", "", ""]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main():
    sources = sorted(os.path.join(KERNELS, f) for f in os.listdir(KERNELS) if f.endswith(".cu"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = [k for found in pool.map(lambda s: list(entries(s)), sources) for k in found]
    shown = [k for k in kernels if as_trained(k)]
    print("| kernel | threads | registers | shared | spilled | blocks | 16-byte | bytes / FLOPs "
          "| PTX | HBM |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    source = ""
    for kernel in shown:
        if kernel["source"] != source:
            source = kernel["source"]
            print(f"| **{source}** | | | | | | | | | |")
        print(row(kernel))
    spilled = [k for k in kernels if k["spills"]]
    narrow = [k for k in kernels if k["count"] == WIDE and k["format"] and not k["wide"]]
    print(f"\n{len(kernels)} kernels in all formats and widths; {len(spilled)} spill; "
          f"{len(narrow)} of those that take {WIDE} values a thread have no 16-byte access.")
    if "--check" in sys.argv:
        for kernel in spilled + narrow:
            print("fails:", kernel["source"], kernel["symbol"], file=sys.stderr)
        sys.exit(1 if spilled or narrow else 0)


if __name__ == "__main__":
    main()
