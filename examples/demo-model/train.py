#!/usr/bin/env python3
"""Trains the demo model: `python3 train.py --size ship --hours 1.7 --out DIR`.

The schedule is keyed to wall time, not to steps: warm-up, a constant learning rate, and a decay
over the last part of `--hours`, whatever throughput the machine has left over. A run that was
stopped goes on from its last checkpoint when started again with the same `--out`.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import shutil
import signal
import sys
import sysconfig
import time
from pathlib import Path

# Idle threads must sleep: while other programs use the cores, spinning ones cost a factor of five.
# The library reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F

from data import DOMAINS, EncodedDomain, MixedStream, read_domains, tokenizer_texts
from gguf_writer import load_gguf_weights, write_gguf
from kernels import Kernels, compile_kernels
from model import SIZES, MoETransformer
from optimizer import make_optimizers
from tokenizer import DemoTokenizer, train_tokenizer

BALANCE_COEFFICIENT = 0.01
ROUTER_Z_COEFFICIENT = 0.001
# Sequences grow as the run goes on: (progress from which, length).
SEQUENCE_LENGTHS = ((0.93, 2048), (0.5, 1024), (0.0, 512))
WARM_UP_SHARE, DECAY_SHARE, FINAL_LR_SHARE = 0.02, 0.5, 0.01
CHECKPOINT_SECONDS, EVALUATE_SECONDS, REPORT_STEPS = 180, 600, 10
QUICK_WINDOW = 512
QUICK_HELD_OUT_TOKENS = 12 * QUICK_WINDOW
REPOSITORY = Path(__file__).resolve().parents[2]


def parse_mix(text: str) -> dict[str, float]:
    shares = [float(share) for share in text.split(":")]
    if len(shares) != len(DOMAINS) or min(shares) <= 0:
        raise argparse.ArgumentTypeError(f"needs {len(DOMAINS)} shares above 0, as in 4:1:4")
    return dict(zip(DOMAINS, shares))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="ship")
    parser.add_argument("--smoke", action="store_true",
                        help="a toy in under two minutes; writes OUT/smoke.gguf (F32)")
    parser.add_argument("--hours", type=float, default=1.7, help="wall time of the whole schedule")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints, log, tokenizer")
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared/data/text",
                        help="folder with gsm8k-train.jsonl and tinyshakespeare.txt")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")),
                        help="Python sources (default: the running interpreter's library)")
    parser.add_argument("--init", type=Path, metavar="GGUF",
                        help="begin with this file's weights, dequantised, and its folder's "
                             "tokenizer.json, instead of random ones")
    parser.add_argument("--mix", type=parse_mix, default=dict.fromkeys(DOMAINS, 1.0),
                        metavar="A:B:C", help="shares of " + ", ".join(DOMAINS)
                        + " in the bytes seen (default: even)")
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.size, arguments.hours, arguments.batch_tokens = "smoke", 1.2 / 60, 4096
    return arguments


def learning_rate_share(progress: float) -> float:
    """Warm-up, constant, then a linear decay that ends at progress 1."""
    if progress < WARM_UP_SHARE:
        return max(progress / WARM_UP_SHARE, 0.02)
    remaining = (1 - progress) / DECAY_SHARE
    return max(min(1.0, remaining), FINAL_LR_SHARE)


def write_atomically(path: Path, write) -> None:
    """Runs write(temporary path) and renames: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    os.replace(temporary, path)


def keep_freed_memory() -> None:
    """Tells glibc to reuse large blocks: fresh pages for each tensor halve the training speed."""
    m_trim_threshold, m_mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


class Trainer:
    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.out = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(arguments.seed)
        keep_freed_memory()
        if not arguments.smoke:
            compile_kernels()
        torch.set_num_threads(arguments.threads)
        splits = read_domains(arguments.data, arguments.stdlib)
        tokenizer_path = self.out / "tokenizer.json"
        if not tokenizer_path.exists() and arguments.init:
            shutil.copyfile(arguments.init.with_name("tokenizer.json"), tokenizer_path)
        elif not tokenizer_path.exists():
            write_atomically(tokenizer_path,
                             lambda path: train_tokenizer(tokenizer_texts(splits), path))
        self.tokenizer = DemoTokenizer(tokenizer_path)
        self.stream = MixedStream(
            {n: EncodedDomain(splits[n].train, self.tokenizer) for n in DOMAINS},
            self.tokenizer.byte_length, arguments.seed, arguments.mix)
        self.held_out = {
            n: EncodedDomain(splits[n].held_out, self.tokenizer).stream(None).astype(np.int64)
            for n in DOMAINS}
        self.config = SIZES[arguments.size]
        self.model = MoETransformer(self.config, torch.bfloat16)
        self.model.initialise(arguments.seed)
        if arguments.init:
            load_gguf_weights(arguments.init, self.model)
        self.model.to(arguments.device)
        self.model.dropout = arguments.dropout
        self.optimizers = make_optimizers(self.model, arguments.lr)
        self.step = self.tokens = 0
        self.elapsed = 0.0
        self.stopping = False
        self._resume()

    # -- state ------------------------------------------------------------------------------

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, map_location=self.arguments.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        self.stream.state = saved["stream"]
        if saved.get("mix", self.stream.mix) != self.stream.mix:
            self.stream.begin_mix()
        self.step, self.tokens, self.elapsed = saved["step"], saved["tokens"], saved["elapsed"]
        torch.set_rng_state(saved["rng"].cpu())
        print(f"resumed at step {self.step}, {self.elapsed / 60:.1f} min", flush=True)

    def save(self) -> None:
        state = {
            "config": self.config.to_dict(), "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "stream": self.stream.state, "mix": self.stream.mix,
            "step": self.step, "tokens": self.tokens,
            "elapsed": self.elapsed, "rng": torch.get_rng_state(),
        }
        write_atomically(self.out / "checkpoint.pt", lambda path: torch.save(state, path))

    # -- one step ---------------------------------------------------------------------------

    def train_step(self, progress: float) -> dict[str, float]:
        length = next(length for begin, length in SEQUENCE_LENGTHS if progress >= begin)
        rows = max(1, self.arguments.batch_tokens // length)
        batch = torch.from_numpy(self.stream.batch(rows, length)).to(self.arguments.device)
        self.model.train()
        hidden, balance, z = self.model.hidden(batch[:, :-1])
        logits = self.model.logits(hidden)
        loss = Kernels.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        total = loss + BALANCE_COEFFICIENT * balance + ROUTER_Z_COEFFICIENT * z
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        share = learning_rate_share(progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.arguments.lr * share
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.tokens += rows * length
        return {"loss": loss.item(), "balance": balance.item(), "z": z.item(),
                "norm": norm.item(), "lr": self.arguments.lr * share}

    # -- held-out ---------------------------------------------------------------------------

    @torch.no_grad()
    def held_out_bits_per_byte(self) -> dict[str, float]:
        """A quick look: the first windows of each held-out part, control tokens not counted."""
        self.model.eval()
        byte_length = torch.from_numpy(self.tokenizer.byte_length)
        result = {}
        for name, tokens in self.held_out.items():
            usable = min(QUICK_HELD_OUT_TOKENS, len(tokens) - 1) // QUICK_WINDOW * QUICK_WINDOW
            inputs = torch.from_numpy(tokens[:usable]).view(-1, QUICK_WINDOW)
            targets = torch.from_numpy(tokens[1:usable + 1])
            logits = self.model(inputs.to(self.arguments.device)).flatten(0, 1).float()
            nats = F.cross_entropy(logits, targets.to(logits.device), reduction="none").cpu()
            size = byte_length[targets]
            result[name] = (nats[size > 0].sum() / size.sum() / np.log(2)).item()
        return result

    def log(self, row: dict) -> None:
        path = self.out / "curve.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)

    def evaluate(self, train_loss: float) -> None:
        scores = self.held_out_bits_per_byte()
        self.log({"step": self.step, "tokens": self.tokens, "minutes": f"{self.elapsed / 60:.2f}",
                  "train_nats_per_token": f"{train_loss:.4f}",
                  **{f"{n}_bits_per_byte": f"{s:.4f}" for n, s in scores.items()}})
        epochs = " ".join(f"{n} {e:.2f}" for n, e in self.stream.epochs_seen().items())
        print("held-out bits/byte: " + " ".join(f"{n} {s:.4f}" for n, s in scores.items())
              + f" | epochs {epochs}", flush=True)

    # -- the run ----------------------------------------------------------------------------

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "stopping", True))
        budget = self.arguments.hours * 3600
        begin = time.monotonic() - self.elapsed
        saved_at = evaluated_at = self.elapsed
        reported = (time.monotonic(), self.tokens)
        losses: list[float] = []
        while self.elapsed < budget and not self.stopping:
            values = self.train_step(self.elapsed / budget)
            losses = losses[-49:] + [values["loss"]]
            self.elapsed = time.monotonic() - begin
            if self.step % REPORT_STEPS == 0 or self.step == 1:
                now = time.monotonic()
                rate = (self.tokens - reported[1]) / (now - reported[0])
                reported = (now, self.tokens)
                print(f"step {self.step} {self.elapsed / 60:.1f} min "
                      f"loss {np.mean(losses[-10:]):.4f} balance {values['balance']:.3f} "
                      f"z {values['z']:.2f} norm {values['norm']:.2f} lr {values['lr']:.2e} "
                      f"tokens {self.tokens / 1e6:.2f} M {rate:.0f} tokens/s", flush=True)
            if self.elapsed - evaluated_at > EVALUATE_SECONDS:
                self.evaluate(float(np.mean(losses)))
                evaluated_at = self.elapsed
            if self.elapsed - saved_at > CHECKPOINT_SECONDS:
                self.save()
                saved_at = self.elapsed
        if losses:
            self.evaluate(float(np.mean(losses)))
        self.save()


def main() -> int:
    arguments = parse_arguments()
    trainer = Trainer(arguments)
    trainer.run()
    if arguments.smoke and not trainer.stopping:
        write_gguf(trainer.out / "smoke.gguf", trainer.model, trainer.tokenizer, name="smoke")
    return 130 if trainer.stopping else 0


if __name__ == "__main__":
    sys.exit(main())
