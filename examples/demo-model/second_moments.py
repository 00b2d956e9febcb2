# SPDX-License-Identifier: MIT
"""Second moments E[x xᵀ] of the input of every quantised matrix, from training text.

An expert's moments are taken over the tokens routed to it, each counted with the square of its
mixing weight, since that is how much an error there weighs in the layer's output. A share of the
layer's average is mixed in, so that experts with few tokens are not fitted to noise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model import MoETransformer

LAYER_AVERAGE_SHARE = 0.05


def _add_outer(total: Tensor, x: Tensor) -> None:
    total.addmm_(x.T, x)


def _observe_attention(attention, name: str, moments: dict[str, Tensor]) -> None:
    width = attention.config.n_embd
    shared, output = torch.zeros(width, width), torch.zeros(attention.output.shape[1:] * 2)

    def observer(x: Tensor, y: Tensor) -> None:
        _add_outer(shared, x.reshape(-1, x.shape[-1]).float())
        _add_outer(output, y.reshape(-1, y.shape[-1]).float())

    attention.observer = observer
    moments |= {f"{name}.attn_{part}.weight": shared for part in "qkv"}
    moments[f"{name}.attn_output.weight"] = output


def _observe_experts(moe, name: str, moments: dict[str, Tensor]) -> None:
    c = moe.config
    inputs = torch.zeros(c.n_expert, c.n_embd, c.n_embd)
    hidden = torch.zeros(c.n_expert, c.n_ff_expert, c.n_ff_expert)

    def observer(x: Tensor, chosen: Tensor, weight: Tensor) -> None:
        for expert in range(c.n_expert):
            token, pick = (chosen == expert).nonzero(as_tuple=True)
            if len(token) == 0:
                continue
            rows, scale = x[token].float(), weight[token, pick, None].float()
            inner = F.silu(rows @ moe.gate[expert].T) * (rows @ moe.up[expert].T)
            _add_outer(inputs[expert], rows * scale)
            _add_outer(hidden[expert], inner * scale)

    moe.observer = observer
    moments[f"{name}.ffn_gate_exps.weight"] = inputs
    moments[f"{name}.ffn_up_exps.weight"] = inputs
    moments[f"{name}.ffn_down_exps.weight"] = hidden


@torch.no_grad()
def collect_moments(model: MoETransformer, batches: list[Tensor]) -> dict[str, Tensor]:
    """batches: token ids [B, T]. Returns moments by GGUF tensor name."""
    moments: dict[str, Tensor] = {}
    width = model.config.n_embd
    moments["token_embd.weight"] = torch.zeros(width, width)
    for i, block in enumerate(model.blocks):
        _observe_attention(block.attn, f"blk.{i}", moments)
        _observe_experts(block.moe, f"blk.{i}", moments)
    model.eval()
    for batch in batches:
        hidden, _, _ = model.hidden(batch)
        _add_outer(moments["token_embd.weight"], hidden.reshape(-1, width).float())
    for block in model.blocks:
        block.attn.observer = block.moe.observer = None
    return {name: _with_average(m) if m.dim() == 3 else m for name, m in moments.items()}


def _with_average(moments: Tensor) -> Tensor:
    average = moments.mean(0, keepdim=True)
    scale = moments.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    average = average / average.diagonal(dim1=-2, dim2=-1).mean().clamp(min=1e-20)
    floor = scale.mean() * 1e-3
    return moments + LAYER_AVERAGE_SHARE * average * scale.clamp(min=floor)
