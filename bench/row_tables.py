#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decoding with rows of a table from the disk, beside the same with all rows in memory.

    MOE_OFFLOAD_LIBRARY=build/libmoe_offload.so.0 PYTHONPATH=runtime/python \\
        python3 row_tables.py MODEL [--pairs N] [--tokens N] [--threads N]

Each pair writes a text of random tokens, which no other pair writes, and then the same text again twice, with the
same seed: the first time its rows are read from the disk, then all of them are in memory. All experts fit. Prints for
each pair the seconds and the processor's seconds (of all threads), and the rows that a pass waited for; at the end the
medians of the ratios. That of the two texts from memory says what the machine's other work makes of a ratio of 1.
"""
import argparse
import statistics
import time

import moe_offload


COUNTS = ("rows_taken", "rows_read", "rows_waited", "rows_wait_ns")


def write(engine, seed: int, n_tokens: int) -> tuple[list[int], float, float, dict]:
    before = engine.stats()
    with engine.session(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=seed) as session:
        session.feed([seed % 1000 + 300, 17, 29])
        tokens, begin = [], None
        while len(tokens) < n_tokens:
            tokens += engine.step([session])[0]
            begin = begin or (time.monotonic(), time.process_time())     # the prompt's pass is not counted
        seconds, busy = time.monotonic() - begin[0], time.process_time() - begin[1]
    after = engine.stats()
    return tokens, seconds, busy, {key: after[key] - before[key] for key in COUNTS}


def show(name: str, ratios: list[float]) -> None:
    print(f"{name}: {statistics.median(ratios):.4f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    disk, disk_busy, noise, noise_busy, cost = [], [], [], [], []
    waited = waited_ns = read = 0
    with moe_offload.Engine(options.model, n_threads=options.threads, context=1024) as engine:
        write(engine, 1, options.tokens)
        for seed in range(2, options.pairs + 2):
            texts = [write(engine, seed, options.tokens) for _ in range(3)]
            (tokens, cold, cold_busy, rows), (again, warm, warm_busy, kept), (_, third, third_busy, _) = texts
            if tokens != again or kept["rows_read"] > 0:
                raise SystemExit("the second text is another one, or read rows again")
            disk.append(cold / warm)
            disk_busy.append(cold_busy / warm_busy)
            noise.append(third / warm)
            noise_busy.append(third_busy / warm_busy)
            cost.append(cold_busy - (warm_busy + third_busy) / 2)
            waited, read = waited + rows["rows_waited"], read + rows["rows_read"]
            waited_ns += rows["rows_wait_ns"]
            print(f"disk {cold:.2f} s ({cold_busy:.2f} busy), memory {warm:.2f} s ({warm_busy:.2f}) and {third:.2f} s "
                  f"({third_busy:.2f}); {rows}", flush=True)
    print(f"{read} rows read, {waited} waited for, {waited_ns / 1e9:.3f} s")
    show("time, disk by memory", disk)
    show("time, memory by memory", noise)
    show("processor's time, disk by memory", disk_busy)
    show("processor's time, memory by memory", noise_busy)
    print(f"processor's time of the rows: {statistics.median(cost) / options.tokens * 1e3:.2f} ms a token")


if __name__ == "__main__":
    main()
