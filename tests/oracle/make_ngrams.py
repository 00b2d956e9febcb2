# SPDX-License-Identifier: MIT
"""Writes the oracles of Qwen3.8-Flash-Next: residual streams whose elements have gates, attention to chosen pools
of positions, a table of n-grams; as make_indexed.py does its own.

    python3 make_ngrams.py [--only NAME...] [--out DIRECTORY]

Files have the names and keys of llama.cpp: norms get the 1 that the torch code adds, the value heads change their
order as in qwen35moe, the indexer's projection is cut in two. The table's end token is an ordinary one here, so
that prompts contain it.
"""
from contextlib import contextmanager
import re

import gguf
import numpy as np
import torch
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

import family_cases
import family_gguf
import make_families
import make_indexed
import recurrent_cases
import recurrent_gguf
from case_loop import chosen_cases
from family_cases import FamilyCase, TIED, rope
from make_oracles import greedy
from make_recurrent import thin_out

END = 7
ARCH = "qwen4exp"


def layers(text, table, pool=4, top_k=16):
    """One letter for each layer; the number, from 0, of the one before which the table is read."""
    names = dict(L="linear_attention", A="indexed_attention")
    return dict(layer_types=[names[letter] for letter in text], num_hidden_layers=len(text),
                ple_layer_ids=[] if table is None else [table + 1], indexer_compress_ratio=pool, indexer_budget=top_k)


FAMILIES = {ARCH: (Qwen4ExpTextConfig, Qwen4ExpForCausalLM, recurrent_cases.DELTA | dict(
    output_gate_type="sigmoid", hc_count=4, hc_lowrank=12, indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16,
    ple_embed_dim=24, ngram_size=3, heads_per_ngram=3, ngram_vocab_size_base=97, make_ngram_vocab_size_divisible_by=16,
    ple_conv_kernel_size=4, split_ngram_parts=1, eos_token_id=END)
    | rope(1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))}
CASES = [
    FamilyCase(ARCH, ARCH, ARCH, layers("LLA", 1), 701),
    FamilyCase(ARCH + "-streams", ARCH, ARCH, TIED | layers("LA", 0, pool=3, top_k=12) | dict(
        hc_count=3, hc_lowrank=8, ngram_size=2, heads_per_ngram=4, ple_embed_dim=32, ple_conv_kernel_size=3,
        linear_num_key_heads=3, linear_num_value_heads=9, linear_key_head_dim=4, linear_value_head_dim=4,
        indexer_n_heads=3, num_experts=9, num_experts_per_tok=2), 702),
    FamilyCase(ARCH + "-plain", ARCH, ARCH, layers("LA", None), 703),
    FamilyCase(ARCH + "-long", ARCH, ARCH, layers("LLA", 1, pool=16, top_k=64) | dict(
        hc_count=2, ngram_size=4, heads_per_ngram=2, num_experts=5, num_experts_per_tok=2, indexer_n_heads=8), 704),
]
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
STREAMS = {"hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
           "block_inject_weight": "inject"}


def build(case):
    """As recurrent_cases.build()."""
    saved = recurrent_cases.FAMILIES
    recurrent_cases.FAMILIES = FAMILIES
    try:
        config = Qwen4ExpTextConfig(**(family_cases.COMMON | FAMILIES[ARCH][2] | case.config))
        whole = {name: value.clone() for name, value in Qwen4ExpForCausalLM(config).state_dict().items()
                 if value.dtype == torch.int64}
        model = recurrent_cases.build(case)
    finally:
        recurrent_cases.FAMILIES = saved
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if name in whole:
                weight.copy_(whole[name])
            if ".ple.norm_" in name:
                weight -= 1.0
            if "ngram_embedding" in name:
                weight.mul_(weight.shape[-1] ** 0.5)
    return model


# ---- The file ----

def layer_tensors(name, weight, case, c):
    streams = re.fullmatch(r"(attn|mlp)_hyper_connection\.(\w+)\.weight", name)
    if streams:
        part = STREAMS[streams[2]]
        return {f"hc_{streams[1].replace('mlp', 'ffn')}_{part}.weight": weight + 1 if part == "norm" else weight}
    if name.startswith("ple."):
        stem = name.removeprefix("ple.").removesuffix(".weight")
        new = {"key_proj": "ple_key", "value_proj": "ple_value", "conv1d": "ple_conv1d"}.get(stem, "ple_" + stem)
        return {new + ".weight": weight + 1 if stem.startswith("norm_") else weight.squeeze()}
    if name == "self_attn.indexer.index_qk_proj.weight":
        n = c.indexer_n_heads * c.indexer_head_dim
        return {"indexer.q_proj.weight": weight[:n], "indexer.k_proj.weight": weight[n:]}
    if name.startswith("self_attn.indexer."):
        return {f"indexer.{name.split('.')[2][0]}_norm.weight": weight + 1}
    turned = recurrent_gguf.reorder(name, weight, c) if name.startswith("linear_attn.") else weight
    return recurrent_gguf.layer_tensors(name, turned, case, c)


def tensors(model, case):
    out = {}
    for name, value in model.state_dict().items():
        weight = value.float().numpy()
        mixer = re.fullmatch(r"model\.hyper_connection_mixer\.(\w+)\.weight", name)
        if ".ple.ple_embedding." in name:
            if name.endswith("ngram_embedding.weight"):
                out["per_layer_token_embd.weight"] = weight
        elif mixer:
            part = STREAMS[mixer[1]]
            out[f"output_hc_{part}.weight"] = weight + 1 if part == "norm" else weight
        elif name in NAMES:
            if not (name == "lm_head.weight" and case.tied):
                out[NAMES[name]] = weight
        else:
            index, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
            for new, part in layer_tensors(rest, weight, case, model.config).items():
                out[f"blk.{index}.{new}"] = part
    return out


def add_table(writer, model, c):
    table = model.model.layers[c.ple_layer_ids[0] - 1].ple.ple_embedding
    numbers = {"ngram_size": c.ngram_size, "heads_per_ngram": c.heads_per_ngram, "conv_kernel": c.ple_conv_kernel_size,
               "eos_token_id": END, "image_token_id": 3}
    lists = {"layer_multipliers": table.layer_multipliers, "head_offsets": table.ngram_heads_offsets,
             "head_vocab_sizes": table.ngram_heads_vocab_sizes}
    writer.add_array(f"{ARCH}.ple.layers", [i - 1 for i in c.ple_layer_ids])
    writer.add_uint32(f"{ARCH}.embedding_length_per_layer_input", table.ngram_embedding.embedding_dim)
    for key, value in numbers.items():
        writer.add_uint32(f"{ARCH}.ple.{key}", value)
    for key, values in lists.items():
        writer.add_key_value(f"{ARCH}.ple.{key}", [int(v) for v in values], gguf.GGUFValueType.ARRAY,
                             gguf.GGUFValueType.UINT64)


def write(path, model, case):
    c = model.config
    writer = gguf.GGUFWriter(str(path), ARCH)
    writer.add_name(case.name)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + case.n_nextn)
    if case.n_nextn:
        writer.add_nextn_predict_layers(case.n_nextn)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    family_gguf.add_attention(writer, c)
    family_gguf.add_rope(writer, c.rope_parameters, False)
    family_gguf.add_experts(writer, c, case)
    writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    recurrent_gguf.add_recurrence(writer, c, case)
    attends = [kind == "indexed_attention" for kind in c.layer_types]
    writer.add_array(f"{ARCH}.attention.compress_ratios", [c.indexer_compress_ratio * a for a in attends])
    writer.add_indexer_head_count(c.indexer_n_heads)
    writer.add_indexer_key_length(c.indexer_head_dim)
    writer.add_indexer_top_k(c.indexer_budget)
    writer.add_uint32(f"{ARCH}.hyper_connection.count", c.hc_count)
    writer.add_uint32(f"{ARCH}.hyper_connection.low_rank", c.hc_lowrank)
    if c.ple_layer_ids:
        add_table(writer, model, c)
    family_gguf.add_vocabulary(writer, c.vocab_size)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- The prompts ----

@contextmanager
def watched_choices():
    """As make_indexed.watched_choices(). The choice of pools is one call for each row."""
    gaps, topk = [], torch.Tensor.topk

    def watched(scores, k, *args, **kwargs):
        if scores.ndim == 1 and kwargs.get("dim") == 0:
            apart = torch.inf
            if len(scores) > k:
                best = topk(scores, k + 1, dim=0).values
                apart = float((best[k - 1] - best[k]) / best[0].abs().clamp_min(1e-9))
            rows.append(apart)
        return topk(scores, k, *args, **kwargs)

    rows = []
    torch.Tensor.topk = watched
    try:
        yield gaps
    finally:
        torch.Tensor.topk = topk
        gaps.append(rows)


@torch.no_grad()
def first_loose_row(model, ids):
    with watched_choices() as gaps:
        logits = make_indexed.logits_of(model, ids)
    # Rows that see less than a whole pool choose nothing.
    n_first = min(model.config.indexer_compress_ratio - 1, len(ids))
    of_layers = torch.tensor(gaps[0]).reshape(model.config.layer_types.count("indexed_attention"), len(ids) - n_first)
    least = torch.cat([torch.full((n_first,), torch.inf), of_layers.min(dim=0).values])
    row = make_indexed.first_of(least < make_indexed.MIN_INDEX_GAP)
    if row is not None:
        return row, float(least.min())
    table = model.model.embed_tokens.weight
    kept, generator = table.clone(), torch.Generator().manual_seed(len(ids))
    for _ in range(make_indexed.N_TRIALS):
        table.copy_(kept * (1 + make_indexed.NUDGE * torch.randn(table.shape, generator=generator)))
        moved = (make_indexed.logits_of(model, ids) - logits).abs().max(dim=1).values
        found = make_indexed.first_of(moved > make_indexed.MAX_EFFECT * logits.abs().max())
        row = found if row is None or (found is not None and found < row) else row
    table.copy_(kept)
    return row, float(least.min())


def main():
    make_indexed.first_loose_row = first_loose_row
    make_indexed.likely_tokens = lambda model, ids: greedy(model, ids)[0]
    make_families.draw_prompt = make_indexed.draw_prompt
    for case, out in chosen_cases(__doc__, CASES):
        make_families.PROMPT_LENGTHS = recurrent_cases.prompt_lengths(case)
        model = build(case)
        write(out / "model.gguf", model, case)
        make_families.write_prompts(out, model, case)
        thin_out(out)


if __name__ == "__main__":
    main()
