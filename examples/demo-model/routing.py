"""Statistics of expert routing: the figures by which MoE offloading stands or falls.

`picks[layer]` is [tokens, k]: the experts chosen for consecutive tokens of one stretch of text.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import combinations

import numpy as np
import torch

from model import MoETransformer

DISTANCES = (1, 2, 3, 4)
RESIDENCIES = (0.05, 0.15, 0.30, 0.50)


@torch.no_grad()
def record_picks(model: MoETransformer, tokens: np.ndarray, window: int) -> np.ndarray:
    """[layers, windows, window, k] expert ids for consecutive windows of `tokens`."""
    recorded: list[list[np.ndarray]] = [[] for _ in model.blocks]
    for layer, block in enumerate(model.blocks):
        block.moe.observer = (
            lambda x, chosen, weight, layer=layer: recorded[layer].append(chosen.cpu().numpy()))
    model.eval()
    usable = len(tokens) // window * window
    for row in torch.from_numpy(tokens[:usable].astype(np.int64)).view(-1, 1, window):
        model.hidden(row)
    for block in model.blocks:
        block.moe.observer = None
    return np.stack([np.stack(rows) for rows in recorded])


def one_hot(picks: np.ndarray, n_expert: int) -> np.ndarray:
    """[..., tokens, k] ids -> [..., tokens, n_expert] booleans."""
    hot = np.zeros((*picks.shape[:-1], n_expert), dtype=bool)
    np.put_along_axis(hot, picks, True, axis=-1)
    return hot


def load_statistics(hot: np.ndarray, used: int) -> dict[str, float]:
    """hot: [tokens, n_expert]. Loads are relative to uniform."""
    n_expert = hot.shape[-1]
    share = hot.mean(0) / used
    ordered = np.sort(share)[::-1]
    return {"least_load": float(share.min() * n_expert),
            "greatest_load": float(share.max() * n_expert),
            "skewness": float(ordered[:n_expert // 4].sum())}


def overlap_statistics(hot: np.ndarray, used: int) -> dict[str, float]:
    """hot: [windows, tokens, n_expert]. Shared experts of two tokens at a distance, over k."""
    frequency = hot.reshape(-1, hot.shape[-1]).mean(0)
    result = {f"overlap_{d}": float((hot[:, :-d] & hot[:, d:]).sum(-1).mean() / used)
              for d in DISTANCES}
    result["independent"] = float((frequency**2).sum() / used)
    result["uniform"] = used / hot.shape[-1]
    union = hot[:, :-3] | hot[:, 1:-2] | hot[:, 2:-1] | hot[:, 3:]
    result["unique_4"] = float(union.sum(-1).mean())
    result["unique_4_independent"] = float((1 - (1 - frequency)**4).sum())
    return result


def coactivation(hot: np.ndarray, used: int) -> float:
    """The most frequent pair's count over what a pair would have by chance. hot: [tokens, N]."""
    n_expert = hot.shape[-1]
    wide = hot.astype(np.float32)
    pairs = wide.T @ wide
    np.fill_diagonal(pairs, 0)
    expected = len(hot) * used * (used - 1) / (n_expert * (n_expert - 1))
    return float(pairs.max() / expected)


def domain_difference(hot_by_domain: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Per pair of domains: the share of the hottest quarter in common, and the distance
    (half the sum of absolute differences) of the two load distributions."""
    share = {name: hot.mean(0) / hot.mean(0).sum() for name, hot in hot_by_domain.items()}
    quarter = next(iter(share.values())).size // 4
    hottest = {name: set(np.argsort(-s)[:quarter].tolist()) for name, s in share.items()}
    return {f"{a}/{b}": {"common_quarter": len(hottest[a] & hottest[b]) / quarter,
                         "distance": float(abs(share[a] - share[b]).sum() / 2)}
            for a, b in combinations(share, 2)}


def lru_hit_rate(picks: np.ndarray, n_expert: int, residency: float) -> float:
    """One cache for all layers, tokens decoded one by one. picks: [layers, tokens, k]."""
    layers, tokens, used = picks.shape
    capacity = round(residency * layers * n_expert)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for token in range(tokens):
        for layer in range(layers):
            for expert in (picks[layer, token] + layer * n_expert).tolist():
                if expert in cache:
                    hits += 1
                    cache.move_to_end(expert)
                    continue
                cache[expert] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return hits / picks.size


def routing_report(picks_by_domain: dict[str, np.ndarray], n_expert: int) -> dict:
    """All statistics; picks_by_domain: name -> [layers, windows, window, k], equal sizes."""
    used = next(iter(picks_by_domain.values())).shape[-1]
    hot = {name: one_hot(picks, n_expert) for name, picks in picks_by_domain.items()}
    pooled = np.concatenate(list(hot.values()), axis=1)
    layers = []
    for layer in range(pooled.shape[0]):
        flat = pooled[layer].reshape(-1, n_expert)
        by_domain = {name: h[layer].reshape(-1, n_expert) for name, h in hot.items()}
        layers.append({
            **load_statistics(flat, used), **overlap_statistics(pooled[layer], used),
            "coactivation": coactivation(flat, used),
            "domain_skewness": {n: load_statistics(h, used)["skewness"]
                                for n, h in by_domain.items()},
            "domain_difference": domain_difference(by_domain)})
    serial = np.concatenate([p.reshape(p.shape[0], -1, used) for p in picks_by_domain.values()],
                            axis=1)
    return {"layers": layers,
            "lru": {str(r): lru_hit_rate(serial, n_expert, r) for r in RESIDENCIES}}
