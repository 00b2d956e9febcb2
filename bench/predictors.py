#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""predictors.py TRACE.jsonl [--train 60] [--ridge 30]

How well a layer's experts can be predicted from a routing trace alone: the share of the chosen experts that are among
the N (and among the 2N) experts with the highest scores, where a token chooses N. Scores:

    popular     uses so far
    recent      `lfru`'s probability: 0.4 x a mean with a half-life of 1 token + 0.6 x one of 32 tokens
    ridge       a linear map for each layer, by ridge regression on the first part of the trace; the rest tests

Two times of asking: `next layer`, when the layer before has chosen (what a prefetch can know); `next token`, when the
token before has chosen in all layers (what an eviction can know). The map sees the experts that the layer before, or the
token before in this layer and the one before it, has chosen, and the figures of `recent` and `popular`. It sees no hidden
states, which a trace does not have. Needs numpy."""
import argparse
import json

import numpy as np


def read(path):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [[layer for layer in row["layers"] if layer] for row in rows if "layers" in row]
    n_expert = 1 + max(e for row in rows for layer in row for e in layer)
    used = np.zeros((len(rows), len(rows[0]), n_expert), np.float32)
    for t, row in enumerate(rows):
        for layer, chosen in enumerate(row):
            used[t, layer, chosen] = 1
    return used


def fading(used, half_life):
    """The mean before each token."""
    keep = 0.5 ** (1 / half_life)
    out, total, mean = np.empty_like(used), 1.0, np.full(used.shape[1:], used[0, 0].sum() / used.shape[2])
    for t, row in enumerate(used):
        out[t] = mean / total
        mean, total = mean * keep + row, total * keep + 1
    return out


def recall(score, used, n):
    best = np.argpartition(-score, n - 1, axis=-1)[..., :n]
    return 100 * np.take_along_axis(used, best, axis=-1).sum() / used.sum()


def ridge(inputs, wanted, n_train, strength):
    """Scores of all tokens by a linear map that the first n_train trained."""
    x = np.concatenate([*inputs, np.ones_like(inputs[0][:, :1])], axis=1).astype(float)
    known = x[:n_train]
    weights = np.linalg.solve(known.T @ known + strength * np.eye(x.shape[1]), known.T @ wanted[:n_train])
    return x @ weights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--train", type=float, default=60, help="percent of the trace (default 60)")
    parser.add_argument("--ridge", type=float, default=30)
    options = parser.parse_args()
    used = read(options.trace)
    n_tokens, n_layer, n_expert = used.shape
    n, n_train = int(used[0, 0].sum()), int(n_tokens * options.train / 100)
    popular = fading(used, 1e9)
    recent = 0.4 * fading(used, 1) + 0.6 * fading(used, 32)
    last = np.concatenate([np.zeros_like(used[:1]), used[:-1]])
    scores = {"popular": popular, "recent": recent}
    for name, now in (("ridge, next layer", used), ("ridge, next token", last)):
        scores[name] = np.stack([ridge([now[:, layer - 1], last[:, layer], recent[:, layer], popular[:, layer]],
                                       used[:, layer], n_train, options.ridge) for layer in range(1, n_layer)], axis=1)
    print(f"{n_tokens} tokens, {n_train} to train on; layers 1 to {n_layer - 1}, {n} of {n_expert} experts\n")
    print(f"| score | among {n}, % | among {2 * n}, % |\n|---|---|---|")
    for name, score in scores.items():
        tested = score[n_train:, -(n_layer - 1):]
        print(f"| {name} | {recall(tested, used[n_train:, 1:], n):.1f} | {recall(tested, used[n_train:, 1:], 2 * n):.1f} |")


main()
