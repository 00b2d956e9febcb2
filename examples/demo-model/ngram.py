"""The baseline: an interpolated 5-gram with modified Kneser-Ney smoothing, over token ids.

An n-gram of up to five 12-bit ids is one 64-bit integer, so a model is a few sorted arrays and
all positions of a text are scored at once. The highest order counts occurrences, lower orders
count distinct left neighbours. Discounts start from the usual closed form and are then scaled,
order by order, to what is best on held-in text.
"""

from __future__ import annotations

import numpy as np

ORDER = 5
TOKEN_BITS = 12
DISCOUNT_SCALES = (0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.4)


def ngram_keys(tokens: np.ndarray, order: int) -> np.ndarray:
    """The key of the n-gram that ends at each position from ORDER - 1 on."""
    count = len(tokens) - ORDER + 1
    keys = np.zeros(count, dtype=np.int64)
    for back in range(order - 1, -1, -1):
        begin = ORDER - 1 - back
        keys = (keys << TOKEN_BITS) | tokens[begin:begin + count]
    return keys


def _find(sorted_keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index = np.searchsorted(sorted_keys, wanted).clip(max=len(sorted_keys) - 1)
    return index, sorted_keys[index] == wanted


class _Level:
    """One order: n-gram counts, and per context the total and how many counts are 1, 2, more."""

    def __init__(self, keys: np.ndarray, counts: np.ndarray):
        self.keys, self.counts = keys, counts
        self.contexts, start = np.unique(keys >> TOKEN_BITS, return_index=True)
        self.total = np.add.reduceat(counts, start)
        self.kinds = np.stack([np.add.reduceat(kind.astype(np.int64), start)
                               for kind in (counts == 1, counts == 2, counts >= 3)])
        n1, n2, n3, n4 = (max(1, int((counts == c).sum())) for c in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        self.base = np.clip([1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3],
                            0.05, [0.95, 1.9, 2.9])
        self.scale = 1.0

    @property
    def discounts(self) -> np.ndarray:
        return np.clip(self.base * self.scale, 0.01, [0.99, 1.99, 2.99])

    def refine(self, keys: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Probabilities at this order, given those of the next lower one."""
        index, found = _find(self.keys, keys)
        count = np.where(found, self.counts[index], 0)
        context, known = _find(self.contexts, keys >> TOKEN_BITS)
        total = np.where(known, self.total[context], 1)
        discount = np.concatenate(([0.0], self.discounts))[np.minimum(count, 3)]
        reserved = (self.discounts[:, None] * self.kinds[:, context]).sum(0)
        here = ((count - discount) + reserved * lower) / total
        return np.where(known, here, lower)


class KneserNey:
    def __init__(self, tokens: np.ndarray, n_vocab: int):
        self.n_vocab = n_vocab
        tokens = tokens.astype(np.int64)
        keys, counts = np.unique(ngram_keys(tokens, ORDER), return_counts=True)
        self.levels = [_Level(keys, counts)]
        for order in range(ORDER - 1, 0, -1):
            mask = (1 << (TOKEN_BITS * order)) - 1
            keys, counts = np.unique(keys & mask, return_counts=True)
            self.levels.insert(0, _Level(keys, counts))

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """The probability of each token from position ORDER - 1 on."""
        tokens = tokens.astype(np.int64)
        p = np.full(len(tokens) - ORDER + 1, 1 / self.n_vocab)
        for order, level in enumerate(self.levels, start=1):
            p = level.refine(ngram_keys(tokens, order), p)
        return p

    def tune(self, held_in: np.ndarray) -> None:
        """Scales each order's discounts, lowest first, twice round."""
        for _ in range(2):
            for level in self.levels:
                def loss(scale: float) -> float:
                    level.scale = scale
                    return -np.log(self.probabilities(held_in)).mean()
                level.scale = min(DISCOUNT_SCALES, key=loss)


def tuned_model(train: np.ndarray, held_in: np.ndarray,
                n_vocab: int) -> tuple[KneserNey, KneserNey]:
    """A model tuned on `held_in` that has not seen it, and one of all text with those discounts."""
    tuned = KneserNey(train, n_vocab)
    tuned.tune(held_in)
    full = KneserNey(np.concatenate([train, held_in]), n_vocab)
    for level, source in zip(full.levels, tuned.levels):
        level.scale = source.scale
    return tuned, full


def baseline_bits(train: dict[str, np.ndarray], held_out: dict[str, np.ndarray],
                  n_vocab: int) -> dict[str, dict[str, np.ndarray]]:
    """Bits of each held-out token from position ORDER - 1 on, by domain and kind of model: the
    domain's own 5-gram, one over all domains, and the two mixed.

    The last twentieth of each domain's (shuffled) training text tunes discounts and the mixture.
    """
    cut = {name: len(t) - len(t) // 20 for name, t in train.items()}
    joint_tuned, joint = tuned_model(np.concatenate([t[:cut[n]] for n, t in train.items()]),
                                     np.concatenate([t[cut[n]:] for n, t in train.items()]),
                                     n_vocab)
    result = {}
    for name, tokens in train.items():
        held_in = tokens[cut[name]:]
        own_tuned, own = tuned_model(tokens[:cut[name]], held_in, n_vocab)
        p_own, p_joint = own_tuned.probabilities(held_in), joint_tuned.probabilities(held_in)
        share = min(np.linspace(0, 1, 21),
                    key=lambda s: -np.log(s * p_own + (1 - s) * p_joint).mean())
        p_own, p_joint = (m.probabilities(held_out[name]) for m in (own, joint))
        result[name] = {"own": -np.log2(p_own), "joint": -np.log2(p_joint),
                        "mixed": -np.log2(share * p_own + (1 - share) * p_joint)}
    return result
