# SPDX-License-Identifier: MIT
"""Writes the models of recurrent_cases.py as GGUF under llama.cpp's names and conventions.

Norms but that of the delta rule's output get the 1 that the torch code adds. The decay is -exp(A_log).
qwen3next: queries, keys, values and gates come in groups, one for each key head, and go to two
tensors (in older files to one, as they are); beta and decay stay in groups. qwen35moe: the value heads
change their order, from one key head's after the other's to the key heads in turn.
"""
import re

import gguf
import numpy as np

import family_gguf
from recurrent_cases import IN_GROUPS, LISTED

NAMES = {"linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
         "linear_attn.out_proj.weight": "ssm_out.weight", "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
         "linear_attn.in_proj_a.weight": "ssm_alpha.weight", "linear_attn.in_proj_b.weight": "ssm_beta.weight",
         "linear_attn.in_proj_z.weight": "attn_gate.weight", "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
         "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
         "post_attention_layernorm.weight": "post_attention_norm.weight"}
# Whose rows (and for the last one columns) are those of value heads.
OF_VALUES = ("in_proj_z", "in_proj_a", "in_proj_b", "dt_bias", "A_log", "out_proj")


def in_turn(rows, c):
    """Rows of value heads, the key heads in turn."""
    keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    return rows.reshape(keys, values // keys, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def reorder(name, weight, c):
    if name.endswith("out_proj.weight"):
        return in_turn(weight.T, c).T
    if any(part in name for part in OF_VALUES):
        return in_turn(weight, c)
    if "in_proj_qkv" in name or "conv1d" in name:
        n = 2 * c.linear_num_key_heads * c.linear_key_head_dim
        return np.concatenate([weight[:n], in_turn(weight[n:], c)])
    return weight


def split_groups(weight, c):
    ratio = c.linear_num_value_heads // c.linear_num_key_heads * c.linear_value_head_dim
    groups = weight.reshape(c.linear_num_key_heads, -1, weight.shape[1])
    cuts = np.cumsum([c.linear_key_head_dim, c.linear_key_head_dim, ratio])
    q, k, v, z = (part.reshape(-1, weight.shape[1]) for part in np.split(groups, cuts, axis=1))
    return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}


def layer_tensors(name, weight, case, c):
    if name.endswith("norm.weight") and not name.startswith("linear_attn."):
        weight = weight + 1
    if name == "linear_attn.conv1d.weight":
        weight = weight.squeeze(1)
    if case.arch == "qwen35moe":
        weight = reorder(name, weight, c)
    if name == "linear_attn.conv1d.weight":
        return {"ssm_conv1d.weight": weight}
    if name == "linear_attn.A_log":
        return {"ssm_a": -np.exp(weight)}
    if name == "linear_attn.in_proj_qkvz.weight":
        return {"ssm_in.weight": weight} if case.name in IN_GROUPS else split_groups(weight, c)
    if name == "mlp.shared_expert_gate.weight":
        weight = weight.reshape(-1)
    if name in NAMES:
        return {NAMES[name]: weight}
    return family_gguf.layer_tensors(name, weight, case, c)


def tensors(model, case):
    out, last = {}, {}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        if name in names:
            if not (name == "lm_head.weight" and case.tied):
                out[names[name]] = weight + 1 if name == "model.norm.weight" else weight
            continue
        index, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
        for new, part in layer_tensors(rest, weight, case, model.config).items():
            out[f"blk.{index}.{new}"] = part
            if int(index) == model.config.num_hidden_layers - 1:
                last[new] = part
    for i in range(case.n_nextn):
        out |= family_gguf.nextn_tensors(case, model.config, last, model.config.num_hidden_layers + i)
    return out


def add_recurrence(writer, c, case):
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_ssm_state_size(c.linear_key_head_dim)
    writer.add_ssm_group_count(c.linear_num_key_heads)
    writer.add_ssm_time_step_rank(c.linear_num_value_heads)
    writer.add_ssm_inner_size(c.linear_value_head_dim * c.linear_num_value_heads)
    recurrent = [kind == "linear_attention" for kind in c.layer_types]
    if case.name in LISTED:
        writer.add_array(f"{case.arch}.attention.recurrent_layers", recurrent)
    else:
        writer.add_full_attention_interval(recurrent.index(False) + 1)


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    if hasattr(c, "intermediate_size"):
        writer.add_feed_forward_length(c.intermediate_size)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    family_gguf.add_attention(writer, c)
    family_gguf.add_rope(writer, c.rope_parameters, False)
    family_gguf.add_experts(writer, c, case)
    writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    add_recurrence(writer, c, case)
    family_gguf.add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
