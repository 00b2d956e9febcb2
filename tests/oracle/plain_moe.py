# SPDX-License-Identifier: MIT
"""SmallThinker, Grok, Arctic and Maple in plain torch, for the oracles.

`transformers` has no class for them, so this follows the models' published code. All: RMS norms, heads of a
stated size, rotary embedding of pairs (i, i + n / 2), softmax routing whose picks' weights sum to one.

SmallThinker: the router reads the layer's input as it is, before attention's norm; softmax or sigmoid scores;
ReLU in the experts; every fourth layer, from the first, sees everything and has no positions, the others have
a window.
Grok: embeddings and logits are scaled; attention's scores are capped by 30 tanh(s / 30), the router's logits
likewise, the final ones where the configuration says so; GELU by its tanh formula; a norm behind attention and
one behind the experts; Grok-2 has a dense network beside the experts, and their sum is divided by sqrt(2).
Maple: norms of each head's query and key; layers of a list have a window, the others no positions; in the
experts silu(gate) ends at a limit, and up at the limit on both sides.
Arctic: a dense network behind attention, as wide as the embedding; the routed experts read a norm of the
layer's input, before attention, and both are added to the residual stream.
"""
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from bailing_moe import Norm


class Config(SimpleNamespace):
    def __init__(self, **fields):
        super().__init__(**(dict(kind="", attention_scale=None, attention_cap=0, router_cap=0, logit_cap=0,
                                 embedding_scale=1.0, logit_scale=1.0, sliding_window=0, sigmoid=False,
                                 dense_size=0, layer_types=None, limit=0.0) | fields))

    def sees_everything(self, index):
        if self.layer_types:
            return self.layer_types[index] == "full_attention"
        return self.kind != "smallthinker" or not self.sliding_window or index % 4 == 0


def capped(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


class Attention(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.c, self.full = c, c.sees_everything(index)
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        if c.kind == "maple":
            self.q_norm, self.k_norm = (Norm(c.head_dim, c.rms_norm_eps) for _ in range(2))

    def turn(self, x):
        """x: [heads][rows][head_dim]"""
        n = self.c.head_dim
        angle = torch.arange(x.shape[1]).double()[:, None] * self.c.rope_theta ** (-torch.arange(0, n, 2).double() / n)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x):
        c, rows = self.c, len(x)
        q, k, v = (p(x).view(rows, -1, c.head_dim).transpose(0, 1)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        if c.kind == "maple":
            q, k = self.q_norm(q), self.k_norm(k)
        if not (self.full and c.sliding_window):
            q, k = self.turn(q), self.turn(k)
        repeats = c.num_attention_heads // c.num_key_value_heads
        k, v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
        scores = q @ k.transpose(1, 2) * (c.attention_scale or c.head_dim ** -0.5)
        hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        if not self.full:
            hidden |= torch.ones(rows, rows, dtype=torch.bool).tril(-c.sliding_window)
        weights = capped(scores, c.attention_cap).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.o_proj((weights @ v).transpose(0, 1).reshape(rows, -1))


def activation(c):
    return {"smallthinker": F.relu, "grok": lambda x: F.gelu(x, approximate="tanh")}.get(c.kind, F.silu)


class Dense(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.act = activation(c)
        self.gate_proj = nn.Linear(c.hidden_size, c.dense_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.dense_size, bias=False)
        self.down_proj = nn.Linear(c.dense_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        n, f, e = c.num_experts, c.intermediate_size, c.hidden_size
        self.act, self.limit = activation(c), c.limit
        self.gate_up_proj = nn.Parameter(torch.zeros(n, 2 * f, e))
        self.down_proj = nn.Parameter(torch.zeros(n, e, f))

    def one(self, x, expert):
        gate, up = F.linear(x, self.gate_up_proj[expert]).chunk(2, -1)
        gate = self.act(gate)
        if self.limit:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return F.linear(gate * up, self.down_proj[expert])

    def forward(self, x, logits, c):
        logits = capped(logits, c.router_cap)
        scores = logits.sigmoid() if c.sigmoid else logits.softmax(-1)
        weights, chosen = scores.topk(c.num_experts_per_tok, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        rows = [sum(w * self.one(x[i], e) for w, e in zip(weights[i], chosen[i])) for i in range(len(x))]
        return torch.stack(rows)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.c = c
        self.self_attn, self.experts = Attention(c, index), Experts(c)
        self.router = nn.Linear(c.hidden_size, c.num_experts, bias=False)
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.ffn_norm = Norm(c.hidden_size, c.rms_norm_eps)
        if c.kind == "grok":
            self.attn_post_norm = Norm(c.hidden_size, c.rms_norm_eps)
            self.ffn_post_norm = Norm(c.hidden_size, c.rms_norm_eps)
        if c.kind == "arctic":
            self.experts_norm = Norm(c.hidden_size, c.rms_norm_eps)
        if c.dense_size:
            self.mlp = Dense(c)

    def forward(self, x):
        c, entered = self.c, x
        attended = self.self_attn(self.input_layernorm(x))
        x = x + (self.attn_post_norm(attended) if c.kind == "grok" else attended)
        normed = self.ffn_norm(x)
        if c.kind == "smallthinker":
            return x + self.experts(normed, self.router(entered), c)
        if c.kind == "maple":
            return x + self.experts(normed, self.router(normed), c)
        if c.kind == "arctic":
            early = self.experts_norm(entered)
            return x + self.mlp(normed) + self.experts(early, self.router(early), c)
        routed = self.experts(normed, self.router(normed), c)
        if c.dense_size:
            routed = (routed + self.mlp(normed)) / 2 ** 0.5
        return x + self.ffn_post_norm(routed)


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)


class PlainMoe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, self.model = c, Body(c)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, input_ids, use_cache):
        c = self.config
        x = self.model.embed_tokens(input_ids[0]) * c.embedding_scale
        for layer in self.model.layers:
            x = layer(x)
        logits = self.lm_head(self.model.norm(x)) * c.logit_scale
        return SimpleNamespace(logits=capped(logits, c.logit_cap)[None])
