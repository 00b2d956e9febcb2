# SPDX-License-Identifier: MIT
"""Ling and Ring (Bailing-MoE, archs `bailingmoe` and `bailingmoe2`) in plain torch, for the oracles.

`transformers` has no class for the two, so this follows the models' published description. Both:
attention as in Llama with heads of a stated size, shared experts added unweighted. The first: softmax
over all experts, its picks' weights divided by their sum where the configuration says so. The second:
QK-norm of each head before the rotary embedding, which turns a part of a head's elements; sigmoid scores,
a bias that counts in choosing only, groups ranked by the sum of their two best, weights divided by their
sum plus 1e-20 and multiplied by a factor.
"""
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F


class Config(SimpleNamespace):
    def __init__(self, **fields):
        super().__init__(**(dict(use_qk_norm=False, sigmoid=False, n_group=1, topk_group=1) | fields))


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return self.weight * (x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt())


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        if c.use_qk_norm:
            self.q_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.k_norm = Norm(c.head_dim, c.rms_norm_eps)

    def turn(self, x):
        """x: [heads][rows][head_dim]; the first n elements turn, pair (i, i + n / 2) at a time."""
        n = int(self.c.head_dim * self.c.partial_rotary_factor)
        speed = self.c.rope_theta ** (-torch.arange(0, n, 2).double() / n)
        angle = torch.arange(x.shape[1]).double()[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b, rest = x[..., :n // 2], x[..., n // 2:n], x[..., n:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    def forward(self, x):
        c, rows = self.c, len(x)
        q, k, v = (p(x).view(rows, -1, c.head_dim).transpose(0, 1)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        if c.use_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        repeats = c.num_attention_heads // c.num_key_value_heads
        q, k, v = self.turn(q), self.turn(k).repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
        scores = q @ k.transpose(1, 2) / c.head_dim ** 0.5
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return self.o_proj((weights @ v).transpose(0, 1).reshape(rows, -1))


class Mlp(nn.Module):
    def __init__(self, n_embd, n_ff):
        super().__init__()
        self.gate_proj = nn.Linear(n_embd, n_ff, bias=False)
        self.up_proj = nn.Linear(n_embd, n_ff, bias=False)
        self.down_proj = nn.Linear(n_ff, n_embd, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.weight = nn.Parameter(torch.zeros(c.n_routed_experts, c.hidden_size))
        if c.sigmoid:
            self.e_score_correction_bias = nn.Parameter(torch.zeros(c.n_routed_experts))

    def forward(self, x):
        c, logits = self.c, F.linear(x, self.weight)
        scores = logits.sigmoid() if c.sigmoid else logits.softmax(-1)
        ranking = scores + self.e_score_correction_bias if c.sigmoid else scores
        groups = ranking.view(len(x), c.n_group, -1)
        best = groups.topk(min(2, groups.shape[-1]), -1)[0].sum(-1).topk(c.topk_group, -1)[1]
        open_groups = torch.zeros(len(x), c.n_group, dtype=torch.bool).scatter_(1, best, True)
        ranking = groups.masked_fill(~open_groups[..., None], -torch.inf).flatten(1)
        chosen = ranking.topk(c.num_experts_per_tok, -1)[1]
        weights = scores.gather(1, chosen)
        if c.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * c.routed_scaling_factor, chosen


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        n, f, e = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.zeros(n, 2 * f, e))
        self.down_proj = nn.Parameter(torch.zeros(n, e, f))

    def forward(self, x, expert):
        gate, up = F.linear(x, self.gate_up_proj[expert]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down_proj[expert])


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate, self.experts = Router(c), Experts(c)
        self.shared_experts = Mlp(c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)

    def forward(self, x):
        weights, chosen = self.gate(x)
        rows = [sum(w * self.experts(x[i], e) for w, e in zip(weights[i], chosen[i])) for i in range(len(x))]
        return torch.stack(rows) + self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        dense = index < c.first_k_dense_replace
        self.mlp = Mlp(c.hidden_size, c.intermediate_size) if dense else Moe(c)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)


class BailingMoe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, self.model = c, Body(c)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, input_ids, use_cache):
        x = self.model.embed_tokens(input_ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])
