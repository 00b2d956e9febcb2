"""The demo model's draft head: one layer that predicts the token after the next one.

As in DeepSeek-V3's module for multi-token prediction: the model's last hidden state (after the
output norm) of position i and the embedding of token i + 1, each normed, are joined by one matrix
and go through a layer with attention of its own. Its normed output is the hidden state from which
the model's own output matrix predicts token i + 2, and with which the head predicts one token more.
The layer's feed-forward network is dense.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chained_states import chained_states
from kernels import Kernels
from model import Attention, MoETransformer, RMSNorm


class DraftHead(nn.Module):
    def __init__(self, model: MoETransformer, n_ff: int):
        super().__init__()
        c = model.config
        self.config = c
        self.eh_proj = nn.Parameter(torch.empty(c.n_embd, 2 * c.n_embd))
        self.enorm = RMSNorm(c.n_embd, c.norm_epsilon)
        self.hnorm = RMSNorm(c.n_embd, c.norm_epsilon)
        self.attn_norm = RMSNorm(c.n_embd, c.norm_epsilon)
        self.attn = Attention(c)
        self.ffn_norm = RMSNorm(c.n_embd, c.norm_epsilon)
        self.gate = nn.Parameter(torch.empty(n_ff, c.n_embd))
        self.up = nn.Parameter(torch.empty(n_ff, c.n_embd))
        self.down = nn.Parameter(torch.empty(c.n_embd, n_ff))
        self.output_norm = RMSNorm(c.n_embd, c.norm_epsilon)

    @torch.no_grad()
    def initialise(self, model: MoETransformer, seed: int) -> None:
        """Passes the hidden state through; attention and norms begin as the model's last layer."""
        generator = torch.Generator().manual_seed(seed)
        n, last = self.config.n_embd, model.blocks[-1]
        self.eh_proj[:, :n].normal_(0.0, 0.3 * n ** -0.5, generator=generator)
        self.eh_proj[:, n:].copy_(torch.eye(n))
        self.attn.load_state_dict(last.attn.state_dict())
        self.attn_norm.load_state_dict(last.attn_norm.state_dict())
        self.ffn_norm.load_state_dict(last.ffn_norm.state_dict())
        self.output_norm.load_state_dict(model.output_norm.state_dict())
        for matrix, scale in ((self.gate, 0.5), (self.up, 0.5), (self.down, 0.1)):
            matrix.normal_(0.0, scale * matrix.shape[-1] ** -0.5, generator=generator)

    def keys(self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor):
        """The joined vector, and queries, keys and values; keys and values once for each query
        head."""
        c, a = self.config, self.attn
        joined = torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1)
        x = F.linear(joined, self.eh_proj)
        y = self.attn_norm(x)
        rows = [F.linear(y, w).view(*x.shape[:2], -1, c.head_dim) for w in (a.q, a.k, a.v)]
        q = Kernels.norm_and_rotate(rows[0], a.q_norm.weight, cos, sin, c.norm_epsilon)
        k = Kernels.norm_and_rotate(rows[1], a.k_norm.weight, cos, sin, c.norm_epsilon)
        group = c.n_head // c.n_head_kv
        k, v = (t.repeat_interleave(group, dim=2) for t in (k, rows[2]))
        return x, *(t.transpose(1, 2) for t in (q, k, v))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        attended = attended.transpose(1, 2).reshape(*x.shape[:2], -1)
        x = x + F.linear(attended, self.attn.output)
        y = self.ffn_norm(x)
        y = F.silu(F.linear(y, self.gate)) * F.linear(y, self.up)
        return self.output_norm(x + F.linear(y, self.down))

    def forward(self, embedded: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
        """embedded: [B, T, n] of the tokens after those of `hidden`. Returns the hidden states of
        each depth, [B, T - d, n]."""
        return chained_states(self, embedded, hidden, depth)


def head_parameters(head: DraftHead, layer: int) -> dict[str, nn.Parameter]:
    """The head's parameters under their GGUF names: it is the layer behind the model's last."""
    attention = head.attn
    return {f"blk.{layer}.{name}.weight": parameter for name, parameter in {
        "nextn.eh_proj": head.eh_proj, "nextn.enorm": head.enorm.weight,
        "nextn.hnorm": head.hnorm.weight, "nextn.shared_head_norm": head.output_norm.weight,
        "attn_norm": head.attn_norm.weight, "attn_q": attention.q, "attn_k": attention.k,
        "attn_v": attention.v, "attn_q_norm": attention.q_norm.weight,
        "attn_k_norm": attention.k_norm.weight, "attn_output": attention.output,
        "ffn_norm": head.ffn_norm.weight, "ffn_gate": head.gate, "ffn_up": head.up,
        "ffn_down": head.down}.items()}
