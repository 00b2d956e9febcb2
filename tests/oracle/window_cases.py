# SPDX-License-Identifier: MIT
"""The table of oracle models whose layers differ in what they see: windows, chunks, sinks.

Prompts go past the windows and over the border of a KV page (64 positions).
"""
import gguf
import torch
import transformers as hf

import family_cases
from family_cases import FamilyCase, ONE, TIED, WIDE, rope

CONTEXT = 256
PROMPT_LENGTHS = (24, 72, 150)


def yarn(theta, factor, original):
    return rope(theta, rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=original)


FAMILIES = {
    "gpt_oss": (hf.GptOssConfig, hf.GptOssForCausalLM, dict(
        intermediate_size=32, num_local_experts=6, num_experts_per_tok=3, head_dim=16,
        sliding_window=16) | yarn(150000.0, 4.0, 64)),
    "mixtral": (hf.MixtralConfig, hf.MixtralForCausalLM, dict(
        intermediate_size=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=20)
        | rope(1e6)),
    "llama4": (hf.Llama4TextConfig, hf.Llama4ForCausalLM, dict(
        intermediate_size=16, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1,
        head_dim=8, attention_chunk_size=24, floor_scale=16, attn_scale=0.4, num_hidden_layers=4)
        | rope(5e5)),
    "exaone_moe": (hf.ExaoneMoeConfig, hf.ExaoneMoeForCausalLM, dict(
        intermediate_size=48, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=3, head_dim=16,
        sliding_window=16, sliding_window_pattern=2, num_hidden_layers=2) | rope(1e6)),
    "mistral4": family_cases.FAMILIES["mistral4"],
}

CASES = [
    FamilyCase("gpt-oss", "gpt-oss", "gpt_oss", {}, 301),
    FamilyCase("gpt-oss-page", "gpt-oss", "gpt_oss", WIDE | dict(
        sliding_window=70, num_local_experts=5, num_experts_per_tok=2, num_hidden_layers=3)
        | yarn(10000.0, 32.0, 8), 302),
    FamilyCase("gpt-oss-narrow", "gpt-oss", "gpt_oss", dict(
        sliding_window=1, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=1)
        | yarn(150000.0, 8.0, 32), 304),
    FamilyCase("gpt-oss-mxfp4", "gpt-oss", "gpt_oss", dict(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_local_experts=4,
        num_experts_per_tok=2), 305),
    FamilyCase("mixtral-window", "llama", "mixtral", {}, 311),
    FamilyCase("mixtral-window-page", "llama", "mixtral", WIDE | dict(
        sliding_window=64, hidden_size=48), 312),
    FamilyCase("llama4", "llama4", "llama4", {}, 321),
    FamilyCase("llama4-128", "llama4", "llama4", dict(
        num_local_experts=128, interleave_moe_layer_step=2, use_qk_norm=False, hidden_size=16,
        intermediate_size=4, intermediate_size_mlp=24, num_attention_heads=2, num_key_value_heads=1), 322),
    FamilyCase("llama4-page", "llama4", "llama4", WIDE | TIED | dict(
        attention_chunk_size=64, num_experts_per_tok=2, num_hidden_layers=5, hidden_size=24,
        floor_scale=50), 323),
    FamilyCase("llama4-full", "llama4", "llama4", dict(
        no_rope_layers=[1, 1], layer_types=["full_attention"] * 2, num_hidden_layers=2,
        num_local_experts=6, num_experts_per_tok=3), 324),
    FamilyCase("exaone-moe", "exaone-moe", "exaone_moe", {}, 341, n_nextn=1),
    FamilyCase("exaone-moe-page", "exaone-moe", "exaone_moe", WIDE | dict(
        sliding_window=70, sliding_window_pattern=4, num_hidden_layers=4, num_experts=8, n_group=4,
        topk_group=2, hidden_size=24, head_dim=8, intermediate_size=24, moe_intermediate_size=8), 342),
    FamilyCase("exaone-moe-tied", "exaone-moe", "exaone_moe", TIED | dict(
        sliding_window=9, norm_topk_prob=False, routed_scaling_factor=1.25, num_shared_experts=2,
        first_k_dense_replace=0), 343),
    FamilyCase("mistral4-tempered", "mistral4", "mistral4", ONE | rope(
        rope_type="yarn", factor=8.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
        original_max_position_embeddings=32, llama_4_scaling_beta=0.3), 331),
]


# Of these the experts' matrices hold numbers of MXFP4, and are written as such.
MXFP4 = ("gpt-oss-mxfp4",)
# Of these the products are so large that the experts' activation is clamped.
LOUD = ("gpt-oss-page",)


def build(case):
    """As family_cases.build()."""
    saved = family_cases.FAMILIES, family_cases.COMMON
    family_cases.FAMILIES = FAMILIES
    family_cases.COMMON = saved[1] | dict(max_position_embeddings=CONTEXT)
    try:
        model = family_cases.build(case)
    finally:
        family_cases.FAMILIES, family_cases.COMMON = saved
    for name, weight in model.state_dict().items():
        if case.name in LOUD and name.endswith("gate_up_proj"):
            weight *= 8.0
        if case.name in MXFP4 and name.endswith(("gate_up_proj", "down_proj")):
            rows = weight.swapaxes(1, 2).contiguous().numpy()
            kind = gguf.GGMLQuantizationType.MXFP4
            rows = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
            weight.copy_(torch.from_numpy(rows).swapaxes(1, 2))
    return model
