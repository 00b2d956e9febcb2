#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decoding behind texts of several lengths, and prompts of several lengths, beside llama.cpp with -fa 1.

    python3 depth_table.py COMMAND MODEL LLAMA_BENCH [--llama-options="--repack 0"]
                           [--depths 128,1024,4096,16384] [--prompts 512,4096,8192] [-n 32]
                           [--pairs 2] [-t 2] [--kv f16] [--out runs.jsonl]

LLAMA_BENCH is llama.cpp's program; nothing here is needed to build or test moe-offload. The model must fit
in memory. The two run in turn, every other pair in reverse order, with keys and values of one type.

- A prompt is taken in passes of 512 rows. Ours is the last of up to three in one process, since the
  first reads the experts; llama-bench warms up.
- Decoding is the mean of -n tokens behind the depth, of ours the last time, too. Tokens are random.
- What else kept the machine busy beside a run is told on standard error, in cores.
- Ratios are above 1 where moe-offload is faster: the median of the pairs', in brackets least and greatest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import beside_llama


def timed(command: list[str]) -> list | dict:
    begun, busy, own = time.monotonic(), beside_llama.busy_seconds(), beside_llama.own_seconds()
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    took = time.monotonic() - begun
    others = (beside_llama.busy_seconds() - busy - beside_llama.own_seconds() + own) / took
    print(f"{took:6.1f} s, others {max(0.0, others):.2f} cores: {' '.join(command)}", file=sys.stderr, flush=True)
    return json.loads(text)


def repeats(length: int) -> int:
    """Short runs are noisy, and in ours the first one reads the experts; long ones hide that."""
    return 3 if length <= 1024 else 2 if length <= 8192 else 1


def ours(given, length: int, n: int) -> dict:
    found = timed([given.command, "bench", "decode", "-m", given.model, "-p", str(length), "-n", str(n),
                   "-t", str(given.threads), "--kv", given.kv, "--repeat", str(repeats(length)),
                   "--tokens-from", "random", "--calibration", "none", "--json"])
    speeds = {r["test"]: r["tokens_per_s_runs"][-1] for r in found["results"]}
    return speeds | {"share": found.get("decode_share_of_bound")}


def theirs(given, arguments: list[str], n_runs: int) -> float:
    found = timed([given.llama_bench, "-m", given.model, "-t", str(given.threads), "-fa", "1", "-b", "512",
                   "-ub", "512", "-ctk", given.kv, "-ctv", given.kv, "-r", str(n_runs), "-o", "json",
                   *arguments, *given.llama_options.split()])
    return statistics.median(found[0]["samples_ts"])


def our_figure(given, what: str, length: int) -> float:
    return ours(given, length, given.n if what == "decode" else 1)[what]


def their_figure(given, what: str, length: int) -> float:
    if what == "decode":
        return theirs(given, ["-p", "0", "-n", str(given.n), "-d", str(length)], 1)
    return theirs(given, ["-p", str(length), "-n", "0"], 1 if length > 1024 else 2)


def measure(given, what: str, length: int) -> str:
    pairs = []
    for pair in range(given.pairs):
        halves = [("ours", our_figure), ("theirs", their_figure)]
        row = {"what": what, "length": length, "pair": pair, "kv": given.kv, "model": given.model}
        for name, run in halves if pair % 2 == 0 else halves[::-1]:
            row[name] = run(given, what, length)
        pairs.append((row["ours"], row["theirs"]))
        if given.out:
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    ratios = [a / b for a, b in pairs]
    return (f"| {what} | {length:,} | {statistics.median(a for a, _ in pairs):.1f} | "
            f"{statistics.median(b for _, b in pairs):.1f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {len(pairs)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", help="build/moe-offload")
    parser.add_argument("model")
    parser.add_argument("llama_bench")
    parser.add_argument("--llama-options", default="", help="more for llama-bench, between blanks")
    parser.add_argument("--depths", default="128,1024,4096,16384", help="of decoding; none: no rows")
    parser.add_argument("--prompts", default="512,4096,8192", help="none: no rows")
    parser.add_argument("-n", type=int, default=32, help="tokens behind a depth")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="type of keys and values, of both")
    parser.add_argument("--out", help="every pair is appended here, a JSON object a line")
    given = parser.parse_args()
    print("| what | tokens before, or of the prompt | moe-offload, tokens/s | llama.cpp -fa 1 | ratio | pairs |")
    print("|---|---|---|---|---|---|")
    for what, lengths in (("prompt", given.prompts), ("decode", given.depths)):
        for length in [] if lengths == "none" else lengths.split(","):
            print(measure(given, what, int(length)), flush=True)


if __name__ == "__main__":
    main()
