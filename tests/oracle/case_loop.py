# SPDX-License-Identifier: MIT
"""The command line that the scripts making oracles share, and the folder of each case."""
import argparse
from pathlib import Path

import torch


def chosen_cases(description, cases, name_of=lambda case: case.name):
    """Yields (case, its folder, made) for the cases that the command line asks for: --only NAME... (else all), --out FOLDER."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in cases:
        if options.only is None or name_of(case) in options.only:
            out = options.out / name_of(case)
            out.mkdir(parents=True, exist_ok=True)
            yield case, out
