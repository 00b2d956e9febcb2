# SPDX-License-Identifier: MIT
"""Writes the oracles of form_cases.py, as make_families.py does its own.

    python3 make_forms.py [--only NAME...] [--out DIRECTORY]
"""
import argparse
from pathlib import Path

import torch

import make_families
import form_gguf
from form_cases import CASES, PROMPT_LENGTHS, build


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_families.PROMPT_LENGTHS = PROMPT_LENGTHS
    for case in CASES:
        if options.only is None or case.name in options.only:
            model, out = build(case), options.out / case.name
            out.mkdir(parents=True, exist_ok=True)
            form_gguf.write(out / "model.gguf", model, case)
            make_families.write_prompts(out, model, case)


if __name__ == "__main__":
    main()
