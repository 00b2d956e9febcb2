"""Muon for the weight matrices, AdamW for the rest, under one learning-rate schedule.

Muon replaces a matrix's momentum by its nearest orthogonal matrix, found by a few Newton-Schulz
steps; every expert's projection is a matrix of its own, so the steps are batched products over
all experts. With updates scaled to AdamW's usual size (0.2 root-mean-square) both share one
learning rate.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MUON_MOMENTUM = 0.95
WEIGHT_DECAY = 0.1


def orthogonalise(matrix: Tensor, steps: int = 4) -> Tensor:
    """Approximates U Vᵀ of the singular value decomposition. matrix: [..., rows, columns]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    transposed = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if transposed else matrix
    norm = x.float().square().sum((-2, -1), keepdim=True).sqrt() + 1e-7
    x = (x / norm).to(torch.bfloat16)
    x = x.reshape(-1, *x.shape[-2:])
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.view(*matrix.shape[:-2], *x.shape[-2:])
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"]
                momentum.lerp_(p.grad, 1 - MUON_MOMENTUM)
                update = orthogonalise(p.grad.lerp(momentum, MUON_MOMENTUM))
                scale = 0.2 * max(p.shape[-2:]) ** 0.5
                p.mul_(1 - group["lr"] * WEIGHT_DECAY)
                p.add_(update, alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    matrices, decayed, plain = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            plain.append(parameter)
        elif name == "embedding" or name.endswith("router"):
            decayed.append(parameter)
        else:
            matrices.append(parameter)
    adamw = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=True)
    return [Muon(matrices, lr), adamw]
