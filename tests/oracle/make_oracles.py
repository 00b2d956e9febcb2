# SPDX-License-Identifier: MIT
"""Writes the model-arithmetic oracles: tiny random models of each family as GGUF, with float32
logits and greedy continuations from `transformers`.

    python3 make_oracles.py [--only NAME] [--out DIRECTORY] [--quantize PROGRAM]

Needs torch, transformers and gguf; what it wrote is in the tree, so the suite needs none of them.
Seeds are fixed. `--quantize` names a `llama-quantize` for the Q4_K files; without it they are left.
See README.md for the layout of the output.
"""
import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

import oracle_gguf
from oracle_cases import CASES, CONTEXT, N_VOCAB, QUANTISED, build

PROMPT_LENGTHS = (24, 40, 104)
N_GREEDY = 32
# A prompt is drawn again when a choice in it hangs on less than rounding could move.
MIN_ROUTER_GAP = 2e-4
MIN_GREEDY_GAP = 2e-3       # of the largest logit


class RouterWatch:
    """Smallest distance between a chosen and a rejected expert (or group) in all forward passes."""

    def __init__(self, model, case):
        self.case, self.config, self.gap, self.loads = case, model.config, np.inf, []
        for module in model.modules():
            if type(module).__name__.endswith("Router"):
                module.register_forward_hook(self.see)

    def see(self, module, _, output):
        logits, _, chosen = output
        self.loads.append(chosen.reshape(-1))
        scores = logits.float()
        if self.case.gating == "sigmoid":
            scores = scores.sigmoid() + module.e_score_correction_bias
        groups = getattr(self.config, "n_group", None) or 1
        if groups > 1:
            split = scores.view(len(scores), groups, -1)
            ranking = split.topk(2, -1)[0].sum(-1) if self.case.gating == "sigmoid" else split.amax(-1)
            self.note(ranking, self.config.topk_group)
            kept = torch.zeros_like(ranking).scatter_(1, ranking.topk(self.config.topk_group)[1], 1)
            scores = split.masked_fill(kept[..., None] == 0, -np.inf).view(scores.shape)
        self.note(scores, self.config.num_experts_per_tok)

    def note(self, scores, k):
        if k < scores.shape[-1]:
            ordered = scores.sort(-1, descending=True)[0]
            self.gap = min(self.gap, float((ordered[:, k - 1] - ordered[:, k]).min()))


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model, ids):
    """32 tokens by whole forward passes (no cache), and the least gap between first and second."""
    ids, least = list(ids), np.inf
    for _ in range(N_GREEDY):
        last = logits_of(model, ids)[-1]
        top = last.topk(2)[0]
        least = min(least, float((top[0] - top[1]) / last.abs().max()))
        ids.append(int(last.argmax()))
    return ids[-N_GREEDY:], least


def special_ids(case):
    return {0, 1, 2} if case.arch == "llama" else {N_VOCAB - 1}


def draw_prompt(model, case, watch, length, rng):
    special = special_ids(case)
    ordinary = [i for i in range(N_VOCAB) if i not in special]
    for _ in range(400):
        ids = [int(i) for i in rng.choice(ordinary, length)]
        watch.gap = np.inf
        tokens, gap = greedy(model, ids)
        if watch.gap > MIN_ROUTER_GAP and gap > MIN_GREEDY_GAP and not special & set(tokens):
            return ids, tokens
    raise RuntimeError(f"{case.name}: no well-conditioned prompt of {length} tokens")


def ids_line(ids):
    return " ".join(map(str, ids)) + "\n"


def write_prompts(out, model, case):
    rng = np.random.default_rng(case.seed)
    watch = RouterWatch(model, case)
    lines = []
    for number, length in enumerate(PROMPT_LENGTHS):
        ids, tokens = draw_prompt(model, case, watch, length, rng)
        logits = logits_of(model, ids).numpy().astype("<f4")
        positions = sorted({*range(0, length, 8), *range(length - 4, length)})
        (out / f"{number}.positions.txt").write_text(ids_line(positions))
        np.save(out / f"{number}.logits.npy", logits[positions])
        (out / f"{number}.greedy.txt").write_text(ids_line(tokens))
        lines.append(ids_line(ids))
    (out / "prompts.txt").write_text("".join(lines))
    load = torch.bincount(torch.cat(watch.loads)).float()
    print(f"{case.name:22} logit sd {logits.std():.2f}  max {np.abs(logits).max():.1f}"
          f"  expert load max/mean {load.max() / load.mean():.2f}"
          f"  {(out / 'model.gguf').stat().st_size / 1024:.0f} KiB")


def sample_text(model, case):
    """Eight lines of 256 tokens drawn from the float model itself, so that perplexity means something."""
    generator = torch.Generator().manual_seed(case.seed)
    special = sorted(special_ids(case))
    lines = []
    for _ in range(8):
        ids = [int(torch.randint(0, N_VOCAB - 1, (1,), generator=generator))]
        while len(ids) < CONTEXT:
            last = logits_of(model, ids)[-1]
            last[special] = -np.inf
            ids.append(int(torch.multinomial(last.softmax(-1), 1, generator=generator)))
        lines.append(ids)
    return lines


def perplexity(model, lines):
    losses = []
    for ids in lines:
        log_probs = logits_of(model, ids).double().log_softmax(-1)
        losses += [-float(log_probs[i, ids[i + 1]]) for i in range(len(ids) - 1)]
    return float(np.exp(np.mean(losses)))


def make_quantised(case, root, program):
    """Weights as Q8_0, or through `program` as Q4_K_M, and the text to measure perplexity on."""
    model, out = build(case), root / case.name
    out.mkdir(parents=True, exist_ok=True)
    lines = sample_text(model, case)
    (out / "text.txt").write_text("".join(map(ids_line, lines)))
    if case.name.endswith("q8_0"):
        oracle_gguf.write(out / "model.gguf", model, case, quantised=True)
    elif program:
        with tempfile.TemporaryDirectory() as folder:
            float_file = Path(folder) / "f32.gguf"
            oracle_gguf.write(float_file, model, case)
            subprocess.run([program, float_file, out / "model.gguf", "Q4_K_M"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"{case.name:22} perplexity of the float model {perplexity(model, lines):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--quantize")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        if options.only in (None, case.name):
            model, out = build(case), options.out / case.name
            out.mkdir(parents=True, exist_ok=True)
            oracle_gguf.write(out / "model.gguf", model, case)
            write_prompts(out, model, case)
    for case in QUANTISED:
        if options.only in (None, case.name):
            make_quantised(case, options.out, options.quantize)


if __name__ == "__main__":
    main()
