# SPDX-License-Identifier: MIT
"""Writes the oracles of recurrent_cases.py and hybrid_cases.py, as make_families.py does its own; of a long
prompt only the logits of every eighth position and of the last four are kept.

    python3 make_recurrent.py [--only NAME...] [--out DIRECTORY]
"""
import numpy as np

import hybrid_cases
import hybrid_gguf
import make_families
import recurrent_cases
import recurrent_gguf
from case_loop import chosen_cases
from make_oracles import ids_line
from recurrent_cases import prompt_lengths

KEPT_WHOLE = 256


def thin_out(out):
    """Of prompts that are too long keeps some positions' logits."""
    for path in out.glob("?.logits.npy"):
        logits = np.load(path)
        n = len(logits)
        if n > KEPT_WHOLE:
            kept = [i for i in range(n) if i % 8 == 0 or i >= n - 4]
            np.save(path, logits[kept])
            (out / path.name.replace("logits.npy", "positions.txt")).write_text(ids_line(kept))


def main():
    hybrids = [case for case in hybrid_cases.CASES if case.family != "glm5_next"]   # make_indexed.py writes these
    for case, out in chosen_cases(__doc__, recurrent_cases.CASES + hybrids):
        recurrent = case in recurrent_cases.CASES
        table, writer = (recurrent_cases, recurrent_gguf) if recurrent else (hybrid_cases, hybrid_gguf)
        make_families.PROMPT_LENGTHS = prompt_lengths(case)
        model = table.build(case)
        writer.write(out / "model.gguf", model, case)
        make_families.write_prompts(out, model, case)
        thin_out(out)


if __name__ == "__main__":
    main()
