# SPDX-License-Identifier: MIT
"""The table of oracle models with other recurrent layers: short convolutions, state spaces (Mamba-2),
selective scans (Mamba-1), and delta rules with a decay for each channel.

As in recurrent_cases.py the long prompts go past six snapshots of a state.
"""
import torch
import transformers as hf
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

import family_cases
from family_cases import FamilyCase, TIED, rope
from recurrent_cases import CONTEXT

EXPERTS = dict(moe_intermediate_size=16, intermediate_size=48, num_experts=6, num_experts_per_tok=3)


def kinds(text, **names):
    """One letter for each layer."""
    return dict(layer_types=[names[letter] for letter in text], num_hidden_layers=len(text))


def conv(text):
    return kinds(text, C="conv", A="full_attention")


def space(text):
    return kinds(text, M="linear_attention", A="full_attention")


GRANITE = dict(
    intermediate_size=16, shared_intermediate_size=24, num_local_experts=6, num_experts_per_tok=3,
    embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.25, logits_scaling=3.0,
    mamba_n_heads=8, mamba_d_head="auto", mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=64)

def kimi(text, dense=1):
    return kinds(text, K="linear_attention", A="full_attention") | dict(
        mlp_layer_types=["dense" if i < dense else "sparse" for i in range(len(text))])


KIMI = dict(
    intermediate_size=48, moe_intermediate_size=16, num_local_experts=6, num_experts_per_tok=3, n_shared_experts=1,
    routed_scaling_factor=1.5, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
    num_key_value_heads=4, linear_head_dim=8, linear_num_heads=4, linear_conv_kernel_dim=4, rms_norm_eps=1e-6)


LING = dict(
    intermediate_size=48, moe_intermediate_size=16, num_local_experts=6, num_experts_per_tok=3, n_shared_experts=1,
    n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8,
    v_head_dim=16, num_key_value_heads=4, head_dim=8, rms_norm_eps=1e-6, rope_theta=1e4)


class GlmText(family_cases.TextWithHead):
    """The text part of GLM-5.3-Flash, with a head."""
    body = Glm5NextTextModel

    def forward(self, input_ids, use_cache, past_key_values=None):
        out = self.model(input_ids=input_ids, use_cache=use_cache, cache=past_key_values)
        return hf.modeling_outputs.CausalLMOutputWithPast(
            logits=self.lm_head(out.last_hidden_state), past_key_values=getattr(out, "cache", None))


GLM = dict(
    intermediate_size=48, moe_intermediate_size=16, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=1,
    norm_topk_prob=True, routed_scaling_factor=1.5, n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=16,
    qk_nope_head_dim=16, qk_rope_head_dim=0, v_head_dim=16, num_key_value_heads=4, linear_head_dim=8,
    linear_num_heads=4, linear_conv_kernel_dim=4, index_head_dim=16, index_n_heads=6, index_topk=8, index_kpool=4,
    swiglu_limit=0.6, hc_mult=4)


def parts(text):
    names = dict(M="linear_attention", A="full_attention", E="moe")
    return dict(layers_block_type=[names[letter] for letter in text])


# The time step's limits say what the released models do: they have none.
NEMOTRON = dict(
    head_dim=16, intermediate_size=16, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24,
    n_routed_experts=6, num_experts_per_tok=3, routed_scaling_factor=2.5, norm_topk_prob=True, n_group=1,
    topk_group=1, mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=16, n_groups=2, conv_kernel=4,
    chunk_size=64, layer_norm_epsilon=1e-5, rescale_prenorm_residual=False,
    time_step_min=1e-30, time_step_limit=(0.0, float("inf")), num_hidden_layers=None)

def jamba(period, offset, experts, layers):
    """Attention and experts every so many layers, from an offset on."""
    return dict(attn_layer_period=period, attn_layer_offset=offset, expert_layer_period=experts[0],
                expert_layer_offset=experts[1], num_hidden_layers=layers)


JAMBA = dict(intermediate_size=24, num_experts=6, num_experts_per_tok=2, mamba_d_state=16, mamba_d_conv=4,
             mamba_expand=2, mamba_dt_rank=4)

FAMILIES = {
    "jamba": (hf.JambaConfig, hf.JambaForCausalLM, JAMBA),
    "nemotron_h": (hf.NemotronHConfig, hf.NemotronHForCausalLM, NEMOTRON),
    "kimi_linear": (hf.KimiLinearConfig, hf.KimiLinearForCausalLM, KIMI),
    "bailing_hybrid": (hf.BailingHybridConfig, hf.BailingHybridForCausalLM, LING),
    "glm5_next": (Glm5NextTextConfig, GlmText, GLM),
    "granitemoehybrid": (hf.GraniteMoeHybridConfig, hf.GraniteMoeHybridForCausalLM, GRANITE | rope()),
    "lfm2_moe": (hf.Lfm2MoeConfig, hf.Lfm2MoeForCausalLM, EXPERTS | dict(
        num_dense_layers=1, conv_L_cache=3, norm_eps=1e-5, tie_embedding=False) | rope(1e6)),
}

CASES = [
    FamilyCase("kimi-linear", "kimi-linear", "kimi_linear", kimi("KKA"), 521),
    FamilyCase("kimi-linear-wide", "kimi-linear", "kimi_linear", kimi("AK") | dict(
        num_attention_heads=2, num_key_value_heads=2, linear_num_heads=2, linear_head_dim=20,
        linear_conv_kernel_dim=3, n_shared_experts=2, num_local_experts=9, num_experts_per_tok=2,
        routed_scaling_factor=2.446), 522),
    FamilyCase("kimi-linear-long", "kimi-linear", "kimi_linear", kimi("KAK") | dict(
        linear_head_dim=12, num_local_experts=5, num_experts_per_tok=1, routed_scaling_factor=1.0), 523),
    FamilyCase("bailingmoe3", "bailingmoe3", "bailing_hybrid", kimi("KKA"), 551),
    FamilyCase("bailingmoe3-groups", "bailingmoe3", "bailing_hybrid", kimi("AK", 0) | dict(
        num_attention_heads=2, num_key_value_heads=2, head_dim=20, short_conv_kernel_size=3, q_lora_rank=16,
        n_shared_experts=2, num_local_experts=8, n_group=4, topk_group=2, kda_lower_bound=-1.5,
        routed_scaling_factor=1.0), 552),
    FamilyCase("bailingmoe3-long", "bailingmoe3", "bailing_hybrid", kimi("KAK") | dict(
        head_dim=12, num_local_experts=5, num_experts_per_tok=1, kda_lower_bound=-8.0), 553),
    FamilyCase("glm5-next", "glm5-next", "glm5_next", kimi("KKA"), 561),
    FamilyCase("glm5next", "glm5next", "glm5_next", kimi("AKA", 0) | dict(
        num_attention_heads=2, num_key_value_heads=2, linear_num_heads=2, linear_head_dim=20,
        linear_conv_kernel_dim=3, linear_lower_bound=-1.5, n_shared_experts=2, n_routed_experts=8, n_group=4,
        topk_group=2, hc_mult=3, hc_sinkhorn_iters=3, hc_eps=1e-3, index_kpool=3, index_topk=12,
        v_head_dim=8), 562),
    FamilyCase("granitehybrid", "granitehybrid", "granitemoehybrid", space("MMAM"), 511),
    FamilyCase("granitehybrid-rope", "granitehybrid", "granitemoehybrid", TIED | space("AMM") | dict(
        position_embedding_type="rope", mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=20, mamba_d_conv=3,
        mamba_conv_bias=False, num_local_experts=5, num_experts_per_tok=2, embedding_multiplier=1.0,
        residual_multiplier=1.0, logits_scaling=0.5), 512),
    FamilyCase("granitehybrid-long", "granitehybrid", "granitemoehybrid", space("MAMA") | dict(
        mamba_n_heads=6, mamba_n_groups=3, mamba_expand=3, mamba_d_state=12, num_local_experts=5,
        num_experts_per_tok=1, num_attention_heads=8, num_key_value_heads=1), 513),
    FamilyCase("nemotron_h_moe", "nemotron_h_moe", "nemotron_h", parts("MEMAE"), 531),
    FamilyCase("nemotron_h_moe-latent", "nemotron_h_moe", "nemotron_h", parts("MAEME") | dict(
        moe_latent_size=12, mamba_num_heads=4, mamba_head_dim=12, n_groups=1, use_conv_bias=False,
        num_key_value_heads=1, n_routed_experts=9, num_experts_per_tok=2, routed_scaling_factor=1.0), 532),
    FamilyCase("nemotron_h_moe-long", "nemotron_h_moe", "nemotron_h", parts("EMMAEM") | dict(
        mamba_num_heads=6, n_groups=3, ssm_state_size=12, conv_kernel=3, n_routed_experts=8,
        num_experts_per_tok=2, n_group=4, topk_group=2, head_dim=8), 533),
    FamilyCase("jamba", "jamba", "jamba", jamba(4, 2, (2, 1), 4), 541),
    FamilyCase("jamba-tied", "jamba", "jamba", TIED | jamba(3, 0, (3, 2), 3) | dict(
        mamba_expand=3, mamba_d_state=10, mamba_d_conv=3, mamba_conv_bias=False, mamba_dt_rank=5,
        num_attention_heads=8, num_key_value_heads=1, num_experts=9, num_experts_per_tok=3, rms_norm_eps=1e-6), 542),
    FamilyCase("jamba-long", "jamba", "jamba", jamba(3, 1, (2, 0), 4) | dict(
        mamba_d_state=20, mamba_dt_rank=2, num_experts=5, num_experts_per_tok=1), 543),
    FamilyCase("lfm2moe", "lfm2moe", "lfm2_moe", conv("CCAC"), 501),
    FamilyCase("lfm2moe-tied", "lfm2moe", "lfm2_moe", TIED | conv("ACC") | dict(
        tie_embedding=True, conv_L_cache=5, num_dense_layers=2, num_attention_heads=8, num_key_value_heads=1,
        num_experts=9, num_experts_per_tok=2, routed_scaling_factor=1.5), 502),
    FamilyCase("lfm2moe-long", "lfm2moe", "lfm2_moe", conv("CACCA") | dict(
        num_dense_layers=1, conv_L_cache=4, num_experts=5, num_experts_per_tok=1, norm_eps=1e-6), 503),
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
        for name, weight in model.state_dict().items():
            if name.endswith("A_log"):  # heads forget at very different rates
                weight.copy_((1.0 - 7.0 * torch.rand(weight.shape, generator=generator)).bfloat16().float())
    return model
