#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Routing by kind of text, all in memory: what MoE-Spec and Cohere report by data set. No clock is read.

    python3 routing_by_text.py COMMAND MODEL TEXT[,TEXT...] [--spec-bench FILE] [--budgets 8,16,...]

Of each text the first 6,000 characters. --spec-bench: the prompts of spec-bench.jsonl, a text a
category. Columns: the share of the router's probability (of a token's chosen experts) that the top B
experts of a pass of 63 tokens hold; the share of a token's experts that the token j before it has, j = 1 to
4; distinct experts of a layer in T consecutive tokens; tokens an expert is read for then, T k / distinct.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from statistics import mean

SPANS = (2, 4, 8, 16, 32)


def run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def mass_kept(options: argparse.Namespace, text: str) -> list[str]:
    shares = []
    for budget in options.budgets:
        result = json.loads(run([
            options.command, "perplexity", "-m", options.model, "-f", text, "-c", "256", "-b", "63",
            "-t", "1", "--calibration", "none", "--expert-budget", budget, "--expert-budget-mode",
            "router,truncate", "--quality-share", "1e-9", "--json"]))
        shares.append(f"{100 * result['lossy_mass_kept']:.1f}")
    return shares


def routing(options: argparse.Namespace, text: str, folder: str) -> list[str]:
    trace = os.path.join(folder, "trace.jsonl")
    run([options.command, "perplexity", "-m", options.model, "-f", text, "-c", "256", "-t", "1",
         "--calibration", "none", "--trace", trace])
    tokens = []
    with open(trace, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if "layers" in row:
                tokens.append([set(layer) for layer in row["layers"]])
    used = len(tokens[0][0])
    n_layer = len(tokens[0])
    cells = []
    for distance in (1, 2, 3, 4):
        share = mean(len(a[i] & b[i]) / used for a, b in zip(tokens, tokens[distance:])
                     for i in range(n_layer))
        cells.append(f"{share:.3f}".lstrip("0"))
    for span in SPANS:
        distinct = mean(len(set().union(*(t[i] for t in tokens[at:at + span])))
                        for at in range(0, len(tokens) - span + 1, span) for i in range(n_layer))
        cells.append(f"{distinct:.1f}, {span * used / distinct:.2f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("texts", type=lambda text: text.split(","))
    parser.add_argument("--spec-bench")
    parser.add_argument("--budgets", default="8,16,24,32,48", type=lambda text: text.split(","))
    options = parser.parse_args()
    kinds: dict[str, str] = {}
    for path in options.texts:
        with open(path, encoding="utf-8") as text:
            kinds[os.path.basename(path)] = text.read()
    if options.spec_bench:
        with open(options.spec_bench, encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                kinds[row["category"]] = kinds.get(row["category"], "") + "\n\n".join(row["turns"])
    head = [f"B = {b}" for b in options.budgets] + [f"overlap at {j}" for j in (1, 2, 3, 4)]
    print("| text | " + " | ".join(head + [f"T = {span}" for span in SPANS]) + " |")
    print("|---" * (1 + len(head) + len(SPANS)) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind, text in kinds.items():
            path = os.path.join(folder, "text.txt")
            with open(path, "w", encoding="utf-8") as out:
                out.write(text[:6000])
            cells = mass_kept(options, path) + routing(options, path, folder)
            print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
