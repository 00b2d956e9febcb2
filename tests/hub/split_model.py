# SPDX-License-Identifier: MIT
"""Splits a GGUF file (version 3) in two, as gguf-split does: the first part has the metadata, each has the
descriptions and data of some tensors."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of values, by their type
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def string(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, n = self.take("IQ")
            return [self.value(inner) for _ in range(n)] if inner in (STRING, ARRAY) else self.skip(n * SIZES[inner])
        return self.skip(SIZES[kind])

    def skip(self, n):
        self.at += n
        return self.data[self.at - n:self.at]


def string(text):
    return struct.pack("<Q", len(text)) + text


def pad(n, alignment):
    return -n % alignment


def part(number, count, n_tensors, metadata, n_keys, tensors, alignment):
    """tensors: (description up to the offset, data)."""
    keys = metadata
    for name, form, kind, value in ((b"split.no", "H", 2, number), (b"split.count", "H", 2, count),
                                    (b"split.tensors.count", "i", 5, n_tensors)):
        keys += string(name) + struct.pack("<I" + form, kind, value)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys + 3) + keys
    body = b""
    for description, data in tensors:
        head += description + struct.pack("<Q", len(body))
        body += data + bytes(pad(len(data), alignment))
    return head + bytes(pad(len(head), alignment)) + body


def split(data, first):
    """first: tensors of the first part."""
    r = Reader(data)
    _, version, n_tensors, n_keys = r.take("4sIQQ")
    assert version == 3
    begin, alignment = r.at, 32
    for _ in range(n_keys):
        key, kind = r.string(), r.take("I")
        value = r.value(kind)
        alignment = struct.unpack("<I", value)[0] if key == b"general.alignment" else alignment
    metadata = data[begin:r.at]
    found = []
    for _ in range(n_tensors):
        start = r.at
        r.string()
        r.skip(8 * r.take("I"))
        r.take("I")
        found.append((data[start:r.at], r.take("Q")))
    base = r.at + pad(r.at, alignment)
    ends = sorted(at for _, at in found) + [len(data) - base]
    tensors = [(description, data[base + at:base + ends[ends.index(at) + 1]]) for description, at in found]
    return [part(0, 2, n_tensors, metadata, n_keys, tensors[:first], alignment),
            part(1, 2, n_tensors, b"", 0, tensors[first:], alignment)]
