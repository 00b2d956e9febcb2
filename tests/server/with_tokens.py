# SPDX-License-Identifier: MIT
"""A copy of a GGUF file in which some tokens of the vocabulary are control tokens of another
model: its marks are then single tokens that no text spells, as in the real one."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, CONTROL = 8, 9, 3


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.number("Q"))

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.number("I"), self.number("Q")
            return item, [self.value(item) for _ in range(n)]
        return self.take(SIZES[kind])


def written(kind, value):
    if kind == STRING:
        return struct.pack("<Q", len(value)) + value
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(written(item, v) for v in values)
    return value


def with_tokens(source, target, names):
    """Writes target: the last tokens of the vocabulary of source are `names`."""
    with open(source, "rb") as file:
        reader = Reader(file.read())
    magic, version = reader.take(4), reader.number("I")
    n_tensors, n_keys = reader.number("Q"), reader.number("Q")
    keys = {}
    for _ in range(n_keys):
        name = reader.string()
        kind = reader.number("I")
        keys[name] = [kind, reader.value(kind)]
    begin = reader.at
    for _ in range(n_tensors):
        reader.string()
        reader.take(8 * reader.number("I") + 12)
    tensors = reader.data[begin:reader.at]
    alignment = keys.get(b"general.alignment", [4, struct.pack("<I", 32)])[1]
    alignment = struct.unpack("<I", alignment)[0]
    data = reader.data[-(-reader.at // alignment) * alignment:]
    tokens = keys[b"tokenizer.ggml.tokens"][1][1]
    types = keys[b"tokenizer.ggml.token_type"][1][1]
    first = len(tokens) - 8 - len(names)
    gone = set(tokens[first:first + len(names)])
    for i, name in enumerate(names):
        tokens[first + i] = name.encode()
        types[first + i] = struct.pack("<i", CONTROL)
    merges = keys[b"tokenizer.ggml.merges"][1]
    keys[b"tokenizer.ggml.merges"][1] = merges[0], [
        m for m in merges[1] if not gone & set(m.split(b" ") + [m.replace(b" ", b"")])]
    head = magic + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(
        written(STRING, name) + struct.pack("<I", kind) + written(kind, value)
        for name, (kind, value) in keys.items()) + tensors
    with open(target, "wb") as file:
        file.write(head + b"\0" * (-len(head) % alignment) + data)
