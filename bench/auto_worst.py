#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What speculation costs at worst, in modelled bytes: no clock, the same on every machine.

    python3 auto_worst.py COMMAND MODEL [--config auto] [--texts A,B,...] [--temps 0.7,1,0]
                          [--caches 15%,25%,50%,75%,100%] [--shapes 64x32x3,64x64x3,64x200x1]
                          [--parallel 1] [--pieces DATA] [--each 6] [--jobs 1] [--least 0.99]
                          [--least-mean 1]

Each combination is a setting: a text, a temperature, a cache, and a shape (tokens of a prompt,
tokens written after it, prompts one after another). Its figure is the modelled cost of a run
without speculation over that of the run, of the same tokens with the same cache ("bench speculate
--configs 'off --cost bytes; auto --cost bytes'", column gain). Without --texts the tree's own are
used; with --pieces DATA (../shared/data beside the repository) pieces of 6 kB of its texts and
prompts instead, --each of every file, evenly spaced.
With --parallel 4,8 each setting is run with each batch; --jobs settings run at a time, which
changes no figure. With --least the program fails if a
setting is below that, with --least-mean if the geometric mean is.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
TEXTS = ("tests/engine/prose_a.txt", "tests/engine/prose_b.txt", "bench/texts/gsm8k.txt",
         "bench/texts/shakespeare.txt", "ARCHITECTURE.md", "README.md",
         "examples/demo-model/train.py", "examples/demo-model/data.py",
         "bench/texts/length_survival.c.txt")


PIECE_FILES = ("text/tinyshakespeare.txt", "text/gsm8k-train.jsonl", "prompts/humaneval.jsonl",
               "prompts/spec-bench.jsonl")
PIECE_SIZE = 6000


def pieces(data: Path, each: int, folder: Path) -> list[str]:
    """Piece i of `each` begins at the first line after (i + 1/2) / each of the file."""
    paths = []
    for name in PIECE_FILES:
        text = (data / name).read_text(encoding="utf-8")
        for i in range(each):
            at = text.find("\n", int((i + 0.5) / each * (len(text) - PIECE_SIZE))) + 1
            path = folder / f"{Path(name).stem}-{i + 1}of{each}.txt"
            path.write_text(text[at:at + PIECE_SIZE], encoding="utf-8")
            paths.append(str(path))
    return paths


def run(given, text: str, temp: str, shape: str) -> list[tuple[str, float]]:
    prompt, written, prompts = shape.split("x")
    command = [given.command, "bench", "speculate", "-m", given.model, "-f", text, "-t", "1", "-p",
               prompt, "-n", written, "--prompts", prompts, "--repeat", "1", "--temp", temp,
               "--calibration", "none", "--io-timeout", "3600", "--expert-cache", given.caches,
               "--parallel", given.parallel, "--configs", f"off --cost bytes; {given.config} --cost bytes", "--seed", given.seed,
               "--format", "csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return [(f"{Path(text).name}, temperature {temp}, cache {row['cache_percent']} %, {shape}, "
             f"batch {row['batch']}", float(row["gain"]))
            for row in csv.DictReader(io.StringIO(done.stdout)) if not row["config"].startswith("off")]


def summary(name: str, rows: list[tuple[str, float]]) -> str:
    ratios = [r for _, r in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (f"| {name} | {len(ratios)} | {min(ratios):.4f} | {sum(r < 0.99 for r in ratios)} | "
            f"{sum(r < 0.999 for r in ratios)} | {sum(r > 1.001 for r in ratios)} | "
            f"{max(ratios):.2f} | {mean:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--config", default="auto")
    parser.add_argument("--texts", default=",".join(str(TREE / t) for t in TEXTS))
    parser.add_argument("--pieces", type=Path)
    parser.add_argument("--each", type=int, default=6)
    parser.add_argument("--temps", default="0.7,1,0")
    parser.add_argument("--caches", default="15%,25%,50%,75%,100%")
    parser.add_argument("--shapes", default="64x32x3,32x64x1,64x64x3,64x200x1")
    parser.add_argument("--parallel", default="1")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.0)
    parser.add_argument("--least-mean", type=float, default=0.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = (pieces(given.pieces, given.each, Path(folder)) if given.pieces
                 else given.texts.split(","))
        rows, by = measure(given, texts)
    report(given, rows, by)


def measure(given, texts: list[str]) -> tuple[list[tuple[str, float]], dict]:
    rows, by = [], {}
    settings = [(text, temp, shape) for text in texts for temp in given.temps.split(",")
                for shape in given.shapes.split(",")]
    with ThreadPoolExecutor(given.jobs) as jobs:
        results = list(jobs.map(lambda setting: run(given, *setting), settings))
    for (_, temp, shape), found in zip(settings, results):
        rows += found
        for key in (f"temperature {temp}", f"shape {shape}"):
            by.setdefault(key, []).extend(found)
        for one in found:
            by.setdefault(one[0].rsplit(", ", 1)[1], []).append(one)
    return rows, by


def report(given, rows: list[tuple[str, float]], by: dict) -> None:
    print("| settings | number | worst | lost over 1 % | lost over 0.1 % | won over 0.1 % | best | "
          "geometric mean |\n|---|---|---|---|---|---|---|---|")
    for name in sorted(by):
        print(summary(name, by[name]))
    print(summary("all", rows))
    for name, ratio in sorted(rows, key=lambda row: row[1])[:5]:
        print(f"{ratio:.4f}  {name}")
    if min(ratio for _, ratio in rows) < given.least:
        sys.exit(f"a setting is below {given.least}")
    mean = math.exp(sum(math.log(ratio) for _, ratio in rows) / len(rows))
    if mean < given.least_mean:
        sys.exit(f"the geometric mean, {mean:.3f}, is below {given.least_mean}")


if __name__ == "__main__":
    main()
