# SPDX-License-Identifier: MIT
"""Copies a GGUF file so that its tensors begin at 8 modulo 16: a file may set general.alignment to 8.
Arguments: the file, the copy."""
import struct
import sys

KEY, UINT32 = b"general.alignment", 4
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


def end_of_string(data, at):
    return at + 8 + struct.unpack_from("<Q", data, at)[0]


def end_of_value(data, kind, at):
    if kind == STRING:
        return end_of_string(data, at)
    if kind != ARRAY:
        return at + SIZES[kind]
    kind, n = struct.unpack_from("<IQ", data, at)
    at += 12
    for _ in range(n):
        at = end_of_value(data, kind, at)
    return at


def main():
    data = open(sys.argv[1], "rb").read()
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(n_keys):
        begin = at
        at = end_of_string(data, at)
        assert data[begin + 8:at] != KEY, "the file has an alignment of its own"
        at = end_of_value(data, struct.unpack_from("<I", data, at)[0], at + 4)
    values_end = at
    for _ in range(n_tensors):
        at = end_of_string(data, at)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    tensors = data[(at + 31) // 32 * 32:]
    added = struct.pack("<Q", len(KEY)) + KEY + struct.pack("<II", UINT32, 8)
    head = data[:16] + struct.pack("<Q", n_keys + 1) + data[24:values_end] + added + data[values_end:at]
    head += bytes(-len(head) % 8)
    # A string that nothing reads moves the rest by 8 where that is needed.
    if len(head) % 16 == 0:
        filler = struct.pack("<Q", 7) + b"moe.pad" + struct.pack("<I", STRING)
        filler += struct.pack("<Q", (8 - len(filler) - 8) % 16) + bytes((8 - len(filler) - 8) % 16)
        raw = data[:16] + struct.pack("<Q", n_keys + 2) + data[24:values_end] + added + filler
        head = raw + data[values_end:at]
        head += bytes(-len(head) % 8)
    assert len(head) % 16 == 8
    open(sys.argv[2], "wb").write(head + tensors)


main()
