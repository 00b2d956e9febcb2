# SPDX-License-Identifier: MIT
"""Writes the oracles of window_cases.py, as make_families.py does its own.

    python3 make_windows.py [--only NAME...] [--out DIRECTORY]
"""
import make_families
import window_gguf
from case_loop import chosen_cases
from window_cases import CASES, PROMPT_LENGTHS, build


def main():
    make_families.PROMPT_LENGTHS = PROMPT_LENGTHS
    for case, out in chosen_cases(__doc__, CASES):
        model = build(case)
        window_gguf.write(out / "model.gguf", model, case)
        make_families.write_prompts(out, model, case)


if __name__ == "__main__":
    main()
