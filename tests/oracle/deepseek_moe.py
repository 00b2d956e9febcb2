# SPDX-License-Identifier: MIT
"""DeepSeek-MoE (the first one, arch `deepseek`) in plain torch, float32, for the oracles.

`transformers` has no native class for it, so this follows the published description: attention as
in Llama (rotate_half rope, grouped keys and values), leading dense layers, then layers with a
softmax router over all routed experts, greedy top-k, no renormalisation, and shared experts added
unweighted. Attribute names are those of the native classes, so that one table maps all families.
The published model has no factor on the routed weights; `routed_scaling_factor` is here because
GGUF has the key (`expert_weights_scale`) and an engine must honour it.
"""
from types import SimpleNamespace

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Mlp(nn.Module):
    def __init__(self, n_embd, n_ff):
        super().__init__()
        self.gate_proj = nn.Linear(n_embd, n_ff, bias=False)
        self.up_proj = nn.Linear(n_embd, n_ff, bias=False)
        self.down_proj = nn.Linear(n_ff, n_embd, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(c.n_routed_experts, c.hidden_size))
        self.top_k = c.num_experts_per_tok

    def forward(self, x):
        logits = nn.functional.linear(x, self.weight)
        weights, chosen = torch.topk(logits.softmax(-1), self.top_k, dim=-1)
        return logits, weights, chosen


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        n, f, e = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.zeros(n, 2 * f, e))
        self.down_proj = nn.Parameter(torch.zeros(n, e, f))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate = Router(c)
        self.experts = Experts(c)
        self.shared_experts = Mlp(c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)
        self.scale = c.routed_scaling_factor

    def forward(self, x):
        _, weights, chosen = self.gate(x)
        out = self.shared_experts(x)
        for token in range(x.shape[0]):
            for weight, expert in zip(weights[token], chosen[token]):
                gate, up = (self.experts.gate_up_proj[expert] @ x[token]).chunk(2)
                y = self.experts.down_proj[expert] @ (nn.functional.silu(gate) * up)
                out[token] = out[token] + self.scale * weight * y
        return out


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head, self.n_head_kv = c.num_attention_heads, c.num_key_value_heads
        self.head_dim = c.hidden_size // c.num_attention_heads
        self.theta = c.rope_theta
        self.q_proj = nn.Linear(c.hidden_size, self.n_head * self.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.n_head_kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.n_head_kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_head * self.head_dim, c.hidden_size, bias=False)

    def rotate(self, x):
        """x: [heads][tokens][head_dim]; the pairs are (i, i + head_dim/2)."""
        half = self.head_dim // 2
        inverse = self.theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angle = torch.arange(x.shape[1]).float()[:, None] * inverse
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(),
                          b * angle.cos() + a * angle.sin()], -1)

    def forward(self, x):
        n = x.shape[0]
        q = self.rotate(self.q_proj(x).view(n, self.n_head, -1).transpose(0, 1))
        k = self.rotate(self.k_proj(x).view(n, self.n_head_kv, -1).transpose(0, 1))
        v = self.v_proj(x).view(n, self.n_head_kv, -1).transpose(0, 1)
        group = self.n_head // self.n_head_kv
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) / self.head_dim ** 0.5
        scores = scores + torch.full((n, n), float("-inf")).triu(1)
        return self.o_proj((scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1))


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.self_attn = Attention(c)
        dense = index < c.first_k_dense_replace
        self.mlp = Mlp(c.hidden_size, c.intermediate_size) if dense else Moe(c)
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)


class DeepseekMoe(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, **_):
        x = self.model.embed_tokens(input_ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])
