# SPDX-License-Identifier: MIT
"""Writes a tiny torch model as GGUF under llama.cpp's names and conventions.

What is not a plain renaming: llama and deepseek permute the rows of Q and K within each head (the
engine rotates neighbouring pairs, the torch code halves); gate and up of the experts are one
tensor in torch and two here; deepseek2 splits kv_b into a transposed k_b and a v_b, unless the
older layout is asked for.
"""
import gguf
import numpy as np
from gguf.quants import quantize

LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
for part in ("gate", "up", "down"):
    for shared in ("shared_expert", "shared_experts"):
        LAYER_NAMES[f"mlp.{shared}.{part}_proj.weight"] = f"ffn_{part}_shexp.weight"


def permute_rows(weight, n_head):
    """Rows of each head from (all first halves, all second halves) to neighbouring pairs."""
    shape = weight.shape
    return weight.reshape(n_head, 2, shape[0] // n_head // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def expert_tensors(name, weight, layout):
    """Stacked tensors, or (`per-expert`) one tensor an expert as the first Mixtral files had."""
    if name.endswith("gate_up_proj"):
        half = weight.shape[1] // 2
        parts = {"gate": weight[:, :half], "up": weight[:, half:]}
        if layout == "fused":
            return {"ffn_gate_up_exps.weight": weight}
    else:
        parts = {"down": weight}
    if layout == "per-expert":
        return {f"ffn_{part}.{i}.weight": w[i] for part, w in parts.items() for i in range(len(w))}
    return {f"ffn_{part}_exps.weight": w for part, w in parts.items()}


def layer_tensors(name, weight, case, config):
    if ".experts." in name:
        return expert_tensors(name, weight, case.expert_layout)
    if name.startswith("self_attn.") and name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
        letter, kind = name.split(".")[1][0], name.split(".")[2]
        n_head = config.num_attention_heads if letter == "q" else config.num_key_value_heads
        if letter != "v" and case.arch in ("llama", "deepseek"):
            weight = permute_rows(weight, n_head)
        return {f"attn_{letter}.{kind}": weight}
    if name == "self_attn.kv_b_proj.weight":
        if case.mla_layout == "joined":
            return {"attn_kv_b.weight": weight}
        per_head = weight.reshape(config.num_attention_heads, -1, weight.shape[1])
        k, v = np.split(per_head, [config.qk_nope_head_dim], axis=1)
        return {"attn_k_b.weight": k.swapaxes(1, 2), "attn_v_b.weight": v}
    if name == "mlp.shared_expert_gate.weight":
        weight = weight.reshape(-1)
    return {LAYER_NAMES[name]: weight}


def tensors(model, case):
    """All tensors of the file, in file order, as {name: float32 array}."""
    out = {}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        if name == "model.embed_tokens.weight":
            out["token_embd.weight"] = weight
        elif name == "model.norm.weight":
            out["output_norm.weight"] = weight
        elif name == "lm_head.weight":
            if not case.tied:
                out["output.weight"] = weight
        else:
            _, _, index, rest = name.split(".", 3)
            for new, w in layer_tensors(rest, weight, case, model.config).items():
                out[f"blk.{index}.{new}"] = w
    return out


def byte_characters():
    """GPT-2's printable stand-in for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in table:
            table[b] = chr(extra)
            extra += 1
    return [table[b] for b in range(256)]


def add_small_vocabulary(writer, size):
    """Some bytes, one merge and an end-of-text token, the last."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    bytes_ = byte_characters()[33:33 + size - 2]
    writer.add_token_list([*bytes_, bytes_[0] + bytes_[1], "<|endoftext|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (size - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{bytes_[0]} {bytes_[1]}"])
    writer.add_bos_token_id(size - 1)
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)


def add_gpt2_vocabulary(writer, size):
    """256 bytes, merges of a few frequent English pairs, one end-of-text token (the last id)."""
    space = byte_characters()[32]
    pairs = ["h e", "i n", f"{space} t", f"{space}t he", "r e", "o n", f"{space} a", "e r", "n d",
             "a t", "e s", "o r", f"{space} s", f"{space} w", "o u", "i s", "i t", "e n", f"{space} c",
             "in g", f"{space} o", f"{space} f", f"{space}a nd", "a l", f"{space}o f", "l l", "a r",
             f"{space} b", "e d", "l e", "a s"]
    merges = pairs[:size - 257]
    tokens = byte_characters() + [m.replace(" ", "") for m in merges]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    while len(tokens) < size - 1:
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(gguf.TokenType.UNUSED)
    tokens.append("<|endoftext|>")
    types.append(gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(size - 1)
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)


def add_llama_vocabulary(writer, size):
    """Three control tokens, 256 byte tokens, then pieces of falling score."""
    pieces = ["\u2581", "e", "t", "a", "o", "n", "i", "s", "r", "h", "\u2581t", "he", "in", "\u2581the",
              "re", "on", "\u2581a", "er", "nd", "at", "es", "or", "\u2581s", "ou", "is", "it", "en",
              "ing", "ed"]
    pieces = pieces[:size - 259]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
    types = ([gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
             + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(pieces))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-1000.0 + len(p) * 100 - i for i, p in enumerate(pieces)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)


def add_rope(writer, rope, deepseek2):
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope.get("rope_type", "default") != "yarn":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(float(rope["factor"]))
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if deepseek2:   # one tenth of mscale_all_dim, as llama.cpp's converter has it
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_experts(writer, c, case):
    experts = getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None)
    writer.add_expert_count(experts or c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    if case.arch in ("qwen2moe", "qwen3moe", "deepseek", "deepseek2"):
        writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    if case.arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    if case.arch == "olmoe" and c.norm_topk_prob:
        writer.add_expert_weights_norm(True)
    if not case.arch.startswith("deepseek"):
        return
    writer.add_leading_dense_block_count(c.first_k_dense_replace)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    if getattr(c, "norm_topk_prob", False):
        writer.add_expert_weights_norm(True)
    if case.gating != "softmax":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if getattr(c, "n_group", None) and c.n_group > 1:
        writer.add_expert_group_count(c.n_group)
        writer.add_expert_group_used_count(c.topk_group)


def add_attention(writer, c, case):
    writer.add_head_count(c.num_attention_heads)
    if case.arch != "deepseek2":
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        writer.add_head_count_kv(c.num_key_value_heads)
        if case.arch == "qwen3moe":     # the only family here whose heads are not n_embd / n_head
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
        if getattr(c, "clip_qkv", None):
            writer.add_clamp_kqv(c.clip_qkv)
        return
    key, rope = c.qk_nope_head_dim + c.qk_rope_head_dim, c.qk_rope_head_dim
    if c.q_lora_rank:
        writer.add_q_lora_rank(c.q_lora_rank)
    writer.add_kv_lora_rank(c.kv_lora_rank)
    writer.add_rope_dimension_count(rope)
    if case.mla_layout == "joined":
        writer.add_head_count_kv(c.num_attention_heads)
        writer.add_key_length(key)
        writer.add_value_length(c.v_head_dim)
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(c.kv_lora_rank + rope)
        writer.add_value_length(c.kv_lora_rank)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(c.v_head_dim)


def stays_f32(name, array):
    return array.ndim == 1 or name.endswith("ffn_gate_inp.weight")


def write(path, model, case, quantised=False):
    """Writes F32, or with `quantised` Q8_0 for all matrices but the router."""
    c = model.config
    writer = gguf.GGUFWriter(str(path), case.arch)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantised else gguf.LlamaFileType.ALL_F32)
    add_attention(writer, c, case)
    add_rope(writer, c.rope_parameters, case.arch == "deepseek2")
    add_experts(writer, c, case)
    (add_llama_vocabulary if case.arch == "llama" else add_gpt2_vocabulary)(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        array = np.ascontiguousarray(array, np.float32)
        if quantised and not stays_f32(name, array):
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(array, q8), raw_dtype=q8)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
