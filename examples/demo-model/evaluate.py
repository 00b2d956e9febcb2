#!/usr/bin/env python3
"""Measures a GGUF of the demo model: bits per byte, the 5-gram baseline, routing, samples.

`python3 evaluate.py MODEL.gguf --tokenizer tokenizer.json --out report.json`. The weights are
what the file holds, dequantised; products are in float32 unless asked otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F

import ngram
from data import DOMAINS, EncodedDomain, Split, read_domains
from gguf_writer import load_gguf_weights
from model import SIZES, MoETransformer
from routing import record_picks, routing_report
from tokenizer import DemoTokenizer

WINDOW, STRIDE = 2048, 1024
ROUTING_TOKENS, ROUTING_WINDOW = 16384, 1024
SAMPLES, SAMPLE_TOKENS, SAMPLE_TEMPERATURE = 3, 160, 0.7
SHAKESPEARE_PROMPTS = ("KING RICHARD III:\n", "JULIET:\n", "MENENIUS:\n")
PYTHON_PROMPTS = ('def read_lines(path):\n    """', "class Queue:\n    def __init__(self",
                  "import os\nimport sys\n\n")
REPOSITORY = Path(__file__).resolve().parents[2]


@torch.no_grad()
def token_bits(model: MoETransformer, tokens: np.ndarray) -> np.ndarray:
    """Bits of tokens[1:], each with at least STRIDE tokens before it where they exist."""
    model.eval()
    ids = torch.from_numpy(tokens.astype(np.int64))
    parts, done = [], 0
    for begin in range(0, len(ids) - 1, STRIDE):
        window = ids[begin:begin + WINDOW + 1]
        logits = model(window[None, :-1])[0].float()
        nats = F.cross_entropy(logits, window[1:], reduction="none")
        parts.append(nats[done - begin:].numpy())
        done = begin + len(window) - 1
        if done == len(ids) - 1:
            break
    return np.concatenate(parts) / np.log(2)


def summarise(bits: np.ndarray, tokens: np.ndarray, byte_length: np.ndarray) -> float:
    """Bits per byte. `bits` belong to the last tokens; control tokens are context, but neither
    their bits nor their length count."""
    size = byte_length[tokens[-len(bits):].astype(np.int64)]
    return float(bits[size > 0].sum() / size.sum())


def bits_per_byte(model: MoETransformer, tokens: np.ndarray, byte_length: np.ndarray) -> float:
    return summarise(token_bits(model, tokens), tokens, byte_length)


def by_file(bits: np.ndarray, domain: EncodedDomain, names: list[str],
            byte_length: np.ndarray) -> dict[str, float]:
    """Bits per byte of each held-out document. The stream's first few tokens have no bits."""
    lengths = [len(document) for document in domain.forms[0]]
    tokens = domain.stream(None)[:len(bits) + 8]
    bits = np.concatenate([np.zeros(len(tokens) - len(bits)), bits])
    result, begin = {}, 0
    for name, length in zip(names, lengths):
        part = slice(begin, begin + length)
        if begin + length <= len(tokens):
            result[name] = summarise(bits[part], tokens[part], byte_length)
        begin += length
    return result


@torch.no_grad()
def generate(model: MoETransformer, tokenizer: DemoTokenizer, prompt: list[int], seed: int,
             temperature: float = SAMPLE_TEMPERATURE, limit: int = SAMPLE_TOKENS) -> str:
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    for _ in range(limit):
        logits = model(torch.tensor([ids]))[0, -1].float()
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial((logits / temperature).softmax(-1), 1,
                                          generator=generator))
        if token in (tokenizer.endoftext, tokenizer.im_end):
            break
        ids.append(token)
    return tokenizer.decode(ids[len(prompt):])


def samples(model: MoETransformer, tokenizer: DemoTokenizer,
            splits: dict[str, Split]) -> dict[str, list[dict[str, str]]]:
    questions = [document.text for document in splits["gsm8k"].held_out[:SAMPLES]]
    prompts = {
        "gsm8k": [(q, tokenizer.encode_chat(q)) for q in questions],
        "shakespeare": [(p, tokenizer.encode(p)) for p in SHAKESPEARE_PROMPTS],
        "python": [(p, tokenizer.encode(p)) for p in PYTHON_PROMPTS],
    }
    return {name: [{"prompt": text, "continuation": generate(model, tokenizer, ids, seed)}
                   for seed, (text, ids) in enumerate(part, start=1)]
            for name, part in prompts.items()}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokenizer", type=Path,
                        default=Path(__file__).with_name("tokenizer.json"))
    parser.add_argument("--size", choices=sorted(SIZES), default="ship")
    parser.add_argument("--out", type=Path, required=True, help="the report, JSON")
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared/data/text")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--parts", nargs="+", default=["bits", "ngram", "routing", "samples"],
                        choices=["bits", "ngram", "routing", "samples"])
    parser.add_argument("--bfloat16", action="store_true",
                        help="matrix products in bfloat16: ten times faster, 0.001 bits apart")
    parser.add_argument("--limit-tokens", type=int, default=1 << 30,
                        help="most held-out tokens a domain, for a quick look")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    tokenizer = DemoTokenizer(arguments.tokenizer)
    size = tokenizer.byte_length
    splits = read_domains(arguments.data, arguments.stdlib)
    encoded = {n: EncodedDomain(splits[n].held_out, tokenizer) for n in DOMAINS}
    held_out = {n: e.stream(None)[:arguments.limit_tokens] for n, e in encoded.items()}
    files = [document.name for document in splits["python"].held_out]
    dtype = torch.bfloat16 if arguments.bfloat16 else torch.float32
    model = MoETransformer(SIZES[arguments.size], dtype)
    load_gguf_weights(arguments.model, model)
    report: dict = {"model": arguments.model.name, "file_bytes": arguments.model.stat().st_size,
                    "products_in": str(dtype).removeprefix("torch.")}

    def save() -> None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    if "routing" in arguments.parts:
        count = min(ROUTING_TOKENS, *map(len, held_out.values()))
        picks = {n: record_picks(model, t[:count], ROUTING_WINDOW) for n, t in held_out.items()}
        report["routing"] = routing_report(picks, model.config.n_expert)
        save()
    if "bits" in arguments.parts:
        bits = {n: token_bits(model, t) for n, t in held_out.items()}
        report["bits_per_byte"] = {n: summarise(bits[n], t, size) for n, t in held_out.items()}
        report["python_by_file"] = by_file(bits["python"], encoded["python"], files, size)
        save()
    if "ngram" in arguments.parts:
        train = {n: EncodedDomain(splits[n].train, tokenizer).stream(np.random.default_rng(0))
                 for n in DOMAINS}
        bits = ngram.baseline_bits(train, held_out, len(size))
        report["ngram_bits_per_byte"] = {
            n: {kind: summarise(b, held_out[n], size) for kind, b in kinds.items()}
            for n, kinds in bits.items()}
        report["ngram_python_by_file"] = by_file(
            bits["python"]["mixed"], encoded["python"], files, size)
        save()
    if "samples" in arguments.parts:
        report["samples"] = samples(model, tokenizer, splits)
        save()


if __name__ == "__main__":
    main()
