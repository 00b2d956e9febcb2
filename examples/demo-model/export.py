#!/usr/bin/env python3
"""Turns a checkpoint into GGUF: `python3 export.py DIR --mix ship --out MODEL.gguf`.

DIR is the `--out` folder of train.py. `--mix f32` and `f16` write the unquantised weights;
`--compare` prints what each mix costs on held-out text instead of writing a file.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QuantType

from balance import lift_idle_experts
from data import DOMAINS, EncodedDomain, MixedStream, read_domains
from evaluate import bits_per_byte
from gguf_writer import gguf_parameters, write_gguf
from model import ModelConfig, MoETransformer
from quantize import restore
from second_moments import collect_moments
from tokenizer import DemoTokenizer

# Expert gate, up, down; then all other matrices. Router and norms are always F32.
MIXES = {
    "f32": ("F32", "F32", "F32", "F32"),
    "f16": ("F16", "F16", "F16", "F16"),
    "q8": ("Q8_0", "Q8_0", "Q8_0", "Q8_0"),
    "gate3": ("Q3_K", "IQ4_XS", "IQ4_XS", "Q6_K"),
    "up3": ("IQ4_XS", "Q3_K", "IQ4_XS", "Q6_K"),
    "down3": ("IQ4_XS", "IQ4_XS", "Q3_K", "Q6_K"),
    "down4k": ("Q3_K", "Q3_K", "Q4_K", "Q8_0"),
    "all3": ("Q3_K", "Q3_K", "Q3_K", "Q8_0"),
}
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
              "q8": gguf.LlamaFileType.MOSTLY_Q8_0, "all3": gguf.LlamaFileType.MOSTLY_Q3_K_M,
              "down4k": gguf.LlamaFileType.MOSTLY_Q3_K_M}
CALIBRATION_ROWS, CALIBRATION_LENGTH, CALIBRATION_SEED = 96, 512, 1234
BALANCE_SEED = 4321
REPOSITORY = Path(__file__).resolve().parents[2]


def mix_types(model: MoETransformer, mix: str) -> dict[str, QuantType]:
    gate, up, down, other = (QuantType[name] for name in MIXES[mix])
    by_role = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
    types = {}
    for name, parameter in gguf_parameters(model).items():
        role = name.split(".")[-2]
        if parameter.dim() > 1 and role != "ffn_gate_inp":
            types[name] = by_role.get(role, other)
    return types


def load_checkpoint(path: Path, dtype: torch.dtype) -> MoETransformer:
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    model = MoETransformer(ModelConfig(**saved["config"]), dtype)
    model.load_state_dict(saved["model"])
    return model


def calibration_moments(model, encoded, tokenizer) -> dict[str, torch.Tensor]:
    stream = MixedStream(encoded, tokenizer.byte_length, CALIBRATION_SEED)
    batches = [torch.from_numpy(stream.batch(8, CALIBRATION_LENGTH))
               for _ in range(CALIBRATION_ROWS // 8)]
    return collect_moments(model, batches)


def stored_bytes(model: MoETransformer, types: dict[str, QuantType]) -> int:
    total = 0
    for name, parameter in gguf_parameters(model).items():
        block, size = gguf.GGML_QUANT_SIZES[types.get(name, QuantType.F32)]
        total += parameter.numel() // block * size
    return total


def compare(model, mixes, moments, held_out, byte_length, error_feedback: bool) -> None:
    original = {n: p.detach().clone() for n, p in gguf_parameters(model).items()}
    cache: dict[tuple[str, QuantType], torch.Tensor] = {}

    def show(label: str, size: int) -> None:
        scores = [bits_per_byte(model, held_out[n], byte_length) for n in DOMAINS]
        print(f"{label:10} {size:10} " + " ".join(f"{s:.4f}" for s in scores)
              + f" mean {np.mean(scores):.4f}", flush=True)

    show("weights", 0)
    for mix in mixes:
        types = mix_types(model, mix)
        for name, parameter in gguf_parameters(model).items():
            if name not in types:
                continue
            key = name, types[name]
            if key not in cache:
                restored = restore(original[name].numpy(), types[name], moments.get(name),
                                   error_feedback)
                cache[key] = torch.from_numpy(restored).to(torch.bfloat16)
            parameter.data.copy_(cache[key])
        show(mix, stored_bytes(model, types))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the --out folder of train.py")
    parser.add_argument("--mix", choices=sorted(MIXES), default="gate3")
    parser.add_argument("--out", type=Path, help="the GGUF to write")
    parser.add_argument("--name", default="moe-demo")
    parser.add_argument("--compare", nargs="+", choices=sorted(MIXES), metavar="MIX",
                        help="print held-out bits per byte under these mixes")
    parser.add_argument("--least-load", type=float, default=0.0,
                        help="lift experts below this load, relative to uniform (0: leave all)")
    parser.add_argument("--no-error-feedback", action="store_true",
                        help="round each weight on its own")
    parser.add_argument("--compare-tokens", type=int, default=16384)
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared/data/text")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    tokenizer = DemoTokenizer(arguments.run / "tokenizer.json")
    dtype = torch.bfloat16 if arguments.compare else torch.float32
    model = load_checkpoint(arguments.run / "checkpoint.pt", dtype)
    quantised = arguments.compare or arguments.mix not in ("f32", "f16", "q8")
    moments: dict[str, torch.Tensor] = {}
    if quantised or arguments.least_load:
        splits = read_domains(arguments.data, arguments.stdlib)
        encoded = {n: EncodedDomain(splits[n].train, tokenizer) for n in DOMAINS}
    if arguments.least_load:
        batch = MixedStream(encoded, tokenizer.byte_length, BALANCE_SEED).batch(60, 512)
        lifted = lift_idle_experts(model, torch.from_numpy(batch[:, :-1]), arguments.least_load)
        print("lifted (layer, expert): logit added", lifted)
    if quantised:
        moments = calibration_moments(model, encoded, tokenizer)
    if arguments.compare:
        held_out = {n: EncodedDomain(splits[n].held_out, tokenizer).stream(None)
                    [:arguments.compare_tokens] for n in DOMAINS}
        compare(model, arguments.compare, moments, held_out, tokenizer.byte_length,
                not arguments.no_error_feedback)
    if arguments.out:
        file_type = FILE_TYPES.get(arguments.mix, gguf.LlamaFileType.MOSTLY_IQ4_XS)
        write_gguf(arguments.out, model, tokenizer, mix_types(model, arguments.mix), moments,
                   name=arguments.name, file_type=file_type)
        print(f"{arguments.out}: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
