#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The first prompt of a process whose model is not in memory yet, with all experts read in the background and with each read
when it is asked for (--warm-start off), in turn.

    python3 cold_prompt.py COMMAND MODEL TEXT [--characters 20,500] [--pairs 5] [--other COMMAND] [-- MORE OPTIONS]

The model's pages are dropped from the page cache before each run, and memory that the run will take is touched
(populate() of beside_llama.py). TEXT is cut to each number of characters. --other is another
build, which runs in place of --warm-start off. Prints for each length the medians of both, and of the ratios of the pairs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from beside_llama import populate

FIELDS = ("to the first token, s", "prompt, s", "waited, s", "prompt and 32 tokens, s")


def run(command, given, text, options) -> list[float]:
    populate(os.path.getsize(given.model))
    with open(given.model, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    done = subprocess.run([command, "run", "-m", given.model, "-f", text, "--raw", "-n", "32", "--temp", "0", "--ignore-eos",
                           "--checksums", "none", "--calibration", "none", "--json", *options, *given.more],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    told = json.loads(done.stderr.splitlines()[-1])
    return [told["load_seconds"] + told["prompt_seconds"], told["prompt_seconds"], told["expert_wait_seconds"],
            told["prompt_seconds"] + told["decode_seconds"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--characters", default="20,500")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--other")
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    sides = [(given.command, []), (given.other, []) if given.other else (given.command, ["--warm-start", "off"])]
    for n in given.characters.split(","):
        runs = ([], [])
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(given.text.read_text(encoding="utf-8")[:int(n)])
            text.flush()
            for pair in range(given.pairs):
                for side in (0, 1) if pair % 2 == 0 else (1, 0):
                    runs[side].append(run(sides[side][0], given, text.name, sides[side][1]))
        print(f"{n} characters, {given.pairs} pairs")
        for i, field in enumerate(FIELDS):
            mine, others = ([r[i] for r in side] for side in runs)
            ratios = [b / max(a, 1e-3) for a, b in zip(mine, others)]
            print(f"  {field:26} {statistics.median(mine):8.3f} {statistics.median(others):8.3f}   other / this "
                  f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
