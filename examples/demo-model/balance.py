"""Lifts nearly idle experts after training, by their router rows alone.

The balance loss is an average over layers, and a layer can hide a few idle experts behind it. An
expert's row is moved along the mean of the router's inputs, which raises its logit by about the
same amount for every token, in small steps until its load on training text is high enough.
"""

from __future__ import annotations

import torch

from model import MoETransformer

STEP, MOST_STEPS = 0.05, 200


@torch.no_grad()
def lift_idle_experts(model: MoETransformer, batch: torch.Tensor, least_load: float) -> dict:
    """least_load: relative to uniform. Returns {(layer, expert): logit added}."""
    model.eval()
    lifted: dict[tuple[int, int], float] = {}
    inputs: list[torch.Tensor] = []
    for layer, block in enumerate(model.blocks):
        # Layers in order: lifting one changes the inputs of those after it.
        inputs.clear()
        block.moe.observer = lambda x, chosen, weight: inputs.append(x.float())
        model.hidden(batch)
        block.moe.observer = None
        x = inputs[0]
        mean = x.mean(0)
        direction = mean / mean.square().sum()
        router, used = block.moe.router, model.config.n_expert_used
        for _ in range(MOST_STEPS):
            chosen = (x @ router.T).topk(used, dim=-1).indices
            load = torch.bincount(chosen.flatten(), minlength=len(router)) / chosen.numel()
            idle = (load * len(router) < least_load).nonzero().flatten()
            if len(idle) == 0:
                break
            router[idle] += STEP * direction
            for expert in idle.tolist():
                lifted[layer, expert] = lifted.get((layer, expert), 0.0) + STEP
    return lifted
