#!/usr/bin/env python3
"""Trains the demo model's draft head: `python3 train_head.py --out DIR --steps 400`.

The model stays as it is. The head learns the model's own distributions (as soft targets) of the
token after the next one, and of `--depth` tokens in a row when it continues from its own states.
A run that was stopped, or that `--now` steps ended, goes on when started again. When all steps are
done it writes OUT/head.gguf, quantised, and prints how often the head agrees with the model on
held-out text.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QuantType

from data import DOMAINS, EncodedDomain, MixedStream, read_domains
from draft_head import DraftHead, head_parameters
from gguf_writer import ARCHITECTURE, load_gguf_weights
from model import SIZES, MoETransformer
from optimizer import make_optimizers
from quantize import quantize
from tokenizer import DemoTokenizer

HERE = Path(__file__).resolve().parent
LENGTH, REPORT_STEPS, HELD_OUT_WINDOWS = 512, 10, 6
LENGTHS = ((0.7, 512), (0.0, 256))  # sequences grow: (progress from which, length)
DEPTH_WEIGHT = 0.7  # of each further depth's loss
MIX = dict(zip(DOMAINS, (3.0, 2.0, 4.0)))


def argument_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, default=HERE / "moe-demo-q4.gguf")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint and head.gguf")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--now", type=int, default=1 << 30, help="steps of this call at most")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--n-ff", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--data", type=Path, default=HERE.parents[2] / "shared/data/text")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    return parser


def write_parameters(writer: gguf.GGUFWriter, parameters: dict, moments: dict) -> None:
    """Adds vectors as they are and matrices in IQ4_XS, weighted by the moments of their inputs. The
    parameters become what the file has."""
    for name, parameter in parameters.items():
        values = parameter.detach().float().numpy()
        if parameter.dim() < 2:
            writer.add_tensor(name, values)
            continue
        data = quantize(values, QuantType.IQ4_XS, moments.get(name.split(".")[-2]))
        writer.add_tensor(name, data, raw_dtype=QuantType.IQ4_XS)
        restored = gguf.dequantize(data, QuantType.IQ4_XS)
        parameter.data.copy_(torch.from_numpy(np.array(restored)).view_as(parameter))


def finish(writer: gguf.GGUFWriter, path: Path) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path}: {path.stat().st_size} bytes")


class HeadTrainer:
    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.out = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(arguments.seed)
        torch.set_num_threads(arguments.threads)
        self.model = MoETransformer(SIZES["ship"], torch.bfloat16)
        load_gguf_weights(arguments.model, self.model)
        self.model.requires_grad_(False).eval()
        self.head = self.make_head()
        self.optimizers = self.make_optimizers()
        self._read_text()
        self.step, self.cpu_seconds = 0, 0.0
        if (self.out / "head.pt").exists():
            saved = torch.load(self.out / "head.pt", weights_only=True)
            self.head.load_state_dict(saved["head"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"]):
                optimizer.load_state_dict(state)
            self.stream.state = saved["stream"]
            self.step, self.cpu_seconds = saved["step"], saved["cpu_seconds"]
        else:
            self.begin()

    def make_head(self) -> torch.nn.Module:
        head = DraftHead(self.model, self.arguments.n_ff)
        head.initialise(self.model, self.arguments.seed)
        return head

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        return make_optimizers(self.head, self.arguments.lr)

    def begin(self) -> None:
        """Called before the first step."""

    def _read_text(self) -> None:
        tokenizer = DemoTokenizer(self.arguments.model.with_name("tokenizer.json"))
        splits = read_domains(self.arguments.data, self.arguments.stdlib)
        self.stream = MixedStream({n: EncodedDomain(splits[n].train, tokenizer) for n in DOMAINS},
                                  tokenizer.byte_length, self.arguments.seed, MIX)
        self.held_out = {n: EncodedDomain(splits[n].held_out, tokenizer).stream(None)
                         .astype(np.int64) for n in DOMAINS}

    def save(self) -> None:
        state = {"head": self.head.state_dict(),
                 "optimizers": [o.state_dict() for o in self.optimizers],
                 "stream": self.stream.state, "step": self.step, "cpu_seconds": self.cpu_seconds}
        torch.save(state, self.out / "head.tmp")
        os.replace(self.out / "head.tmp", self.out / "head.pt")

    def distributions(self, tokens: torch.Tensor):
        """For each depth: the logarithms of the head's and the model's probabilities of the same
        tokens, [rows, n_vocab]."""
        with torch.no_grad():
            hidden = self.model.hidden(tokens)[0]
            target = self.model.logits(hidden).float().log_softmax(-1)
            embedded = self.model.embedding[tokens]
        states = self.head(embedded[:, 1:], hidden[:, :-1], self.arguments.depth)
        for d, state in enumerate(states):
            logits = self.model.logits(state).float()
            yield logits.log_softmax(-1).flatten(0, 1), target[:, 1 + d:].flatten(0, 1)

    def losses(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.kl_div(mine, model, reduction="batchmean", log_target=True)
                for mine, model in self.distributions(tokens)]

    def train_step(self) -> list[float]:
        progress = self.step / self.arguments.steps
        share = min(1.0, (self.step + 1) / 20, max(0.02, 1.4 * (1 - progress)))
        length = next(length for begin, length in LENGTHS if progress >= begin)
        rows = self.arguments.batch_tokens // length
        batch = torch.from_numpy(self.stream.batch(rows, length))
        losses = self.losses(batch)
        sum(loss * DEPTH_WEIGHT ** d for d, loss in enumerate(losses)).backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.arguments.lr * share
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return [loss.item() for loss in losses]

    @torch.no_grad()
    def agreement(self) -> None:
        """The share of tokens that verification by rejection accepts at temperature 1 (the overlap
        of the distributions), and of those where the likeliest token is the same."""
        for name, tokens in self.held_out.items():
            size = HELD_OUT_WINDOWS * LENGTH
            windows = torch.from_numpy(tokens[:size]).view(-1, LENGTH)
            cells = []
            for mine, model in self.distributions(windows):
                overlap = torch.minimum(mine.exp(), model.exp()).sum(-1).mean().item()
                same = (mine.argmax(-1) == model.argmax(-1)).float().mean().item()
                cells.append(f"overlap {overlap:.3f} same {same:.3f}")
            print(f"{name}: " + "; ".join(cells), flush=True)

    def observed(self):
        """Modules, and the matrices that read what they put out."""
        return [(self.head.attn_norm, ("attn_q", "attn_k", "attn_v")),
                (self.head.ffn_norm, ("ffn_gate", "ffn_up"))]

    @torch.no_grad()
    def moments(self) -> dict[str, torch.Tensor]:
        """E[x x'] of the inputs of matrices whose rows are one block of the quantised file."""
        sums: dict[str, torch.Tensor] = {}

        def note(names):
            def hook(_module, _inputs, output):
                rows = output.flatten(0, -2)
                for name in names:
                    sums[name] = sums.get(name, 0) + rows.T @ rows
            return hook

        hooks = [module.register_forward_hook(note(names)) for module, names in self.observed()]
        for _ in range(4):
            list(self.distributions(torch.from_numpy(self.stream.batch(8, LENGTH))))
        for hook in hooks:
            hook.remove()
        return sums

    def write(self, path: Path) -> None:
        c = self.model.config
        writer = gguf.GGUFWriter(path, ARCHITECTURE)
        writer.add_type("model")
        writer.add_name("moe-demo-head")
        writer.add_license("mit")
        writer.add_block_count(c.n_layer + 1)
        writer.add_nextn_predict_layers(1)
        writer.add_embedding_length(c.n_embd)
        writer.add_vocab_size(c.n_vocab)
        write_parameters(writer, head_parameters(self.head, c.n_layer), self.moments())
        finish(writer, path)

    def run(self) -> None:
        end = min(self.arguments.steps, self.step + self.arguments.now)
        began, losses = time.process_time(), []
        while self.step < end:
            losses.append(self.train_step())
            if self.step % REPORT_STEPS == 0 or self.step == end:
                spent = self.cpu_seconds + time.process_time() - began
                means = " ".join(f"{m:.4f}" for m in np.mean(losses[-REPORT_STEPS:], axis=0))
                print(f"step {self.step} kl {means} cpu {spent / 60:.1f} min", flush=True)
        self.cpu_seconds += time.process_time() - began
        self.save()
        if self.step == self.arguments.steps:
            print("as trained")
            self.agreement()
            self.write(self.out / "head.gguf")
            print("as written")
            self.agreement()


if __name__ == "__main__":
    HeadTrainer(argument_parser(__doc__.splitlines()[0]).parse_args()).run()
