#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a sparse file of a large model's true shape: all of its tensors, hardly any of the disk.

    python3 true_shape.py SHAPE OUT [--parts N] [--experts-type TYPE] [--type Q6_K]
                          [--layers N] [--vocabulary N] [--table-rows N] [--random]

Shapes: kimi-k2, qwen3-235b, glm-4.6, minimax-m2, qwen3.5-35b, qwen3-next-80b, gpt-oss-20b, hy4, glm-5.3-flash, qwen3.8-flash-next, deepseek-v4-flash,
minimax-m3, dots.3-note, kimi-k3. The header is whole (metadata, a vocabulary of the
model's size with as many merges, every tensor), and the file has the size of the real one, but its
weights are holes, which read as zeros and take no disk: 580 GB of Kimi-K2 take 110 MB of it.

So that tokens do not all choose the same experts, norm weights are 1, the first columns of the
embeddings of the 256 bytes are random, and so are those columns of the routers: a token chooses experts
by what it is, in every layer otherwise. Everything else is zero: what a layer adds is zero, all logits
are equal, and greedy decoding writes token 0 for ever (--temp 1 draws any token at all).

With --random there are no holes: all matrices have random weights of a scale that keeps activations
finite, and the file takes its whole size of the disk. What such a model writes means nothing; the work of a
token is that of the real file, so its speed can be compared.

A sparse file shows how long a header takes to read, what the plan says, whether a model runs in the memory
that it is given, and what it moves. It shows nothing of a disk's speed: holes are not on it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import struct

UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
INT32, UINT64 = 5, 10
F32 = 0
TYPES = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q4_K": (12, 256, 144),
         "Q6_K": (14, 256, 210), "MXFP4": (39, 32, 17), "Q5_1": (7, 32, 24), "IQ4_NL": (20, 32, 18),
         "I32": (26, 1, 4), "IQ1_S": (19, 256, 50)}
ALIGNMENT = 32
COLUMNS = 32        # of embeddings and routers that are not zero

# Layers with a gated delta rule, but every fourth: heads, key heads, elements of each, convolution.
DELTA = dict(heads=32, key_heads=16, dim=128, kernel=4, interval=4)
DELTA_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32,
              "ssm.inner_size": 4096, "full_attention_interval": 4}

# A table of n-grams: 16 ranges of rows, one for each head.
TABLE = dict(row=160, rows=320_001_536, kernel=4)
TABLE_KEYS = {"ple.layers": [1], "ple.ngram_size": 3, "ple.heads_per_ngram": 8, "ple.conv_kernel": 4,
              "embedding_length_per_layer_input": 160,
              "ple.layer_multipliers": [23703573157769, 20109073645365, 8052911324071]}

INDEX_KEYS = {"attention.indexer.key_length": 128, "attention.indexer.top_k": 2048, "expert_gating_func": 2,
              "expert_weights_norm": True, "expert_shared_count": 1}

# Of DeepSeek-V4-Flash's layers: two with a window alone, then compressed keys of 4 and of 128 in turn.
RATES = [0, 0] + [(4, 128)[i % 2] for i in range(41)]

# Of Kimi-K3's layers: which have latent attention.
LATENT = [int(i % 4 == 3 or i == 92) for i in range(93)]

# Of dots.3's layers: which have a window.
INSIDE = [int(i > 1 and i % 4 != 1) for i in range(46)]

SHAPES = {
    "kimi-k2": dict(
        arch="deepseek2", layers=61, embd=7168, vocab=163840, context=262144, pre="kimi-k2",
        ff=18432, dense=1, experts=384, used=8, ff_exp=2048, shared=2048, heads=64,
        q_rank=1536, kv_rank=512, nope=128, rot=64, v_dim=128,
        keys={"rope.freq_base": 50000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 64.0,
              "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.1,
              "expert_gating_func": 2, "expert_weights_scale": 2.827, "expert_weights_norm": True,
              "expert_shared_count": 1, "expert_group_count": 1, "expert_group_used_count": 1}),
    "qwen3-235b": dict(
        arch="qwen3moe", layers=94, embd=4096, vocab=151936, context=262144, pre="qwen2",
        ff=12288, dense=0, experts=128, used=8, ff_exp=1536, shared=0, heads=64, kv_heads=4,
        head=128, rot=128, qk_norm=True, keys={"rope.freq_base": 5e6}),
    "glm-4.6": dict(
        arch="glm4moe", layers=92, embd=5120, vocab=151552, context=202752, pre="glm4",
        ff=12288, dense=3, experts=160, used=8, ff_exp=1536, shared=1536, heads=96, kv_heads=8,
        head=128, rot=64, qk_norm=True, qkv_bias=True, ffn_norm="post_attention_norm", bias=True,
        keys={"rope.freq_base": 1e6, "expert_gating_func": 2, "expert_weights_scale": 2.5,
              "expert_weights_norm": True, "expert_shared_count": 1}),
    "minimax-m2": dict(
        arch="minimax-m2", layers=62, embd=3072, vocab=200064, context=196608, pre="minimax-m2",
        ff=1536, dense=0, experts=256, used=8, ff_exp=1536, shared=0, heads=48, kv_heads=8,
        head=128, rot=64, qk_norm_full=True, bias=True,
        keys={"rope.freq_base": 5e6, "expert_gating_func": 2}),
    "qwen3.5-35b": dict(
        arch="qwen35moe", layers=40, embd=2048, vocab=248320, context=262144, pre="qwen35",
        ff=512, dense=0, experts=256, used=8, ff_exp=512, shared=512, heads=16, kv_heads=2,
        head=256, rot=64, qk_norm=True, ffn_norm="post_attention_norm", shared_gate=True, delta=DELTA,
        keys={"rope.freq_base": 1e7, "rope.dimension_sections": [11, 11, 10, 0],
              "expert_shared_feed_forward_length": 512} | DELTA_KEYS),
    "gpt-oss-20b": dict(
        arch="gpt-oss", layers=24, embd=2880, vocab=201088, context=131072, pre="gpt-4o",
        ff=2880, dense=0, experts=32, used=4, ff_exp=2880, shared=0, heads=64, kv_heads=8,
        head=64, rot=64, qkv_bias=True, ffn_norm="post_attention_norm", sinks=True, experts_type="MXFP4",
        keys={"rope.freq_base": 150000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
              "rope.scaling.original_context_length": 4096, "attention.sliding_window": 128}),
    "qwen3-next-80b": dict(
        arch="qwen3next", layers=48, embd=2048, vocab=151936, context=262144, pre="qwen2",
        ff=5120, dense=0, experts=512, used=10, ff_exp=512, shared=512, heads=16, kv_heads=2,
        head=256, rot=64, qk_norm=True, ffn_norm="post_attention_norm", shared_gate=True, delta=DELTA,
        keys={"rope.freq_base": 1e7, "expert_shared_feed_forward_length": 512} | DELTA_KEYS),
    "hy4": dict(
        arch="hy_v4", layers=78, embd=6144, vocab=120832, context=262144, pre="hy_v4",
        ff=18432, dense=1, experts=256, used=8, ff_exp=2048, shared=2048, heads=64,
        q_rank=1536, kv_rank=512, nope=192, rot=64, v_dim=256, bias=True, streams=4, gated=True,
        index=dict(heads=16, dim=128, pool=1),
        keys=INDEX_KEYS | {"expert_weights_scale": 2.827, "swiglu_clamp_exp": 10.0, "hyper_connection.count": 4,
                           "attention.indexer.head_count": 16, "hyper_connection.epsilon": 1e-6,
                           "hyper_connection.magnitude": 2.0}),
    "glm-5.3-flash": dict(
        arch="glm5-next", layers=45, embd=4096, vocab=154880, context=1048576, pre="glm4",
        ff=12288, dense=3, experts=288, used=8, ff_exp=2048, shared=2048, heads=64,
        q_rank=1536, kv_rank=512, nope=256, rot=0, v_dim=256, bias=True, streams=4, mixed=True, kda=128,
        index=dict(heads=32, dim=128, pool=4),
        keys=INDEX_KEYS | {"expert_weights_scale": 2.5, "swiglu_clamp_exp": 10.0, "swiglu_clamp_shexp": 10.0,
                           "attention.indexer.head_count": 32, "attention.indexer.kpool": 4, "kda.head_dim": 128,
                           "kda.gate_lower_bound": -5.0, "ssm.conv_kernel": 4, "hyper_connection.count": 4,
                           "hyper_connection.sinkhorn_iterations": 20, "hyper_connection.epsilon": 1e-6,
                           "attention.head_count_kv": [int(i % 4 == 3) for i in range(45)]}),
    "qwen3.8-flash-next": dict(
        arch="qwen4exp", layers=48, embd=2560, vocab=248320, context=262144, pre="qwen35",
        ff=0, dense=0, experts=512, used=10, ff_exp=640, shared=640, heads=24, kv_heads=2, head=256, rot=64,
        qk_norm=True, shared_gate=True, delta=DELTA | dict(heads=48), streams=4, rank=320, table=TABLE,
        index=dict(heads=4, dim=128, pool=4),
        keys=DELTA_KEYS | TABLE_KEYS | {
            "rope.freq_base": 1e7, "rope.dimension_sections": [11, 11, 10, 0], "expert_shared_feed_forward_length": 640,
            "ssm.time_step_rank": 48, "ssm.inner_size": 6144, "hyper_connection.count": 4,
            "hyper_connection.low_rank": 320, "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
            "attention.compress_ratios": [4 * (i % 4 == 3) for i in range(48)]}),
    "deepseek-v4-flash": dict(
        arch="deepseek4", layers=43, embd=4096, vocab=129280, context=1048576, pre="deepseek-v3",
        ff=2048, dense=0, experts=256, used=6, ff_exp=2048, shared=2048, heads=64, head=512, rot=64, q_rank=1024,
        bias=True, streams=4, mixed=True, head_streams=True, tables=3, groups=8, group_rank=1024,
        index=dict(heads=64, dim=128), rates=RATES,
        keys=INDEX_KEYS | {"rope.freq_base": 1e4, "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0,
                           "rope.scaling.original_context_length": 65536, "attention.q_lora_rank": 1024,
                           "attention.compress_ratios": RATES, "attention.compress_rope_freq_base": 160000.0,
                           "attention.output_group_count": 8, "attention.output_lora_rank": 1024,
                           "attention.sliding_window": 128, "attention.indexer.head_count": 64,
                           "attention.indexer.top_k": 512, "expert_gating_func": 4, "expert_weights_scale": 1.5,
                           "hash_layer_count": 3, "swiglu_clamp_exp": 10.0, "swiglu_clamp_shexp": 10.0,
                           "hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 20,
                           "hyper_connection.epsilon": 1e-6}),
    "minimax-m3": dict(
        arch="minimax-m3", layers=60, embd=6144, vocab=200064, context=524288, pre="minimax-m2",
        ff=12288, dense=3, experts=128, used=4, ff_exp=3072, shared=3072, heads=64, kv_heads=4, head=128, rot=64,
        qk_norm=True, bias=True, index=dict(heads=4, dim=128, pool=1),
        keys={"rope.freq_base": 5e6, "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.0,
              "expert_shared_count": 1, "attention.indexer.head_count": 4, "attention.indexer.key_length": 128,
              "attention.indexer.top_k": 16, "attention.indexer.block_size": 128,
              "attention.indexer.local_blocks": 1}),
    "kimi-k3": dict(
        arch="kimi-k3", layers=93, embd=7168, vocab=163840, context=1048576, pre="kimi-k2",
        ff=33792, dense=1, experts=896, used=16, ff_exp=3072, shared=6144, heads=96,
        q_rank=1536, kv_rank=512, nope=128, rot=64, v_dim=128, bias=True, kda=128, narrow=3584, experts_type="MXFP4",
        keys={"expert_gating_func": 2, "expert_weights_scale": 2.827, "expert_weights_norm": True,
              "expert_shared_count": 2, "expert_latent_length": 3584, "kda.head_dim": 128,
              "kda.gate_lower_bound": -5.0, "ssm.conv_kernel": 4, "attn_res.block_size": 12,
              "activation.situ_beta": 4.0, "activation.situ_linear_beta": 25.0,
              "attention.head_count_kv": LATENT}),
    "dots.3-note": dict(
        arch="dots3note", layers=46, embd=5120, vocab=152064, context=524288, pre="qwen2",
        ff=13824, dense=1, experts=256, used=8, ff_exp=1536, shared=1536, heads=128,
        q_rank=1024, kv_rank=512, nope=128, rot=64, v_dim=128, bias=True, gates=True, inside=INSIDE,
        wide=dict(heads=64, kv_rank=1024, nope=192, v_dim=128), index=dict(heads=64, dim=128, pool=1),
        keys=INDEX_KEYS | {"rope.freq_base": 8e7, "rope.freq_base_swa": 5e4, "attention.indexer.head_count": 64,
                           "attention.head_count": [64 if inside else 128 for inside in INSIDE],
                           "attention.sliding_window": 513, "attention.sliding_window_pattern": INSIDE,
                           "attention.kv_lora_rank_swa": 1024, "attention.key_length_mla_swa": 256,
                           "attention.value_length_mla_swa": 128}),
}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    if value and isinstance(value[0], int) and max(value) >= 1 << 31:
        return struct.pack(f"<IIQ{len(value)}Q", ARRAY, UINT64, len(value), *value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", ARRAY, INT32, len(value), *value)
    return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(text(v) for v in value)


def byte_characters() -> list[str]:
    """The printable stand-in for each byte that byte-level vocabularies use."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    extra = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """The bytes, then all pairs, then triples, as far as `size` goes; and the merges that make them."""
    letters = byte_characters()
    tokens, merges = list(letters), []
    for a in letters:
        for b in letters:
            if len(tokens) < size - 1:
                tokens.append(a + b)
                merges.append(f"{a} {b}")
    pairs = tokens[256:]
    for pair in pairs:
        if len(tokens) >= size - 1:
            break
        for c in letters[:3]:
            if len(tokens) < size - 1:
                tokens.append(pair + c)
                merges.append(f"{pair} {c}")
    return tokens + ["<|end|>"], merges


class Shape:
    def __init__(self, name: str, options: argparse.Namespace):
        self.__dict__.update(dict(kv_heads=1, q_rank=0, kv_rank=0, qk_norm=False, qk_norm_full=False,
                                  qkv_bias=False, bias=False, ffn_norm="ffn_norm", shared_gate=False,
                                  delta=None, sinks=False, streams=0, mixed=False, gated=False, index=None,
                                  kda=0, rank=0, table=None, head_streams=False, tables=0, rates=None,
                                  gates=False, wide=None, narrow=0, experts_type="Q4_K") | SHAPES[name])
        self.name, self.type = name, options.type
        self.experts_type = options.experts_type or self.experts_type
        self.layers = options.layers or self.layers
        self.vocab = options.vocabulary or self.vocab
        if self.table:
            self.table = self.table | dict(rows=options.table_rows or self.table["rows"])
        self.dense = min(self.dense, self.layers - 1)
        self.bias = self.bias or self.arch == "deepseek2"
        self.tensors: list[tuple[str, tuple[int, ...], str]] = []
        self.list_tensors()

    def metadata(self) -> dict:
        tokens, merges = vocabulary(self.vocab)
        a = self.arch
        keys = {"general.architecture": a, "general.name": self.name, "general.alignment": ALIGNMENT,
                f"{a}.block_count": self.layers, f"{a}.context_length": self.context,
                f"{a}.embedding_length": self.embd,
                f"{a}.attention.head_count": self.heads,
                f"{a}.attention.layer_norm_rms_epsilon": 1e-6, f"{a}.vocab_size": self.vocab,
                f"{a}.expert_count": self.experts, f"{a}.expert_used_count": self.used,
                f"{a}.expert_feed_forward_length": self.ff_exp, f"{a}.rope.dimension_count": self.rot}
        if self.table:
            sizes = [(self.table["rows"] - 1536) // 16 - i for i in range(16)]
            keys |= {f"{a}.ple.head_offsets": [sum(sizes[:i]) for i in range(16)],
                     f"{a}.ple.head_vocab_sizes": sizes, f"{a}.ple.eos_token_id": self.vocab - 1}
        if self.ff:
            keys[f"{a}.feed_forward_length"] = self.ff
        if self.dense:
            keys[f"{a}.leading_dense_block_count"] = self.dense
        if self.kv_rank:
            keys |= {f"{a}.attention.head_count_kv": 1, f"{a}.attention.q_lora_rank": self.q_rank,
                     f"{a}.attention.kv_lora_rank": self.kv_rank,
                     f"{a}.attention.key_length": self.kv_rank + self.rot,
                     f"{a}.attention.value_length": self.kv_rank,
                     f"{a}.attention.key_length_mla": self.nope + self.rot,
                     f"{a}.attention.value_length_mla": self.v_dim}
        else:
            keys |= {f"{a}.attention.head_count_kv": self.kv_heads,
                     f"{a}.attention.key_length": self.head, f"{a}.attention.value_length": self.head}
        keys |= {f"{a}.{key}": value for key, value in self.keys.items()}
        return keys | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": self.pre,
                       "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
                       "tokenizer.ggml.token_type": [1] * (self.vocab - 1) + [3],
                       "tokenizer.ggml.eos_token_id": self.vocab - 1}

    def add(self, name: str, *dims: int, kind: str | None = None) -> None:
        if kind == self.experts_type and dims[0] % TYPES[kind][1] != 0:
            kind = "Q5_1"   # experts whose rows are no whole blocks of that type
        kind = kind or (self.type if dims[0] % TYPES[self.type][1] == 0 else "Q8_0")
        self.tensors.append((name, dims, "F32" if len(dims) == 1 else kind))

    def list_compressed(self, at: str, rate: int) -> None:
        series = 2 if rate == 4 else 1
        self.add(at + "attn_q_a.weight", self.embd, self.q_rank)
        self.add(at + "attn_q_a_norm.weight", self.q_rank)
        self.add(at + "attn_q_b.weight", self.q_rank, self.heads * self.head)
        self.add(at + "attn_kv.weight", self.embd, self.head)
        self.add(at + "attn_kv_a_norm.weight", self.head)
        self.add(at + "attn_sinks.weight", self.heads)
        self.add(at + "attn_output_a.weight", self.heads * self.head // self.groups, self.groups * self.group_rank)
        self.add(at + "attn_output_b.weight", self.groups * self.group_rank, self.embd)
        parts = ([("attn", self.head)] if rate else []) + ([("indexer", self.index["dim"])] if rate == 4 else [])
        for part, dim in parts:
            self.add(f"{at}{part}_compressor_kv.weight", self.embd, series * dim)
            self.add(f"{at}{part}_compressor_gate.weight", self.embd, series * dim)
            self.add(f"{at}{part}_compressor_ape.weight", series * dim, rate, kind="F32")
            self.add(f"{at}{part}_compressor_norm.weight", dim)
        if rate == 4:
            self.add(at + "indexer.attn_q_b.weight", self.q_rank, self.index["heads"] * self.index["dim"])
            self.add(at + "indexer.proj.weight", self.embd, self.index["heads"])

    def list_latent(self, at: str, heads: int, kv_rank: int, nope: int, v_dim: int) -> None:
        self.add(at + "attn_q_a.weight", self.embd, self.q_rank)
        self.add(at + "attn_q_a_norm.weight", self.q_rank)
        self.add(at + "attn_q_b.weight", self.q_rank, heads * (nope + self.rot))
        self.add(at + "attn_kv_a_mqa.weight", self.embd, kv_rank + self.rot)
        self.add(at + "attn_kv_a_norm.weight", kv_rank)
        self.add(at + "attn_k_b.weight", nope, kv_rank, heads)
        self.add(at + "attn_v_b.weight", kv_rank, v_dim, heads)
        self.add(at + "attn_output.weight", heads * v_dim, self.embd)
        if self.narrow:
            self.add(at + "attn_gate.weight", self.embd, heads * v_dim)
        if self.gates:
            self.add(at + "attn_gate.weight", self.embd, heads)
            self.add(at + "attn_k_norm.weight", self.rot)
        if self.gated:
            self.add(at + "attn_gate.weight", self.embd, heads * v_dim)
            self.add(at + "attn_sinks.weight", heads)

    def list_attention(self, at: str, layer: int) -> None:
        if self.wide and self.inside[layer]:
            self.list_latent(at, **self.wide)
            return
        if self.kv_rank:
            self.list_latent(at, self.heads, self.kv_rank, self.nope, self.v_dim)
            if self.index:
                self.list_index(at + "indexer.", **self.index)
            return
        for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            gates = 2 if part == "q" and self.delta else 1
            self.add(f"{at}attn_{part}.weight", self.embd, heads * self.head * gates)
            if self.qkv_bias:
                self.add(f"{at}attn_{part}.bias", heads * self.head)
            if part != "v" and (self.qk_norm or self.qk_norm_full):
                self.add(f"{at}attn_{part}_norm.weight", self.head * (heads if self.qk_norm_full else 1))
        self.add(at + "attn_output.weight", self.heads * self.head, self.embd)
        if self.index and layer >= self.dense:
            self.list_means(at + "indexer.", **self.index)
        if self.sinks:
            self.add(at + "attn_output.bias", self.embd)
            self.add(at + "attn_sinks.weight", self.heads)
            self.add(at + "ffn_gate_inp.bias", self.experts)
            for part, width in (("gate", self.ff_exp), ("up", self.ff_exp), ("down", self.embd)):
                self.add(f"{at}ffn_{part}_exps.bias", width, self.experts, kind="F32")

    def list_index(self, at: str, heads: int, dim: int, pool: int) -> None:
        self.add(at + "attn_q_b.weight", self.q_rank, heads * dim)
        self.add(at + "attn_k.weight", self.embd, dim)
        self.add(at + "k_norm.weight", dim)
        self.add(at + "k_norm.bias", dim)
        self.add(at + "proj.weight", self.embd, heads)
        if pool > 1:
            self.add(at + "kpool_gate.weight", self.embd, dim)
            self.add(at + "kpool_ape.weight", dim, pool, kind="F32")

    def list_means(self, at: str, heads: int, dim: int, pool: int) -> None:
        self.add(at + "q_proj.weight", self.embd, heads * dim)
        self.add(at + "k_proj.weight", self.embd, dim)
        self.add(at + "q_norm.weight", dim)
        self.add(at + "k_norm.weight", dim)

    def list_gated_streams(self, at: str, writes: bool) -> None:
        wide = self.streams * self.embd
        self.add(at + "_norm.weight", wide)
        self.add(at + "_down.weight", wide, self.rank)
        self.add(at + "_up.weight", self.rank, wide)
        if writes:
            self.add(at + "_inject.weight", wide, self.streams)

    def list_table(self, at: str) -> None:
        wide = self.streams * self.embd
        self.add(at + "key.weight", self.embd, wide)
        self.add(at + "value.weight", self.embd, self.embd)
        for part in ("key", "query", "conv"):
            self.add(f"{at}norm_{part}.weight", wide)
        self.add(at + "conv1d.weight", self.table["kernel"], wide, kind="F32")

    def list_channels(self, at: str) -> None:
        inner = self.heads * self.kda
        for part in "qkv":
            self.add(f"{at}attn_{part}.weight", self.embd, inner)
            self.add(f"{at}ssm_conv1d_{part}.weight", 4, inner, kind="F32")
        if self.narrow:
            self.add(at + "ssm_g.weight", self.embd, inner)
        for part in "f" if self.narrow else "fg":
            self.add(f"{at}ssm_{part}_a.weight", self.embd, self.kda)
            self.add(f"{at}ssm_{part}_b.weight", self.kda, inner)
        self.add(at + "ssm_beta.weight", self.embd, self.heads)
        self.add(at + "ssm_a", self.heads)
        self.add(at + "ssm_dt.bias", inner)
        self.add(at + "ssm_norm.weight", self.kda)
        self.add(at + "attn_output.weight", inner, self.embd)

    def list_streams(self, at: str, n_parts: int) -> None:
        n = self.streams
        weights = n * min(n_parts, 2) + (n * n if n_parts > 2 else 0)
        self.add(at + "_fn.weight", n * self.embd, weights, kind="F32")
        self.add(at + "_base.weight", weights)
        self.add(at + "_scale.weight", n_parts)

    def list_delta(self, at: str) -> None:
        d = self.delta
        inner, channels = d["heads"] * d["dim"], (d["heads"] + 2 * d["key_heads"]) * d["dim"]
        self.add(at + "attn_qkv.weight", self.embd, channels)
        self.add(at + "attn_gate.weight", self.embd, inner)
        if self.arch in ("qwen35moe", "qwen4exp"):
            self.add(at + "ssm_beta.weight", self.embd, d["heads"])
            self.add(at + "ssm_alpha.weight", self.embd, d["heads"])
        else:
            self.add(at + "ssm_ba.weight", self.embd, 2 * d["heads"])
        self.add(at + "ssm_conv1d.weight", d["kernel"], channels, kind="F32")
        self.add(at + "ssm_a", d["heads"])
        self.add(at + "ssm_dt.bias", d["heads"])
        self.add(at + "ssm_norm.weight", d["dim"])
        self.add(at + "ssm_out.weight", inner, self.embd)

    def list_tensors(self) -> None:
        self.add("token_embd.weight", self.embd, self.vocab, kind="Q2_K" if self.type == "IQ1_S" else "Q8_0")
        if self.rank:
            self.list_gated_streams("output_hc", False)
        else:
            self.add("output_norm.weight", self.embd)
        self.add("output.weight", self.embd, self.vocab)
        if self.streams and (not self.mixed or self.head_streams) and not self.rank:
            self.list_streams("output_hc", 1)
        if self.narrow:
            self.add("output_res_score.weight", self.embd)
        if self.table:
            self.add("per_layer_token_embd.weight", self.table["row"], self.table["rows"], kind="IQ4_NL")
            self.list_table("blk.1.ple_")
        for i in range(self.layers):
            at = f"blk.{i}."
            if not self.rank:
                self.add(at + "attn_norm.weight", self.embd)
            for part in ("attn", "ffn") if self.narrow else ():
                self.add(f"{at}{part}_res_score.weight", self.embd)
            for part in ("attn", "ffn") if self.streams else ():
                if self.rank:
                    self.list_gated_streams(f"{at}hc_{part}", True)
                else:
                    self.list_streams(f"{at}hc_{part}", 3 if self.mixed else 2)
            if self.rates:
                self.list_compressed(at, self.rates[i])
            elif self.delta and (i + 1) % self.delta["interval"] != 0:
                self.list_delta(at)
            elif self.kda and not self.keys["attention.head_count_kv"][i]:
                self.list_channels(at)
            else:
                self.list_attention(at, i)
            if not self.rank:
                self.add(at + self.ffn_norm + ".weight", self.embd)
            if i < self.dense:
                for part in ("gate", "up", "down"):
                    self.add(f"{at}ffn_{part}.weight", *self.part(part, self.ff))
                continue
            self.add(at + "ffn_gate_inp.weight", self.embd, self.experts, kind="F32")
            if i < self.tables:
                self.add(at + "ffn_gate_tid2eid.weight", self.used, self.vocab, kind="I32")
            elif self.bias:
                self.add(at + "exp_probs_b.bias", self.experts)
            if self.shared_gate:
                self.add(at + "ffn_gate_inp_shexp.weight", self.embd)
            if self.narrow:
                self.add(at + "ffn_routed_down.weight", self.embd, self.narrow)
                self.add(at + "ffn_routed_norm.weight", self.narrow)
                self.add(at + "ffn_routed_up.weight", self.narrow, self.embd)
            for part in ("gate", "up", "down"):
                self.add(f"{at}ffn_{part}_exps.weight", *self.part(part, self.ff_exp, self.narrow), self.experts,
                         kind=self.experts_type)
                if self.shared:
                    self.add(f"{at}ffn_{part}_shexp.weight", *self.part(part, self.shared))

    def part(self, part: str, width: int, outside: int = 0) -> tuple[int, int]:
        outside = outside or self.embd
        return (width, outside) if part == "down" else (outside, width)


def size_of(dims: tuple[int, ...], kind: str) -> int:
    _, values, size = TYPES[kind]
    assert dims[0] % values == 0, (dims, kind)
    return math.prod(dims) // values * size


def fill_table(file, at: int, dims: tuple[int, ...]) -> None:
    """The experts of each token, of the 256 of the shapes that have a table."""
    used, tokens = dims
    os.pwrite(file, struct.pack(f"<{used * tokens}i", *((7 * token + 41 * k) % 256
                                                        for token in range(tokens) for k in range(used))), at)


def fill(file, at: int, name: str, dims: tuple[int, ...], kind: str, rng: random.Random) -> None:
    """What is not a hole: norms, the bytes' embeddings, routers."""
    def floats(n):
        return struct.pack(f"<{n}f", *(rng.gauss(0, 1) for _ in range(n)))

    if name.endswith("norm.weight"):
        os.pwrite(file, struct.pack("<f", 1.0) * dims[0], at)
    elif name.endswith("tid2eid.weight"):
        fill_table(file, at, dims)
    elif name == "token_embd.weight":
        row = size_of(dims[:1], kind)
        for token in range(256):
            block = struct.pack("<e", 1.0) + bytes(rng.randrange(256) for _ in range(COLUMNS))
            if kind == "Q2_K":
                block = bytes(rng.randrange(256) for _ in range(80)) + struct.pack("<ee", 1.0, 1.0)
            os.pwrite(file, block, at + token * row)
    elif name.endswith("ffn_gate_inp.weight"):
        for expert in range(dims[1]):
            os.pwrite(file, floats(COLUMNS), at + expert * dims[0] * 4)


# Of a type's block: where its float16 scales are, and their value.
SCALES = {"IQ4_NL": ((0,), 3e-4), "Q5_1": ((0, 2), 3e-4), "Q8_0": ((0,), 2.7e-4), "Q4_K": ((0, 2), 2e-4), "Q6_K": ((208,), 1.5e-5), "Q2_K": ((80, 82), 2e-3)}
POOL_BLOCKS = 1 << 16


def random_blocks(kind: str, rng: random.Random) -> bytes:
    """Blocks of random weights, about 0.02 large."""
    if kind == "F32":
        return struct.pack(f"<{POOL_BLOCKS}f", *(rng.gauss(0, 0.02) for _ in range(POOL_BLOCKS)))
    size = TYPES[kind][2]
    pool = bytearray(rng.randbytes(POOL_BLOCKS * size))
    if kind == "MXFP4":
        pool[0::size] = bytes([119]) * POOL_BLOCKS
        return bytes(pool)
    for at in SCALES[kind][0]:
        for i, byte in enumerate(struct.pack("<e", SCALES[kind][1])):
            pool[at + i::size] = bytes([byte]) * POOL_BLOCKS
    return bytes(pool)


def fill_randomly(file, at: int, name: str, dims: tuple[int, ...], kind: str, pools: dict,
                  rng: random.Random) -> None:
    if name.endswith("norm.weight"):
        os.pwrite(file, struct.pack("<f", 1.0) * dims[0], at)
    elif name.endswith("tid2eid.weight"):
        fill_table(file, at, dims)
    elif name.endswith("ssm_a"):  # a state fades: its factor is exp(a * softplus(..))
        os.pwrite(file, struct.pack("<f", -1.0) * dims[0], at)
    elif len(dims) > 1 and not name.endswith(".bias"):
        pool = pools.setdefault(kind, random_blocks(kind, rng))
        end = at + size_of(dims, kind)
        begin = rng.randrange(POOL_BLOCKS) * TYPES[kind][2]  # elsewhere for each matrix
        while at < end:
            part = pool[begin:begin + end - at]
            at += os.pwrite(file, part, at)
            begin = 0


def write_part(path: str, keys: dict, tensors: list, is_random: bool) -> int:
    """A file with these tensors; its size."""
    infos, offset = [], 0
    for name, dims, kind in tensors:
        infos.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[kind][0], offset))
        offset += -(-size_of(dims, kind) // ALIGNMENT) * ALIGNMENT
    header = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(keys))
    header += b"".join(text(key) + value_of(value) for key, value in keys.items()) + b"".join(infos)
    header += b"\0" * (-len(header) % ALIGNMENT)
    rng = random.Random(path.rsplit("/", 1)[-1])
    pools: dict[str, bytes] = {}
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + offset)
        file.flush()
        at = len(header)
        for name, dims, kind in tensors:
            if is_random:
                fill_randomly(file.fileno(), at, name, dims, kind, pools, rng)
            else:
                fill(file.fileno(), at, name, dims, kind, rng)
            at += -(-size_of(dims, kind) // ALIGNMENT) * ALIGNMENT
    return at


def write(shape: Shape, out: str, n_parts: int, is_random: bool) -> list[str]:
    keys = shape.metadata()
    if n_parts == 1:
        write_part(out, keys, shape.tensors, is_random)
        return [out]
    paths, n = [], len(shape.tensors)
    for i in range(n_parts):
        path = f"{out.removesuffix('.gguf')}-{i + 1:05d}-of-{n_parts:05d}.gguf"
        split = {"split.no": i, "split.count": n_parts, "split.tensors.count": n}
        tensors = shape.tensors[n * i // n_parts:n * (i + 1) // n_parts]
        write_part(path, keys | split if i == 0 else {"general.alignment": ALIGNMENT} | split, tensors,
                   is_random)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, help="fewer tokens than the model has, 257 or more")
    parser.add_argument("--table-rows", type=int, help="fewer rows of a table that stays on disk, 2000 or more")
    parser.add_argument("--experts-type", choices=TYPES, help="default: Q4_K; of gpt-oss-20b MXFP4, which is its own")
    parser.add_argument("--type", choices=TYPES, default="Q6_K", help="of the other matrices")
    parser.add_argument("--random", action="store_true", help="random weights in place of holes")
    options = parser.parse_args()
    shape = Shape(options.shape, options)
    paths = write(shape, options.out, options.parts, options.random)
    size = sum(os.stat(p).st_size for p in paths)
    disk = sum(os.stat(p).st_blocks * 512 for p in paths)
    print(f"{paths[0]}: {size / 1e9:.1f} GB, {disk / 1e6:.1f} MB of them on the disk, "
          f"{len(shape.tensors)} tensors in {len(paths)} file{'s' * (len(paths) > 1)}")


if __name__ == "__main__":
    main()
