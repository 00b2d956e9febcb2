#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What panels save of a long prompt: bytes of experts read, and seconds, beside a pass for each chunk.

    python3 panels.py COMMAND MODEL [--text TEXT] [--prompts 512,2048,8192] [--caches 20%,40%,75%]
                      [--chunk 512] [--repeat 3] [-t 2] [--throttle MB/S] [--more "..."]

Prompts are the text's beginning, repeated where it is shorter, cut to about so many tokens. Each setting is run with `--panel 1` (none) and by default, one after the other and --repeat times, in a
process of its own that begins with an empty cache and writes one token. Both must write the same. Printed
are the bytes, which are the same each time but for prefetching, the medians of the seconds, and the median
of the ratios of pairs. With --throttle the disk gives so much (a control group; root).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from beside_llama import Group

TREE = Path(__file__).resolve().parent.parent
MIB = 1 << 20


def device_of(path: str) -> str:
    """The disk that holds the file, as control groups name it."""
    device = os.stat(path).st_dev
    whole = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = whole.parent if (whole / "partition").exists() else whole
    return (whole / "dev").read_text(encoding="utf-8").strip()


class Text:
    """A file's text, repeated and cut to about as many tokens as are wanted."""

    def __init__(self, command: str, model: str, path: str):
        self.whole = Path(path).read_text(encoding="utf-8")
        self.n_tokens = len(subprocess.run([command, "tokenize", "-m", model, "--raw", "-f", path],
                                           capture_output=True, text=True, check=True).stdout.split())

    def of(self, n: int) -> str:
        return (self.whole * (n // self.n_tokens + 1))[:int(n * len(self.whole) / self.n_tokens)]


def run(given, text: str, n: int, cache: str, panel: list[str]) -> tuple[str, int, float, int]:
    command = [given.command, "run", "-m", given.model, "--raw", "-f", text, "-n", "1", "--temp", "0",
               "-c", str(n + n // 4 + 64), "-t", given.threads, "-b", given.chunk, "--expert-cache", cache,
               "--calibration", "none", "--json", *panel, *given.more.split()]
    group = Group(None, given.throttle * 1000000 if given.throttle else None, device_of(given.model))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=group.enter)
    finally:
        group.remove()
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    told = json.loads(done.stderr[done.stderr.index("{"):])
    return done.stdout, told["bytes_read_disk"], told["prompt_seconds"], told["prompt_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--text", default=str(TREE / "bench/texts/shakespeare.txt"))
    parser.add_argument("--prompts", default="512,2048,8192")
    parser.add_argument("--caches", default="20%,40%,75%")
    parser.add_argument("--chunk", default="512")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-t", "--threads", default="2")
    parser.add_argument("--throttle", type=int)
    parser.add_argument("--more", default="")
    given = parser.parse_args()
    text = Text(given.command, given.model, given.text)
    print("| prompt | cache | MiB read, passes | panels | seconds, passes | panels | times as fast |\n"
          "|---|---|---|---|---|---|---|")
    for n in map(int, given.prompts.split(",")):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text.of(n))
            file.flush()
            for cache in given.caches.split(","):
                pairs = []
                for _ in range(given.repeat):
                    pairs.append((run(given, file.name, n, cache, ["--panel", "1"]),
                                  run(given, file.name, n, cache, [])))
                    if pairs[-1][0][0] != pairs[-1][1][0]:
                        sys.exit(f"{n} tokens, {cache}: the texts differ")
                read = [statistics.median(p[i][1] for p in pairs) / MIB for i in (0, 1)]
                spent = [statistics.median(p[i][2] for p in pairs) for i in (0, 1)]
                ratio = statistics.median(p[0][2] / p[1][2] for p in pairs)
                print(f"| {pairs[0][0][3]:,} | {cache} | {read[0]:,.0f} | {read[1]:,.0f} | {spent[0]:.2f} | {spent[1]:.2f} | "
                      f"{ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
