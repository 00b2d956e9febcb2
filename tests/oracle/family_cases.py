# SPDX-License-Identifier: MIT
"""The table of the smaller oracle models, three or more for each family of runtime/families.

They have 96 tokens and 32 columns, and weights that are bfloat16 numbers, so that the files are
small; logits are kept for every position of three prompts.
"""
from dataclasses import dataclass, field

import torch
import transformers as hf
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeTextConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextModel

import bailing_moe

N_VOCAB = 96
CONTEXT = 128


@dataclass
class FamilyCase:
    name: str
    arch: str
    family: str             # key of FAMILIES
    config: dict = field(default_factory=dict)
    seed: int = 1
    joined_qkv: bool = False
    n_nextn: int = 0        # layers behind the others, for drafting, that must be left alone

    @property
    def tied(self):
        return self.config.get("tie_word_embeddings", False)


class TextWithHead(torch.nn.Module):
    """The text part of a model for images, with a head."""
    body = Qwen3VLMoeTextModel

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = self.body(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, use_cache):
        out = self.model(input_ids=input_ids, use_cache=use_cache)
        return hf.modeling_outputs.CausalLMOutput(logits=self.lm_head(out.last_hidden_state))


def rope(theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}


def yarn(factor, **more):
    return rope(rope_type="yarn", factor=factor, beta_fast=32, beta_slow=1,
                original_max_position_embeddings=32, **more)


def linear(factor):
    return rope(rope_type="linear", factor=factor)


COMMON = dict(vocab_size=N_VOCAB, max_position_embeddings=CONTEXT, hidden_size=32, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, pad_token_id=None, bos_token_id=None,
              eos_token_id=None, tie_word_embeddings=False, rms_norm_eps=1e-5)
EXPERTS = dict(intermediate_size=48, moe_intermediate_size=16, num_experts_per_tok=3)
ROUTED = EXPERTS | dict(n_routed_experts=6, n_shared_experts=1, norm_topk_prob=True, num_mtp_layers=0,
                        routed_scaling_factor=1.5, first_k_dense_replace=1)
MLA = ROUTED | dict(num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
                    v_head_dim=16, q_lora_rank=16, n_group=1, topk_group=1)
INDEXED = MLA | dict(index_topk=2048, index_head_dim=16, index_n_heads=2)

FAMILIES = {
    "glm4_moe": (hf.Glm4MoeConfig, hf.Glm4MoeForCausalLM, ROUTED | dict(
        head_dim=16, attention_bias=True) | rope(partial_rotary_factor=0.5)),
    "glm4_moe_lite": (hf.Glm4MoeLiteConfig, hf.Glm4MoeLiteForCausalLM, MLA | rope()),
    "deepseek_v3": (hf.DeepseekV3Config, hf.DeepseekV3ForCausalLM, MLA | rope()),
    "deepseek_v32": (hf.DeepseekV32Config, hf.DeepseekV32ForCausalLM, INDEXED | rope()),
    "glm_moe_dsa": (hf.GlmMoeDsaConfig, hf.GlmMoeDsaForCausalLM, INDEXED | rope()),
    "qwen3_vl_moe": (Qwen3VLMoeTextConfig, TextWithHead, EXPERTS | dict(
        head_dim=16, num_experts=6) | rope(1e6, mrope_section=[4, 2, 2], mrope_interleaved=True)),
    "minimax_m2": (hf.MiniMaxM2Config, hf.MiniMaxM2ForCausalLM, dict(
        intermediate_size=16, num_experts_per_tok=3, num_local_experts=6, head_dim=16)
        | rope(5e6, partial_rotary_factor=0.5)),
    "granitemoe": (hf.GraniteMoeConfig, hf.GraniteMoeForCausalLM, dict(
        intermediate_size=16, num_experts_per_tok=3, num_local_experts=6, embedding_multiplier=6.0,
        residual_multiplier=0.4, attention_multiplier=0.25, logits_scaling=3.0) | rope()),
    "granitemoeshared": (hf.GraniteMoeSharedConfig, hf.GraniteMoeSharedForCausalLM, dict(
        intermediate_size=16, shared_intermediate_size=24, num_experts_per_tok=2, num_local_experts=5,
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1,
        logits_scaling=6.0) | rope()),
    "ernie4_5_moe": (hf.Ernie4_5_MoeConfig, hf.Ernie4_5_MoeForCausalLM, dict(
        intermediate_size=48, moe_intermediate_size=16, moe_k=3, moe_num_experts=6,
        moe_num_shared_experts=2, moe_layer_start_index=1) | rope(5e5)),
    "bailing": (bailing_moe.Config, bailing_moe.BailingMoe, EXPERTS | dict(
        n_routed_experts=6, n_shared_experts=2, norm_topk_prob=True, first_k_dense_replace=0,
        routed_scaling_factor=1.0, head_dim=8, partial_rotary_factor=1.0, rope_theta=6e5)),
    "bailing2": (bailing_moe.Config, bailing_moe.BailingMoe, EXPERTS | dict(
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, first_k_dense_replace=1,
        routed_scaling_factor=2.5, head_dim=16, partial_rotary_factor=0.5, rope_theta=6e5,
        use_qk_norm=True, sigmoid=True, n_group=4, topk_group=2)),
    "dots1": (hf.Dots1Config, hf.Dots1ForCausalLM, ROUTED | dict(
        head_dim=16, n_group=1, topk_group=1) | rope()),
    "mistral4": (hf.Mistral4Config, hf.Mistral4ForCausalLM, MLA | dict(first_k_dense_replace=0)
                 | yarn(4.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
    "hy_v3": (hf.HYV3Config, hf.HYV3ForCausalLM, EXPERTS | dict(
        num_experts=6, num_shared_experts=1, router_scaling_factor=2.8, head_dim=16,
        mlp_layer_types=["dense", "sparse"]) | rope()),
    "hy_v4": (hf.HYV4Config, hf.HYV4ForCausalLM, INDEXED | dict(
        hc_mult=4, hc_magnitude=2.0, hc_eps=1e-6, swiglu_limit=0.6,
        mlp_layer_types=["dense", "sparse"]) | rope()),
    "hunyuan": (hf.HunYuanMoEV1Config, hf.HunYuanMoEV1ForCausalLM, dict(
        intermediate_size=16, num_experts=6, moe_topk=3, head_dim=8) | rope()),
}

ONE = dict(num_hidden_layers=1)
NO_DENSE = ONE | dict(first_k_dense_replace=0)
# Indexers choose among positions; with many heads no two scores are equal.
CHOOSING = dict(index_topk=12, index_n_heads=8, index_head_dim=16)
WIDE = dict(num_attention_heads=6, num_key_value_heads=3)
# Queries are scaled from this position on, if at all.
UNSCALED = yarn(2.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.0)
SCALED = rope(rope_type="yarn", factor=1.25, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
              original_max_position_embeddings=96, llama_4_scaling_beta=0.1)
TIED = dict(tie_word_embeddings=True)

CASES = [
    FamilyCase("glm4moe", "glm4moe", "glm4_moe", dict(use_qk_norm=True), 101, n_nextn=1),
    FamilyCase("glm4moe-plain", "glm4moe", "glm4_moe", NO_DENSE | WIDE | dict(
        attention_bias=False, n_shared_experts=2, routed_scaling_factor=1.0), 102),
    FamilyCase("glm4moe-yarn", "glm4moe", "glm4_moe", NO_DENSE | dict(
        n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=False)
        | yarn(4.0, partial_rotary_factor=0.5), 103, joined_qkv=True),
    FamilyCase("glm47flash", "deepseek2", "glm4_moe_lite", dict(routed_scaling_factor=1.8), 111, n_nextn=1),
    FamilyCase("glm47flash-direct", "deepseek2", "glm4_moe_lite", NO_DENSE | dict(
        q_lora_rank=None, num_attention_heads=5, num_key_value_heads=5, mlp_layer_types=["sparse"]), 112),
    FamilyCase("kimi-k2", "deepseek2", "deepseek_v3", dict(
        n_routed_experts=24, num_experts_per_tok=8, routed_scaling_factor=2.827, first_k_dense_replace=1)
        | yarn(32.0, mscale=1.0, mscale_all_dim=1.0), 113),
    FamilyCase("deepseek32", "deepseek32", "deepseek_v32", dict(
        n_group=3, topk_group=2) | yarn(8.0, mscale=1.0, mscale_all_dim=1.0), 121),
    FamilyCase("deepseek32-plain", "deepseek32", "deepseek_v32", NO_DENSE | dict(
        num_attention_heads=3, num_key_value_heads=3, n_routed_experts=8, num_experts_per_tok=2), 122),
    FamilyCase("deepseek32-nextn", "deepseek32", "deepseek_v32", NO_DENSE | dict(
        n_shared_experts=2, v_head_dim=8), 123, n_nextn=1),
    FamilyCase("deepseek32-sparse", "deepseek32", "deepseek_v32", NO_DENSE | CHOOSING, 124),
    FamilyCase("deepseek32-sparse-yarn", "deepseek32", "deepseek_v32", CHOOSING | dict(
        n_group=3, topk_group=2, index_topk=20) | yarn(8.0, mscale=1.0, mscale_all_dim=1.0), 125),
    FamilyCase("glm-dsa-sparse", "glm-dsa", "glm_moe_dsa", CHOOSING | dict(
        num_hidden_layers=3, first_k_dense_replace=0, index_topk=9,
        indexer_types=["full", "shared", "full"]), 134),
    FamilyCase("glm-dsa", "glm-dsa", "glm_moe_dsa", {}, 131, n_nextn=1),
    FamilyCase("glm-dsa-shared-indexer", "glm-dsa", "glm_moe_dsa", dict(
        num_hidden_layers=2, first_k_dense_replace=0, indexer_types=["full", "shared"]), 132),
    FamilyCase("glm-dsa-heads", "glm-dsa", "glm_moe_dsa", NO_DENSE | dict(
        num_attention_heads=6, num_key_value_heads=6, n_routed_experts=8, qk_nope_head_dim=8), 133),
    FamilyCase("qwen3vlmoe", "qwen3vlmoe", "qwen3_vl_moe", {}, 141),
    FamilyCase("qwen3vlmoe-tied", "qwen3vlmoe", "qwen3_vl_moe", ONE | WIDE | TIED, 142),
    FamilyCase("qwen3vlmoe-top1", "qwen3vlmoe", "qwen3_vl_moe", ONE | dict(
        num_experts=9, num_experts_per_tok=1, moe_intermediate_size=32), 143),
    FamilyCase("minimax-m2", "minimax-m2", "minimax_m2", {}, 151),
    FamilyCase("minimax-m2-heads", "minimax-m2", "minimax_m2", ONE | WIDE | dict(num_local_experts=9), 152),
    FamilyCase("minimax-m2-full", "minimax-m2", "minimax_m2", ONE | dict(
        num_experts_per_tok=2, head_dim=8) | rope(1e4), 153),
    FamilyCase("granitemoe", "granitemoe", "granitemoe", {}, 161),
    FamilyCase("granitemoe-tied", "granitemoe", "granitemoe", ONE | TIED | dict(
        num_local_experts=9, num_experts_per_tok=2, attention_bias=True, embedding_multiplier=3.0,
        logits_scaling=1.25) | linear(2.0), 162),
    FamilyCase("granitemoe-shared", "granitemoe", "granitemoeshared", {}, 163),
    FamilyCase("ernie45moe", "ernie4_5-moe", "ernie4_5_moe", {}, 171),
    FamilyCase("ernie45moe-interval", "ernie4_5-moe", "ernie4_5_moe", dict(
        num_hidden_layers=4, moe_layer_interval=2, moe_num_shared_experts=1), 172),
    FamilyCase("ernie45moe-tied", "ernie4_5-moe", "ernie4_5_moe", ONE | TIED | WIDE | dict(
        moe_num_shared_experts=0, moe_layer_start_index=0, hidden_size=48), 173),
    FamilyCase("bailingmoe", "bailingmoe", "bailing", {}, 181),
    FamilyCase("bailingmoe-plain", "bailingmoe", "bailing", ONE | dict(
        norm_topk_prob=False, n_shared_experts=1, num_experts_per_tok=2), 182),
    FamilyCase("bailingmoe-heads", "bailingmoe", "bailing", ONE | WIDE | dict(head_dim=16), 183),
    FamilyCase("bailingmoe2", "bailingmoe2", "bailing2", {}, 191, joined_qkv=True, n_nextn=1),
    FamilyCase("bailingmoe2-no-groups", "bailingmoe2", "bailing2", NO_DENSE | dict(
        n_group=1, topk_group=1, n_shared_experts=2), 192, joined_qkv=True),
    FamilyCase("bailingmoe2-full", "bailingmoe2", "bailing2", NO_DENSE | WIDE | dict(
        partial_rotary_factor=1.0, n_group=2, topk_group=1), 193),
    FamilyCase("dots1", "dots1", "dots1", {}, 201),
    FamilyCase("dots1-heads", "dots1", "dots1", NO_DENSE | WIDE | dict(norm_topk_prob=False), 202),
    FamilyCase("dots1-wide", "dots1", "dots1", NO_DENSE | dict(
        n_routed_experts=10, num_experts_per_tok=4, n_shared_experts=2) | yarn(4.0), 203),
    FamilyCase("mistral4", "mistral4", "mistral4", UNSCALED, 221),
    FamilyCase("mistral4-direct", "mistral4", "mistral4", ONE | UNSCALED | dict(
        q_lora_rank=None, num_attention_heads=3, num_key_value_heads=3, n_shared_experts=2), 222),
    FamilyCase("mistral4-temperature", "mistral4", "mistral4", ONE | dict(
        n_routed_experts=8, norm_topk_prob=False) | SCALED, 223),
    FamilyCase("hyv3", "hy_v3", "hy_v3", {}, 231, n_nextn=1),
    FamilyCase("hyv3-heads", "hy_v3", "hy_v3", ONE | WIDE | dict(
        mlp_layer_types=["sparse"], num_shared_experts=2), 232),
    FamilyCase("hyv3-tied", "hy_v3", "hy_v3", ONE | TIED | dict(
        mlp_layer_types=["sparse"], num_experts=9, num_experts_per_tok=2), 233, joined_qkv=True),
    FamilyCase("hy_v4", "hy_v4", "hy_v4", {}, 241),
    FamilyCase("hy_v4-sparse", "hy_v4", "hy_v4", CHOOSING | dict(
        num_hidden_layers=3, mlp_layer_types=["sparse"] * 3, index_topk=9, hc_mult=3, hc_magnitude=1.5,
        indexer_types=["full", "shared", "full"]), 242),
    FamilyCase("hy_v4-groups", "hy_v4", "hy_v4", ONE | dict(
        num_attention_heads=6, num_key_value_heads=6, n_group=3, topk_group=2, hc_mult=2, hc_eps=1e-3,
        v_head_dim=8, n_shared_experts=2, mlp_layer_types=["sparse"]), 243),
    FamilyCase("hunyuanmoe", "hunyuan-moe", "hunyuan", {}, 211),
    FamilyCase("hunyuanmoe-heads", "hunyuan-moe", "hunyuan", ONE | WIDE | dict(
        head_dim=16, num_experts=9, moe_topk=2), 212),
    FamilyCase("hunyuanmoe-tied", "hunyuan-moe", "hunyuan", ONE | TIED | dict(moe_topk=1), 213),
]


def gain(name):
    """Standard deviation of a matrix's weights times sqrt(row length)."""
    if "lm_head" in name:
        return 2.5
    if name.endswith(("gate.weight", "router.weight", "gate.wg.weight")):
        return 1.5
    if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "kv_a_proj", "q_a_proj")):
        return 1.5
    if "down_proj" in name or "output_linear" in name:
        return 3.0
    return 1.0


def initialise(model, case):
    """Weights that keep the residual stream near 1, the logits spread and the router decided."""
    generator = torch.Generator().manual_seed(case.seed)
    scale = getattr(model.config, "embedding_multiplier", 1.0)
    with torch.no_grad():
        for name, p in model.state_dict().items():
            drawn = torch.randn(p.shape, generator=generator)
            if name == "lm_head.weight" and case.tied:
                continue
            if "norm" in name and p.ndim == 1 and not name.endswith("bias"):
                drawn = 0.6 + torch.rand(p.shape, generator=generator)
            elif name.endswith(("hc.fn", "hc_head.hc_fn")):
                drawn *= 2.0 / p.shape[-1] ** 0.5
            elif name.endswith(("hc.scale", "hc_head.hc_scale")):
                drawn = 0.6 + torch.rand(p.shape, generator=generator)
            elif "correction_bias" in name:
                drawn *= 0.2
            elif p.ndim == 1:
                drawn *= 0.3
            elif "embed_tokens" in name or "embeddings" in name:
                drawn *= 2.0 / p.shape[-1] ** 0.5 if case.tied else 1.0 / scale
            elif name == "lm_head.weight":
                drawn *= gain(name) / p.shape[-1] ** 0.5 * getattr(model.config, "logits_scaling", 1.0)
            else:
                drawn *= gain(name) / p.shape[-1] ** 0.5
            p.copy_(drawn.bfloat16().float())
    return model


def build(case):
    config_class, model_class, base = FAMILIES[case.family]
    config = config_class(**(COMMON | base | case.config))
    if hasattr(config, "_attn_implementation"):
        config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    if case.tied:
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        model.lm_head.weight = model.model.embed_tokens.weight
    return initialise(model, case)
