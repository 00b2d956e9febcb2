# SPDX-License-Identifier: MIT
"""The table of oracle models whose layers have other norms, activations, inputs, gates, scales, caps.

Prompts are those of window_cases.py: past windows, and over the border of a KV page.
"""
import math

import torch
import transformers as hf
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

import family_cases
import plain_moe
from family_cases import FamilyCase, ONE, TIED, WIDE, rope

CONTEXT = 256
PROMPT_LENGTHS = (24, 72, 150)
SLIDING, FULL, SPARSE = "sliding_attention", "full_attention", "minimax_m3_sparse"


class Dbrx(hf.DbrxForCausalLM):
    """With the name by which the scripts find the embeddings."""

    @property
    def model(self):
        return type("Body", (), {"embed_tokens": self.transformer.wte})


def dbrx_config(**c):
    attention = dict(kv_n_heads=c["num_key_value_heads"], clip_qkv=c["clip_qkv"], rope_theta=c["rope_theta"])
    experts = dict(ffn_hidden_size=c["intermediate_size"], moe_num_experts=c["num_experts"],
                   moe_top_k=c["num_experts_per_tok"], ffn_act_fn={"name": "silu"})
    return hf.DbrxConfig(d_model=c["hidden_size"], n_heads=c["num_attention_heads"], attn_config=attention,
                         n_layers=c["num_hidden_layers"], max_seq_len=CONTEXT, vocab_size=c["vocab_size"],
                         rope_parameters=dict(rope_type="default", rope_theta=c["rope_theta"]),
                         ffn_config=experts, pad_token_id=None, bos_token_id=None, eos_token_id=None)


def gemma_rope(theta, part, window_theta):
    return {"rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": window_theta},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": theta}}}


def mimo_rope(theta, window_theta, part):
    return {"rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": t, "partial_rotary_factor": part}
        for kind, t in ((FULL, theta), (SLIDING, window_theta))}}


def longrope(factors, original):
    scale = math.sqrt(1 + math.log(CONTEXT / original) / math.log(original)) if original < CONTEXT else 1.0
    return rope(rope_type="longrope", short_factor=factors, long_factor=factors, short_mscale=scale,
                long_mscale=scale, original_max_position_embeddings=original)


class Step35(family_cases.TextWithHead):
    body = Step3p7TextModel


def step_rope(theta, window_theta, **more):
    return {"rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5} | more,
        SLIDING: {"rope_type": "default", "rope_theta": window_theta}}}


def mellum_rope(theta, window_theta, factor):
    yarn = dict(rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0,
                original_max_position_embeddings=64) if factor > 1 else dict(rope_type="default")
    return {"rope_parameters": {FULL: dict(rope_theta=theta) | yarn,
                                SLIDING: {"rope_type": "default", "rope_theta": window_theta}}}


def laguna_rope(theta, part, factor, **more):
    scaled = dict(rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0,
                  original_max_position_embeddings=64) if factor > 1 else dict(rope_type="default")
    return {"rope_parameters": {FULL: dict(rope_theta=theta, partial_rotary_factor=part) | scaled | more,
                                SLIDING: {"rope_type": "default", "rope_theta": 1e4}}}


PLAIN = dict(intermediate_size=16, num_experts=6, num_experts_per_tok=2, head_dim=8, rope_theta=1e4)
FAMILIES = {
    "gemma4": (Gemma4TextConfig, Gemma4ForCausalLM, dict(
        intermediate_size=24, moe_intermediate_size=16, num_experts=6, top_k_experts=2, head_dim=8,
        global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=16,
        num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL], final_logit_softcapping=9.0,
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=96, enable_moe_block=True,
        tie_word_embeddings=True) | gemma_rope(1e6, 0.25, 1e4)),
    "phimoe": (hf.PhimoeConfig, hf.PhimoeForCausalLM, dict(
        intermediate_size=16, num_local_experts=6, attention_bias=True, lm_head_bias=True) | rope()),
    "cohere2": (hf.Cohere2MoeConfig, hf.Cohere2MoeForCausalLM, dict(
        intermediate_size=16, num_experts=6, num_experts_per_tok=2, head_dim=8, num_shared_experts=1,
        num_hidden_layers=4, mlp_layer_types=["dense"] + ["sparse"] * 3, prefix_dense_intermediate_size=48,
        layer_types=[FULL, SLIDING, SLIDING, SLIDING], sliding_window=16, expert_selection_fn="sigmoid",
        logit_scale=0.5, layer_norm_eps=1e-5, rope_theta=5e4) | dict(rms_norm_eps=None)),
    "mimo2": (hf.MiMoV2FlashConfig, hf.MiMoV2FlashForCausalLM, dict(
        intermediate_size=48, moe_intermediate_size=16, n_routed_experts=6, num_experts_per_tok=2,
        head_dim=12, v_head_dim=8, sliding_window=16, num_hidden_layers=3, num_key_value_heads=1,
        layer_types=[FULL, SLIDING, SLIDING]) | mimo_rope(5e6, 1e4, 0.334)),
    "step35": (Step3p7TextConfig, Step35, dict(
        intermediate_size=48, moe_intermediate_size=16, n_routed_experts=6, num_experts_per_tok=2, head_dim=8,
        share_expert_dim=24, sliding_window=16, num_hidden_layers=4, num_sliding_attention_heads=6,
        layer_types=[FULL, SLIDING, SLIDING, FULL], mlp_layer_types=["dense"] + ["sparse"] * 3,
        moe_router_scaling_factor=1.7, pad_token_id=0) | step_rope(5e6, 1e4)),
    "mellum": (hf.MellumConfig, hf.MellumForCausalLM, dict(
        intermediate_size=48, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2, head_dim=8,
        sliding_window=16, num_hidden_layers=4, layer_types=[SLIDING] * 3 + [FULL]) | mellum_rope(5e5, 5e5, 4.0)),
    "afmoe": (hf.AfmoeConfig, hf.AfmoeForCausalLM, dict(
        intermediate_size=48, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2, head_dim=8,
        sliding_window=16, num_hidden_layers=4, mup_enabled=True, num_shared_experts=1, route_scale=1.4)
        | rope(1e4)),
    "dbrx": (dbrx_config, Dbrx, dict(intermediate_size=16, num_experts=6, num_experts_per_tok=2,
                                     clip_qkv=1.5, rope_theta=5e5)),
    "smallthinker": (plain_moe.Config, plain_moe.PlainMoe, PLAIN | dict(
        kind="smallthinker", num_hidden_layers=5, sliding_window=16, rope_theta=1.5e6)),
    "grok": (plain_moe.Config, plain_moe.PlainMoe, PLAIN | dict(
        kind="grok", attention_cap=3.0, router_cap=2.0, embedding_scale=6.0, logit_scale=0.5)),
    "arctic": (plain_moe.Config, plain_moe.PlainMoe, PLAIN | dict(kind="arctic", dense_size=32)),
    "maple": (plain_moe.Config, plain_moe.PlainMoe, PLAIN | dict(
        kind="maple", num_hidden_layers=4, sliding_window=16, layer_types=[SLIDING] * 3 + [FULL], limit=7.0)),
    "laguna": (hf.LagunaConfig, hf.LagunaForCausalLM, dict(
        intermediate_size=48, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=6,
        num_experts_per_tok=2, head_dim=8, sliding_window=16, num_hidden_layers=4,
        num_attention_heads_per_layer=[4, 6, 6, 4], layer_types=[FULL, SLIDING, SLIDING, FULL],
        moe_routed_scaling_factor=1.7) | laguna_rope(5e5, 0.5, 4.0)),
    "granite_swa": (hf.GraniteMoeSWAConfig, hf.GraniteMoeSWAForCausalLM, dict(
        intermediate_size=16, num_experts_per_tok=2, num_local_experts=6, embedding_multiplier=6.0,
        residual_multiplier=0.4, attention_multiplier=0.25, logits_scaling=3.0, sliding_window=16,
        num_hidden_layers=4) | rope()),
    "minimax_m3": (MiniMaxM3VLTextConfig, MiniMaxM3VLForCausalLM, dict(
        intermediate_size=16, dense_intermediate_size=48, shared_intermediate_size=16, num_local_experts=6,
        num_experts_per_tok=2, head_dim=16, index_n_heads=2, index_head_dim=16, index_block_size=16,
        layer_types=[FULL, SPARSE], mlp_layer_types=["dense", "sparse"], routed_scaling_factor=2.0)
        | rope(5e6, partial_rotary_factor=0.5)),
    "flex_olmo": (hf.FlexOlmoConfig, hf.FlexOlmoForCausalLM, dict(
        intermediate_size=16, num_experts=6, num_experts_per_tok=2) | rope(5e5)),
}

LONG = [1.0, 1.5, 2.0, 4.0]
CASES = [
    FamilyCase("gemma4", "gemma4", "gemma4", {}, 401),
    FamilyCase("gemma4-page", "gemma4", "gemma4", WIDE | dict(
        sliding_window=70, attention_k_eq_v=False, num_experts=9, top_k_experts=3, head_dim=12,
        num_hidden_layers=2, layer_types=[SLIDING, FULL]) | gemma_rope(1e4, 1.0, 1e3), 402),
    FamilyCase("gemma4-uncapped", "gemma4", "gemma4", dict(
        num_attention_heads=6, num_key_value_heads=2, num_global_key_value_heads=3, global_head_dim=8,
        final_logit_softcapping=None, sliding_window=1, num_hidden_layers=2, layer_types=[SLIDING, FULL],
        top_k_experts=1, hidden_size=24), 403),
    FamilyCase("phimoe", "phimoe", "phimoe", {}, 411),
    FamilyCase("phimoe-long", "phimoe", "phimoe", longrope(LONG, 64) | dict(num_local_experts=9), 412),
    FamilyCase("phimoe-plain", "phimoe", "phimoe", WIDE | ONE | dict(
        attention_bias=False, lm_head_bias=False, hidden_size=48, num_local_experts=16), 413),
    FamilyCase("cohere2moe", "cohere2moe", "cohere2", TIED, 421),
    FamilyCase("cohere2moe-page", "cohere2moe", "cohere2", WIDE | TIED | dict(
        sliding_window=70, mlp_layer_types=["sparse"] * 2, num_hidden_layers=2, logit_scale=0.125,
        layer_types=[FULL, SLIDING], num_shared_experts=2, norm_topk_prob=False), 422),
    FamilyCase("cohere2moe-rms", "cohere2moe", "cohere2", dict(
        num_shared_experts=0, num_experts=9, num_experts_per_tok=3, rms_norm_eps=1e-5, num_hidden_layers=3,
        mlp_layer_types=["sparse"] * 3, layer_types=[SLIDING, FULL, SLIDING],
        tie_word_embeddings=False), 423),
    FamilyCase("mimo2", "mimo2", "mimo2", {}, 431, n_nextn=1),
    FamilyCase("mimo2-page", "mimo2", "mimo2", dict(
        sliding_window=70, num_attention_heads=6, num_hidden_layers=2, layer_types=[SLIDING, FULL],
        mlp_layer_types=["sparse"] * 2, attention_value_scale=None, head_dim=8) | mimo_rope(1e4, 1e3, 0.5), 432),
    FamilyCase("mimo2-joined", "mimo2", "mimo2", dict(
        n_routed_experts=9, num_experts_per_tok=3, sliding_window=5, num_hidden_layers=2,
        layer_types=[SLIDING, SLIDING], mlp_layer_types=["dense", "sparse"], v_head_dim=12), 433, joined_qkv=True),
    FamilyCase("step35", "step35", "step35", {}, 436, n_nextn=1),
    FamilyCase("step35-page", "step35", "step35", dict(
        sliding_window=70, num_hidden_layers=2, layer_types=[SLIDING, FULL], mlp_layer_types=["sparse"] * 2,
        head_dim=16, num_attention_heads=2, num_sliding_attention_heads=4, num_key_value_heads=1,
        n_routed_experts=9, num_experts_per_tok=3) | step_rope(
            1e5, 1e4, rope_type="llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=32.0,
            original_max_position_embeddings=64), 437),
    FamilyCase("step35-limits", "step35", "step35", dict(
        swiglu_limits=[0.0, 0.2, None], swiglu_limits_shared=[0.1, 0.0, 0.3], num_hidden_layers=3,
        layer_types=[SLIDING, FULL, SLIDING], mlp_layer_types=["dense", "sparse", "sparse"],
        num_sliding_attention_heads=None, moe_router_scaling_factor=1.0, share_expert_dim=16), 438),
    FamilyCase("mellum", "mellum", "mellum", {}, 491),
    FamilyCase("mellum-page", "mellum", "mellum", WIDE | TIED | dict(
        sliding_window=70, num_hidden_layers=2, layer_types=[SLIDING, FULL], num_experts=9,
        num_experts_per_tok=3) | mellum_rope(1e4, 1e3, 1.0), 492),
    FamilyCase("mellum-full", "mellum", "mellum", dict(
        layer_types=[FULL] * 2, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
        num_experts_per_tok=1) | mellum_rope(1e4, 1e4, 8.0), 493),
    FamilyCase("afmoe", "afmoe", "afmoe", {}, 441),
    FamilyCase("afmoe-page", "afmoe", "afmoe", WIDE | TIED | dict(
        sliding_window=70, num_dense_layers=0, num_experts=9, num_experts_per_tok=3), 442),
    FamilyCase("afmoe-shared", "afmoe", "afmoe", dict(
        num_shared_experts=2, num_dense_layers=2, head_dim=16, route_scale=1.0, num_hidden_layers=5), 443),
    FamilyCase("dbrx", "dbrx", "dbrx", {}, 451),
    FamilyCase("dbrx-heads", "dbrx", "dbrx", dict(
        num_attention_heads=6, num_key_value_heads=3, hidden_size=48, num_experts=9, num_experts_per_tok=4,
        clip_qkv=0.6, num_hidden_layers=1), 452),
    FamilyCase("dbrx-wide", "dbrx", "dbrx", dict(
        num_key_value_heads=4, num_experts_per_tok=1, clip_qkv=8.0, rope_theta=1e4), 453),
    FamilyCase("smallthinker", "smallthinker", "smallthinker", {}, 461),
    FamilyCase("smallthinker-page", "smallthinker", "smallthinker", WIDE | TIED | dict(
        sliding_window=70, num_experts=9, num_experts_per_tok=3, num_hidden_layers=2), 462),
    FamilyCase("smallthinker-full", "smallthinker", "smallthinker", dict(
        sliding_window=0, sigmoid=True, head_dim=16, num_hidden_layers=2), 463),
    FamilyCase("grok", "grok", "grok", {}, 471),
    FamilyCase("grok-dense", "grok", "grok", WIDE | dict(
        dense_size=24, logit_cap=4.0, num_experts=9, num_experts_per_tok=3, attention_scale=0.3,
        head_dim=8, num_hidden_layers=1), 472),
    FamilyCase("grok-tied", "grok", "grok", TIED | dict(
        attention_cap=30.0, router_cap=30.0, head_dim=16, embedding_scale=1.0), 473),
    FamilyCase("arctic", "arctic", "arctic", {}, 481),
    FamilyCase("arctic-heads", "arctic", "arctic", WIDE | dict(
        hidden_size=48, dense_size=48, num_experts=9, num_experts_per_tok=1, num_hidden_layers=1), 482),
    FamilyCase("arctic-tied", "arctic", "arctic", TIED | dict(
        num_key_value_heads=4, num_experts=5, num_experts_per_tok=3), 483),
    FamilyCase("maple", "maple", "maple", {}, 501),
    FamilyCase("maple-page", "maple", "maple", WIDE | TIED | dict(
        sliding_window=70, num_experts=9, num_experts_per_tok=3, num_hidden_layers=2,
        layer_types=[FULL, SLIDING], limit=0.4), 502),
    FamilyCase("maple-windows", "maple", "maple", dict(
        sliding_window=5, head_dim=16, num_hidden_layers=2, layer_types=[SLIDING] * 2, limit=1.5,
        num_experts_per_tok=1), 503),
    FamilyCase("laguna", "laguna", "laguna", {}, 511),
    FamilyCase("laguna-page", "laguna", "laguna", dict(
        sliding_window=70, num_hidden_layers=2, layer_types=[SLIDING, FULL], mlp_layer_types=["sparse"] * 2,
        num_attention_heads_per_layer=[6, 2], num_experts=9, num_experts_per_tok=3, moe_routed_scaling_factor=1.0)
        | laguna_rope(1e5, 1.0, 2.0, attention_factor=1.0), 512),
    FamilyCase("laguna-full", "laguna", "laguna", TIED | dict(
        gating="per-element", num_hidden_layers=3, layer_types=[FULL] * 3, num_attention_heads_per_layer=None,
        mlp_layer_types=["dense", "dense", "sparse"], shared_expert_intermediate_size=16, head_dim=16)
        | laguna_rope(1e4, 0.5, 1.0), 513),
    FamilyCase("granite-swa", "granite_swa", "granite_swa", {}, 521),
    FamilyCase("granite-swa-page", "granite_swa", "granite_swa", WIDE | dict(
        sliding_window=70, num_hidden_layers=3, layer_types=[SLIDING, FULL, SLIDING], hidden_size=48,
        layer_rope_theta=[1e4, 0, 1e4], num_local_experts=9, num_experts_per_tok=3), 522),
    FamilyCase("granite-swa-tied", "granite_swa", "granite_swa", TIED | dict(
        sliding_window=3, num_hidden_layers=2, layer_types=[SLIDING] * 2, layer_rope_theta=[0, 1e4],
        num_local_experts=5, logits_scaling=1.25, embedding_multiplier=3.0), 523),
    FamilyCase("minimax-m3", "minimax-m3", "minimax_m3", {}, 531),
    FamilyCase("minimax-m3-heads", "minimax-m3", "minimax_m3", WIDE | dict(
        layer_types=[SPARSE, SPARSE], mlp_layer_types=["sparse"] * 2, num_local_experts=9, index_n_heads=3,
        num_experts_per_tok=3, routed_scaling_factor=1.0), 532),
    FamilyCase("minimax-m3-clamped", "minimax-m3", "minimax_m3", dict(
        head_dim=8, mlp_layer_types=["dense"] * 2 + ["sparse"] * 1, num_hidden_layers=3,
        layer_types=[FULL] * 3) | rope(1e4), 533),   # no indexers, as in older files
    FamilyCase("flex-olmo", "flex_olmo", "flex_olmo", {}, 541),
    FamilyCase("flex-olmo-heads", "flex_olmo", "flex_olmo", WIDE | dict(
        hidden_size=48, num_experts=9, num_experts_per_tok=3, norm_topk_prob=True), 542),
    FamilyCase("flex-olmo-tied", "flex_olmo", "flex_olmo", TIED | dict(
        num_key_value_heads=4, num_experts=5, num_experts_per_tok=4, num_hidden_layers=3) | rope(1e4), 543),
]
# Groups of heads attend to blocks that they choose; make_indexed.py writes these.
BLOCK_CASES = [
    FamilyCase("minimax-m3-blocks", "minimax-m3", "minimax_m3", dict(
        index_block_size=4, index_topk_blocks=3, num_hidden_layers=3, layer_types=[FULL, SPARSE, SPARSE],
        mlp_layer_types=["dense"] + ["sparse"] * 2), 534),
    FamilyCase("minimax-m3-sparse", "minimax-m3", "minimax_m3", WIDE | dict(
        index_block_size=5, index_topk_blocks=4, index_local_blocks=2, index_n_heads=3, index_head_dim=24,
        layer_types=[SPARSE, SPARSE], mlp_layer_types=["sparse"] * 2, num_local_experts=9, num_experts_per_tok=3), 535),
    FamilyCase("minimax-m3-long", "minimax-m3", "minimax_m3", dict(
        num_attention_heads=8, num_key_value_heads=4, head_dim=8, index_block_size=16, index_topk_blocks=6,
        max_position_embeddings=2048) | rope(1e5, partial_rotary_factor=0.5), 536),
]
LOUD = ("maple", "minimax-m3-clamped")   # experts' products reach the limit of 7


def adjust(model, case):
    """What family_cases.initialise() does not know: factors near 1, and matrices by other names."""
    generator = torch.Generator().manual_seed(case.seed + 1000)
    with torch.no_grad():
        for name, p in model.state_dict().items():
            drawn = torch.rand(p.shape, generator=generator)
            if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
                p.copy_((0.6 + 0.8 * drawn).bfloat16().float())
                if name.endswith("router.scale"):
                    p.mul_(8.0)   # its input is divided by the root of the columns
            elif name.endswith("expert_bias"):
                p.copy_((0.4 * drawn - 0.2).bfloat16().float())
            elif name.endswith(("mlp.w2", "Wqkv.weight")):
                p.mul_(2.0)
            elif case.name in LOUD and ("gate_up" in name or "up_proj" in name):
                p.mul_(5.0)
            elif case.name in LOUD and "down_proj" in name:
                p.mul_(0.1)
            elif case.arch == "phimoe" and name.endswith("router.weight"):
                p.mul_(3.0)       # so that the best experts are seldom near each other
    return model


def build(case):
    """As family_cases.build()."""
    saved = family_cases.FAMILIES, family_cases.COMMON
    family_cases.FAMILIES = FAMILIES
    family_cases.COMMON = saved[1] | dict(max_position_embeddings=CONTEXT)
    try:
        if FAMILIES[case.family][2].get("tie_word_embeddings"):
            case.config.setdefault("tie_word_embeddings", True)
        model = family_cases.build(case)
    finally:
        family_cases.FAMILIES, family_cases.COMMON = saved
    return adjust(model, case)
