#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sweeps of the settings of --buddy: perplexity against expert bytes a token. No clock is read.

    python3 buddies.py COMMAND MODEL TEXT[,TEXT...] [--caches 25] [--only NAME,...]

MODEL has its sidecar beside it (moe-offload calibrate -m MODEL -f FILE). One token a pass, chunks of 512
tokens, prefetch and warm start off, so that every run gives the same figures. --only names sweeps:
base, max, alpha, beta, transfer, tae, temperature, epsilon, lists, reuse, inherit. With --device (a simulated
one), kappa acts, too.
"""

from __future__ import annotations

import argparse

from lossy_score import comma_list, kib_a_token, parser, score

# Sweep, setting; a point is measured with the defaults otherwise.
SWEEPS = [
    ("base", "off"), ("base", "on"),
    ("max", "max=1"), ("max", "max=2"), ("max", "max=8"), ("max", "max=16"),
    ("alpha", "alpha=0.1"), ("alpha", "alpha=0.05"),
    ("beta", "beta=0.75"), ("beta", "beta=0.5"), ("beta", "beta=0.25"),
    ("transfer", "transfer=200K"), ("transfer", "transfer=600K"), ("transfer", "transfer=1200K"),
    ("tae", "tae=0"), ("tae", "tae=50"), ("tae", "tae=95"),
    ("temperature", "temperature=0.8"), ("temperature", "temperature=1.2"),
    ("epsilon", "epsilon=0"), ("epsilon", "epsilon=100,alpha=0.1"),
    ("lists", "lists=weighted"), ("lists", "lists=weighted,max=1"),
    ("reuse", "reuse=0.25"), ("reuse", "reuse=1"), ("reuse", "reuse=1,weight=inherit"),
    ("inherit", "weight=inherit"),
]


def cell(options: argparse.Namespace, text: str, cache: str, setting: str) -> str:
    lossy = [] if setting == "off" else ["--buddy", setting]
    more = ("--device", options.device) if options.device else ()
    result = score(options.command, options.model, text, cache, lossy, more=more)
    if "why" in result:
        return f"{result['why']} | -"
    return f"{result['perplexity']:.2f}, {kib_a_token(result):.0f}"


def main() -> None:
    wanted = parser(__doc__.splitlines()[0], caches="25")
    wanted.add_argument("--only", default=[], type=comma_list)
    wanted.add_argument("--device")
    options = wanted.parse_args()
    columns = [(text, cache) for cache in options.caches for text in options.texts]
    print("| `--buddy` | " + " | ".join(f"{t.rsplit('/')[-1]}, {c} %" for t, c in columns) + " |")
    print("|---|" + "---|" * len(columns), flush=True)
    for sweep, setting in SWEEPS:
        if options.only and sweep not in options.only:
            continue
        cells = [cell(options, text, cache, setting) for text, cache in columns]
        print(f"| {setting} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
