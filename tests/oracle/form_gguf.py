# SPDX-License-Identifier: MIT
"""Writes the models of form_cases.py as GGUF under llama.cpp's names and conventions: what the other
scripts do not know. Norms of Step-3.5 and MiniMax-M3 are stored as 1 + their weight."""
import math
import re

import gguf
import numpy as np

import family_gguf
from form_cases import FULL, SLIDING
from oracle_gguf import permute_rows

ATTENTION = {f"self_attn.{p}_proj": n for p, n in
             (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output"))} | {
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight", "input_layernorm": "attn_norm"}
DENSE = {f"mlp.{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")}
SHARED = {f"mlp.shared_experts.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}

NAMES = {
    "gemma4": ATTENTION | DENSE | {
        "layer_scalar": "layer_output_scale.weight", "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2", "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"},
    "phimoe": ATTENTION | {"post_attention_layernorm": "ffn_norm", "mlp.router": "ffn_gate_inp"},
    "cohere2moe": ATTENTION | DENSE | SHARED | {"mlp.gate": "ffn_gate_inp"},
    "mimo2": ATTENTION | DENSE | {
        "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
    "step35": ATTENTION | DENSE | SHARED | {
        "self_attn.g_proj": "attn_gate", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
    "mellum": ATTENTION | {"post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"},
    "afmoe": ATTENTION | DENSE | SHARED | {
        "self_attn.gate_proj": "attn_gate", "post_attention_layernorm": "post_attention_norm",
        "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm",
        "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b.bias"},
    "dbrx": {
        "norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.norm_2": "attn_output_norm",
        "norm_attn_norm.attn.Wqkv": "attn_qkv", "norm_attn_norm.attn.out_proj": "attn_output",
        "ffn.router.layer": "ffn_gate_inp"},
}
PLAIN = ATTENTION | DENSE | {"router": "ffn_gate_inp", "ffn_norm": "ffn_norm"}
NAMES |= {
    "maple": PLAIN,
    "laguna": ATTENTION | DENSE | SHARED | {
        "self_attn.g_proj": "attn_gate", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
    "granite_swa": ATTENTION | {
        "post_attention_layernorm": "ffn_norm", "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.router": "ffn_gate_inp"},
    "minimax-m3": ATTENTION | DENSE | SHARED | {
        "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"} | {
        f"self_attn.indexer.{part}_{kind}": f"indexer.{part}_{kind}" for part in "qk" for kind in ("proj", "norm")},
}
NAMES["flex_olmo"] = ATTENTION | {"post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp",
                                  "post_feedforward_layernorm": "post_ffw_norm"}
NAMES |= {"smallthinker": PLAIN, "arctic": PLAIN | {"experts_norm": "ffn_norm_exps"},
          "grok": PLAIN | {"attn_post_norm": "attn_output_norm", "ffn_post_norm": "post_ffw_norm"}}
GLOBALS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "model.norm.bias": "output_norm.bias", "lm_head.weight": "output.weight",
           "lm_head.bias": "output.bias", "transformer.wte.weight": "token_embd.weight",
           "transformer.norm_f.weight": "output_norm.weight"}


def dbrx_expert(name, weight, c):
    """[experts * n_ff][n_embd], the down matrices transposed."""
    stacked = weight.reshape(c.ffn_config.moe_num_experts, -1, weight.shape[1])
    part = {"w1": "gate", "v1": "up", "w2": "down"}[name]
    return {f"ffn_{part}_exps.weight": stacked.swapaxes(1, 2) if name == "w2" else stacked}


def layer_tensors(name, weight, case, c):
    if case.arch == "granite_swa" and name.endswith("experts.gate_up_proj"):
        return {"ffn_gate_up_exps.weight": weight}
    if name.endswith("gate_up_proj.weight"):   # of dense networks and shared experts
        gate, up = np.split(weight, 2)
        ending = "_shexp" if "shared" in name else ""
        return {f"ffn_gate{ending}.weight": gate, f"ffn_up{ending}.weight": up}
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(weight, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if name.endswith("experts.down_proj"):
        return {"ffn_down_exps.weight": weight}
    if "experts.mlp." in name:
        return dbrx_expert(name.rsplit(".", 1)[1], weight, c)
    names = NAMES[case.arch]
    if name in names:
        return {names[name]: weight}
    stem, kind = name.rsplit(".", 1)
    if case.arch in ("arctic", "granite_swa") and stem in ("self_attn.q_proj", "self_attn.k_proj"):
        weight = permute_rows(weight, c.num_attention_heads if "q_proj" in stem else c.num_key_value_heads)
    return {f"{names[stem]}.{kind}": weight}


def tensors(model, case):
    c, out, layers = model.config, {}, {}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        if case.arch in ("step35", "minimax-m3") and name.endswith("norm.weight"):
            weight = weight + 1
        if name in GLOBALS:
            if not (name == "lm_head.weight" and case.tied):
                out[GLOBALS[name]] = weight
            continue
        index, rest = re.fullmatch(r"(?:model\.layers|transformer\.blocks)\.(\d+)\.(.*)", name).groups()
        layers.setdefault(int(index), {}).update(layer_tensors(rest, weight, case, c))
    for index, parts in layers.items():
        if case.joined_qkv:
            family_gguf.join_qkv(parts)
        out |= {f"blk.{index}.{name}": w for name, w in parts.items()}
    for i in range(case.n_nextn):
        out |= family_gguf.nextn_tensors(case, c, layers[max(layers)], len(layers) + i)
    if case.arch == "gemma4":
        n_dim, part = c.per_layer_config[len(layers) - 1].head_dim, c.rope_parameters[FULL]["partial_rotary_factor"]
        turning = int(n_dim * part / 2)
        out["rope_freqs.weight"] = np.array([1.0] * turning + [1e30] * (n_dim // 2 - turning))
    if case.arch == "step35" and c.rope_parameters[FULL]["rope_type"] == "llama3":
        out["rope_freqs.weight"] = step35_factors(model, c)
    if case.arch == "phimoe" and "long_factor" in c.rope_parameters:
        out["rope_factors_long.weight"] = np.array(c.rope_parameters["long_factor"])
        out["rope_factors_short.weight"] = np.ones(len(c.rope_parameters["long_factor"]))
    return out


def step35_factors(model, c):
    """As wide as half a head; layers without a window use the first half of them."""
    n, theta = c.head_dim // 2, c.rope_parameters[FULL]["rope_theta"]
    plain = theta ** (-np.arange(0, n, 2) / n)
    factors = plain / model.model.rotary_emb.full_attention_inv_freq.numpy()
    return np.concatenate((factors, np.ones(n - len(factors))))


# ---- Metadata

def add_gemma4(writer, c):
    windows = [kind == SLIDING for kind in c.layer_types]
    layers = [c.per_layer_config[i] for i in range(c.num_hidden_layers)]
    window, full = layers[windows.index(True)], layers[windows.index(False)]
    writer.add_shared_kv_layers(0)
    writer.add_embedding_length_per_layer_input(0)
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern(windows)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv([layer.num_key_value_heads for layer in layers])
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(window.head_dim)
    writer.add_value_length_swa(window.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(window.head_dim)
    writer.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.top_k_experts)
    if c.final_logit_softcapping:
        writer.add_final_logit_softcapping(c.final_logit_softcapping)


def add_phimoe(writer, c):
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if "long_factor" in c.rope_parameters:
        writer.add_rope_scaling_orig_ctx_len(c.rope_parameters["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(c.rope_parameters["short_mscale"])
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)


def add_cohere2moe(writer, c):
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if c.rms_norm_eps is None:
        writer.add_layer_norm_eps(c.layer_norm_eps)
    writer.add_logit_scale(c.logit_scale)
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern([kind == SLIDING for kind in c.layer_types])
    writer.add_feed_forward_length(c.prefix_dense_intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.intermediate_size)
    writer.add_leading_dense_block_count(c.mlp_layer_types.index("sparse"))
    writer.add_expert_weights_norm(c.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if c.num_shared_experts:
        writer.add_expert_shared_count(c.num_shared_experts)
        writer.add_expert_shared_feed_forward_length(c.intermediate_size * c.num_shared_experts)


def add_mimo2(writer, c):
    windows = [kind == SLIDING for kind in c.layer_types]
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv([c.num_key_value_heads * (1 + w) for w in windows])
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.v_head_dim)
    writer.add_rope_dimension_count(int(c.head_dim * c.rope_parameters[FULL]["partial_rotary_factor"]))
    writer.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern(windows)
    if c.attention_value_scale is not None:
        writer.add_float32("mimo2.attention.value_scale", c.attention_value_scale)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)


def add_step35(writer, c):
    windows = [kind == SLIDING for kind in c.layer_types]
    layers = [c.per_layer_config[i] for i in range(c.num_hidden_layers)]
    writer.add_head_count([layer.num_attention_heads for layer in layers])
    writer.add_head_count_kv([layer.num_key_value_heads for layer in layers])
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern(windows)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(c.share_expert_dim)
    writer.add_expert_weights_scale(c.moe_router_scaling_factor)
    writer.add_expert_weights_norm(True)
    writer.add_leading_dense_block_count(c.mlp_layer_types.index("sparse"))
    writer.add_moe_every_n_layers(1)
    if c.swiglu_limits is not None:
        writer.add_swiglu_clamp_exp([float(v or 0) for v in c.swiglu_limits])
        writer.add_swiglu_clamp_shexp([float(v or 0) for v in c.swiglu_limits_shared])


def add_mellum(writer, c):
    full = c.rope_parameters[FULL]
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if SLIDING in c.layer_types:
        if c.rope_parameters[SLIDING]["rope_theta"] != full["rope_theta"]:
            writer.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
        writer.add_sliding_window(c.sliding_window)
        writer.add_sliding_window_pattern([kind == SLIDING for kind in c.layer_types])
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)


def add_afmoe(writer, c):
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_sliding_window(c.sliding_window)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_count(c.num_shared_experts)
    writer.add_leading_dense_block_count(c.num_dense_layers)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(c.route_scale)


def add_dbrx(writer, c):
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.attn_config.kv_n_heads)
    writer.add_rope_freq_base(c.attn_config.rope_theta)
    writer.add_clamp_kqv(c.attn_config.clip_qkv)
    writer.add_feed_forward_length(c.ffn_config.ffn_hidden_size)
    writer.add_expert_count(c.ffn_config.moe_num_experts)
    writer.add_expert_used_count(c.ffn_config.moe_top_k)
    writer.add_layer_norm_eps(1e-5)


def add_plain(writer, c):
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_theta)
    dense = c.dense_size if c.kind == "grok" else 0
    writer.add_feed_forward_length(dense or c.intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)


add_arctic = add_plain


def add_smallthinker(writer, c):
    add_plain(writer, c)
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_feed_forward_length(c.intermediate_size)
    writer.add_expert_gating_func(kinds.SIGMOID if c.sigmoid else kinds.SOFTMAX)
    if c.sliding_window:
        writer.add_sliding_window(c.sliding_window)


def add_grok(writer, c):
    add_plain(writer, c)
    if c.dense_size:
        writer.add_expert_feed_forward_length(c.intermediate_size)
    writer.add_attn_logit_softcapping(c.attention_cap)
    writer.add_router_logit_softcapping(c.router_cap)
    if c.logit_cap:
        writer.add_final_logit_softcapping(c.logit_cap)
    writer.add_attn_output_scale(c.attention_scale or c.head_dim ** -0.5)
    writer.add_embedding_scale(c.embedding_scale)
    writer.add_logit_scale(c.logit_scale)


def add_maple(writer, c):
    add_plain(writer, c)
    writer.add_expert_feed_forward_length(c.intermediate_size)
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern([kind == SLIDING for kind in c.layer_types])
    if c.limit != 7:
        writer.add_swiglu_clamp_exp([c.limit] * c.num_hidden_layers)


def add_laguna(writer, c):
    full, windows = c.rope_parameters[FULL], [kind == SLIDING for kind in c.layer_types]
    writer.add_head_count(c.num_attention_heads_per_layer)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(int(c.head_dim * full["partial_rotary_factor"]))
    writer.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if "attention_factor" in full:
            writer.add_float32("laguna.rope.scaling.yarn_attn_factor", full["attention_factor"])
    if any(windows):
        writer.add_rope_dimension_count_swa(c.head_dim)
        writer.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
        writer.add_sliding_window(c.sliding_window)
        writer.add_sliding_window_pattern(windows)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(c.moe_routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(c.mlp_layer_types.index("sparse"))


def add_granite_swa(writer, c):
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_embedding_scale(c.embedding_multiplier)
    writer.add_residual_scale(c.residual_multiplier)
    writer.add_attention_scale(c.attention_multiplier)
    writer.add_logit_scale(c.logits_scaling)
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern([kind == SLIDING for kind in c.layer_types])
    if 0 in c.layer_rope_theta:
        writer.add_array("granite_swa.attention.rope_pattern", [theta != 0 for theta in c.layer_rope_theta])
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)


def add_minimax_m3(writer, c):
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_feed_forward_length(c.dense_intermediate_size)
    writer.add_expert_count(c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.intermediate_size)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(c.mlp_layer_types.index("sparse"))
    writer.add_indexer_head_count(c.index_n_heads)
    writer.add_indexer_key_length(c.index_head_dim)
    writer.add_indexer_top_k(c.index_topk_blocks)
    writer.add_uint32("minimax-m3.attention.indexer.block_size", c.index_block_size)
    writer.add_uint32("minimax-m3.attention.indexer.local_blocks", c.index_local_blocks)


def add_flex_olmo(writer, c):
    family_gguf.add_attention(writer, c)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_weights_norm(c.norm_topk_prob)


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    if getattr(c, "rms_norm_eps", None) is not None:
        writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    globals()[f"add_{case.arch.replace('-', '_')}"](writer, c)
    family_gguf.add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
