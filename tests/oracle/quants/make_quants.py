# SPDX-License-Identifier: MIT
"""Writes the dequantisation oracles: for each tensor type a file of random valid blocks
(`TYPE.bin`) and the float32 values the `gguf` package's numpy code makes of them (`TYPE.f32`); and
values to quantise (`quantize.f32`) with the Q4_0 blocks that it makes of them (`quantize.Q4_0.bin`).

    python3 make_quants.py [OUTPUT_DIRECTORY [FACTOR]]     # default: this folder, 1

A FACTOR takes as many times the blocks, for a longer run of test_dequantize.
Needs numpy and gguf; the files it wrote are in the tree, so the suite needs neither. The seed is
fixed: a second run writes the same bytes.

Quants and packed sub-scales are uniform random bytes, so every bit pattern turns up. The f16
scales of block i are chosen by i: ordinary random values, then negative ones, sub-normals, the
smallest sub-normal, +0, -0, and the largest finite value. Infinities and NaNs are left out.
"""
import sys
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

# Byte offsets of the f16 scales inside a block.
F16_FIELDS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0],
    "IQ3_S": [0], "IQ1_S": [0], "TQ1_0": [52], "TQ2_0": [64],
}
BLOCKS_OF_32 = 256
BLOCKS_OF_256 = 64
BLOCKS = {"NVFP4": 128}
# 12 * 2^(252-128) is the largest MXFP4 magnitude that is still a finite float32.
MXFP4_MAX_EXPONENT = 252


def f16_scales(rng, n, shift):
    """n scale bit patterns; `shift` makes d and dmin of one block take different kinds."""
    out = np.empty(n, np.uint16)
    for i in range(n):
        kind = (i + shift) % 8
        sign = int(rng.integers(2)) << 15
        if kind in (0, 1):      # a model's usual range, about 2^-12 .. 2^-3
            out[i] = sign * (kind & 1) | int(rng.integers(3 << 10, 12 << 10))
        elif kind == 2:         # any finite normal value
            out[i] = sign | int(rng.integers(1 << 10, 31 << 10))
        elif kind == 3:         # negative
            out[i] = 0x8000 | int(rng.integers(1 << 10, 20 << 10))
        elif kind == 4:         # sub-normal
            out[i] = sign | int(rng.integers(1, 1 << 10))
        elif kind == 5:
            out[i] = sign       # +0 or -0
        elif kind == 6:         # the smallest sub-normal
            out[i] = sign | 1
        else:                   # the largest finite value
            out[i] = sign | 0x7BFF
    return out


def make_blocks(name, rng, factor):
    qtype = GGMLQuantizationType[name]
    block_size, type_size = GGML_QUANT_SIZES[qtype]
    if name == "F16":           # all sub-normals and zeros of both signs, then random finite ones
        low = np.arange(1 << 10, dtype=np.uint16)
        rest = rng.integers(1 << 10, 31 << 10, 2048).astype(np.uint16)
        rest |= (rng.integers(2, size=2048) << 15).astype(np.uint16)
        return np.concatenate([low, low | 0x8000, rest]).view(np.uint8)
    if name == "BF16":          # every exponent but 255, sub-normals included
        bits = rng.integers(0, 0x7F80, 4096).astype(np.uint16)
        bits[:128] = np.arange(128)
        bits |= (rng.integers(2, size=4096) << 15).astype(np.uint16)
        return bits.view(np.uint8)
    n = BLOCKS.get(name) or (BLOCKS_OF_256 if block_size == 256 else BLOCKS_OF_32)
    n *= factor
    blocks = rng.integers(0, 256, (n, type_size)).astype(np.uint8)
    for k, offset in enumerate(F16_FIELDS.get(name, [])):
        blocks[:, offset:offset + 2] = f16_scales(rng, n, 3 * k).reshape(n, 1).view(np.uint8)
    if name == "IQ1_M":         # the scale's nibbles are the upper ones of bytes 49, 51, 53 and 55
        scale = f16_scales(rng, n, 0)
        for i in range(4):
            nibble = (scale >> 4 * i & 15) << 4
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble.astype(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = np.arange(n) % (MXFP4_MAX_EXPONENT + 1)
    return blocks.reshape(-1)


def values_to_quantize(rng, n_rows):
    """Rows of 256 values: ordinary ones of many magnitudes, with zeros, equal extremes of both
    signs, and values halfway between two codes."""
    x = rng.standard_normal((n_rows, 256)) * 2.0 ** rng.integers(-12, 4, (n_rows, 1))
    x[0] = 0
    x[1, :32] = 0
    x[2] = np.tile([1.0, -1.0], 128)
    x[3] = np.tile([-1.0, 1.0], 128)
    x[4] = rng.integers(-16, 17, 256) / 16.0
    x[5] = 0.25
    x[6] = rng.standard_normal(256) * 2.0 ** -24
    x[7, ::2] = 0
    return x.astype("<f4")


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    factor = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    names = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
             "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS",
             "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4"]
    for number, name in enumerate(names):
        raw = make_blocks(name, np.random.default_rng(20_000 + number), factor)
        values = dequantize(raw, GGMLQuantizationType[name]).astype("<f4").reshape(-1)
        assert np.isfinite(values).all(), name
        (out / f"{name}.bin").write_bytes(raw.tobytes())
        (out / f"{name}.f32").write_bytes(values.tobytes())
        print(f"{name:7} {raw.nbytes:6} bytes  {values.size:6} values"
              f"  max {np.abs(values).max():.4g}")
    values = values_to_quantize(np.random.default_rng(30_000), 64 * factor)
    (out / "quantize.f32").write_bytes(values.tobytes())
    (out / "quantize.Q4_0.bin").write_bytes(quantize(values, GGMLQuantizationType.Q4_0).tobytes())


if __name__ == "__main__":
    main()
