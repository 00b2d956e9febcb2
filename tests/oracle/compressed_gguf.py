# SPDX-License-Identifier: MIT
"""Writes the models of compressed_cases.py as GGUF under llama.cpp's names and conventions."""
import gguf
import numpy as np

import family_gguf

ARCH = "deepseek4"
ATTENTION = {
    "q_a_proj": "attn_q_a", "q_a_norm": "attn_q_a_norm", "q_b_proj": "attn_q_b", "kv_proj": "attn_kv",
    "kv_norm": "attn_kv_a_norm", "o_a_proj": "attn_output_a", "o_b_proj": "attn_output_b",
    "compressor.indexer.q_b_proj": "indexer.attn_q_b", "compressor.indexer.scorer.weights_proj": "indexer.proj",
}
for prefix, new in (("compressor.", "attn_compressor"), ("compressor.indexer.", "indexer_compressor")):
    ATTENTION |= {f"{prefix}kv_proj": f"{new}_kv", f"{prefix}gate_proj": f"{new}_gate",
                  f"{prefix}kv_norm": f"{new}_norm", f"{prefix}position_bias": f"{new}_ape"}
family_layer_tensors = family_gguf.layer_tensors


def layer_tensors(name, weight, case, c):
    own = name.removeprefix("self_attn.").removesuffix(".weight")
    if own in ATTENTION:
        return {f"{ATTENTION[own]}.weight": weight}
    if name == "mlp.gate.tid2eid":
        return {"ffn_gate_tid2eid.weight": weight}
    return family_layer_tensors(name, weight, case, c)


def tensors(model, case):
    family_gguf.layer_tensors = layer_tensors
    try:
        return family_gguf.tensors(model, case)
    finally:
        family_gguf.layer_tensors = family_layer_tensors


def add_attention(writer, c):
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.qk_rope_head_dim)
    writer.add_q_lora_rank(c.q_lora_rank)
    writer.add_sliding_window(c.sliding_window)
    writer.add_indexer_head_count(c.index_n_heads)
    writer.add_indexer_key_length(c.index_head_dim)
    writer.add_indexer_top_k(c.index_topk)
    writer.add_uint32(f"{ARCH}.attention.output_group_count", c.o_groups)
    writer.add_uint32(f"{ARCH}.attention.output_lora_rank", c.o_lora_rank)
    writer.add_array(f"{ARCH}.attention.compress_ratios", [c.compress_rates.get(kind, 0) for kind in c.layer_types] + [0])  # of a layer for drafting
    writer.add_float32(f"{ARCH}.attention.compress_rope_freq_base", float(c.compress_rope_theta))
    family_gguf.add_rope(writer, c.rope_parameters["compress"] | dict(rope_theta=c.rope_theta), False)


def add_experts(writer, c):
    writer.add_expert_count(c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_weights_norm(c.norm_topk_prob)
    writer.add_uint32(f"{ARCH}.expert_gating_func", 4)
    writer.add_swiglu_clamp_exp([c.swiglu_limit] * c.num_hidden_layers)
    writer.add_swiglu_clamp_shexp([c.swiglu_limit] * c.num_hidden_layers)
    writer.add_uint32(f"{ARCH}.hash_layer_count", c.mlp_layer_types.count("hash_moe"))
    writer.add_uint32(f"{ARCH}.hyper_connection.count", c.hc_mult)
    writer.add_uint32(f"{ARCH}.hyper_connection.sinkhorn_iterations", c.hc_sinkhorn_iters)
    writer.add_float32(f"{ARCH}.hyper_connection.epsilon", c.hc_eps)


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_attention(writer, c)
    add_experts(writer, c)
    family_gguf.add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        table = name.endswith("tid2eid.weight")
        writer.add_tensor(name, np.ascontiguousarray(array, np.int32 if table else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
