# SPDX-License-Identifier: MIT
"""Writes the oracles of drafting layers ("nextn"): a tiny model of a family with such a layer, and the
logits that transformers' MtpModel gives for its drafts.

    python3 make_heads.py [--only NAME...] [--out DIRECTORY]

The folder has, besides those of a family's model, CASE.drafts.npy: float32 [2 * positions][96]. For each
position p of the prompt but the last two: the logits of the token after p + 1, from the model's last hidden
state at p and the prompt's token p + 1; and those of the token after p + 2, from the layer's own state and
the prompt's token p + 2. The layer's keys and values before them come from the prompt alone.
"""
import numpy as np
import torch
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import MtpLayer

import family_cases
import family_gguf
import make_families
from case_loop import chosen_cases
from family_cases import FamilyCase, build
from make_oracles import ids_line

CASES = [
    FamilyCase("nextn-glm4moe", "glm4moe", "glm4_moe", dict(use_qk_norm=True), 601, n_nextn=1),
    FamilyCase("nextn-deepseek-v3", "deepseek2", "deepseek_v3", dict(n_group=3, topk_group=2), 602, n_nextn=1),
    FamilyCase("nextn-hyv3", "hy_v3", "hy_v3", {}, 603, n_nextn=1),
]


def build_layer(model, seed):
    """A layer like the model's last one, with weights of the same spread."""
    base = model.model
    norm = next(type(m) for n, m in base.layers[-1].named_modules() if "norm" in n)
    index = len(base.layers) - 1        # a layer with experts, in families that begin with dense ones
    layer = MtpLayer(model.config, type(base.layers[-1]), norm, index).eval()
    generator = torch.Generator().manual_seed(seed)
    like = dict(base.layers[-1].named_parameters()) | dict(base.layers[-1].named_buffers())
    with torch.no_grad():
        for name, value in list(layer.named_parameters()) + list(layer.named_buffers()):
            source = like.get(name.removeprefix("mtp_block."))
            if value.dim() >= 2:
                spread = source.std() if source is not None else 1.4 * value.shape[-1] ** -0.5
                value.copy_(torch.randn(value.shape, generator=generator) * spread)
            elif value.is_floating_point():
                mean = 0.0 if name.endswith(("bias", "e_score_correction_bias")) else 1.0
                value.copy_(mean + 0.2 * torch.randn(value.shape, generator=generator))
            value.copy_(value.bfloat16().float())
    return layer


def run(layer, model, embedded, hidden, positions, cache):
    rotary = model.model.rotary_emb(embedded, position_ids=positions)
    length, past = embedded.shape[1], cache.get_seq_length(layer.mtp_block.self_attn.layer_idx)
    mask = torch.full((length, past + length), float("-inf")).triu(past + 1)[None, None]
    return layer(embedded, hidden, position_embeddings=rotary, attention_mask=mask, position_ids=positions,
                 past_key_values=cache)


@torch.no_grad()
def drafts_of(layer, model, ids):
    tokens = torch.tensor([ids])
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    embedded = model.model.embed_tokens(tokens)
    positions = torch.arange(len(ids))[None]
    first = run(layer, model, embedded[:, 1:], hidden[:, :-1], positions[:, :-1], DynamicCache())
    out = []
    for p in range(len(ids) - 2):
        cache = DynamicCache()
        run(layer, model, embedded[:, 1:p + 2], hidden[:, :p + 1], positions[:, :p + 1], cache)
        second = run(layer, model, embedded[:, p + 2:p + 3], first[:, p:p + 1], positions[:, p + 1:p + 2], cache)
        out.append(torch.stack([model.lm_head(first[0, p]), model.lm_head(second[0, 0])]))
    return torch.stack(out).numpy().astype("<f4")


def layer_tensors(layer, case, config, index):
    names = {"eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
             "post_norm": "nextn.shared_head_norm"}
    out = {}
    for name, value in layer.state_dict().items():
        weight = value.float().numpy()
        if name.startswith("mtp_block."):
            parts = family_gguf.layer_tensors(name.removeprefix("mtp_block."), weight, case, config)
        else:
            stem, kind = name.rsplit(".", 1)
            parts = {f"{names[stem]}.{kind}": weight}
        out |= {f"blk.{index}.{n}": w for n, w in parts.items()}
    return out


def main():
    for case, out in chosen_cases(__doc__, CASES):
        model = build(case)
        layer = build_layer(model, case.seed)
        family_gguf.nextn_tensors = lambda case, c, _, index, layer=layer: layer_tensors(layer, case, c, index)
        family_gguf.write(out / "model.gguf", model, case)
        make_families.write_prompts(out, model, case)
        for number, line in enumerate((out / "prompts.txt").read_text().splitlines()):
            ids = [int(i) for i in line.split()]
            drafts = drafts_of(layer, model, ids)
            np.save(out / f"{number}.drafts.npy", drafts.reshape(-1, drafts.shape[-1]))
        print(f"{case.name}: draft logits sd {drafts.std():.2f} max {np.abs(drafts).max():.1f}", flush=True)


if __name__ == "__main__":
    main()
