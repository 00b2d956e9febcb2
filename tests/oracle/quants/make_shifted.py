# SPDX-License-Identifier: MIT
"""Writes the dequantisation oracles of the types whose codes a bit of each run shifts (IQ2_K and
its relatives, which the `gguf` package does not know): random valid rows of 1024 elements
(`TYPE.bin`) and their float32 values (`TYPE.f32`), decoded here with numpy from a description of
the layout, by bit streams rather than field by field as the engine does.

    python3 make_shifted.py [OUTPUT_DIRECTORY [FACTOR]]     # default: this folder, 1

A FACTOR takes as many times the rows. The seed is fixed: a second run writes the same bytes.

A value is row scale * (block scale * scale of the run) * (codebook[code] + shift of the run), each
product rounded to float32, where the row scale multiplies the run's whole number first.
"""
import sys
from pathlib import Path

import numpy as np

ROW = 1024
ROWS = 8
BOOKS = {
    2: [-31, -13, 1, 17],
    3: [-63, -40, -23, -10, 1, 13, 28, 47],
    4: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    5: [-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
        -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121],
    6: [-127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54,
        -51, -47, -44, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -11, -8, -5,
        -2, 0, 3, 6, 9, 12, 14, 17, 20, 23, 27, 30, 33, 36, 40, 44,
        47, 51, 55, 59, 63, 68, 72, 77, 82, 87, 92, 98, 103, 109, 115, 121],
}
SHIFTS = {2: 5, 3: 4, 4: 4, 5: 2, 6: 1}
# Bits of a code, bytes of a row's head and of a block.
TYPES = {
    "IQ2_K": (2, 0, 76), "IQ3_K": (3, 0, 110), "IQ4_K": (4, 0, 144), "IQ5_K": (5, 0, 176),
    "IQ6_K": (6, 0, 212), "IQ2_KS": (2, 2, 70), "IQ3_KS": (3, 2, 102), "IQ4_KS": (4, 4, 136),
    "IQ4_KSS": (4, 4, 128), "IQ5_KS": (5, 4, 168),
}


def bits(block, first, n_bytes):
    """[n_bytes][8], the lowest bit first."""
    return np.unpackbits(block[first:first + n_bytes], bitorder="little").reshape(n_bytes, 8)


def number(planes):
    """The number whose bits are the arrays `planes`, the lowest first."""
    return sum(plane.astype(int) << i for i, plane in enumerate(planes))


def pairs(block, first, n_bytes):
    """Two bits an element: 32 bytes hold 128 elements, 32 for each of their bit pairs."""
    grid = bits(block, first, n_bytes).reshape(-1, 32, 4, 2).transpose(0, 2, 1, 3)
    return [grid[..., 0].reshape(-1), grid[..., 1].reshape(-1)]


def plane(block, first):
    """One bit an element: bit j of byte l is element 32j + l's."""
    return bits(block, first, 32).T.reshape(-1)


def nibbles(block, first, group):
    """Four bits an element: group / 2 bytes hold `group` elements, low nibbles first."""
    grid = bits(block, first, 128).reshape(-1, group // 2, 2, 4).transpose(0, 2, 1, 3)
    return [grid[..., i].reshape(-1) for i in range(4)]


def run_nibbles(block, first, n_bytes):
    grid = bits(block, first, n_bytes).reshape(-1, 4)
    return [grid[:, i] for i in range(4)]


def decode_k(bits_of_code, block):
    """Runs of 16, d in the block."""
    d = block[:2].view(np.float16)[0].astype(np.float32)
    shift = bits(block, 2, 2).reshape(-1)
    if bits_of_code == 2:
        code, scale = number(pairs(block, 12, 64)), number(run_nibbles(block, 4, 8)) - 8
    elif bits_of_code == 3:
        code = number(pairs(block, 14, 64) + [plane(block, 78)])
        sign = 1 - 2 * bits(block, 4, 2).reshape(-1).astype(int)
        scale = (2 * number(run_nibbles(block, 6, 8)) + 1) * sign
    elif bits_of_code in (4, 5):
        high = bits(block, 4, 4).reshape(-1, 2)
        scale = number(run_nibbles(block, 8, 8) + [high[:, 0], high[:, 1]]) - 32
        code = nibbles(block, 16, 32 if bits_of_code == 4 else 64)
        code = number(code + ([plane(block, 144)] if bits_of_code == 5 else []))
    else:
        scale = block[4:20].view(np.int8).astype(int)
        code = number(nibbles(block, 20, 64) + pairs(block, 148, 64))
    return d * scale.astype(np.float32), shift, code


def decode_ks(name, bits_of_code, block):
    """Runs of 32, scales are whole numbers."""
    if name == "IQ4_KSS":
        words = block.view("<u2").astype(int).reshape(8, 8)
        byte = sum((words[:, k] & 1) << k for k in range(8))
        words &= 0xFFFE
        words ^= words >> 1
        plain = words.astype("<u2").reshape(-1).view(np.uint8)
        return (byte & 254) - 127, byte & 1, number(nibbles(plain, 0, 32))
    if bits_of_code == 2:
        scale = number(run_nibbles(block, 2, 4) + [bits(block, 1, 1)[0]]) - 16
        return scale, bits(block, 0, 1)[0], number(pairs(block, 6, 64))
    if bits_of_code == 3:
        low = number(run_nibbles(block, 2, 4)).reshape(4, 2).T.reshape(-1)
        scale = low + 16 * bits(block, 0, 1)[0].astype(int) - 16
        return scale, bits(block, 1, 1)[0], number(pairs(block, 6, 64) + [plane(block, 70)])
    byte = block[:8].astype(int)
    code = nibbles(block, 8, 32 if bits_of_code == 4 else 64)
    code = number(code + ([plane(block, 136)] if bits_of_code == 5 else []))
    return (byte & 254) - 127, byte & 1, code


def decode_row(name, row):
    bits_of_code, head, block_bytes = TYPES[name]
    book = np.array(BOOKS[bits_of_code])
    values = []
    for at in range(head, len(row), block_bytes):
        block = row[at:at + block_bytes].copy()
        if head:
            factor = row[:head].copy().view(np.float16 if head == 2 else np.float32)[0]
            scale, shift, code = decode_ks(name, bits_of_code, block)
            scale = np.float32(factor) * scale.astype(np.float32)
        else:
            scale, shift, code = decode_k(bits_of_code, block)
        run = 256 // len(scale)
        whole = book[code] + SHIFTS[bits_of_code] * np.repeat(shift.astype(int), run)
        values.append(np.repeat(scale, run) * whole.astype(np.float32))
    return np.concatenate(values)


def half_scale(rng, i):
    """Ordinary, negative, sub-normal, smallest, zero, largest finite."""
    sign = int(rng.integers(2)) << 15
    return [int(rng.integers(3 << 10, 12 << 10)), 0x8000 | int(rng.integers(1 << 10, 20 << 10)),
            sign | int(rng.integers(1, 1 << 10)), sign | 1, sign, sign | 0x7BFF][i % 6]


def float_scale(rng, i):
    """The same, up to 2^100: a value is at most 2^14 times as large."""
    sign = -1 if rng.integers(2) else 1
    return [rng.normal() * 2.0 ** -8, -abs(rng.normal()), sign * 2.0 ** -130, 2.0 ** -149,
            sign * 0.0, sign * 2.0 ** 100][i % 6]


def make_rows(name, rng, n_rows):
    _, head, block_bytes = TYPES[name]
    n_blocks = ROW // 256
    rows = rng.integers(0, 256, (n_rows, head + n_blocks * block_bytes)).astype(np.uint8)
    for r in range(n_rows):
        if head == 4:
            rows[r, :4] = np.array([float_scale(rng, r)], "<f4").view(np.uint8)
        elif head == 2:
            rows[r, :2] = np.array([half_scale(rng, r)], "<u2").view(np.uint8)
        for b in range(n_blocks if head == 0 else 0):
            at = b * block_bytes
            rows[r, at:at + 2] = np.array([half_scale(rng, r * n_blocks + b)], "<u2").view(np.uint8)
    return rows


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    factor = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for seed, name in enumerate(TYPES):
        rows = make_rows(name, np.random.default_rng(21_000 + seed), ROWS * factor)
        values = np.concatenate([decode_row(name, row) for row in rows]).astype("<f4")
        assert np.isfinite(values).all(), name
        (out / f"{name}.bin").write_bytes(rows.tobytes())
        (out / f"{name}.f32").write_bytes(values.tobytes())
        print(f"{name:7} {rows.nbytes:6} bytes  {values.size:6} values"
              f"  max {np.abs(values).max():.4g}")


if __name__ == "__main__":
    main()
