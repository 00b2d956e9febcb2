# SPDX-License-Identifier: MIT
"""Writes the oracles of EAGLE-3 heads: a tiny model of a family, a head for it in a file of its own, and
the logits that the forward pass below, in float32, gives for its drafts.

    python3 make_eagle.py [--only NAME...] [--out DIRECTORY]

The folder has, besides those of a family's model, head.gguf, and CASE.drafts.npy: float32
[2 * positions][96], as of make_heads.py; minus infinity for a token that the head does not have. Hidden
states of the model are transformers'. The head is written from the layout's description alone: llama.cpp's
keys and tensors, and their meaning (fusion of three layers, attention over two normed halves).
"""
from dataclasses import dataclass

import gguf
import numpy as np
import torch
import torch.nn.functional as F

import family_gguf
import make_families
from case_loop import chosen_cases
from family_cases import N_VOCAB, FamilyCase, build

EPS = 1e-5


@dataclass
class HeadCase:
    model: FamilyCase
    layers: tuple           # whose inputs are read
    width: int = 32
    heads: tuple = (4, 2, 16)   # of queries, of keys and values; their length
    n_ff: int = 48
    n_draft: int = 0        # tokens of its own vocabulary; 0: the model's
    embedding: bool = False
    output: bool = True
    factors: bool = False
    normed_residual: bool = False
    normed_features: bool = False
    theta: float = 10000.0


CASES = [
    HeadCase(FamilyCase("eagle3", "dots1", "dots1", dict(num_hidden_layers=3), 701), (1, 2, 3), n_draft=40),
    HeadCase(FamilyCase("eagle3-norms", "hy_v3", "hy_v3", {}, 702), (0, 1, 2), width=48, heads=(6, 2, 8),
             embedding=True, factors=True, normed_residual=True, normed_features=True, theta=5e5),
    HeadCase(FamilyCase("eagle3-bare", "hunyuan-moe", "hunyuan", {}, 703), (1, 1, 0), heads=(3, 3, 12),
             output=False),
]


def make_weights(case):
    generator = torch.Generator().manual_seed(case.model.seed)
    n, n_in = case.width, 3 * 32
    h, kv, d = case.heads

    def matrix(rows, columns, spread=1.4):
        return (torch.randn(rows, columns, generator=generator) * spread * columns ** -0.5).bfloat16().float()

    def norm(size):
        return (1 + 0.2 * torch.randn(size, generator=generator)).bfloat16().float()

    w = {"fc.weight": matrix(n, n_in), "blk.0.attn_norm.weight": norm(n), "blk.0.attn_norm_2.weight": norm(n),
         "blk.0.attn_q.weight": matrix(h * d, 2 * n), "blk.0.attn_k.weight": matrix(kv * d, 2 * n),
         "blk.0.attn_v.weight": matrix(kv * d, 2 * n), "blk.0.attn_output.weight": matrix(n, h * d),
         "blk.0.ffn_norm.weight": norm(n), "blk.0.ffn_gate.weight": matrix(case.n_ff, n),
         "blk.0.ffn_up.weight": matrix(case.n_ff, n), "blk.0.ffn_down.weight": matrix(n, case.n_ff),
         "output_norm.weight": norm(n)}
    if case.output:
        w["output.weight"] = matrix(case.n_draft or N_VOCAB, n, 2.0)
    if case.embedding:
        w["token_embd.weight"] = matrix(N_VOCAB, n)
    if case.normed_features:
        w["enc.output_norm.weight"] = norm(n_in)
    if case.factors:
        w["rope_freqs.weight"] = 1 + 3 * torch.rand(d // 2, generator=generator)
    if case.n_draft:
        w["d2t"] = torch.sort(torch.randperm(N_VOCAB, generator=generator)[:case.n_draft]).values
    return w


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def turn(x, positions, case, w):
    """Pairs (2i, 2i + 1) of [rows, heads, d]."""
    d = x.shape[-1]
    frequency = case.theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    if case.factors:
        frequency = frequency / w["rope_freqs.weight"].double()
    angle = positions[:, None].double() * frequency
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


class Head:
    """Rows are appended one after the other: a token and the state before it."""

    def __init__(self, case, w, model):
        self.case, self.w = case, w
        self.embedding = w.get("token_embd.weight", model.model.embed_tokens.weight)
        self.output = w.get("output.weight", model.lm_head.weight)
        self.keys = self.values = None

    def state(self, features):
        if self.case.normed_features:
            features = rms(features, self.w["enc.output_norm.weight"])
        return F.linear(features, self.w["fc.weight"])

    def append(self, tokens, states):
        """Returns the states of the tokens."""
        w, (h, kv, d) = self.w, self.case.heads
        past = 0 if self.keys is None else len(self.keys)
        positions = torch.arange(past, past + len(tokens))
        normed = rms(states, w["blk.0.attn_norm_2.weight"])
        x = torch.cat((rms(self.embedding[tokens], w["blk.0.attn_norm.weight"]), normed), -1)
        q = turn(F.linear(x, w["blk.0.attn_q.weight"]).view(-1, h, d), positions, self.case, w)
        k = turn(F.linear(x, w["blk.0.attn_k.weight"]).view(-1, kv, d), positions, self.case, w)
        v = F.linear(x, w["blk.0.attn_v.weight"]).view(-1, kv, d)
        self.keys = k if past == 0 else torch.cat((self.keys, k))
        self.values = v if past == 0 else torch.cat((self.values, v))
        keys, values = (t.repeat_interleave(h // kv, 1) for t in (self.keys, self.values))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * d ** -0.5
        hidden = torch.arange(len(keys))[None, :] > positions[:, None]
        shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", shares, values).reshape(len(tokens), h * d)
        y = (normed if self.case.normed_residual else states) + F.linear(attended, w["blk.0.attn_output.weight"])
        z = rms(y, w["blk.0.ffn_norm.weight"])
        z = F.silu(F.linear(z, w["blk.0.ffn_gate.weight"])) * F.linear(z, w["blk.0.ffn_up.weight"])
        return y + F.linear(z, w["blk.0.ffn_down.weight"])

    def logits(self, state):
        own = F.linear(rms(state, self.w["output_norm.weight"]), self.output)
        if not self.case.n_draft:
            return own
        return torch.full((N_VOCAB,), float("-inf")).index_copy(0, self.w["d2t"], own)


@torch.no_grad()
def features_of(model, case, ids):
    """The residual stream before the case's layers, [tokens, 3 * width]."""
    outputs = {}
    hooks = [layer.register_forward_hook(
        lambda _m, _i, out, k=k + 1: outputs.__setitem__(k, (out[0] if isinstance(out, tuple) else out)))
        for k, layer in enumerate(model.model.layers)]
    hooks.append(model.model.layers[0].register_forward_pre_hook(
        lambda _m, args, kwargs: outputs.__setitem__(0, args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True))
    model.model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.cat([outputs[k].view(len(ids), -1) for k in case.layers], -1)


@torch.no_grad()
def drafts_of(case, w, model, ids):
    states = Head(case, w, model).state(features_of(model, case, ids))
    tokens, out = torch.tensor(ids), []
    for p in range(len(ids) - 2):
        head = Head(case, w, model)
        first = head.append(tokens[1:p + 2], states[:p + 1])[-1:]
        second = head.append(tokens[p + 2:p + 3], first)
        out += [head.logits(first[0]), head.logits(second[0])]
    return torch.stack(out).numpy().astype("<f4")


def write_head(path, case, w):
    h, kv, d = case.heads
    writer = gguf.GGUFWriter(str(path), "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(case.width)
    writer.add_feed_forward_length(case.n_ff)
    writer.add_head_count(h)
    writer.add_head_count_kv(kv)
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_rope_dimension_count(d)
    writer.add_rope_freq_base(case.theta)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(N_VOCAB)
    writer.add_array("eagle3.target_layers", list(case.layers))
    writer.add_uint32("eagle3.target_hidden_size", 32)
    writer.add_bool("eagle3.norm_before_residual", case.normed_residual)
    writer.add_bool("eagle3.norm_before_fc", case.normed_features)
    for name, value in w.items():
        if name == "d2t":
            writer.add_tensor(name, value.numpy(), raw_dtype=gguf.GGMLQuantizationType.I64)
        elif value.dim() == 1:
            writer.add_tensor(name, value.numpy().astype("<f4"))
        else:
            data = gguf.quantize(value.numpy(), gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for case, out in chosen_cases(__doc__, CASES, lambda case: case.model.name):
        model, w = build(case.model), make_weights(case)
        family_gguf.write(out / "model.gguf", model, case.model)
        make_families.write_prompts(out, model, case.model)
        write_head(out / "head.gguf", case, w)
        for number, line in enumerate((out / "prompts.txt").read_text().splitlines()):
            drafts = drafts_of(case, w, model, [int(i) for i in line.split()])
            np.save(out / f"{number}.drafts.npy", drafts)
        finite = drafts[np.isfinite(drafts)]
        print(f"{out.name}: draft logits sd {finite.std():.2f} max {np.abs(finite).max():.1f}", flush=True)


if __name__ == "__main__":
    main()
