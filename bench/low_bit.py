#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Perplexity against expert bytes a token, for all lossy modes with the same memory for experts.

    python3 low_bit.py COMMAND MODEL TEXT[,TEXT...] [--caches 25,50] [--rows 1] [--chunk 512]
                       [--types Q2_K,Q3_K] [--settings share=0.5] [--calibrate FILE] [--keep FOLDER]

Calibrates the model in a temporary folder on FILE (default: the demo model's data.py), with
low-bit copies of each type, and scores the held-out texts. --keep names a folder that stays, whose
calibrations a later call uses. --rows is how many tokens a pass
has: expert budgets need several. Prefetch is off: no clock is in the figures.
Bytes are of experts and copies, read on demand, with those that the comparison with the exact pass
needs; they count from an empty cache, and are the same in every run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from lossy_score import comma_list, kib_a_token, parser, score

SETTINGS = ("share=0.3 share=0.5 share=0.7 share=0.5,below=0.15 share=0.5,below=0.08 "
            "share=0.3,below=0.08")


def modes(rows: int, types: list[str], settings: list[str]) -> list[tuple[str, str, list[str]]]:
    """Name, type of the copies, options."""
    out = [("off", "", [])]
    for setting in ("on", "max=1,weight=own", "max=16,weight=inherit"):
        out.append((f"--buddy {setting}", "", ["--buddy", setting]))
    if rows > 1:
        for budget in (12, 16, 24, 32):
            out.append((f"--expert-budget {budget}", "", ["--expert-budget", str(budget)]))
    for name in types:
        for setting in settings:
            out.append((f"{name}, --low-bit {setting}", name, ["--low-bit", setting]))
    return out


def table(options: argparse.Namespace, models: dict[str, str], cache: str) -> None:
    print(f"\n{cache} % of the experts' bytes, {options.rows} tokens a pass\n")
    head = [os.path.splitext(os.path.basename(text))[0] for text in options.texts]
    print("| mode | " + " | ".join(f"{name}: perplexity | KiB a token" for name in head) + " |")
    print("|---|" + "---|---|" * len(head), flush=True)
    for name, kind, extra in modes(options.rows, options.types, options.settings):
        cells = []
        for text in options.texts:
            result = score(options.command, models[kind or options.types[0]], text, cache, extra,
                           chunk=options.chunk, rows=options.rows)
            if "why" in result:
                cells.append(f"{result['why']} | -")
                continue
            replaced = 100 * result["low_bit_mass"]
            note = f" ({replaced:.0f} % of the weight)" if kind else ""
            cells.append(f"{result['perplexity']:.2f}{note} | {kib_a_token(result):.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    wanted = parser(__doc__.splitlines()[0], caches="25,50")
    wanted.add_argument("--types", default=["Q2_K"], type=comma_list)
    wanted.add_argument("--settings", default=SETTINGS, type=str.split,
                        help="of --low-bit, between spaces")
    wanted.add_argument("--rows", type=int, default=1)
    wanted.add_argument("--chunk", type=int, default=512)
    wanted.add_argument("--keep")
    wanted.add_argument("--calibrate",
                        default=os.path.join(here, "../examples/demo-model/data.py"))
    options = wanted.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or temporary
        models = {kind: os.path.join(folder, f"{kind}.gguf") for kind in options.types}
        for kind, model in models.items():
            if os.path.exists(os.path.join(folder, f"{kind}.moe-lowbit.gguf")):
                continue
            os.symlink(os.path.abspath(options.model), model)
            done = subprocess.run([options.command, "calibrate", "-m", model, "-f",
                                   options.calibrate, "--low-bit-type", kind], check=False)
            if done.returncode != 0:
                sys.exit(done.returncode)
        for cache in options.caches:
            table(options, models, cache)


if __name__ == "__main__":
    main()
