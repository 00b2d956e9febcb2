# SPDX-License-Identifier: MIT
"""The table of oracle models with layers that keep a state: the gated delta rule.

The long prompts go past six snapshots of a state (one every 256 positions) and 25 blocks of attention.
"""
import torch
import transformers as hf
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

import family_cases
from family_cases import FamilyCase, TIED, rope

CONTEXT = 2048
PROMPT_LENGTHS = (12, 56, 150)
LONG_LENGTHS = (24, 70, 1600)

DELTA = dict(head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
             shared_expert_intermediate_size=24, linear_conv_kernel_dim=4, linear_key_head_dim=8,
             linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, num_hidden_layers=4)


def layers(*intervals):
    """The layers behind these have attention."""
    types = ["full_attention" if i + 1 in intervals else "linear_attention" for i in range(max(intervals))]
    return dict(layer_types=types, num_hidden_layers=len(types))


FAMILIES = {
    "qwen3_next": (hf.Qwen3NextConfig, hf.Qwen3NextForCausalLM, DELTA | dict(
        intermediate_size=48) | rope(1e7, partial_rotary_factor=0.25)),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, DELTA | rope(
        1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)),
}

CASES = [
    FamilyCase("qwen3next", "qwen3next", "qwen3_next", layers(4), 401),
    FamilyCase("qwen3next-groups", "qwen3next", "qwen3_next", TIED | layers(2) | dict(
        linear_num_key_heads=3, linear_num_value_heads=9, num_attention_heads=6, num_key_value_heads=3,
        rms_norm_eps=1e-6), 402),
    FamilyCase("qwen3next-long", "qwen3next", "qwen3_next", layers(2, 3) | dict(
        linear_key_head_dim=16, linear_value_head_dim=24, linear_num_value_heads=2,
        linear_conv_kernel_dim=3, num_experts=5, num_experts_per_tok=2), 403),
    FamilyCase("qwen35moe", "qwen35moe", "qwen3_5_moe", layers(4), 411, n_nextn=1),
    FamilyCase("qwen35moe-heads", "qwen35moe", "qwen3_5_moe", TIED | layers(2) | dict(
        linear_num_key_heads=3, linear_num_value_heads=9, linear_key_head_dim=4, linear_value_head_dim=4,
        num_experts=9, num_experts_per_tok=2), 412),
    FamilyCase("qwen35moe-long", "qwen35moe", "qwen3_5_moe", layers(3) | dict(
        linear_key_head_dim=20, linear_value_head_dim=20, num_experts=5, num_experts_per_tok=1,
        shared_expert_intermediate_size=8), 413),
]
# In these one tensor holds queries, keys, values and the output's gates, in groups (older files).
IN_GROUPS = ("qwen3next-groups",)
# In these a list says which layers are recurrent.
LISTED = ("qwen3next-long",)


def prompt_lengths(case):
    return LONG_LENGTHS if case.name.endswith("-long") else PROMPT_LENGTHS


def build(case):
    """As family_cases.build(). Norms are stored less 1, and heads forget at very different rates."""
    saved = family_cases.FAMILIES, family_cases.COMMON
    family_cases.FAMILIES = FAMILIES
    family_cases.COMMON = saved[1] | dict(max_position_embeddings=CONTEXT)
    try:
        model = family_cases.build(case)
    finally:
        family_cases.FAMILIES, family_cases.COMMON = saved
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
                weight -= 1.0
            if name.endswith("A_log"):
                weight.copy_((1.0 - 7.0 * torch.rand(weight.shape, generator=generator)).bfloat16().float())
    return model
