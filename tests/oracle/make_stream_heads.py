# SPDX-License-Identifier: MIT
"""Writes the oracles of drafting layers of models with several residual streams, as make_heads.py does its own.

    python3 make_stream_heads.py [--only NAME...] [--out DIRECTORY]

transformers runs no such layer. So this script runs a model of one layer, of the family's own classes, whose
input is replaced by what a drafting layer joins. In DeepSeek-V4 and Qwen3.8-Flash-Next the layer has the model's
streams, and each is joined with the token; in GLM-5.3-Flash and Hunyuan-4 it has a single one, and goes on from
what the model's head reads (sglang 0.5.23: models/*_nextn.py, qwen4_exp_mtp.py). The layer attends to all
positions, or to those of its window.
"""
import dataclasses
import re

import numpy as np
import torch

import compressed_cases
import compressed_gguf
import family_cases
import family_gguf
import hybrid_cases
import hybrid_gguf
import make_families
import make_ngrams
import recurrent_cases
from case_loop import chosen_cases
from family_cases import FamilyCase

MORE = 4096     # positions that an indexer may choose: all
CASES = [
    FamilyCase("nextn-glm5-next", "glm5-next", "glm5_next", hybrid_cases.kimi("KA", 0), 611, n_nextn=1),
    FamilyCase("nextn-hy_v4", "hy_v4", "hy_v4", dict(num_hidden_layers=2, mlp_layer_types=["dense", "sparse"],
                                                    indexer_types=["full", "full"]), 612, n_nextn=1),
    FamilyCase("nextn-qwen4exp", "qwen4exp", "qwen4exp", make_ngrams.layers("LA", 0), 613, n_nextn=1),
    FamilyCase("nextn-deepseek4", "deepseek4", "deepseek_v4", compressed_cases.layers("CH", 1), 614, n_nextn=1),
]
ONE_LAYER = {
    "glm5_next": hybrid_cases.kimi("A", 0) | dict(index_topk=MORE),
    "hy_v4": dict(num_hidden_layers=1, mlp_layer_types=["sparse"], indexer_types=["full"], index_topk=MORE),
    "qwen4exp": make_ngrams.layers("A", None, top_k=MORE),
    "deepseek_v4": compressed_cases.layers("W", 0),
}
MODULES = {"glm5_next": (hybrid_cases.build, hybrid_gguf), "hy_v4": (family_cases.build, family_gguf),
           "qwen4exp": (make_ngrams.build, make_ngrams), "deepseek_v4": (compressed_cases.build, compressed_gguf)}


class Plain(torch.nn.Module):
    """In place of what reads and writes streams: all streams are the same single one."""

    def __init__(self, with_mixing):
        super().__init__()
        self.with_mixing = with_mixing

    def forward(self, x):
        ones = torch.ones(x.shape[:-1])
        mixing = (torch.eye(x.shape[-2]).expand(*x.shape[:-1], x.shape[-2]),) if self.with_mixing else ()
        return ones, *mixing, x[..., 0, :]


class Layer:
    """A drafting layer of a model."""

    def __init__(self, model, case, build):
        own = dataclasses.replace(case, config=case.config | ONE_LAYER[case.family], seed=case.seed + 100)
        self.case, self.model, self.draft = case, model, build(own)
        config = model.config
        self.n, self.eps = config.hidden_size, config.rms_norm_eps
        self.wide = case.family in ("qwen4exp", "deepseek_v4")
        self.n_streams = getattr(config, "hc_mult", None) or config.hc_count
        generator = torch.Generator().manual_seed(case.seed)
        whole = self.n_streams * self.n if case.family == "qwen4exp" else self.n

        def drawn(*shape, mean=0.0, spread=0.2):
            return (mean + spread * torch.randn(shape, generator=generator)).bfloat16().float()
        self.own = {"eh_proj": drawn(self.n, 2 * self.n, spread=self.n ** -0.5), "enorm": drawn(self.n, mean=1.0),
                    "hnorm": drawn(whole, mean=1.0)}
        layer = self.draft.model.layers[0]
        if not self.wide:
            layer.attn_hc = layer.ffn_hc = Plain(case.family == "glm5_next")
        layer.register_forward_pre_hook(self.put_in, with_kwargs=True)
        layer.register_forward_hook(self.take_out)

    def put_in(self, _, args, kwargs):
        if args:
            return (self.given, *args[1:]), kwargs
        return args, kwargs | dict(hidden_states=self.given)

    def take_out(self, _, args, out):
        self.streams = out[0] if isinstance(out, tuple) else out

    def norm(self, x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def run(self, tokens, states):
        """For hidden states and the tokens behind them: the next states, and the logits."""
        token = self.norm(self.model.model.embed_tokens(tokens), self.own["enorm"])
        if self.wide and self.case.family != "qwen4exp":
            states = states.reshape(*states.shape[:-1], self.n_streams, self.n)
        hidden = self.norm(states, self.own["hnorm"])
        if self.wide:
            hidden = hidden.reshape(len(tokens), self.n_streams, self.n)
            token = token[:, None].expand_as(hidden)
        joined = torch.cat([token, hidden], dim=-1) @ self.own["eh_proj"].T
        if not self.wide:
            joined = joined[:, None].expand(-1, self.n_streams, -1)
        self.given = (joined.flatten(-2) if self.case.family == "qwen4exp" else joined)[None]
        out = self.draft.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        if self.wide:
            return self.streams[0].reshape(len(tokens), -1), self.model.lm_head(out)
        out = self.draft.model.norm(self.streams[0, :, 0])
        return out, self.model.lm_head(out)

    def tensors(self, module):
        """The layer's tensors in the file."""
        index, out = self.model.config.num_hidden_layers, {}
        for name, value in module.tensors(self.draft, dataclasses.replace(self.case, n_nextn=0)).items():
            if name.startswith("blk.0."):
                plain = "indexer" in name or (not self.wide and ".hc_" in name)
                out |= {} if plain else {f"blk.{index}.{name.removeprefix('blk.0.')}": value}
            elif name.startswith("output_hc_") and self.wide:
                out[f"blk.{index}.nextn.hc_head_{name.removeprefix('output_hc_')}"] = value
            elif name == "output_norm.weight":
                out[f"blk.{index}.nextn.shared_head_norm.weight"] = value
        return out | {f"blk.{index}.nextn.{name}.weight": value.numpy() for name, value in self.own.items()}


def states_of(model, tokens, wide):
    """What the head reads of each row; wide: the streams before it."""
    kept = []
    last = model.model.layers[-1].register_forward_hook(
        lambda _, args, out: kept.append(out[0] if isinstance(out, tuple) else out))
    out = model.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
    last.remove()
    return kept[0][0].reshape(len(tokens), -1) if wide else out


@torch.no_grad()
def drafts_of(layer, ids):
    tokens = torch.tensor(ids)
    states = states_of(layer.model, tokens, layer.wide)
    next_states, first = layer.run(tokens[1:], states[:-1])
    out = []
    for p in range(len(ids) - 2):
        _, second = layer.run(tokens[1:p + 3], torch.cat([states[:p + 1], next_states[p:p + 1]]))
        out.append(torch.stack([first[p], second[-1]]))
    return torch.stack(out).numpy().astype("<f4")


def main():
    for case, out in chosen_cases(__doc__, CASES):
        build, module = MODULES[case.family]
        model = build(dataclasses.replace(case, n_nextn=0))
        layer = Layer(model, case, build)
        of_model = module.tensors
        more = layer.tensors(module)
        family_gguf.nextn_tensors = lambda *_: {}
        module.tensors = lambda model, case: of_model(model, case) | more
        module.write(out / "model.gguf", model, case)
        module.tensors = of_model
        make_families.PROMPT_LENGTHS = (24, 40, 64)
        make_families.write_prompts(out, model, case)
        for number, line in enumerate((out / "prompts.txt").read_text().splitlines()):
            drafts = drafts_of(layer, [int(i) for i in line.split()])
            np.save(out / f"{number}.drafts.npy", drafts.reshape(-1, drafts.shape[-1]))
        print(f"{case.name}: draft logits sd {drafts.std():.2f} max {np.abs(drafts).max():.1f}", flush=True)


if __name__ == "__main__":
    main()
