#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a model of real size that routes as the demo model does.

    python3 inflate.py MODEL OUT --size 2G | --inner N   [--width 16] [--split 1] [--seed 0]

The demo model is trained, but small: its experts have 95 KiB. This writes the same function with
larger matrices. It needs nothing besides Python, and a minute for 16 GB on a disk that keeps up.

    width      multiplied by --width (4, 16 or 64). The hidden state is followed by zeros, so its
               mean square falls by that factor. Norm weights are divided by the factor's square
               root and epsilon by the factor, both exact in binary, so a norm gives what it gave.
    experts    their inner width becomes --inner, or the multiple of 256 that comes nearest to --size.
    --split S  cuts every expert into S experts, each with a share of the inner units: S times as
               many experts, S times as many of them used. The S parts of an expert have the same
               router row and are therefore chosen together.

A row of a matrix begins with the original quantised blocks. What is added to it meets zeros and is
random; a row that is added has random codes under a scale of 0, where its output must be 0. So no
part of the file is easier to compress, or to read, than weights are.

What differs from a real model of this size: 6 layers, attention and vocabulary of the demo model,
and, with --split, experts that always come in groups. The norms of queries and keys keep their
weights but share the smaller epsilon, a difference below 1e-6.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import struct
import sys

MAGIC = 0x46554747
STRING, ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q",
           11: "<q", 12: "<d"}
# Type number: values of a block, bytes of a block, where the block's float16 scale is.
BLOCKS = {11: (256, 110, 108), 12: (256, 144, 0), 14: (256, 210, 208), 23: (256, 136, 0),
          8: (32, 34, 0)}
F32 = 0
SMALL_SCALE = 0x0400  # 2^-14: padding that meets zeros is finite, and not 0
POOL_BYTES = 8 << 20
INNER_STEP = 256


class Gguf:
    """The header of one GGUF file, and its tensors' bytes."""

    def __init__(self, path: str):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 0
        magic, version, n_tensors, n_keys = self._take("<IIQQ")
        if magic != MAGIC or version != 3:
            sys.exit(f"{path}: not a GGUF file of version 3")
        self.keys: dict[str, tuple[int, bytes]] = {}  # name: type, encoded value
        for _ in range(n_keys):
            name = self._string()
            kind, = self._take("<I")
            start = self.at
            self._skip(kind)
            self.keys[name] = kind, self.data[start:self.at]
        self.tensors: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(n_tensors):
            name = self._string()
            n_dims, = self._take("<I")
            dims = self._take(f"<{n_dims}Q")
            self.tensors.append((name, dims, *self._take("<IQ")))
        self.start = align(self.at, 32)

    def _take(self, form: str):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def _string(self) -> str:
        size, = self._take("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def _skip(self, kind: int) -> None:
        if kind == STRING:
            self._string()
        elif kind == ARRAY:
            item, count = self._take("<IQ")
            if item in SCALARS:
                self.at += count * struct.calcsize(SCALARS[item])
            else:
                for _ in range(count):
                    self._skip(item)
        else:
            self._take(SCALARS[kind])

    def number(self, name: str):
        kind, value = self.keys[name]
        return struct.unpack(SCALARS[kind], value)[0]

    def tensor(self, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
        start = self.start + offset
        return self.data[start:start + tensor_bytes(dims, kind)]


def align(n: int, to: int) -> int:
    return -(-n // to) * to


def row_bytes(n: int, kind: int) -> int:
    if kind == F32:
        return 4 * n
    if kind not in BLOCKS:
        sys.exit(f"tensors of type {kind} are not known here")
    values, size, _ = BLOCKS[kind]
    if n % values:
        sys.exit(f"rows of {n} values do not fill blocks of {values}")
    return n // values * size


def tensor_bytes(dims: tuple[int, ...], kind: int) -> int:
    return row_bytes(dims[0], kind) * math.prod(dims[1:])


class Padding:
    """Random blocks of one type, whose values are all 0 ("zero") or are not ("any")."""

    def __init__(self, kind: int, rng: random.Random):
        self.rng = rng
        if kind == F32:
            self.size = 4
            values = [rng.uniform(-0.1, 0.1) for _ in range(1 << 16)]
            self.any = struct.pack(f"<{len(values)}f", *values)
            self.zero = bytes(len(self.any))
        else:
            _, self.size, scale_at = BLOCKS[kind]
            n = POOL_BYTES // self.size
            pool = bytearray(rng.randbytes(n * self.size))
            for scale, name in ((0, "zero"), (SMALL_SCALE, "any")):
                pool[scale_at::self.size] = bytes([scale & 255]) * n
                pool[scale_at + 1::self.size] = bytes([scale >> 8]) * n
                setattr(self, name, bytes(pool))

    def take(self, n_bytes: int, which: str):
        """Pieces of n_bytes in all, each from a random block of the pool on."""
        pool = memoryview(getattr(self, which))
        while n_bytes > 0:
            at = self.rng.randrange(len(pool) // self.size) * self.size
            piece = pool[at:at + n_bytes]
            n_bytes -= len(piece)
            yield piece


def times_scale(rows: bytes, kind: int, factor: int) -> bytes:
    """The blocks with their float16 scale multiplied by a power of two."""
    if factor == 1:
        return rows
    _, size, scale_at = BLOCKS[kind]
    out = bytearray(rows)
    for at in range(scale_at, len(out), size):
        struct.pack_into("<e", out, at, struct.unpack_from("<e", out, at)[0] * factor)
    return bytes(out)


class Inflation:
    def __init__(self, source: Gguf, width: int, inner: int, split: int, seed: int):
        self.source, self.factor, self.split = source, width, split
        self.architecture = source.keys["general.architecture"][1][8:].decode()
        self.width = source.number(self.key("embedding_length"))
        self.old_inner = source.number(self.key("expert_feed_forward_length"))
        self.n_experts = source.number(self.key("expert_count"))
        self.inner = inner
        self.rng = random.Random(seed)
        self.paddings: dict[int, Padding] = {}

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def padding(self, kind: int) -> Padding:
        if kind not in self.paddings:
            self.paddings[kind] = Padding(kind, self.rng)
        return self.paddings[kind]

    def header(self) -> dict[str, tuple[int, bytes]]:
        keys = dict(self.source.keys)

        def put(name, form, kind, value):
            keys[self.key(name)] = kind, struct.pack(form, value)

        used = self.source.number(self.key("expert_used_count"))
        epsilon = self.source.number(self.key("attention.layer_norm_rms_epsilon"))
        put("embedding_length", "<I", UINT32, self.width * self.factor)
        put("expert_feed_forward_length", "<I", UINT32, self.inner)
        put("feed_forward_length", "<I", UINT32, self.inner * used)
        put("attention.layer_norm_rms_epsilon", "<f", FLOAT32, epsilon / self.factor)
        put("expert_count", "<I", UINT32, self.n_experts * self.split)
        put("expert_used_count", "<I", UINT32, used * self.split)
        name = f"moe-demo inflated {self.factor}x, inner {self.inner}, split {self.split}".encode()
        keys["general.name"] = STRING, struct.pack("<Q", len(name)) + name
        keys.pop("general.size_label", None)
        return keys

    def new_dims(self, name: str, dims: tuple[int, ...]) -> tuple[int, ...]:
        role = name.split(".")[-2]
        wide = self.width * self.factor
        experts = self.n_experts * self.split
        if role in ("attn_q_norm", "attn_k_norm"):
            return dims
        if role == "attn_output":
            return dims[0], wide
        if role == "ffn_down_exps":
            return self.inner, wide, experts
        if role in ("ffn_gate_exps", "ffn_up_exps"):
            return wide, self.inner, experts
        if role == "ffn_gate_inp":
            return wide, experts
        if role in ("token_embd", "output", "attn_q", "attn_k", "attn_v") or role.endswith("_norm"):
            return wide, *dims[1:]
        sys.exit(f"{name}: a tensor that is not known here")

    def rows(self, old: bytes, n_old: int, old_in: int, new_in: int, new_out: int, kind: int,
             beside: str, below: str, kept: range | None = None):
        """A matrix's rows: each old one and padding "beside" it; then rows of padding "below".
        Old rows that are not kept become padding, too."""
        padding = self.padding(kind)
        old_size, new_size = row_bytes(old_in, kind), row_bytes(new_in, kind)
        for i in range(n_old):
            if kept is not None and i not in kept:
                yield from padding.take(new_size, below)
            else:
                yield old[i * old_size:(i + 1) * old_size]
                yield from padding.take(new_size - old_size, beside)
        yield from padding.take((new_out - n_old) * new_size, below)

    def experts(self, role: str, old: bytes, dims: tuple[int, ...], new: tuple[int, ...], kind: int):
        size = tensor_bytes(dims[:2], kind)
        for e in range(self.n_experts):
            matrix = old[e * size:(e + 1) * size]
            if role == "ffn_down_exps":
                # The router's weights are shared out among the parts: each counts S times as much.
                matrix = times_scale(matrix, kind, self.split)
            for part in range(self.split):
                share = self.old_inner // self.split
                kept = range(part * share, (part + 1) * share) if role == "ffn_gate_exps" else None
                # Where the gate's row is 0, silu(0) makes the unit 0 whatever its up row gives.
                below = "any" if role == "ffn_up_exps" else "zero"
                yield from self.rows(matrix, dims[1], dims[0], new[0], new[1], kind, "any", below,
                                     kept)

    def pieces(self, name: str, dims: tuple[int, ...], kind: int, offset: int):
        role = name.split(".")[-2]
        old, new = self.source.tensor(dims, kind, offset), self.new_dims(name, dims)
        if role in ("attn_q_norm", "attn_k_norm"):
            yield old
        elif role.endswith("_norm"):
            root = math.isqrt(self.factor)
            values = struct.unpack(f"<{dims[0]}f", old)
            yield struct.pack(f"<{dims[0]}f", *(v / root for v in values))
            yield from self.padding(F32).take(4 * (new[0] - dims[0]), "any")
        elif role.endswith("_exps"):
            yield from self.experts(role, old, dims, new, kind)
        elif role == "ffn_gate_inp":
            size = row_bytes(dims[0], kind)
            for e in range(self.n_experts):
                for _ in range(self.split):
                    yield from self.rows(old[e * size:(e + 1) * size], 1, dims[0], new[0], 1, kind,
                                         "any", "any")
        else:
            # The embedding's rows become hidden states, so what is beside them is 0.
            beside = "zero" if role == "token_embd" else "any"
            yield from self.rows(old, dims[1], dims[0], new[0], new[1], kind, beside, "zero")

    def write(self, path: str) -> int:
        keys = self.header()
        parts = [struct.pack("<IIQQ", MAGIC, 3, len(self.source.tensors), len(keys))]

        def text(value: str) -> bytes:
            return struct.pack("<Q", len(value.encode())) + value.encode()

        for name, (kind, value) in keys.items():
            parts.append(text(name) + struct.pack("<I", kind) + value)
        at = 0
        for name, dims, kind, _ in self.source.tensors:
            new = self.new_dims(name, dims)
            parts.append(text(name) + struct.pack(f"<I{len(new)}QIQ", len(new), *new, kind, at))
            at = align(at + tensor_bytes(new, kind), 32)
        header = b"".join(parts)
        with open(path, "wb", buffering=4 << 20) as file:
            file.write(header + bytes(align(len(header), 32) - len(header)))
            for name, dims, kind, offset in self.source.tensors:
                size = 0
                for piece in self.pieces(name, dims, kind, offset):
                    size += file.write(piece)
                assert size == tensor_bytes(self.new_dims(name, dims), kind), name
                file.write(bytes(align(size, 32) - size))
            file.flush()
            os.fsync(file.fileno())
            return file.tell()


def bytes_of(text: str) -> float:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper())
    return float(text[:-1]) * unit if unit else float(text)


def inner_for(source: Gguf, wanted: float, factor: int, split: int) -> int:
    """The inner width, a multiple of 256, whose experts come nearest to the bytes wanted."""
    a_step = 0
    for name, dims, kind, _ in source.tensors:
        if name.split(".")[-2].endswith("_exps"):
            a_step += row_bytes(dims[0] * factor, kind) * INNER_STEP * dims[2]
    return max(1, round(wanted / (a_step * split))) * INNER_STEP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="examples/demo-model/moe-demo-q4.gguf")
    parser.add_argument("out")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--size", type=bytes_of, help="of the file, about: 2G, 7G, 16G")
    size.add_argument("--inner", type=int, help="inner width of an expert, a multiple of 256")
    parser.add_argument("--width", type=int, choices=(4, 16, 64), default=16)
    parser.add_argument("--split", type=int, choices=(1, 2, 4, 8), default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the padding")
    given = parser.parse_args()
    source = Gguf(given.model)
    inner = given.inner or inner_for(source, given.size, given.width, given.split)
    inflation = Inflation(source, given.width, inner, given.split, given.seed)
    if inner % INNER_STEP or inner < inflation.old_inner:
        sys.exit(f"--inner: a multiple of {INNER_STEP} from {inflation.old_inner} on")
    n_bytes = inflation.write(given.out)
    print(f"{given.out}: {n_bytes} bytes, width {inflation.width * given.width}, "
          f"{inflation.n_experts * given.split} experts a layer of inner width {inner}")


if __name__ == "__main__":
    main()
