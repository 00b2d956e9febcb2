# SPDX-License-Identifier: MIT
"""Writes the models of window_cases.py as GGUF under llama.cpp's names and conventions: what
family_gguf.py does not know.

gpt-oss holds its experts' matrices transposed, with the columns of gate and up in turn; files have
ffn_gate_exps and ffn_up_exps, and a bias for each expert and product. llama4 has gate before up, and a
rotary embedding that turns neighbouring pairs in both.
"""
import re

import gguf
import numpy as np

import family_gguf
from oracle_gguf import permute_rows
from window_cases import MXFP4

NAMES = {"self_attn.sinks": "attn_sinks.weight", "mlp.router.weight": "ffn_gate_inp.weight",
         "mlp.router.bias": "ffn_gate_inp.bias", "post_attention_layernorm.weight": "post_attention_norm.weight"}


def gpt_oss_tensors(name, weight):
    if name in NAMES:
        return {NAMES[name]: weight}
    if name == "mlp.experts.gate_up_proj":
        rows = weight.swapaxes(1, 2)
        return {"ffn_gate_exps.weight": rows[:, ::2], "ffn_up_exps.weight": rows[:, 1::2]}
    if name == "mlp.experts.gate_up_proj_bias":
        return {"ffn_gate_exps.bias": weight[:, ::2], "ffn_up_exps.bias": weight[:, 1::2]}
    if name == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": weight.swapaxes(1, 2)}
    if name == "mlp.experts.down_proj_bias":
        return {"ffn_down_exps.bias": weight}
    stem, kind = name.rsplit(".", 1)
    return {f"{family_gguf.LAYER_NAMES[stem]}.{kind}": weight}


def llama4_tensors(name, weight):
    name = name.replace("feed_forward.", "mlp.")
    if name == "mlp.experts.gate_up_proj":
        gate, up = np.split(weight.swapaxes(1, 2), 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if name == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": weight.swapaxes(1, 2)}
    stem, kind = name.rsplit(".", 1)
    return {f"{family_gguf.LAYER_NAMES[stem]}.{kind}": weight}


def layer_tensors(name, weight, case, c):
    if case.arch == "gpt-oss":
        return gpt_oss_tensors(name, weight)
    if case.arch == "llama4":
        return llama4_tensors(name, weight)
    if case.arch == "llama" and name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
        heads = c.num_attention_heads if "q_proj" in name else c.num_key_value_heads
        weight = permute_rows(weight, heads)
    return family_gguf.layer_tensors(name, weight, case, c)


def tensors(model, case):
    out, last = {}, {}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        if name in names:
            if not (name == "lm_head.weight" and case.tied):
                out[names[name]] = weight
            continue
        index, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
        for new, part in layer_tensors(rest, weight, case, model.config).items():
            out[f"blk.{index}.{new}"] = part
            if int(index) == model.config.num_hidden_layers - 1:
                last[new] = part
    for i in range(case.n_nextn):
        out |= family_gguf.nextn_tensors(case, model.config, last, model.config.num_hidden_layers + i)
    return out


def write(path, model, case):
    c = model.config
    if case.arch == "mistral4":
        family_gguf.write(path, model, case)
        return
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    writer.add_feed_forward_length(getattr(c, "intermediate_size_mlp", c.intermediate_size))
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    family_gguf.add_attention(writer, c)
    family_gguf.add_rope(writer, c.rope_parameters, False)
    if case.arch == "exaone-moe":
        c.n_shared_experts = c.num_shared_experts
    family_gguf.add_experts(writer, c, case)
    if case.arch == "llama4":   # the chunk; 0 where no layer has one, as the converter writes it
        full = all(kind == "full_attention" for kind in c.layer_types)
        writer.add_sliding_window(0 if full else c.attention_chunk_size)
        writer.add_interleave_moe_layer_step(c.interleave_moe_layer_step)
        if not full:
            writer.add_uint32("llama4.attention.temperature_length", c.floor_scale)
            writer.add_float32("llama4.attention.temperature_scale", c.attn_scale)
    else:
        writer.add_sliding_window(c.sliding_window)
    if case.arch == "exaone-moe":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
    if case.arch in ("gpt-oss", "llama4"):
        writer.add_expert_feed_forward_length(c.intermediate_size)
    family_gguf.add_vocabulary(writer, c.vocab_size)
    mxfp4 = gguf.GGMLQuantizationType.MXFP4
    for name, array in tensors(model, case).items():
        array = np.ascontiguousarray(array, np.float32)
        if case.name in MXFP4 and name.endswith("_exps.weight"):
            writer.add_tensor(name, gguf.quants.quantize(array, mxfp4), raw_dtype=mxfp4)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
