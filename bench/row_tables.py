#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decoding with rows of a table from the disk, beside the same with all rows in memory.

    MOE_OFFLOAD_LIBRARY=build/libmoe_offload.so.0 PYTHONPATH=runtime/python \\
        python3 row_tables.py MODEL [--pairs N] [--tokens N] [--threads N]

Each pair writes a text of random tokens, which no other pair writes, and then the same text again, with the same
seed: the first time its rows are read from the disk, the second time all of them are in memory. All experts fit.
Prints for each pair the seconds of both, and the rows that a pass waited for; at the end the median of their ratios.
"""
import argparse
import statistics
import time

import moe_offload


def write(engine, seed: int, n_tokens: int) -> tuple[list[int], float, dict]:
    before = engine.stats()
    with engine.session(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=seed) as session:
        session.feed([seed % 1000 + 300, 17, 29])
        tokens, begin = [], None
        while len(tokens) < n_tokens:
            tokens += engine.step([session])[0]
            begin = begin or time.monotonic()     # the prompt's pass is not counted
        seconds = time.monotonic() - begin
    after = engine.stats()
    return tokens, seconds, {key: after[key] - before[key] for key in ("rows_taken", "rows_read", "rows_waited")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    ratios, waited, read = [], 0, 0
    with moe_offload.Engine(options.model, n_threads=options.threads, context=1024) as engine:
        write(engine, 1, options.tokens)
        for seed in range(2, options.pairs + 2):
            cold_tokens, cold, rows = write(engine, seed, options.tokens)
            warm_tokens, warm, again = write(engine, seed, options.tokens)
            if cold_tokens != warm_tokens or again["rows_read"] > 0:
                raise SystemExit("the second text is another one, or read rows again")
            ratios.append(cold / warm)
            waited, read = waited + rows["rows_waited"], read + rows["rows_read"]
            print(f"disk {cold:.2f} s, memory {warm:.2f} s; {rows}", flush=True)
    print(f"{read} rows read, {waited} waited for; time with rows from the disk, by the same in memory: "
          f"{statistics.median(ratios):.4f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
