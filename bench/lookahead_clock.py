#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What lookahead gains by the clock: decoding with and without it, in turn, on a throttled disk.

    python3 lookahead_clock.py COMMAND MODEL TEXT[,TEXT...] [--caches 10,25,50] [--speeds 500,1000,3000]
                               [--modes forced,sampled] [--pairs 3] [-p 64] [-n 32]
                               [--on "--lookahead 8"] [--off ""] [--out runs.jsonl]

Needs root and control groups of version 1 or 2 with block I/O, to limit what the disk reads a second
(MB/s; 0: no limit); else --no-throttle. MODEL is meant to be one of real size (inflate.py), TEXT
held-out text (held_out_texts.py). "forced": the text's own tokens are decoded one by one; "sampled":
the model writes at temperature 1. A pair is two runs beside each other, in turn the one first and the
other; both must choose the same tokens. The table has medians over pairs of all texts.
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

GROUPS = Path("/sys/fs/cgroup")


def find(stats, name: str):
    """A counter of the statistics, wherever it is nested."""
    if isinstance(stats, dict):
        if name in stats:
            return stats[name]
        stats = list(stats.values())
    if isinstance(stats, list):
        for value in stats:
            found = find(value, name)
            if found is not None:
                return found
    return None


class Throttle:
    """A control group whose processes read from the model's disk at most so many bytes a second."""

    def __init__(self, model: str, mb_per_s: float):
        self.path = None
        if mb_per_s == 0:
            return
        number = os.stat(model).st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        limit = int(mb_per_s * 1e6)
        first = (GROUPS / "blkio").is_dir()
        self.path = (GROUPS / "blkio" if first else GROUPS) / f"lookahead-{os.getpid()}"
        self.path.mkdir(exist_ok=True)
        name, line = ("blkio.throttle.read_bps_device", f"{device} {limit}") if first else \
            ("io.max", f"{device} rbps={limit}")
        (self.path / name).write_text(line, encoding="utf-8")

    def enter(self) -> None:
        if self.path is not None:
            (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")

    def remove(self) -> None:
        if self.path is not None:
            self.path.rmdir()


def decode(given, text: str, cache: str, speed: float, mode: str, extra: str) -> dict:
    common = ["-m", given.model, "-t", str(given.threads), "--expert-cache", f"{cache}%",
              "--calibration", "none", "--json", *extra.split()]
    if mode == "forced":
        command = [given.command, "bench", "decode", "-p", str(given.p), "-n", str(given.n),
                   "--repeat", "1", "--tokens-from", given.ids[text], *common]
    else:
        command = [given.command, "run", "-p", given.prompts[text], "-n", str(given.n), "--temp",
                   "1", "-s", "1", "--raw", "--ignore-eos", "--speculate", "off",
                   "--warm-start", "off", *common]
    group = Throttle(given.model, speed)
    try:
        done = subprocess.run(command, preexec_fn=group.enter, capture_output=True, text=True,
                              check=False)
    finally:
        group.remove()
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    stats = json.loads(done.stdout if mode == "forced" else done.stderr)
    per_s = find(stats, "decode_tokens_per_s")
    if mode == "forced":
        per_s = [r["tokens_per_s_runs"][0] for r in stats["results"] if r["test"] == "decode"][0]
    return {"per_s": per_s, "sha": find(stats, "tokens_xxh128"),
            "misses": find(stats, "expert_misses"), "read": find(stats, "bytes_read_disk"),
            "all": stats}


def prepare(given, folder: str) -> None:
    """The prompt of each text, and its token ids."""
    given.ids, given.prompts = {}, {}
    for text in given.texts.split(","):
        whole = Path(text).read_text(encoding="utf-8")[: 16 * (given.p + given.n)]
        done = subprocess.run([given.command, "tokenize", "-m", given.model, "--raw", "-f", "-"],
                              input=whole, capture_output=True, text=True, check=True)
        given.ids[text] = f"{folder}/{len(given.ids)}.ids"
        Path(given.ids[text]).write_text(done.stdout, encoding="utf-8")
        given.prompts[text] = whole[: 3 * given.p]


def measure(given, cache: str, speed: float, mode: str) -> None:
    rows = []
    for i in range(given.pairs):
        for text in given.ids:
            row, order = {}, [("off", given.off), ("on", given.on)]
            for name, extra in order if i % 2 == 0 else order[::-1]:
                row[name] = decode(given, text, cache, speed, mode, extra)
            if row["on"]["sha"] != row["off"]["sha"]:
                sys.exit(f"{text}: the two wrote different tokens")
            rows.append(row)
            if given.out:
                with open(given.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"cache": cache, "speed": speed, "mode": mode,
                                           "text": text, **row}) + "\n")
    ratios = [r["on"]["per_s"] / r["off"]["per_s"] for r in rows]
    read = [r["on"]["read"] / r["off"]["read"] for r in rows]
    cells = [mode, f"{cache} %", f"{speed:g}" if speed else "no limit",
             f"{statistics.median(r['off']['per_s'] for r in rows):.2f}",
             f"{statistics.median(r['on']['per_s'] for r in rows):.2f}",
             f"**{statistics.median(ratios):.2f}**", f"{min(ratios):.2f}", f"{max(ratios):.2f}",
             f"{statistics.median(read):.2f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("--caches", default="10,25,50")
    parser.add_argument("--speeds", default="500,1000,3000")
    parser.add_argument("--modes", default="forced,sampled")
    parser.add_argument("--pairs", type=int, default=1, help="of each text")
    parser.add_argument("-p", type=int, default=64)
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--on", default="--lookahead 8")
    parser.add_argument("--off", default="")
    parser.add_argument("--out")
    given = parser.parse_args()
    heads = ["tokens", "cache", "MB/s", "off, tokens/s", "on", "on/off, median", "least", "most",
             "bytes read, on/off"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    with tempfile.TemporaryDirectory() as folder:
        prepare(given, folder)
        for mode in given.modes.split(","):
            for cache in given.caches.split(","):
                for speed in given.speeds.split(","):
                    measure(given, cache, float(speed), mode)


if __name__ == "__main__":
    main()
