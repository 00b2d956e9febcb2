# SPDX-License-Identifier: MIT
"""The cells of gate.py --cpu: tokens per second of processor time, of one thread on each side.

On a machine that others use, elapsed time says little. One thread's processor time holds there: no thread spins while
it waits for another that does not run. It does not show what two threads cost, nor whether memory is fast enough for
both. moe-offload tells the processor time of each repetition; of the peer's programs the difference of a long run and
a short one is taken, so that opening, reading and warming up cancel out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path


def cpu_seconds(command: list) -> float:
    """User and system time of a run."""
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    return used.ru_utime + used.ru_stime


def ours(test: str, command: list) -> dict:
    """Tokens per second of processor time in the last repetition of a test."""
    text = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL).stdout
    found = json.loads(text)
    row = next(r for r in found["results"] if r["test"] == test)
    return {test: row["tokens"] * found["parallel"] / row["cpu_s_runs"][-1]}


def theirs(test: str, tokens: int, short: list, long: list) -> dict:
    """tokens: those that the long command computes beyond the short one."""
    took = cpu_seconds(long) - cpu_seconds(short)
    return {test: tokens / took} if took > 0 else {"failed": "the short run took longer than the long one"}


def cells(given: argparse.Namespace, models: list[str], model: Callable, token_ids: Callable, in_turn: Callable,
          cell: Callable) -> list[dict]:
    """All cells. in_turn() runs both sides of each pair, cell() makes the row of a table."""
    def mine(path: str, ids: str, *more) -> list:
        return [given.command, "bench", "decode", "-m", path, "-t", 1, "--calibration", "none", "--tokens-from", ids,
                "--json", *more]

    def peers(path: str, *more) -> list:
        return [given.peer, "-m", path, "-t", 1, *more]

    def measure(name: str, test: str, command: list, tokens: int, short: list, long: list) -> dict:
        return cell(name, in_turn(given, lambda: ours(test, command),
                                  (lambda: theirs(test, tokens, short, long)) if short else None), test)

    found, there = [], given.peer is not None
    p, n = given.p, given.n
    for name in models:
        path = model(given, name)
        ids = token_ids(given, path)
        count = n * (8 if name == "demo" else 1)  # its tokens are too short to time
        for test, one, their, tokens in (
                ("decode", ["-p", 1, "-n", count], ["-p", 0, "-n", count], count),
                ("prompt", ["-p", p, "-n", 1, "-b", p], ["-p", p, "-n", 0, "-b", p, "-ub", p], p)):
            found.append(measure(f"{test}, {name}", test, mine(path, ids, *one, "--repeat", 2), 2 * tokens,
                                 there and peers(path, *their, "-r", 1), there and peers(path, *their, "-r", 3)))
    path = model(given, "OLMoE Q4_K")
    for depth in (4096,) if given.short else (4096, 16384):
        their = peers(path, "-p", 0, "-d", depth, "-fa", 1, "-r", 1, "-n") if there else []
        found.append(measure(f"decode behind {depth:,}", "decode",
                             mine(path, "random", "-p", depth, "-n", 4 * n, "--repeat", 1), 4 * n,
                             there and [*their, 8], there and [*their, 8 + 4 * n]))
    path = model(given, "inflated Q4_K")
    program = Path(given.peer or "").parent / "llama-batched-bench"
    there, one = there and program.exists(), None
    for count in (1, 8, 32):
        their = [program, "-m", path, "-t", 1, "-npp", 8, "-npl", count, "-c", count * 64, "-ntg"]
        found.append(measure(f"{count} sequences", "decode",
                             mine(path, "sampled", "-p", 8, "-n", 32, "--parallel", count, "--repeat", 1), 32 * count,
                             there and [*their, 8], there and [*their, 40]))
        one = one or found[-1]["ours"]
        found[-1] |= {"of_one": found[-1]["ours"] / one} if count > 1 else {}
    return found
