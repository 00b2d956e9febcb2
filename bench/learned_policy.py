#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""learned_policy.py TRACE.jsonl [--train 50] [--sizes 5,10,25,50]

Cache policies that learn how likely an expert's next use is: trained on the first part of a trace, tested on the rest.
All of them see the same figures for each expert: the means of its uses with half-lives of 1, 2, 4 ... 128 tokens and of
all tokens, and evict the expert with the largest expected wait, d + layers x (1/p - 1), as `lfru` does
(cache/README.md). They differ in p:

    fixed       0.4 x the mean with half-life 1 + 0.6 x that with half-life 32: `lfru`'s own
    mixture     a weighted mean of all means; weights by expectation maximization
    logistic    a logistic regression on the logarithms of the means, with a ridge
    ridge       a linear map for each layer, by ridge regression: from the means, and from the experts that the token
                before has chosen in this layer and in the one before it

Every cache is simulated from the trace's beginning; hits count behind the part that trained. Needs numpy."""
import argparse
import json

import numpy as np

HALF_LIVES = [1, 2, 4, 8, 16, 32, 64, 128]


def read(path):
    """Whether a token chose an expert: bool [tokens][layers][experts], and how many of a layer it chose."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [row["layers"] for row in rows if "layers" in row]
    rows = [[layer for layer in row if layer] for row in rows]
    n_expert = 1 + max(e for row in rows for layer in row for e in layer)
    used = np.zeros((len(rows), len(rows[0]), n_expert), bool)
    for t, row in enumerate(rows):
        for layer, chosen in enumerate(row):
            used[t, layer, chosen] = True
    return used, int(used[0, 0].sum())


def means(used, n_used):
    """[tokens + 1][layers][experts][means]: known before a token. A mean begins as n_used / n_expert, which counts as
    one token."""
    n_tokens, n_layer, n_expert = used.shape
    keep = np.array([0.5 ** (1 / h) for h in HALF_LIVES] + [1.0])
    total = np.ones(len(keep))
    mean = np.full((n_layer, n_expert, len(keep)), n_used / n_expert)
    out = np.empty((n_tokens + 1, n_layer, n_expert, len(keep)), np.float32)
    out[0] = mean
    for t in range(n_tokens):
        mean = mean * keep + used[t][:, :, None]
        total = total * keep + 1
        out[t + 1] = mean / total
    return out


def fixed(known, _used, _n_train):
    return 0.4 * known[..., 0] + 0.6 * known[..., HALF_LIVES.index(32)]


def samples(known, used, n_train):
    return known[:n_train].reshape(-1, known.shape[-1]).astype(float), used[:n_train].reshape(-1)


def mixture(known, used, n_train):
    x, y = samples(known, used, n_train)
    x = np.clip(x, 1e-6, 1 - 1e-6)
    likely = np.where(y[:, None], x, 1 - x)
    weights = np.full(x.shape[1], 1 / x.shape[1])
    for _ in range(300):
        weights = weights * (likely / (likely @ weights)[:, None]).mean(0)
    return known @ weights


def logistic(known, used, n_train, ridge=100.0):
    x, y = samples(known, used, n_train)
    x = np.log(np.clip(x, 1e-4, None))
    centre, width = x.mean(0), x.std(0)
    z = np.column_stack([(x - centre) / width, np.ones(len(x))])
    weights, penalty = np.zeros(z.shape[1]), np.append(np.full(x.shape[1], ridge), 0)
    for _ in range(20):  # Newton's steps
        p = 1 / (1 + np.exp(-z @ weights))
        curve = (z * (p * (1 - p))[:, None]).T @ z + np.diag(penalty)
        weights -= np.linalg.solve(curve, z.T @ (p - y) + penalty * weights)
    out = np.empty(known.shape[:-1])
    for t, row in enumerate(known):
        z = (np.log(np.clip(row, 1e-4, None)) - centre) / width
        out[t] = 1 / (1 + np.exp(-(z @ weights[:-1] + weights[-1])))
    return out


def ridge(known, used, n_train, strength=30.0):
    n_tokens, n_layer, n_expert = used.shape
    last = np.zeros((n_tokens + 1, n_layer, n_expert))
    last[1:] = used
    out = np.empty(known.shape[:-1])
    for layer in range(n_layer):
        own = [known[:, layer, :, i] for i in (0, HALF_LIVES.index(32), len(HALF_LIVES))]
        x = np.concatenate([last[:, layer - 1], last[:, layer], *own, np.ones((n_tokens + 1, 1))], axis=1)
        train = x[:n_train]
        weights = np.linalg.solve(train.T @ train + strength * np.eye(x.shape[1]), train.T @ used[:n_train, layer])
        out[:, layer] = x @ weights
    return np.clip(out, 0.01, 1)


def hit_rate(chance, used, n_slots, first):
    """Of a cache for all layers, from token `first` on."""
    n_tokens, n_layer, n_expert = used.shape
    resident = np.zeros((n_layer, n_expert), bool)
    n_resident, hits, n = 0, 0, 0
    layers = np.arange(n_layer)
    for t in range(n_tokens):
        for layer in range(n_layer):
            wanted = np.flatnonzero(used[t, layer])
            missing = wanted[~resident[layer, wanted]]
            hits += (len(wanted) - len(missing)) * (t >= first)
            n += len(wanted) * (t >= first)
            n_out = max(n_resident + len(missing) - n_slots, 0)
            if n_out > 0:
                ahead = (layers - layer - 1) % n_layer + 1
                p = np.where((layers <= layer)[:, None], chance[t + 1], chance[t])
                wait = np.where(resident, ahead[:, None] + n_layer * (1 / np.maximum(p, 1e-6) - 1), -1)
                wait[layer, wanted] = -1
                out = np.argsort(-wait, axis=None, kind="stable")[:n_out]
                resident.flat[out] = False
            resident[layer, missing] = True
            n_resident += len(missing) - n_out
    return 100 * hits / n


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--train", type=float, default=50, help="percent of the trace (default 50)")
    parser.add_argument("--sizes", default="5,10,25,50", help="percent of the experts (default 5,10,25,50)")
    options = parser.parse_args()
    used, n_used = read(options.trace)
    n_train = int(len(used) * options.train / 100)
    known = means(used, n_used)
    sizes = [float(size) for size in options.sizes.split(",")]
    print(f"{len(used)} tokens, {n_train} to train on; {used.shape[1]} layers, {n_used} of {used.shape[2]} experts\n")
    print("| p | " + " | ".join(f"{size:g}" for size in sizes) + " |\n|---" + "|---" * len(sizes) + "|")
    for name, model in (("fixed", fixed), ("mixture", mixture), ("logistic", logistic),
                        ("ridge", ridge)):
        chance = model(known, used, n_train)
        rates = [hit_rate(chance, used, round(size / 100 * used[0].size), n_train) for size in sizes]
        print(f"| {name} | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |", flush=True)


main()
