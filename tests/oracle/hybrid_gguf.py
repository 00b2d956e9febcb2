# SPDX-License-Identifier: MIT
"""Writes the models of hybrid_cases.py as GGUF under llama.cpp's names and conventions.

The list of heads of keys has a 0 for each layer with a state.
"""
import re

import gguf
import numpy as np

import family_gguf
from oracle_gguf import expert_tensors

OF_CHANNELS = ("kimi-linear", "bailingmoe3", "glm5-next", "glm5next")
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    "feed_forward.gate": "ffn_gate_inp", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up", "model.norm.weight": "output_norm.weight",
    "self_attn.b_proj": "ssm_beta", "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b",
    "self_attn.forget_gate.f_a_proj": "ssm_f_a", "self_attn.forget_gate.f_b_proj": "ssm_f_b",
    "self_attn.o_norm": "ssm_norm", "self_attn.forget_gate.f_proj": "ssm_f_a",
    "model.embeddings.weight": "token_embd.weight", "model.norm_f.weight": "output_norm.weight",
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.out_proj": "ssm_out",
    "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output",
    "mixer.gate": "ffn_gate_inp", "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "model.final_layernorm.weight": "output_norm.weight", "input_layernorm": "attn_norm",
    "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp", "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down", "mamba.x_proj": "ssm_x",
    "mamba.dt_proj": "ssm_dt", "mamba.dt_layernorm": "ssm_dt_norm", "mamba.b_layernorm": "ssm_b_norm",
    "mamba.c_layernorm": "ssm_c_norm",
    "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.out_proj": "ssm_out",
}


def state_tensors(name, weight, case, c):
    if name == "A_log":
        return {"ssm_a": -np.exp(weight).reshape(-1, 1)}
    if name == "D":
        return {"ssm_d": weight.reshape(-1, 1)}
    if name == "dt_bias":
        return {"ssm_dt.bias": weight}
    if name == "norm.weight":
        return {"ssm_norm.weight": weight.reshape(getattr(c, "mamba_n_groups", None) or c.n_groups, -1)}
    return None


def scan_tensors(name, weight):
    """Mamba-1: decays of each channel's states."""
    return {"A_log": {"ssm_a": -np.exp(weight)}, "D": {"ssm_d": weight}}.get(name)


def channel_tensors(name, weight, arch):
    if name == "forget_gate.A_log":
        rates = (1 if arch == "bailingmoe3" else -1) * np.exp(weight)
        return {"ssm_a": rates if arch in ("glm5-next", "glm5next") else rates.reshape(1, 1, -1, 1)}
    if name == "forget_gate.dt_bias":
        return {"ssm_dt.bias": weight}
    if name == "conv1d.weight":
        parts = np.split(weight.squeeze(1), 3)
        return {f"ssm_conv1d_{part}.weight": w.reshape(1, len(w), 1, -1) for part, w in zip("qkv", parts)}
    return None


def layer_tensors(name, weight, case, c):
    if name == "self_attn.g_proj.weight":   # of delta rules, or for each head of attention
        return {"attn_gate.weight" if len(weight) == c.num_attention_heads else "ssm_g_a.weight": weight}
    if name.startswith("mixer.experts."):
        return {f"ffn_{name.split('.')[-1].removesuffix('_proj')}_exps.weight": weight}
    if ".experts." in name:
        return expert_tensors(name, weight, "stacked")
    if name.endswith(("expert_bias", "correction_bias")):
        return {"exp_probs_b.bias": weight}
    if name.startswith(("mamba.", "mixer.")):
        own = name.split(".", 1)[1]
        single = scan_tensors(own, weight) if case.arch == "jamba" else state_tensors(own, weight, case, c)
        if single:
            return single
    if ".index_kpool_compress_" in name:
        older = case.arch == "glm5next"
        return {f"{'indexer_compressor' if older else 'indexer.kpool'}_{name.rsplit('_', 1)[1]}.weight": weight}
    if case.arch in OF_CHANNELS and name.startswith("self_attn."):
        single = channel_tensors(name.removeprefix("self_attn."), weight, case.arch)
        if single:
            return single
    stem, kind = name.rsplit(".", 1)
    if stem in ("conv.conv", "mamba.conv1d", "mixer.conv1d") and kind == "weight":
        weight = weight.squeeze(1)
    if stem in NAMES:
        return {f"{NAMES[stem]}.{kind}": weight}
    return family_gguf.layer_tensors(name, weight, case, c)


def tensors(model, case):
    out = {}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        if name in NAMES:
            if not (name == "lm_head.weight" and case.tied):
                out[NAMES[name]] = weight
            continue
        index, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
        for new, part in layer_tensors(rest, weight, case, model.config).items():
            out[f"blk.{index}.{new}"] = part
    return out


def add_lfm2(writer, c, case):
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_shortconv_l_cache(c.conv_L_cache)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_leading_dense_block_count(c.num_dense_layers)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if c.routed_scaling_factor != 1.0:
        writer.add_expert_weights_scale(c.routed_scaling_factor)
    family_gguf.add_rope(writer, c.rope_parameters, False)


def add_granite(writer, c, case):
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_embedding_scale(c.embedding_multiplier)
    writer.add_residual_scale(c.residual_multiplier)
    writer.add_attention_scale(c.attention_multiplier)
    writer.add_logit_scale(c.logits_scaling)
    writer.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    writer.add_ssm_conv_kernel(c.mamba_d_conv)
    writer.add_ssm_state_size(c.mamba_d_state)
    writer.add_ssm_group_count(c.mamba_n_groups)
    writer.add_ssm_inner_size(c.mamba_n_heads * c.mamba_d_head)
    writer.add_ssm_time_step_rank(c.mamba_n_heads)
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_rope_scaling_finetuned(c.position_embedding_type == "rope")
    family_gguf.add_rope(writer, c.rope_parameters, False)


def add_kimi(writer, c, case):
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_kda_head_dim(c.linear_head_dim)
    writer.add_kv_lora_rank(c.kv_lora_rank)
    writer.add_rope_dimension_count(c.qk_rope_head_dim)
    writer.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
    writer.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
    writer.add_value_length_mla(c.v_head_dim)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_leading_dense_block_count(c.mlp_layer_types.count("dense"))
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_ling(writer, c, case):
    add_kimi(writer, c, case)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_bool("bailingmoe3.kda.safe_gate", True)
    writer.add_float32("bailingmoe3.kda.gate_lower_bound", c.kda_lower_bound)
    if c.q_lora_rank:
        writer.add_q_lora_rank(c.q_lora_rank)
    writer.add_expert_shared_feed_forward_length(c.moe_intermediate_size * c.n_shared_experts)
    writer.add_expert_weights_norm(c.norm_topk_prob)
    if c.n_group > 1:
        writer.add_expert_group_count(c.n_group)
        writer.add_expert_group_used_count(c.topk_group)


def add_glm(writer, c, case):
    add_kimi(writer, c, case)
    writer.add_q_lora_rank(c.q_lora_rank)
    writer.add_float32(f"{case.arch}.kda.gate_lower_bound", c.linear_lower_bound)
    writer.add_expert_weights_norm(c.norm_topk_prob)
    if c.n_group > 1:
        writer.add_expert_group_count(c.n_group)
        writer.add_expert_group_used_count(c.topk_group)
    writer.add_swiglu_clamp_exp([c.swiglu_limit] * c.num_hidden_layers)
    if case.arch == "glm5-next":    # these keys are in its files alone
        writer.add_swiglu_clamp_shexp([c.swiglu_limit] * c.num_hidden_layers)
        writer.add_bool("glm5-next.attention.indexer.kpool_select_tail", c.index_kpool_always_select_tail)
    writer.add_indexer_head_count(c.index_n_heads)
    writer.add_indexer_key_length(c.index_head_dim)
    writer.add_indexer_top_k(c.index_topk)
    writer.add_uint32(f"{case.arch}.attention.indexer.kpool", c.index_kpool)
    writer.add_uint32(f"{case.arch}.hyper_connection.count", c.hc_mult)
    writer.add_uint32(f"{case.arch}.hyper_connection.sinkhorn_iterations", c.hc_sinkhorn_iters)
    writer.add_float32(f"{case.arch}.hyper_connection.epsilon", c.hc_eps)


def add_nemotron(writer, c, case):
    writer.add_layer_norm_eps(c.layer_norm_epsilon)
    if case.name == "nemotron_h_moe":  # the others have it under one key only
        writer.add_layer_norm_rms_eps(c.layer_norm_epsilon)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_ssm_conv_kernel(c.conv_kernel)
    writer.add_ssm_state_size(c.ssm_state_size)
    writer.add_ssm_group_count(c.n_groups)
    writer.add_ssm_inner_size(c.mamba_num_heads * c.mamba_head_dim)
    writer.add_ssm_time_step_rank(c.mamba_num_heads)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(c.moe_shared_expert_intermediate_size)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_expert_weights_norm(c.norm_topk_prob)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_group_count(c.n_group)
    writer.add_expert_group_used_count(c.topk_group)
    if c.moe_latent_size:
        writer.add_moe_latent_size(c.moe_latent_size)


def add_jamba(writer, c, case):
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_ssm_conv_kernel(c.mamba_d_conv)
    writer.add_ssm_state_size(c.mamba_d_state)
    writer.add_ssm_inner_size(c.mamba_expand * c.hidden_size)
    writer.add_ssm_time_step_rank(c.mamba_dt_rank)


OF_FAMILY = {"jamba": add_jamba, "nemotron_h_moe": add_nemotron, "kimi-linear": add_kimi, "bailingmoe3": add_ling, "glm5-next": add_glm, "glm5next": add_glm, "lfm2moe": add_lfm2, "granitehybrid": add_granite}


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    single = case.arch == "nemotron_h_moe"  # a layer is a mixer or a network
    writer.add_feed_forward_length([c.moe_intermediate_size if kind == "moe" else 0 for kind in c.layer_types]
                                   if single else c.intermediate_size)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_head_count(c.num_attention_heads)
    attention = [kind in ("full_attention", "indexed_attention") for kind in c.layer_types]
    writer.add_head_count_kv([(1 if case.arch in OF_CHANNELS else c.num_key_value_heads) if a else 0 for a in attention])
    writer.add_expert_count(getattr(c, "num_experts", None) or c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    OF_FAMILY[case.arch](writer, c, case)
    family_gguf.add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
