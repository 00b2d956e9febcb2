#!/usr/bin/env python3
"""Trains the demo model's EAGLE-3 head: `python3 train_eagle.py --out DIR --steps 240`.

As train_head.py, whose options it has: soft targets of the model as it is, `--depth` tokens in a
row. The draft vocabulary is the `--draft-vocab` tokens that the training text has most often. When
all steps are done it writes OUT/head.gguf as other engines lay EAGLE-3 heads out (architecture
`eagle3`).
"""

from __future__ import annotations

import copy
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QuantType

from eagle_head import TARGET_LAYERS, EagleHead, Features, eagle_parameters
from optimizer import WEIGHT_DECAY, Muon
from train_head import LENGTH, HeadTrainer, argument_parser, finish, write_parameters

COUNTED_BATCHES = 64  # of 8 x LENGTH tokens, to choose the draft vocabulary


class EagleTrainer(HeadTrainer):
    def make_head(self) -> EagleHead:
        a = self.arguments
        self.features = Features(self.model)
        head = EagleHead(self.model, a.n_ff, a.draft_vocab)
        head.initialise(self.model, torch.arange(a.draft_vocab), a.seed)
        return head

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        named = [(n, p) for n, p in self.head.named_parameters() if n != "lm_head"]
        lr = self.arguments.lr
        adamw = torch.optim.AdamW(
            [{"params": [self.head.lm_head], "weight_decay": WEIGHT_DECAY},
             {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0}],
            lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=True)
        return [Muon([p for _, p in named if p.dim() == 2], lr), adamw]

    def begin(self) -> None:
        """Chooses the draft vocabulary."""
        counts = np.zeros(self.model.config.n_vocab, np.int64)
        state = copy.deepcopy(self.stream.state)
        for _ in range(COUNTED_BATCHES):
            counts += np.bincount(self.stream.batch(8, LENGTH).ravel(), minlength=counts.size)
        self.stream.state = state
        chosen = np.sort(np.argsort(-counts, kind="stable")[:self.arguments.draft_vocab])
        share = counts[chosen].sum() / counts.sum()
        print(f"draft vocabulary: {share:.4f} of the text", flush=True)
        self.head.initialise(self.model, torch.from_numpy(chosen), self.arguments.seed)

    def distributions(self, tokens: torch.Tensor):
        """For each depth: the logarithms of the head's and the model's probabilities of the same
        tokens, [rows, n_vocab]."""
        for mine, model in self.drafted(tokens):
            full = torch.full_like(model, float("-inf"))
            full[:, self.head.d2t] = mine
            yield full, model

    def drafted(self, tokens: torch.Tensor):
        """The same, the head's of its own vocabulary."""
        with torch.no_grad():
            hidden = self.model.hidden(tokens)[0]
            target = self.model.logits(hidden).float().log_softmax(-1)
            features = self.features.joined()
            embedded = self.model.embedding[tokens]
        states = self.head(embedded[:, 1:], features[:, :-1], self.arguments.depth)
        for d, state in enumerate(states):
            mine = self.head.logits(state).log_softmax(-1)
            yield mine.flatten(0, 1), target[:, 1 + d:].flatten(0, 1)

    def losses(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.kl_div(mine, model[:, self.head.d2t].log_softmax(-1),
                                           reduction="batchmean", log_target=True)
                for mine, model in self.drafted(tokens)]

    def observed(self):
        """Modules, and the matrices that read what they put out."""
        return [(self.head.ffn_norm, ("ffn_gate", "ffn_up")), (self.head.output_norm, ("output",))]

    def write(self, path: Path) -> None:
        c, a = self.model.config, self.arguments
        writer = gguf.GGUFWriter(path, "eagle3")
        writer.add_type("model")
        writer.add_name("moe-demo-eagle3")
        writer.add_license("mit")
        writer.add_block_count(1)
        writer.add_context_length(c.n_context)
        writer.add_embedding_length(c.n_embd)
        writer.add_feed_forward_length(a.n_ff)
        writer.add_head_count(c.n_head)
        writer.add_head_count_kv(c.n_head_kv)
        writer.add_key_length(c.head_dim)
        writer.add_value_length(c.head_dim)
        writer.add_rope_dimension_count(c.head_dim)
        writer.add_rope_freq_base(c.rope_theta)
        writer.add_layer_norm_rms_eps(c.norm_epsilon)
        writer.add_vocab_size(c.n_vocab)
        writer.add_array("eagle3.target_layers", list(TARGET_LAYERS))
        writer.add_uint32("eagle3.target_hidden_size", c.n_embd)
        writer.add_bool("eagle3.norm_before_residual", False)
        writer.add_bool("eagle3.norm_before_fc", False)
        write_parameters(writer, eagle_parameters(self.head), self.moments())
        writer.add_tensor("d2t", self.head.d2t.numpy(), raw_dtype=QuantType.I64)
        finish(writer, path)


if __name__ == "__main__":
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--draft-vocab", type=int, default=3072)
    EagleTrainer(parser.parse_args()).run()
