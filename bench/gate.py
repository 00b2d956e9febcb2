#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""All cells of the processor's table on this machine, beside a peer's programs: one command.

    python3 gate.py COMMAND [--peer LLAMA_BENCH] [--folder models] [--cells all] [--short]
                    [--only TEXT] [--pairs 3] [-t 2] [--cpu] [--record NAME]
    python3 gate.py --print

LLAMA_BENCH is llama.cpp's program; cells of several sequences also need llama-batched-bench beside it. Without
--peer only moe-offload runs, and the table has its speeds and its share of its own bound. Cells:

- decode, prompt (of 128 tokens): with all experts in memory, the last of two times in a process: the demo model, it inflated
  (Q4_K, and random Q8_0), and random weights in the shapes of OLMoE, gpt-oss-20b and Qwen3.5-35B;
- depth: decoding behind 4,096 and 16,384 tokens (OLMoE's shape), and behind 65,536 (one layer of it);
- sequences: 8 and 32 at a time, and how many times one sequence's speed that is and, by the bytes, can be;
- limits: decoding of the inflated model in a memory control group of 40, 25 and 15 % of its file, cold (root).

A cell that is empty has failed; standard error says how, and the exit status is 1.

Models are made in --folder once, and stay there (18 GB; write_shape is a target of the build: ninja -C build
bench/write_shape). The two sides run in turn, every other pair in reverse order; a cell is the median of the
pairs' ratios, above 1 where moe-offload is faster. CPU is the peer's CPU seconds over ours for the whole run,
which other programs on the machine lengthen less than the time; waiting threads that spin count in it.
--cpu compares processor time of one thread in place of elapsed time (gate_cpu.py), for machines that others use; limits
are not measured then.
Under limits the peer runs without copies of its weights (--repack 0), with which it would be killed.
--short: one pair, fewer tokens, layers and cells. --only: cells whose names contain one of the texts between semicolons.
--record writes the cells to bench/results/gate/NAME.json, in place of those of the same names that are there, and
--print the table of all that are there, with a column for each processor.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import beside_llama
import depth_table
import gate_cpu

BENCH = Path(__file__).resolve().parent
RECORDS = BENCH / "results" / "gate"
DEMO = BENCH.parent / "examples" / "demo-model" / "moe-demo-q4.gguf"
SHAPES = {"OLMoE Q4_K": "olmoe", "gpt-oss-20b MXFP4": "gpt-oss-20b", "Qwen3.5-35B Q4_K": "qwen3.5-35b"}
MODELS = ["demo", "inflated Q4_K", "inflated Q8_0", *SHAPES]


# -- models -----------------------------------------------------------------------------------------

def wanted(given, *names: str) -> bool:
    return given.only is None or any(text in name for text in given.only.split(";") for name in names)


def model(given, name: str) -> str:
    """The file of a model; makes it if it is not there yet."""
    if name == "demo":
        return str(DEMO)
    out = given.folder / (name.replace(" ", "-") + ("-short" if given.short else "") + ".gguf")
    if out.exists():
        return str(out)
    given.folder.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    layers = ["--layers", "2" if given.short else "4"]
    if name == "inflated Q4_K":
        command = [sys.executable, BENCH / "inflate.py", DEMO, part, "--size", "600M" if given.short else "2G"]
    elif name == "inflated Q8_0":
        command = [sys.executable, BENCH / "random_types.py", model(given, "inflated Q4_K"), part, "--type", "Q8_0"]
    elif name.startswith("OLMoE Q4_K"):
        layers = ["--layers", "1"] if name.endswith("one layer") else layers
        command = [Path(given.command).parent / "bench" / "write_shape", "olmoe", part, *layers]
    else:
        command = [sys.executable, BENCH / "true_shape.py", SHAPES[name], part, "--random", *layers]
    print(f"makes {out}", file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    part.rename(out)
    return str(out)


def token_ids(given, path: str) -> str:
    """A file of a held-out text's tokens; models with random weights have no text of their own."""
    if Path(path).name.startswith(tuple(name.replace(" ", "-") for name in SHAPES)):
        return "random"
    out = given.folder / "gsm8k.ids"
    if not out.exists():
        given.folder.mkdir(parents=True, exist_ok=True)
        text = (BENCH / "texts" / "gsm8k.txt").read_bytes()[:6000]
        done = subprocess.run([given.command, "tokenize", "-m", path, "--raw", "-f", "-"], input=text,
                              stdout=subprocess.PIPE, check=True)
        out.write_bytes(done.stdout)
    return str(out)


# -- cells ------------------------------------------------------------------------------------------

def in_turn(given, ours, theirs) -> list[tuple[dict, dict]]:
    pairs = []
    for pair in range(given.pairs):
        row = {}
        halves = [("ours", ours)] + ([("theirs", theirs)] if theirs else [])
        for name, run in halves if pair % 2 == 0 else halves[::-1]:
            row[name] = run()
        pairs.append((row["ours"], row.get("theirs", {})))
    return pairs


def median(values: list) -> float | None:
    there = [v for v in values if v is not None]
    return statistics.median(there) if there else None


def cell(name: str, pairs: list[tuple[dict, dict]], key: str, **more) -> dict:
    """Both sides' medians of `key`, and of the pairs' ratios."""
    for row in (row for pair in pairs for row in pair if "failed" in row):
        print(f"{name}: {row['failed']}", file=sys.stderr)
    both = [(a[key], b[key]) for a, b in pairs if key in a and key in b]
    cpu = [b["cpu_s"] / a["cpu_s"] for a, b in pairs if a.get("cpu_s") and b.get("cpu_s")]
    found = {"cell": name, "ours": median([a.get(key) for a, _ in pairs]),
             "theirs": median([b.get(key) for _, b in pairs]), "ratio": median([a / b for a, b in both]),
             "least": min((a / b for a, b in both), default=None),
             "greatest": max((a / b for a, b in both), default=None), "cpu": median(cpu),
             "share": median([a.get("share") for a, _ in pairs if key.startswith("decode")]), **more}
    print(line(found), flush=True)
    return found


def beside(given, path: str, limit: int | None) -> tuple:
    """beside_llama.py's run of both sides."""
    with_all = argparse.Namespace(
        command=given.command, model=path, p=given.p, n=given.n, threads=given.threads, batch=given.p, repeat=2,
        options="", llama_bench=given.peer, llama_options="--repack 0" if limit else "", throttle_bytes=None, device=given.device,
        populate_bytes=(limit or os.path.getsize(path)) + (768 << 20))
    ids = token_ids(given, path)

    def flat(row: dict) -> dict:
        at = 0 if limit else -1
        return row | {key: row[key][at] for key in ("prompt", "decode") if row.get(key)}

    return (lambda: flat(beside_llama.run_ours(with_all, limit, ids)),
            (lambda: flat(beside_llama.run_llama_bench(with_all, limit))) if given.peer else None)


def all_in_memory(given) -> list[dict]:
    found = []
    for name in MODELS:
        if wanted(given, f"decode, {name}", f"prompt, {name}"):
            pairs = in_turn(given, *beside(given, model(given, name), None))
            found += [cell(f"decode, {name}", pairs, "decode"), cell(f"prompt, {name}", pairs, "prompt")]
    return found


def depths(given) -> list[dict]:
    def measure(depth: int) -> dict:
        path = model(given, "OLMoE Q4_K" if depth <= 16384 else "OLMoE Q4_K one layer")
        with_all = argparse.Namespace(command=given.command, model=path, threads=given.threads, kv="f16", n=given.n,
                                      llama_bench=given.peer, llama_options="")

        def ours() -> dict:
            row = depth_table.ours(with_all, depth, given.n)
            return {"decode": row["decode"], "share": row["share"]}

        def theirs() -> dict:
            return {"decode": depth_table.their_figure(with_all, "decode", depth)}
        return cell(f"decode behind {depth:,}", in_turn(given, ours, theirs if given.peer else None), "decode")

    return [measure(depth) for depth in ((4096,) if given.short else (4096, 16384, 65536))
            if wanted(given, f"decode behind {depth:,}")]


def batch_of_ours(given, path: str, n: int) -> dict:
    found = depth_table.timed([given.command, "bench", "decode", "-m", path, "-p", "8", "-n", "32", "-t",
                               str(given.threads), "--parallel", str(n), "--repeat", "2", "--tokens-from",
                               "sampled", "--calibration", "none", "--json"])
    speeds = {r["test"]: r["tokens_per_s_runs"][-1] for r in found["results"]}
    return speeds | {"experts": (found["expert_hits"] + found["expert_misses"]) / 2 / 33,
                     "bytes": found.get("active_bytes_per_token")}


def batch_of_theirs(given, program: Path, path: str, n: int) -> dict:
    text = subprocess.run([program, "-m", path, "-t", str(given.threads), "-npp", "32", "-ntg", "32", "-npl", str(n),
                           "-c", str(n * 80), "--output-format", "jsonl"], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True).stdout
    return {"decode": json.loads([row for row in text.splitlines() if row.startswith("{")][-1])["speed_tg"]}


def sequences(given) -> list[dict]:
    """A batch reads each expert that any of its sequences chose once: that bounds how many times one sequence's
    speed it reaches. Experts are counted over all 33 passes, of which one is the prompts'."""
    path = model(given, "inflated Q4_K")
    about = json.loads(subprocess.run([given.command, "inspect", "-m", path, "--json"], check=True,
                                      stdout=subprocess.PIPE).stdout)
    program = Path(given.peer).parent / "llama-batched-bench" if given.peer else None
    program = program if program and program.exists() else None
    found, one = [], {}
    for n in (1, 8, 32):
        if n > 1 and not wanted(given, f"{n} sequences"):
            continue
        pairs = in_turn(given, lambda n=n: batch_of_ours(given, path, n),
                        (lambda n=n: batch_of_theirs(given, program, path, n)) if program else None)
        mine = {key: median([a[key] for a, _ in pairs]) for key in ("decode", "experts", "bytes")}
        one = one or mine
        more = {} if n == 1 else {"of_one": mine["decode"] / one["decode"]}
        if more and one["bytes"]:
            read = one["bytes"] + (mine["experts"] - one["experts"]) * about["largest_expert_bytes"]
            more["at_most"] = n * one["bytes"] / read
        found.append(cell("one sequence" if n == 1 else f"{n} sequences", pairs, "decode", **more))
    return found


def limits(given) -> list[dict]:
    path = model(given, "inflated Q4_K")
    return [cell(f"decode, memory for {percent} %",
                 in_turn(given, *beside(given, path, os.path.getsize(path) * percent // 100)), "decode")
            for percent in ((40, 25) if given.short else (40, 25, 15))
            if wanted(given, f"decode, memory for {percent} %")]


CELLS = {"memory": all_in_memory, "depth": depths, "sequences": sequences, "limits": limits}


# -- tables -----------------------------------------------------------------------------------------

def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def line(c: dict) -> str:
    spread = f" ({c['least']:.2f} to {c['greatest']:.2f})" if c["ratio"] is not None else ""
    return (f"| {c['cell']} | {number(c['ours'], 1)} | {number(c['theirs'], 1)} | {number(c['ratio'])}{spread} | "
            f"{number(c['cpu'])} | {bound(c)} |")


def bound(c: dict) -> str:
    if c.get("of_one"):
        return f"{c['of_one']:.2f} times one" + (f", of {c['at_most']:.2f} at most" if c.get("at_most") else "")
    return f"{100 * c['share']:.0f} % of its bound" if c.get("share") else ""


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((row.split(":", 1)[1].strip() for row in file if row.startswith("model name")), "unknown")


def print_records() -> None:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))]
    cells = list(dict.fromkeys(c["cell"] for record in records for c in record["cells"]))
    print("| cell | " + " | ".join(record["processor"] for record in records) + " |")
    print("|---" * (len(records) + 1) + "|")
    for name in cells:
        texts = []
        for record in records:
            c = next((c for c in record["cells"] if c["cell"] == name), {})
            spread = f"{c['least']:.2f} to {c['greatest']:.2f}" if c.get("least") else ""
            texts.append("; ".join(filter(None, [number(c.get("ratio")) or spread, bound(c)])))
        if any(texts):
            print(f"| {name} | " + " | ".join(texts) + " |")


def write_record(given, cells: list[dict], others: float) -> None:
    """Cells that are there and were not measured now stay, if they were measured in the same way."""
    path = RECORDS / f"{given.record.replace(' ', '-')}.json"
    record = {"processor": given.record, "model": processor(), "threads": 1 if given.cpu else given.threads,
              "short": given.short}
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(before.get(key) != value for key, value in record.items()):
        before = {}
    now = {c["cell"]: c | {"pairs": given.pairs, "others": others} for c in cells}
    kept = [now.pop(c["cell"], c) for c in before.get("cells", [])]
    RECORDS.mkdir(exist_ok=True)
    path.write_text(json.dumps(record | {"cells": kept + list(now.values())}, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", help="build/moe-offload")
    parser.add_argument("--peer", help="llama-bench")
    parser.add_argument("--folder", type=Path, default=Path("gate-models"))
    parser.add_argument("--cells", default="all", help=f"of {', '.join(CELLS)}; between commas")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", metavar="TEXT", help="cells with this in their names; several between semicolons")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread")
    parser.add_argument("--record", help="a name for this processor's column")
    parser.add_argument("--print", action="store_true", help="the table of all recorded columns")
    given = parser.parse_args()
    if not given.print and given.command is None:
        parser.error("give COMMAND, or --print")
    unknown = [name for name in given.cells.split(",") if name not in CELLS and name != "all"]
    if unknown:
        parser.error(f"there are no cells {', '.join(unknown)}; there are {', '.join(CELLS)}")
    return given


def main() -> None:
    given = parse_arguments()
    if given.print:
        print_records()
        return
    given.pairs = given.pairs or (1 if given.short else 3)
    given.p, given.n = (64, 24) if given.short else (128, 64)
    given.folder.mkdir(parents=True, exist_ok=True)
    drive = os.stat(given.folder).st_dev
    given.device = f"{os.major(drive)}:{os.minor(drive)}"
    begun, busy, own = time.monotonic(), beside_llama.busy_seconds(), beside_llama.own_seconds()
    second = "CPU s" if given.cpu else "s"
    print(f"| cell | moe-offload, tokens/{second} | peer | ratio | CPU | bound |\n|---|---|---|---|---|---|")
    found, complete = [], True
    measures = {"all": lambda g: gate_cpu.cells(g, MODELS, model, token_ids, in_turn, cell)} if given.cpu else CELLS
    for name, measure in measures.items():
        try:
            if given.cells == "all" or name in given.cells.split(","):
                found += measure(given)
        except (OSError, subprocess.CalledProcessError) as error:
            complete = False
            print(f"{name}: the rest of these cells is missing: {error}", file=sys.stderr)
    others = (beside_llama.busy_seconds() - busy - beside_llama.own_seconds() + own) / (time.monotonic() - begun)
    print(f"\n{processor()}, {1 if given.cpu else given.threads} threads, {given.pairs} pairs; others kept {max(0.0, others):.2f} cores busy")
    if given.record:
        write_record(given, found, round(others, 2))
    sys.exit(0 if complete and all(c["ours"] is not None for c in found) else 1)


if __name__ == "__main__":
    main()
