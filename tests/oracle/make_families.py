# SPDX-License-Identifier: MIT
"""Writes the smaller oracles: the models of family_cases.py as GGUF, with float32 logits of every
position and greedy continuations.

    python3 make_families.py [--only NAME...] [--out DIRECTORY]

Needs torch, transformers and gguf; what it wrote is in the tree, so the suite needs none of them. Seeds
are fixed. A prompt is drawn again where rounding could decide: embeddings that differ in their sixth
digit must give the same logits to three, and the best token must stand apart from the second.
"""
import numpy as np
import torch

import family_gguf
from case_loop import chosen_cases
from family_cases import CASES, N_VOCAB, build
from make_oracles import MIN_GREEDY_GAP, greedy, ids_line, logits_of

PROMPT_LENGTHS = (12, 24, 56)
N_TRIALS = 4
NUDGE = 2e-6
MAX_EFFECT = 1e-3       # of the largest logit; a different expert moves it by far more


@torch.no_grad()
def is_firm(model, ids):
    """Whether logits stay when the embeddings are nudged."""
    table = getattr(model.model, "embed_tokens", None) or model.model.embeddings
    table = table.weight
    kept, logits = table.clone(), logits_of(model, ids)
    generator = torch.Generator().manual_seed(len(ids))
    firm = True
    for _ in range(N_TRIALS):
        table.copy_(kept * (1 + NUDGE * torch.randn(table.shape, generator=generator)))
        firm &= bool((logits_of(model, ids) - logits).abs().max() < MAX_EFFECT * logits.abs().max())
    table.copy_(kept)
    return firm


def draw_prompt(model, case, length, rng):
    for _ in range(400):
        ids = [int(i) for i in rng.choice(N_VOCAB - 1, length)]
        tokens, gap = greedy(model, ids)
        if gap > MIN_GREEDY_GAP and N_VOCAB - 1 not in tokens and is_firm(model, ids + tokens):
            return ids, tokens
    raise RuntimeError(f"{case.name}: no well-conditioned prompt of {length} tokens")


def write_prompts(out, model, case):
    rng = np.random.default_rng(case.seed)
    lines = []
    for number, length in enumerate(PROMPT_LENGTHS):
        ids, tokens = draw_prompt(model, case, length, rng)
        logits = logits_of(model, ids).numpy().astype("<f4")
        (out / f"{number}.positions.txt").write_text(ids_line(range(length)))
        np.save(out / f"{number}.logits.npy", logits)
        (out / f"{number}.greedy.txt").write_text(ids_line(tokens))
        lines.append(ids_line(ids))
    (out / "prompts.txt").write_text("".join(lines))
    print(f"{case.name:24} logit sd {logits.std():.2f}  max {np.abs(logits).max():.1f}"
          f"  {len(set(tokens))} different greedy tokens"
          f"  {(out / 'model.gguf').stat().st_size / 1024:.0f} KiB", flush=True)


def main():
    for case, out in chosen_cases(__doc__, CASES):
        model = build(case)
        family_gguf.write(out / "model.gguf", model, case)
        write_prompts(out, model, case)


if __name__ == "__main__":
    main()
