# SPDX-License-Identifier: MIT
"""Written by make_layout.py from the headers in moe/. Do not edit."""
import os
from typing import Literal, Optional, SupportsIndex, TypedDict, Union

Integer = SupportsIndex  # also numpy's
Size = Union[SupportsIndex, str]  # bytes, or "6G"
Text = Optional[Union[str, bytes, "os.PathLike[str]"]]


class EngineOptions(TypedDict, total=False):
    """Options that are members of moe_engine_options, which its header describes."""
    device: Text
    n_threads: Integer
    context: Integer
    prefill_chunk: Integer
    panel: Integer
    panel_others: Integer
    kv_cache: Literal["f16", "f32", "q8_0", "q4_0", "f8"]
    float_gemm: Literal["exact", "blas"]
    sessions: Integer
    host_memory: Size
    device_memory: Size
    expert_cache: Size
    expert_cache_share: float
    overcommit_memory: bool
    program_memory: Size
    park_folder: Text
    buffered_io: bool
    io: Literal["auto", "uring", "threads", "sync"]
    io_block_bytes: Size
    io_depth: Integer
    io_timeout: float
    checksums: Text
    idle_checksums: Literal["auto", "on", "off"]
    calibration: Text
    warm_start: Literal["auto", "on", "off"]
    prefetch: Literal["auto", "on", "off"]
    host_compute: Literal["auto", "on", "off"]
    worker_compute: Literal["auto", "on", "off"]
    worker_timeout: float
    experts_only: bool
    speculate: Literal["off", "auto", "ngram", "self", "model", "mtp"]
    draft_model: Text
    draft_max: Integer
    tree_nodes: Integer
    acceptance: Literal["exact", "rejection"]
    lookahead: Integer
    vocabulary_only: bool
    worker_rebalance: Integer
    exact_attention: bool


class Sampling(TypedDict, total=False):
    """Options that are members of moe_sampling, which its header describes."""
    temperature: float
    top_k: Integer
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last: Integer
    seed: Integer
    presence_penalty: float
    frequency_penalty: float


class TraceOptions(TypedDict, total=False):
    """Options that are members of moe_trace_open_options, which its header describes."""
    format: Literal["auto", "jsonl", "oracle_general"]
    n_expert: Integer
    n_layer: Integer


class TraceGenerator(TypedDict, total=False):
    """Options that are members of moe_trace_generator, which its header describes."""
    n_layer: Integer
    n_expert: Integer
    n_expert_used: Integer
    popular: float
    slow: float
    slow_rho: float
    fast: float
    fast_rho: float
    noise: float
    gate_scale: float
    n_sequences: Integer
    n_prompts: Integer
    prompt_rows: Integer
    decode_passes: Integer
    seed: Integer


class Simulation(TypedDict, total=False):
    """Options that are members of moe_simulation, which its header describes."""
    cache_share: float
    n_slots: Integer
    per_layer: bool
    is_sequential: bool
    seed: Integer
    calibration: float
    warm_up: Integer
    prefetch_recall: float
    expert_bytes: Size
    bytes_per_s: float
    latency_s: float
    depth: Integer
    compute_s: float
    lookahead: Integer
    lookahead_stands: float
    lookahead_recall: float
    lookahead_recall_wrong: float
    host_slots: Integer
    tiers: Literal["engine", "inclusive", "exclusive"]
    link_bytes_per_s: float
    link_latency_s: float
