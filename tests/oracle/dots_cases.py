# SPDX-License-Identifier: MIT
"""The table of oracle models of dots.3, and how they are written as GGUF.

One letter for each layer: F has the larger number of heads and an indexer, W a window, another latent and other
heads. The published checkpoints' converter folds the factors of the latents into the norms before them, and so
does write().
"""
import gguf
from transformers.models.dots3_note.configuration_dots3_note import Dots3NoteTextConfig
from transformers.models.dots3_note.modeling_dots3_note import Dots3NoteForCausalLM

import family_cases
import family_gguf
from family_cases import INDEXED, FamilyCase
from recurrent_cases import CONTEXT

ARCH = "dots3note"
KINDS = {"F": "indexed_attention", "W": "sliding_attention"}
NAMES = {"self_attn.k_rope_only_layernorm": "attn_k_norm", "self_attn.g_proj": "attn_gate"}


def layers(text, window):
    return dict(layer_types=[KINDS[letter] for letter in text], num_hidden_layers=len(text), sliding_window=window)


def wide(heads, rank, nope, v, rot=8):
    return dict(swa_num_attention_heads=heads, swa_num_key_value_heads=heads, swa_q_lora_rank=16,
                swa_kv_lora_rank=rank, swa_head_dim=nope + rot, swa_qk_nope_head_dim=nope, swa_v_head_dim=v)


DOTS = INDEXED | wide(2, 24, 24, 8) | dict(head_dim=24, swa_rope_theta=1e2, rope_theta=1e4,
                                          shared_experts_intermediate_size=16)
FAMILIES = {"dots3_note": (Dots3NoteTextConfig, Dots3NoteForCausalLM, DOTS)}
CHOOSING = dict(index_n_heads=8)
CASES = [
    FamilyCase("dots3note", ARCH, "dots3_note", layers("FWW", 16), 611),
    FamilyCase("dots3note-sparse", ARCH, "dots3_note", layers("FWF", 70) | wide(6, 8, 12, 16) | CHOOSING | dict(
        first_k_dense_replace=0, index_topk=9, n_routed_experts=9, num_experts_per_tok=2, n_shared_experts=1), 612),
    FamilyCase("dots3note-long", ARCH, "dots3_note", layers("FW", 40) | wide(6, 16, 8, 8) | CHOOSING | dict(
        index_topk=48, n_routed_experts=5, num_experts_per_tok=2), 613),
]


def build(case):
    saved = family_cases.FAMILIES, family_cases.COMMON
    family_cases.FAMILIES = FAMILIES
    family_cases.COMMON = saved[1] | dict(max_position_embeddings=CONTEXT)
    try:
        return family_cases.build(case)
    finally:
        family_cases.FAMILIES, family_cases.COMMON = saved


def tensors(model, case):
    """{name: float32 array}"""
    out = {}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        if not name.startswith("model.layers."):
            out[{"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                 "lm_head.weight": "output.weight"}[name]] = weight
            continue
        index, rest = name.removeprefix("model.layers.").split(".", 1)
        c = model.config.per_layer_config[int(index)]
        stem, kind = rest.rsplit(".", 1)
        if stem.endswith(("q_a_layernorm", "kv_a_layernorm")):
            weight = weight * (c.hidden_size / len(weight)) ** 0.5
        parts = {f"{NAMES[stem]}.{kind}": weight} if stem in NAMES else family_gguf.layer_tensors(rest, weight, case, c)
        out |= {f"blk.{index}.{new}": part for new, part in parts.items()}
    return out


def add_attention(writer, c):
    full, wide = (c.per_layer_config[kind] for kind in KINDS.values())
    n_rot, swa = full.qk_rope_head_dim, [kind == KINDS["W"] for kind in c.layer_types]
    family_gguf.add_attention(writer, full)
    writer.add_head_count([(wide if inside else full).num_attention_heads for inside in swa])
    writer.add_rope_freq_base(c.rope_parameters[KINDS["F"]]["rope_theta"])
    writer.add_rope_freq_base_swa(c.rope_parameters[KINDS["W"]]["rope_theta"])
    writer.add_sliding_window(wide.sliding_window)
    writer.add_sliding_window_pattern(swa)
    for name, value in dict(
            kv_lora_rank_swa=wide.kv_lora_rank, key_length_swa=wide.kv_lora_rank + n_rot,
            value_length_swa=wide.kv_lora_rank, key_length_mla_swa=wide.qk_nope_head_dim + n_rot,
            value_length_mla_swa=wide.v_head_dim).items():
        writer.add_uint32(f"{ARCH}.attention.{name}", value)
    writer.add_indexer_head_count(c.index_n_heads)
    writer.add_indexer_key_length(c.index_head_dim)
    writer.add_indexer_top_k(c.index_topk)
    writer.add_array(f"{ARCH}.attention.indexer.types", [not inside for inside in swa])


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), ARCH)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_attention(writer, c)
    writer.add_expert_count(c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_weights_norm(bool(c.norm_topk_prob))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(c.mlp_layer_types.count("dense"))
    family_gguf.add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, array.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
