# SPDX-License-Identifier: MIT
"""The states that a drafting layer has in training, depth by depth, as it has them when drafting.

DraftHead and EagleHead are such layers. Each has

    keys(embedded, state, cos, sin)    the vector that attention is added to, [B, T, n], and
                                       queries, keys and values, [B, H, T, d]
    finish(x, attended)                from that vector and attention's result to the layer's state
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import masked_softmax


def chained_states(head, embedded: Tensor, state: Tensor, depth: int) -> list[Tensor]:
    """embedded: [B, T, n] of the tokens after those of `state`. Returns the states of each depth,
    [B, T - d, n]. A chained row attends to the entries of the text before it, as they are kept when
    drafting, and to those of its own chain."""
    c = head.config
    length = state.shape[1]
    position = torch.arange(length, dtype=torch.float32)
    exponent = torch.arange(0, c.head_dim, 2) / c.head_dim
    angle = torch.outer(position, c.rope_theta ** -exponent)[None, :, None, :]
    cos, sin = angle.cos(), angle.sin()
    scale = c.head_dim ** -0.5
    mask = torch.full((length, length), float("-inf")).triu(1)
    x, q, k, v = head.keys(embedded, state, cos, sin)
    probability = masked_softmax(scale * q @ k.transpose(-1, -2), mask)
    states = [head.finish(x, probability @ v)]
    chain: list[tuple[Tensor, Tensor]] = []
    for d in range(1, depth):
        rows = length - d  # row r stands at position r + d and continues the text up to r
        x, q2, k2, v2 = head.keys(embedded[:, d:], states[-1][:, :rows], cos[:, d:], sin[:, d:])
        chain = [(a[:, :, :rows], b[:, :, :rows]) for a, b in chain] + [(k2, v2)]
        text = scale * q2 @ k[:, :, :rows].transpose(-1, -2) + mask[:rows, :rows]
        own = torch.cat([scale * (q2 * a).sum(-1, keepdim=True) for a, _ in chain], dim=-1)
        probability = torch.cat((text, own), dim=-1).softmax(-1)
        attended = probability[..., :rows] @ v[:, :, :rows]
        for i, (_, b) in enumerate(chain):
            attended = attended + probability[..., rows + i:rows + i + 1] * b
        states.append(head.finish(x, attended))
    return states
