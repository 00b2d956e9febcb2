# SPDX-License-Identifier: MIT
"""The table of oracle models with compressed keys beside a window (DeepSeek-V4).

One letter for each layer: W has the window alone, C keys of 4 positions and an indexer, H keys of 128. The
long prompts end several keys of 128 positions.
"""
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

import family_cases
from family_cases import N_VOCAB, FamilyCase
from recurrent_cases import CONTEXT

KINDS = {"W": "sliding_attention", "C": "compressed_sparse_attention", "H": "heavily_compressed_attention"}
YARN = dict(rope_parameters=dict(rope_type="yarn", factor=8.0, beta_fast=32, beta_slow=1,
                                 original_max_position_embeddings=32))


def layers(text, n_hash):
    return dict(layer_types=[KINDS[letter] for letter in text], num_hidden_layers=len(text),
                mlp_layer_types=["hash_moe" if i < n_hash else "moe" for i in range(len(text))])


class Model(DeepseekV4ForCausalLM):
    """Takes and returns its cache by the name that other models have for it."""

    def forward(self, input_ids, use_cache, past_key_values=None):
        out = super().forward(input_ids=input_ids, use_cache=use_cache, cache=past_key_values)
        return CausalLMOutputWithPast(logits=out.logits, past_key_values=out.cache)


DEEPSEEK = dict(
    num_key_value_heads=1, head_dim=16, partial_rotary_factor=0.5, q_lora_rank=16, o_groups=2, o_lora_rank=8,
    moe_intermediate_size=16, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=1,
    routed_scaling_factor=1.5, swiglu_limit=0.6, sliding_window=16, index_n_heads=8, index_head_dim=16,
    index_topk=6, hc_mult=4, rms_norm_eps=1e-6)
FAMILIES = {"deepseek_v4": (DeepseekV4Config, Model, DEEPSEEK)}

CASES = [
    FamilyCase("deepseek4", "deepseek4", "deepseek_v4", layers("WCH", 1), 601),
    FamilyCase("deepseek4-yarn", "deepseek4", "deepseek_v4", layers("CC", 2) | YARN | dict(
        num_attention_heads=8, head_dim=24, partial_rotary_factor=1 / 3, o_groups=4, sliding_window=5, hc_mult=3,
        hc_sinkhorn_iters=3, hc_eps=1e-3, n_routed_experts=9, num_experts_per_tok=2, index_n_heads=9,
        index_topk=5), 602, n_nextn=1),
    FamilyCase("deepseek4-long", "deepseek4", "deepseek_v4", layers("HCWC", 1) | YARN | dict(
        n_routed_experts=5, num_experts_per_tok=2, sliding_window=40, index_topk=24), 603),
]


def build(case):
    saved = family_cases.FAMILIES, family_cases.COMMON
    family_cases.FAMILIES = FAMILIES
    family_cases.COMMON = saved[1] | dict(max_position_embeddings=CONTEXT)
    try:
        model = family_cases.build(case)
    finally:
        family_cases.FAMILIES, family_cases.COMMON = saved
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, table in model.state_dict().items():
            if name.endswith("tid2eid"):    # different experts for each token
                n = model.config.n_routed_experts
                order = torch.rand(N_VOCAB, n, generator=generator).argsort(dim=1)
                table.copy_(order[:, :table.shape[1]])
    return model
