#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What lookahead saves: expert bytes a token with and without it, beside Belady's bound.

    python3 lookahead.py COMMAND MODEL TEXT[,TEXT...] [--caches 10,25,50] [--ahead 0,1,2,4,8]
                         [--temp 1] [-p 96] [-n 400] [--seed 1]

TEXT is a file of held-out text (held_out_texts.py); its first -p bytes are the prompt, after which
-n tokens are written. No clock is in the figures: prefetch and warm start are off, so that runs of
any machine have the same misses. "belady" replays the routing of the run without lookahead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile


def run(options: argparse.Namespace, prompt: str, cache: str, extra: list[str]) -> tuple[str, dict]:
    command = [
        options.command, "run", "-m", options.model, "-p", prompt, "-n", str(options.n), "--temp",
        str(options.temp), "-s", str(options.seed), "--expert-cache", f"{cache}%", "--prefetch",
        "off", "--warm-start", "off", "--calibration", "none", "--raw", "--speculate", "off", "--json",
    ]
    done = subprocess.run(command + extra, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command + extra)}\n{done.stderr}")
    return done.stdout, json.loads(done.stderr)


def belady_misses(options: argparse.Namespace, trace: str, slots: int) -> int:
    command = [
        options.command, "simulate", "--trace", trace, "--policy", "belady", "--expert-cache",
        str(slots), "--format", "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["results"][0]["misses"]


def find(stats: dict, name: str) -> float:
    """A counter of the statistics, wherever it is nested."""
    if name in stats:
        return stats[name]
    for value in stats.values():
        if isinstance(value, dict):
            found = find(value, name)
            if found is not None:
                return found
    return None


def repeated_share(text: str, width: int = 16) -> float:
    """Share of the text's windows that stand in it before: how much it loops."""
    seen: set[str] = set()
    again = 0
    for i in range(max(len(text) - width, 0)):
        again += text[i : i + width] in seen
        seen.add(text[i : i + width])
    return again / max(len(text) - width, 1)


def measure(options: argparse.Namespace, path: str, cache: str) -> None:
    with open(path, encoding="utf-8") as file:
        prompt = file.read()[: options.p]
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as trace:
        text, plain = run(options, prompt, cache, ["--trace", trace.name])
        bound = belady_misses(options, trace.name, int(find(plain, "expert_slots")))
    misses = find(plain, "expert_misses")
    cells = [os.path.basename(path), f"{cache} %", f"{100 * repeated_share(text):.0f}", "1.000"]
    stood = named = "-"
    for ahead in options.ahead.split(","):
        again, stats = run(options, prompt, cache,
                            ["--lookahead", ahead, "--lookahead-overlap", "off"])
        if again != text:
            sys.exit(f"--lookahead {ahead} wrote another text")
        cells.append(f"{find(stats, 'expert_misses') / misses:.3f}")
        if find(stats, "lookahead_tokens"):
            stood = f"{find(stats, 'lookahead_stood') / find(stats, 'lookahead_tokens'):.2f}"
        named = f"{find(stats, 'lookahead_used') / find(stats, 'lookahead_named'):.2f}"
    cells += [f"{bound / misses:.3f}", stood, named]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("--caches", default="10,25,50")
    parser.add_argument("--ahead", default="0,1,2,4,8")
    parser.add_argument("--temp", type=float, default=1)
    parser.add_argument("-p", type=int, default=96)
    parser.add_argument("-n", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    heads = ["text", "cache", "repeated %", "lfru"]
    heads += [f"ahead {n}" for n in options.ahead.split(",")]
    heads += ["belady", "tokens right", "experts right"]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for text in options.texts.split(","):
        for cache in options.caches.split(","):
            measure(options, text, cache)


if __name__ == "__main__":
    main()
