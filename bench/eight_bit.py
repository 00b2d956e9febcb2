#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a model's experts in Q8_0: the same weights, but for the rounding to 8 bits, in twice the bytes.

    python3 eight_bit.py MODEL OUT

For low_bit.py: of such a file a copy in fewer bits is a third to a half. Needs the Python package gguf.
"""

from __future__ import annotations

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    options = parser.parse_args()
    import gguf
    from gguf.quants import dequantize, quantize

    eight = gguf.GGMLQuantizationType.Q8_0
    reader = gguf.GGUFReader(options.model)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(options.out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if "_exps." in tensor.name:
            data, kind = quantize(dequantize(data, kind), eight), eight
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
