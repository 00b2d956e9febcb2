#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Gives the matrices of a model random weights of one tensor type, to compare speeds.

    python3 random_types.py MODEL OUT --type IQ2_XXS [--seed 0]

MODEL is one that inflate.py made. Every matrix of attention and experts whose rows are whole blocks
gets random blocks with a scale that keeps activations finite; embeddings, output, router and norms
stay. What such a model writes means nothing; the work of a token is that of a real file of the type.
"""

from __future__ import annotations

import argparse
import math
import random
import struct

import inflate

# Number, values of a block, bytes of a block, where the scale is, its float16 value. Rows of
# types in ROW_SCALES begin with the scale.
TYPES = {"IQ2_XXS": (16, 256, 66, 0, 6e-4), "IQ2_XS": (17, 256, 74, 0, 6e-4),
         "IQ2_S": (22, 256, 82, 0, 6e-4), "IQ3_XXS": (18, 256, 98, 0, 2e-4),
         "IQ3_S": (21, 256, 110, 0, 2e-4), "IQ1_S": (19, 256, 50, 0, 4e-3),
         "IQ1_M": (29, 256, 56, None, 4e-3), "TQ1_0": (34, 256, 54, 52, 2e-2),
         "TQ2_0": (35, 256, 66, 64, 2e-2), "NVFP4": (40, 64, 36, None, 0),
         "F32": (0, 1, 4, None, 0), "F16": (1, 1, 2, None, 0), "BF16": (30, 1, 2, None, 0),
         "Q4_0": (2, 32, 18, 0, 5e-3), "Q4_1": (3, 32, 20, 0, 5e-3), "Q5_0": (6, 32, 22, 0, 3e-3),
         "Q5_1": (7, 32, 24, 0, 3e-3), "Q8_0": (8, 32, 34, 0, 4e-4), "MXFP4": (39, 32, 17, None, 0),
         "Q2_K": (10, 256, 84, 80, 2e-3), "Q3_K": (11, 256, 110, 108, 5e-4),
         "Q4_K": (12, 256, 144, 0, 2e-4), "Q5_K": (13, 256, 176, 0, 1e-4),
         "Q6_K": (14, 256, 210, 208, 2e-5), "IQ4_NL": (20, 32, 18, 0, 5e-4),
         "IQ4_XS": (23, 256, 136, 0, 2e-5),
         "IQ2_K": (137, 256, 76, 0, 3e-4), "IQ3_K": (138, 256, 110, 0, 1e-4),
         "IQ4_K": (139, 256, 144, 0, 3e-5), "IQ5_K": (140, 256, 176, 0, 3e-5),
         "IQ6_K": (141, 256, 212, 0, 1e-5), "IQ4_KS": (144, 256, 136, None, 1e-5),
         "IQ2_KS": (145, 256, 70, None, 2e-4), "IQ4_KSS": (146, 256, 128, None, 1e-5),
         "IQ5_KS": (152, 256, 168, None, 1e-5), "IQ3_KS": (156, 256, 102, None, 1e-4)}
ROW_SCALES = {"IQ2_KS": "<e", "IQ3_KS": "<e", "IQ4_KS": "<f", "IQ4_KSS": "<f", "IQ5_KS": "<f"}
POOL_BLOCKS = 1 << 17


def random_pool(name: str, rng: random.Random) -> bytes:
    _, _, size, at, scale = TYPES[name]
    pool = bytearray(rng.randbytes(POOL_BLOCKS * size))
    low, high = struct.pack("<e", scale)
    if at is not None:
        pool[at::size] = bytes([low]) * POOL_BLOCKS
        pool[at + 1::size] = bytes([high]) * POOL_BLOCKS
    if name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"):  # the minima's scale
        pool[at + 2::size] = bytes([low]) * POOL_BLOCKS
        pool[at + 3::size] = bytes([high]) * POOL_BLOCKS
    if name == "IQ1_M":  # a nibble in each of four bytes
        for i, nibble in enumerate((low & 15, low >> 4, high & 15, high >> 4)):
            where = slice(49 + 2 * i, None, size)
            pool[where] = bytes(b & 15 | nibble << 4 for b in pool[where])
    if name in ("F32", "F16", "BF16"):  # the exponent is that of 2^-7, about
        mask, exponent = (0x83, 0x20) if name == "F16" else (0x80, 0x3c)
        pool[size - 1::size] = bytes(b & mask | exponent for b in pool[size - 1::size])
    if name == "MXFP4":
        pool[::size] = bytes(rng.randrange(116, 121) for _ in range(POOL_BLOCKS))
    if name == "NVFP4":
        for i in range(4):
            pool[i::size] = bytes(rng.randrange(8, 32) for _ in range(POOL_BLOCKS))
    return bytes(pool)


def is_replaced(name: str, dims: tuple[int, ...], values: int) -> bool:
    role = name.split(".")[-2]
    return (name.startswith("blk.") and len(dims) > 1 and role != "ffn_gate_inp"
            and dims[0] % values == 0)


def write(source: inflate.Gguf, path: str, type_name: str, rng: random.Random) -> None:
    number, values, size, _, scale = TYPES[type_name]
    pool = random_pool(type_name, rng)
    head = struct.pack(ROW_SCALES[type_name], scale) if type_name in ROW_SCALES else b""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    parts = [struct.pack("<IIQQ", inflate.MAGIC, 3, len(source.tensors), len(source.keys))]
    for name, (kind, value) in source.keys.items():
        parts.append(text(name) + struct.pack("<I", kind) + value)
    at, sizes = 0, []
    for name, dims, kind, _ in source.tensors:
        replaced = is_replaced(name, dims, values)
        n_bytes = (math.prod(dims) // values * size + math.prod(dims[1:]) * len(head)
                   if replaced else inflate.tensor_bytes(dims, kind))
        sizes.append((replaced, n_bytes))
        parts.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims,
                                              number if replaced else kind, at))
        at = inflate.align(at + n_bytes, 32)
    header = b"".join(parts)
    with open(path, "wb", buffering=4 << 20) as file:
        file.write(header + bytes(inflate.align(len(header), 32) - len(header)))
        for (name, dims, kind, offset), (replaced, n_bytes) in zip(source.tensors, sizes):
            if not replaced:
                file.write(source.tensor(dims, kind, offset))
            row = dims[0] // values * size
            left = n_bytes if replaced else 0
            while left > 0:
                start = rng.randrange(POOL_BLOCKS - dims[0] // values) * size
                left -= file.write(head + pool[start:start + row] if head
                                   else pool[start:start + left])
            file.write(bytes(inflate.align(n_bytes, 32) - n_bytes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--type", choices=sorted(TYPES), required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write(inflate.Gguf(given.model), given.out, given.type, random.Random(given.seed))


if __name__ == "__main__":
    main()
