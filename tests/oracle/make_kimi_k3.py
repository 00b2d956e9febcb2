# SPDX-License-Identifier: MIT
"""Writes the oracles of Kimi-K3: random models of mlx-lm's kimi_k3 as GGUF under llama.cpp's names, with
float32 logits and greedy continuations, as make_families.py and make_recurrent.py do for theirs. In a long
prompt, tokens that make a choice of experts hang on rounding are drawn again, from the beginning on.

    python3 make_kimi_k3.py [--only NAME...] [--out DIRECTORY]

Needs mlx and mlx_lm (their CPU wheels), numpy and gguf. Seeds are fixed.
"""
import argparse
import re
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
from mlx_lm.models.kimi_k3 import Model, ModelArgs

from oracle_gguf import add_small_vocabulary

ARCH, N_VOCAB, CONTEXT, N_GREEDY = "kimi-k3", 96, 2048, 32
MIN_GREEDY_GAP, NUDGE, MAX_EFFECT, N_TRIALS, KEPT_WHOLE = 2e-3, 2e-6, 1e-3, 4, 256
LONG = (24, 70, 1600)


@dataclass
class Case:
    name: str
    layers: str             # a letter each: K delta attention, A latent attention
    seed: int
    config: dict = field(default_factory=dict)
    kda_dim: int = 8
    bound: float = -5.0
    conv: int = 4
    lengths: tuple = (12, 56, 150)


COMMON = dict(
    model_type="kimi_linear", vocab_size=N_VOCAB, hidden_size=32, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=48, rms_norm_eps=1e-6, max_position_embeddings=CONTEXT, activation_situ_beta=4.0,
    activation_situ_linear_beta=25.0, attn_res_block_size=2, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=12,
    qk_rope_head_dim=8, v_head_dim=16, mla_use_output_gate=True, num_experts=8, num_experts_per_token=3,
    num_shared_experts=2, moe_intermediate_size=16, routed_scaling_factor=2.5, first_k_dense_replace=1,
    routed_expert_hidden_size=16, latent_moe_use_norm=True)
CASES = [
    Case("kimi-k3", "KKKAKA", 701),
    # All that a file may leave out; limits that most elements meet.
    Case("kimi-k3-wide", "AKK", 702, dict(
        attn_res_block_size=3, q_lora_rank=None, routed_expert_hidden_size=None, latent_moe_use_norm=False,
        activation_situ_beta=0.7, activation_situ_linear_beta=None, num_attention_heads=6, num_key_value_heads=6,
        num_experts=9, num_experts_per_token=2, num_expert_group=3, topk_group=2, moe_renormalize=False,
        first_k_dense_replace=0, num_shared_experts=1, rms_norm_eps=1e-5), kda_dim=16, bound=-1.5, conv=3),
    Case("kimi-k3-long", "KAKA", 703, dict(
        attn_res_block_size=1, activation_situ_beta=1.5, activation_situ_linear_beta=0.8, num_experts=5,
        num_experts_per_token=2, routed_expert_hidden_size=24, latent_moe_use_norm=False), bound=-8.0, lengths=LONG),
]


def gain(name):
    """Standard deviation of a matrix's weights times sqrt(row length)."""
    if "lm_head" in name:
        return 2.5
    if re.search(r"mlp\.gate\.weight|[qk]_proj|q_[ab]_proj|kv_a_proj|embed_q|res_proj", name):
        return 1.5
    return 3.0 if "down_proj" in name else 1.0


def build(case):
    """Weights that keep the streams near 1, the logits spread and the router decided; all are bfloat16 numbers."""
    n = len(case.layers)
    config = COMMON | case.config | dict(num_hidden_layers=n)
    config["linear_attn_config"] = dict(
        num_heads=config["num_attention_heads"], head_dim=case.kda_dim, short_conv_kernel_size=case.conv,
        gate_lower_bound=case.bound, use_full_rank_gate=True,
        kda_layers=[i + 1 for i in range(n) if case.layers[i] == "K"])
    model = Model(ModelArgs.from_dict(config))
    rng = np.random.default_rng(case.seed)
    weights = []
    for name, p in sorted(mlx_parameters(model).items()):
        drawn = rng.standard_normal(p.shape)
        if "norm" in name:
            drawn = 0.6 + rng.random(p.shape)
        elif name.endswith("A_log"):
            drawn = 1.0 - 3.0 * rng.random(p.shape)
        elif p.ndim == 1:
            drawn *= 0.2 if "correction_bias" in name else 0.3
        elif "embed_tokens" not in name:
            drawn *= gain(name) / (case.conv if "conv.weight" in name else p.shape[-1]) ** 0.5
        weights.append((name, mx.array(drawn.astype(np.float32)).astype(mx.bfloat16).astype(mx.float32)))
    model.load_weights(weights)
    return model, config


def mlx_parameters(model):
    from mlx.utils import tree_flatten
    return dict(tree_flatten(model.parameters()))


def logits_of(model, ids, cache=None):
    return np.array(model(mx.array([ids]), cache)[0])


def greedy(model, ids):
    """32 tokens, and the least gap between first and second."""
    cache, tokens, least, pending = model.make_cache(), [], np.inf, list(ids)
    for _ in range(N_GREEDY):
        last = logits_of(model, pending, cache)[-1]
        top = np.sort(last)[-2:]
        least = min(least, float((top[1] - top[0]) / np.abs(last).max()))
        pending = [int(last.argmax())]
        tokens += pending
        mx.eval([c.state for c in cache])
    return tokens, least


def is_firm(model, ids):
    """Whether logits stay when the embeddings are nudged."""
    table = model.model.embed_tokens
    kept, logits = table.weight, logits_of(model, ids)
    rng = np.random.default_rng(len(ids))
    firm = True
    for _ in range(N_TRIALS if len(ids) < KEPT_WHOLE else 2):
        noise = rng.standard_normal(kept.shape).astype(np.float32)
        table.weight = kept * (1 + NUDGE * mx.array(noise))
        firm &= np.abs(logits_of(model, ids) - logits).max() < MAX_EFFECT * np.abs(logits).max()
        if not firm:
            break
    table.weight = kept
    return firm


def mend(model, ids, rng):
    """Draws tokens again where a nudge of the embeddings moves the logits."""
    table = model.model.embed_tokens
    kept = table.weight
    for trial in range(60):
        logits = logits_of(model, ids)
        noise = np.random.default_rng(trial % 2).standard_normal(kept.shape).astype(np.float32)
        table.weight = kept * (1 + NUDGE * mx.array(noise))
        moved = np.abs(logits_of(model, ids) - logits).max(axis=1) > 0.5 * MAX_EFFECT * np.abs(logits).max()
        table.weight = kept
        if moved.any():
            ids[int(moved.argmax())] = int(rng.integers(N_VOCAB - 1))
        elif trial % 2:
            break
    return ids


def ids_line(ids):
    return " ".join(map(str, ids)) + "\n"


def write_prompts(out, model, case):
    rng = np.random.default_rng(case.seed)
    lines = []
    for number, length in enumerate(case.lengths):
        for _ in range(400):
            ids = [int(i) for i in rng.choice(N_VOCAB - 1, length)]
            if length > KEPT_WHOLE:
                ids = mend(model, ids, rng)
            tokens, gap = greedy(model, ids)
            if gap > MIN_GREEDY_GAP and N_VOCAB - 1 not in tokens and is_firm(model, ids + tokens):
                break
        else:
            raise RuntimeError(f"{case.name}: no well-conditioned prompt of {length} tokens")
        logits = logits_of(model, ids).astype("<f4")
        kept = [i for i in range(length) if length <= KEPT_WHOLE or i % 8 == 0 or i >= length - 4]
        (out / f"{number}.positions.txt").write_text(ids_line(kept))
        np.save(out / f"{number}.logits.npy", logits[kept])
        (out / f"{number}.greedy.txt").write_text(ids_line(tokens))
        lines.append(ids_line(ids))
        print(f"{case.name} {number}: logit sd {logits.std():.2f}  max {np.abs(logits).max():.1f}"
              f"  {len(set(tokens))} different greedy tokens", flush=True)
    (out / "prompts.txt").write_text("".join(lines))


# ---- GGUF ----

NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight", "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight", "self_attn.unembed_out.weight": "attn_v_b.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "self_attn.f_a_proj.weight": "ssm_f_a.weight",
    "self_attn.f_b_proj.weight": "ssm_f_b.weight", "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.dt_bias": "ssm_dt.bias", "self_attn.o_norm.weight": "ssm_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.routed_expert_down_proj.weight": "ffn_routed_down.weight",
    "mlp.routed_expert_up_proj.weight": "ffn_routed_up.weight",
    "mlp.routed_expert_norm.weight": "ffn_routed_norm.weight",
}
for part in ("gate", "up", "down"):
    NAMES |= {f"mlp.{part}_proj.weight": f"ffn_{part}.weight",
              f"mlp.switch_mlp.{part}_proj.weight": f"ffn_{part}_exps.weight",
              f"mlp.shared_experts.{part}_proj.weight": f"ffn_{part}_shexp.weight"}


def layer_tensors(name, weight, is_kda):
    if name == "self_attn.qkv_proj.weight":
        return {f"attn_{p}.weight": part for p, part in zip("qkv", np.split(weight, 3))}
    if name == "self_attn.qkv_conv.conv.weight":       # [3 * inner][kernel][1]
        return {f"ssm_conv1d_{p}.weight": part[None].swapaxes(2, 3)
                for p, part in zip("qkv", np.split(weight, 3))}
    if name == "self_attn.A_log":
        return {"ssm_a": -np.exp(weight)}
    if name == "self_attn.g_proj.weight":
        return {"ssm_g.weight" if is_kda else "attn_gate.weight": weight}
    if name == "self_attn.embed_q.weight":             # [heads][latent][nope]
        return {"attn_k_b.weight": weight}
    return {NAMES[name]: weight}


def tensors(model, case):
    state = {name.removeprefix("language_model."): np.array(p) for name, p in mlx_parameters(model).items()}
    out = {"token_embd.weight": state.pop("model.embed_tokens.weight"),
           "output_norm.weight": state.pop("model.norm.weight"), "output.weight": state.pop("lm_head.weight")}
    scores = {"self_attention_res": "attn_res_score", "mlp_res": "ffn_res_score", "output_attn_res": "output_res_score"}
    for name, weight in state.items():
        index, rest = re.fullmatch(r"model\.(?:layers\.(\d+)\.)?(.*)", name).groups()
        where = f"blk.{index}." if index is not None else ""
        score = re.fullmatch(r"(.*_res)_(norm|proj)\.weight", rest)
        if score:
            new = f"{where}{scores[score[1]]}.weight"
            out[new] = out.get(new, np.float32(1)) * weight.reshape(-1)
            continue
        for new, part in layer_tensors(rest, weight, case.layers[int(index)] == "K").items():
            out[where + new] = part
    return out


def write(path, model, c, case):
    writer = gguf.GGUFWriter(str(path), ARCH)
    writer.add_name(case.name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(len(case.layers))
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_vocab_size(N_VOCAB)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv([int(kind == "A") for kind in case.layers])
    writer.add_ssm_conv_kernel(case.conv)
    writer.add_uint32(f"{ARCH}.kda.head_dim", case.kda_dim)
    writer.add_float32(f"{ARCH}.kda.gate_lower_bound", case.bound)
    if c["q_lora_rank"] is not None:
        writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_kv_lora_rank(c["kv_lora_rank"])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    writer.add_value_length(c["kv_lora_rank"])
    writer.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    writer.add_value_length_mla(c["v_head_dim"])
    writer.add_expert_count(c["num_experts"])
    writer.add_expert_used_count(c["num_experts_per_token"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_shared_count(c["num_shared_experts"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_weights_norm(c.get("moe_renormalize", True))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "num_expert_group" in c:
        writer.add_expert_group_count(c["num_expert_group"])
        writer.add_expert_group_used_count(c["topk_group"])
    if c["routed_expert_hidden_size"] is not None:
        writer.add_uint32(f"{ARCH}.expert_latent_length", c["routed_expert_hidden_size"])
    writer.add_float32(f"{ARCH}.activation.situ_beta", c["activation_situ_beta"])
    writer.add_float32(f"{ARCH}.activation.situ_linear_beta", c["activation_situ_linear_beta"] or 0.0)
    writer.add_uint32(f"{ARCH}.attn_res.block_size", c["attn_res_block_size"])
    add_small_vocabulary(writer, N_VOCAB)
    for name, array in tensors(model, case).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    mx.disable_compile()    # else mlx asks for a compiler
    for case in CASES:
        if options.only is None or case.name in options.only:
            out = options.out / case.name
            out.mkdir(parents=True, exist_ok=True)
            model, config = build(case)
            write(out / "model.gguf", model, config, case)
            write_prompts(out, model, case)


if __name__ == "__main__":
    main()
