"""The element-wise parts of the network, as functions that can be swapped for compiled ones.

`compile_kernels()` has each fused into one pass forward and one backward, which is worth a third
of a training step on a CPU. Without it (no C++ compiler, or a short run) they run as they stand.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY_BLOCK = 512


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def norm_and_rotate(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, epsilon: float) -> Tensor:
    """Per-head norm, then the NEOX rotary embedding: dimension i pairs with i + d/2.

    x: [B, T, H, d]; cos, sin: [1, T, 1, d/2].
    """
    first, second = rms_norm(x, weight, epsilon).chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """scores: [B, H, queries, keys], not yet scaled; mask: [queries, keys], 0 or -inf."""
    return (scores.float() + mask).softmax(-1).to(scores.dtype)


def swiglu(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """silu(gate) * up * weight, with weight one number a row."""
    return (F.silu(gate.float()) * up.float() * weight[:, None]).to(gate.dtype)


def swiglu_backward(gate: Tensor, up: Tensor, weight: Tensor, grad: Tensor):
    """The output again, and the gradients of gate, up and weight."""
    g, u, d, w = gate.float(), up.float(), grad.float(), weight[:, None]
    sigmoid = torch.sigmoid(g)
    silu = g * sigmoid
    product = silu * u
    grad_gate = d * w * u * sigmoid * (1 + g * (1 - sigmoid))
    grad_up = d * w * silu
    dtype = gate.dtype
    return (product * w).to(dtype), grad_gate.to(dtype), grad_up.to(dtype), (d * product).sum(-1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets)


class Kernels:
    rms_norm = staticmethod(rms_norm)
    norm_and_rotate = staticmethod(norm_and_rotate)
    masked_softmax = staticmethod(masked_softmax)
    swiglu = staticmethod(swiglu)
    swiglu_backward = staticmethod(swiglu_backward)
    cross_entropy = staticmethod(cross_entropy)


def compile_kernels() -> None:
    for function in (swiglu, swiglu_backward):
        setattr(Kernels, function.__name__, staticmethod(torch.compile(function, dynamic=True)))
    for function in (rms_norm, norm_and_rotate, masked_softmax, cross_entropy):
        setattr(Kernels, function.__name__, staticmethod(torch.compile(function)))


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v: [B, H, T, d]. On a CPU plain products, a block of queries at a time against the
    keys up to its end, are twice as fast as the fused kernel."""
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    q = q * q.shape[-1] ** -0.5
    length, parts = q.shape[2], []
    for begin in range(0, length, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, length)
        mask = torch.full((end - begin, end), float("-inf")).triu(1 + begin)
        scores = torch.matmul(q[:, :, begin:end], k[:, :, :end].mT)
        parts.append(torch.matmul(Kernels.masked_softmax(scores, mask), v[:, :, :end]))
    return torch.cat(parts, dim=2)
