"""The demo model's EAGLE-3 head: one layer that drafts from hidden states of three layers.

As in EAGLE-3's public files: the residual stream at three depths of the model (`TARGET_LAYERS`: the
inputs of these layers, the model's depth standing for what the last layer puts out) is joined to
one state by `fc`. The layer's attention reads the normed embedding of the next token beside the
normed state; its residual is the state itself. What the layer puts out, before its last norm, is
the state from which it goes on. It has an output matrix of its own, over part of the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chained_states import chained_states
from model import MoETransformer, RMSNorm

TARGET_LAYERS = (2, 4, 6)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Dimension 2i pairs with 2i + 1. x: [B, T, H, d]; cos, sin: [1, T, 1, d/2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


class EagleHead(nn.Module):
    def __init__(self, model: MoETransformer, n_ff: int, n_draft_vocab: int):
        super().__init__()
        c = model.config
        n, q_width, kv_width = c.n_embd, c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        self.config = c
        self.fc = nn.Parameter(torch.empty(n, len(TARGET_LAYERS) * n))
        self.attn_norm = RMSNorm(n, c.norm_epsilon)  # of the embedding
        self.attn_norm_2 = RMSNorm(n, c.norm_epsilon)  # of the state
        self.q = nn.Parameter(torch.empty(q_width, 2 * n))
        self.k = nn.Parameter(torch.empty(kv_width, 2 * n))
        self.v = nn.Parameter(torch.empty(kv_width, 2 * n))
        self.o = nn.Parameter(torch.empty(n, q_width))
        self.ffn_norm = RMSNorm(n, c.norm_epsilon)
        self.gate = nn.Parameter(torch.empty(n_ff, n))
        self.up = nn.Parameter(torch.empty(n_ff, n))
        self.down = nn.Parameter(torch.empty(n, n_ff))
        self.output_norm = RMSNorm(n, c.norm_epsilon)
        self.lm_head = nn.Parameter(torch.empty(n_draft_vocab, n))
        self.register_buffer("d2t", torch.zeros(n_draft_vocab, dtype=torch.int64))

    @torch.no_grad()
    def initialise(self, model: MoETransformer, d2t: Tensor, seed: int) -> None:
        """Passes the deepest state through; the output matrix begins as the model's."""
        generator = torch.Generator().manual_seed(seed)
        n, last = self.config.n_embd, model.blocks[-1]
        for matrix, scale in ((self.fc, 0.2), (self.q, 1.0), (self.k, 1.0), (self.v, 0.5),
                              (self.o, 0.2), (self.gate, 0.5), (self.up, 0.5), (self.down, 0.1)):
            matrix.normal_(0.0, scale * matrix.shape[-1] ** -0.5, generator=generator)
        self.fc[:, -n:] += torch.eye(n)
        self.v[:, n:].copy_(last.attn.v)
        self.attn_norm_2.load_state_dict(last.attn_norm.state_dict())
        self.ffn_norm.load_state_dict(last.ffn_norm.state_dict())
        self.output_norm.load_state_dict(model.output_norm.state_dict())
        self.d2t.copy_(d2t)
        self.lm_head.copy_(model.embedding[d2t])

    def keys(self, embedded: Tensor, state: Tensor, cos: Tensor, sin: Tensor):
        """The state, and queries, keys and values; keys and values once for each query head."""
        c = self.config
        x = torch.cat((self.attn_norm(embedded), self.attn_norm_2(state)), dim=-1)
        q, k, v = (F.linear(x, w).view(*x.shape[:2], -1, c.head_dim)
                   for w in (self.q, self.k, self.v))
        group = c.n_head // c.n_head_kv
        q, k = rotate(q, cos, sin), rotate(k, cos, sin).repeat_interleave(group, dim=2)
        v = v.repeat_interleave(group, dim=2)
        return state, *(t.transpose(1, 2) for t in (q, k, v))

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        attended = attended.transpose(1, 2).reshape(*state.shape[:2], -1)
        x = state + F.linear(attended, self.o)
        y = self.ffn_norm(x)
        return x + F.linear(F.silu(F.linear(y, self.gate)) * F.linear(y, self.up), self.down)

    def logits(self, state: Tensor) -> Tensor:
        return F.linear(self.output_norm(state), self.lm_head)

    def forward(self, embedded: Tensor, features: Tensor, depth: int) -> list[Tensor]:
        """embedded: [B, T, n] of the tokens after those of `features`, [B, T, 3 n]. Returns the
        states of each depth, [B, T - d, n]."""
        return chained_states(self, embedded, F.linear(features, self.fc), depth)


class Features:
    """Notes the residual stream of the model's next pass at the target layers."""

    def __init__(self, model: MoETransformer):
        self.parts: dict[int, Tensor] = {}
        norms = [block.attn_norm for block in model.blocks] + [model.output_norm]
        for layer in TARGET_LAYERS:
            norms[layer].register_forward_pre_hook(self._noter(layer))

    def _noter(self, layer: int):
        def note(_module, inputs):
            self.parts[layer] = inputs[0]
        return note

    def joined(self) -> Tensor:
        """[B, T, 3 n]"""
        return torch.cat([self.parts[layer] for layer in TARGET_LAYERS], dim=-1)


def eagle_parameters(head: EagleHead) -> dict[str, nn.Parameter]:
    """The head's parameters under their GGUF names."""
    block = {f"blk.0.{name}.weight": parameter for name, parameter in {
        "attn_norm": head.attn_norm.weight, "attn_norm_2": head.attn_norm_2.weight,
        "attn_q": head.q, "attn_k": head.k, "attn_v": head.v, "attn_output": head.o,
        "ffn_norm": head.ffn_norm.weight, "ffn_gate": head.gate, "ffn_up": head.up,
        "ffn_down": head.down}.items()}
    return {"fc.weight": head.fc, **block, "output_norm.weight": head.output_norm.weight,
            "output.weight": head.lm_head}
