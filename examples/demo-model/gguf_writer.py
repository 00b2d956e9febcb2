"""Writes a trained model as GGUF, architecture `qwen3moe`.

Tensor names and metadata follow the convention that all GGUF engines share. How each tensor is
stored is the caller's choice: a mapping from tensor name to a quantisation type, F32 by default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QuantType
from torch import nn

from model import ModelConfig, MoETransformer
from quantize import quantize
from tokenizer import CHAT_TEMPLATE, CONTROL_TOKENS, DemoTokenizer

ARCHITECTURE = "qwen3moe"


def gguf_parameters(model: MoETransformer) -> dict[str, nn.Parameter]:
    """The model's parameters under their GGUF names and in GGUF order."""
    parameters = {"token_embd.weight": model.embedding}
    for i, block in enumerate(model.blocks):
        attention, moe = block.attn, block.moe
        parameters |= {
            f"blk.{i}.attn_norm.weight": block.attn_norm.weight,
            f"blk.{i}.attn_q.weight": attention.q,
            f"blk.{i}.attn_k.weight": attention.k,
            f"blk.{i}.attn_v.weight": attention.v,
            f"blk.{i}.attn_q_norm.weight": attention.q_norm.weight,
            f"blk.{i}.attn_k_norm.weight": attention.k_norm.weight,
            f"blk.{i}.attn_output.weight": attention.output,
            f"blk.{i}.ffn_norm.weight": block.ffn_norm.weight,
            f"blk.{i}.ffn_gate_inp.weight": moe.router,
            f"blk.{i}.ffn_gate_exps.weight": moe.gate,
            f"blk.{i}.ffn_up_exps.weight": moe.up,
            f"blk.{i}.ffn_down_exps.weight": moe.down,
        }
    parameters["output_norm.weight"] = model.output_norm.weight
    return parameters


def load_gguf_weights(path: Path, model: MoETransformer) -> None:
    """Puts a file's weights, dequantised, into `model`: the reference for other engines."""
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    parameters = gguf_parameters(model)
    if stored.keys() != parameters.keys():
        raise ValueError(f"{path}: tensors differ: {sorted(stored.keys() ^ parameters.keys())}")
    for name, parameter in parameters.items():
        values = gguf.dequantize(stored[name].data, stored[name].tensor_type)
        parameter.data.copy_(parameter.new_tensor(np.array(values)).view_as(parameter))


def _write_metadata(writer: gguf.GGUFWriter, config: ModelConfig, metadata: Mapping) -> None:
    writer.add_type("model")
    writer.add_name(metadata["name"])
    writer.add_description(metadata["description"])
    writer.add_license(metadata["license"])
    writer.add_size_label(metadata["size_label"])
    writer.add_languages(["en"])
    writer.add_file_type(metadata["file_type"])
    writer.add_context_length(config.n_context)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    # No dense layer exists; engines still ask for the key.
    writer.add_feed_forward_length(config.n_ff_expert * config.n_expert_used)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_expert_count(config.n_expert)
    writer.add_expert_used_count(config.n_expert_used)
    writer.add_expert_feed_forward_length(config.n_ff_expert)
    writer.add_vocab_size(config.n_vocab)


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: DemoTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in CONTROL_TOKENS
                            else gguf.TokenType.NORMAL for token in tokenizer.tokens])
    writer.add_token_merges(tokenizer.merges)
    # A chat turn ends with <|im_end|>, a document with <|endoftext|>; both end generation.
    writer.add_eos_token_id(tokenizer.im_end)
    writer.add_eot_token_id(tokenizer.im_end)
    writer.add_eom_token_id(tokenizer.endoftext)
    writer.add_bos_token_id(tokenizer.endoftext)
    writer.add_pad_token_id(tokenizer.endoftext)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(
    path: Path,
    model: MoETransformer,
    tokenizer: DemoTokenizer,
    types: Mapping[str, QuantType] | None = None,
    moments: Mapping[str, torch.Tensor] | None = None,
    **metadata: str,
) -> None:
    """Writes `path` atomically. `moments`: see `quantize`, by tensor name."""
    config = model.config
    total = sum(p.numel() for p in model.parameters())
    metadata = {
        "name": "moe-demo",
        "description": "A small mixture-of-experts language model trained from scratch on GSM8K's "
                       "training split, Shakespeare and Python's standard library",
        "license": "mit",
        "size_label": f"{config.n_expert}x{total / 1e6 / config.n_expert:.1f}M",
        "file_type": gguf.LlamaFileType.ALL_F32 if not types else gguf.LlamaFileType.GUESSED,
    } | metadata
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    _write_metadata(writer, config, metadata)
    _write_tokenizer(writer, tokenizer)
    for name, parameter in gguf_parameters(model).items():
        values = parameter.detach().float().cpu().numpy()
        quant_type = (types or {}).get(name, QuantType.F32)
        if quant_type == QuantType.F32:
            writer.add_tensor(name, values)
            continue
        data = quantize(values, quant_type, (moments or {}).get(name))
        writer.add_tensor(name, data, raw_dtype=quant_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, path)
