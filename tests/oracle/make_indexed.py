# SPDX-License-Identifier: MIT
"""Writes oracles of models whose indexers choose few of many positions: as make_families.py does its own, with
a prompt of 1,600 tokens of which the logits of every eighth position and of the last four are kept.

    python3 make_indexed.py [--only NAME...] [--out DIRECTORY]

Which positions an indexer chooses must not hang on rounding: in every row the last chosen score and the first
one that is not are MIN_INDEX_GAP of the row's largest apart. Of some 3,000 choices in a prompt some are always
nearer, so a prompt is mended from its beginning on: the token of the first row that is too near, or whose logits
move when the embeddings are nudged (an expert's choice), is drawn again.
"""
from contextlib import contextmanager

import numpy as np
import torch

import compressed_cases
import compressed_gguf
import dots_cases
import family_cases
import family_gguf
import form_cases
import form_gguf
import hybrid_cases
import hybrid_gguf
import make_families
import recurrent_cases
from case_loop import chosen_cases
from family_cases import N_VOCAB, NO_DENSE, FamilyCase, yarn
from make_families import MAX_EFFECT, N_TRIALS, NUDGE
from make_oracles import MIN_GREEDY_GAP, N_GREEDY, greedy, logits_of
from make_recurrent import thin_out

LENGTHS = (24, 70, 1600)
CONTEXT = 2048
MIN_INDEX_GAP = 3e-5

CHOOSING = dict(index_n_heads=8, index_head_dim=16)
CASES = [
    FamilyCase("deepseek32-long", "deepseek32", "deepseek_v32", NO_DENSE | CHOOSING | dict(
        num_hidden_layers=2, index_topk=64), 126),
    FamilyCase("deepseek32-long-yarn", "deepseek32", "deepseek_v32", CHOOSING | dict(
        num_hidden_layers=3, n_group=3, topk_group=2, index_topk=48, index_n_heads=5)
        | yarn(64.0, mscale=1.0, mscale_all_dim=1.0), 127),
    FamilyCase("glm-dsa-long", "glm-dsa", "glm_moe_dsa", CHOOSING | dict(
        num_hidden_layers=3, first_k_dense_replace=0, index_topk=56, index_n_heads=6,
        indexer_types=["full", "shared", "full"]), 135),
    FamilyCase("hy_v4-long", "hy_v4", "hy_v4", CHOOSING | dict(
        num_hidden_layers=3, mlp_layer_types=["dense", "sparse", "sparse"], index_topk=52, index_n_heads=6,
        hc_mult=3, indexer_types=["full", "full", "shared"]), 244),
    FamilyCase("glm5-next-long", "glm5-next", "glm5_next", hybrid_cases.kimi("KAA") | dict(
        index_topk=64, index_kpool=8, n_routed_experts=5, num_experts_per_tok=2), 563),
] + [case for case in hybrid_cases.CASES if case.family == "glm5_next"] + compressed_cases.CASES + form_cases.BLOCK_CASES + dots_cases.CASES


OTHERS = (hybrid_cases, hybrid_gguf), (compressed_cases, compressed_gguf), (form_cases, form_gguf), (dots_cases, dots_cases)


@contextmanager
def watched_choices():
    """A list that gets, for each choice of positions, the gap of every row that leaves some out. Blocks are chosen
    for each group of heads; those that are always chosen have an infinite score."""
    gaps, topk = [], torch.Tensor.topk

    def watched(scores, k, *args, **kwargs):
        if scores.ndim == 4 and scores.shape[0] == 1 and scores.shape[-1] > k and scores.shape[-2] > 1:
            best = topk(scores[0], k + 1, dim=-1).values
            largest = torch.where(best.isinf(), 0, best.abs()).amax(dim=-1)
            apart = (best[..., k - 1] - best[..., k]) / largest.clamp_min(1e-9)
            gaps.append(torch.where(best[..., k].isinf(), torch.inf, apart).amin(dim=0))
        if scores.ndim == 3 and scores.shape[0] == 1 and scores.shape[-1] > k and scores.shape[-2] > 1:
            best = topk(scores, k + 1, dim=-1).values[0]
            apart = (best[:, k - 1] - best[:, k]) / best[:, 0].abs().clamp_min(1e-9)
            gaps.append(torch.where(best[:, k] < -1e30, torch.inf, apart))  # masked: nothing is left out
        return topk(scores, k, *args, **kwargs)

    torch.Tensor.topk = watched
    try:
        yield gaps
    finally:
        torch.Tensor.topk = topk


def first_of(rows):
    return int(rows.nonzero()[0]) if rows.any() else None


@torch.no_grad()
def first_loose_row(model, ids):
    """The first row that hangs on rounding, or None; and the least gap of all choices."""
    with watched_choices() as gaps:
        logits = logits_of(model, ids)
    least = torch.stack(gaps).min(dim=0).values if gaps else torch.tensor([torch.inf])
    row = first_of(least < MIN_INDEX_GAP)
    if row is not None:
        return row, float(least.min())
    table = model.model.embed_tokens.weight
    kept, generator = table.clone(), torch.Generator().manual_seed(len(ids))
    for _ in range(N_TRIALS):
        table.copy_(kept * (1 + NUDGE * torch.randn(table.shape, generator=generator)))
        moved = (logits_of(model, ids) - logits).abs().max(dim=1).values > MAX_EFFECT * logits.abs().max()
        found = first_of(moved)
        row = found if row is None or (found is not None and found < row) else row
    table.copy_(kept)
    return row, float(least.min())


def mend(model, ids, rng):
    """Draws tokens of the prompt again until no row hangs on rounding; the beginning first, which is quick."""
    for share in (4, 2, 1):
        for _ in range(1000):
            row, _ = first_loose_row(model, ids[:len(ids) // share])
            if row is None:
                break
            ids[row] = int(rng.integers(N_VOCAB - 1))


@torch.no_grad()
def likely_tokens(model, ids):
    """What greedy() most likely writes, by a KV cache."""
    tokens, out = [], model(input_ids=torch.tensor([ids]), use_cache=True)
    for _ in range(N_GREEDY):
        tokens.append(int(out.logits[0, -1].argmax()))
        out = model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    return tokens


def draw_prompt(model, case, length, rng):
    ids = [int(i) for i in rng.choice(N_VOCAB - 1, length)]
    for _ in range(1000):
        mend(model, ids, rng)
        tokens = likely_tokens(model, ids)
        row, least = first_loose_row(model, ids + tokens)
        if row is None and N_VOCAB - 1 not in tokens:
            written, gap = greedy(model, ids)
            if gap > MIN_GREEDY_GAP and written == tokens:
                print(f"{case.name}: {length} tokens, least gap of a choice {least:.1e}", flush=True)
                return ids, tokens
        ids[-1] = int(rng.integers(N_VOCAB - 1))
    raise RuntimeError(f"{case.name}: no well-conditioned prompt of {length} tokens")


def main():
    family_cases.COMMON |= dict(max_position_embeddings=CONTEXT)
    make_families.draw_prompt = draw_prompt
    for case, out in chosen_cases(__doc__, CASES):
        table, writer = next(((cases, gguf) for cases, gguf in OTHERS if case.family in cases.FAMILIES),
                             (family_cases, family_gguf))
        shorter = case in hybrid_cases.CASES + compressed_cases.CASES + form_cases.BLOCK_CASES + dots_cases.CASES
        make_families.PROMPT_LENGTHS = recurrent_cases.prompt_lengths(case) if shorter else LENGTHS
        model = table.build(case)
        writer.write(out / "model.gguf", model, case)
        make_families.write_prompts(out, model, case)
        thin_out(out)


if __name__ == "__main__":
    main()
