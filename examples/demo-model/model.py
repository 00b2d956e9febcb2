"""A `qwen3moe` transformer: grouped-query attention with per-head QK-norm, NEOX rotary positions,
and in every layer N SwiGLU experts of which a softmax router picks k per token.

Weights are float32; matrix products run in `compute_dtype` (bfloat16 for training, float32 as the
reference that other engines are compared with). Experts are stored as in GGUF, one tensor
[expert, out, in] per projection.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experts import ExpertFeedForward, plan_rows
from kernels import Kernels, causal_attention


@dataclass
class ModelConfig:
    n_layer: int = 6
    n_embd: int = 256
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_expert: int = 64
    n_expert_used: int = 8
    n_ff_expert: int = 256
    n_vocab: int = 4096
    n_context: int = 2048
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-6

    def to_dict(self) -> dict:
        return asdict(self)

    def expert_parameters(self) -> int:
        return 3 * self.n_layer * self.n_expert * self.n_embd * self.n_ff_expert


SIZES = {
    "ship": ModelConfig(),
    "large": ModelConfig(n_layer=12, n_embd=512, n_head=8, n_head_kv=4, n_ff_expert=256),
    "smoke": ModelConfig(n_layer=2, n_expert=16, n_expert_used=4),
}


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return Kernels.rms_norm(x, self.weight, self.epsilon)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        q_width, kv_width = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
        self.q = nn.Parameter(torch.empty(q_width, config.n_embd))
        self.k = nn.Parameter(torch.empty(kv_width, config.n_embd))
        self.v = nn.Parameter(torch.empty(kv_width, config.n_embd))
        self.output = nn.Parameter(torch.empty(config.n_embd, q_width))
        self.q_norm = RMSNorm(config.head_dim, config.norm_epsilon)
        self.k_norm = RMSNorm(config.head_dim, config.norm_epsilon)
        self.observer = None  # called with the inputs of q/k/v and of the output projection

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        c, dtype = self.config, x.dtype
        batch, length, _ = x.shape
        q = F.linear(x, self.q.to(dtype)).view(batch, length, c.n_head, c.head_dim)
        k = F.linear(x, self.k.to(dtype)).view(batch, length, c.n_head_kv, c.head_dim)
        v = F.linear(x, self.v.to(dtype)).view(batch, length, c.n_head_kv, c.head_dim)
        q = Kernels.norm_and_rotate(q, self.q_norm.weight, cos, sin, c.norm_epsilon)
        k = Kernels.norm_and_rotate(k, self.k_norm.weight, cos, sin, c.norm_epsilon)
        group = c.n_head // c.n_head_kv
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
        y = causal_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        y = y.transpose(1, 2).reshape(batch, length, -1)
        if self.observer is not None:
            self.observer(x, y)
        return F.linear(y, self.output.to(dtype))


class MoE(nn.Module):
    """Softmax router over all experts, top k renormalised, and the experts themselves."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        n, d, ff = config.n_expert, config.n_embd, config.n_ff_expert
        self.router = nn.Parameter(torch.empty(n, d))
        self.gate = nn.Parameter(torch.empty(n, ff, d))
        self.up = nn.Parameter(torch.empty(n, ff, d))
        self.down = nn.Parameter(torch.empty(n, d, ff))
        self.observer = None  # called with the layer's input [tokens, n_embd], picks and weights

    def forward(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """x: [tokens, n_embd] float32. Returns the output, balance loss and router-z loss."""
        c = self.config
        logits = F.linear(x, self.router)
        probability = logits.softmax(-1)
        top, chosen = probability.topk(c.n_expert_used, dim=-1)
        weight = top / top.sum(-1, keepdim=True)

        if self.observer is not None:
            self.observer(x, chosen, weight)
        table = plan_rows(chosen, c.n_expert)
        y = ExpertFeedForward.apply(x.to(dtype), weight, self.gate, self.up, self.down, table)

        # Switch-style balance loss (1 when uniform) and the z-loss that keeps logits small.
        load = torch.bincount(chosen.reshape(-1), minlength=c.n_expert) / chosen.numel()
        balance = c.n_expert * (load * probability.mean(0)).sum()
        z = torch.logsumexp(logits, dim=-1).square().mean()
        return y, balance, z


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attn_norm = RMSNorm(config.n_embd, config.norm_epsilon)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.n_embd, config.norm_epsilon)
        self.moe = MoE(config)


class MoETransformer(nn.Module):
    def __init__(self, config: ModelConfig, compute_dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.dropout = 0.0
        self.embedding = nn.Parameter(torch.empty(config.n_vocab, config.n_embd))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.output_norm = RMSNorm(config.n_embd, config.norm_epsilon)

    def initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        residual_scale = 1 / math.sqrt(2 * self.config.n_layer)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() < 2:
                    continue
                std = 0.02 if name == "embedding" else parameter.shape[-1] ** -0.5 * 0.5
                if name.endswith((".output", ".down")):
                    std *= residual_scale
                parameter.normal_(0.0, std, generator=generator)

    def hidden(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Final normalised states [B, T, n_embd] and the layers' mean auxiliary losses."""
        c = self.config
        length = tokens.shape[1]
        position = torch.arange(length, device=tokens.device, dtype=torch.float32)
        exponent = torch.arange(0, c.head_dim, 2, device=tokens.device) / c.head_dim
        angle = torch.outer(position, c.rope_theta ** -exponent)[None, :, None, :]
        cos, sin = angle.cos(), angle.sin()

        def drop(y: Tensor) -> Tensor:
            return F.dropout(y.float(), self.dropout, self.training)

        x = F.embedding(tokens, self.embedding)
        balance = z = x.new_zeros(())
        for block in self.blocks:
            attention = block.attn(block.attn_norm(x).to(self.compute_dtype), cos, sin)
            x = x + drop(attention)
            flat = block.ffn_norm(x).view(-1, c.n_embd)
            y, block_balance, block_z = block.moe(flat, self.compute_dtype)
            x = x + drop(y).view_as(x)
            balance = balance + block_balance / c.n_layer
            z = z + block_z / c.n_layer
        return self.output_norm(x), balance, z

    def logits(self, hidden: Tensor) -> Tensor:
        """In `compute_dtype`; take losses from their float32 values."""
        dtype = self.compute_dtype
        return F.linear(hidden.to(dtype), self.embedding.to(dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.hidden(tokens)[0])
