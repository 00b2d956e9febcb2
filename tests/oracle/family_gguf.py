# SPDX-License-Identifier: MIT
"""Writes the smaller oracle models as GGUF under llama.cpp's names and conventions.

What is not a plain renaming: `granitemoe` and `bailingmoe` permute the rows of Q and K within each head
(the engine turns neighbouring pairs, the torch code halves); gate and up of the experts are one tensor in
torch and two here; MLA's kv_b becomes a transposed k_b and a v_b; `joined_qkv` puts Q, K and V in one.
"""
import re

import gguf
import numpy as np
import torch

from oracle_gguf import add_small_vocabulary as add_vocabulary, expert_tensors, permute_rows

PERMUTED = ("granitemoe", "bailingmoe", "granitehybrid")
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k", "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj", "self_attn.gate_proj": "attn_gate",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.gate.wg": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp", "shared_mlp.output_linear": "ffn_down_shexp",
}
for part in ("gate", "up", "down"):
    for shared in ("shared_expert", "shared_experts", "shared_mlp"):
        LAYER_NAMES[f"mlp.{shared}.{part}_proj"] = f"ffn_{part}_shexp"


def pair_rows(name, weight, c):
    """The last rows of each head turn, in files as neighbouring pairs, in torch as halves."""
    heads = {"self_attn.q_b_proj.weight": c.num_attention_heads, "self_attn.kv_a_proj_with_mqa.weight": 1,
             "self_attn.indexer.wq_b.weight": c.index_n_heads, "self_attn.indexer.wk.weight": 1,
             "self_attn.indexer.k_norm.weight": 1, "self_attn.indexer.k_norm.bias": 1}.get(name)
    if heads is None:
        return weight
    by_head = weight.reshape(heads, weight.shape[0] // heads, -1).copy()
    turned = by_head[:, -c.qk_rope_head_dim:]
    by_head[:, -c.qk_rope_head_dim:] = np.concatenate(
        [permute_rows(head, 1)[None] for head in turned])
    return by_head.reshape(weight.shape)


def layer_tensors(name, weight, case, c):
    if ".experts." in name:
        return expert_tensors(name, weight, "stacked")
    if name.endswith("e_score_correction_bias"):
        return {"exp_probs_b" if case.arch == "hy_v3" else "exp_probs_b.bias": weight.reshape(-1)}
    if name.startswith(("attn_hc.", "ffn_hc.")):
        return {f"hc_{name.replace('_hc.', '_')}.weight": weight}
    if name == "self_attn.sinks":
        return {"attn_sinks.weight": weight}
    if case.arch == "hy_v4":
        weight = pair_rows(name, weight, c)
    if name == "self_attn.kv_b_proj.weight":
        per_head = weight.reshape(c.num_attention_heads, -1, weight.shape[1])
        k, v = np.split(per_head, [c.qk_nope_head_dim], axis=1)
        return {"attn_k_b.weight": k.swapaxes(1, 2), "attn_v_b.weight": v}
    if name == "shared_mlp.input_linear.weight":
        gate, up = np.split(weight, 2)
        return {"ffn_gate_shexp.weight": gate, "ffn_up_shexp.weight": up}
    stem, kind = name.rsplit(".", 1)
    if case.arch in PERMUTED and stem in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = c.num_attention_heads if "q_proj" in stem else c.num_key_value_heads
        weight = permute_rows(weight, heads)
    new = LAYER_NAMES[stem]
    if case.arch == "glm4moe" and new == "ffn_norm":
        new = "post_attention_norm"
    return {f"{new}.{kind}": weight}


def join_qkv(layer):
    for kind in ("weight", "bias"):
        parts = [layer.pop(f"attn_{p}.{kind}", None) for p in "qkv"]
        if parts[0] is not None:
            layer[f"attn_qkv.{kind}"] = np.concatenate(parts)


def nextn_tensors(case, c, layer, index):
    """A layer for drafting: that of the model before it with tensors of its own."""
    n = c.hidden_size
    own = {"nextn.eh_proj.weight": (n, 2 * n), "nextn.enorm.weight": (n,), "nextn.hnorm.weight": (n,),
           "nextn.shared_head_norm.weight": (n,)}
    return {f"blk.{index}.{name}": np.full(shape, 0.5, np.float32) for name, shape in own.items()} | {
        f"blk.{index}.{name}": w for name, w in layer.items() if w.size < 100}


def tensors(model, case):
    """All tensors of the file, in file order, as {name: float32 array}."""
    c, out, layer = model.config, {}, {}
    state = {k: v for k, v in model.state_dict().items()}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight", "model.hc_head.hc_fn": "output_hc_fn.weight",
             "model.hc_head.hc_base": "output_hc_base.weight",
             "model.hc_head.hc_scale": "output_hc_scale.weight"}
    for name, value in state.items():
        weight = value.float().numpy()
        if name == "lm_head.weight" and case.tied:
            continue
        if name in names:
            out[names[name]] = weight
            continue
        index, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
        layer.setdefault(int(index), {}).update(layer_tensors(rest, weight, case, c))
    for index, parts in layer.items():
        if case.joined_qkv:
            join_qkv(parts)
        out |= {f"blk.{index}.{name}": w for name, w in parts.items()}
    for i in range(case.n_nextn):
        out |= nextn_tensors(case, c, layer[max(layer)], c.num_hidden_layers + i)
    return out


def add_rope(writer, rope, mla):
    kind = rope.get("rope_type", "default")
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if kind == "default":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(float(rope["factor"]))
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if mla and rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_attention(writer, c):
    writer.add_head_count(c.num_attention_heads)
    if hasattr(c, "kv_lora_rank"):
        rope = c.qk_rope_head_dim
        if c.q_lora_rank:
            writer.add_q_lora_rank(c.q_lora_rank)
        writer.add_kv_lora_rank(c.kv_lora_rank)
        writer.add_rope_dimension_count(rope)
        writer.add_head_count_kv(1)
        writer.add_key_length(c.kv_lora_rank + rope)
        writer.add_value_length(c.kv_lora_rank)
        writer.add_key_length_mla(c.qk_nope_head_dim + rope)
        writer.add_value_length_mla(c.v_head_dim)
        return
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    part = getattr(c, "partial_rotary_factor", None) or c.rope_parameters.get("partial_rotary_factor", 1.0)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * part))


def add_experts(writer, c, case):
    experts = getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None)
    writer.add_expert_count(experts or c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    width = getattr(c, "moe_intermediate_size", None)
    if width or case.arch == "hunyuan-moe":
        writer.add_expert_feed_forward_length(width or c.intermediate_size)
    if hasattr(c, "first_k_dense_replace"):
        lead = c.mlp_layer_types.count("dense") if case.arch == "hy_v4" else c.first_k_dense_replace
        writer.add_leading_dense_block_count(lead)
        writer.add_expert_shared_count(c.n_shared_experts)
        writer.add_expert_weights_scale(c.routed_scaling_factor)
        writer.add_expert_weights_norm(bool(c.norm_topk_prob))
    if (getattr(c, "n_group", None) or 1) > 1:
        writer.add_expert_group_count(c.n_group)
        writer.add_expert_group_used_count(c.topk_group)
    # dots1, glm4moe and minimax-m2 go without it here: the family says what its absence means.
    if case.arch in ("deepseek2", "deepseek32", "glm-dsa", "bailingmoe2", "hy_v4"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_of_family(writer, c, case):
    if case.arch == "granitemoe":
        writer.add_embedding_scale(c.embedding_multiplier)
        writer.add_residual_scale(c.residual_multiplier)
        writer.add_attention_scale(c.attention_multiplier)
        writer.add_logit_scale(c.logits_scaling)
        if hasattr(c, "shared_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    if case.arch == "ernie4_5-moe":
        writer.add_interleave_moe_layer_step(c.moe_layer_interval)
        writer.add_leading_dense_block_count(c.moe_layer_start_index)
        writer.add_expert_shared_count(c.moe_num_shared_experts)
        if c.moe_num_shared_experts:
            # As the converter writes it, which is not the tensors' width in every model.
            writer.add_expert_shared_feed_forward_length(c.intermediate_size // c.num_key_value_heads)
    if case.arch == "hunyuan-moe":
        writer.add_expert_shared_count(1)
        writer.add_expert_shared_feed_forward_length(c.intermediate_size)
    if case.arch == "hy_v3":
        writer.add_expert_shared_feed_forward_length(c.moe_intermediate_size * c.num_shared_experts)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(c.router_scaling_factor)
    if case.arch == "mistral4" and c.rope_parameters["llama_4_scaling_beta"]:
        writer.add_attn_temperature_scale(c.rope_parameters["llama_4_scaling_beta"])
    if case.arch == "bailingmoe2":
        writer.add_expert_shared_feed_forward_length(c.moe_intermediate_size * c.n_shared_experts)
    if case.arch == "qwen3vlmoe":
        writer.add_num_deepstack_layers(3)
    if case.arch == "hy_v4":
        writer.add_swiglu_clamp_exp([c.swiglu_limit] * c.num_hidden_layers)
        writer.add_uint32("hy_v4.hyper_connection.count", c.hc_mult)
        writer.add_float32("hy_v4.hyper_connection.epsilon", c.hc_eps)
        writer.add_float32("hy_v4.hyper_connection.magnitude", c.hc_magnitude)
        writer.add_array("hy_v4.attention.indexer.types", [kind == "full" for kind in c.indexer_types])
    if case.arch in ("deepseek32", "glm-dsa", "hy_v4"):
        writer.add_indexer_head_count(c.index_n_heads)
        writer.add_indexer_key_length(c.index_head_dim)
        writer.add_indexer_top_k(c.index_topk)


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_attention(writer, c)
    add_rope(writer, getattr(c, "rope_parameters", None) or {"rope_theta": c.rope_theta},
             hasattr(c, "kv_lora_rank"))
    add_experts(writer, c, case)
    add_of_family(writer, c, case)
    add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
