#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What workers give: decoding with N workers that hold a part of the experts each, beside the same engine alone.

    python3 workers.py COMMAND MODEL [--workers 2] [--cache 25%] [-n 64] [--prompt 64] [--repeat 3] [-t 1]
                       [--throttle MB/S] [--transport tcp] [--compute auto]

All processes run on this machine, so its processors do the work of all; what is measured is whether bytes from
memory elsewhere beat bytes from the disk. Both engines have the same --cache; each worker holds its whole part.
With --throttle the disk gives the engine alone, and the one with workers, so much (a control group; root).
Runs are pairs, one after the other, and must write the same text. Printed are medians and the median of the
ratios of pairs, and what a token sends and receives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from beside_llama import Group
from panels import device_of

TREE = Path(__file__).resolve().parent.parent


def start_worker(given, share: str, environment: dict) -> tuple[subprocess.Popen, str]:
    worker = subprocess.Popen([given.command, "worker", "-m", given.model, "--share", share, "-t", given.threads,
                               "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=environment)
    line = worker.stdout.readline()
    found = re.match(r"worker at (127\.0\.0\.1:\d+)", line)
    if not found:
        sys.exit(f"a worker did not start: {line}")
    return worker, found.group(1)


def run(given, environment: dict, *more: str) -> tuple[str, dict]:
    command = [given.command, "run", "-m", given.model, "--raw", "-p", given.text, "-n", str(given.n), "--temp", "0",
               "-t", given.threads, "--expert-cache", given.cache, "--speculate", "off", "--json", *more]
    group = Group(None, given.throttle * 1000000 if given.throttle else None, device_of(given.model))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=group.enter,
                              env=environment)
    finally:
        group.remove()
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout, json.loads(done.stderr[done.stderr.index("{"):])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", default="25%")
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64, help="characters of the prompt, times 4")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-t", "--threads", default="1")
    parser.add_argument("--throttle", type=int)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--compute", default="auto")
    given = parser.parse_args()
    text = (TREE / "bench/texts/shakespeare.txt").read_text(encoding="utf-8")
    given.text = text[:4 * given.prompt]
    environment = dict(os.environ, UCX_TLS=given.transport)
    workers = [start_worker(given, f"{i + 1}/{given.workers}", environment) for i in range(given.workers)]
    rows = []
    try:
        names = ",".join(address for _, address in workers)
        for _ in range(given.repeat):
            alone_text, alone = run(given, environment)
            shared_text, shared = run(given, environment, "--workers", names, "--worker-compute", given.compute)
            if alone_text != shared_text:
                sys.exit("the texts differ")
            rows.append((alone, shared))
    finally:
        for worker, _ in workers:
            worker.send_signal(signal.SIGTERM)
            worker.wait()

    def median(of) -> float:
        return statistics.median(of(*row) for row in rows)

    n = given.n
    print("| | tokens/s | MiB read | jobs a token | KiB sent a token | received | s waited for workers |\n"
          "|---|---|---|---|---|---|---|")
    print(f"| alone | {median(lambda a, s: a['decode_tokens_per_s']):.1f} |"
          f" {median(lambda a, s: a['bytes_read_disk']) / 2**20:.0f} | | | | |")
    print(f"| {given.workers} workers | {median(lambda a, s: s['decode_tokens_per_s']):.1f} |"
          f" {median(lambda a, s: s['bytes_read_disk']) / 2**20:.0f} |"
          f" {median(lambda a, s: s['worker_jobs']) / n:.1f} |"
          f" {median(lambda a, s: s['worker_bytes_sent']) / n / 1024:.1f} |"
          f" {median(lambda a, s: s['worker_bytes_received']) / n / 1024:.1f} |"
          f" {median(lambda a, s: s['worker_wait_seconds']):.2f} |")
    ratio = median(lambda a, s: s["decode_tokens_per_s"] / a["decode_tokens_per_s"])
    print(f"\ntimes as fast, median of {len(rows)} pairs: {ratio:.2f}")


main()
