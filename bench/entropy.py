#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What lossless coding would save of a model's matrices, by tensor type, and what it costs one core.

    python3 bench/entropy.py [--ans build/bench/ans_speed] [--draws] [--mib 16] [FILE.gguf ...]

Needs numpy and zstandard; --draws also the gguf package (and torch for the types of 256 elements that
examples/demo-model/quantize.py writes). For each type that the files hold: at most --mib MiB of its
matrices. --draws adds normally distributed numbers, quantised: an upper bound of what a type's codes
hold, and much like trained weights where both were compared. Columns of the table:

    zstd 1, 3, 19  the blocks as they lie in the file, in pieces of 1 MiB: bytes saved, in per cent, and
                   GB of weights decoded in a second of one core
    split          fields apart (each byte of the scales, codes; of floats: exponent, rest), zstd 3
    ANS            one fixed table for each field, which ans_speed codes and decodes; fields that do not
                   shrink by 1 % stay as they are and cost nothing
    bound          entropy of each field: of the codes' values (joined where a type cuts them up), of each
                   byte of the scales
    pays below     the speed of a disk, GB/s, under which one core that does nothing else loads faster
                   by the ANS column: that of the decoder; "-" where it saves less than 10 %
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zstandard

sys.path.insert(0, str(Path(__file__).parent))
import inflate  # noqa: E402
from random_types import TYPES  # noqa: E402

PIECE = 1 << 20
NUMBERS = {row[0]: name for name, row in TYPES.items()}
# Bytes of a block that hold codes of 4 bits, and bytes with their upper bits, in the file's order.
CODES = {"Q4_0": (2, 18), "Q4_1": (4, 20), "Q5_0": (2, 22), "Q5_1": (4, 24), "Q8_0": (2, 34),
         "MXFP4": (1, 17), "NVFP4": (4, 36), "Q2_K": (16, 80), "Q3_K": (0, 96), "Q4_K": (16, 144),
         "Q5_K": (16, 176), "Q6_K": (0, 192), "IQ4_NL": (2, 18), "IQ4_XS": (8, 136),
         "TQ1_0": (0, 52), "TQ2_0": (0, 64), "IQ2_XXS": (2, 66), "IQ2_XS": (2, 66),
         "IQ2_S": (2, 74), "IQ3_XXS": (2, 98), "IQ3_S": (2, 106), "IQ1_S": (2, 50), "IQ1_M": (0, 48)}
DRAWN = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_XS",
         "MXFP4", "Q3_K", "TQ2_0", "TQ1_0")


def file_blocks(paths: list[str], limit: int) -> dict[str, bytes]:
    """Bytes of matrices by type: a share of every matrix, so that no layer stands for all."""
    found: dict[str, list[bytes]] = {}
    for path in paths:
        source = inflate.Gguf(path)
        for _, dims, kind, offset in source.tensors:
            if len(dims) > 1 and kind in NUMBERS:
                found.setdefault(NUMBERS[kind], []).append(source.tensor(dims, kind, offset))
    blocks = {}
    for name, parts in found.items():
        size = TYPES[name][2]
        share = max(1, limit // size // len(parts)) * size
        blocks[name] = b"".join(part[:share] for part in parts)
    return blocks


def drawn_blocks(name: str, limit: int) -> bytes | None:
    """Standard deviations differ between rows, as those of trained matrices do."""
    rng = np.random.default_rng(0)
    _, values, size, _, _ = TYPES[name]
    rows = limit // size * values // 4096
    drawn = rng.standard_normal((rows, 4096)) * 0.02 * np.exp(0.3 * rng.standard_normal((rows, 1)))
    drawn = drawn.astype(np.float32)
    if name == "F32":
        return drawn.tobytes()
    if name == "F16":
        return drawn.astype(np.float16).tobytes()
    if name == "BF16":
        bits = drawn.view(np.uint32)
        return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "demo-model"))
    try:
        import gguf
        kind = gguf.GGMLQuantizationType[name]
        try:
            return gguf.quantize(drawn, kind).tobytes()
        except NotImplementedError:
            from quantize import quantize
            return quantize(drawn, kind).tobytes()
    except ImportError as missing:
        print(f"{name}: left out ({missing})", file=sys.stderr)
        return None


def fields_of(name: str, data: bytes) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Codes as one byte each (joined), the byte streams of the split form, and bytes of a block."""
    size = TYPES[name][2]
    if name in ("F32", "F16", "BF16"):
        width = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}[name]
        turned = np.frombuffer(data, width)
        turned = (turned << 1 | turned >> (size * 8 - 1)).astype(width)  # the sign goes to the end
        planes = list(turned.view(np.uint8).reshape(-1, size).T.copy())
        return planes, planes, size
    blocks = np.frombuffer(data, np.uint8).reshape(-1, size)
    first, end = CODES[name]
    scales = [blocks[:, i].copy() for i in range(size) if not first <= i < end]
    inside = blocks[:, first:end]
    return [*scales, *code_values(name, inside)], [*scales, inside.reshape(-1).copy()], size


def bits_of(planes: np.ndarray, width: int) -> np.ndarray:
    """Each byte's groups of width bits, lowest first, one axis more at the front."""
    return np.stack([planes >> shift & (1 << width) - 1 for shift in range(0, 8, width)])


def code_values(name: str, inside: np.ndarray) -> list[np.ndarray]:
    n = len(inside)
    if name in ("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"):
        return [bits_of(inside, 4).reshape(-1)]
    if name in ("Q2_K", "TQ2_0"):
        return [bits_of(inside, 2).reshape(-1)]
    if name == "Q3_K":
        low = bits_of(inside[:, 32:].reshape(n, 2, 32), 2)     # pair, block, half, lane
        high = bits_of(inside[:, :32], 1).reshape(2, 4, n, 32).transpose(1, 2, 0, 3)
        return [(low | high << 2).reshape(-1)]
    if name == "Q5_K":
        low = bits_of(inside[:, 32:].reshape(n, 4, 32), 4)     # nibble, block, quarter, lane
        high = bits_of(inside[:, :32], 1).reshape(4, 2, n, 32).transpose(1, 2, 0, 3)
        return [(low | high << 4).reshape(-1)]
    if name == "Q6_K":
        low = bits_of(inside[:, :128].reshape(n, 2, 2, 32), 4)  # nibble, block, half, 32s, lane
        high = bits_of(inside[:, 128:].reshape(n, 2, 32), 2).reshape(2, 2, n, 2, 32)
        return [(low | high.transpose(0, 2, 3, 1, 4) << 4).reshape(-1)]
    if name in ("Q5_0", "Q5_1"):
        low = bits_of(inside[:, 4:], 4)                        # nibble, block, lane
        bits = bits_of(inside[:, :4], 1).transpose(1, 2, 0).reshape(n, 2, 16)
        return [(low | bits.transpose(1, 0, 2) << 4).reshape(-1)]
    if name == "Q8_0":
        return [inside.reshape(-1)]
    return [inside[:, i] for i in range(inside.shape[1])]


def entropy_bits(symbols: np.ndarray) -> float:
    count = np.bincount(symbols.reshape(-1), minlength=256).astype(float)
    count = count[count > 0]
    return float((count * np.log2(count.sum() / count)).sum())


def zstd(streams: list[bytes], level: int) -> tuple[int, float]:
    """Bytes of all pieces, and seconds to decode them (the median of five times)."""
    coder = zstandard.ZstdCompressor(level=level, write_content_size=True)
    decoder = zstandard.ZstdDecompressor()
    pieces = [coder.compress(stream[i:i + PIECE]) for stream in streams
              for i in range(0, len(stream), PIECE)]
    times = []
    for _ in range(5):
        began = time.thread_time()
        for piece in pieces:
            decoder.decompress(piece)
        times.append(time.thread_time() - began)
    return sum(map(len, pieces)), statistics.median(times)


def ans(program: str, streams: list[np.ndarray]) -> tuple[int, float]:
    total, seconds = 0, 0.0
    for stream in streams:
        with tempfile.NamedTemporaryFile() as file:
            file.write(stream.tobytes())
            file.flush()
            n, coded, speed = subprocess.check_output([program, file.name]).split()
        shrinks = int(coded) < 0.99 * int(n)
        total += int(coded) if shrinks else len(stream)
        seconds += int(n) * 1e-9 / float(speed) if shrinks else 0
    return total, seconds


def row(name: str, data: bytes, given: argparse.Namespace) -> None:
    n = len(data)
    codes, streams, _ = fields_of(name, data)
    cells = [f"{n / 2**20:.1f}"]

    def cell(n_bytes: int, seconds: float) -> str:
        speed = f" at {n * 1e-9 / seconds:.2f}" if seconds > 0 else ""
        return f"{100 * (1 - n_bytes / n):.1f}{speed}"

    for level in (1, 3, 19):
        cells.append(cell(*zstd([data], level)))
    cells.append(cell(*zstd([stream.tobytes() for stream in streams], 3)))
    below = "-"
    if given.ans:
        n_bytes, seconds = ans(given.ans, streams)
        cells.append(cell(n_bytes, seconds))
        if n_bytes < 0.9 * n:
            below = f"{n * 1e-9 / seconds:.1f}"
    else:
        cells.append("")
    cells.append(f"{100 * (1 - sum(map(entropy_bits, codes)) / 8 / n):.1f}")
    print(f"| {name} | " + " | ".join([*cells, below]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--ans", help="the program ans_speed")
    parser.add_argument("--draws", action="store_true", help="normally distributed numbers as well")
    parser.add_argument("--mib", type=float, default=16, help="of each type")
    given = parser.parse_args()
    limit = int(given.mib * 2**20)
    print("| type | MiB | zstd 1 | zstd 3 | zstd 19 | split | ANS | bound | pays below |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, data in file_blocks(given.files, limit).items():
        row(name, data, given)
    for name in DRAWN if given.draws else ():
        data = drawn_blocks(name, limit)
        if data is not None:
            row(name, data, given)


if __name__ == "__main__":
    main()
