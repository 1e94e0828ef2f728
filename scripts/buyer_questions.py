"""The answers to a buyer's questions: scripts/buyer_questions.sh."""

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time

LIMITS = {"gpu_memory": "GB of GPU memory", "cpu_memory": "GB of CPU memory", "devices": "GPUs",
          "sequence": "tokens a sequence", "batch": "sequences a step",
          "micro_batch": "sequences at once"}
HEAD = """# Questions of buyers and owners

What people ask before they buy or train, each with the command and what it answered. \
`scripts/buyer_questions.sh` asks them again and
writes this page; `tests/cli/buyer_questions_test.cpp` holds every verdict and order. \
Speeds are those of the typical framework unless a
command names a stack, with the interval that holds 80 % ([validation.md](validation.md)); \
`tune` searches Ballast's own plans.
"""


def count(value):
    return f"{value:,.0f}"


def speed(answer):
    text = f"{count(answer['tokens_per_s'])} tokens/s"
    sure = answer.get("confidence")
    if sure and sure.get("tokens_per_s"):
        low, high = sure["tokens_per_s"]
        text += f" ({count(low)} to {count(high)})"
    return text


def plan_of(plan):
    parts = [plan["strategy"]]
    for degree in ("data", "tensor", "pipeline", "sequence", "context", "expert"):
        if plan[degree] > 1:
            parts.append(f"{degree} {plan[degree]}")
    if plan["devices"] > 1:
        parts.append(f"ZeRO-{plan['zero_stage']}")
    return ", ".join(parts)


def least_of(answer):
    ways = []
    for change in answer.get("least_changes", []):
        if change["fits"] is not None:
            ways.append(f"{count(change['fits'])} {LIMITS[change['limit']]} "
                        f"(not with {count(change['does_not_fit'])})")
    if not ways:
        return "no single limit is enough"
    return "what would fit: " + "; or ".join(ways)


def limits_of(answer):
    found = answer.get("bottlenecks")
    if not found:
        return []
    gains = sorted(found["rates"], key=lambda rate: -rate["gain"])[:2]
    text = ", ".join(f"{rate['name']} {100 * rate['gain']:.1f} %" for rate in gains)
    tie = found["rate_tie"]
    if tie:
        text += f"; {' and '.join(tie['names'])} tie, together {100 * tie['gain']:.1f} %"
    return [f"10 % faster gives: {text}."]


def prediction(answer):
    if not answer["fits"]:
        return [f"**Does not fit**: {answer['reason'].split(';')[0]}.", least_of(answer) + "."]
    lines = [f"**Fits**: {speed(answer)}, as {plan_of(answer['plan'])}."]
    lines += limits_of(answer)
    lines += [f"Note: {note}." for note in answer.get("notes", [])]
    if "max_model" in answer:
        billions = answer["max_model"]["parameters"] / 1e9
        lines.append(f"The largest has {billions:.1f} billion parameters.")
    if "max_sequence_length" in answer:
        lines.append(f"The longest has {count(answer['max_sequence_length'])} tokens.")
    return lines


def tuned(answer):
    best = answer["ranked"][0]
    lines = [f"**Fits**: {count(best['tokens_per_s'])} tokens/s, as {plan_of(best['plan'])}."]
    within = answer.get("proven_within")
    if within is not None:
        lines.append(f"No plan is faster by more than {100 * within:.1f} %.")
    return lines


def comparison(answer):
    lines = []
    for row in answer["best"]:
        lines.append(f"**Best**: {row['name']}.")
    for cell in ordered(answer):
        name = name_of(answer, cell)
        if not cell["fits"]:
            lines.append(f"{name}: does not fit ({cell['obstacle']}).")
            continue
        cost = cell.get("cost_per_million_tokens")
        price = f", {cost:.3g} a million tokens" if cost else ""
        lines.append(f"{name}: {count(cell['tokens_per_s'])} tokens/s{price}.")
    return lines


def name_of(answer, cell):
    names = [axis["name"] for axis in answer["columns"] + answer["rows"] if len(axis["values"]) > 1]
    return ", ".join(cell["at"][name] for name in names)


def ordered(answer):
    def worth(cell):
        if not cell["fits"]:
            return float("inf")
        if answer["metric"] == "cost_per_token":
            return cell["cost_per_million_tokens"]
        return -cell["tokens_per_s"]
    return sorted(answer["cells"], key=worth)


def lines_of(verb, answer):
    if verb == "compare":
        return comparison(answer)
    if verb == "tune":
        return tuned(answer)
    if "cases" not in answer:
        return prediction(answer)
    lines = []
    for case in answer["cases"]:
        if case["fits"] is None:
            lines.append(f"{case['strategy']}: illegal: {case['refusal']}.")
        else:
            lines.append(f"{case['strategy']}: " + " ".join(prediction(case)[:1]))
    return lines


def is_right(expect, verb, code, answer, error):
    if "exit" in expect:
        return code == expect["exit"] and expect["says"] in error
    if "cases" in expect:
        return [case["fits"] or False for case in answer["cases"]] == expect["cases"]
    if "order" in expect:
        return [name_of(answer, cell) for cell in ordered(answer)] == expect["order"]
    return code == (0 if expect["fits"] else 1)


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    program, page = os.path.abspath(sys.argv[1]), sys.argv[2]
    with open("tests/data/buyer_questions.json", encoding="utf-8") as file:
        questions = json.load(file)["questions"]
    text, wrong = HEAD, 0
    with tempfile.TemporaryDirectory() as folder:
        for number, question in enumerate(questions, 1):
            if "before" in question:
                subprocess.run([program, *shlex.split(question["before"])], cwd=folder, check=True,
                               capture_output=True)
            words = shlex.split(question["command"])
            begin = time.monotonic()
            cpu = processor_seconds()
            run = subprocess.run([program, *words, "--json", "--store", "store.db"], cwd=folder,
                                 capture_output=True, text=True)
            seconds = time.monotonic() - begin
            cpu = processor_seconds() - cpu
            answer = json.loads(run.stdout) if run.stdout else {}
            right = is_right(question["expect"], words[0], run.returncode, answer, run.stderr)
            # Alone on the machine it would have taken no longer than its work.
            late = min(seconds, cpu) > question.get("seconds", 10)
            wrong += late or not right
            print(f"{number:3} {seconds:6.1f} s, {cpu:6.1f} s of a core "
                  f"{'late' if late else '    '} {'' if right else 'WRONG'} {question['ask']}",
                  flush=True)
            lines = lines_of(words[0], answer) if answer else [run.stderr.strip()]
            text += f"\n## {number}. {question['ask']}\n\n"
            if "before" in question:
                text += f"    ballast {question['before']}\n"
            text += f"    ballast {question['command']}\n\n" + "  \n".join(lines) + "\n"
    with open(page, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"{len(questions)} questions, {wrong} late or wrong")
    return 1 if wrong else 0


sys.exit(main())
