# SPDX-License-Identifier: MIT
"""The table of oracle models: family, dimensions, what each one is there to catch."""
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import transformers as hf

from deepseek_moe import DeepseekMoe

N_VOCAB = 288
CONTEXT = 256


@dataclass
class Case:
    name: str
    arch: str
    family: str             # key of FAMILIES
    config: dict = field(default_factory=dict)
    seed: int = 1
    tied: bool = False
    expert_layout: str = "stacked"      # or per-expert, fused
    mla_layout: str = "split"           # or joined
    gating: str = "softmax"             # or sigmoid


def yarn(factor, mscale=None):
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": factor, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 64}
    if mscale is not None:
        rope |= {"mscale": mscale, "mscale_all_dim": mscale}
    return rope


def plain(theta):
    return {"rope_type": "default", "rope_theta": theta}


COMMON = dict(vocab_size=N_VOCAB, max_position_embeddings=CONTEXT, hidden_size=64, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, pad_token_id=None, bos_token_id=None,
              eos_token_id=None)
EXPERTS_8 = dict(moe_intermediate_size=32, num_experts_per_tok=3)
MLA = dict(num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16,
           v_head_dim=32, rms_norm_eps=1e-6, intermediate_size=96, first_k_dense_replace=1)

FAMILIES = {
    "mixtral": (hf.MixtralConfig, hf.MixtralForCausalLM, dict(
        intermediate_size=32, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5,
        rope_parameters=plain(1e6))),
    "olmoe": (hf.OlmoeConfig, hf.OlmoeForCausalLM, dict(
        num_key_value_heads=4, intermediate_size=32, num_experts=8, num_experts_per_tok=3,
        rms_norm_eps=1e-5, rope_parameters=plain(10000.0))),
    "qwen2_moe": (hf.Qwen2MoeConfig, hf.Qwen2MoeForCausalLM, dict(
        intermediate_size=96, shared_expert_intermediate_size=64, num_experts=8, norm_topk_prob=False,
        rms_norm_eps=1e-6, rope_parameters=plain(1e6), **EXPERTS_8)),
    "qwen3_moe": (hf.Qwen3MoeConfig, hf.Qwen3MoeForCausalLM, dict(
        intermediate_size=96, head_dim=32, num_experts=8, norm_topk_prob=True, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters=plain(1e6), **EXPERTS_8)),
    "deepseek": (SimpleNamespace, DeepseekMoe, dict(
        intermediate_size=96, n_routed_experts=8, n_shared_experts=2,
        first_k_dense_replace=1, rms_norm_eps=1e-6, routed_scaling_factor=1.5, rope_theta=10000.0,
        rope_parameters=plain(10000.0), **EXPERTS_8)),
    "deepseek_v2": (hf.DeepseekV2Config, hf.DeepseekV2ForCausalLM, dict(
        n_shared_experts=2, moe_intermediate_size=32, topk_method="greedy", **MLA)),
    "deepseek_v3": (hf.DeepseekV3Config, hf.DeepseekV3ForCausalLM, dict(
        n_shared_experts=1, moe_intermediate_size=32, num_mtp_layers=0, **MLA)),
}

ONE_LAYER = dict(num_hidden_layers=1)
NO_DENSE = ONE_LAYER | dict(first_k_dense_replace=0)
LITE = dict(q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3, routed_scaling_factor=1.5,
            rope_parameters=yarn(4.0, 0.707))
GROUPS = dict(q_lora_rank=32, n_routed_experts=12, num_experts_per_tok=4, n_group=4, topk_group=2)
V3 = dict(routed_scaling_factor=2.5, norm_topk_prob=True)

# The variants of a family have one layer, to keep the folder small.
CASES = [
    Case("mixtral", "llama", "mixtral", seed=11),
    Case("mixtral-per-expert", "llama", "mixtral", ONE_LAYER, seed=12, expert_layout="per-expert"),
    Case("olmoe", "olmoe", "olmoe", seed=21),
    Case("olmoe-clip", "olmoe", "olmoe", ONE_LAYER | dict(clip_qkv=1.25), seed=22),
    Case("olmoe-norm", "olmoe", "olmoe", ONE_LAYER | dict(norm_topk_prob=True), seed=23),
    Case("qwen2moe", "qwen2moe", "qwen2_moe", seed=31),
    Case("qwen2moe-tied", "qwen2moe", "qwen2_moe", ONE_LAYER | dict(tie_word_embeddings=True), seed=32,
         tied=True),
    Case("qwen3moe", "qwen3moe", "qwen3_moe", seed=41, tied=True),
    Case("qwen3moe-yarn", "qwen3moe", "qwen3_moe", ONE_LAYER | dict(rope_parameters=yarn(4.0)), seed=42,
         tied=True),
    Case("deepseek", "deepseek", "deepseek", seed=51),
    Case("deepseek2-lite", "deepseek2", "deepseek_v2", LITE, seed=61),
    Case("deepseek2-lite-joined", "deepseek2", "deepseek_v2", LITE | NO_DENSE, seed=62,
         mla_layout="joined"),
    Case("deepseek2-v2", "deepseek2", "deepseek_v2",
         GROUPS | dict(routed_scaling_factor=2.0, topk_method="group_limited_greedy",
                       rope_parameters=yarn(40.0, 0.707)), seed=71),
    Case("deepseek2-v3", "deepseek2", "deepseek_v3", GROUPS | V3 | dict(rope_parameters=yarn(8.0, 1.0)),
         seed=81, gating="sigmoid"),
    Case("deepseek2-v3-fused", "deepseek2", "deepseek_v3",
         GROUPS | V3 | NO_DENSE | dict(n_routed_experts=8, num_experts_per_tok=3,
                                       rope_parameters=plain(10000.0)),
         seed=82, gating="sigmoid", expert_layout="fused"),
]

# Rows of 256 where the type asks for them; the others are smaller and have more experts instead.
Q8_SIZE = ONE_LAYER | dict(hidden_size=128)
Q4_SIZE = ONE_LAYER | dict(hidden_size=256, num_experts_per_tok=2, num_experts=4, intermediate_size=256)
QUANTISED = [
    Case("olmoe-q8_0", "olmoe", "olmoe", Q8_SIZE | dict(intermediate_size=64), seed=91),
    Case("qwen3moe-q8_0", "qwen3moe", "qwen3_moe", Q8_SIZE | dict(head_dim=64, moe_intermediate_size=64),
         seed=92, tied=True),
    Case("olmoe-q4_k", "olmoe", "olmoe", Q4_SIZE, seed=93),
    Case("qwen3moe-q4_k", "qwen3moe", "qwen3_moe",
         Q4_SIZE | dict(head_dim=64, moe_intermediate_size=256), seed=94, tied=True),
]


def gain(name):
    """Standard deviation of a matrix's weights times sqrt(row length)."""
    if "lm_head" in name:
        return 2.5
    if name.endswith("mlp.gate.weight") or "shared_expert_gate" in name:
        return 1.5
    if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "kv_a_proj", "q_a_proj")):
        return 1.5
    if "down_proj" in name:
        return 3.0
    return 1.0


def initialise(model, case):
    """Weights that keep the residual stream near 1, the logits spread and the router decided."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(tensor, std):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    with torch.no_grad():
        for name, p in model.state_dict().items():
            if name == "lm_head.weight" and case.tied:
                continue
            if "norm" in name:
                low = 0.75 if "q_norm" in name or "k_norm" in name else 0.5
                p.copy_(low + torch.rand(p.shape, generator=generator))
            elif "e_score_correction_bias" in name:
                normal(p, 0.2)
            elif p.ndim == 1:
                normal(p, 0.3)
            elif "embed_tokens" in name:
                normal(p, 2.0 / p.shape[-1] ** 0.5 if case.tied else 1.0)
            else:
                normal(p, gain(name) / p.shape[-1] ** 0.5)
    return model


def build(case):
    config_class, model_class, base = FAMILIES[case.family]
    config = config_class(**(COMMON | base | case.config))
    if hasattr(config, "_attn_implementation"):
        config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    if getattr(config, "tie_word_embeddings", False) and hasattr(model, "tie_weights"):
        model.tie_weights()
    return initialise(model, case)
