#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prompts of several lengths under memory limits: moe-offload and llama.cpp in turn, the same file and text.

    python3 prompts_beside_llama.py COMMAND MODEL LLAMA_COMPLETION [--prompts 500,2000,8000,32000] [--limits 40,15]
                                    [--micro-batches 512,1024,2048,4096] [--pairs 1] [-t 2] [--throttle MB/S]

Needs root and control groups of version 1 with memory and block I/O. Both evaluate the same text, as each
tokenizes it (the numbers of tokens must agree), in a group that limits memory, page cache included, to so many
hundredths of the file, and write one token; the file's pages are dropped before. Bytes are those that the
group has read from the disk, opening included; seconds are what each engine tells of its prompt alone, and "run, s" is
the whole process's time: llama.cpp reads much of the file while it opens it.
llama.cpp runs once for each micro-batch that is smaller than the prompt, and once for the first that is not. A
row compares with one of them. "Of the bound" is what this engine's time could be at least, divided by what it is:
its bytes at the disk's rate, or the time of the same prompt without a limit, whichever is longer. CPU seconds are
those of the whole process. With --throttle the disk gives each so much."""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from beside_llama import GROUPS, Group, drop_pages, write
from panels import Text, device_of

TREE = Path(__file__).resolve().parent.parent
MIB = 1 << 20
NO_LIMIT = 1 << 50


class CountingGroup(Group):
    """A group whose block I/O is counted, too."""

    def __init__(self, limit: int | None, throttle: int | None, device: str):
        super().__init__(limit, throttle, device)
        self.blocks = GROUPS / "blkio" / f"beside-{next(iter(self.paths)).name.split('-')[-1]}"
        if self.blocks not in self.paths:
            self._make(self.blocks)
        self.device = device

    def read(self) -> int:
        text = (self.blocks / "blkio.throttle.io_service_bytes").read_text(encoding="utf-8")
        return sum(int(line.split()[2]) for line in text.splitlines()
                   if line.startswith(f"{self.device} Read"))


def cpu_seconds() -> float:
    """Of processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(given, command: list[str], limit: int | None) -> tuple[subprocess.CompletedProcess, dict]:
    drop_pages(given.model)
    throttle = given.throttle * 1000000 if given.throttle and limit is not None else None
    group = CountingGroup(limit or NO_LIMIT, throttle, device_of(given.model))
    before, begun = cpu_seconds(), time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                              preexec_fn=group.enter, timeout=given.timeout)
        read = group.read()
    finally:
        group.remove()
    return done, {"read": read, "cpu": cpu_seconds() - before, "whole": time.monotonic() - begun}


def tell(name: str, row: dict) -> dict:
    """As each run ends: some take many minutes."""
    print(f"{name}: {row['tokens']} tokens, {row['read'] / MIB:,.0f} MiB, {row['seconds']:.1f} s of "
          f"{row['whole']:.1f}, {row['cpu']:.1f} CPU s", file=sys.stderr, flush=True)
    return row


def run_ours(given, text: str, context: int, limit: int | None) -> dict:
    """limit: of memory, in bytes; None: neither it nor the disk is limited."""
    done, read = run(given, [given.command, "run", "-m", given.model, "--raw", "-f", text, "-n", "1", "--temp", "0",
                             "-c", str(context), "-t", given.threads, "--calibration", "none", "--json"], limit)
    if done.returncode != 0:
        sys.exit(f"moe-offload: {done.returncode}\n{done.stderr[-2000:]}")
    told = json.loads(done.stderr[done.stderr.index("{"):])
    return tell("moe-offload", {**read, "seconds": told["prompt_seconds"], "tokens": told["prompt_tokens"]})


def run_theirs(given, text: str, context: int, limit: int, micro_batch: str) -> dict | None:
    """None: it was killed, since its buffers for so many rows do not fit the limit."""
    done, read = run(given, [given.llama, "-m", given.model, "-f", text, "-n", "1", "--temp", "0", "-c", str(context),
                             "-b", micro_batch, "-ub", micro_batch, "-t", given.threads, "-fa", "on", "-no-cnv",
                             "--no-warmup", *given.llama_options.split()], limit)
    if done.returncode == -9:
        print(f"llama.cpp was killed with micro-batches of {micro_batch}", file=sys.stderr)
        return None
    found = re.search(r"prompt eval time = *([0-9.]+) ms / *([0-9]+) tokens", done.stderr + done.stdout)
    if found is None:
        sys.exit("llama.cpp does not tell its prompt's time:\n" + done.stderr[-2000:])
    return tell(f"llama.cpp by {micro_batch}", {**read, "seconds": float(found[1]) / 1e3, "tokens": int(found[2])})


def tried(micro_batches: str, n: int) -> list[str]:
    """Those below the prompt's length, and the first that takes the prompt at once."""
    sizes = sorted(map(int, micro_batches.split(",")))
    return [str(size) for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < n]


def compare(given, text: str, n: int, share: str, free: dict) -> None:
    """Prints a row for each micro-batch. free: this engine's run without a limit."""
    context, limit = n + n // 8 + 64, int(Path(given.model).stat().st_size * float(share) / 100)
    rows: dict[str, list[tuple[dict, dict]]] = {}
    killed = []
    for _ in range(given.pairs):
        ours = run_ours(given, text, context, limit)
        for micro in tried(given.micro_batches, n):
            theirs = run_theirs(given, text, context, limit, micro)
            if theirs is None:
                killed.append(micro)
                continue
            if abs(ours["tokens"] - theirs["tokens"]) > 1:
                sys.exit(f"{ours['tokens']} and {theirs['tokens']} tokens")
            rows.setdefault(micro, []).append((ours, theirs))
    for micro, pairs in rows.items():
        cells = []
        for key, unit in (("read", MIB), ("cpu", 1), ("seconds", 1), ("whole", 1)):
            cells += [f"{statistics.median(p[i][key] for p in pairs) / unit:,.1f}" for i in (0, 1)]
            cells.append(f"{statistics.median(p[1][key] / p[0][key] for p in pairs):.2f}")
        at_disk = pairs[0][0]["read"] / (given.throttle * 1e6) if given.throttle else 0.0
        seconds = statistics.median(p[0]["seconds"] for p in pairs)
        print(f"| {pairs[0][0]['tokens']:,} | {share} % | {micro} | {' | '.join(cells)} | "
              f"{100 * max(at_disk, free['seconds']) / seconds:.0f} % |", flush=True)
    for micro in killed:
        print(f"| {free['tokens']:,} | {share} % | {micro} | | killed | | | | | | | | | | | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("llama", help="llama-completion")
    parser.add_argument("--text", default=str(TREE / "bench/texts/shakespeare.txt"))
    parser.add_argument("--prompts", default="500,2000,8000,32000")
    parser.add_argument("--limits", default="40,15", help="%% of the file")
    parser.add_argument("--micro-batches", default="512,1024,2048,4096")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("-t", "--threads", default="2")
    parser.add_argument("--throttle", type=int)
    parser.add_argument("--timeout", type=int, default=3600)
    parser.add_argument("--llama-options", default="")
    given = parser.parse_args()
    text = Text(given.command, given.model, given.text)
    print("| prompt | limit | micro-batch | MiB read | llama.cpp | times less | CPU s | llama.cpp | times less | "
          "seconds | llama.cpp | times as fast | run, s | llama.cpp | times as fast | of the bound |\n" + "|---" * 16 + "|", flush=True)
    for n in map(int, given.prompts.split(",")):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text.of(n))
            file.flush()
            free = run_ours(given, file.name, n + n // 8 + 64, None)
            for share in given.limits.split(","):
                compare(given, file.name, n, share, free)


if __name__ == "__main__":
    main()
